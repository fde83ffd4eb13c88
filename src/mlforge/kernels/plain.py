"""Plain scalar templates: right for every size and dtype, and the reference of the others.

The loops run over the unpadded input and test each tap; four output channels share each input value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from mlforge.kernels.geometry import Conv
from mlforge.kernels.templates import Array, Weights, template
from mlforge.ops.tensor import Context, Output
from mlforge.support import dtypes
from mlforge.tir import builder as tb
from mlforge.tir.ir import Buffer, Const, Expr

FILTERS_AT_ONCE = 4


def accumulator_dtype(out: Output) -> str:
    """Return the dtype in which sums are kept: halves are summed as float32."""
    return "float32" if out.dtype in ("float16", "bfloat16") else out.dtype


def factor(value: Expr, zero: int, dtype: str) -> Expr:
    """Return an operand as a factor in the accumulator's dtype, less its zero point."""
    wide = tb.cast(value, dtype)
    return wide - zero if zero else wide


def start_values(out: Output) -> Array | None:
    """Return what the sums of each filter start with, or None for zero."""
    if out.bias is None or not out.bias.any():
        return None
    return out.bias.astype(dtypes.to_numpy(accumulator_dtype(out)))


class FilterSums:
    """Accumulators of a few filters at once, over weights ordered (group, block, step, filter).

    Parameters
    ----------
    rows : ndarray
        (steps, groups, filters of a group), the steps in the order in which the loops run.
    """

    def __init__(self, ctx: Context, rows: Array, out: Output, start: Array | None) -> None:
        self.ctx, self.out = ctx, out
        _, groups, filters = rows.shape
        self.filters = filters
        self.width = max(w for w in range(1, FILTERS_AT_ONCE + 1) if filters % w == 0)
        self.blocks = filters // self.width
        ordered = rows.reshape(rows.shape[0], groups * self.blocks, self.width).transpose(1, 0, 2)
        self.weights = ctx.constant("weights", np.ascontiguousarray(ordered))
        self.start = None if start is None else ctx.constant("start", start.reshape(-1, self.width))
        self.dtype = accumulator_dtype(out)

    @contextmanager
    def over(self, group: Expr, place: Sequence[Expr]) -> Iterator[Callable[[Expr, Expr], None]]:
        """Open the loop over blocks; what is given takes (step, input value), and the end stores at `place`."""
        stmts = self.ctx.stmts
        with stmts.loop(self.blocks, "block") as block:
            panel = group * self.blocks + block
            sums = stmts.local("sums", (self.width,), self.dtype)
            for index in range(self.width):
                begin = 0 if self.start is None else tb.load(self.start, [panel, index])
                stmts.store(sums, [index], begin)

            def add(step: Expr, value: Expr) -> None:
                value = stmts.let("x", value)
                for index in range(self.width):
                    weight = factor(tb.load(self.weights, [panel, step, index]), 0, self.dtype)
                    stmts.store(sums, [index], tb.load(sums, [index]) + value * weight)

            yield add
            with stmts.loop(self.width, "lane") as lane:
                channel = group * self.filters + block * self.width + lane
                self.out.store([*place, channel], tb.cast(tb.load(sums, [lane]), self.out.dtype))


@contextmanager
def nest(ctx: Context, extents: Sequence[int], prefix: str) -> Iterator[tuple[Expr, ...]]:
    """Open one serial loop an extent."""
    with ExitStack() as stack:
        yield tuple(
            stack.enter_context(ctx.stmts.loop(extent, f"{prefix}{axis}")) for axis, extent in enumerate(extents)
        )


def flat(indices: Sequence[Expr], extents: Sequence[int]) -> Expr:
    """Return the row-major position of `indices`."""
    total: Expr = tb.const(0)
    for index, extent in zip(indices, extents, strict=True):
        total = total * extent + index
    return total


def _inside(positions: Sequence[Expr], conv: Conv) -> Expr:
    """Return the condition that a tap reads inside the input, testing only the sides that have padding."""
    checks = []
    for axis, position in enumerate(positions):
        before, after = conv.padding[axis]
        if before:
            checks.append(tb.binary("ge", position, 0))
        if after:
            checks.append(tb.binary("lt", position, conv.spatial[axis]))
    return tb.land(*checks)


@template("convolution", "plain")
@template("depthwise", "plain")
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over any number of dimensions."""
    stmts = ctx.stmts
    centered = weights.centered().reshape(-1, conv.groups, conv.group_filters)
    sums = FilterSums(ctx, centered, out, start_values(out))
    with nest(ctx, (conv.batch, *conv.output), "o") as place, stmts.loop(conv.groups, "group") as group:
        with sums.over(group, place) as add, nest(ctx, conv.kernel, "k") as taps:
            positions = [
                place[axis + 1] * conv.strides[axis] + tap * conv.dilation[axis] - conv.padding[axis][0]
                for axis, tap in enumerate(taps)
            ]
            with _when(ctx, _inside(positions, conv)), stmts.loop(conv.group_channels, "c") as c:
                channel = group * conv.group_channels + c
                value = tb.load(data, [place[0], *positions, channel])
                step = flat(taps, conv.kernel) * conv.group_channels + c
                add(step, factor(value, weights.data_zero, sums.dtype))


@template("transposed", "plain")
def transposed(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a transposed convolution: each result element gathers the inputs that reach it."""
    stmts = ctx.stmts
    inner = conv.filters // conv.groups
    made = conv.channels // conv.groups
    taps_count = int(np.prod(conv.kernel))
    # (kernel..., groups * inner, made) -> (step of taps and inner channels, groups, made)
    grouped = weights.centered().reshape(taps_count, conv.groups, inner, made)
    rows = grouped.transpose(0, 2, 1, 3).reshape(taps_count * inner, conv.groups, made)
    sums = FilterSums(ctx, rows, out, start_values(out))
    with nest(ctx, (conv.batch, *conv.spatial), "o") as place, stmts.loop(conv.groups, "group") as group:
        with sums.over(group, place) as add, nest(ctx, conv.kernel, "k") as taps:
            positions, checks = _gathered(conv, place, taps, data)
            with _when(ctx, tb.land(*checks)), stmts.loop(inner, "c") as c:
                value = tb.load(data, [place[0], *positions, group * inner + c])
                add(flat(taps, conv.kernel) * inner + c, factor(value, weights.data_zero, sums.dtype))


def _gathered(conv: Conv, place: Sequence[Expr], taps: Sequence[Expr], data: Buffer) -> tuple[list[Expr], list[Expr]]:
    """Return where a tap of the transpose reads, and the conditions under which it does."""
    positions, checks = [], []
    for axis, tap in enumerate(taps):
        stride = conv.strides[axis]
        reach = place[axis + 1] + conv.padding[axis][0] - tap * conv.dilation[axis]
        if stride > 1:
            checks.append(tb.binary("eq", reach % stride, 0))
        position = reach // stride
        checks += [tb.binary("ge", position, 0), tb.binary("lt", position, data.shape[axis + 1])]
        positions.append(position)
    return positions, checks


@contextmanager
def _when(ctx: Context, condition: Expr) -> Iterator[Any]:
    """Open an if, unless the condition always holds."""
    if isinstance(condition, Const) and condition.value:
        yield
        return
    with ctx.stmts.when(condition):
        yield
