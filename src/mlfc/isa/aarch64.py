"""Processors of AArch64: NEON, whose vectors compilers make; dot products are in `mlfc.isa.dot4`."""

from __future__ import annotations

from mlfc.target.features import CPUS, LIBRARY_CPUS, VECTORS, Cpu, Features, Vectors, VectorWidth

for _name in ("cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1", "apple-m1"):
    CPUS.add(_name, Cpu(Features()))
for _start in ("cortex-a", "neoverse", "apple"):
    LIBRARY_CPUS.add(_start, "aarch64")
VECTORS.add("aarch64", Vectors("aarch64", (VectorWidth(16, r"\bmul\s+v\d+\.8h"),)))
