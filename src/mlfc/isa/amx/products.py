"""The intrinsics: tiles are opened, products of many rows of bytes are added up, and tiles are closed again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.tir import builder as tb
from mlfc.tir.intrinsics import INTRINSICS, Intrinsic
from mlfc.tir.ir import Expr

Array = npt.NDArray[Any]

OPEN, CLOSE, PRODUCTS = "tiles_open", "tiles_close", "tiles_u8s8"
ROWS, DEPTH, FILTERS = 16, 16, 16
"""Of a tile at most: rows, groups of four bytes in each, and the filters whose weights are side by side."""
MOST_SUMS = 4
"""Tiles of sums that are kept at once."""


@dataclass(frozen=True)
class Walk:
    """Which bytes of data are multiplied with which weights: the numbers behind the operands of ``tiles_u8s8``.

    Row r of tile i begins at ``next * i + pixel * r``. From there, each of `lines` (`pitch` bytes apart) has `taps`
    (`hop` bytes apart), each of which has ``steps * depth`` groups of four bytes. Weights follow each other in this
    order: ``64 * wide`` bytes for each group, of which the first are multiplied.
    """

    rows: int  # of a tile
    depth: int  # groups of four bytes that one product takes of a row
    pixel: int
    next: int
    lines: int
    pitch: int
    taps: int
    hop: int
    steps: int
    wide: int

    @property
    def groups(self) -> int:
        """Groups of four bytes of a tap."""
        return self.steps * self.depth

    def data_bytes(self, down: int) -> int:
        """Return how many bytes of data `down` tiles reach, from the first on."""
        ends = ((down - 1) * self.next, (self.rows - 1) * self.pixel, (self.lines - 1) * self.pitch)
        return sum(ends) + (self.taps - 1) * self.hop + 4 * self.groups

    def weight_bytes(self, across: int) -> int:
        """Return how many bytes of weights are between the first and the last of `across` vectors of filters."""
        return (self.lines * self.taps * self.groups - 1) * 64 * self.wide + 64 * across

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers in the order of the intrinsic's operands."""
        return (
            self.rows, self.depth, self.pixel, self.next, self.lines, self.pitch, self.taps, self.hop, self.steps,
            self.wide,
        )  # fmt: skip

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The numbers as literals."""
        return tuple(map(tb.const, self.numbers))


def _products(_: Array, start: Array, data: Array, weights: Array, *numbers: Array) -> Array:
    """Return the sums, row by row, of all filters that `start` has, as often as the data reaches."""
    walk = Walk(*(int(number) for number in numbers))
    across = start.size // FILTERS
    # only where there are several tiles does the way from one to the next matter
    down = next(count for count in range(1, MOST_SUMS + 1) if walk.data_bytes(count) == data.size)
    wide = weights.astype(np.int32)
    total = np.tile(start, (down * walk.rows, 1))
    firsts = np.add.outer(np.arange(down) * walk.next, np.arange(walk.rows) * walk.pixel).reshape(-1)
    place = 0
    for line in range(walk.lines):
        for tap in range(walk.taps):
            for group in range(walk.groups):
                at = firsts + (line * walk.pitch + tap * walk.hop + 4 * group)
                four = data[at[:, None] + np.arange(4)].astype(np.int32)
                own = wide[place : place + 64 * across].reshape(FILTERS * across, 4)
                total += four @ own.T
                place += 64 * walk.wide
    return total.reshape(-1)


INTRINSICS.add(OPEN, Intrinsic(OPEN, 2, lambda rows, _: np.ones_like(rows), "opens tiles: 1 if there are any, else 0"))
INTRINSICS.add(CLOSE, Intrinsic(CLOSE, 1, np.zeros_like, "closes the tiles that are open"))
INTRINSICS.add(
    PRODUCTS,
    Intrinsic(
        PRODUCTS,
        14,
        _products,
        "tiles, start, data, weights, ten numbers: int32 sums of products of uint8 and int8 (see mlfc.isa.amx)",
    ),
)
