"""Which vectors a depthwise convolution is written with: of floats, or of bytes where a window fits into a lane."""

from __future__ import annotations

import numpy as np

from mlfc.kernels.compact_depthwise import CompactDepthwise, is_compact
from mlfc.kernels.depthwise_bytes import BYTES, ROWS, DepthwiseBytes
from mlfc.kernels.depthwise_strip import EXACT_LIMIT, Depthwise, largest_sum
from mlfc.kernels.geometry import Conv
from mlfc.kernels.templates import Weights, template
from mlfc.kernels.tiling import LANES
from mlfc.support import dtypes
from mlfc.support.dims import Dim
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer


def _accepts_bytes(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    if not ctx.features.pushes_bytes or not ctx.features.dot4 or len(conv.spatial) > 2:
        return False
    if data.dtype not in ("int8", "uint8") or out.dtype != "int32" or weights.runtime_tensor is not None:
        return False
    centered = weights.centered()
    if centered.dtype not in (np.int8, np.int16) or np.abs(centered).max(initial=0) > -2 * BYTES[0] - 2:
        return False  # less a zero point in uint8's range, uint8 weights are two bytes together
    planar = conv.planar()
    is_dynamic = any(isinstance(size, Dim) for size in (planar.filters, *planar.spatial))
    fits = 1 < planar.kernel[0] <= ROWS and planar.dilation[0] == 1
    return fits and not is_dynamic and planar.filters == planar.channels and planar.filters % LANES == 0


@template("depthwise", "vector", _accepts_bytes)
def depthwise_bytes(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a depthwise convolution of bytes over one or two dimensions, with a filter for each channel."""
    DepthwiseBytes(ctx, conv, data, weights, out).emit()


def _accepts(_: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    if len(conv.spatial) > 2:
        return False
    if data.dtype in ("float32", *dtypes.HALVES):
        return out.dtype == "float32"
    return dtypes.is_integer(data.dtype) and out.dtype == "int32" and largest_sum(data, weights) < EXACT_LIMIT


@template("depthwise", "vector", _accepts)
def depthwise(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a depthwise convolution over one or two dimensions, with any channel multiplier."""
    strips = CompactDepthwise if is_compact(ctx.features, conv, data) else Depthwise
    strips(ctx, conv, data, weights, out).emit()
