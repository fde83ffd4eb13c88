"""Tensors on devices, shared with other libraries without copies, and files of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.errors import ExchangeError, InputError, OptionError, UnsupportedError, unknown
from mlfc.runtime.devices.device import Device, DeviceBlock, cpu, device_of_code, move, require_device
from mlfc.runtime.tensor import c_abi
from mlfc.runtime.tensor.c_abi import Described, from_capsule, to_capsule
from mlfc.support import dtypes
from mlfc.support.params import decode_ndarray, encode_ndarray, load_params, save_params
from mlfc.support.tensor_info import Array
from mlfc.support.text import Displayed

if TYPE_CHECKING:
    import numpy.typing as npt

_DLPACK_BOOL = c_abi.DLDataType(6, 8, 1)
_ABIS = ("classic", "ffi")


class NDArray(Displayed):
    """A tensor on a device, created by `array`, `empty` and `from_dlpack`.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        As TVM writes it: ``float32``, ``int8``, ``bool``, ``bfloat16``.
    device : Device
    handle : int
        Value of a DLTensor's ``data`` for its memory: on the host an address.
    byte_offset : int
        Offset of its first element in that memory.
    """

    def __init__(self, described: Described, device: Device, dtype: str) -> None:
        self._described = described
        self.shape = described.shape
        self.dtype = dtype
        self.device = device
        self.handle = described.data
        self.byte_offset = described.byte_offset
        self._host: Array | None = None
        if device.type_code == cpu().type_code:
            address, element = described.data + described.byte_offset, dtypes.to_numpy(dtype)
            self._host = c_abi.view_at(address, described.shape, element, described.strides, described.owner)
            self._host.flags.writeable = not described.read_only

    @classmethod
    def at(
        cls,
        handle: int,
        shape: tuple[int, ...],
        dtype: str,
        device: Device,
        owner: object,
        *,
        strides: tuple[int, ...] | None = None,
        byte_offset: int = 0,
        read_only: bool = False,
    ) -> NDArray:
        """Return a tensor in memory that `owner` keeps alive; without strides it is compact."""
        code, element = c_abi.DLDevice(device.type_code, device.index), _dl_type(dtype)
        return cls(Described(handle, code, shape, element, strides, byte_offset, read_only, owner), device, dtype)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        return prod(self.shape) * dtypes.nbytes(self.dtype)

    @property
    def is_on_host(self) -> bool:
        """True if it is in memory of this process that host code can read."""
        return self._host is not None

    @property
    def is_read_only(self) -> bool:
        """True if the tensor is read-only."""
        return self._described.read_only

    def numpy(self) -> Array:
        """Return the tensor as an array: the same memory on the host, a copy from other devices."""
        if self._host is not None:
            return self._host
        out = np.empty(self.shape, dtypes.to_numpy(self.dtype))
        self.device.api.copy_out(self.handle, self.byte_offset, out)
        return out

    def asnumpy(self) -> Array:
        """Return the tensor as an array; `numpy` under TVM's older name."""
        return self.numpy()

    def copyfrom(self, source: Any) -> NDArray:
        """Copy from an array of the same shape and dtype, of any library; return this one.

        Raises
        ------
        InputError
            If it does not match, or this tensor is read-only.
        """
        given = source if isinstance(source, NDArray) else from_dlpack(np.asarray(source))
        return given.copyto(self)

    def copyto(self, target: NDArray | Device) -> NDArray:
        """Copy to another tensor of the same shape and dtype, or to a new one on a device; return the target.

        Raises
        ------
        InputError
            If it does not match, or the target is read-only.
        DeviceError
            If a device fails.
        """
        if isinstance(target, Device):
            target = empty(self.shape, self.dtype, target)
        if (target.shape, target.dtype) != (self.shape, self.dtype):
            raise InputError(
                f"{self.dtype}{list(self.shape)} cannot be copied to {target.dtype}{list(target.shape)}",
                place="copyto",
            )
        if target.is_read_only:
            raise InputError("the target is read-only", place="copyto", next_step="Copy to a writable tensor")
        here, there = (each if each._host is None else each._host for each in (self, target))
        move(here, there, self.nbytes)
        return target

    def save_to_bytes(self) -> bytes:
        """Return the tensor in TVM's binary form, for `NDArray.load_from_bytes` and readers of TVM."""
        return encode_ndarray(self.numpy())

    @staticmethod
    def load_from_bytes(data: bytes | memoryview, device: Device | None = None) -> NDArray:
        """Return the tensor in TVM's binary form, on the host a view of `data` if alignment allows.

        Raises ArchiveError with the offset of the first malformed byte.
        """
        loaded, _ = decode_ndarray(data)
        made = from_dlpack(loaded)
        return made if device is None or device == made.device else made.copyto(device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.type_code, self.device.index

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule of this memory, or of a copy if `dl_device` or `copy` requires one.

        Parameters
        ----------
        stream : int, optional
            The consumer's queue on the device; all work is done when this returns, except with -1, which does not wait.
        max_version : tuple of int, optional
            The newest DLPack version that the consumer supports.
        dl_device : tuple of int, optional
            Requested device: the tensor's own, or the host.
        copy : bool, optional
            True to force a copy, False to forbid it.

        Raises
        ------
        ExchangeError
            If it cannot be exported in this way.
        """
        if self._host is not None and stream is not None:
            raise ExchangeError("tensors on the host do not support streams", next_step="Pass stream=None")
        wanted = self.device if dl_device is None else _device(*map(int, dl_device))
        source = self
        if wanted != self.device:
            if wanted.type_code != cpu().type_code or copy is False:
                raise ExchangeError(f"a tensor on {self.device} is not on {wanted}", next_step="Copy it there first")
            source = self.copyto(wanted)
        elif copy:
            source = self.copyto(wanted)
        if source._host is None and stream != -1:
            self.device.api.synchronize()
        return to_capsule(source._described, versioned=max_version is not None and max_version[0] >= 1)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        found = self.numpy()
        if dtype is not None and found.dtype != np.dtype(dtype):
            return found.astype(dtype)
        return found.copy() if copy and self._host is not None else found

    def _facts(self) -> Mapping[str, object]:
        return {"dtype": self.dtype, "shape": self.shape, "device": self.device, "values": self.numpy()}

    def __repr__(self) -> str:
        return f"NDArray({self.dtype}{list(self.shape)} on {self.device})"


def empty(shape: tuple[int, ...] | list[int], dtype: str = "float32", device: Device | None = None) -> NDArray:
    """Return a new uninitialized tensor.

    Parameters
    ----------
    shape : tuple of int
    dtype : str
    device : Device, optional
        Default: the host.

    Raises
    ------
    InputError
        For an invalid shape or dtype.
    DeviceError
        If the device does not exist, or is out of memory.
    """
    place = cpu() if device is None else require_device(device)
    try:
        extents = tuple(index(extent) for extent in shape)
    except TypeError:
        raise InputError(f"expected a shape as a tuple of integers, got {shape!r}") from None
    if any(extent < 0 for extent in extents):
        raise InputError(f"invalid tensor shape {list(extents)}")
    try:
        nbytes = prod(extents) * dtypes.nbytes(dtype)
    except UnsupportedError as error:
        raise InputError(error.cause, next_step=error.next_step) from error
    block = DeviceBlock(place, nbytes)
    return NDArray.at(block.handle, extents, dtype, place, block)


def array(values: Any, device: Device | None = None, dtype: str | None = None) -> NDArray:
    """Return a new tensor with a copy of values.

    Parameters
    ----------
    values : array_like
        Array of numpy or any DLPack library, or lists of numbers.
    device : Device, optional
        Default: the host.
    dtype : str, optional
        Default: the dtype of the values.
    """
    place = cpu() if device is None else require_device(device)
    foreign = hasattr(values, "__dlpack__") and not isinstance(values, (np.ndarray, np.generic))
    source = from_dlpack(values).numpy() if foreign else np.asarray(values)
    if dtype is not None:
        source = source.astype(dtypes.to_numpy(dtype), copy=False)
    made = from_dlpack(source)
    return made.copyto(empty(made.shape, made.dtype, place))


def from_dlpack(value: Any) -> NDArray:
    """Return a tensor over the memory of another library's array, without a copy.

    Parameters
    ----------
    value : ndarray or object with ``__dlpack__``
        Kept alive by the result and all arrays created from it.

    Raises
    ------
    ExchangeError
        If its library does not export it, or in an unknown form.
    """
    if isinstance(value, NDArray):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return _of_numpy(np.asarray(value))
    if not hasattr(value, "__dlpack__"):
        raise ExchangeError(
            f"expected a DLPack array, got {type(value).__name__}",
            next_step="Convert it with mlfc.runtime.array(...)",
        )
    described = from_capsule(value)
    device = _device(described.device.type, described.device.id)
    if device.type_code != cpu().type_code and described.strides not in (None, c_abi.compact_strides(described.shape)):
        raise ExchangeError(
            f"the tensor on {device} is not contiguous in row-major order", next_step="Make it contiguous"
        )
    try:
        name = c_abi.dtype_name(described.dtype)
        dtypes.nbytes(name)
    except (InputError, UnsupportedError) as error:
        raise ExchangeError(error.cause, next_step="Convert the array") from error
    return NDArray(described, device, name)


def _of_numpy(values: Array) -> NDArray:
    try:
        name = dtypes.from_numpy(values.dtype)
    except UnsupportedError as error:
        raise ExchangeError(error.cause, next_step="Convert the array") from error
    if not values.dtype.isnative or any(stride % values.itemsize for stride in values.strides):
        raise ExchangeError(
            "the array's elements are not as this machine has them, or no multiple of their size apart",
            next_step="Convert it with mlfc.runtime.array(...)",
        )
    strides = None if values.flags.c_contiguous else tuple(step // values.itemsize for step in values.strides)
    read_only = not values.flags.writeable
    return NDArray.at(values.ctypes.data, values.shape, name, cpu(), values, strides=strides, read_only=read_only)


def _dl_type(dtype: str) -> c_abi.DLDataType:
    return _DLPACK_BOOL if dtype == "bool" else c_abi.entry_type(dtype)


def _device(type_code: int, index: int) -> Device:
    try:
        return device_of_code(type_code, index)
    except OptionError as error:
        raise ExchangeError(error.cause) from error


def save_param_dict(params: Mapping[str, Any], abi: str = "classic") -> bytes:
    """Return the bytes of a parameter file, as TVM's ``save_param_dict``.

    Parameters
    ----------
    params : mapping of str to array
        Arrays of numpy or of any DLPack library.
    abi : str
        Form of bool tensors: ``classic`` writes the one-bit unsigned integers of TVM 0.14, ``ffi`` the bool of DLPack
        and tvm-ffi. TVM 0.27 requires ``ffi``: it stores the others in too little memory. Other types are equal.

    Returns
    -------
    bytes
        Names are sorted, so equal dictionaries produce equal bytes.

    Examples
    --------
    >>> data = mlfc.save_param_dict({"w": np.ones(2, np.float32)})
    >>> mlfc.load_param_dict(data)["w"].tolist()
    [1.0, 1.0]
    """
    if abi not in _ABIS:
        raise OptionError(unknown("calling convention", abi, _ABIS), place="abi")
    return save_params({name: _host_array(value) for name, value in params.items()}, abi)


def load_param_dict(param_bytes: bytes | bytearray | memoryview) -> dict[str, Array]:
    """Read a parameter file of any TVM version, as TVM's ``load_param_dict``.

    Returns
    -------
    dict of str to ndarray
        Read-only arrays in the order of the file, views of `param_bytes` where alignment allows.

    Raises
    ------
    ArchiveError
        If the bytes are not a parameter file.
    """
    return load_params(memoryview(param_bytes))


def _host_array(value: Any) -> Array:
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    return from_dlpack(value).numpy()
