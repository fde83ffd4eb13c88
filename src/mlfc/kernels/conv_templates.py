"""Which register tile writes a convolution."""

from __future__ import annotations

from mlfc.kernels import arithmetic
from mlfc.kernels.compact_tile import CompactConv, is_compact
from mlfc.kernels.conv_tile import TiledConv
from mlfc.kernels.geometry import Conv, frame_of
from mlfc.kernels.templates import Weights, template
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer


def _accepts(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    how = arithmetic.choose(data.dtype, weights, ctx.features)
    return len(conv.spatial) <= 2 and how is not None and how.accumulator == out.dtype


@template("convolution", "vector", _accepts)
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over one or two dimensions."""
    how = arithmetic.choose(data.dtype, weights, ctx.features)
    assert how is not None  # _accepts has seen to it
    seen, plane = frame_of(len(conv.spatial)), conv.planar()
    tile = CompactConv if is_compact(ctx.features, plane, how) else TiledConv
    tile(ctx, plane, how, (data, seen), out).emit()
