"""Functions of two bytes as planes in float32, where those give the same integers: sums of quantized tensors.

TFLite brings both operands to a common scale and the sum to the result's, each rounded. Of two bytes there are 65,536
pairs, so it is simply tried when a model is compiled whether ``floor(first * a + (second * b + start))`` is the same
for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.support.lines import whole_part

Array = npt.NDArray[Any]
_BENT = 0.01  # most that the numbers that are rounded may differ from a plane
_CLOSE = 0.02
_MOST_TRIES = 60
_STEPS = (0, 1, -1, 2, -2)  # by how many floats a slope is moved
_STARTS = (0, 1, -1, 2, -2, 3, -3)  # by how many units of its last place at the largest sum the start is moved


@dataclass(frozen=True)
class Plane:
    """``floor(first * a + (second * b + start))`` in float32, by fused multiply-adds; the outer one rounds down."""

    first: float
    second: float
    start: float


def find_plane(exact: Array, real: Array, a: Array, b: Array, limits: tuple[int, int]) -> Plane | None:
    """Return a plane that is `exact` within limits, and beyond the same limit where that is; None without one.

    Parameters
    ----------
    exact, real : ndarray
        The results for all pairs of `a` and `b`, and what they are rounded from; ties are half-way between integers.
    a, b : ndarray
        All values of both operands, in steps of one.
    """
    low, high = limits
    if not np.all(np.isfinite(real)):
        return None
    slopes = (real[-1, 0] - real[0, 0]) / max(a.size - 1, 1), (real[0, -1] - real[0, 0]) / max(b.size - 1, 1)
    rest = real - np.add.outer(slopes[0] * a, slopes[1] * b)
    if np.ptp(rest) > _BENT:
        return None
    start = float(rest.mean()) + 0.5
    unit = float(np.spacing(np.float32(max(abs(slopes[1]) * float(np.abs(b).max()), abs(start), 1.0))))
    wanted, (x, y) = exact.clip(low, high), np.meshgrid(a.astype(np.float64), b.astype(np.float64), indexing="ij")
    close = np.abs(real - np.floor(real) - 0.5) < _CLOSE  # to a tie: where planes differ, if any do
    for plane in _near(slopes, start, unit):
        for some in (close, ...):
            found = whole_part(x[some], plane.first, y[some], plane.second, plane.start)
            if not np.array_equal(found.clip(low, high), wanted[some]):
                break
        else:
            return plane
    return None


def _near(slopes: tuple[float, float], start: float, unit: float) -> Iterator[Plane]:
    """Yield planes near the exact one, the nearest first."""
    first, second = (np.float32(slope) for slope in slopes)
    tries = [(abs(i) + abs(j) + abs(k), i, j, k) for i in _STEPS for j in _STEPS for k in _STARTS]
    for _, i, j, k in sorted(tries)[:_MOST_TRIES]:
        moved = [value + np.float32(count) * np.spacing(value) for value, count in ((first, i), (second, j))]
        yield Plane(float(moved[0]), float(moved[1]), float(np.float32(start + k * unit)))
