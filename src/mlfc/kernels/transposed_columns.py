"""Transposed convolutions to few channels on vectors: one product for the taps of all phases, then sums of its columns.

A convolution for each phase would leave most lanes of its vectors empty. Here each pixel of the input is multiplied
once by the weights of all taps, which fill the lanes together; a result is the sum of those products that reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import prod
from typing import Any

from mlfc.kernels import arithmetic
from mlfc.kernels.conv_tile import TiledConv
from mlfc.kernels.geometry import Conv, frame_of
from mlfc.kernels.phases import MOST_PHASES, Phase, phases, places
from mlfc.kernels.templates import Weights, template
from mlfc.kernels.tiling import LANES
from mlfc.support.dims import Dim, Extent, maximum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

_FEWEST_CHANNELS = 8  # of the input: fewer products than this are not worth another pass
_BAND_BYTES = 128 * 1024  # of products that are kept: half of a second-level cache
_OPEN_ROWS = 8  # of a band whose width the run decides


def _accepts(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    taps = prod(conv.kernel)
    floats = data.dtype == out.dtype == "float32" and weights.values.dtype == "float32"
    is_few = len(conv.spatial) <= 2 and prod(conv.strides) <= MOST_PHASES and not ctx.small
    if not floats or not is_few or conv.groups > 1 or isinstance(conv.channels, Dim):
        return False
    apart, together = taps * _lanes(conv.channels), _lanes(taps * conv.channels)
    return conv.filters >= _FEWEST_CHANNELS and 2 * together <= apart


def _lanes(channels: int) -> int:
    return -(-channels // LANES) * LANES


@template("transposed", "vector", _accepts)
def transposed(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a transposed convolution over one or two dimensions, to few channels."""
    _ColumnLoops(ctx, conv, data, weights, out).emit()


@dataclass(frozen=True)
class _InputReach:
    """Which input elements of one axis the results of all phases read, by the index of a result in its phase."""

    before: int  # the first that the first results read
    halo: int  # how many more than results
    count: Extent  # results of the longest phase

    def inside(self, size: Extent) -> bool:
        """Tell whether all of them are elements of the input."""
        return self.before == 0 and self.count + self.halo == size


def _reach(axes: Sequence[Phase]) -> _InputReach:
    used = [axis for axis in axes if axis.taps]
    first = min(axis.start for axis in used)
    last = max(axis.start + (len(axis.taps) - 1) * axis.dilation for axis in used)
    return _InputReach(first, last - first, reduce(maximum, (axis.count for axis in axes)))


class _RowProduct(TiledConv):
    """The products of a row; what measurements choose is for a whole layer."""

    is_measured = False


class _ColumnLoops:
    """Writes the loops: image, band of rows; in each the products of its input rows, then the sums of its results."""

    def __init__(self, ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
        self.ctx, self.conv, self.data, self.out = ctx, conv.planar(), data, out
        self.seen = frame_of(len(conv.spatial))
        self.phases = phases(self.conv)
        self.y, self.x = (_reach([phase[axis] for phase in self.phases]) for axis in range(2))
        self.height, self.width = data.shape[1:-1] if len(conv.spatial) == 2 else (1, data.shape[1])
        self.columns = prod(conv.kernel) * conv.channels
        # (kernel..., input channels, output channels) -> (1, 1, input channels, taps and output channels)
        values = weights.values.reshape(-1, conv.filters, conv.channels).swapaxes(0, 1)
        self.weights = replace(weights, values=values.reshape(1, 1, conv.filters, self.columns))
        self.bias = None if out.bias is None or not out.bias.any() else ctx.constant("bias", out.bias)
        self.left = min(0, self.x.before)  # the first element of a row that is read, or zero in its place
        across = maximum(self.width, self.x.before + self.x.count + self.x.halo) - self.left
        self.rows = self._band_rows(across)
        self.products = ctx.scratch("products", (self.rows + self.y.halo, across, self.columns), "float32")

    def _band_rows(self, across: Extent) -> int:
        row = across * self.columns * 4
        most = _OPEN_ROWS if isinstance(row, Dim) else max(_OPEN_ROWS, _BAND_BYTES // int(row) - self.y.halo)
        return most if isinstance(self.y.count, Dim) else min(int(self.y.count), most)

    def emit(self) -> None:
        """Write everything."""
        stmts, count = self.ctx.stmts, self.y.count
        whole = count // self.rows
        with stmts.loop(self.conv.batch, "image") as image:
            with stmts.loop(whole, "band") as band:
                stmts.refill(self.products)
                self._band(image, band * self.rows, self.rows)
            rest = count - whole * self.rows
            if not isinstance(rest, int) or rest:
                stmts.refill(self.products)
                with stmts.refilling(self.products):
                    self._band(image, tb.as_expr(whole * self.rows), rest)

    def _band(self, image: Expr, first: Expr, rows: Extent) -> None:
        stmts = self.ctx.stmts
        with stmts.loop(rows + self.y.halo, "row") as row:
            place = stmts.let("y", first + row + self.y.before)
            if self.y.inside(self.height):
                self._product(image, place, row)
            else:
                with stmts.when(tb.land(tb.binary("ge", place, 0), tb.binary("lt", place, self.height))):
                    self._product(image, place, row)
                with stmts.otherwise():
                    self._zeros(row, 0, self.products.shape[1])
        with stmts.loop(rows, "row") as row:
            for phase in self.phases:
                with ExitStack() as guard:
                    if phase[0].count != self.y.count:
                        guard.enter_context(stmts.when(tb.binary("lt", first + row, phase[0].count)))
                    self._sums(image, first + row, row, phase)

    def _product(self, image: Expr, y: Expr, row: Expr) -> None:
        """Write the products of one row of the input, between zeros for the elements beyond its ends."""
        how, one = arithmetic.float32(self.weights), ((0, 0), (0, 0))
        conv = Conv(1, (1, self.width), self.conv.filters, self.columns, (1, 1), (1, 1), (1, 1), one)

        def seen(_image: Any, _y: Any, x: Any, channel: Any) -> Sequence[Expr]:
            return self.seen(image, y, x, channel)

        def store(indices: Sequence[Expr], value: Expr) -> None:
            *_, x, column = indices
            self.ctx.stmts.store(self.products, [row, x - self.left, column], value)

        target = Output((1, 1, self.width, self.columns), "float32", store)
        _RowProduct(self.ctx, conv, how, (self.data, seen), target).emit()
        self._zeros(row, 0, -self.left)
        self._zeros(row, self.width - self.left, self.products.shape[1] - (self.width - self.left))

    def _zeros(self, row: Expr, start: Extent, extent: Extent) -> None:
        stmts = self.ctx.stmts
        if isinstance(extent, int) and extent == 0:
            return
        with stmts.loop(extent, "x") as x, stmts.loop(self.columns, "c", "vectorized") as column:
            stmts.store(self.products, [row, x + start, column], 0)

    def _sums(self, image: Expr, index: Expr, row: Expr, phase: tuple[Phase, ...]) -> None:
        """Write the results of one row of a phase: the sums of the products that reach them, and the bias last."""
        stmts, channels, (down, across) = self.ctx.stmts, self.conv.channels, phase
        with stmts.loop(across.count, "x") as x, stmts.loop(channels, "c", "vectorized") as channel:
            value: Expr = tb.const(0, "float32")
            for at, (ky, kx) in enumerate(product(down.taps, across.taps)):
                step_y, step_x = divmod(at, len(across.taps))
                y_at = row + (down.start - self.y.before + step_y * down.dilation)
                x_at = x + (across.start - self.left + step_x * across.dilation)
                tap = ky * self.conv.kernel[1] + kx
                part = tb.load(self.products, [y_at, x_at, channel + tap * channels])
                value = part if at == 0 else value + part
            if self.bias is not None:
                value = value + tb.load(self.bias, [channel])
            y_out, x_out = places(self.conv, phase, [index, x])
            self.out.store(self.seen(image, y_out, x_out, channel), value)
