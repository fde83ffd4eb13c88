"""Convolutions and dense layers on targets that multiply pairs of 16-bit numbers.

Loops from outside in: image, tile of two pixels, block of filters, reduction. The inputs of a tile of bytes are widened
first, once for all filters (`dsp_patch`); weights stay bytes, two filters in a half (`dsp_weights`). For int16, two
neighbours already form a word; the even bytes of four weights are the first pair, the odd ones the next.

A word contains eight 4-bit weights. Masking leaves four of them in the high nibbles of its bytes, which are 16 times
the weight; shifting by four bits first leaves the other four. So the accumulator is exactly 16 times the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from math import prod
from typing import TypeAlias

import numpy as np

from mlfc.isa.dsp import weights as dsp_weights
from mlfc.isa.dsp.patch import Patch, Place, natural_order, repeat, signed_word, word_order
from mlfc.kernels.nibbles import sixteenfold
from mlfc.kernels.templates import Array, Conv, Frame, Weights, frame_of, rows_as_pixels, template
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

PIXELS = 2
PAIRS = 2
STEPS_AT_ONCE, STEPS_IN_SMALL_CODE = 8, 4
FILTERS = 2
_HIGH = -0x0F0F0F10  # the high nibbles of four bytes

# (pixel, index of a group of steps) -> the pixel's pairs at each step of the group
Reader: TypeAlias = Callable[[int, Expr], Sequence[Expr]]
PairReader: TypeAlias = Callable[[int, Expr], Expr]


def _accepts_conv(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    plain = len(conv.spatial) <= 2 and conv.groups == 1
    return plain and _accepts_dense(ctx, data, weights, out)


def _accepts_dense(_: Context, data: Buffer, weights: Weights, out: Output) -> bool:
    if data.dtype in dsp_weights.BYTES:
        return out.dtype == "int32" and dsp_weights.fits(weights)
    halves = data.dtype == "int16" and out.dtype in ("int32", "int64") and weights.data_zero == 0
    return halves and weights.values.dtype.kind in "iu" and weights.centered().dtype == np.int8


def _store(
    ctx: Context, out: Output, places: Sequence[Sequence[Expr]], index: Expr, totals: Callable[[int], Expr],
    last: Expr | None,
) -> None:  # fmt: skip
    """Write the stores of one filter; `last` is the condition for storing the last pixel."""
    for pixel, place in enumerate(places):
        total = totals(pixel)
        if last is None or pixel + 1 < len(places):
            out.store([*place, index], total)
            continue
        with ctx.stmts.when(last):
            out.store([*place, index], total)


class PairedSums:
    """Sums of blocks of filters over several pixels at once.

    `order` has shape (steps, 2): the reduction elements that each step multiplies. `group` steps are read at once.
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

        `last` is the condition for storing the last pixel.
        """
        stmts = self._ctx.stmts
        for weights, first, count, width in self._blocks:
            with stmts.loop(count, "block") as block:
                sums = self._sums(weights, block, len(places), read)
                for index in range(width):
                    filter_ = block * width + first + index
                    bias = stmts.let("start", tb.load(self._bias, [filter_]))
                    total = partial(self._total, sums, bias, index)
                    _store(self._ctx, self._out, places, filter_, total, last)

    def _total(self, sums: Buffer, bias: Expr, index: int, pixel: int) -> Expr:
        total = tb.load(sums, [index // 2, pixel, 0])
        if index % 2:
            total = (tb.load(sums, [index // 2, pixel, 1]) - total) >> 8
        total = bias + total
        return tb.intrinsic("within", total, tb.const(dsp_weights.NARROW)) if self._narrow else total

    def _sums(self, weights: Buffer, block: Expr, pixels: int, read: Reader) -> Buffer:
        stmts, pairs = self._ctx.stmts, weights.shape[2]
        sums = stmts.local("sums", (pairs, pixels, 2), "int32")
        for pair in range(pairs):
            for pixel in range(pixels):
                stmts.store(sums, [pair, pixel, 0], 0)
                stmts.store(sums, [pair, pixel, 1], 0)

        def add(place: list[int], value: Expr, weight: Expr) -> None:
            stmts.store(sums, place, tb.intrinsic("dot2", tb.load(sums, place), value, weight))

        def steps(index: Expr) -> None:
            with stmts.scope():
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


def _words(rows: Array, width: int) -> Array:
    """Return (blocks, words, width) int32: the four weights of a word as its bytes 0, 2, 1 and 3."""
    padded = np.pad(rows, ((0, -len(rows) % 4), (0, 0))).T.reshape(-1, width, -(-len(rows) // 4), 4)
    ordered = np.ascontiguousarray(padded[..., [0, 2, 1, 3]].transpose(0, 2, 1, 3))
    return ordered.view("<i4")[..., 0].astype(np.int32)


def _words_of_nibbles(rows: Array, order: Array, width: int) -> Array:
    """Return (blocks, words, width) int32; `order` (pairs, 2) has the elements of each pair, -1 for none."""
    pairs = np.pad(order, ((0, -len(order) % 4), (0, 0)), constant_values=-1)
    ordered = np.where(pairs[..., None] < 0, 0, rows.astype(np.int64)[pairs]) & 15  # (pairs, 2, filters)
    words = ordered.reshape(-1, 4, 2, rows.shape[1])
    # pairs 0 and 1 are the low nibbles of the even and of the odd bytes, 2 and 3 the high ones
    shifts = np.array([[0, 16], [8, 24], [4, 20], [12, 28]])
    packed = (words << shifts[None, :, :, None]).sum(axis=(1, 2)).astype(np.uint32).view(np.int32)
    return np.ascontiguousarray(packed.reshape(len(packed), -1, width).transpose(1, 0, 2))


class _WordSums:
    """Sums of blocks of filters over several pixels at once, each with an initial value.

    `order` has the elements of each pair for weights of four bits, eight per word; None for four bytes per word.
    """

    def __init__(self, ctx: Context, weights: Weights, order: Array | None, out: Output, start: Array | None) -> None:
        self._ctx, self._out, self._in_nibbles = ctx, out, order is not None
        rows = weights.centered().reshape(-1, weights.values.shape[-1])
        self._pairs = -(-len(rows) // 2) if order is None else len(order)
        self._start = None if start is None else ctx.constant("bias", start.astype(dtypes.to_numpy(out.dtype)))
        full = rows.shape[1] - rows.shape[1] % FILTERS
        self._blocks: list[tuple[Buffer, int, int]] = []  # weights, first filter, filters of a block
        for first, last, width in ((0, full, FILTERS), (full, rows.shape[1], rows.shape[1] - full)):
            if last > first:
                own = rows[:, first:last]
                packed = _words(own, width) if order is None else _words_of_nibbles(own, order, width)
                self._blocks.append((ctx.constant("weights", packed), first, width))

    def emit(self, places: Sequence[Sequence[Expr]], read: PairReader, last: Expr | None = None) -> None:
        """Write the sums of all filters for the pixels at `places`; `last` is the condition for storing the last."""
        stmts = self._ctx.stmts
        for weights, first, width in self._blocks:
            with stmts.loop(weights.shape[0], "block") as block:
                sums = self._sums(weights, block, len(places), read)
                for lane in range(width):
                    index = block * width + (first + lane)
                    start = tb.const(0, self._out.dtype)
                    if self._start is not None:
                        start = stmts.let("start", tb.load(self._start, [index]))
                    _store(self._ctx, self._out, places, index, partial(self._total, sums, start, lane), last)

    def _total(self, sums: Buffer, start: Expr, lane: int, pixel: int) -> Expr:
        total = tb.load(sums, [lane, pixel])
        return start + (total >> 4 if self._in_nibbles else total)

    def _sums(self, weights: Buffer, block: Expr, pixels: int, read: PairReader) -> Buffer:
        stmts, width = self._ctx.stmts, weights.shape[2]
        sums = stmts.local("sums", (width, pixels), self._out.dtype)
        for lane in range(width):
            for pixel in range(pixels):
                stmts.store(sums, [lane, pixel], 0)
        dot = "dot2" if self._out.dtype == "int32" else "dot2_wide"
        label, every, most = ("eight", 4, 2) if self._in_nibbles else ("four", 2, 4)

        def word(index: Expr, pairs: int = every) -> None:
            with stmts.scope():
                held = [stmts.let(label, tb.load(weights, [block, index, lane])) for lane in range(width)]
                for half in range(0, pairs, 2):
                    fours = held
                    if self._in_nibbles:
                        shifted = (each if half else tb.intrinsic("nibbles_up", each) for each in held)
                        fours = [stmts.let("four", each & _HIGH) for each in shifted]
                    for pair, name in zip(range(half, min(half + 2, pairs)), ("even_bytes", "odd_bytes"), strict=False):
                        values = [stmts.let("x", read(pixel, index * every + pair)) for pixel in range(pixels)]
                        for lane, four in enumerate(fours):
                            both = stmts.let("both", tb.intrinsic(name, four))
                            for pixel, value in enumerate(values):
                                total = tb.intrinsic(dot, tb.load(sums, [lane, pixel]), value, both)
                                stmts.store(sums, [lane, pixel], total)

        repeat(self._ctx, self._pairs // every, most // 2 if self._ctx.small else most, "k", word)
        if self._pairs % every:
            word(tb.const(self._pairs // every), self._pairs % every)
        return sums


class _PixelTiles:
    """The loops of a convolution over tiles of two pixels."""

    def __init__(self, ctx: Context, conv: Conv, source: tuple[Buffer, Frame], weights: Weights, out: Output) -> None:
        self.ctx, self.conv, (self.data, self.seen), self.count = ctx, conv, source, prod(conv.output)
        self.is_half, self.size = self.data.dtype == "int16", min(PIXELS, self.count)
        # for kernels with one tap, windows of int16 are in the data itself
        in_data = self.is_half and prod(conv.kernel) == 1 and not conv.padded and conv.channels % 2 == 0
        self.patch = None if in_data else Patch(ctx, conv, source, self.size, weights.data_zero)
        self.spots: dict[int, Place] = {}
        order = natural_order(conv.channels) if self.patch is None else self.patch.order
        in_nibbles = sixteenfold(weights, 1 << 15 if self.is_half else dsp_weights.LARGEST_INPUT, out)
        if self.is_half or in_nibbles:
            start = out.bias if self.is_half else dsp_weights.start(weights, out.bias)[0]
            words = _WordSums(ctx, weights, order if in_nibbles else None, out, start)
            self.sum = partial(words.emit, read=self.pair)
        else:
            paired = PairedSums(ctx, weights, order, out)
            self.sum = partial(paired.emit, read=lambda pixel, step: [self.pair(pixel, step)])

    def pair(self, pixel: int, number: Expr) -> Expr:
        """Return two neighbours in the window of a pixel."""
        if self.patch is not None:
            return self.patch.word(pixel, number)
        (image, y, x), strides = self.spots[pixel], self.conv.strides
        load = tb.load(self.data, self.seen(image, y * strides[0], x * strides[1], number * 2), lanes=2)
        return tb.intrinsic("word", load, dtype="int32")

    def _at(self, number: Expr) -> tuple[Expr, Expr]:
        width, let = self.conv.output[1], self.ctx.stmts.let
        return let("y", number // width), let("x", number % width)

    def emit(self) -> None:
        """Write all loops."""
        stmts, (full, rest) = self.ctx.stmts, divmod(self.count, self.size)
        with stmts.loop(self.conv.batch, "image") as image:
            if self.ctx.small and self.size == PIXELS:
                with stmts.loop(full + rest, "tile") as index:
                    self._small_tile(image, index * PIXELS)
                return
            with stmts.loop(full, "tile") as index:
                self._tile(image, index * self.size, self.size)
            if rest:
                with nullcontext() if self.patch is None or self.is_half else self.patch.alone():
                    self._tile(image, tb.const(full * self.size), rest)

    def _tile(self, image: Expr, first: Expr, pixels: int) -> None:
        places = []
        if self.patch is not None and not self.is_half:
            self.patch.refill()
        for pixel in range(pixels):
            y, x = self._at(self.ctx.stmts.let("pixel", first + pixel))
            self.spots[pixel] = image, y, x
            if self.patch is not None:
                self.patch.fill(pixel, (image, y, x))
            places.append(self.seen(image, y, x, tb.const(0))[:-1])
        self.sum(places)

    def _small_tile(self, image: Expr, first: Expr) -> None:
        """Write a tile with small code: an odd last pixel is computed twice and stored once."""
        let, spots = self.ctx.stmts.let, []
        numbers = [tb.minimum(first + member, self.count - 1) for member in range(PIXELS)]
        if self.is_half:
            numbers = [let("pixel", number) for number in numbers]
            spots = [self._at(number) for number in numbers]
        self.spots.update({pixel: (image, *spot) for pixel, spot in enumerate(spots)})
        if self.patch is not None:
            with self.ctx.stmts.loop(PIXELS, "member") as member:
                number = tb.minimum(first + member, self.count - 1)
                self.patch.fill(member, (image, *self._at(number if self.is_half else let("pixel", number))))
        if not self.is_half:
            spots = [self._at(let("pixel", number)) for number in (first, numbers[1])]
        places = [self.seen(image, *spot, tb.const(0))[:-1] for spot in spots]
        self.sum(places, last=tb.binary("lt", first + 1, self.count))


@template("convolution", "dsp", _accepts_conv)
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over one or two dimensions."""
    source = data, frame_of(len(conv.spatial))
    _PixelTiles(ctx, conv.planar(), source, dsp_weights.for_signed(data.dtype, weights), out).emit()


@template("dense", "dsp", _accepts_dense)
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns)."""
    weights = dsp_weights.for_signed(data.dtype, weights)
    conv, seen = rows_as_pixels(data.shape, out.shape[-1])
    in_fours = data.dtype != "int16" and conv.channels % 4 == 0
    if in_fours and conv.spatial == (1, 1) and not sixteenfold(weights, dsp_weights.LARGEST_INPUT, out):
        _row(ctx, data, weights, out)
    else:
        _PixelTiles(ctx, conv, (data, seen), weights, out).emit()


def _row(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write one row of data times the weights; each block of filters widens each word of the row again."""
    leading = [tb.const(0)] * (len(data.shape) - 1)
    sums = PairedSums(ctx, weights, word_order(data.shape[-1]), out, group=2)

    def read(_: int, group: Expr) -> Sequence[Expr]:
        loaded = tb.load(data, [*leading, group * 4], lanes=4)
        four = ctx.stmts.let("four", signed_word(loaded))
        return tb.intrinsic("even_bytes", four), tb.intrinsic("odd_bytes", four)

    sums.emit([leading], read)
