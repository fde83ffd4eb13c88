"""Requantization as a linear function in float32, where the results are bit-exact.

TFLite rounds a sum times a multiplier twice. The result is a monotonic step function with at most 255 steps within the
limits of a byte. The floor of ``slope * x + start`` in float32 is also monotonic, regardless of rounding. The two are
equal if all steps are at the same integers, which is checked for each channel at compile time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mlfc.support.tensor_info import Array

_LARGEST_EXPONENT = 20  # so that values at steps fit into int64 exactly
_LARGEST_LEVEL = 1 << 9
_LEAST_MULTIPLIER = 1 << 30
_NUDGES = (0, 1, -1, 2, -2, 3, -3, 4, -4)  # offsets of the start that are tried, in float32 ulps
_CHANNELS = 64  # channels per batch, so that their steps fit in the cache
_HALFWAY = np.uint64(1 << 28)  # the last bits of a float64 halfway between two float32
_BENT = 0.01  # largest deviation of the values before rounding from a plane
_CLOSE = 0.02
_MOST_TRIES = 60
_STEPS = (0, 1, -1, 2, -2)  # offsets of a slope that are tried, in float32 ulps
_STARTS = (0, 1, -1, 2, -2, 3, -3)  # offsets of the start that are tried, in ulps of the largest sum


@dataclass(frozen=True, eq=False)
class Line:
    """The function ``floor(slope * x + start)`` with ``start = rest * x + (x < 0 ? below : above)``, per channel.

    All are float32. Both are fused multiply-adds; the inner one rounds to nearest, the outer one down.
    """

    slope: Array
    rest: Array  # the exact slope less `slope`
    above: Array
    below: Array


def find_line(multipliers: Array, exponents: Array, limits: tuple[int, int], largest: int) -> Line | None:
    """Return a line equal to ``requantize_down`` after clipping to `limits`; None if none was found.

    `multipliers`, `exponents`: of ``x * multiplier * 2**(-32 - exponent)``, int32, one per channel.
    `limits`: of the result, without zero point. `largest`: the largest magnitude of x.
    """
    return _found_line(multipliers.astype(np.int64).tobytes(), exponents.astype(np.int64).tobytes(), limits, largest)


@lru_cache(maxsize=256)  # each vector length of each processor level searches for the same one
def _found_line(multipliers: bytes, exponents: bytes, limits: tuple[int, int], largest: int) -> Line | None:
    m, k = np.frombuffer(multipliers, np.int64), np.frombuffer(exponents, np.int64) + 1
    low, high = limits
    if not -_LARGEST_LEVEL <= low < high <= _LARGEST_LEVEL or np.any(m < 0) or np.any(k < 1) or np.any(k > 32):
        return None
    # a channel whose results are all zero may have any small multiplier
    always_zero = (m == 0) | (_steps(np.maximum(m, 1), k, np.array([1]))[1][:, 0] > largest)
    m, k = np.where(always_zero, 0, m), np.where(always_zero, 1, k)
    if np.any((m < _LEAST_MULTIPLIER) & ~always_zero) or np.any(k > _LARGEST_EXPONENT + 1):
        return None
    first = m & ~0x7F  # the 24 of 31 bits that a float32 stores
    slope, rest = ((part * np.exp2(-31.0 - k)).astype(np.float32) for part in (first, m - first))
    half = np.exp2(-1.0 - k)
    starts = []
    for exact, levels in ((0.5 + half, (max(low, 0) + 1, high)), (0.5 - half, (low + 1, min(high, 0)))):
        start = exact.astype(np.float32)
        for at in range(0, m.size, _CHANNELS):
            part = slice(at, at + _CHANNELS)
            steps = _steps(np.maximum(m[part], 1), k[part], np.arange(levels[0], levels[1] + 1))
            side = _ZeroSide(slope[part], rest[part], *steps, largest)
            found = side.start(start[part])
            if found is None:
                return None
            start[part] = found
        starts.append(start)
    return Line(slope, rest, *starts)


def _steps(m: Array, k: Array, levels: Array) -> tuple[Array, Array]:
    """Return `levels`, which are all positive or all not, and per channel the smallest x that reaches each."""
    is_above = levels > 0
    size = np.where(is_above, levels, 1 - levels)
    edge = (((2 * size - 1)[None, :] << k[:, None]) - 1) << 30
    return levels, np.where(is_above, -(-edge // m[:, None]), -(edge // m[:, None]))


@dataclass(frozen=True, eq=False)
class _ZeroSide:
    """The steps of some channels on one side of zero."""

    slope: Array
    rest: Array
    levels: Array
    steps: Array
    largest: int

    def start(self, exact: Array) -> Array | None:
        """Return starts near `exact` for which all steps are correct; None if none was found."""
        result, missing = exact.copy(), np.ones(exact.shape, bool)
        for nudge in _NUDGES:
            start = exact
            for _ in range(abs(nudge)):
                start = np.nextafter(start, np.float32(nudge))
            right = self._holds(start, missing)
            result[missing] = np.where(right, start[missing], result[missing])
            missing[missing] = ~right
            if not missing.any():
                return result
        return None

    def _holds(self, start: Array, which: Array) -> Array:
        """Return for each selected channel whether the line has the same steps."""
        slope, rest, begin = (part[which, None].astype(np.float64) for part in (self.slope, self.rest, start))
        right = np.ones(slope.shape[0], bool)
        for before in (0, 1):
            x = self.steps[which] - before
            data = x.astype(np.float32).astype(np.float64)
            value = whole_part(data, slope, data, rest, begin)
            good = value < self.levels if before else value >= self.levels
            # x = 0 belongs to the side above zero, where the start is in [0, 1)
            right &= np.all(good | (np.abs(x) > self.largest) | (x == 0), axis=1)
        return right


def whole_part(a: Array, slope: Any, b: Array, rest: Any, begin: Any) -> Array:
    """Return ``floor(slope * a + (rest * b + begin))`` in float32, rounded like lines and planes.

    The result is NaN where float64 does not determine how float32 rounds the inner sum. Products of two float32 are
    exact in float64; a sum is represented exactly as a number and an error.
    """
    start, lost = _sum(b * rest, begin)
    doubtful = ((start.view(np.uint64) & (2 * _HALFWAY - 1)) == _HALFWAY) & (lost != 0)
    total, lost = _sum(a * slope, start.astype(np.float32).astype(np.float64))
    whole = np.floor(total)
    result: Array = np.where(doubtful, np.nan, whole - ((whole == total) & (lost < 0)))
    return result


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the sum in float64 and its rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@dataclass(frozen=True)
class Plane:
    """``floor(first * a + (second * b + start))`` in float32, by fused multiply-adds; the outer one rounds down."""

    first: float
    second: float
    start: float


def find_plane(exact: Array, real: Array, a: Array, b: Array, limits: tuple[int, int]) -> Plane | None:
    """Return a plane equal to `exact` after clipping to `limits`; None if none was found.

    `exact`, `real`: the results for all pairs of `a` and `b`, and the values before rounding; ties are halfway between
        integers. `a`, `b`: all values of both operands, in steps of one.
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
    close = np.abs(real - np.floor(real) - 0.5) < _CLOSE  # close to a tie: planes differ here first
    first, second = (np.float32(slope) for slope in slopes)
    tries = [(abs(i) + abs(j) + abs(k), i, j, k) for i in _STEPS for j in _STEPS for k in _STARTS]
    for _, i, j, k in sorted(tries)[:_MOST_TRIES]:  # planes near the exact one, nearest first
        moved = [value + np.float32(count) * np.spacing(value) for value, count in ((first, i), (second, j))]
        plane = Plane(float(moved[0]), float(moved[1]), float(np.float32(start + k * unit)))
        for some in (close, ...):
            found = whole_part(x[some], plane.first, y[some], plane.second, plane.start)
            if not np.array_equal(found.clip(low, high), wanted[some]):
                break
        else:
            return plane
    return None
