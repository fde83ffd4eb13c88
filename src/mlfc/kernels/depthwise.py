"""Depthwise convolution: vectors of channels, a strip of pixels in registers, every input loaded once per row.

A window of input rows is copied for each block of channels, and stays in the first-level cache. Quantized operands are
multiplied as float32, which is exact below 2**24 and fastest, or as packed bytes if a window fits in one 32-bit lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from mlfc.kernels import arithmetic, tiling
from mlfc.kernels.staging import Channels, Source, StagedForm, StagedWindow, choose, inside
from mlfc.kernels.templates import Array, Conv, Frame, Weights, frame_of, strip_columns, template
from mlfc.kernels.tiling import LANES, PackedBlock, channel_blocks
from mlfc.support import dtypes
from mlfc.support.dims import Dim, is_static
from mlfc.target.features import Features, Value
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

EXACT_LIMIT = 1 << 24
# 8-bit results fill a register of 32 bytes only if a block has 32 channels
VECTORS = 2


@dataclass(frozen=True, eq=False)
class Strip:
    """The position of a strip of `size` pixels, and the index of its block of channels among equal ones.

    Another strip computes the results of the first `done` pixels.
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
        found: Expr = self.number * self.block.width + (offset + self.block.first)
        return found


class Depthwise:
    """Writes the loops of one depthwise convolution."""

    accumulator = "float32"

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
        usual, width = min(8, held - 1), self.conv.output[1]
        most = usual if isinstance(width, Dim) else min(14, width, max(1, held - 1))
        strips: list[Value] = [usual, *(size for size in range(2, most + 1) if size != usual)]
        self.pixels = int(str(ctx.choose("strip", usual, lambda: strips)))
        self.vectors = int(str(ctx.choose("vectors", VECTORS, lambda: [VECTORS, 1, 4])))

    def packed(self, centered: Array) -> Array:
        """Return weights as (vectors of channels, taps, lanes) of float32."""
        conv = self.conv
        taps = conv.kernel[0] * conv.kernel[1]
        packed = np.zeros((taps, -(-conv.filters // LANES) * LANES), np.float32)
        packed[:, : conv.filters] = centered.reshape(taps, conv.filters)
        return np.ascontiguousarray(packed.reshape(taps, -1, LANES).transpose(1, 0, 2))

    def beginning(self, centered: Array) -> Array | None:
        """Return the initial value of the sums of each filter, or None for zero."""
        filters, dtype = self.conv.filters, dtypes.to_numpy(self.out.dtype)
        start = np.zeros(filters, dtype) if self.out.bias is None else self.out.bias.astype(dtype)
        if self.zero:
            start = start.astype(np.int64) - self.zero * centered.reshape(-1, filters).sum(axis=0, dtype=np.int64)
            start = start.astype(np.int32)
        return start if start.any() else None

    def emit(self) -> None:
        """Write all loops."""
        stmts, conv = self.ctx.stmts, self.conv
        with stmts.loop(conv.batch, "image") as image:
            for block in channel_blocks(conv.filters, self.vectors):
                with stmts.loop(block.count, "block") as number:
                    window = self.window(block)
                    channels = self._channels(block, number)
                    with window.output_rows(image, channels) if window else stmts.loop(conv.output[0], "row") as row:
                        self.row(Strip(image, row, tb.const(0), 0, block, number), window)

    def window(self, block: PackedBlock) -> Any:
        """Return the copy that the block reads, or None if it reads the input in place."""
        conv, lanes = self.conv, block.vectors * LANES
        if self.data.dtype == "float32" and not conv.padded and conv.filters == conv.channels and block.width == lanes:
            return None
        form = StagedForm("float32", lanes, 1, self.zero, lambda value: tb.cast(value, "float32"))
        return StagedWindow(self.ctx, conv, (self.data, self.seen), form)

    def _channels(self, block: PackedBlock, number: Expr) -> Channels:
        first, multiplier = number * block.width + block.first, self.conv.filters // self.conv.channels
        return Channels(block.width, lambda c: (first + c) // multiplier)

    def row(self, place: Strip, window: Any) -> None:
        """Write the strips of a row."""
        split = tiling.cut(self.conv.output[1], self.pixels)
        if isinstance(split, tiling.DynamicSplit):
            for piece in split.covering(self.ctx, "strip"):
                self.strip(replace(place, column=piece.start, size=piece.size, done=piece.done), window)
            return
        for start, size in tiling.pieces(self.ctx, split, "strip"):
            self.strip(replace(place, column=start, size=size), window)

    def strip(self, strip: Strip, window: Any) -> None:
        """Write one strip: the sums of each vector of channels, then the results of all."""
        stmts, accumulator = self.ctx.stmts, self.accumulator
        results = stmts.local("results", (strip.size, strip.block.vectors * LANES), accumulator)
        with stmts.loop(strip.block.vectors, "v") as vector:
            begin = self.begin(strip, vector)
            sums = stmts.filled("sums", strip.size, dtypes.vector(accumulator, LANES), begin)
            self.add(strip, window, vector, sums)
            for pixel in range(strip.size):
                stmts.store(results, [pixel, vector * LANES], tb.load(sums, [pixel]))
        with stmts.loop(strip.size - strip.done, "px") as offset, stmts.loop(strip.block.width, "c", "vectorized") as c:
            px, channel = offset + strip.done, strip.channel(c)
            value = self.total(tb.load(results, [px, c]), channel)
            self.out.store(self.seen(strip.image, strip.row, strip.column + px, channel), value)

    def begin(self, strip: Strip, vector: Expr) -> Expr | int:
        """Return the initial value of the sums of a vector of channels."""
        del strip, vector
        return 0

    def total(self, value: Expr, channel: Expr) -> Expr:
        """Return the result of a channel from its sum."""
        if dtypes.is_integer(self.out.dtype):
            value = tb.cast(tb.intrinsic("within", value, tb.const(EXACT_LIMIT)), self.out.dtype)
        return value if self.start is None else value + tb.load(self.start, [channel])

    def panel(self, strip: Strip, vector: Expr) -> Expr:
        """Return the index of the packed weights of a vector of the block."""
        found: Expr = strip.number * strip.block.vectors + (vector + strip.block.first // LANES)
        return found

    def add(self, strip: Strip, window: Any, vector: Expr, sums: Buffer) -> None:
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
            for offset, uses in strip_columns(conv, strip.size).items():
                column = strip.column * conv.strides[1] + offset
                if window is None:
                    indices = self.seen(strip.image, line, column, strip.channel(vector * LANES))
                    element = tb.load(self.data, indices, lanes=LANES)
                else:
                    at = column * (strip.block.vectors * LANES) + vector * LANES
                    element = tb.load(window.buffer, [line, at], lanes=LANES)
                value = stmts.let("x", element)
                for pixel, kx in uses:
                    stmts.store(sums, [pixel], tb.load(sums, [pixel]) + value * taps[kx])


COMPACT_VECTORS = (2, 3, 4, 1)
"""Vectors of channels of a block, in order of preference."""
_FITTING = 4  # pixels


def is_compact(features: Features, conv: Conv, data: Buffer) -> bool:
    """Return whether to use small code for a depthwise convolution: for integers of static shape."""
    is_known = is_static((*conv.spatial, conv.filters)) and prod(conv.output) > 0
    return features.compact and dtypes.is_integer(data.dtype) and is_known


class CompactDepthwise(Depthwise):
    """Writes the loops of one depthwise convolution of integers of static shape with small code.

    As in `CompactConv`, all strips of a row have one size. If possible, the number of vectors is chosen so that all
    blocks have equally many channels.
    """

    def __init__(self, ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
        super().__init__(ctx, conv, data, weights, out)
        width, filters = self.conv.output[1], self.conv.filters
        self.vectors = min(COMPACT_VECTORS, key=lambda vectors: len(tiling.channel_blocks(filters, vectors)))
        self.pixels = min(range(1, min(self.pixels, width) + 1), key=self._cost)

    def _cost(self, pixels: int) -> tuple[int, int]:
        """Return the relative time of a row in strips of `pixels` pixels, and a tie-breaker."""
        taps, width = self.conv.kernel[1], self.conv.output[1]
        loads = (pixels - 1) * self.conv.strides[1] + taps
        missing = max(0, pixels - _FITTING)  # registers, for weights of three taps in addition to the sums
        return -(-width // pixels) * (pixels * taps + loads + missing), -pixels

    def row(self, place: Strip, window: Any) -> None:
        """Write the strips of a row; the last one skips pixels that the one before has computed."""
        width = self.conv.output[1]
        with tiling.covering_pieces(self.ctx, width, self.pixels, "strip") as piece:
            self.strip(replace(place, column=piece.start, size=piece.size, done=piece.done), window)


ROWS = 4  # bytes of a lane
BYTES = dtypes.limits("int8")  # range of a factor
_WORDS = LANES * ROWS  # bytes of a vector


class DepthwiseBytes(Depthwise):
    """Writes the loops of one depthwise convolution by products of four bytes.

    A lane of 32 bits belongs to a channel of an input column. Its bytes are the last four input rows at that column.
    For the next row, they shift down by one byte and the new row becomes the top byte. So a window of up to four rows
    needs one product of four bytes for each of its columns, and each input element is inserted into a lane once.
    """

    accumulator = "int32"

    def __init__(self, ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
        centered = weights.centered()
        bytes_of = Weights(np.clip(centered, *BYTES).astype(np.int8), weights.data_zero)
        how = arithmetic.choose(data.dtype, bytes_of, ctx.features)
        assert how is not None  # guaranteed by `_accepts`
        self.how = replace(how, weights=centered)
        self.largest = self.how.largest(out.bias)
        super().__init__(ctx, conv, data, weights, out)

    def packed(self, centered: Array) -> Array:
        """Return weights as (vectors of channels, kernel columns, bytes); the last row of a window is the top byte.

        For weights of 9 bits, the part that exceeds a byte is a second factor of the same data.
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
        """Return the initial value of the sums of each filter, or None for zero."""
        return self.how.start(self.out.bias)

    def window(self, block: PackedBlock) -> BytesWindow:
        """Return the lanes that the block reads."""
        return BytesWindow(self.ctx, self.conv, (self.data, self.seen), block.vectors * LANES, self.how.pad_value)

    def begin(self, strip: Strip, vector: Expr) -> Expr | int:
        """Return the start of each channel's sums."""
        return 0 if self.start is None else tb.load(self.start, [strip.channel(vector * LANES)], lanes=LANES)

    def total(self, value: Expr, channel: Expr) -> Expr:  # noqa: ARG002  (sums begin with what is a channel's own)
        """Return the result of a channel from its sum."""
        if self.largest is None or self.ctx.small:
            return value
        return tb.intrinsic("within", value, tb.const(self.largest))

    def add(self, strip: Strip, window: Any, vector: Expr, sums: Buffer) -> None:
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
        for offset, uses in strip_columns(self.conv, strip.size).items():
            at = window.place(strip.column * self.conv.strides[1] + offset, vector)
            value = stmts.let("x", tb.load(window.buffer, [at], lanes=_WORDS))
            for pixel, kx in uses:
                for factor in factors[kx]:
                    stmts.store(sums, [pixel], self.how.accumulate(tb.load(sums, [pixel]), value, factor))


class BytesWindow:
    """The last four input rows of some channels, packed into the bytes of lanes."""

    def __init__(self, ctx: Context, conv: Conv, source: Source, channels: int, pad_value: int) -> None:
        self.ctx, self.conv, self.source, self.channels, self.pad_value = ctx, conv, source, channels, pad_value
        self.columns = (conv.output[1] - 1) * conv.strides[1] + conv.extents[1]
        self.left = min(conv.padding[1][0], self.columns)
        self.buffer = ctx.scratch("window", (self.columns * channels * ROWS,), "uint8")

    def place(self, column: Expr, vector: Expr) -> Expr:
        """Return the index of the lanes of a vector of channels of a column."""
        return column * (self.channels * ROWS) + vector * _WORDS

    @contextmanager
    def output_rows(self, image: Expr, channels: Channels) -> Iterator[Expr]:
        """Open the loop over output rows, in which the lanes contain the input rows that each of them needs."""
        stmts, conv = self.ctx.stmts, self.conv
        fresh = min(conv.strides[0], conv.kernel[0])
        kept = conv.kernel[0] - fresh

        def push(count: int, name: str, row: Expr, start: int) -> None:
            with stmts.loop(count, name) as index:
                self._push(image, row * conv.strides[0] + (index + start) - conv.padding[0][0], channels)

        def fill(first: Expr) -> None:
            with stmts.loop(self.buffer.size, "i", "vectorized") as i:  # border columns keep this value
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
        """Push an input row into the lanes; a row outside the image consists of border values."""
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


def _accepts_bytes(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    if not ctx.features.pushes_bytes or not ctx.features.dot4 or len(conv.spatial) > 2:
        return False
    if data.dtype not in ("int8", "uint8") or out.dtype != "int32" or weights.runtime_tensor is not None:
        return False
    centered = weights.centered()
    if centered.dtype not in (np.int8, np.int16) or np.abs(centered).max(initial=0) > -2 * BYTES[0] - 2:
        return False  # uint8 weights less a zero point in uint8's range span two bytes
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
    if not dtypes.is_integer(data.dtype) or out.dtype != "int32":
        return False
    # the largest magnitude of a sum of quantized products; the zero point is subtracted later
    centered = np.abs(weights.centered().astype(np.int64))
    sums = centered.reshape(-1, centered.shape[-1]).sum(axis=0)
    return max(map(abs, dtypes.limits(data.dtype))) * int(sums.max(initial=0)) < EXACT_LIMIT


@template("depthwise", "vector", _accepts)
def depthwise(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a depthwise convolution over one or two dimensions, with any channel multiplier."""
    strips = CompactDepthwise if is_compact(ctx.features, conv, data) else Depthwise
    strips(ctx, conv, data, weights, out).emit()
