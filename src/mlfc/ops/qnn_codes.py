"""What the codes of an elementwise quantized operator stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mlfc.support import dtypes


@dataclass(frozen=True)
class Codes:
    """How the codes of input and output stand for real numbers; scales are float32 values."""

    in_scale: np.float32
    in_zero: int
    out_scale: np.float32
    out_zero: int
    dtype: str
    alpha: float = 0.0
    approximate: bool = False
    fixed_point: bool = False

    def real(self, code: int) -> np.float32:
        """Return the number that an input code stands for."""
        return np.float32(self.in_scale * np.float32(code - self.in_zero))

    def code(self, real: float) -> int:
        """Return the output code nearest to a real number, ties away from zero."""
        with np.errstate(over="ignore"):
            scaled = np.float32(real) * (np.float32(1) / self.out_scale)
        if math.isnan(scaled):
            return self.saturated(self.out_zero)
        low, high = dtypes.limits(self.dtype)
        nearest = math.copysign(math.floor(abs(float(np.clip(scaled, -1e6, 1e6))) + 0.5), scaled)
        return max(low, min(int(nearest) + self.out_zero, high))

    def saturated(self, value: int) -> int:
        """Return a code limited to the range of the dtype."""
        low, high = dtypes.limits(self.dtype)
        return max(low, min(value, high))
