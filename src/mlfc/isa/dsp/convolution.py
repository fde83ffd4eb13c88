"""Convolutions and dense layers of bytes on targets that multiply pairs of 16-bit numbers.

Loops from outside in: image, tile of two pixels, block of four filters, reduction. The inputs of a tile are widened
first, once for all filters (`dsp_patch`); weights stay bytes, two filters in a half (`dsp_weights`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from mlfc.isa.dsp import weights as dsp_weights
from mlfc.isa.dsp.nibbles import NibbleSums
from mlfc.isa.dsp.patch import Patch, repeat, signed_word, word_order
from mlfc.kernels.geometry import Conv, Frame, frame_of, rows_as_pixels
from mlfc.kernels.nibbles import sixteenfold
from mlfc.kernels.templates import Array, Weights, template
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

PIXELS = 2
PAIRS = 2
STEPS_AT_ONCE, STEPS_IN_SMALL_CODE = 8, 4

# (pixel, number of a group of steps) -> the pixel's pairs at each step of the group
Reader: TypeAlias = Callable[[int, Expr], Sequence[Expr]]


def _accepts_conv(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    plain = len(conv.spatial) <= 2 and conv.groups == 1
    return plain and _accepts_dense(ctx, data, weights, out)


def _accepts_dense(_: Context, data: Buffer, weights: Weights, out: Output) -> bool:
    return data.dtype in dsp_weights.BYTES and out.dtype == "int32" and dsp_weights.fits(weights)


def _in_nibbles(weights: Weights, out: Output) -> bool:
    return sixteenfold(weights, dsp_weights.LARGEST_INPUT, out)


class PairedSums:
    """Sums of blocks of filters over a few pixels at once.

    `order` has shape (steps, 2): elements of the reduction that each step multiplies. `group` steps are read at once.
    """

    def __init__(self, ctx: Context, weights: Weights, order: Array, out: Output, group: int = 1) -> None:
        self._ctx, self._out, self._group = ctx, out, group
        rows = weights.centered().reshape(-1, weights.values.shape[-1])
        filters = rows.shape[1]
        self._full = filters // (2 * PAIRS)
        first, rest = self._full * 2 * PAIRS, filters % (2 * PAIRS)
        bias, self._narrow = dsp_weights.start(weights, out.bias)
        self._bias = ctx.constant("bias", bias)
        self._steps = len(order)
        self._blocks: list[tuple[Buffer, int, int, int]] = []  # weights, first filter, blocks, filters of a block
        if self._full:
            packed = dsp_weights.pack(rows[:, :first], order, PAIRS)
            self._blocks.append((ctx.constant("weights", packed), 0, self._full, 2 * PAIRS))
        if rest:
            packed = dsp_weights.pack(rows[:, first:], order, -(-rest // 2))
            self._blocks.append((ctx.constant("weights", packed), first, 1, rest))

    def emit(self, places: Sequence[Sequence[Expr]], read: Reader, last: Expr | None = None) -> None:
        """Write the sums of all filters for the pixels at `places` of the output.

        `last` is whether the last pixel is one that is to be stored.
        """
        for weights, first, count, width in self._blocks:
            with self._ctx.stmts.loop(count, "block") as block:
                panel = (weights, block)
                sums = self._sums(panel, len(places), read)
                self._store(sums, places, block * width + first, width, last)

    def _sums(self, panel: tuple[Buffer, Expr], pixels: int, read: Reader) -> Buffer:
        stmts, (weights, block) = self._ctx.stmts, panel
        pairs = weights.shape[2]
        sums = stmts.local("sums", (pairs, pixels, 2), "int32")
        for pair in range(pairs):
            for pixel in range(pixels):
                stmts.store(sums, [pair, pixel, 0], 0)
                stmts.store(sums, [pair, pixel, 1], 0)

        def add(place: list[int], value: Expr, weight: Expr) -> None:
            stmts.store(sums, place, tb.intrinsic("dot2", tb.load(sums, place), value, weight))

        def steps(index: Expr) -> None:
            with stmts.scope():
                some(index)

        def some(index: Expr) -> None:
            groups = [[stmts.let("x", value) for value in read(pixel, index)] for pixel in range(pixels)]
            for offset, values in enumerate(zip(*groups, strict=True)):
                for pair in range(pairs):
                    both = stmts.let("both", tb.load(weights, [block, index * self._group + offset, pair]))
                    low = stmts.let("low", tb.intrinsic("even_bytes", both))
                    for pixel, value in enumerate(values):
                        add([pair, pixel, 0], value, low)
                        add([pair, pixel, 1], value, both)

        usual = STEPS_IN_SMALL_CODE if self._ctx.small else STEPS_AT_ONCE
        most = int(str(self._ctx.choose("unroll", usual, lambda: [usual, *({2, 4, 8, 16} - {usual})])))
        repeat(self._ctx, self._steps // self._group, most // self._group, "k", steps)
        return sums

    def _store(
        self, sums: Buffer, places: Sequence[Sequence[Expr]], first: Expr, width: int, last: Expr | None
    ) -> None:
        stmts = self._ctx.stmts
        for index in range(width):
            bias = stmts.let("start", tb.load(self._bias, [first + index]))
            for pixel, place in enumerate(places):
                total = tb.load(sums, [index // 2, pixel, 0])
                if index % 2:
                    total = (tb.load(sums, [index // 2, pixel, 1]) - total) >> 8
                total = bias + total
                if self._narrow:
                    total = tb.intrinsic("within", total, tb.const(dsp_weights.NARROW))
                if last is None or pixel + 1 < len(places):
                    self._out.store([*place, first + index], total)
                    continue
                with stmts.when(last):
                    self._out.store([*place, first + index], total)


@template("convolution", "dsp", _accepts_conv)
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over one or two dimensions."""
    seen = frame_of(len(conv.spatial))
    _convolution(ctx, conv.planar(), (data, seen), dsp_weights.for_signed(data.dtype, weights), out)


@template("dense", "dsp", _accepts_dense)
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns)."""
    weights = dsp_weights.for_signed(data.dtype, weights)
    conv, seen = rows_as_pixels(data.shape, out.shape[-1])
    if conv.spatial == (1, 1) and conv.channels % 4 == 0 and not _in_nibbles(weights, out):
        _row(ctx, data, weights, out)
    else:
        _convolution(ctx, conv, (data, seen), weights, out)


def _convolution(ctx: Context, conv: Conv, source: tuple[Buffer, Frame], weights: Weights, out: Output) -> None:
    stmts, seen = ctx.stmts, source[1]
    height, width = conv.output
    size = min(PIXELS, height * width)
    patch = Patch(ctx, conv, source, size, weights.data_zero)
    if _in_nibbles(weights, out):
        nibbles = NibbleSums(ctx, weights, patch.order, out, dsp_weights.start(weights, out.bias)[0])

        def emit(places: Sequence[Sequence[Expr]], last: Expr | None = None) -> None:
            nibbles.emit(places, patch.word, last)

    else:
        paired = PairedSums(ctx, weights, patch.order, out)

        def emit(places: Sequence[Sequence[Expr]], last: Expr | None = None) -> None:
            paired.emit(places, lambda pixel, step: [patch.word(pixel, step)], last)

    def at(value: Expr) -> tuple[Expr, Expr]:
        number = stmts.let("pixel", value)
        return stmts.let("y", number // width), stmts.let("x", number % width)

    def tile(image: Expr, first: Expr, pixels: int) -> None:
        places = []
        patch.refill()
        for pixel in range(pixels):
            y, x = at(first + pixel)
            patch.fill(pixel, (image, y, x))
            places.append(seen(image, y, x, tb.const(0))[:-1])
        emit(places)

    def pair(image: Expr, first: Expr, count: int) -> None:
        """Write a tile in few bytes: an odd last pixel is computed twice and stored once."""
        second = tb.minimum(first + 1, count - 1)
        with stmts.loop(PIXELS, "member") as member:
            patch.fill(member, (image, *at(tb.minimum(first + member, count - 1))))
        places = [seen(image, *at(number), tb.const(0))[:-1] for number in (first, second)]
        emit(places, tb.binary("lt", first + 1, count))

    count = height * width
    full, rest = divmod(count, size)
    with stmts.loop(conv.batch, "image") as image:
        if ctx.small and size == PIXELS:
            with stmts.loop(full + rest, "tile") as index:
                pair(image, index * PIXELS, count)
            return
        with stmts.loop(full, "tile") as index:
            tile(image, index * size, size)
        if rest:
            with patch.alone():
                tile(image, tb.const(full * size), rest)


def _row(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write one row of data times the weights; each word of the row is widened for every block of filters anew."""
    leading = [tb.const(0)] * (len(data.shape) - 1)
    sums = PairedSums(ctx, weights, word_order(data.shape[-1]), out, group=2)

    def read(_: int, group: Expr) -> Sequence[Expr]:
        loaded = tb.load(data, [*leading, group * 4], lanes=4)
        four = ctx.stmts.let("four", signed_word(loaded))
        return tb.intrinsic("even_bytes", four), tb.intrinsic("odd_bytes", four)

    sums.emit([leading], read)
