"""Processors of AArch64: NEON, whose vectors compilers make; dot products are in `mlfc.isa.dot4`."""

from __future__ import annotations

from mlfc.target.features import CPUS, Cpu, Features

for _name in ("cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1", "apple-m1"):
    CPUS.add(_name, Cpu(Features()))
