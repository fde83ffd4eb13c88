"""What the system's loader knows of an address: whose it is, and whether code lies there."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any

_SYMBOL_ENTRY = 1
# of an entry of an ELF table of symbols: where its kind stands
_KIND_AT = 4 if struct.calcsize("P") == 8 else 12
_FUNCTIONS = (2, 10)


class _DlInfo(ctypes.Structure):
    """``Dl_info``: the file that an address lies in, where it is mapped, and the nearest symbol."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _of_process(name: str) -> Any:
    # systems without it load libraries in other ways, in which only own symbols are found
    return getattr(ctypes.CDLL(None), name, None) if os.name == "posix" else None


_dladdr, _dladdr1 = _of_process("dladdr"), _of_process("dladdr1")


def defining_file(address: int) -> bytes | None:
    """Return the file of the library that an address lies in; None where the system cannot tell."""
    place = _DlInfo()
    if _dladdr is None or not _dladdr(ctypes.c_void_p(address), ctypes.byref(place)):
        return None
    return place.file or b""


def may_be_function(address: int) -> bool:
    """Tell whether a symbol's address may be called: not if the system knows it for one of data."""
    place, entry = _DlInfo(), ctypes.c_void_p()
    if _dladdr1 is None or not _dladdr1(
        ctypes.c_void_p(address), ctypes.byref(place), ctypes.byref(entry), _SYMBOL_ENTRY
    ):
        return True
    if not entry.value or place.address != address:
        return True
    return ctypes.c_uint8.from_address(entry.value + _KIND_AT).value & 15 in _FUNCTIONS
