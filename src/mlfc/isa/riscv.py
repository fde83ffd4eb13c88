"""RISC-V cores without vectors."""

from __future__ import annotations

from mlfc.target.features import CPUS, PLAIN, Cpu

CPUS.add("generic-rv32", Cpu(PLAIN))
