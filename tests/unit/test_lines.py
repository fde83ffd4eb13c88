"""Requantization as a line in float32: its steps against TFLite's rule in Python integers."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from mlfc.support.fixed_point import multiply_by_quantized_multiplier
from mlfc.support.lines import Line, find_line

LARGEST = (1 << 31) - 1


def rounded(value: Fraction, *, down: bool) -> Fraction:
    """Return the nearest float32, or the next lower one, with an unbounded exponent."""
    if value == 0:
        return value
    size, unit = abs(value), Fraction(1)
    while size >= (1 << 24) * unit:
        unit *= 2
    while size < (1 << 23) * unit:
        unit /= 2
    whole = value / unit
    return (floor(whole) if down else round(whole)) * unit  # Python rounds ties to even, as processors do


def on_line(line: Line, channel: int, x: int) -> int:
    """Return the line's value at x, rounded like fused multiply-adds."""
    slope, rest, above, below = (
        Fraction(float(part[channel])) for part in (line.slope, line.rest, line.above, line.below)
    )
    data = rounded(Fraction(x), down=False)
    start = rounded(data * rest + (below if x < 0 else above), down=False)
    return floor(rounded(data * slope + start, down=True))


def channels(seed: int, count: int, exponents: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return multipliers, starting with the smallest and largest, and exponents."""
    rng = np.random.default_rng(seed)
    multipliers = [1 << 30, (1 << 30) + 1, (1 << 31) - 1, *rng.integers(1 << 30, 1 << 31, count - 3)]
    return np.array(multipliers, np.int32), rng.integers(*exponents, count).astype(np.int32)


@pytest.mark.parametrize("limits", [(-128, 127), (0, 255), (-250, 5), (-7, 3)])
def test_steps_are_those_of_two_roundings(limits: tuple[int, int]) -> None:
    multipliers, exponents = channels(7, 12, (0, 12))
    line = find_line(multipliers, exponents, limits, LARGEST)
    assert line is not None
    rng = np.random.default_rng(3)
    for channel, (multiplier, exponent) in enumerate(zip(multipliers.tolist(), exponents.tolist(), strict=True)):
        ties = [
            ((2 * level + 1) << (exponent + 31)) // multiplier + near
            for level in rng.integers(limits[0] - 2, limits[1] + 2, 12).tolist()
            for near in (-2, -1, 0, 1, 2)
        ]
        ends = [-(1 << 31), LARGEST, -1, 0, 1, (1 << 24) + 1, -(1 << 24) - 1]
        for x in (*ties, *ends, *rng.integers(-(1 << 31), 1 << 31, 10).tolist()):
            if -(1 << 31) <= x <= LARGEST:
                exact = multiply_by_quantized_multiplier(x, multiplier, -1 - exponent)
                found = on_line(line, channel, x)
                assert min(max(found, limits[0]), limits[1]) == min(max(exact, limits[0]), limits[1]), (channel, x)


def test_all_sums_of_a_range() -> None:
    multipliers, exponents = np.array([1623821475], np.int32), np.array([3], np.int32)
    line = find_line(multipliers, exponents, (-128, 127), 700)
    assert line is not None
    for x in range(-700, 701):
        exact = multiply_by_quantized_multiplier(x, 1623821475, -4)
        assert min(max(on_line(line, 0, x), -128), 127) == min(max(exact, -128), 127), x


def test_channels_that_are_always_zero() -> None:
    multipliers, exponents = np.array([0, 1 << 30, (1 << 31) - 1], np.int32), np.array([4, 31, 25], np.int32)
    assert find_line(multipliers, exponents, (-128, 127), LARGEST) is None
    line = find_line(multipliers, exponents, (-128, 127), 1 << 20)
    assert line is not None
    assert {on_line(line, channel, x) for channel in range(3) for x in (-(1 << 20), -1, 0, 1, 1 << 20)} == {0}


@pytest.mark.parametrize(
    ("multiplier", "exponent", "limits"),
    [
        (1 << 30, 25, (-128, 127)),  # float32 cannot represent the sums at its steps
        ((1 << 30) - 1, 3, (-128, 127)),
        (1 << 30, -1, (-128, 127)),
        (1 << 30, 3, (-32768, 32767)),
        (1 << 30, 3, (5, 5)),
    ],
)
def test_what_has_no_line(multiplier: int, exponent: int, limits: tuple[int, int]) -> None:
    assert find_line(np.array([multiplier], np.int32), np.array([exponent], np.int32), limits, LARGEST) is None


def test_a_start_that_misses_a_step_is_moved() -> None:
    """Check that some channels need other offsets than the exact ones, and that each channel has one."""
    multipliers, exponents = channels(1, 300, (12, 13))
    line = find_line(multipliers, exponents, (-128, 127), LARGEST)
    assert line is not None
    exact = (0.5 + np.exp2(-2.0 - exponents)).astype(np.float32)
    assert 0 < np.count_nonzero(line.above != exact) < 60
