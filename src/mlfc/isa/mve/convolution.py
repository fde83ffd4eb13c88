"""Convolutions and dense layers of int8 by ``dots``: rows of bytes times the weights of four filters at a time.

Two pixels share the loads of the weights. A pixel's window is one run of bytes: in the input itself where the kernel is
one pixel, else in a `StripCopy`. The zero point of the data is folded into what the sums start with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlfc.isa.mve.strip import StripCopy
from mlfc.kernels.folding import serial_loops
from mlfc.kernels.geometry import Conv, frame_of
from mlfc.kernels.nibbles import sixteenfold
from mlfc.kernels.templates import Array, Weights, template
from mlfc.tir import block_intrinsics
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

MOST_FILTERS = 64
"""Filters whose sums are kept before they are stored: 512 bytes of the stack for two pixels."""

Place = Sequence[Expr]


def start_of(out: Output, weights: Array, zero: int, filters: int) -> Array:
    """Return the start of each filter's sums, for weights (..., filters), filled up with zeros."""
    count = weights.shape[-1]
    total = np.zeros(filters, np.int64)
    if out.bias is not None:
        total[:count] = out.bias
    total[:count] -= zero * weights.reshape(-1, count).sum(axis=0, dtype=np.int64)
    return total.astype(np.int32)


def serves(data: Buffer, weights: Weights, out: Output) -> bool:
    """Tell whether the instructions serve these operands and this result."""
    return data.dtype == "int8" and weights.centered().dtype == np.int8 and out.dtype == "int32"


class Filters:
    """Sums of all filters for one or two rows of bytes.

    `rows` are weights (reduction, filters), the reduction in the order of the rows and a multiple of half a chunk.
    """

    def __init__(self, ctx: Context, rows: Array, start: Array, out: Output) -> None:
        self.ctx, self.out = ctx, out
        self.size, self.filters = rows.shape
        self.fours = -(-self.filters // block_intrinsics.FILTERS)
        self.weights = ctx.constant("weights", block_intrinsics.pack_weights(np.ascontiguousarray(rows.T)).reshape(-1))
        self.start = ctx.constant("start", start)

    def emit(self, rows: Sequence[tuple[Buffer, Place]], places: Sequence[Place]) -> None:
        """Write the sums of the rows that start at the given places of buffers, and their stores at `places`."""
        stmts = self.ctx.stmts
        whole = self.filters // block_intrinsics.FILTERS
        most = MOST_FILTERS // block_intrinsics.FILTERS
        count = max(n for n in range(1, min(most, max(whole, 1)) + 1) if whole % n == 0)
        if whole:
            with stmts.loop(whole // count, "block", "rolled") as block:
                self._block(rows, places, block * count, count, block_intrinsics.FILTERS)
        if self.filters % block_intrinsics.FILTERS:
            self._block(rows, places, tb.const(whole), 1, self.filters % block_intrinsics.FILTERS)

    def _block(
        self, rows: Sequence[tuple[Buffer, Place]], places: Sequence[Place], first: Expr, count: int, width: int
    ) -> None:
        """Write `count` fours of filters from four `first` on, of each of which `width` filters are stored."""
        stmts = self.ctx.stmts
        sums = stmts.local("sums", (count * len(rows) * block_intrinsics.FILTERS,), "int32")
        flat = count * block_intrinsics.FILTERS
        operands = [
            tb.load(self.start, [first * block_intrinsics.FILTERS], lanes=flat),
            *(tb.load(buffer, place, lanes=self.size) for buffer, place in rows),
            tb.load(self.weights, [first * (block_intrinsics.FILTERS * self.size)], lanes=flat * self.size),
        ]
        total = tb.intrinsic(f"dots{len(rows)}", *operands, dtype=f"int32x{sums.size}")
        stmts.store(sums, [0], total)
        with stmts.loop(count, "four", "rolled") as four:
            for index, place in enumerate(places):
                with stmts.loop(width, "lane", "vectorized") as lane:
                    value = tb.load(sums, [(four * len(rows) + index) * block_intrinsics.FILTERS + lane])
                    self.out.store([*place, (first + four) * block_intrinsics.FILTERS + lane], value)


def _accepts_conv(_: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    plain = conv.groups == 1 and len(conv.spatial) <= 2 and set(conv.dilation) == {1}
    return plain and _accepts_dense(_, data, weights, out)


@template("convolution", "mve", _accepts_conv)
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over one or two dimensions."""
    planar = conv.planar()
    in_place = planar.kernel == (1, 1) and not planar.padded and conv.channels % block_intrinsics.HALF_CHUNK == 0
    (_in_place if in_place else _by_strips)(ctx, conv, data, weights, out)


def _in_place(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution of single pixels: pairs are side by side, or above one another if that leaves fewer."""
    seen, conv = frame_of(len(conv.spatial)), conv.planar()
    centered = weights.centered().reshape(conv.channels, conv.filters)
    fours = -(-conv.filters // block_intrinsics.FILTERS) * block_intrinsics.FILTERS
    sums = Filters(ctx, centered, start_of(out, centered, weights.data_zero, fours), out)
    (height, width), (down, across) = conv.output, conv.strides
    zero = tb.const(0)

    def pixels(image: Expr, places: Sequence[tuple[Expr, Expr]]) -> None:
        rows = [(data, seen(image, y * down, x * across, zero)) for y, x in places]
        sums.emit(rows, [tuple(seen(image, y, x, zero))[:-1] for y, x in places])

    above = width % 2 == 1 and (height % 2 == 0 or height > width)
    stmts = ctx.stmts
    with stmts.loop(conv.batch, "image", "rolled") as image:
        if above:
            with stmts.loop(height // 2, "oy", "rolled") as y, stmts.loop(width, "ox", "rolled") as x:
                pixels(image, [(y * 2, x), (y * 2 + 1, x)])
            if height % 2:
                with stmts.loop(width, "ox", "rolled") as x:
                    pixels(image, [(tb.const(height - 1), x)])
            return
        with stmts.loop(height, "oy", "rolled") as y:
            if width > 1:
                with stmts.loop(width // 2, "ox", "rolled") as x:
                    pixels(image, [(y, x * 2), (y, x * 2 + 1)])
            if width % 2:
                pixels(image, [(y, tb.const(width - 1))])


def _by_strips(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution whose windows are copied side by side."""
    stmts, seen, conv = ctx.stmts, frame_of(len(conv.spatial)), conv.planar()
    centered = weights.centered().reshape(*conv.kernel, conv.channels, conv.filters)
    columns = np.swapaxes(centered, 0, 1).reshape(-1, conv.filters)  # a strip holds columns
    size = -(-len(columns) // block_intrinsics.HALF_CHUNK) * block_intrinsics.HALF_CHUNK
    padded = np.zeros((size, conv.filters), np.int8)
    padded[: len(columns)] = columns
    fours = -(-conv.filters // block_intrinsics.FILTERS) * block_intrinsics.FILTERS
    sums = Filters(ctx, padded, start_of(out, centered, weights.data_zero, fours), out)
    strip = StripCopy(ctx, conv, (data, seen), conv.channels, conv.channels, weights.data_zero, size - len(columns))
    height, width = conv.output

    def pixels(image: Expr, y: Expr, first: Expr, offsets: Sequence[Expr]) -> None:
        rows = [(strip.buffer, [strip.window(offset)]) for offset in offsets]
        sums.emit(rows, [tuple(seen(image, y, first + offset, tb.const(0)))[:-1] for offset in offsets])

    with stmts.loop(conv.batch, "image", "rolled") as image, stmts.loop(height, "oy", "rolled") as y:
        with stmts.loop(width // strip.pixels, "strip", "rolled") as number:
            first = stmts.let("first", number * strip.pixels)
            strip.fill(image, y, first, tb.const(0))
            if strip.pixels > 1:
                with stmts.loop(strip.pixels // 2, "pair", "rolled") as pair:
                    pixels(image, y, first, [pair * 2, pair * 2 + 1])
            if strip.pixels % 2:
                pixels(image, y, first, [tb.const(strip.pixels - 1)])


def _accepts_dense(_: Context, data: Buffer, weights: Weights, out: Output) -> bool:
    # weights of four bits have a form of their own
    return serves(data, weights, out) and data.shape[-1] > 0 and not sixteenfold(weights, 1 << 7, out)


@template("dense", "mve", _accepts_dense)
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns)."""
    stmts, centered = ctx.stmts, weights.centered()
    reduction, columns = centered.shape
    size = -(-reduction // block_intrinsics.HALF_CHUNK) * block_intrinsics.HALF_CHUNK
    padded = np.zeros((size, columns), np.int8)
    padded[:reduction] = centered
    fours = -(-columns // block_intrinsics.FILTERS) * block_intrinsics.FILTERS
    sums = Filters(ctx, padded, start_of(out, centered, weights.data_zero, fours), out)
    copy = ctx.scratch("row", (size,), "int8") if size > reduction else None
    with serial_loops(ctx, data.shape[:-1], "row") as place:
        source: tuple[Buffer, Place] = (data, [*place, tb.const(0)])
        if copy is not None:
            load = tb.load(data, source[1], lanes=reduction)
            stmts.store(copy, [0], load if reduction == 1 else tb.intrinsic("run", load))
            source = (copy, [tb.const(0)])
        sums.emit([source], [place])
