"""Depthwise convolution of bytes: the rows of a window side by side in the bytes of a lane, multiplied at once.

A lane of 32 bits belongs to a channel of an input column. Its bytes are the last four input rows there; for the next
row they move down by one and the new byte comes on top. So a window of up to four rows takes one product of four bytes
for each of its columns, and each input is moved into its lane once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from mlfc.kernels import arithmetic
from mlfc.kernels.depthwise_strip import Depthwise, Strip
from mlfc.kernels.geometry import Conv
from mlfc.kernels.staging import Channels, Source, choose, inside
from mlfc.kernels.templates import Array, Weights
from mlfc.kernels.tiling import LANES, PackedBlock
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

ROWS = 4  # bytes of a lane
BYTES = dtypes.limits("int8")  # of a factor
_WORDS = LANES * ROWS  # bytes of a vector


class DepthwiseBytes(Depthwise):
    """Writes the loops of one depthwise convolution by products of four bytes."""

    def __init__(self, ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
        centered = weights.centered()
        bytes_of = Weights(np.clip(centered, *BYTES).astype(np.int8), weights.data_zero)
        how = arithmetic.choose(data.dtype, bytes_of, ctx.features)
        assert how is not None  # _accepts has seen to it
        self.how = replace(how, weights=centered)
        self.largest = self.how.largest(out.bias)
        super().__init__(ctx, conv, data, weights, out)

    def packed(self, centered: Array) -> Array:
        """Return weights as (vectors of channels, columns of the kernel, bytes): the last row of a window on top.

        What weights of 9 bits are beyond a byte is a second factor of the same data.
        """
        near = np.clip(centered, *BYTES)
        beyond = centered - near
        self.beyond = self.ctx.constant("beyond", self._lanes(beyond)) if beyond.any() else None
        return self._lanes(near)

    def _lanes(self, weights: Array) -> Array:
        rows, columns = self.conv.kernel
        packed = np.zeros((columns, self.conv.filters, ROWS), np.int8)
        packed[:, :, ROWS - rows :] = weights.reshape(rows, columns, -1).transpose(1, 2, 0)
        return np.ascontiguousarray(packed.reshape(columns, -1, _WORDS).transpose(1, 0, 2))

    def beginning(self, centered: Array) -> Array | None:  # noqa: ARG002  (its sums are those of `how`)
        """Return the number with which the sums of each filter begin, or None."""
        return self.how.start(self.out.bias)

    def window(self, block: PackedBlock) -> BytesWindow:
        """Return the lanes that the block reads."""
        return BytesWindow(self.ctx, self.conv, (self.data, self.seen), block.vectors * LANES, self.how.pad_value)

    def strip(self, strip: Strip, window: BytesWindow) -> None:
        """Write one strip: the sums of each vector of channels, then the results of all."""
        stmts = self.ctx.stmts
        results = stmts.local("results", (strip.size, strip.block.vectors * LANES), "int32")
        with stmts.loop(strip.block.vectors, "v") as vector:
            sums = stmts.local("sums", (strip.size,), self.how.vector)
            begin = tb.const(0, self.how.vector)
            if self.start is not None:
                begin = tb.load(self.start, [strip.channel(vector * LANES)], lanes=LANES)
            for pixel in range(strip.size):
                stmts.store(sums, [pixel], begin)
            self._add_columns(strip, window, vector, sums)
            for pixel in range(strip.size):
                stmts.store(results, [pixel, vector * LANES], tb.load(sums, [pixel]))
        self.finish(strip, results)

    def total(self, value: Expr, channel: Expr) -> Expr:  # noqa: ARG002  (sums begin with what is a channel's own)
        """Return the result of a channel, given its sum."""
        if self.largest is None or self.ctx.small:
            return value
        return tb.intrinsic("within", value, tb.const(self.largest))

    def _add_columns(self, strip: Strip, window: BytesWindow, vector: Expr, sums: Buffer) -> None:
        """Write the products of one vector of channels with each column of the kernel."""
        stmts = self.ctx.stmts
        panel = self.panel(strip, vector)
        factors = [
            [
                stmts.let("w", tb.load(packed, [panel, kx, 0], lanes=_WORDS))
                for packed in (self.weights, self.beyond)
                if packed
            ]
            for kx in range(self.conv.kernel[1])
        ]
        for offset, uses in self.columns(strip):
            at = window.place(strip.column * self.conv.strides[1] + offset, vector)
            value = stmts.let("x", tb.load(window.buffer, [at], lanes=_WORDS))
            for pixel, kx in uses:
                for factor in factors[kx]:
                    stmts.store(sums, [pixel], self.how.accumulate(tb.load(sums, [pixel]), value, factor))


class BytesWindow:
    """The last four rows of some channels of the input, side by side in the bytes of a lane."""

    def __init__(self, ctx: Context, conv: Conv, source: Source, channels: int, pad_value: int) -> None:
        self.ctx, self.conv, self.source, self.channels, self.pad_value = ctx, conv, source, channels, pad_value
        self.columns = (conv.output[1] - 1) * conv.strides[1] + conv.extents[1]
        self.left = min(conv.padding[1][0], self.columns)
        self.buffer = ctx.scratch("window", (self.columns * channels * ROWS,), "uint8")

    def place(self, column: Expr, vector: Expr) -> Expr:
        """Return where the lanes of a vector of channels of a column are."""
        return column * (self.channels * ROWS) + vector * _WORDS

    @contextmanager
    def output_rows(self, image: Expr, channels: Channels) -> Iterator[Expr]:
        """Open the loop over output rows, in which the lanes hold the input rows that each of them needs."""
        stmts, conv = self.ctx.stmts, self.conv
        fresh = min(conv.strides[0], conv.kernel[0])
        kept = conv.kernel[0] - fresh

        def push(count: int, name: str, row: Expr, start: int) -> None:
            with stmts.loop(count, name) as index:
                self._push(image, row * conv.strides[0] + (index + start) - conv.padding[0][0], channels)

        def fill(first: Expr) -> None:
            with stmts.loop(self.buffer.size, "i", "vectorized") as i:  # columns of the borders stay so
                stmts.store(self.buffer, [i], self.pad_value)
            push(kept, "row", first, 0)

        if kept:
            with stmts.carrying_loop(conv.output[0], "row", self.buffer, fill) as row:
                push(fresh, "fresh", row, kept)
                yield row
            return
        with stmts.loop(conv.output[0], "row") as row:
            stmts.refill(self.buffer)
            fill(row)
            push(fresh, "fresh", row, 0)
            yield row

    def _push(self, image: Expr, row: Expr, channels: Channels) -> None:
        """Push an input row into the lanes; one outside the image is all border."""
        conv, (data, seen) = self.conv, self.source
        shift = 128 if data.dtype == "int8" else 0
        name = "push_flipped" if shift else "push_byte"
        border = tb.broadcast(tb.const(self.pad_value - shift), LANES)

        def write(is_inside: bool) -> None:
            stmts = self.ctx.stmts
            inner = min(conv.spatial[1], self.columns - self.left)
            with stmts.loop(inner, "column") as column, stmts.loop(self.channels // LANES, "v") as vector:
                value: Expr = border
                if is_inside:
                    indices = seen(image, row, column, channels.source(vector * LANES))
                    value = tb.cast(tb.load(data, indices, lanes=LANES), border.dtype)
                at = [self.place(column + self.left, vector)]
                stmts.store(self.buffer, at, tb.intrinsic(name, tb.load(self.buffer, at, lanes=_WORDS), value))

        choose(
            self.ctx,
            tb.land(*inside(row, conv.spatial[0], conv.padding[0])),
            lambda: write(is_inside=True),
            lambda: write(is_inside=False),
        )
