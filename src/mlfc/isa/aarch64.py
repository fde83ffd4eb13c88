"""Processors of AArch64: NEON and SVE, whose vectors compilers make; dot products are in `mlfc.isa.dot4`.

SVE is used with vectors of a size that the compiler knows, which processors of other sizes cannot run. Only 256 bits
are a level: with 128, SVE does what NEON does. Processors with more than 256 bits lack the levels below.
"""

from __future__ import annotations

from pathlib import Path

from mlfc.isa.aarch64_processor import levels_here
from mlfc.target.features import (
    CPUS,
    LEVELS,
    LIBRARY_CPUS,
    VECTORS,
    Cpu,
    Features,
    Level,
    Levels,
    Vectors,
    VectorWidth,
)

for _name in ("cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1", "apple-m1"):
    CPUS.add(_name, Cpu(Features()))
for _start in ("cortex-a", "neoverse", "apple"):
    LIBRARY_CPUS.add(_start, "aarch64")
_SVE = "defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS == {}"
_NEVER = "(?!)"  # LLVM's code has vectors of NEON
_WIDER = tuple(VectorWidth(bits // 8, _NEVER, _SVE.format(bits)) for bits in (512, 256))
VECTORS.add("aarch64", Vectors("aarch64", (*_WIDER, VectorWidth(16, r"\bmul\s+v\d+\.8h"))))

# by instruction sets: what has dot products is at least of Armv8.2, and multiplies matrices of bytes by these
_PRODUCTS, _MATRICES = "dotprod", "i8mm"
_WITH_PRODUCTS = "+v8.2a,+dotprod"  # LLVM's
_WITH_MATRICES = Features(instruction_sets=(_MATRICES,))
_LEVELS = (
    Level("aarch64", Features(), ("-march=armv8-a",), "generic", llvm=("generic", "")),
    Level(
        _PRODUCTS,
        _WITH_MATRICES,
        ("-march=armv8.2-a+dotprod",),
        "generic+v8_2a+dotprod",
        serves="bytes",
        llvm=("generic", _WITH_PRODUCTS),
    ),
    Level(
        _MATRICES,
        _WITH_MATRICES,
        ("-march=armv8.2-a+dotprod+i8mm",),
        "generic+v8_2a+dotprod+i8mm",
        serves="bytes",
        llvm=("generic", f"{_WITH_PRODUCTS},+i8mm"),
    ),
    # of bytes, processors with SVE multiply as many with NEON; LLVM's code has vectors of NEON
    Level(
        "sve256",
        _WITH_MATRICES,
        ("-march=armv8.2-a+dotprod+i8mm+sve",),
        "generic+v8_2a+dotprod+i8mm+sve",
        both=("-msve-vector-bits=256",),
        serves="floats",
        condition="defined(__linux__)",
    ),
)
_CHOICE = (Path(__file__).parent / "aarch64_levels.h",)
LEVELS.add("aarch64", Levels("defined(__aarch64__)", _LEVELS, _CHOICE, is_native=False, flags=levels_here))
_llvm = ""
for _level in _LEVELS:
    _llvm = _level.llvm[1] if _level.llvm else _llvm
    CPUS.add(_level.name, Cpu(_level.features, llvm=_llvm))
