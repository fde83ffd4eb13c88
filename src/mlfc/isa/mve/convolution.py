"""Convolutions and dense layers of int8 by ``dots``, and depthwise convolutions by ``taps``.

``dots`` multiply rows of bytes by the weights of four filters at a time; two pixels share the loads of the weights. A
pixel's window is one run of bytes: in the input itself for 1x1 kernels, otherwise in a `StripCopy`. ``taps`` process
sixteen channels at a time, over a strip of only these, which fits on the stack for any layer size. The zero point of
the data is folded into the initial sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from mlfc.kernels.folding import serial_loops
from mlfc.kernels.nibbles import sixteenfold
from mlfc.kernels.staging import choose, inside
from mlfc.kernels.templates import Array, Conv, Frame, Weights, frame_of, template
from mlfc.tir import block_intrinsics
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

STACK_BYTES, SCRATCH_BYTES = 640, 2048
"""Maximum bytes of a strip on the stack, and in the workspace if the stack has space for only few pixels."""

FEW_PIXELS, MOST_PIXELS = 8, 16
WIDTH = block_intrinsics.CHANNELS

MOST_FILTERS = 64
"""Filters whose sums are kept before they are stored: 512 bytes of stack for two pixels."""

Place = Sequence[Expr]


def blocks(ctx: Context, extent: int, width: int, name: str) -> Iterator[tuple[Expr, int]]:
    """Open the loop over whole blocks of an extent, then the last one; yield the index of a block and its width."""
    if extent >= width:
        with ctx.stmts.loop(extent // width, name, "rolled") as block:
            yield block, width
    if extent % width:
        yield tb.const(extent // width), extent % width


def start_of(out: Output, weights: Array, zero: int, filters: int) -> Array:
    """Return the initial value of each filter's sum for weights (..., filters), padded with zeros."""
    count = weights.shape[-1]
    total = np.zeros(filters, np.int64)
    if out.bias is not None:
        total[:count] = out.bias
    total[:count] -= zero * weights.reshape(-1, count).sum(axis=0, dtype=np.int64)
    return total.astype(np.int32)


def serves(data: Buffer, weights: Weights, out: Output) -> bool:
    """Return whether the instructions support these operands and this result."""
    return data.dtype == "int8" and weights.centered().dtype == np.int8 and out.dtype == "int32"


class StripCopy:
    """The copy of the input for neighbouring output pixels, whose windows overlap in whole columns.

    Each column is copied once for all of them. Borders are the zero point, so readers need no bounds checks.

    Parameters
    ----------
    conv : Conv
        Two spatial dimensions, no dilation.
    channels : int
        Input channels of each pixel in the strip.
    pitch : int
        Bytes from one pixel of a column to the next.
    zero : int
        The value on the borders.
    slack : int
        Bytes after the last window that may be read.
    """

    def __init__(
        self, ctx: Context, conv: Conv, source: tuple[Buffer, Frame], channels: int, pitch: int, zero: int,
        slack: int = 0,
    ) -> None:  # fmt: skip
        self.ctx, self.conv, self.channels, self.pitch, self.zero = ctx, conv, channels, pitch, zero
        self.data, self.seen = source
        self.column = conv.kernel[0] * pitch
        # if windows do not touch, the columns between them are skipped
        self.step = min(conv.strides[1], conv.kernel[1])
        on_stack = self._fitting(STACK_BYTES - slack)
        in_scratch = self._fitting(SCRATCH_BYTES - slack)
        small = on_stack >= min(in_scratch, FEW_PIXELS)
        self.pixels = on_stack if small else in_scratch
        self.columns = (self.pixels - 1) * self.step + conv.kernel[1]
        size = self.columns * self.column + slack
        self.buffer = (ctx.stmts.local if size <= STACK_BYTES else ctx.scratch)("strip", (size,), "int8")

    def _fitting(self, limit: int) -> int:
        """Return the number of pixels of a strip within `limit` bytes, at least one: a divisor of the row."""
        width, kernel = self.conv.output[1], self.conv.kernel[1]
        most = min((limit // self.column - kernel) // self.step + 1, MOST_PIXELS)
        return max((count for count in range(1, min(width, most) + 1) if width % count == 0), default=1)

    def window(self, pixel: Expr | int) -> Expr:
        """Return the start of the window of a pixel of the strip."""
        return tb.as_expr(pixel) * (self.step * self.column)

    def fill(self, image: Expr, row: Expr, first: Expr, channel: Expr) -> None:
        """Write the loops that copy the windows of output pixels of `row`, starting at pixel `first` and `channel`."""
        stmts, conv = self.ctx.stmts, self.conv
        with stmts.loop(conv.kernel[0], "ky", "rolled") as ky:
            y = stmts.let("y", row * conv.strides[0] + ky - conv.padding[0][0])
            if self.step == conv.strides[1]:
                base = stmts.let("base", first * conv.strides[1] - conv.padding[1][0])
                with stmts.loop(self.columns, "column", "rolled") as column:
                    self._copy(ky, column, (image, y, base + column), channel)
                return
            with stmts.loop(self.pixels, "pixel", "rolled") as pixel, stmts.loop(conv.kernel[1], "kx") as kx:
                x = (first + pixel) * conv.strides[1] + kx - conv.padding[1][0]
                self._copy(ky, pixel * conv.kernel[1] + kx, (image, y, x), channel)

    def _copy(self, ky: Expr, column: Expr, place: tuple[Expr, Expr, Expr], channel: Expr) -> None:
        conv, (image, y, x) = self.conv, place
        to = column * self.column + ky * self.pitch
        places = zip((y, x), conv.spatial, conv.padding, strict=True)
        valid = tb.land(*(check for each in places for check in inside(*each)))
        dtype = f"int8x{self.channels}" if self.channels > 1 else "int8"
        load = tb.load(self.data, self.seen(image, y, x, channel), lanes=self.channels)

        def run(value: Expr) -> None:
            self.ctx.stmts.store(self.buffer, [to], value if self.channels == 1 else tb.intrinsic("run", value))

        choose(self.ctx, valid, lambda: run(load), lambda: run(tb.const(self.zero, dtype)))


class Filters:
    """Sums of all filters for one or two rows of bytes.

    The reduction of `weights` (reduction, filters) has the order of the rows, which are padded to half a chunk.
    """

    def __init__(self, ctx: Context, weights: Array, zero: int, out: Output) -> None:
        self.ctx, self.out = ctx, out
        rows = np.pad(weights, ((0, -len(weights) % block_intrinsics.HALF_CHUNK), (0, 0)))
        self.size, self.filters = rows.shape
        whole = self.filters + -self.filters % block_intrinsics.FILTERS
        self.weights = ctx.constant("weights", block_intrinsics.pack_weights(np.ascontiguousarray(rows.T)).reshape(-1))
        self.start = ctx.constant("start", start_of(out, rows, zero, whole))

    def emit(self, rows: Sequence[tuple[Buffer, Place]], places: Sequence[Place]) -> None:
        """Write the sums of the rows that start at the given places of buffers, and their stores at `places`."""
        stmts = self.ctx.stmts
        whole = self.filters // block_intrinsics.FILTERS
        most = MOST_FILTERS // block_intrinsics.FILTERS
        count = max(n for n in range(1, min(most, max(whole, 1)) + 1) if whole % n == 0)
        if whole:
            with stmts.loop(whole // count, "block", "rolled") as block:
                self._block(rows, places, block * count, count, block_intrinsics.FILTERS)
        if self.filters % block_intrinsics.FILTERS:
            self._block(rows, places, tb.const(whole), 1, self.filters % block_intrinsics.FILTERS)

    def _block(
        self, rows: Sequence[tuple[Buffer, Place]], places: Sequence[Place], first: Expr, count: int, width: int
    ) -> None:
        """Write `count` groups of four filters from group `first` on, `width` filters of each of which are stored."""
        stmts = self.ctx.stmts
        sums = stmts.local("sums", (count * len(rows) * block_intrinsics.FILTERS,), "int32")
        flat = count * block_intrinsics.FILTERS
        operands = [
            tb.load(self.start, [first * block_intrinsics.FILTERS], lanes=flat),
            *(tb.load(buffer, place, lanes=self.size) for buffer, place in rows),
            tb.load(self.weights, [first * (block_intrinsics.FILTERS * self.size)], lanes=flat * self.size),
        ]
        total = tb.intrinsic(f"dots{len(rows)}", *operands, dtype=f"int32x{sums.size}")
        stmts.store(sums, [0], total)
        with stmts.loop(count, "four", "rolled") as four:
            for index, place in enumerate(places):
                with stmts.loop(width, "lane", "vectorized") as lane:
                    value = tb.load(sums, [(four * len(rows) + index) * block_intrinsics.FILTERS + lane])
                    self.out.store([*place, (first + four) * block_intrinsics.FILTERS + lane], value)


def _accepts_conv(_: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    plain = conv.groups == 1 and len(conv.spatial) <= 2 and set(conv.dilation) == {1}
    return plain and _accepts_dense(_, data, weights, out)


@template("convolution", "mve", _accepts_conv)
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over one or two dimensions."""
    planar = conv.planar()
    in_place = planar.kernel == (1, 1) and not planar.padded and conv.channels % block_intrinsics.HALF_CHUNK == 0
    (_in_place if in_place else _by_strips)(ctx, conv, data, weights, out)


def _in_place(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution of single pixels in pairs: neighbours in a row, or in a column if fewer remain."""
    seen, conv = frame_of(len(conv.spatial)), conv.planar()
    centered = weights.centered().reshape(conv.channels, conv.filters)
    sums = Filters(ctx, centered, weights.data_zero, out)
    (height, width), (down, across) = conv.output, conv.strides
    zero = tb.const(0)

    def pixels(image: Expr, places: Sequence[tuple[Expr, Expr]]) -> None:
        rows = [(data, seen(image, y * down, x * across, zero)) for y, x in places]
        sums.emit(rows, [tuple(seen(image, y, x, zero))[:-1] for y, x in places])

    above, stmts = width % 2 == 1 and (height % 2 == 0 or height > width), ctx.stmts
    with stmts.loop(conv.batch, "image", "rolled") as image:
        if above:
            for y, count in blocks(ctx, height, 2, "oy"):
                with stmts.loop(width, "ox", "rolled") as x:
                    pixels(image, [(y * 2 + row, x) for row in range(count)])
            return
        with stmts.loop(height, "oy", "rolled") as y:
            for x, count in blocks(ctx, width, 2, "ox"):
                pixels(image, [(y, x * 2 + column) for column in range(count)])


def _by_strips(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution whose windows are copied into strips."""
    stmts, seen, conv = ctx.stmts, frame_of(len(conv.spatial)), conv.planar()
    centered = weights.centered().reshape(*conv.kernel, conv.channels, conv.filters)
    columns = np.swapaxes(centered, 0, 1).reshape(-1, conv.filters)  # a strip has the order of columns
    sums, slack = Filters(ctx, columns, weights.data_zero, out), -len(columns) % block_intrinsics.HALF_CHUNK
    strip = StripCopy(ctx, conv, (data, seen), conv.channels, conv.channels, weights.data_zero, slack)
    height, width = conv.output

    def pixels(image: Expr, y: Expr, first: Expr, offsets: Sequence[Expr]) -> None:
        rows = [(strip.buffer, [strip.window(offset)]) for offset in offsets]
        sums.emit(rows, [tuple(seen(image, y, first + offset, tb.const(0)))[:-1] for offset in offsets])

    with stmts.loop(conv.batch, "image", "rolled") as image, stmts.loop(height, "oy", "rolled") as y:
        with stmts.loop(width // strip.pixels, "strip", "rolled") as number:
            first = stmts.let("first", number * strip.pixels)
            strip.fill(image, y, first, tb.const(0))
            for pair, count in blocks(ctx, strip.pixels, 2, "pair"):
                pixels(image, y, first, [pair * 2 + offset for offset in range(count)])


def _accepts_dense(_: Context, data: Buffer, weights: Weights, out: Output) -> bool:
    # weights of four bits have a separate form
    return serves(data, weights, out) and data.shape[-1] > 0 and not sixteenfold(weights, 1 << 7, out)


@template("dense", "mve", _accepts_dense)
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns)."""
    stmts, centered = ctx.stmts, weights.centered()
    reduction, sums = len(centered), Filters(ctx, centered, weights.data_zero, out)
    copy = ctx.scratch("row", (sums.size,), "int8") if sums.size > reduction else None
    with serial_loops(ctx, data.shape[:-1], "row") as place:
        source: tuple[Buffer, Place] = (data, [*place, tb.const(0)])
        if copy is not None:
            load = tb.load(data, source[1], lanes=reduction)
            stmts.store(copy, [0], load if reduction == 1 else tb.intrinsic("run", load))
            source = (copy, [tb.const(0)])
        sums.emit([source], [place])


def _accepts_depthwise(_: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    plain = conv.filters == conv.channels and len(conv.spatial) <= 2 and set(conv.dilation) == {1}
    return plain and serves(data, weights, out)


@template("depthwise", "mve", _accepts_depthwise)
def depthwise(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a depthwise convolution over one or two dimensions, one filter per channel."""
    stmts, seen, conv, centered = ctx.stmts, frame_of(len(conv.spatial)), conv.planar(), weights.centered()
    taps, count = prod(conv.kernel), -(-conv.channels // WIDTH)
    # (blocks, taps by column, channels of a block)
    by_column = centered.reshape(*conv.kernel, conv.channels).swapaxes(0, 1).reshape(taps, conv.channels)
    padded = np.pad(by_column, ((0, 0), (0, count * WIDTH - conv.channels)))
    packed = padded.reshape(taps, count, WIDTH).swapaxes(0, 1).reshape(count, taps * WIDTH)
    factors = ctx.constant("weights", np.ascontiguousarray(packed))
    intrinsic = "taps" if centered.min(initial=0) == np.iinfo(np.int8).min else "paired_taps"
    starts = ctx.constant("start", start_of(out, centered, weights.data_zero, count * WIDTH))

    def pixels(image: Expr, block: Expr, width: int) -> None:
        """Write all pixels of a block of `width` channels."""
        strip = StripCopy(ctx, conv, (data, seen), width, WIDTH, weights.data_zero)
        sums = stmts.local("sums", (WIDTH,), "int32")
        with stmts.loop(conv.output[0], "oy", "rolled") as y:
            with stmts.loop(conv.output[1] // strip.pixels, "strip", "rolled") as number:
                first = stmts.let("first", number * strip.pixels)
                strip.fill(image, y, first, block * WIDTH)
                with stmts.loop(strip.pixels, "pixel", "rolled") as pixel:
                    start = tb.load(starts, [block * WIDTH], lanes=WIDTH)
                    window = tb.load(strip.buffer, [strip.window(pixel)], lanes=taps * WIDTH)
                    factor = tb.load(factors, [block, 0], lanes=taps * WIDTH)
                    stmts.store(sums, [0], tb.intrinsic(intrinsic, start, window, factor, dtype=f"int32x{WIDTH}"))
                    with stmts.loop(width, "lane", "vectorized") as lane:
                        place = seen(image, y, first + pixel, block * WIDTH + lane)
                        out.store(place, tb.load(sums, [lane]))

    with stmts.loop(conv.batch, "image", "rolled") as image:
        for block, width in blocks(ctx, conv.channels, WIDTH, "block"):
            pixels(image, block, width)
