"""Which levels of AArch64 the processor of this process has."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

# how systems tell that a processor has a level: as in `aarch64_levels.h`, for libraries
_HWCAP, _HWCAP2 = 16, 26  # of getauxval
# CRC32, ATOMICS, ASIMDRDM, which come with Armv8.2, and ASIMDDP; I8MM
_LINUX = {"dotprod": (_HWCAP, 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20), "i8mm": (_HWCAP2, 1 << 13)}
_SVE, _PR_SVE_GET_VL = 1 << 22, 51
_MACOS = {"dotprod": b"hw.optional.arm.FEAT_DotProd", "i8mm": b"hw.optional.arm.FEAT_I8MM"}
_WINDOWS = {"dotprod": 43, "i8mm": 66}


def levels_here() -> set[str]:
    """Return the names of the levels that the system says the processor has; none where it says nothing."""
    try:
        return {"linux": _linux_flags, "darwin": _macos_flags, "win32": _windows_flags}[sys.platform]()
    except (KeyError, OSError, AttributeError):  # another system, or one without these functions
        return set()


def _linux_flags() -> set[str]:
    system: Any = ctypes.CDLL(None)
    system.getauxval.restype, system.getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    found = {name for name, (key, mask) in _LINUX.items() if system.getauxval(key) & mask == mask}
    if system.getauxval(_HWCAP) & _SVE:
        # the bytes of a vector that this thread has, and flags above 16 bits
        length = system.prctl(_PR_SVE_GET_VL, *map(ctypes.c_ulong, (0, 0, 0, 0))) & 0xFFFF
        found.add(f"sve{length * 8}")
    return found


def _macos_flags() -> set[str]:
    system: Any = ctypes.CDLL(None)

    def has(name: bytes) -> bool:
        found, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
        status = system.sysctlbyname(name, ctypes.byref(found), ctypes.byref(size), None, ctypes.c_size_t())
        return status == 0 and found.value != 0

    return {level for level, name in _MACOS.items() if has(name)}


def _windows_flags() -> set[str]:
    if sys.platform != "win32":  # where type checkers know no WinDLL
        return set()
    kernel: Any = ctypes.WinDLL("kernel32")
    return {level for level, number in _WINDOWS.items() if kernel.IsProcessorFeaturePresent(number)}
