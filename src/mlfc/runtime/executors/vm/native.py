"""The types of `mlfc_vm.h` for ctypes, and the functions by which code takes memory of this process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from mlfc.support.executable import MAX_RANK


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


RUN = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
)
RESET = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
RELEASE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
TRACE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64), ctypes.c_int32, ctypes.c_void_p,
    ctypes.c_int64,
)  # fmt: skip
PACKED = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(TensorStruct), ctypes.c_int32
)
DEVICE_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64)
DEVICE_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
DEVICE_COPY = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(TensorStruct), ctypes.POINTER(TensorStruct), ctypes.c_int64
)
DEVICE_CONSTANT = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)


def pointer_to(callback: Any) -> int:
    """Return the address of a function of C that ctypes made, or found."""
    return ctypes.cast(callback, ctypes.c_void_p).value or 0


@cache
def heap() -> tuple[Any, Any, Callable[[int], None]]:
    """Return C's malloc for an int64, C's free, and that as a function of Python.

    Where addresses have 64 bits these are the functions of the C library themselves.
    """
    library = ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)
    library.free.argtypes, library.free.restype = (ctypes.c_void_p,), None
    if ctypes.sizeof(ctypes.c_void_p) == ctypes.sizeof(ctypes.c_int64):
        return library.malloc, library.free, library.free
    library.malloc.argtypes, library.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(library.malloc)
    return allocate, library.free, library.free
