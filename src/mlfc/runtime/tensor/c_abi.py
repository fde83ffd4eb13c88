"""The classic packed-function ABI in ctypes, and exchange of tensors with other libraries by DLPack.

Exported capsules are numpy's own, modified to describe other memory. Their deleter is C code, so it also works where
Python code would fail: threads without the GIL, pending exceptions, interpreter shutdown.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mlfc.errors import ExchangeError, InputError, UnsupportedError
from mlfc.runtime.devices.device import Device, cpu
from mlfc.support import dtypes
from mlfc.support.tensor_info import Array

INT, UINT, FLOAT, OPAQUE, NULL = 0, 1, 2, 3, 4
DATA_TYPE, DEVICE, TENSOR, STRING, BYTES, NDARRAY = 5, 6, 7, 11, 12, 13


class DLDevice(ctypes.Structure):
    """``DLDevice``: the device of a tensor."""

    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class DLDataType(ctypes.Structure):
    """``DLDataType``: the type of a tensor's elements."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    """A borrowed tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class TVMByteArray(ctypes.Structure):
    """Bytes with their length."""

    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


_CODE_OF_KIND = {"i": 0, "u": 1, "f": 2, "c": 5}


def data_type(dtype: np.dtype[Any]) -> DLDataType:
    """Return DLPack's form of a dtype; raise InputError if it has none."""
    if dtype.name in ("bool", "bfloat16") or dtypes.is_narrow(dtype.name):
        return entry_type(dtype.name)
    if dtype.kind not in _CODE_OF_KIND or not dtype.isnative:
        raise InputError(f"arrays of {dtype} cannot be passed to compiled functions", next_step="Convert the array")
    return DLDataType(_CODE_OF_KIND[dtype.kind], 8 * dtype.itemsize, 1)


def dtype_name(dtype: DLDataType) -> str:
    """Return the name of a dtype of DLPack; raise InputError if numpy lacks it."""
    name = dtypes.from_dlpack(dtype.code, dtype.bits, dtype.lanes)
    if name is None or dtype.lanes != 1:
        raise InputError(f"elements of code {dtype.code}, {dtype.bits} bits and {dtype.lanes} lanes are not known here")
    return name


def tensor_view(tensor: DLTensor) -> Array:
    """Return a tensor in this process as an array that does not keep it alive; raise InputError for any other."""
    if tensor.device.type != cpu().type_code:
        raise InputError(f"the tensor is on device {tensor.device.type}({tensor.device.id}), not in the host's memory")
    name = dtype_name(tensor.dtype)
    try:
        dtype = dtypes.to_numpy(name)
    except (UnsupportedError, TypeError):
        raise InputError(f"numpy has no dtype {name}") from None
    shape = tuple(tensor.shape[: tensor.ndim])
    steps = tensor.strides[: tensor.ndim] if tensor.strides else None
    if steps is not None and min(steps, default=0) < 0:
        raise InputError("the tensor has negative strides", next_step="Pass a copy")
    if tensor.data is None:
        return np.empty(shape, dtype)
    return view_at(tensor.data + tensor.byte_offset, shape, dtype, steps)


def view_at(
    address: int, shape: tuple[int, ...], dtype: np.dtype[Any], steps: Sequence[int] | None, owner: object = None
) -> Array:
    """Return memory as an array that keeps `owner`; `steps` are strides in elements; None for a compact tensor."""
    if 0 in shape:
        return np.empty(shape, dtype)
    low, nbytes, strides = 0, dtype.itemsize * prod(shape), None
    if steps is not None:
        strides = [step * dtype.itemsize for step in steps]
        reaches = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
        low, nbytes = sum(min(0, reach) for reach in reaches), dtype.itemsize + sum(map(abs, reaches))
    memory: Any = (ctypes.c_char * nbytes).from_address(address + low)
    memory.owner = owner  # ctypes arrays take attributes
    return np.ndarray(shape, dtype, memory, -low, strides)


def compact_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a compact tensor, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _int64s(values: Sequence[int]) -> Any:
    """Return a pointer to numbers that keeps them alive."""
    return ctypes.cast((ctypes.c_int64 * max(1, len(values)))(*values), ctypes.POINTER(ctypes.c_int64))


def with_strides(tensor: DLTensor) -> DLTensor:
    """Return a copy of a compact tensor with explicit strides."""
    copy = DLTensor.from_buffer_copy(tensor)
    copy.strides = _int64s(compact_strides(tensor.shape[: tensor.ndim]))
    return copy


def dl_tensor(data: int, shape: tuple[int, ...], dtype: DLDataType, device: Device) -> DLTensor:
    """Return a compact tensor at address `data`; it owns its shape, but not the data."""
    return DLTensor(data, DLDevice(device.type_code, device.index), len(shape), dtype, _int64s(shape), None, 0)


def array_tensor(array: Array, device: Device) -> DLTensor:
    """Return a tensor over an array's own memory, which the caller keeps alive."""
    tensor = dl_tensor(array.ctypes.data, array.shape, data_type(array.dtype), device)
    if not array.flags.c_contiguous:
        steps = [stride // array.itemsize for stride in array.strides]
        if any(stride % array.itemsize for stride in array.strides):
            raise InputError("the array's strides are not multiples of its element size", next_step="Pass a copy")
        tensor.strides = _int64s(steps)
    return tensor


def entry_type(dtype: str) -> DLDataType:
    """Return DLPack's form of a checked dtype as written in graphs: ``int8``, ``bool``, ``float32x4``."""
    return DLDataType(*dtypes.to_dlpack(dtype))


_NAME, _USED = b"dltensor", b"used_dltensor"
_VERSIONED_NAME, _VERSIONED_USED = b"dltensor_versioned", b"used_dltensor_versioned"
_READ_ONLY = 1
_PADDED = 4  # elements of less than 8 bits take a byte each; without this flag they are packed
_VERSION = (1, 1)
_MAX_DIMENSIONS = 32


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# capsules keep a pointer to their name, and may outlive this module when the interpreter ends
for _name in (_USED, _VERSIONED_USED):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_name))


@dataclass(frozen=True, eq=False)
class Described:
    """Memory and the tensor in it."""

    data: int  # address, or the device's handle of the memory
    device: DLDevice
    shape: tuple[int, ...]
    dtype: DLDataType
    strides: tuple[int, ...] | None  # in elements; None for a compact tensor
    byte_offset: int
    read_only: bool
    owner: object  # keeps the memory alive


class _ForeignTensorOwner:
    """Owner of a foreign tensor, released with the last reference."""

    def __init__(self, address: int, deleter: int | None) -> None:
        self._address = address
        self._deleter = _Deleter(deleter) if deleter else None

    def __del__(self) -> None:
        if self._deleter is not None:
            self._deleter(self._address)


def to_capsule(described: Described, *, versioned: bool) -> Any:
    """Return a capsule of memory for `from_dlpack` of any library; `versioned` if the consumer supports DLPack 1.

    Raises ExchangeError for read-only memory that the capsule could not mark as such.
    """
    shape = described.shape
    # numpy's capsule owns an array, the array owns this object, and this object owns the actual memory
    carrier = (ctypes.c_char * 16)()
    carrier.owner = described.owner  # type: ignore[attr-defined]  # ctypes arrays take attributes
    array: np.ndarray[Any, Any] = np.ndarray(shape, np.uint8, memoryview(carrier), 0, [0] * len(shape))
    capsule = None
    if versioned:
        try:
            capsule = array.__dlpack__(max_version=_VERSION)  # type: ignore[call-arg,unused-ignore]  # numpy 2.1
        except TypeError:
            # an older numpy; consumers of the newer form also accept the older one
            versioned = False
    if described.read_only and not versioned:
        raise ExchangeError(
            "this memory is read-only, which DLPack before version 1 cannot express",
            next_step="Export a copy, or use numpy 2.1 or newer and a consumer with DLPack 1",
        )
    is_padded = _is_below_a_byte(described.dtype)
    if is_padded and not versioned:
        raise ExchangeError(
            f"elements of {described.dtype.bits} bits take a byte each, which DLPack before version 1 cannot express",
            next_step="View the array as uint8",
        )
    if capsule is None:
        capsule = array.__dlpack__()
    address = _pointer_of(capsule, _VERSIONED_NAME if versioned else _NAME)
    managed: Any = _Versioned.from_address(address) if versioned else _Managed.from_address(address)
    if versioned:
        managed.flags = (_READ_ONLY if described.read_only else 0) | (_PADDED if is_padded else 0)
    tensor = managed.tensor
    tensor.data, tensor.device, tensor.dtype = described.data, described.device, described.dtype
    tensor.byte_offset = described.byte_offset
    if tensor.strides:
        steps = described.strides if described.strides is not None else compact_strides(shape)
        for axis, step in enumerate(steps):
            tensor.strides[axis] = step
    return capsule


def from_capsule(value: Any) -> Described:
    """Return the memory of an object with ``__dlpack__``, valid while the result's `owner` lives.

    Raises ExchangeError if its library does not export it, or in an unknown form.
    """
    try:
        capsule = _asked(value)
    except Exception as error:  # other libraries may raise any exception
        raise ExchangeError(
            f"the array cannot be imported through DLPack: {error}",
            next_step="Detach it from any gradient, or pass a copy of it",
        ) from error
    if _is_valid(capsule, _VERSIONED_NAME):
        address = _pointer_of(capsule, _VERSIONED_NAME)
        managed: Any = _Versioned.from_address(address)
        if managed.major != _VERSION[0]:
            raise ExchangeError(f"the array comes by DLPack {managed.major}.{managed.minor}, which is not known here")
        read_only, is_padded = bool(managed.flags & _READ_ONLY), bool(managed.flags & _PADDED)
        _set_name(capsule, _VERSIONED_USED)
    elif _is_valid(capsule, _NAME):
        address = _pointer_of(capsule, _NAME)
        managed, read_only, is_padded = _Managed.from_address(address), False, False
        _set_name(capsule, _USED)
    else:
        raise ExchangeError(f"expected an unused tensor from __dlpack__ of {type(value).__name__}")
    owner = _ForeignTensorOwner(address, managed.deleter)
    tensor = managed.tensor
    ndim = tensor.ndim
    if not 0 <= ndim <= _MAX_DIMENSIONS:
        raise ExchangeError(f"an array of {ndim} dimensions cannot be imported")
    if _is_below_a_byte(tensor.dtype) and not is_padded:
        raise ExchangeError(
            f"elements of {tensor.dtype.bits} bits are packed", next_step="Store each element in its own byte"
        )
    strides = tuple(tensor.strides[:ndim]) if tensor.strides else None
    return Described(
        tensor.data or 0,
        DLDevice(tensor.device.type, tensor.device.id),
        tuple(tensor.shape[:ndim]),
        DLDataType(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes),
        strides,
        tensor.byte_offset,
        read_only,
        owner,
    )


def _is_below_a_byte(dtype: DLDataType) -> bool:
    return bool(1 < dtype.bits < 8)  # a 1-bit integer is TVM's bool, a byte


def _asked(value: Any) -> Any:
    try:
        return value.__dlpack__(max_version=_VERSION)
    except TypeError:
        # a library older than DLPack 1
        return value.__dlpack__()
