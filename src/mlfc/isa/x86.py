"""The levels of x86-64; what they have beside vectors is in `mlfc.isa.dot4`."""

from __future__ import annotations

from mlfc.target.features import CPUS, Cpu, Features

for _name in ("x86-64", "x86-64-v2", "x86-64-v3"):
    CPUS.add(_name, Cpu(Features()))
CPUS.add("x86-64-v4", Cpu(Features(vector_registers=32)))
