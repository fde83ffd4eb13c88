"""Vectorized transposed convolutions: one register-tile convolution per output phase (position modulo stride).

For few output channels, one product computes the taps of all phases, followed by sums of its columns. Each input pixel
is multiplied once by the weights of all taps, which fill the lanes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import gcd, prod
from typing import Any

import numpy as np

from mlfc.kernels import arithmetic
from mlfc.kernels.conv_tile import TiledConv
from mlfc.kernels.plain import bias_values
from mlfc.kernels.templates import Array, Conv, Weights, frame_of, line, template
from mlfc.kernels.tiling import LANES
from mlfc.support.dims import Dim, Extent, bounds, maximum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

MOST_PHASES = 16  # the code of each is separate


@dataclass(frozen=True)
class Phase:
    """Output positions of one axis that are equal modulo the stride, so that the same taps contribute to them.

    So a phase is a convolution of the input by a subset of the weights, without products by zero.
    """

    first: int  # the first position
    count: Any  # number of positions
    taps: tuple[int, ...]  # taps that contribute, in the order of the input elements that they read
    start: int  # the element that the first tap reads for the first position; may be outside the input
    dilation: int  # distance between the elements of successive taps

    def padding(self, size: Extent) -> tuple[int, Any]:
        """Return the padding of an input of `size` on both sides; negative if windows skip part of it."""
        last = self.start + self.count - 1 + (len(self.taps) - 1) * self.dilation
        return -self.start, last - (size - 1)


def phases(conv: Conv) -> list[tuple[Phase, ...]]:
    """Return the phases of the transpose of `conv`: all combinations of one phase per axis."""
    return list(product(*(_of_axis(conv, axis) for axis in range(len(conv.spatial)))))


def _of_axis(conv: Conv, axis: int) -> list[Phase]:
    stride, dilation, pad = conv.strides[axis], conv.dilation[axis], conv.padding[axis][0]
    found = []
    for first in range(min(stride, bounds(conv.spatial[axis])[1])):
        taps = [tap for tap in range(conv.kernel[axis]) if (first + pad - tap * dilation) % stride == 0][::-1]
        start = (first + pad - taps[0] * dilation) // stride if taps else 0
        count = -(-(conv.spatial[axis] - first) // stride)
        found.append(Phase(first, count, tuple(taps), start, dilation // gcd(stride, dilation)))
    return found


def windows(conv: Conv, phase: Sequence[Phase], size: Sequence[int]) -> Conv:
    """Return the convolution of an input of `size` that computes a phase; its padding may be negative."""
    return replace(
        conv,
        spatial=tuple(size),
        channels=conv.filters,
        filters=conv.channels,
        kernel=tuple(len(axis.taps) for axis in phase),
        strides=(1,) * len(phase),
        dilation=tuple(axis.dilation for axis in phase),
        padding=tuple(axis.padding(extent) for axis, extent in zip(phase, size, strict=True)),
    )


def places(conv: Conv, phase: Sequence[Phase], at: Sequence[Expr]) -> list[Expr]:
    """Return the output positions of a phase's results."""
    return [index * stride + axis.first for index, stride, axis in zip(at, conv.strides, phase, strict=True)]


_FEWEST_CHANNELS = 8  # of the input: with fewer products than this, another pass does not pay
_BAND_BYTES = 128 * 1024  # of products that are stored: half of a second-level cache
_OPEN_ROWS = 8  # of a band of dynamic width


def _accepts_columns(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    taps = prod(conv.kernel)
    floats = data.dtype == out.dtype == "float32" and weights.values.dtype == "float32"
    is_few = len(conv.spatial) <= 2 and prod(conv.strides) <= MOST_PHASES and not ctx.small
    if not floats or not is_few or conv.groups > 1 or isinstance(conv.channels, Dim):
        return False
    apart, together = taps * -(-conv.channels // LANES), -(-taps * conv.channels // LANES)  # vectors
    return bool(conv.filters >= _FEWEST_CHANNELS and 2 * together <= apart)


@template("transposed", "vector", _accepts_columns)
def transposed_to_few(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a transposed convolution with few output channels over one or two dimensions."""
    _ColumnLoops(ctx, conv, data, weights, out).emit()


@dataclass(frozen=True)
class _InputReach:
    """The input elements of one axis that the results of all phases read, by the index of a result in its phase."""

    before: int  # the first element that the first results read
    halo: int  # number of elements read beyond the number of results
    count: Extent  # results of the longest phase


def _reach(axes: Sequence[Phase]) -> _InputReach:
    used = [axis for axis in axes if axis.taps]
    first = min(axis.start for axis in used)
    last = max(axis.start + (len(axis.taps) - 1) * axis.dilation for axis in used)
    return _InputReach(first, last - first, reduce(maximum, (axis.count for axis in axes)))


class _RowProduct(TiledConv):
    """The products of a row, which is not measured: measurements are for a whole layer."""

    is_measured = False


class _ColumnLoops:
    """Writes the loops: image, band of rows; in each, the products of its input rows, then the sums of its results."""

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
        self.left = min(0, self.x.before)  # the first element of a row that is read, at most 0
        across = maximum(self.width, self.x.before + self.x.count + self.x.halo) - self.left
        row = across * self.columns * 4
        most = _OPEN_ROWS if isinstance(row, Dim) else max(_OPEN_ROWS, _BAND_BYTES // int(row) - self.y.halo)
        self.rows = most if isinstance(self.y.count, Dim) else min(int(self.y.count), most)
        self.products = ctx.scratch("products", (self.rows + self.y.halo, across, self.columns), "float32")

    def emit(self) -> None:
        """Write all loops."""
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
            if self.y.before == 0 and self.y.count + self.y.halo == self.height:  # all rows are inside the input
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
        """Write the products of one input row, with zeros for the elements beyond its ends."""
        how, conv = arithmetic.float32(self.weights), line(1, self.width, self.conv.filters, self.columns)

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
        """Write the results of one row of a phase: the sums of the contributing products, then the bias."""
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


def _accepts(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    few = len(conv.spatial) <= 2 and prod(conv.strides) <= MOST_PHASES and not ctx.small
    return few and arithmetic.accepts(ctx, data, weights, out)


@template("transposed", "vector", _accepts)
def transposed(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a transposed convolution over one or two dimensions."""
    made = conv.channels // conv.groups
    values = weights.values.reshape(*conv.kernel, conv.groups, conv.filters // conv.groups, made)
    # (kernel..., channels of a group, filters), the layout of convolutions
    values = np.moveaxis(values, -3, -2).reshape(*conv.kernel, conv.filters // conv.groups, conv.channels)
    for phase in phases(conv):
        if all(axis.taps for axis in phase):
            part = np.ascontiguousarray(values[np.ix_(*(axis.taps for axis in phase))])
            _convolution(ctx, conv, phase, data, replace(weights, values=part), out)
        else:
            _nothing(ctx, conv, phase, out)


def _convolution(ctx: Context, conv: Conv, phase: Sequence[Phase], data: Buffer, weights: Weights, out: Output) -> None:
    how = arithmetic.choose(data.dtype, weights, ctx.features)
    assert how is not None  # guaranteed by `accepts`
    seen, whole = frame_of(len(phase)), windows(conv, phase, data.shape[1:-1])
    # the convolution on the part of the input that its windows read, and the start of that part
    offset = tuple(max(0, -before) for before, _ in whole.padding)
    cut = zip(whole.spatial, whole.padding, strict=True)
    spatial = tuple(size - max(0, -before) - max(0, -after) for size, (before, after) in cut)
    padding = tuple((max(0, before), max(0, after)) for before, after in whole.padding)
    inner = replace(whole, spatial=spatial, padding=padding)
    rows, columns = offset if len(offset) == 2 else (0, *offset)

    def moved(image: Any, y: Any, x: Any, channel: Any) -> Sequence[Expr]:
        return seen(image, y + rows, x + columns, channel)

    def store(indices: Sequence[Expr], value: Expr) -> None:
        image, *seen_at, channel = indices
        at = [index - before for index, before in zip(seen_at, offset, strict=True)]
        out.store([image, *places(conv, phase, at), channel], value)

    shape = (conv.batch, *inner.output, conv.channels)
    target = Output(shape, out.dtype, store, out.bias)
    TiledConv(ctx, inner.planar(), how, (data, moved), target).emit()


def _nothing(ctx: Context, conv: Conv, phase: Sequence[Phase], out: Output) -> None:
    """Write the results of a phase without taps: only the bias."""
    bias: Array | None = bias_values(out)
    table = None if bias is None else ctx.constant("bias", bias)
    shape = (conv.batch, *(axis.count for axis in phase), conv.channels)
    with ctx.loops(shape, "o") as (image, *at, channel):
        value = tb.const(0, out.dtype) if table is None else tb.load(table, [channel])
        out.store([image, *places(conv, phase, at), channel], value)
