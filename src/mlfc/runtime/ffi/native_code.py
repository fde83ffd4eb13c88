"""Native code in this process and its functions, in the classic packed convention and the one of tvm-ffi."""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from mlfc.errors import ArchiveError, InputError, MlfcError, RunError
from mlfc.runtime.devices.device import Device, cpu, device_of_code
from mlfc.runtime.tensor import c_abi
from mlfc.support.text import Displayed

# module globals are faster to look up than attributes
_NDARRAY, _TENSOR = np.ndarray, c_abi.TENSOR
_BOOL = np.dtype(bool)
_WHOLE = frozenset({c_abi.INT, c_abi.OPAQUE})
_LEGACY_CAPSULE = b"dltensor"
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


class CallFrame:
    """Reusable memory for the arguments and result of one call; allocating it takes as long as a call."""

    def __init__(self, count: int) -> None:
        self.count = count
        slots = max(1, count)
        memory = [(ctypes.c_char * size)() for size in (8 * slots, 4 * slots)]
        # storing to a view takes a third of the time of a ctypes array
        self.values = memoryview(memory[0]).cast("B").cast("q")
        self.codes = memoryview(memory[1]).cast("B").cast("i")
        self.floats = memoryview(memory[0]).cast("B").cast("d")
        self.result = ctypes.c_int64()
        self.result_code = ctypes.c_int32(c_abi.NULL)
        places = [ctypes.c_void_p(ctypes.addressof(part)) for part in (*memory, self.result, self.result_code)]
        self.arguments = (*places[:2], count, *places[2:], None)

    def fill(self, args: tuple[Any, ...], name: str, reads: int = 0) -> list[Any]:
        """Write the arguments of function `name`; it may write to all but its first `reads` arguments.

        Returns the objects that must live as long as the call. Raises InputError for a value that the convention cannot
        represent.
        """
        values, codes = self.values, self.codes
        keep: list[Any] = []
        for index, arg in enumerate(args):
            if type(arg) is _NDARRAY and arg.dtype is not _BOOL:
                try:
                    capsule = arg.__dlpack__()
                    values[index] = _capsule_pointer(capsule, _LEGACY_CAPSULE)
                except (BufferError, RuntimeError, TypeError):  # read-only, or of a dtype that DLPack lacks
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
                    f"argument {index} is a read-only array, and the function may write to it",
                    place=name,
                    next_step="Pass a copy of it, or a writable array",
                )
            keep.append(arg)
            try:
                tensor = c_abi.array_tensor(arg, cpu())
            except InputError as error:
                raise InputError(f"argument {index}: {error.cause}", place=name, next_step=error.next_step) from error
            value, code = _kept(keep, tensor), c_abi.TENSOR
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

    def take_result(self, _name: str) -> Any:
        """Return the result of the call, and clear it."""
        code = self.result_code.value
        if code == c_abi.NULL:
            return None
        value, self.result.value, self.result_code.value = self.result.value, 0, c_abi.NULL
        return result_of(value, code)


def result_of(value: int, code: int) -> Any:
    """Return a result from its 64 bits and its type code; opaque results are integers."""
    if code == c_abi.NULL:
        return None
    if code == c_abi.FLOAT:
        return struct.unpack("d", struct.pack("q", value))[0]
    if code == c_abi.STRING:
        return ctypes.string_at(value).decode(errors="replace") if value else None
    return value


def argument_of(value: int, code: int) -> Any:
    """Return an argument from C, valid during the call; raise InputError or OptionError for an unknown type."""
    if code in _WHOLE:  # nearly all arguments of kernels
        return value
    if code in (c_abi.TENSOR, c_abi.NDARRAY):
        return _tensor(c_abi.DLTensor.from_address(value)) if value else None
    if code == c_abi.DEVICE:
        return device_of_code(*struct.unpack("ii", struct.pack("q", value)))
    if code == c_abi.BYTES:
        # as a pointer: a ctypes string ends at its first zero byte
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
    from mlfc.runtime.tensor.ndarray import NDArray  # imported here because only devices need it

    device = device_of_code(tensor.device.type, tensor.device.id)
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    shape, name = tuple(tensor.shape[: tensor.ndim]), c_abi.dtype_name(tensor.dtype)
    return NDArray.at(tensor.data or 0, shape, name, device, None, strides=strides, byte_offset=tensor.byte_offset)


def returned(value: Any, keep: list[Any]) -> tuple[int, int]:
    """Return the 64 bits and type code of a Python function's result for C; `keep` keeps the memory they point to."""
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
        raise InputError(f"argument {index} is a string with a NUL character, where C strings end", place=name)
    return ctypes.create_string_buffer(data)


def _exported(arg: Any, keep: list[Any], index: int, name: str) -> int:
    """Return the address of the tensor in the capsule of another library's array."""
    try:
        capsule = arg.__dlpack__()
        address: int = _capsule_pointer(capsule, _LEGACY_CAPSULE)
    except Exception as error:  # other libraries may raise any exception from __dlpack__
        raise InputError(
            f"argument {index} cannot be imported through DLPack: {error}",
            place=name,
            next_step="Pass a plain array, detached from any gradient",
        ) from error
    keep.append(capsule)
    return address


_HEADER = 24  # bytes of the header of an object
_RUN_RELAX = (
    "Run: pip install apache-tvm; or run it where TVM is installed: "
    "relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())"
)
FFI_LIBRARY = "TVMFFI"
"""Prefix of the functions of tvm-ffi's library."""


class FfiBytes(ctypes.Structure):
    """Bytes with their length, as stored in strings, bytes and errors."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))

    def value(self) -> bytes:
        """Return a copy."""
        return ctypes.string_at(self.data, self.size) if self.size else b""


def require_host(place: str) -> None:
    """Load the library of tvm-ffi with global symbols; raise ArchiveError if the package is missing."""
    try:
        import_module("tvm_ffi")
    except ImportError as error:
        raise ArchiveError(
            "the library calls functions of tvm-ffi, which is not installed",
            place=place,
            next_step="Run: pip install apache-tvm-ffi",
        ) from error


def require_tvm(place: str) -> Any:
    """Load TVM, with the global symbols of its runtime, and return it; raise ArchiveError if it is missing."""
    try:
        import_module("tvm.relax")
        return import_module("tvm")
    except ImportError as error:
        cause = "the library contains an executable of TVM's Relax virtual machine, and TVM is not installed"
        raise ArchiveError(cause, place=place, next_step=_RUN_RELAX) from error


def host_function(name: str) -> Any:
    """Return a function of tvm-ffi's library; None if the library is not loaded."""
    try:
        return getattr(_process(), name, None)
    except OSError:
        return None


@cache
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None if os.name == "posix" else "tvm_ffi.dll")


def release(handle: int) -> None:
    """Release an object."""
    decref = host_function("TVMFFIObjectDecRef")
    if decref is not None:
        decref(ctypes.c_void_p(handle))


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
_TO_CLASSIC = {
    NONE: c_abi.NULL,
    INT: c_abi.INT,
    OPAQUE: c_abi.OPAQUE,
    FLOAT: c_abi.FLOAT,
    RAW_STRING: c_abi.STRING,
    DATA_TYPE: c_abi.DATA_TYPE,
    DEVICE: c_abi.DEVICE,
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
        # types are every fourth 32-bit word, values every second 64-bit word
        self._types = memoryview(memory).cast("B").cast("i")
        self._values = memoryview(memory).cast("B").cast("q")
        self.result = FfiAny()
        places = [ctypes.c_void_p(ctypes.addressof(part)) for part in (memory, self.result)]
        self.arguments = (None, places[0], count, places[1])

    def fill(self, args: tuple[Any, ...], name: str, reads: int = 0) -> list[Any]:
        """Write the arguments and empty the result; see `CallFrame.fill`."""
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

    def take_result(self, name: str) -> Any:
        """Return the result of function `name`; see `result_of_ffi`."""
        return result_of_ffi(self.result, name)


def _with_strides(address: int, keep: list[Any]) -> int:
    """Return the address of a tensor with strides, which only the classic convention may omit."""
    if ctypes.c_void_p.from_address(address + _STRIDES_AT).value:
        return address
    tensor = c_abi.DLTensor.from_address(address)
    if tensor.ndim == 0:
        return address
    keep.append(c_abi.with_strides(tensor))
    return ctypes.addressof(keep[-1])


def result_of_ffi(result: FfiAny, name: str) -> Any:
    """Return a function's result as a Python value and release objects; raise InputError for an unsupported object."""
    kind, value = result.type_index, result.value
    if kind < OBJECTS:
        return _plain(result, name)
    if kind == TENSOR:
        return _array_of(value)
    try:
        if kind in (STRING, BYTES):
            data = FfiBytes.from_address(value + _HEADER).value()
            return data.decode(errors="replace") if kind == STRING else data
        if kind == ARRAY:
            items = [FfiAny(INT, 0, index) for index in range(_call_global("ffi.ArraySize", [result]).value)]
            return [result_of_ffi(_call_global("ffi.ArrayGetItem", [result, item]), name) for item in items]
    finally:
        release(value)
    raise InputError(
        f"it returned an object of the unsupported type {kind}",
        place=name,
        next_step="Call it through tvm_ffi.load_module",
    )


def _plain(result: FfiAny, name: str) -> Any:
    kind, value = result.type_index, result.value
    if kind in (SMALL_STRING, SMALL_BYTES):
        data = struct.pack("q", value)[: result.small_length]
        return data.decode(errors="replace") if kind == SMALL_STRING else data
    if kind == BOOL:
        return bool(value)
    if kind in _TO_CLASSIC:
        return argument_of(value, _TO_CLASSIC[kind])
    raise InputError(f"it returned a value of the unsupported type {kind}", place=name)


def _array_of(handle: int) -> Any:
    """Return a tensor object as an array; the object is released when the last reference to the array is gone."""
    try:
        array = c_abi.tensor_view(c_abi.DLTensor.from_address(handle + _HEADER))
    except InputError:
        release(handle)
        raise
    # views keep a reference to the base of the array, not to the array itself
    weakref.finalize(array if array.base is None else array.base, release, handle)
    return array


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


# without argument types, ctypes passes the arguments of frames unchanged
_STATUS = ctypes.CFUNCTYPE(ctypes.c_int32)
FFI_PREFIX = "__tvm_ffi_"
"""Prefix of function symbols."""
_OF_ARGUMENTS = ("TypeError", "ValueError", "IndexError", "KeyError", "AttributeError")


class NativeCode(Protocol):
    """Native code with functions and variables by symbol; the object keeps it loaded."""

    @property
    def place(self) -> str:
        """Name in messages, unique in the process."""

    def address(self, symbol: str) -> int | None:
        """Return the address of a symbol, or None."""


class NativeFunc(Displayed):
    """A compiled function at an address, with reusable frames of earlier calls.

    `last_error` returns the text of this thread's last failure, and its Python exception if it has one.
    `owner` keeps the code loaded. The function does not write to its first `reads` arguments.
    """

    _new_frame: type[CallFrame | FfiFrame]
    _shows = ("name",)

    def __init__(
        self,
        address: int,
        name: str,
        *,
        last_error: Callable[[], tuple[str, BaseException | None]] | None = None,
        owner: object = None,
        reads: int = 0,
    ) -> None:
        self.name = name
        self.address = address
        self._function = _STATUS(address)
        self._last_error = last_error
        self._owner = owner
        self._reads = reads
        self._frames: defaultdict[int, list[CallFrame | FfiFrame]] = defaultdict(list)

    def __call__(self, *args: Any) -> Any:
        """Call the function; raise InputError for unsupported or rejected arguments, RunError if it fails."""
        unused = self._frames[len(args)]
        try:
            frame = unused.pop()
        except IndexError:
            frame = self._new_frame(len(args))
        _keep = frame.fill(args, self.name, self._reads)
        status = self._function(*frame.arguments)
        if status != 0:
            raise self.failure(status)
        result = frame.take_result(self.name)
        unused.append(frame)
        return result

    def failure(self, status: int) -> MlfcError:
        """Return the error of a call that returned `status`, with the library's own message."""
        text, cause = self._last_error() if self._last_error is not None else ("", None)
        if cause is not None and not isinstance(cause, Exception):  # an interrupt is the caller's
            raise cause
        error = RunError(f"it failed with status {status}{': ' + text if text else ''}", place=self.name)
        error.__cause__ = cause
        return error


class PackedFunc(NativeFunc):
    """A compiled function with any arguments, in the classic packed convention: a ``TVMBackendPackedCFunc``.

    Arguments are integers, floats, strings, bytes, None, devices and arrays: numpy's, which must be writable, and those
    of any DLPack library, which are passed in place. A result is an integer, a float, a string, None, or the address of
    an opaque object as an integer. Threads may call it concurrently if the function itself is thread-safe.
    """

    _new_frame = CallFrame

    def prepare(self, tensors: Sequence[c_abi.DLTensor]) -> partial[int]:
        """Return a call on fixed tensors that returns the status; their addresses may change between calls."""
        frame = CallFrame(len(tensors))
        for index, tensor in enumerate(tensors):
            frame.values[index], frame.codes[index] = ctypes.addressof(tensor), c_abi.TENSOR
        call = partial(self._function, *frame.arguments)
        call.keep = (self, tensors, frame)  # type: ignore[attr-defined]  # partials take attributes
        return call


class FfiFunc(NativeFunc):
    """A function as `PackedFunc`, but in the convention of tvm-ffi: a ``TVMFFISafeCallType``.

    Returned tensors become arrays, and arrays of objects become lists. The package of tvm-ffi is needed only if the
    function itself calls it.
    """

    _new_frame = FfiFrame

    def failure(self, status: int) -> MlfcError:
        """Return the error of a call that returned `status`."""
        move, handle = host_function("TVMFFIErrorMoveFromRaised"), ctypes.c_void_p()
        if move is not None:
            move(ctypes.byref(handle))
        if not handle.value:
            return super().failure(status)
        error = (FfiBytes * 2).from_address(handle.value + _HEADER)
        kind, message = (text.value().decode(errors="replace") for text in error)
        release(handle.value)
        if kind in _OF_ARGUMENTS:
            # errors of our libraries already name the function
            return InputError(message, place=None if self.name in message else self.name)
        return RunError(f"{kind}: {message}", place=self.name)
