"""Depthwise convolution: vectors of channels, a strip of pixels in registers, every input loaded once a row.

Loops from outside in: image, block of channels, row, strip of pixels, vector of the block. A window of input rows
is copied for each block, so the copy is small whatever the image is, and stays in the first-level cache.

Quantized operands are multiplied as float32: products of 8-bit numbers and sums of a few hundred of them are
integers below 2**24, which float32 holds exactly, and every vector unit multiplies floats fastest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlfc.kernels import tiling
from mlfc.kernels.geometry import Conv, Frame, frame_of
from mlfc.kernels.staging import Channels, StagedForm, StagedWindow
from mlfc.kernels.templates import Array, Weights
from mlfc.kernels.tiling import LANES, PackedBlock, channel_blocks
from mlfc.support import dtypes
from mlfc.support.dims import Dim
from mlfc.target.tuned import Value
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

EXACT_LIMIT = 1 << 24
VECTOR = f"float32x{LANES}"
# results of 8 bits fill a register of 32 bytes only where a block has 32 channels
VECTORS = 2


def largest_sum(data: Buffer, weights: Weights) -> int:
    """Return the largest magnitude that a sum of quantized products may reach; the zero point is subtracted later."""
    reach = max(map(abs, dtypes.limits(data.dtype)))
    centered = np.abs(weights.centered().astype(np.int64))
    return reach * int(centered.reshape(-1, centered.shape[-1]).sum(axis=0).max(initial=0))


@dataclass(frozen=True, eq=False)
class Strip:
    """The place of a strip of `size` pixels, and the number of its block of channels among equal ones.

    Results of the first `done` pixels are those of another strip.
    """

    image: Expr
    row: Expr
    column: Expr
    size: int
    block: PackedBlock
    number: Expr
    done: Expr | int = 0

    def channel(self, offset: Expr) -> Expr:
        """Return a channel of the block."""
        first: int = self.block.first
        width: int = self.block.width
        return self.number * width + (offset + first)


class Depthwise:
    """Writes the loops of one depthwise convolution."""

    def __init__(self, ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
        self.ctx, self.data, self.out = ctx, data, out
        self.seen: Frame = frame_of(len(conv.spatial))
        self.conv = conv.planar()
        self.zero = weights.data_zero
        centered = weights.centered()
        self.weights = ctx.constant("weights", self.packed(centered))
        start = self.beginning(centered)
        self.start = None if start is None else ctx.constant("start", start)
        held = tiling.accumulators(ctx.features.vector_registers)
        self.pixels = int(str(ctx.choose("strip", min(8, held - 1), lambda: self._strips(held))))
        self.vectors = int(str(ctx.choose("vectors", VECTORS, lambda: [VECTORS, 1, 4])))

    def _strips(self, held: int) -> list[Value]:
        """Return how many pixels may be computed at once."""
        usual, width = min(8, held - 1), self.conv.output[1]
        most = usual if isinstance(width, Dim) else min(14, width, max(1, held - 1))
        return [usual, *(size for size in range(2, most + 1) if size != usual)]

    def packed(self, centered: Array) -> Array:
        """Return weights as (vectors of channels, taps, lanes) of float32."""
        conv = self.conv
        taps = conv.kernel[0] * conv.kernel[1]
        packed = np.zeros((taps, -(-conv.filters // LANES) * LANES), np.float32)
        packed[:, : conv.filters] = centered.reshape(taps, conv.filters)
        return np.ascontiguousarray(packed.reshape(taps, -1, LANES).transpose(1, 0, 2))

    def beginning(self, centered: Array) -> Array | None:
        """Return the number to add to the sums of each filter, or None."""
        filters, dtype = self.conv.filters, dtypes.to_numpy(self.out.dtype)
        start = np.zeros(filters, dtype) if self.out.bias is None else self.out.bias.astype(dtype)
        if self.zero:
            start = start.astype(np.int64) - self.zero * centered.reshape(-1, filters).sum(axis=0, dtype=np.int64)
            start = start.astype(np.int32)
        return start if start.any() else None

    def emit(self) -> None:
        """Write everything."""
        stmts, conv = self.ctx.stmts, self.conv
        with stmts.loop(conv.batch, "image") as image:
            for block in channel_blocks(conv.filters, self.vectors):
                with stmts.loop(block.count, "block") as number:
                    self._block(image, block, number)

    def window(self, block: PackedBlock) -> Any:
        """Return the copy that the block reads, or None where it reads the input in place."""
        conv, lanes = self.conv, block.vectors * LANES
        if self.data.dtype == "float32" and not conv.padded and conv.filters == conv.channels and block.width == lanes:
            return None
        form = StagedForm("float32", lanes, 1, self.zero, lambda value: tb.cast(value, "float32"))
        return StagedWindow(self.ctx, conv, (self.data, self.seen), form)

    def _block(self, image: Expr, block: PackedBlock, number: Expr) -> None:
        """Write all rows of one block of channels."""
        stmts, conv = self.ctx.stmts, self.conv
        window = self.window(block)
        multiplier = conv.filters // conv.channels
        first = number * block.width + block.first
        channels = Channels(block.width, lambda c: (first + c) // multiplier)
        with window.output_rows(image, channels) if window else stmts.loop(conv.output[0], "row") as row:
            self.row(Strip(image, row, tb.const(0), 0, block, number), window)

    def row(self, place: Strip, window: Any) -> None:
        """Write the strips of a row."""
        split = tiling.cut(self.conv.output[1], self.pixels)
        if isinstance(split, tiling.DynamicSplit):
            for piece in split.covering(self.ctx, "strip"):
                self.strip(replace(place, column=piece.start, size=piece.size, done=piece.done), window)
            return
        for start, count, size in split.pieces:
            with self.ctx.stmts.loop(count, "strip") as index:
                self.strip(replace(place, column=index * size + start, size=size), window)

    def strip(self, strip: Strip, window: Any) -> None:
        """Write one strip: the sums of each vector of channels, then the results of all."""
        results = self.ctx.stmts.local("results", (strip.size, strip.block.vectors * LANES), "float32")
        self.sum(strip, window, results)
        self.finish(strip, results)

    def sum(self, strip: Strip, window: Any, results: Buffer, first: Expr | int = 0) -> None:
        """Write the sums of a strip, which are put into `results` from the pixel `first` on."""
        stmts = self.ctx.stmts
        with stmts.loop(strip.block.vectors, "v") as vector:
            sums = stmts.local("sums", (strip.size,), VECTOR)
            for pixel in range(strip.size):
                stmts.store(sums, [pixel], tb.const(0, VECTOR))
            self._sum(strip, window, vector, sums)
            for pixel in range(strip.size):
                stmts.store(results, [pixel + first, vector * LANES], tb.load(sums, [pixel]))

    def finish(self, strip: Strip, results: Buffer, first: Expr | int = 0) -> None:
        """Hand the results, from the pixel `first` on, to the output."""
        stmts = self.ctx.stmts
        with stmts.loop(strip.size - strip.done, "px") as offset, stmts.loop(strip.block.width, "c", "vectorized") as c:
            px = offset + strip.done
            channel = strip.channel(c)
            value = self.total(tb.load(results, [px + first, c]), channel)
            self.out.store(self.seen(strip.image, strip.row, strip.column + px, channel), value)

    def total(self, value: Expr, channel: Expr) -> Expr:
        """Return the result of a channel, given its sum."""
        if dtypes.is_integer(self.out.dtype):
            value = tb.cast(tb.intrinsic("within", value, tb.const(EXACT_LIMIT)), self.out.dtype)
        return value if self.start is None else value + tb.load(self.start, [channel])

    def panel(self, strip: Strip, vector: Expr) -> Expr:
        """Return which of the packed vectors of weights are those of a vector of the block."""
        first: int = strip.block.first // LANES
        return strip.number * strip.block.vectors + (vector + first)

    def columns(self, strip: Strip) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield the input columns of a strip, from its first on, each with the pixels and columns of the kernel."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(strip.size):
            for kx in range(self.conv.kernel[1]):
                at = pixel * self.conv.strides[1] + kx * self.conv.dilation[1]
                wanted.setdefault(at, []).append((pixel, kx))
        yield from sorted(wanted.items())

    def _sum(self, strip: Strip, window: StagedWindow | None, vector: Expr, sums: Buffer) -> None:
        """Write the loop over kernel rows that adds the products of one vector of channels."""
        stmts, conv = self.ctx.stmts, self.conv
        panel = self.panel(strip, vector)
        with stmts.loop(conv.kernel[0], "ky") as ky:
            taps = [
                stmts.let("w", tb.load(self.weights, [panel, ky * conv.kernel[1] + kx, 0], lanes=LANES))
                for kx in range(conv.kernel[1])
            ]
            down = ky * conv.dilation[0]
            line = window.slot(strip.row, down) if window else strip.row * conv.strides[0] + down
            for offset, uses in self.columns(strip):
                column = strip.column * conv.strides[1] + offset
                value = stmts.let("x", self._input(strip, window, (line, column), vector))
                for pixel, kx in uses:
                    stmts.store(sums, [pixel], tb.load(sums, [pixel]) + value * taps[kx])

    def _input(self, strip: Strip, window: StagedWindow | None, place: tuple[Expr, Expr], vector: Expr) -> Expr:
        line, column = place
        if window is None:
            indices = self.seen(strip.image, line, column, strip.channel(vector * LANES))
            return tb.load(self.data, indices, lanes=LANES)
        at = column * (strip.block.vectors * LANES) + vector * LANES
        return tb.load(window.buffer, [line, at], lanes=LANES)
