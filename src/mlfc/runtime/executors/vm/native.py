"""ctypes declarations of `mlfc_vm.h`, conversion of arrays, and allocation of host and device memory for its code."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from mlfc.errors import MlfcError
from mlfc.runtime.devices.device import Device, DeviceBlock, move
from mlfc.runtime.tensor.arrays import aligned
from mlfc.support.dtypes import is_numpys_own, to_numpy
from mlfc.support.executable import ALIGNMENT, DTYPES, MAX_RANK, NUMBERED_DTYPES
from mlfc.support.platforms import TYPE_CODES
from mlfc.support.tensor_info import Array


class HasSymbols(Protocol):
    """Code in memory: a loaded library, or code made in this process."""

    def address(self, symbol: str) -> int | None:
        """Return the address of a symbol, or None."""


class ErrorStruct(ctypes.Structure):
    """``mlfc_vm_error``."""

    _fields_ = (("code", ctypes.c_int32), ("text", ctypes.c_char_p), ("values", ctypes.c_int64 * 3))


class TensorStruct(ctypes.Structure):
    """``mlfc_vm_tensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("block", ctypes.c_void_p),
        ("extents", ctypes.c_int64 * MAX_RANK),
        ("device", ctypes.c_int32),
        ("dtype", ctypes.c_uint8),
        ("rank", ctypes.c_uint8),
    )


class DevicesStruct(ctypes.Structure):
    """``mlfc_vm_devices``."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("allocate", "release", "copy", "constant"))


class HostStruct(ctypes.Structure):
    """``mlfc_vm_host``."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("allocate", "release", "packed", "trace", "devices", "context", "targets", "state")
        ),
        ("memory_limit", ctypes.c_int64),
        ("turn_limit", ctypes.c_uint64),
    )


_INT, _LONG, _ADDRESS, _TENSORS = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(TensorStruct)
RUN = ctypes.CFUNCTYPE(_INT, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _LONG, _ADDRESS)
RESET = ctypes.CFUNCTYPE(_INT, _ADDRESS)
RELEASE = ctypes.CFUNCTYPE(_INT, _ADDRESS, _ADDRESS, _INT)
TRACE = ctypes.CFUNCTYPE(None, _ADDRESS, _INT, ctypes.POINTER(_LONG), _INT, _ADDRESS, _LONG)
PACKED = ctypes.CFUNCTYPE(_INT, _ADDRESS, ctypes.c_char_p, _TENSORS, _INT)
DEVICE_ALLOCATE = ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS, _INT, _LONG)
DEVICE_RELEASE = ctypes.CFUNCTYPE(None, _ADDRESS, _INT, _ADDRESS)
DEVICE_COPY = ctypes.CFUNCTYPE(_INT, _ADDRESS, _TENSORS, _TENSORS, _LONG)
DEVICE_CONSTANT = ctypes.CFUNCTYPE(_ADDRESS, _ADDRESS, _INT, _ADDRESS, _LONG)


def pointer_to(callback: Any) -> int:
    """Return the address of a C function that ctypes created or found."""
    return ctypes.cast(callback, ctypes.c_void_p).value or 0


@cache
def heap() -> tuple[Any, Any, Callable[[int], None]]:
    """Return malloc with an int64 size, free, and free for Python; on 64-bit hosts these are C's own functions."""
    library = ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)
    library.free.argtypes, library.free.restype = (ctypes.c_void_p,), None
    if ctypes.sizeof(ctypes.c_void_p) == ctypes.sizeof(ctypes.c_int64):
        return library.malloc, library.free, library.free
    library.malloc.argtypes, library.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(library.malloc)
    return allocate, library.free, library.free


class _NumpyDtypes(dict[int, "np.dtype[Any]"]):
    """Dtypes by number. Those that numpy lacks need another package, which is imported on first use."""

    def __missing__(self, number: int) -> np.dtype[Any]:
        found = self[number] = to_numpy(DTYPES[number])
        _NUMBERS[found] = number
        return found


NUMPY_DTYPES = _NumpyDtypes({number: to_numpy(name) for number, name in enumerate(DTYPES) if is_numpys_own(name)})
_NUMBERS = {dtype: number for number, dtype in NUMPY_DTYPES.items()}


def number_of(dtype: np.dtype[Any]) -> int | None:
    """Return the number of a dtype of numpy, or None."""
    number = _NUMBERS.get(dtype)
    if number is None:
        number = NUMBERED_DTYPES.get(dtype.name)
        return number if number is not None and NUMPY_DTYPES[number] == dtype else None
    return number


def aligned_zeros(nbytes: int) -> Array:
    """Return zeroed bytes with the alignment of tensors."""
    return aligned(nbytes, np.zeros, ALIGNMENT)


def aligned_like(array: Array) -> Array:
    """Return an aligned, uninitialized array of an array's shape and dtype."""
    return aligned(array.nbytes, alignment=ALIGNMENT).view(array.dtype).reshape(array.shape)


CPU = TYPE_CODES["cpu"]


class DeviceCallbacks:
    """The functions of ``mlfc_vm_devices``, in `struct`; devices are keyed by DLPack device type."""

    def __init__(self, devices: Mapping[int, Device]) -> None:
        self._devices = devices
        self._blocks: dict[int, list[DeviceBlock]] = {}
        self._constants: dict[tuple[int, int], DeviceBlock] = {}
        self._functions = (
            DEVICE_ALLOCATE(self._allocate), DEVICE_RELEASE(self._release), DEVICE_COPY(self._copy),
            DEVICE_CONSTANT(self._constant),
        )  # fmt: skip
        self.struct = DevicesStruct(*map(pointer_to, self._functions))

    def _allocate(self, _context: Any, device: int, nbytes: int) -> int | None:
        block = self._block(device, nbytes)
        if block is None:
            return None
        self._blocks.setdefault(block.handle, []).append(block)
        return block.handle

    def _block(self, device: int, nbytes: int) -> DeviceBlock | None:
        try:
            return DeviceBlock(self._devices[device], nbytes)
        except (MlfcError, MemoryError, OverflowError, KeyError):
            return None

    def _release(self, _context: Any, _device: int, memory: int) -> None:
        blocks = self._blocks.get(memory, [])
        if blocks:
            blocks.pop()
        if not blocks:
            self._blocks.pop(memory, None)

    def _constant(self, _context: Any, device: int, data: int, nbytes: int) -> int | None:
        key = (device, data)
        if key not in self._constants:
            block = self._block(device, nbytes)
            if block is None:
                return None
            if nbytes:
                self._devices[device].api.copy_in(block.handle, 0, _bytes_at(data, nbytes))
            self._constants[key] = block
        return self._constants[key].handle

    def _copy(self, _context: Any, to: Any, source: Any, nbytes: int) -> int:
        try:
            if nbytes:
                move(self._place(source[0], nbytes), self._place(to[0], nbytes), nbytes)
        except (MlfcError, KeyError):
            return -1
        return 0

    def _place(self, tensor: TensorStruct, nbytes: int) -> Any:
        """Return a tensor as host bytes, or as a tensor on its device."""
        if tensor.device == CPU:
            return _bytes_at(tensor.data, nbytes)
        return SimpleNamespace(device=self._devices[tensor.device], handle=tensor.data, byte_offset=0)


def _bytes_at(address: int, nbytes: int) -> Array:
    """Return an array on host memory."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
