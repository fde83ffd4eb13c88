"""Depthwise convolution: vectors of channels, a strip of pixels in registers, every input loaded once a row.

Quantized operands are multiplied as float32: products of 8-bit numbers and sums of a few hundred of them are
integers below 2**24, which float32 holds exactly, and every vector unit multiplies floats fastest.
"""

from __future__ import annotations

import numpy as np

from mlforge.kernels import frame, tiling
from mlforge.kernels.frame import Frame
from mlforge.kernels.geometry import Conv
from mlforge.kernels.staging import Form, Stage
from mlforge.kernels.templates import Array, Weights, template
from mlforge.kernels.tiling import LANES
from mlforge.ops.tensor import Context, Output
from mlforge.support import dtypes
from mlforge.tir import builder as tb
from mlforge.tir.ir import Buffer, Expr

EXACT_LIMIT = 1 << 24
VECTOR = f"float32x{LANES}"


def _largest(data: Buffer, weights: Weights) -> int:
    """Return the largest magnitude that a sum of quantized products may reach."""
    low, high = dtypes.limits(data.dtype)
    reach = max(high - weights.data_zero, weights.data_zero - low)
    centered = np.abs(weights.centered().astype(np.int64))
    return reach * int(centered.reshape(-1, centered.shape[-1]).sum(axis=0).max(initial=0))


def _accepts(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    del ctx
    if len(conv.spatial) > 2:
        return False
    if data.dtype == "float32":
        return out.dtype == "float32"
    return dtypes.is_integer(data.dtype) and out.dtype == "int32" and _largest(data, weights) < EXACT_LIMIT


@template("depthwise", "vector", _accepts)
def depthwise(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a depthwise convolution over one or two dimensions, with any channel multiplier."""
    Depthwise(ctx, conv, data, weights, out).emit()


class Depthwise:
    """Writes the loops of one depthwise convolution."""

    def __init__(self, ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
        self.ctx, self.data, self.out = ctx, data, out
        self.seen: Frame = frame.of_rank(len(conv.spatial))
        self.conv = conv.planar()
        self.zero = weights.data_zero
        self.lanes = -(-conv.filters // LANES) * LANES
        self.weights = ctx.constant("weights", self._packed(weights.centered()))
        self.start: Buffer | None = None
        if out.bias is not None and out.bias.any():
            self.start = ctx.constant("start", out.bias.astype(dtypes.to_numpy(out.dtype)))
        direct = not conv.padded and conv.filters == conv.channels == self.lanes and data.dtype == "float32"
        form = Form("float32", self.lanes, 1, 0, self._as_float)
        self.stage = None if direct else Stage(ctx, self.conv, (data, self.seen), form)
        self.band = self.stage.band if self.stage else self.conv.output[0]

    def _as_float(self, value: Expr) -> Expr:
        if value.dtype == "float32":
            return value
        return tb.cast(tb.cast(value, "int32") - self.zero, "float32")

    def _packed(self, centered: Array) -> Array:
        """Return weights as (blocks of channels, taps, lanes) of float32."""
        taps = self.conv.kernel[0] * self.conv.kernel[1]
        packed = np.zeros((taps, self.lanes), np.float32)
        packed[:, : self.conv.filters] = centered.reshape(taps, self.conv.filters)
        return np.ascontiguousarray(packed.reshape(taps, -1, LANES).transpose(1, 0, 2))

    def emit(self) -> None:
        """Write everything."""
        stmts, conv = self.ctx.stmts, self.conv
        split = tiling.balanced(conv.output[1], min(8, tiling.accumulators(self.ctx.features.vector_registers) - 1))
        with stmts.loop(conv.batch, "image") as image, stmts.loop(conv.output[0] // self.band, "band") as index:
            first = index * self.band
            if self.stage:
                self.stage.fill(image, first)
            full, rest = divmod(conv.filters, LANES)
            with stmts.loop(self.band, "row") as row:
                for start, count, width in ((0, full, LANES), (full, 1 if rest else 0, rest)):
                    if not count:
                        continue
                    with stmts.loop(count, "block") as number:
                        for piece, times, size in split.pieces:
                            with stmts.loop(times, "strip") as strip:
                                column = strip * size + piece
                                self._strip((image, first, row, column), number + start, width, size)

    def _strip(self, place: tuple[Expr, Expr, Expr, Expr], block: Expr, width: int, size: int) -> None:
        """Write one strip of `size` pixels of one block of channels."""
        stmts, conv = self.ctx.stmts, self.conv
        column = place[3]
        sums = stmts.local("sums", (size,), VECTOR)
        for pixel in range(size):
            stmts.store(sums, [pixel], tb.const(0, VECTOR))
        stride, step = conv.strides[1], conv.dilation[1]
        with stmts.loop(conv.kernel[0], "ky") as ky:
            taps = [
                stmts.let("w", tb.load(self.weights, [block, ky * conv.kernel[1] + kx, 0], lanes=LANES))
                for kx in range(conv.kernel[1])
            ]
            wanted: dict[int, list[tuple[int, int]]] = {}
            for pixel in range(size):
                for kx in range(conv.kernel[1]):
                    wanted.setdefault(pixel * stride + kx * step, []).append((pixel, kx))
            for offset in sorted(wanted):
                value = stmts.let("x", self._input(place, ky, column * stride + offset, block))
                for pixel, kx in wanted[offset]:
                    stmts.store(sums, [pixel], tb.load(sums, [pixel]) + value * taps[kx])
        self._finish(place, (block, width, size), sums)

    def _input(self, place: tuple[Expr, Expr, Expr, Expr], ky: Expr, column: Expr, block: Expr) -> Expr:
        image, first, row, _ = place
        down = ky * self.conv.dilation[0]
        if self.stage is not None:
            at = column * self.lanes + block * LANES
            return tb.load(self.stage.buffer, [row * self.conv.strides[0] + down, at], lanes=LANES)
        inside = (first + row) * self.conv.strides[0] + down
        return tb.load(self.data, self.seen(image, inside, column, block * LANES), lanes=LANES)

    def _finish(self, place: tuple[Expr, Expr, Expr, Expr], piece: tuple[Expr, int, int], sums: Buffer) -> None:
        """Hand the strip's elements to the output."""
        stmts = self.ctx.stmts
        block, width, size = piece
        image, first, row, column = place
        results = stmts.local("results", (size, LANES), "float32")
        for pixel in range(size):
            stmts.store(results, [pixel, 0], tb.load(sums, [pixel]))
        with stmts.loop(size, "px") as px, stmts.loop(width, "c", "vectorized") as c:
            channel = block * LANES + c
            value = tb.cast(tb.load(results, [px, c]), self.out.dtype)
            if self.start is not None:
                value = value + tb.load(self.start, [channel])
            self.out.store(self.seen(image, first + row, column + px, channel), value)
