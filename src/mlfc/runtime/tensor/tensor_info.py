"""What a compiled model says of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape and dtype of an input or output.

    Attributes
    ----------
    name : str
        The model's own name.
    shape : tuple of int
    dtype : str
    scale, zero_point : float and int, or None
        Where the integers stand for real numbers: ``real = scale * (value - zero_point)``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: float | None = None
    zero_point: int | None = None

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> TensorInfo:
        """Make one from a checked entry of ``metadata.json``."""
        return cls(entry["name"], tuple(entry["shape"]), entry["dtype"], entry.get("scale"), entry.get("zero_point"))

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The elements' dtype in numpy."""
        if self.dtype == "bfloat16":
            # numpy has no bfloat16 of its own, and importing this one takes a while
            import ml_dtypes

            dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return dtype
        return np.dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return prod(self.shape) * self.numpy_dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"
