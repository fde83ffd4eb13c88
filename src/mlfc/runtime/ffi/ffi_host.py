"""The library of tvm-ffi in this process: what its functions raise and the objects that they return."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib import import_module
from typing import Any

from mlfc.errors import ArchiveError

_HEADER = 24
_PREFIX = "TVMFFI"


class FfiBytes(ctypes.Structure):
    """Bytes with their length, as strings, bytes and errors hold them."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))

    def value(self) -> bytes:
        """Return a copy."""
        return ctypes.string_at(self.data, self.size) if self.size else b""


def needs_host(error: OSError) -> bool:
    """Tell whether a library did not load for want of tvm-ffi's."""
    return _PREFIX in str(error)


def require_host(place: str) -> None:
    """Load the library of tvm-ffi, for others to find its functions.

    Raises
    ------
    ArchiveError
        If the package is not there.
    """
    try:
        import_module("tvm_ffi")
    except ImportError as error:
        raise ArchiveError(
            "the library calls functions of tvm-ffi, which is not installed",
            place=place,
            next_step="Run: pip install apache-tvm-ffi",
        ) from error


def host_function(name: str) -> Any:
    """Return a function of tvm-ffi's library; None where nothing has loaded it."""
    try:
        return getattr(_process(), name, None)
    except OSError:
        return None


@cache
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None if os.name == "posix" else "tvm_ffi.dll")


def object_at(handle: int) -> int:
    """Return where the contents of an object lie."""
    return handle + _HEADER


def release(handle: int) -> None:
    """Give up an object."""
    decref = host_function("TVMFFIObjectDecRef")
    if decref is not None:
        decref(ctypes.c_void_p(handle))


def take_raised() -> tuple[str, str] | None:
    """Return the kind and the message of this thread's error, which is then no longer set; None if there is none."""
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
