"""RISC-V cores without vectors, and LLVM's vectors if the triple and features allow them."""

from __future__ import annotations

from mlfc.target.features import CPUS, PLAIN, VECTORS, Cpu, Vectors, VectorWidth

CPUS.add("generic-rv32", Cpu(PLAIN))
VECTORS.add("riscv", Vectors("riscv", (VectorWidth(16, r"\bvmul\.vv"),)))
