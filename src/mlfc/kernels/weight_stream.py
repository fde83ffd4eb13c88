"""Prefetches of weights: while tiles use some, those that come next are brought to the second-level cache.

Weights are read in the order of their addresses, a part of them by all tiles before the next part. The first tile would
wait for memory, the others would not use it. So each tile asks for its share of the next part, evenly over its steps:
processors have few places for data on its way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlfc.support import dtypes
from mlfc.support.dims import Dim
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Buffer, Expr

LEAST_BYTES = 128 * 1024  # of weights that caches may not hold from one run to the next
MOST_PART_BYTES = 512 * 1024  # of a part: with the next one, it fits in the second-level cache
MOST_TILES = 128  # of a part: to more of them the wait of the first hardly matters
LINE = 64  # bytes
_WHY = "weights that come next"


@dataclass(frozen=True, eq=False)
class Share:
    """The pixels of a tile, which follow others; all of them use the same weights."""

    before: Expr
    pixels: int
    all: Any
    is_row: bool = False


@dataclass(frozen=True, eq=False)
class WeightPart:
    """A part of the weights (panels, steps, elements) that is read before the next: steps of a panel."""

    panel: Expr
    first: Any  # step
    steps: int
    readers: int = 1  # blocks of channels that read a panel, each its own vectors
    reader: Any = 0  # which of them


class WeightStream:
    """Writes the prefetches of a tile."""

    def __init__(self, ctx: Context, weights: Buffer, part: WeightPart, share: Share) -> None:
        self._stmts, self._weights, self._start = ctx.stmts, weights, None
        if not ctx.features.prefetches or ctx.small or not _is_worthwhile(weights, part, share):
            return
        _, steps, elements = weights.shape
        length, at = part.steps * elements, (part.panel * steps + part.first) * elements
        pixels: Any = share.all
        if isinstance(pixels, Dim):
            # a share of a line or less a step: of two tiles each asks for every second line, and processors read pairs
            pixels = tb.maximum(tb.as_expr(pixels), 1)
            self._each: Any = ctx.stmts.let("each", tb.minimum(elements * share.pixels // pixels + 1, elements))
            self._offsets, last, ahead = [0], weights.size - length, length // pixels + 1
        else:
            tiles = pixels * part.readers  # in pixels
            self._each = -(-elements * share.pixels // tiles)  # elements to ask for in a step
            self._offsets = list(range(0, self._each, LINE // dtypes.nbytes(weights.dtype)))
            last, ahead = weights.size - part.steps * self._each, -(-length // tiles)
        done = part.reader * pixels + share.before
        start = at + length + done * ahead
        start = tb.maximum(start, 0) if isinstance(share.all, Dim) else start
        self._start = ctx.stmts.let("ahead", tb.minimum(start, last))

    def step(self, index: Expr) -> None:
        """Write the prefetches of a step of the part."""
        if self._start is not None:
            for offset in self._offsets:
                self._stmts.prefetch(self._weights, self._start + (index * self._each + offset), _WHY)


def _is_worthwhile(weights: Buffer, part: WeightPart, share: Share) -> bool:
    if any(isinstance(extent, Dim) for extent in weights.shape):
        return False
    panels, steps, _ = weights.shape
    nbytes = int(weights.nbytes)
    part_bytes = nbytes // (panels * steps) * part.steps
    if nbytes < LEAST_BYTES or part_bytes > min(MOST_PART_BYTES, nbytes // 2):
        return False
    if isinstance(share.all, Dim):
        return share.is_row  # images mostly have many tiles
    tiles = share.all * part.readers / share.pixels
    return bool(1 < tiles <= MOST_TILES)  # one tile reads as fast as memory gives
