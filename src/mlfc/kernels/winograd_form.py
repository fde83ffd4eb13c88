"""The transforms of Winograd's convolutions: 3x3 windows by fewer products, at the cost of sums before and behind them.

A tile of ``results x results`` outputs reads ``size x size`` inputs. Inputs, weights and products are polynomials that
are evaluated at 0, at pairs of points ``p`` and ``-p``, and at infinity. The points decide how large rounding errors
become: 3/4 and 3/2 keep those of 4x4 outputs within about twice those of the plain sum, where the usual 1 and 2 have
six times as much; that one is twice the other makes their powers exact. No sum has two products whose rounding
compilers could fuse in either order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Value = TypeVar("Value")

TAPS = 3
TOLERANCE = 1e-5  # of the largest result: a layer whose results may differ more is computed without transforms
CHECKED_TILES = 2


@dataclass(frozen=True)
class WinogradForm:
    """A size of tiles, by the points of its polynomials; values are anything that adds up."""

    pairs: tuple[float, ...]

    @property
    def size(self) -> int:
        """Inputs along a side of a tile, and products."""
        return 2 * len(self.pairs) + 2

    @property
    def results(self) -> int:
        """Outputs along a side of a tile."""
        return self.size - TAPS + 1

    def input(self, values: Sequence[Value], scaled: Callable[[Value, float], Value]) -> list[Value]:
        """Return the transform of `size` inputs."""
        squares = [pair * pair for pair in self.pairs]
        found = [_monic(values[::2], squares, scaled)]
        for index, pair in enumerate(self.pairs):
            others = squares[:index] + squares[index + 1 :]
            even, odd = _monic(values[2::2], others, scaled), _monic(values[1:-1:2], others, scaled)
            found += [_sum(even, scaled(odd, pair)), _sum(even, scaled(odd, -pair))]
        return [*found, _monic(values[1::2], squares, scaled)]

    def output(self, values: Sequence[Value], scaled: Callable[[Value, float], Value]) -> list[Value]:
        """Return the `results` outputs of `size` sums of products."""
        sums = [_sum(values[place], values[place + 1]) for place in range(1, self.size - 1, 2)]
        apart = [_sum(values[place], scaled(values[place + 1], -1.0)) for place in range(1, self.size - 1, 2)]
        found = []
        for power in range(self.results):
            first, *others = apart if power % 2 else sums
            total = first
            for pair, value in zip(self.pairs[1:], others, strict=True):
                factor = (pair / self.pairs[0]) ** power
                total = _sum(total, value if factor == 1 else scaled(value, factor))
            total = total if self.pairs[0] ** power == 1 else scaled(total, self.pairs[0] ** power)
            total = _sum(values[0], total) if power == 0 else total
            found.append(_sum(values[-1], total) if power == self.results - 1 else total)
        return found

    def weights(self, values: Array) -> Array:
        """Return the transform of weights (3, 3, ...) as (size, size, ...): computed in float64, rounded once."""
        down = self._of_taps(list(values.astype(np.float64)))
        return np.stack([np.stack(self._of_taps(list(row))) for row in down]).astype(np.float32)

    def _of_taps(self, taps: Sequence[Array]) -> list[Array]:
        squares = [pair * pair for pair in self.pairs]
        found = [taps[0] / prod(-square for square in squares)]
        for index, (pair, square) in enumerate(zip(self.pairs, squares, strict=True)):
            others = squares[:index] + squares[index + 1 :]
            share = 2 * square * prod(square - other for other in others)
            for point in (pair, -pair):
                found.append((taps[0] + taps[1] * point + taps[2] * square) / share)
        return [*found, taps[2]]

    def error(self, weights: Array) -> float:
        """Return the largest error of seeded data's results in float32, over the largest result."""
        channels, filters = weights.shape[2:]
        size, results = self.size, self.results
        data = np.random.default_rng(0).standard_normal((size, size, CHECKED_TILES, channels), np.float32)
        by_column = [self.input(list(data[:, x]), _times) for x in range(size)]
        inputs = np.stack([np.stack(self.input([column[y] for column in by_column], _times)) for y in range(size)])
        factors = self.weights(weights)
        total = np.zeros((size, size, CHECKED_TILES, filters), np.float32)
        for channel in range(channels):
            total += inputs[..., channel, None] * factors[:, :, None, channel]
        columns = [self.output(list(total[:, x]), _times) for x in range(size)]
        found = np.stack([np.stack(self.output([column[y] for column in columns], _times)) for y in range(results)])
        wide, kernel = data.astype(np.float64), weights.astype(np.float64)
        expected = sum(
            np.tensordot(wide[y : y + results, x : x + results], kernel[y, x], 1)
            for y in range(TAPS)
            for x in range(TAPS)
        )
        largest = float(np.abs(expected).max())
        return float(np.abs(found - expected).max()) / largest if largest else 0.0


FORMS = (WinogradForm((0.75, 1.5)), WinogradForm((1.0,)))
"""Tiles of 4x4 results, which take a quarter of the products, and of 2x2, which take four ninths."""


_ERRORS: dict[tuple[WinogradForm, bytes], float] = {}
_MOST_ERRORS = 4096


def is_close(form: WinogradForm, weights: Array) -> bool:
    """Tell whether the form's results are as close as `TOLERANCE` with these weights."""
    key = (
        form,
        hashlib.blake2b(np.ascontiguousarray(weights).data, digest_size=16, key=repr(weights.shape).encode()).digest(),
    )
    if key not in _ERRORS:
        if len(_ERRORS) >= _MOST_ERRORS:
            _ERRORS.clear()
        _ERRORS[key] = form.error(weights)
    return _ERRORS[key] <= TOLERANCE


def _times(value: Any, factor: float) -> Any:
    return value * np.float32(factor)


def _sum(a: Any, b: Any) -> Any:
    return a + b


def _monic(values: Sequence[Any], squares: Sequence[float], scaled: Callable[[Any, float], Any]) -> Any:
    """Return the sum of values times the coefficients of the product of all ``x - square``, the last of which is 1."""
    coefficients = [1.0]
    for square in squares:
        shifted, lower = [0.0, *coefficients], [*coefficients, 0.0]
        coefficients = [a - square * b for a, b in zip(shifted, lower, strict=True)]
    *others, total = values[: len(coefficients)]
    for value, coefficient in reversed(list(zip(others, coefficients, strict=False))):
        total = _sum(total, scaled(value, coefficient))
    return total
