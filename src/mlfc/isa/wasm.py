"""WebAssembly, only through LLVM, with vectors of 128 bits."""

from __future__ import annotations

from mlfc.target.features import VECTORS, Vectors, VectorWidth

VECTORS.add("wasm", Vectors("wasm32", (VectorWidth(16, r"i16x8\.mul"),)))
