"""Functions of two bytes as planes in float32, against exact sums with the rounding of fused multiply-adds."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from mlfc.support.lines import find_plane
from tests.unit.test_lines import rounded

CODES = np.arange(-128, 128)
SLOPES = [(0.7136492, 0.3319873), (0.5, 0.5), (1.3048817, 0.0203377), (0.0371128, 0.9044251), (1.0, 1.0)]


def staircase(first: float, second: float, start: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the integers nearest to the numbers of a plane, and these numbers."""
    real = np.add.outer(first * CODES, second * CODES) + start
    return np.floor(real + 0.5).astype(np.int64), real


@pytest.mark.parametrize(("first", "second"), SLOPES)
def test_planes_round_as_processors_do(first: float, second: float) -> None:
    exact, real = staircase(first, second, 17.3)
    plane = find_plane(exact, real, CODES, CODES, (-128, 127))
    assert plane is not None
    slope, other, start = (Fraction(value) for value in (plane.first, plane.second, plane.start))
    ties = np.abs(real + 0.5 - np.rint(real + 0.5))
    nearest = np.argsort(ties, axis=None)[:150]  # where a wrong rounding would have an effect
    anywhere = np.random.default_rng(1).integers(0, real.size, 150)
    for place in (*nearest.tolist(), *anywhere.tolist()):
        a, b = np.unravel_index(place, real.shape)
        inner = rounded(int(CODES[b]) * other + start, down=False)
        found = floor(rounded(int(CODES[a]) * slope + inner, down=True))
        assert min(max(found, -128), 127) == min(max(int(exact[a, b]), -128), 127), (a, b)


def test_what_is_no_plane() -> None:
    exact, real = staircase(0.7, 0.3, 0.0)
    assert find_plane(exact, real + 0.02 * np.sin(CODES), CODES, CODES, (-128, 127)) is None
    wrong = exact.copy()
    wrong[128, 128] += 1
    assert find_plane(wrong, real, CODES, CODES, (-128, 127)) is None
    assert find_plane(exact, np.full(real.shape, np.inf), CODES, CODES, (-128, 127)) is None


def test_operands_of_one_value() -> None:
    real = np.add.outer(0.25 * CODES, 0.5 * np.array([3])) + 0.1
    plane = find_plane(np.floor(real + 0.5).astype(np.int64), real, CODES, np.array([3]), (-128, 127))
    assert plane is not None
    assert abs(plane.first - 0.25) < 1e-6
