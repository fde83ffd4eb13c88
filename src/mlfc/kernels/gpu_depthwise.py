"""Depthwise convolutions on devices: neighbouring work-items process neighbouring channels, each a strip of pixels.

Memory bandwidth limits this layer. Each element that an item loads is used for all windows of its strip that contain
it.
"""

from __future__ import annotations

from contextlib import nullcontext

from mlfc.kernels.geometry import Conv, frame_of, is_padded, strip_columns
from mlfc.kernels.gpu_fold import below
from mlfc.kernels.plain import accumulator_dtype, bias_values, factor
from mlfc.kernels.templates import Weights, template
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

_STRIP = 4  # pixels of an item
_MOST_TAPS = 64  # maximum number of taps that are unrolled


@template(
    "depthwise", "gpu",
    lambda _, conv, *__: len(conv.spatial) <= 2 and conv.kernel[-1] * conv.kernel[0] <= _MOST_TAPS,
)  # fmt: skip
def depthwise(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a depthwise convolution over one or two dimensions."""
    stmts, plane, frame, dtype = ctx.stmts, conv.planar(), frame_of(len(conv.spatial)), accumulator_dtype(out)
    height, width = plane.output
    strip = min(_STRIP, width)
    before, read = plane.padding[1][0], (-(-width // strip) * strip - 1) * plane.strides[1] + plane.extents[1]
    may_miss = before > 0 or read - before > plane.spatial[1]  # whether some strip reads columns outside the data
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
                is_checked = is_padded(plane.padding[0])
                with stmts.when(_inside(row, plane.spatial[0])) if is_checked else nullcontext():
                    for column, uses in strip_columns(plane, strip).items():
                        at_x = left + column
                        element = tb.load(data, frame(n, row, at_x, channel // multiplier))
                        value = factor(element, weights.data_zero, dtype)
                        if may_miss:
                            value = tb.select(_inside(at_x, plane.spatial[1]), value, tb.const(0, dtype))
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


def _inside(index: Expr, extent: int) -> Expr:
    return tb.land(tb.binary("ge", index, 0), tb.binary("lt", index, extent))
