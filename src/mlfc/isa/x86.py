"""The levels of x86-64 and their vectors; VNNI is in `mlfc.isa.dot4`."""

from __future__ import annotations

from mlfc.target.features import CPUS, LIBRARY_CPUS, VECTORS, Cpu, Features, Vectors, VectorWidth

for _name in ("x86-64", "x86-64-v2", "x86-64-v3"):
    CPUS.add(_name, Cpu(Features()))
CPUS.add("x86-64-v4", Cpu(Features(vector_registers=32)))
LIBRARY_CPUS.add("x86-64", "x86_64")

_SSE = VectorWidth(16, "xmm")
_WIDER = (VectorWidth(64, "zmm", "defined(__AVX512F__)"), VectorWidth(32, "ymm", "defined(__AVX__)"))
VECTORS.add("x86-64", Vectors("x86_64", (*_WIDER, _SSE)))
VECTORS.add("x86", Vectors("i386|i686", (_SSE,)))
