"""Depthwise convolutions of int8 by ``taps``: sixteen channels at a time, over a strip that holds only these.

A strip of sixteen channels is small, so it fits on the stack whatever the layer's size. A layer whose channels are no
multiple of sixteen has a last block of fewer; what the strip holds behind them is not used.
"""

from __future__ import annotations

import numpy as np

from mlfc.isa.mve.convolution import serves, start_of
from mlfc.isa.mve.strip import StripCopy
from mlfc.kernels.geometry import Conv, frame_of
from mlfc.kernels.templates import Array, Weights, template
from mlfc.tir import block_intrinsics
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

WIDTH = block_intrinsics.CHANNELS


def _accepts(_: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    plain = conv.filters == conv.channels and len(conv.spatial) <= 2 and set(conv.dilation) == {1}
    return plain and serves(data, weights, out)


@template("depthwise", "mve", _accepts)
def depthwise(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a depthwise convolution over one or two dimensions, one filter a channel."""
    MveDepthwise(ctx, conv, data, weights, out).emit()


class MveDepthwise:
    """Writes the loops of one depthwise convolution."""

    def __init__(self, ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
        self.ctx, self.data, self.out, self.zero = ctx, data, out, weights.data_zero
        self.seen = frame_of(len(conv.spatial))
        self.conv = conv.planar()
        self.taps = self.conv.kernel[0] * self.conv.kernel[1]
        self.blocks = -(-conv.channels // WIDTH)
        centered = weights.centered()
        self.weights = ctx.constant("weights", self._packed(centered))
        self.sum = "taps" if centered.min(initial=0) == np.iinfo(np.int8).min else "paired_taps"
        self.start = ctx.constant("start", start_of(out, centered, self.zero, self.blocks * WIDTH))

    def _packed(self, centered: Array) -> Array:
        """Return weights as (blocks, taps by column, channels of a block)."""
        conv = self.conv
        by_column = centered.reshape(*conv.kernel, conv.channels).swapaxes(0, 1).reshape(self.taps, conv.channels)
        padded = np.zeros((self.taps, self.blocks * WIDTH), np.int8)
        padded[:, : conv.channels] = by_column
        packed = padded.reshape(self.taps, self.blocks, WIDTH).swapaxes(0, 1)
        return np.ascontiguousarray(packed.reshape(self.blocks, self.taps * WIDTH))

    def emit(self) -> None:
        """Write everything."""
        stmts, conv = self.ctx.stmts, self.conv
        whole, rest = divmod(conv.channels, WIDTH)
        with stmts.loop(conv.batch, "image", "rolled") as image:
            if whole:
                with stmts.loop(whole, "block", "rolled") as block:
                    self._block(image, block, WIDTH)
            if rest:
                self._block(image, tb.const(whole), rest)

    def _block(self, image: Expr, block: Expr, width: int) -> None:
        """Write all pixels of a block of channels, of which there are `width`."""
        stmts, conv = self.ctx.stmts, self.conv
        strip = StripCopy(self.ctx, conv, (self.data, self.seen), width, WIDTH, self.zero)
        sums = stmts.local("sums", (WIDTH,), "int32")
        with stmts.loop(conv.output[0], "oy", "rolled") as y:
            with stmts.loop(conv.output[1] // strip.pixels, "strip", "rolled") as number:
                first = stmts.let("first", number * strip.pixels)
                strip.fill(image, y, first, block * WIDTH)
                with stmts.loop(strip.pixels, "pixel", "rolled") as pixel:
                    operands = [
                        tb.load(self.start, [block * WIDTH], lanes=WIDTH),
                        tb.load(strip.buffer, [strip.window(pixel)], lanes=self.taps * WIDTH),
                        tb.load(self.weights, [block, 0], lanes=self.taps * WIDTH),
                    ]
                    stmts.store(sums, [0], tb.intrinsic(self.sum, *operands, dtype=f"int32x{WIDTH}"))
                    with stmts.loop(width, "lane", "vectorized") as lane:
                        place = self.seen(image, y, first + pixel, block * WIDTH + lane)
                        self.out.store(place, tb.load(sums, [lane]))
