"""How far one tensor is from another, and what of that is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mlforge.runtime.arrays import Array

FLOAT_TOLERANCE = 1e-5
"""Allowed |difference| of floats, as a part of the largest |reference value| of the tensor."""


@dataclass(frozen=True)
class Difference:
    """How far one tensor is from its reference, over all samples.

    Attributes
    ----------
    tensor : str
    dtype : str
    largest : float
        Largest absolute difference; infinite where one has a NaN that the other has not.
    tolerance : float
        What is allowed in the sample that has the largest.
    sample : str
        Which sample that is.
    elements : int
        How many elements of that sample differ by more than is allowed.
    element : int
        Which one differs most, counted in C order.
    nodes : tuple of str
        The original nodes that compute it, where layers are looked at on a board.
    is_unlike_host : bool
        Whether a board computes another tensor than this machine does from the same C.
    """

    tensor: str
    dtype: str
    largest: float
    tolerance: float
    sample: str
    elements: int = 0
    element: int = 0
    nodes: tuple[str, ...] = ()
    is_unlike_host: bool = False

    @property
    def is_within(self) -> bool:
        """Whether the tensor counts as equal to its reference."""
        return self.largest <= self.tolerance


def difference(name: str, ours: Array, theirs: Array, sample: str, quanta: int) -> Difference:
    """Compare a tensor with its reference; integers may differ by `quanta`, floats by `FLOAT_TOLERANCE`."""
    if ours.size != theirs.size:
        return Difference(name, ours.dtype.name, float("inf"), 0.0, sample, ours.size)
    wide: Any = np.int64 if ours.dtype.kind in "iub" else np.float64
    a, b = ours.astype(wide).ravel(), theirs.astype(wide).ravel()
    if wide is np.int64:
        return _summary(name, ours, np.abs(a - b).astype(np.float64), float(quanta), sample)
    with np.errstate(invalid="ignore"):
        # infinities of one sign are equal, though their difference is not a number
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    apart = np.where(np.isnan(apart), np.inf, apart)
    finite = np.abs(b[np.isfinite(b)])
    return _summary(name, ours, apart, FLOAT_TOLERANCE * float(finite.max(initial=0.0)), sample)


def _summary(name: str, ours: Array, apart: Array, tolerance: float, sample: str) -> Difference:
    element = int(apart.argmax()) if apart.size else 0
    largest = float(apart.max(initial=0.0))
    return Difference(name, ours.dtype.name, largest, tolerance, sample, int((apart > tolerance).sum()), element)
