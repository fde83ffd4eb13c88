"""Depthwise convolutions on devices: neighbouring work-items take neighbouring channels, each a strip of pixels.

Such a layer moves more than it computes. What an item loads serves all windows of its strip that reach it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

from mlfc.kernels.geometry import Conv, frame_of, is_padded
from mlfc.kernels.gpu_groups import below
from mlfc.kernels.plain import accumulator_dtype, bias_values, factor
from mlfc.kernels.templates import Weights, template
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

_STRIP = 4  # pixels of an item
_MOST_TAPS = 64  # that are spelled out


def _takes(_ctx: Context, conv: Conv, *_: object) -> bool:
    return len(conv.spatial) <= 2 and conv.kernel[-1] * conv.kernel[0] <= _MOST_TAPS


@template("depthwise", "gpu", _takes)
def depthwise(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a depthwise convolution over one or two dimensions."""
    stmts, plane, frame, dtype = ctx.stmts, conv.planar(), frame_of(len(conv.spatial)), accumulator_dtype(out)
    height, width = plane.output
    strip = min(_STRIP, width)
    values = weights.centered().reshape(*plane.kernel, conv.filters).astype(dtypes.to_numpy(dtype))
    table = ctx.constant("weights", values)
    multiplier = conv.filters // conv.channels
    bias = bias_values(out)
    with stmts.loop(plane.batch, "n") as n, stmts.loop(height, "y") as y, stmts.loop(-(-width // strip), "strip") as at:
        with stmts.loop(conv.filters, "filter") as channel:
            sums = stmts.local("sums", (strip,), dtype)
            with stmts.loop(strip, "s", "unrolled") as index:
                stmts.store(sums, [index], 0)
            top = stmts.let("top", y * plane.strides[0] - plane.padding[0][0])
            left = stmts.let("left", at * (strip * plane.strides[1]) - plane.padding[1][0])
            for ky in range(plane.kernel[0]):
                row = stmts.let("row", top + ky * plane.dilation[0])
                with _when_inside(ctx, row, plane.spatial[0], is_padded(plane.padding[0])):
                    for column, uses in _columns(plane, strip).items():
                        at_x = left + column
                        element = tb.load(data, frame(n, row, at_x, channel // multiplier))
                        value = factor(element, weights.data_zero, dtype)
                        if _may_miss(plane, strip):
                            inside = tb.land(tb.binary("ge", at_x, 0), tb.binary("lt", at_x, plane.spatial[1]))
                            value = tb.select(inside, value, tb.const(0, dtype))
                        x = stmts.let("x", value)
                        for used, kx in uses:
                            total = tb.load(sums, [used]) + x * tb.load(table, [ky, kx, channel])
                            stmts.store(sums, [used], total)
            with stmts.loop(strip, "p", "unrolled") as pixel:
                place = stmts.let("place", at * strip + pixel)
                with below(ctx, place, width, strip):
                    result = tb.load(sums, [pixel])
                    if bias is not None:
                        result = result + tb.load(ctx.constant("bias", bias), [channel])
                    out.store(frame(n, y, place, channel), tb.cast(result, out.dtype))


def _columns(conv: Conv, strip: int) -> dict[int, list[tuple[int, int]]]:
    """Return the columns that a strip reads, counted from its first, and for each which pixels use it by which tap."""
    uses: dict[int, list[tuple[int, int]]] = {}
    for pixel, tap in product(range(strip), range(conv.kernel[1])):
        uses.setdefault(pixel * conv.strides[1] + tap * conv.dilation[1], []).append((pixel, tap))
    return dict(sorted(uses.items()))


def _may_miss(conv: Conv, strip: int) -> bool:
    """Tell whether some strip reads columns outside the data."""
    before = conv.padding[1][0]
    last = (-(-conv.output[1] // strip) * strip - 1) * conv.strides[1] + conv.extents[1] - 1 - before
    return before > 0 or last >= conv.spatial[1]


@contextmanager
def _when_inside(ctx: Context, index: Expr, extent: int, checked: bool) -> Iterator[None]:
    if not checked:
        yield
        return
    with ctx.stmts.when(tb.land(tb.binary("ge", index, 0), tb.binary("lt", index, extent))):
        yield
