"""Matrix products by the register tile: a dense layer is a 1x1 convolution whose pixels are its rows.

If the second matrix is computed at run time, each batch first packs it into scratch in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from mlfc.kernels import arithmetic
from mlfc.kernels.arithmetic import Arithmetic, scaled_vector
from mlfc.kernels.compact_tile import CompactConv, is_compact
from mlfc.kernels.conv_tile import TiledConv, TilePosition
from mlfc.kernels.folding import serial_loops
from mlfc.kernels.plain import bias_values, factor, is_long, no_sum, piece, read_matrix
from mlfc.kernels.plain import product as plain_product
from mlfc.kernels.templates import Frame, Product, Weights, in_float, line, rows_as_pixels, template, unflattened
from mlfc.kernels.tiling import LANES, MOST_PIXELS, PackedBlock, pack_channels
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, bounds, minimum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Expr, Load

ROW_VECTORS = 4
"""Vectors of columns whose sums for one row are accumulated together."""


def _rows_axis(leading: Sequence[Extent]) -> int | None:
    """Return the dimension of rows that fills tiles best; None if it is dynamic, and all together are better."""
    fixed = [extent for extent in leading if not isinstance(extent, Dim)]
    longest = max(fixed, default=1)
    if len(fixed) == len(leading) or longest >= MOST_PIXELS:
        return list(leading).index(longest) if leading else 0
    is_alone = len(fixed) == len(leading) - 1 and longest == 1
    return next(axis for axis, extent in enumerate(leading) if isinstance(extent, Dim)) if is_alone else None


def _rows_frame(leading: Sequence[Extent], axis: int) -> tuple[Extent, Extent, Frame]:
    """Return (batch, rows, frame) for a tensor (lead..., channels), viewed as images with one row, that of `axis`."""
    rows = leading[axis] if leading else 1
    others = [(index, extent) for index, extent in enumerate(leading) if index != axis]

    def frame(image: Any, _: Any, x: Any, channel: Any) -> Sequence[Expr]:
        indices: dict[int, Expr] = {axis: x}
        rest = image
        for index, extent in reversed(others):
            first = index == others[0][0]
            indices[index] = tb.const(0) if extent == 1 else rest if first else rest % extent
            rest = rest if extent == 1 else rest // extent
        return [*(indices[index] for index in range(len(leading))), channel]

    return prod(extent for _, extent in others), rows, frame


@template("dense", "vector", arithmetic.accepts)
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns)."""
    how = arithmetic.choose(data.dtype, weights, ctx.features)
    assert how is not None  # guaranteed by `accepts`
    axis = _rows_axis(data.shape[:-1])
    if axis is None:
        flat, seen = rows_as_pixels(data.shape, weights.values.shape[-1])
        tile: type[TiledConv] = CompactConv if how.must_stage and is_compact(ctx.features, flat, how) else FlatRows
        tile(ctx, flat, how, (data, seen), out).emit()
        return
    batch, rows, frame = _rows_frame(data.shape[:-1], axis)
    conv = line(batch, rows, *weights.values.shape)
    tile = CompactConv if is_compact(ctx.features, conv, how) else TiledConv
    tile(ctx, conv, how, (data, frame), out).emit()


class FlatRows(TiledConv):
    """A dense layer with flattened rows, whose positions in the tensor are computed once per tile."""

    def _at(self, column: Expr) -> list[Expr]:
        return [self.ctx.stmts.let("at", index) for index in unflattened(column, self.data.shape[:-1])]

    def reader(self, place: TilePosition) -> Callable[[int, int, tuple[Expr, Expr, Expr]], Expr]:
        """Return the function that reads the input of a pixel of the tile at ``(ky, kx, c)``."""
        if self.stage:
            return super().reader(place)
        rows = [self._at(place.column + x) for x in range(place.wide)]
        return lambda _, x, tap: tb.load(self.data, [*rows[x], tap[2]])

    def place(self, image: Expr, row: Expr, column: Expr) -> Callable[[Expr], Sequence[Expr]]:
        """Return a function that maps a channel to its indices at a pixel of the result."""
        del image, row
        at = self._at(self.ctx.stmts.let("row", column))
        return lambda channel: [*at, channel]


class TiledProduct(TiledConv):
    """A batch of products whose second matrix is packed at run time."""

    packs_once = False

    def __init__(self, ctx: Context, sizes: Product, a: Tensor, b: Tensor, out: Output) -> None:
        self.sizes, self.a, self.b, self.batch = sizes, in_float(ctx, a), b, out.shape[:-2]
        dtype = out.dtype
        known = 1 if isinstance(sizes.columns, Dim) else sizes.columns
        how = Arithmetic(
            np.zeros((1, known), dtypes.to_numpy(dtype)), dtype, 1, self.a.dtype, False, 0, 0,
            lambda value: value,
            lambda acc, value, weight: acc + tb.broadcast(factor(value, sizes.a_zero, dtype), LANES) * weight,
        )  # fmt: skip
        conv = line(prod(self.batch), sizes.rows, sizes.reduction, sizes.columns)
        super().__init__(ctx, conv, how, (self.a.in_memory(ctx), self._result), out)
        self._packed: list[tuple[PackedBlock, Buffer]] = []

    def _result(self, image: Any, _: Any, x: Any, channel: Any) -> Sequence[Expr]:
        return [*unflattened(image, self.batch), x, channel]

    def read(self, image: Expr, row: Expr, column: Expr, channel: Expr) -> Expr:
        """Read the first matrix in place."""
        del row
        place = (channel, column) if self.sizes.transpose_a else (column, channel)
        return read_matrix(self.a, unflattened(image, self.batch), *place)

    def pack(self, block: PackedBlock) -> tuple[Buffer, Buffer | None]:
        """Declare the scratch of a block, (count, reduction, lanes), and the start of its accumulators."""
        lanes = block.vectors * LANES
        buffer = self.ctx.scratch("packed", (block.count, self.sizes.reduction, lanes), self.how.accumulator)
        self._packed.append((block, buffer))
        start = self.how.start(self.out.bias)
        return buffer, None if start is None else self.ctx.constant("start", pack_channels(start, block))

    def prepare(self, image: Expr) -> None:
        """Write the loops that pack the second matrix of one batch."""
        stmts, sizes = self.ctx.stmts, self.sizes
        batch = unflattened(image, self.batch)
        stmts.refill(*(buffer for _, buffer in self._packed))
        for block, buffer in self._packed:
            with stmts.loop(block.count, "block") as number, stmts.loop(sizes.reduction, "k") as k:
                lanes = block.vectors * LANES
                with stmts.loop(block.width, "lane", "vectorized") as lane:
                    column = number * block.width + block.first + lane
                    value = read_matrix(self.b, batch, *((column, k) if sizes.transpose_b else (k, column)))
                    stmts.store(buffer, [number, k, lane], factor(value, sizes.b_zero, self.how.accumulator))
                if isinstance(block.width, Dim) or lanes > block.width:
                    with stmts.loop(lanes - block.width, "lane", "vectorized") as lane:
                        stmts.store(buffer, [number, k, lane + block.width], 0)


def _accepts_product(_: Context, sizes: Product, a: Tensor, b: Tensor, out: Output) -> bool:
    floats = a.dtype == b.dtype and a.dtype in ("float32", *dtypes.HALVES) and out.dtype == "float32"
    integers = dtypes.is_integer(a.dtype) and dtypes.is_integer(b.dtype) and out.dtype == "int32"
    is_several = bounds(sizes.rows)[1] > 1 or (floats and _is_wide(sizes, b))
    return (floats or integers) and len(out.shape) >= 2 and a.buffer is not None and is_several


def _is_wide(sizes: Product, b: Tensor) -> bool:
    """Return whether rows of the second matrix can be read as vectors."""
    return not sizes.transpose_b and bounds(sizes.columns)[0] >= LANES and b.buffer is not None


@template("product", "vector", _accepts_product)
def product(ctx: Context, sizes: Product, a: Tensor, b: Tensor, out: Output) -> None:
    """Write a batch of products of two matrices; packing does not pay for one row."""
    one_row = _row if out.dtype == "float32" and _is_wide(sizes, b) else plain_product
    if bounds(sizes.rows)[0] > 1:
        TiledProduct(ctx, sizes, a, b, out).emit()
    elif bounds(sizes.rows)[1] == 1:
        one_row(ctx, sizes, a, b, out)
    else:
        with ctx.stmts.when(tb.binary("eq", tb.as_expr(sizes.rows), 1)):
            one_row(ctx, sizes, a, b, out)
        with ctx.stmts.otherwise():
            TiledProduct(ctx, sizes, a, b, out).emit()


def _row(ctx: Context, sizes: Product, a: Tensor, b: Tensor, out: Output) -> None:
    """Write products of one row of floats, reading vectors of the second matrix in place."""
    stmts, bias = ctx.stmts, bias_values(out)
    table = None if bias is None else ctx.constant("bias", bias)
    b = b if b.dtype == "float16" else in_float(ctx, b)
    whole, rest = sizes.columns // LANES, sizes.columns % LANES
    pieces = [
        (0, whole // ROW_VECTORS, ROW_VECTORS, 0),
        (whole // ROW_VECTORS * ROW_VECTORS * LANES, whole % ROW_VECTORS, 1, 0),
        (sizes.columns - LANES, minimum(rest, 1), 1, LANES - rest),
    ]
    with serial_loops(ctx, out.shape[:-2], "batch") as batch:
        for start, count, vectors, done in (item for item in pieces if bounds(item[1])[1] > 0):
            with stmts.loop(count, "block") as block:
                first = stmts.let("first", block * (vectors * LANES) + start)
                sums = _row_sums(ctx, sizes, (a, b), batch, (first, vectors))
                with stmts.loop(vectors * LANES - done, "c", "vectorized") as lane:
                    column = first + (lane + done)
                    total = tb.load(sums, [lane + done])
                    out.store(
                        [*batch, tb.const(0), column], total if table is None else total + tb.load(table, [column])
                    )


def _row_sums(
    ctx: Context, sizes: Product, operands: tuple[Tensor, Tensor], batch: Sequence[Expr], block: tuple[Expr, int]
) -> Buffer:
    """Write the sums of several vectors of columns, in pieces if they are long; return the array of sums."""
    stmts, (a, b), (first, vectors) = ctx.stmts, operands, block
    long, vector = is_long("float32", sizes.reduction), dtypes.vector("float32", LANES)
    begin = no_sum("float32", sizes.reduction) if long else tb.const(0.0, "float32")
    totals = stmts.filled("totals", vectors, vector, tb.broadcast(begin, LANES))
    with piece(ctx, sizes.reduction, not long) as (start, extent):
        part = stmts.filled("part", vectors, vector) if long else totals
        with stmts.loop(extent, "k") as offset:
            k = start + offset
            value = read_matrix(a, batch, *((k, tb.const(0)) if sizes.transpose_a else (tb.const(0), k)))
            x = stmts.let("x", tb.cast(value, "float32"))
            for index in range(vectors):
                row = read_matrix(b, batch, k, first + index * LANES)
                assert isinstance(row, Load)
                wide = tb.cast(replace(row, dtype=dtypes.vector(row.dtype, LANES)), "float32")
                stmts.store(part, [index], scaled_vector(tb.load(part, [index]), x, wide))
        for index in range(vectors if long else 0):
            stmts.store(totals, [index], tb.load(totals, [index]) + tb.load(part, [index]))
    results = stmts.local("results", (vectors * LANES,), "float32")
    for index in range(vectors):
        stmts.store(results, [index * LANES], tb.load(totals, [index]))
    return results
