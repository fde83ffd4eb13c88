"""Processors of AArch64: NEON and SVE, which compilers vectorize for; dot products are in `mlfc.isa.dot4`.

SVE is used with a fixed vector size, so the code does not run on processors with another one. Only 256 bits are a
level: SVE with 128 bits has no advantage over NEON. Processors with more than 256 bits use the lower levels.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

from mlfc.target.features import CPUS, LEVELS, LIBRARY_CPUS, VECTORS, Cpu, Features, Level, Levels, Vectors, VectorWidth

for _name in ("cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1", "apple-m1"):
    CPUS.add(_name, Cpu(Features()))
for _start in ("cortex-a", "neoverse", "apple"):
    LIBRARY_CPUS.add(_start, "aarch64")
_SVE = "defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS == {}"
_NEVER = "(?!)"  # LLVM code uses NEON vectors
_WIDER = tuple(VectorWidth(bits // 8, _NEVER, _SVE.format(bits)) for bits in (512, 256))
VECTORS.add("aarch64", Vectors("aarch64", (*_WIDER, VectorWidth(16, r"\bmul\s+v\d+\.8h"))))

# by instruction set: processors with dot products have at least Armv8.2, and FEAT_I8MM multiplies matrices of bytes
_PRODUCTS, _MATRICES = "dotprod", "i8mm"
_WITH_PRODUCTS = "+v8.2a,+dotprod"  # LLVM's
_WITH_MATRICES = Features(instruction_sets=(_MATRICES,))


# how operating systems report a level: as in `aarch64_levels.h`, for libraries
_HWCAP, _HWCAP2 = 16, 26  # arguments of getauxval
# CRC32, ATOMICS, ASIMDRDM, which are part of Armv8.2, and ASIMDDP; I8MM
_LINUX = {"dotprod": (_HWCAP, 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20), "i8mm": (_HWCAP2, 1 << 13)}
_HAS_SVE, _PR_SVE_GET_VL = 1 << 22, 51
_MACOS = {"dotprod": b"hw.optional.arm.FEAT_DotProd", "i8mm": b"hw.optional.arm.FEAT_I8MM"}
_WINDOWS = {"dotprod": 43, "i8mm": 66}


def levels_here() -> set[str]:
    """Return the names of the levels that the system reports for the processor; empty if it does not report any."""
    try:
        return {"linux": _linux_flags, "darwin": _macos_flags, "win32": _windows_flags}[sys.platform]()
    except (KeyError, OSError, AttributeError):  # another system, or one without these functions
        return set()


def _linux_flags() -> set[str]:
    system: Any = ctypes.CDLL(None)
    system.getauxval.restype, system.getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    found = {name for name, (key, mask) in _LINUX.items() if system.getauxval(key) & mask == mask}
    if system.getauxval(_HWCAP) & _HAS_SVE:
        # the bytes per vector of this thread; flags start at bit 16
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
    if sys.platform != "win32":  # type checkers on other systems do not know WinDLL
        return set()
    kernel: Any = ctypes.WinDLL("kernel32")
    return {level for level, number in _WINDOWS.items() if kernel.IsProcessorFeaturePresent(number)}


def _extended(name: str, instructions: str, **rest: Any) -> Level:
    """Return a level above the first: Armv8.2 with some extensions."""
    flags = (f"-march=armv8.2-a+{instructions}",)
    return Level(name, _WITH_MATRICES, flags, f"generic+v8_2a+{instructions}", **rest)


_LEVELS = (
    Level("aarch64", Features(), ("-march=armv8-a",), "generic", llvm=("generic", "")),
    _extended(_PRODUCTS, "dotprod", serves="bytes", llvm=("generic", _WITH_PRODUCTS)),
    _extended(_MATRICES, "dotprod+i8mm", serves="bytes", llvm=("generic", f"{_WITH_PRODUCTS},+i8mm")),
    # for bytes, SVE processors multiply as many with NEON; LLVM code uses NEON vectors
    _extended(
        "sve256", "dotprod+i8mm+sve", both=("-msve-vector-bits=256",), serves="floats", condition="defined(__linux__)"
    ),
)
_CHOICE = (Path(__file__).parent / "aarch64_levels.h",)
LEVELS.add("aarch64", Levels("defined(__aarch64__)", _LEVELS, _CHOICE, is_native=False, flags=levels_here))
_llvm = ""
for _level in _LEVELS:
    _llvm = _level.llvm[1] if _level.llvm else _llvm
    CPUS.add(_level.name, Cpu(_level.features, llvm=_llvm))
