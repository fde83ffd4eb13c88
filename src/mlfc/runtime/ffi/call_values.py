"""Python values as arguments and results of the classic packed convention, in both directions."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np

from mlfc.errors import InputError
from mlfc.runtime.devices.device import Device, cpu, device_of_code
from mlfc.runtime.tensor import c_abi

# names of this module are found faster than those of others
_NDARRAY, _TENSOR = np.ndarray, c_abi.TENSOR
_BOOL = np.dtype(bool)
_WHOLE = frozenset({c_abi.INT, c_abi.OPAQUE})
_LEGACY_CAPSULE = b"dltensor"
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


class CallFrame:
    """Reusable memory for the arguments and the result of one call: making it takes as long as a call."""

    def __init__(self, count: int) -> None:
        self.count = count
        slots = max(1, count)
        memory = [(ctypes.c_char * size)() for size in (8 * slots, 4 * slots)]
        # a view takes an element in a third of the time that an array of ctypes does
        self.values = memoryview(memory[0]).cast("B").cast("q")
        self.codes = memoryview(memory[1]).cast("B").cast("i")
        self.floats = memoryview(memory[0]).cast("B").cast("d")
        self.result = ctypes.c_int64()
        self.result_code = ctypes.c_int32(c_abi.NULL)
        places = [ctypes.c_void_p(ctypes.addressof(part)) for part in (*memory, self.result, self.result_code)]
        self.arguments = (*places[:2], count, *places[2:], None)

    def fill(self, args: tuple[Any, ...], name: str, reads: int = 0) -> list[Any]:
        """Write the arguments of function `name`, which may write to all but its first `reads` arguments.

        Returns what must live as long as the call. Raises InputError for a value that the convention has no form for.
        """
        values, codes = self.values, self.codes
        keep: list[Any] = []
        for index, arg in enumerate(args):
            if type(arg) is _NDARRAY and arg.dtype is not _BOOL:
                try:
                    capsule = arg.__dlpack__()
                    values[index] = _capsule_pointer(capsule, _LEGACY_CAPSULE)
                except (BufferError, RuntimeError, TypeError):  # read-only, or of elements that DLPack has no name for
                    self._set(index, arg, keep, name, reads)
                else:
                    codes[index] = _TENSOR
                    keep.append(capsule)
            elif type(arg) is int and -(1 << 63) <= arg < 1 << 63:
                values[index], codes[index] = arg, c_abi.INT
            else:
                self._set(index, arg, keep, name, reads)
        return keep

    def _set(self, index: int, arg: Any, keep: list[Any], name: str, reads: int) -> None:
        value, code = 0, c_abi.NULL
        if isinstance(arg, (bool, int, np.integer, np.bool_)):
            value, code = int(arg), c_abi.INT
            if not -(1 << 63) <= value < 1 << 63:
                raise InputError(f"argument {index} does not fit 64 bits", place=name)
        elif isinstance(arg, (float, np.floating)):
            self.floats[index], self.codes[index] = float(arg), c_abi.FLOAT
            return
        elif isinstance(arg, str):
            value, code = _kept(keep, _c_text(arg, index, name)), c_abi.STRING
        elif isinstance(arg, (bytes, bytearray)):
            data = bytes(arg)
            keep.append(data)
            value, code = _kept(keep, c_abi.TVMByteArray(data, len(data))), c_abi.BYTES
        elif isinstance(arg, np.ndarray):
            if index >= reads and not arg.flags.writeable:
                raise InputError(
                    f"argument {index} is an array that is only to be read, and the function may write to it",
                    place=name,
                    next_step="Pass a copy of it, or one that may be written to",
                )
            keep.append(arg)
            value, code = _kept(keep, _host_tensor(arg, index, name)), c_abi.TENSOR
        elif isinstance(arg, Device):
            value = int.from_bytes(bytes(c_abi.DLDevice(arg.type_code, arg.index)), "little", signed=True)
            code = c_abi.DEVICE
        elif hasattr(arg, "__dlpack__"):
            value, code = _exported(arg, keep, index, name), c_abi.TENSOR
        elif arg is not None:
            raise InputError(
                f"argument {index} is a {type(arg).__name__}, which compiled functions cannot take",
                place=name,
                next_step="Give numbers, strings, bytes, None or arrays",
            )
        self.values[index], self.codes[index] = value, code

    def take_result(self) -> Any:
        """Return the result of the call, and forget it."""
        value, code = self.result.value, self.result_code.value
        self.result.value, self.result_code.value = 0, c_abi.NULL
        return result_of(value, code)


def result_of(value: int, code: int) -> Any:
    """Return a result by its 64 bits and its code; opaque ones are integers."""
    if code == c_abi.NULL:
        return None
    if code == c_abi.FLOAT:
        return struct.unpack("d", struct.pack("q", value))[0]
    if code == c_abi.STRING:
        return ctypes.string_at(value).decode(errors="replace") if value else None
    return value


def argument_of(value: int, code: int) -> Any:
    """Return an argument from C as a Python value; what is in memory is valid only during the call.

    Raises InputError or OptionError for an unknown type code, element type or device.
    """
    if code in _WHOLE:  # what nearly all arguments of kernels are
        return value
    if code in (c_abi.TENSOR, c_abi.NDARRAY):
        return _tensor(c_abi.DLTensor.from_address(value)) if value else None
    if code == c_abi.DEVICE:
        device = c_abi.DLDevice.from_buffer_copy(struct.pack("q", value))
        return device_of_code(device.type, device.id)
    if code == c_abi.BYTES:
        # as a pointer: what ctypes takes for a text ends at its first zero
        start, size = ctypes.c_void_p.from_address(value), c_abi.TVMByteArray.from_address(value).size
        return ctypes.string_at(start.value, size) if size and start.value else b""
    if code == c_abi.DATA_TYPE:
        return c_abi.dtype_name(c_abi.DLDataType.from_buffer_copy(struct.pack("q", value)[:4]))
    if code not in (c_abi.INT, c_abi.UINT, c_abi.FLOAT, c_abi.OPAQUE, c_abi.NULL, c_abi.STRING):
        raise InputError(f"unknown argument type code {code}")
    return result_of(value, code)


def _tensor(tensor: c_abi.DLTensor) -> Any:
    """Return a tensor as an array, or as an `NDArray` in memory of a device."""
    if tensor.device.type == cpu().type_code:
        return c_abi.tensor_view(tensor)
    from mlfc.runtime.tensor.ndarray import NDArray  # only devices need it

    device = device_of_code(tensor.device.type, tensor.device.id)
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    code, dtype = c_abi.DLDevice(device.type_code, device.index), c_abi.DLDataType.from_buffer_copy(tensor.dtype)
    shape = tuple(tensor.shape[: tensor.ndim])
    described = c_abi.Described(tensor.data or 0, code, shape, dtype, strides, tensor.byte_offset, False, None)
    return NDArray(described, device, c_abi.dtype_name(dtype))


def returned(value: Any, keep: list[Any]) -> tuple[int, int]:
    """Return the 64 bits and the code of a Python function's result for C; `keep` holds what they point to."""
    if value is None:
        return 0, c_abi.NULL
    if isinstance(value, (bool, int, np.integer, np.bool_)) and -(1 << 63) <= int(value) < 1 << 63:
        return int(value), c_abi.INT
    if isinstance(value, (float, np.floating)):
        return struct.unpack("q", struct.pack("d", float(value)))[0], c_abi.FLOAT
    if isinstance(value, str):
        return _kept(keep, _c_text(value, -1, "the result")), c_abi.STRING
    raise InputError(
        f"a {type(value).__name__} cannot be returned to compiled code",
        next_step="Return a number of 64 bits, a string or None, and write arrays in place",
    )


def _kept(keep: list[Any], value: Any) -> int:
    keep.append(value)
    return ctypes.addressof(value)


def _c_text(text: str, index: int, name: str) -> Any:
    data = text.encode("utf-8", "surrogatepass")
    if b"\0" in data:
        raise InputError(f"argument {index} is a string with a zero, where strings of C end", place=name)
    return ctypes.create_string_buffer(data)


def _host_tensor(array: Any, index: int, name: str) -> c_abi.DLTensor:
    try:
        return c_abi.array_tensor(array, cpu())
    except InputError as error:
        raise InputError(f"argument {index}: {error.cause}", place=name, next_step=error.next_step) from error


def _exported(arg: Any, keep: list[Any], index: int, name: str) -> int:
    """Return the address of the tensor in the capsule of another library's array."""
    try:
        capsule = arg.__dlpack__()
        address: int = _capsule_pointer(capsule, _LEGACY_CAPSULE)
    except Exception as error:  # other libraries raise whatever they like from __dlpack__
        raise InputError(
            f"argument {index} cannot be taken through DLPack: {error}",
            place=name,
            next_step="Pass a plain array, detached from any gradient",
        ) from error
    keep.append(capsule)
    return address
