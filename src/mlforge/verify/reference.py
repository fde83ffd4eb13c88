"""What a reference implementation is, and how exactly its integers are to be met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from mlforge.runtime.arrays import Array

LITERT = "LiteRT"
QUANTUM_TOLERANCE = {LITERT: 0, "ONNX Runtime": 1}
"""Allowed |difference| of integers: LiteRT's reference kernels define the result, ONNX Runtime's round in their way."""


class Reference(Protocol):
    """What computes the results to compare with."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return tensors by name."""
        ...
