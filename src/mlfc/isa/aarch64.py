"""Processors of AArch64: NEON, whose vectors compilers make; dot products are in `mlfc.isa.dot4`."""

from __future__ import annotations

from pathlib import Path

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
VECTORS.add("aarch64", Vectors("aarch64", (VectorWidth(16, r"\bmul\s+v\d+\.8h"),)))

# by instruction sets: what has dot products is at least of Armv8.2
_PRODUCTS, _MATRICES = "dotprod", "i8mm"
_LEVELS = (
    Level("aarch64", Features(), ("-march=armv8-a",), "generic"),
    Level(_PRODUCTS, Features(), ("-march=armv8.2-a+dotprod",), "generic+v8_2a+dotprod"),
    Level(
        _MATRICES,
        Features(instruction_sets=(_MATRICES,)),
        ("-march=armv8.2-a+dotprod+i8mm",),
        "generic+v8_2a+dotprod+i8mm",
    ),
)
LEVELS.add("aarch64", Levels("defined(__aarch64__)", _LEVELS, (Path(__file__).parent / "aarch64_levels.h",)))
