"""The intrinsics: tiles are opened, products of many rows of bytes are added up, and tiles are closed again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.tir import builder as tb
from mlfc.tir.intrinsics import INTRINSICS, Intrinsic
from mlfc.tir.ir import Expr

Array = npt.NDArray[Any]

OPEN, CLOSE = "tiles_open", "tiles_close"
ROWS, DEPTH, FILTERS = 16, 16, 16
"""Of a tile at most: rows, groups of four bytes in each, and the filters whose weights are side by side."""
MOST_SUMS = 4
"""Tiles of sums that are kept at once."""


@dataclass(frozen=True)
class TileElements:
    """What tiles hold, by the name of the intrinsic."""

    name: str
    group: int  # elements of the data, and weights of a filter, in four bytes
    data: str
    weight: str
    sum: str


BYTES = TileElements("tiles_u8s8", 4, "uint8", "int8", "int32")
BFLOATS = TileElements("tiles_bf16", 2, "bfloat16", "bfloat16", "float32")
"""Products of two bfloat16 are exact. Sums of them are rounded as float32, in an order of their own, and are zero where
they are subnormal."""
KINDS = {kind.name: kind for kind in (BYTES, BFLOATS)}


@dataclass(frozen=True)
class Walk:
    """Which data is multiplied with which weights: the numbers behind an intrinsic's operands, in elements.

    Row r of tile i begins at ``next * i + pixel * r``. From there, each of `lines` (`pitch` apart) has `taps` (`hop`
    apart), each of which has ``steps * depth`` groups of `group` elements. Weights follow each other in this order:
    ``16 * group * wide`` for each group, of which the first are multiplied.
    """

    rows: int  # of a tile
    depth: int  # groups that one product takes of a row
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
        """Groups of a tap."""
        return self.steps * self.depth

    def data_size(self, down: int, group: int) -> int:
        """Return how many elements of data `down` tiles reach, from the first on."""
        ends = ((down - 1) * self.next, (self.rows - 1) * self.pixel, (self.lines - 1) * self.pitch)
        return sum(ends) + (self.taps - 1) * self.hop + group * self.groups

    def weights_size(self, across: int, group: int) -> int:
        """Return how many weights are between the first and the last of `across` vectors of filters."""
        return ((self.lines * self.taps * self.groups - 1) * self.wide + across) * FILTERS * group

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


def _products(kind: TileElements, _: Array, start: Array, data: Array, weights: Array, *numbers: Array) -> Array:
    """Return the sums, row by row, of all filters that `start` has, as often as the data reaches."""
    walk = Walk(*(int(number) for number in numbers))
    across, size = start.size // FILTERS, FILTERS * kind.group
    # only where there are several tiles does the way from one to the next matter
    down = next(count for count in range(1, MOST_SUMS + 1) if walk.data_size(count, kind.group) == data.size)
    values, wide = data.astype(kind.sum), weights.astype(kind.sum)
    total = np.tile(start, (down * walk.rows, 1))
    firsts = np.add.outer(np.arange(down) * walk.next, np.arange(walk.rows) * walk.pixel).reshape(-1)
    place = 0
    for line in range(walk.lines):
        for tap in range(walk.taps):
            for group in range(walk.groups):
                at = firsts + (line * walk.pitch + tap * walk.hop + kind.group * group)
                own = wide[place : place + size * across].reshape(FILTERS * across, kind.group)
                total += values[at[:, None] + np.arange(kind.group)] @ own.T
                place += size * walk.wide
    return total.reshape(-1)


INTRINSICS.add(OPEN, Intrinsic(OPEN, 2, lambda rows, _: np.ones_like(rows), "opens tiles: 1 if there are any, else 0"))
INTRINSICS.add(CLOSE, Intrinsic(CLOSE, 1, np.zeros_like, "closes the tiles that are open"))
for _kind in KINDS.values():
    _doc = f"tiles, start, data, weights, ten numbers: {_kind.sum} sums of products of {_kind.data} and {_kind.weight}"
    INTRINSICS.add(_kind.name, Intrinsic(_kind.name, 14, partial(_products, _kind), f"{_doc} (see mlfc.isa.amx)"))
