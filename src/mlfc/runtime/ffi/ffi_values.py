"""Python values as arguments and results of the convention of tvm-ffi, and its library in this process."""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from mlfc.errors import ArchiveError, InputError
from mlfc.runtime.devices.device import device_of_code
from mlfc.runtime.ffi.call_values import CallFrame
from mlfc.runtime.tensor import c_abi

_HEADER = 24
_PREFIX = "TVMFFI"


class FfiBytes(ctypes.Structure):
    """Bytes with their length, as strings, bytes and errors hold them."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))

    def value(self) -> bytes:
        """Return a copy."""
        return ctypes.string_at(self.data, self.size) if self.size else b""


def needs_host(error: OSError) -> bool:
    """Tell whether a library did not load for lack of tvm-ffi's."""
    return _PREFIX in str(error)


def require_host(place: str) -> None:
    """Load the library of tvm-ffi, so that others find its functions; raise ArchiveError without the package."""
    try:
        import_module("tvm_ffi")
    except ImportError as error:
        raise ArchiveError(
            "the library calls functions of tvm-ffi, which is not installed",
            place=place,
            next_step="Run: pip install apache-tvm-ffi",
        ) from error


def host_function(name: str) -> Any:
    """Return a function of tvm-ffi's library; None if that is not loaded."""
    try:
        return getattr(_process(), name, None)
    except OSError:
        return None


@cache
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None if os.name == "posix" else "tvm_ffi.dll")


def object_at(handle: int) -> int:
    """Return the address of an object's contents."""
    return handle + _HEADER


def release(handle: int) -> None:
    """Release an object."""
    decref = host_function("TVMFFIObjectDecRef")
    if decref is not None:
        decref(ctypes.c_void_p(handle))


def take_raised() -> tuple[str, str] | None:
    """Return kind and message of this thread's error and clear it; None if there is none."""
    move = host_function("TVMFFIErrorMoveFromRaised")
    if move is None:
        return None
    handle = ctypes.c_void_p()
    move(ctypes.byref(handle))
    if not handle.value:
        return None
    kind, message = (FfiBytes * 2).from_address(object_at(handle.value))
    texts = kind.value().decode(errors="replace"), message.value().decode(errors="replace")
    release(handle.value)
    return texts


NONE, INT, BOOL, FLOAT, OPAQUE, DATA_TYPE, DEVICE, TENSOR_POINTER = range(8)
RAW_STRING, BYTES_POINTER, SMALL_STRING, SMALL_BYTES = 8, 9, 11, 12
OBJECTS, STRING, BYTES, TENSOR, ARRAY = 64, 65, 66, 70, 71

_OF_CLASSIC = {
    c_abi.INT: INT,
    c_abi.FLOAT: FLOAT,
    c_abi.NULL: NONE,
    c_abi.DEVICE: DEVICE,
    c_abi.TENSOR: TENSOR_POINTER,
    c_abi.STRING: RAW_STRING,
    c_abi.BYTES: BYTES_POINTER,
}

_STRIDES_AT = c_abi.DLTensor.strides.offset


class FfiAny(ctypes.Structure):
    """A value: its type, the length of a short string stored in it, and its 64 bits."""

    _fields_ = (("type_index", ctypes.c_int32), ("small_length", ctypes.c_uint32), ("value", ctypes.c_int64))


class FfiFrame:
    """Memory for the arguments and the result of one call, filled through a `CallFrame`."""

    def __init__(self, count: int) -> None:
        self._classic = CallFrame(count)
        memory = (FfiAny * max(1, count))()
        # types are at every fourth 32 bits, values at every second 64
        self._types = memoryview(memory).cast("B").cast("i")
        self._values = memoryview(memory).cast("B").cast("q")
        self.result = FfiAny()
        places = [ctypes.c_void_p(ctypes.addressof(part)) for part in (memory, self.result)]
        self.arguments = (None, places[0], count, places[1])

    def fill(self, args: tuple[Any, ...], name: str, reads: int = 0) -> list[Any]:
        """Write the arguments and empty the result; as `CallFrame.fill`."""
        classic, types, values = self._classic, self._types, self._values
        keep = classic.fill(args, name, reads)
        for index, arg in enumerate(args):
            code, value = classic.codes[index], classic.values[index]
            if code == c_abi.TENSOR:
                value = _with_strides(value, keep)
            types[4 * index] = BOOL if isinstance(arg, (bool, np.bool_)) else _OF_CLASSIC[code]
            values[2 * index + 1] = value
        self.result.type_index, self.result.small_length, self.result.value = NONE, 0, 0
        return keep


def _with_strides(address: int, keep: list[Any]) -> int:
    """Return the address of a tensor with strides: the classic convention may omit them, this one may not."""
    if ctypes.c_void_p.from_address(address + _STRIDES_AT).value:
        return address
    tensor = c_abi.DLTensor.from_address(address)
    if tensor.ndim == 0:
        return address
    strides, step = (ctypes.c_int64 * tensor.ndim)(), 1
    for axis in reversed(range(tensor.ndim)):
        strides[axis] = step
        step *= tensor.shape[axis]
    copy = c_abi.DLTensor.from_buffer_copy(tensor)
    copy.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    keep += (strides, copy)
    return ctypes.addressof(copy)


def take_result(result: FfiAny, name: str) -> Any:
    """Return a function's result as a Python value and release objects; raise InputError for an unsupported object."""
    kind, value = result.type_index, result.value
    if kind < OBJECTS:
        return _plain(result, name)
    if kind == TENSOR:
        return _array_of(value)
    try:
        if kind in (STRING, BYTES):
            data = FfiBytes.from_address(object_at(value)).value()
            return data.decode(errors="replace") if kind == STRING else data
        if kind == ARRAY:
            return [_item(result, index, name) for index in range(_call_global("ffi.ArraySize", [result]).value)]
    finally:
        release(value)
    raise InputError(
        f"it returned an object of type {kind}, which has no form here",
        place=name,
        next_step="Call it through tvm_ffi.load_module",
    )


def _plain(result: FfiAny, name: str) -> Any:
    kind, value = result.type_index, result.value
    if kind in (SMALL_STRING, SMALL_BYTES):
        data = struct.pack("q", value)[: result.small_length]
        return data.decode(errors="replace") if kind == SMALL_STRING else data
    if kind == NONE:
        return None
    if kind in (INT, OPAQUE):
        return value
    if kind == BOOL:
        return bool(value)
    if kind == FLOAT:
        return struct.unpack("d", struct.pack("q", value))[0]
    if kind == RAW_STRING:
        return ctypes.string_at(value).decode(errors="replace")
    if kind == DATA_TYPE:
        return c_abi.dtype_name(c_abi.DLDataType.from_buffer_copy(struct.pack("q", value)[:4]))
    if kind == DEVICE:
        return device_of_code(*struct.unpack("ii", struct.pack("q", value)))
    raise InputError(f"it returned a value of type {kind}, which has no form here", place=name)


def _array_of(handle: int) -> Any:
    """Return a tensor object as an array, which releases it when nothing refers to the array any more."""
    try:
        array = c_abi.tensor_view(c_abi.DLTensor.from_address(object_at(handle)))
    except InputError:
        release(handle)
        raise
    # views of the array keep what is at the bottom of them, not the array itself
    weakref.finalize(array if array.base is None else array.base, release, handle)
    return array


def _item(array: FfiAny, index: int, name: str) -> Any:
    return take_result(_call_global("ffi.ArrayGetItem", [array, FfiAny(INT, 0, index)]), name)


def _call_global(name: str, args: list[FfiAny]) -> FfiAny:
    function, text = ctypes.c_void_p(), name.encode()
    key = FfiBytes(ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p), len(text))
    result = FfiAny()
    if (
        host_function("TVMFFIFunctionGetGlobal")(ctypes.byref(key), ctypes.byref(function)) != 0
        or host_function("TVMFFIFunctionCall")(function, (FfiAny * len(args))(*args), len(args), ctypes.byref(result))
        != 0
    ):
        raise InputError(f"tvm-ffi has no function {name} for this", next_step="Update apache-tvm-ffi")
    return result
