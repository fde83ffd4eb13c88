"""Convolutions with small code, for processor levels below the highest.

Requantization takes dozens of instructions, and a register tile repeats them for each kind of tile. Here, the tiles of
a band of rows all have one size and may overlap. They store their sums in scratch, and one loop over the pixels
requantizes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from mlfc.kernels import arithmetic, tiling
from mlfc.kernels.arithmetic import Arithmetic
from mlfc.kernels.conv_tile import TiledConv, TilePosition
from mlfc.kernels.staging import Band, Source, StagedForm
from mlfc.kernels.templates import Conv, Weights, frame_of, template
from mlfc.kernels.tiling import LANES, PackedBlock, Tile
from mlfc.support import dtypes
from mlfc.support.dims import Extent, is_static
from mlfc.target.features import Features, Value
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr
from mlfc.tir.split_stores import MOST_ELEMENTS

MOST_PIXELS = 256  # maximum number of pixels whose sums are in scratch, to fit in the first-level cache
FEWEST_STEPS = 32  # minimum length of float sums stored in scratch: shorter ones are hardly slower than that


def is_compact(features: Features, conv: Conv, how: Arithmetic) -> bool:
    """Return whether to use small code for a convolution of static shape: of bytes, or of floats with one tap."""
    sizes = (*conv.spatial, conv.channels, conv.filters)
    if not features.compact or not is_static(sizes) or prod(conv.output) == 0:
        return False
    if how.accumulator == "float32":
        return _is_line(conv, how) and conv.channels >= FEWEST_STEPS and prod(conv.output) > 1
    return how.must_stage and how.accumulator == "int32"


def _is_line(conv: Conv, how: Arithmetic) -> bool:
    """Return whether the windows of successive pixels are contiguous across all rows."""
    is_plain = conv.strides == (1, 1) and not conv.padded and conv.groups == 1
    return is_plain and prod(conv.kernel) == 1 and conv.channels % how.step == 0


class _LineBand(Band):
    """The copy of a band of rows whose pixels are contiguous: one line of pixels."""

    def scratch(self) -> Buffer:
        """Return the scratch of the rows."""
        self.length = self.columns * self.form.pixel
        return self.ctx.scratch("staged", (self.rows * self.length,), self.form.dtype)

    def at(self, slot: Expr, element: Expr) -> list[Expr]:
        """Return the index of an element of a row of the copy."""
        return [slot * self.length + element]


class CompactConv(TiledConv):
    """Writes the loops of one convolution over (height, width) of static shape."""

    adds_by_pieces = False

    def __init__(self, ctx: Context, conv: Conv, how: Arithmetic, source: Source, out: Output) -> None:
        self.is_line = _is_line(conv, how)
        super().__init__(ctx, conv, how, source, out)
        shape = self.part * self.conv.output[1], self.tile.vectors * LANES
        self.totals = ctx.scratch("totals", shape, dtypes.element(how.accumulator))
        self._at = tb.const(0), tb.const(0)  # offset of a tile in its part

    def band_of(self, form: StagedForm, most: int) -> Band:
        """Return the copy of the input of a band of rows."""
        make = _LineBand if self.is_line else Band
        return make(self.ctx, self.conv, (self.data, self.seen), form, self.how.weights.nbytes, most)

    def _measured_tile(
        self, band: Extent, registers: int, allowed: tuple[int, ...] = tiling.VECTORS, *, packing: bool = False
    ) -> Tile:
        """Return the tiling that determines the packing order of weights, or the band's, of one kind of tile."""
        if packing:
            return super()._measured_tile(band, registers, allowed, packing=True)
        width = self.conv.output[1]
        assert isinstance(band, int)  # guaranteed by `is_compact`
        fitting = (rows for rows in range(band, 1, -1) if band % rows == 0 and rows * width <= MOST_PIXELS)
        self.part = next(fitting, 1)
        held = 2 if self.how.step > 1 else 1
        return tiling.covering(*self._plane_of(self.part), self.conv.group_filters, registers, allowed, held)

    def _plane_of(self, band: Extent) -> tuple[Any, Any]:
        """Return the rows and columns that tiles cover."""
        return (1, band * self.conv.output[1]) if self.is_line else (band, self.conv.output[1])

    def _orders(self) -> Sequence[Value]:
        return ["blocks"]

    def _plane(
        self, band: tuple[Expr, Expr, Expr, Any], block: tuple[PackedBlock, Expr, Buffer, Buffer | None]
    ) -> None:
        """Write the tiles of one band for a block of channels, and the loops that requantize them, by parts of rows."""
        image, group, first, rows = band
        stmts, tile = self.ctx.stmts, self.tile
        stmts.refill(self.totals)
        height, width = self._plane_of(self.part)
        with stmts.loop(rows // self.part, "part") as part:
            above = part * self.part
            with tiling.covering_pieces(self.ctx, height, tile.rows.largest, "ty") as down:
                with tiling.covering_pieces(self.ctx, width, tile.columns.largest, "tx") as along:
                    row, column = self._at = down.start, along.start
                    at = (row, above * self.conv.output[1] + column) if self.is_line else (above + row, column)
                    place = TilePosition(image, group, first + at[0], at[1], at[0], down.size, along.size)
                    self.write_tile(place, *block)
            self._results((image, group, first + above), block[0], block[1])

    def reader(self, place: TilePosition) -> Callable[[int, int, tuple[Expr, Expr, Expr]], Expr]:
        """Return the function that reads the input of a pixel of the tile at ``(ky, kx, c)``."""
        if not self.is_line:
            return super().reader(place)
        pixels, channels, stage = [place.column + x for x in range(place.wide)], self.conv.channels, self.stage
        let = self.ctx.stmts.let
        if stage:
            return lambda _, x, tap: tb.load(stage.buffer, [pixels[x] * channels + tap[2]], lanes=self.how.step)
        columns = self.conv.output[1]
        rows = [tb.const(0) if self.conv.output[0] == 1 else let("y", pixel // columns) for pixel in pixels]
        along = [pixel if self.conv.output[0] == 1 else let("x", pixel % columns) for pixel in pixels]
        return lambda _, x, tap: self.read(place.image, rows[x], along[x], tap[2])

    def finish(self, place: TilePosition, block: PackedBlock, number: Expr, sums: Buffer, together: int = 1) -> None:
        """Store the sums of a tile in scratch."""
        assert together == 1
        del number
        (row, column), width = self._at, self._plane_of(self.part)[1]
        for index in range(sums.size):
            y, x = place.pixels[index // block.vectors]
            where = [(row + y) * width + (column + x), index % block.vectors * LANES]
            self.ctx.stmts.store(self.totals, where, tb.load(sums, [index]))

    def _results(self, part: tuple[Expr, Expr, Expr], block: PackedBlock, number: Expr) -> None:
        """Pass the sums of a part of a band to the output, in loops so short that they are split by width."""
        stmts, width = self.ctx.stmts, self.conv.output[1]
        image, group, first = part
        channel = group * self.conv.group_filters + number * block.width + block.first
        for start, count, size in tiling.balanced(width, max(1, MOST_ELEMENTS // (block.vectors * LANES))).pieces:
            with stmts.loop(self.part, "row") as row, stmts.loop(count, "piece") as piece:
                with stmts.loop(size, "column") as offset, stmts.loop(block.width, "c", "vectorized") as c:
                    column = piece * size + (offset + start)
                    at = self.place(image, first + row, column)
                    value = self.finished(tb.load(self.totals, [row * width + column, c]), channel + c)
                    self.out.store(at(channel + c), value)


@template("convolution", "vector", lambda ctx, conv, *args: len(conv.spatial) <= 2 and arithmetic.accepts(ctx, *args))
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over one or two dimensions."""
    how = arithmetic.choose(data.dtype, weights, ctx.features)
    assert how is not None  # guaranteed by `accepts`
    seen, plane = frame_of(len(conv.spatial)), conv.planar()
    tile = CompactConv if is_compact(ctx.features, plane, how) else TiledConv
    tile(ctx, plane, how, (data, seen), out).emit()
