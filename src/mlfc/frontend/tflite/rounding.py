"""Integer arithmetic that gives what a reference computes in float64, where it rounds products of sums and scales."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlfc.support.fixed_point import quantize_multiplier

_MULTIPLIERS = (0, 1, -1)  # the nearest one first
_AT_ONCE = 1 << 18  # ties


def as_fixed_point(ratios: npt.NDArray[np.float64], largest_sum: int, most: int) -> npt.NDArray[np.float64] | None:
    """Return ratios whose multipliers of 31 bits round every sum as float64 does with the given ones; None without any.

    Both round once, ties away from zero. A multiplier has an error of half its last bit, so that a large sum beside a
    tie may go to the other side; the multipliers next to it have other errors.

    `largest_sum`: the magnitude that no sum exceeds. `most`: a magnitude of results at which all of them saturate.
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
    """Return the sums at which rules that round the same product can differ: the two on each side of every tie."""
    ties = np.floor((np.arange(most) + 0.5) / ratios[:, None])
    beside = np.minimum(ties[:, :, None] + np.arange(-1, 3), largest_sum)
    return np.maximum(beside, 0).astype(np.int64).reshape(len(ratios), -1)
