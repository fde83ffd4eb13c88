"""Fixed-point multipliers that reproduce a reference's float64 rounding of products of sums and scales."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlfc.support.fixed_point import quantize_multiplier

_MULTIPLIERS = (0, 1, -1)  # offsets to try, nearest first
_AT_ONCE = 1 << 18  # number of ties to process at once


def as_fixed_point(ratios: npt.NDArray[np.float64], largest_sum: int, most: int) -> npt.NDArray[np.float64] | None:
    """Return ratios whose 31-bit multipliers round every sum as float64 does with the given ones; None if impossible.

    Both round once, ties away from zero. A multiplier has an error of half its last bit, so that a large sum close to a
    tie may be rounded to the other side; neighbouring multipliers have different errors.

    `largest_sum` is an upper bound of the magnitude of sums. `most` is a magnitude at which all results saturate.
    """
    found = ratios.copy()
    per_step = max(1, _AT_ONCE // max(most, 1))
    for first in range(0, len(ratios), per_step):
        part = slice(first, first + per_step)
        chosen = _multiplied(ratios[part], largest_sum, most)
        if chosen is None:
            return None
        found[part] = chosen
    return found


def _multiplied(ratios: npt.NDArray[np.float64], largest_sum: int, most: int) -> npt.NDArray[np.float64] | None:
    if ratios.min() < 2.0**-30 or ratios.max() * max(largest_sum, 1) >= 2.0**31:
        return None
    sums = _beside_ties(ratios, largest_sum, most)
    expected = np.minimum(np.floor(sums * ratios[:, None] + 0.5), most)
    pairs = np.array([quantize_multiplier(float(ratio)) for ratio in ratios], np.int64)
    multipliers, shifts = pairs[:, 0], 31 - pairs[:, 1]
    result, is_open = ratios.copy(), np.ones(len(ratios), bool)
    for step in _MULTIPLIERS:
        products = sums * (multipliers + step)[:, None]
        rounded = (products + (np.int64(1) << (shifts - 1))[:, None]) >> shifts[:, None]
        fits = is_open & np.all(np.minimum(rounded, most) == expected, axis=1)
        if step:
            result[fits] = np.ldexp((multipliers + step)[fits].astype(np.float64), -shifts[fits])
        is_open &= ~fits
    return None if is_open.any() else result


def _beside_ties(ratios: npt.NDArray[np.float64], largest_sum: int, most: int) -> npt.NDArray[np.int64]:
    """Return the sums at which the roundings can differ: the two on each side of every tie."""
    ties = np.floor((np.arange(most) + 0.5) / ratios[:, None])
    beside = np.minimum(ties[:, :, None] + np.arange(-1, 3), largest_sum)
    return np.maximum(beside, 0).astype(np.int64).reshape(len(ratios), -1)
