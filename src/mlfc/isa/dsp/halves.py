"""Convolutions and dense layers of int16 on targets that multiply pairs of 16-bit numbers.

Two neighbours of the data are a word as they are; four weights of one filter are another one, whose even bytes are the
first pair and whose odd bytes the next. Sums that fit have 32 bits, others 64, by an instruction of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from mlfc.isa.dsp.nibbles import NibbleSums
from mlfc.isa.dsp.patch import Patch, repeat
from mlfc.kernels.geometry import Conv, Frame, frame_of, rows_as_pixels
from mlfc.kernels.nibbles import sixteenfold
from mlfc.kernels.templates import Array, Weights, template
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

PIXELS, FILTERS = 2, 2
WORDS_AT_ONCE, WORDS_IN_SMALL_CODE = 4, 2

# (pixel, pair) -> the two neighbours that the pixel has there
Reader: TypeAlias = Callable[[int, Expr], Expr]


def _accepts_conv(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    plain = len(conv.spatial) <= 2 and conv.groups == 1
    return plain and _accepts_dense(ctx, data, weights, out)


def _accepts_dense(_: Context, data: Buffer, weights: Weights, out: Output) -> bool:
    halves = data.dtype == "int16" and out.dtype in ("int32", "int64") and weights.data_zero == 0
    return halves and weights.values.dtype.kind in "iu" and weights.centered().dtype == np.int8


def _packed(rows: Array, width: int) -> Array:
    """Return (blocks, words, width) int32: the four weights of a word as its bytes 0, 2, 1 and 3."""
    padded = np.pad(rows, ((0, -len(rows) % 4), (0, 0))).T.reshape(-1, width, -(-len(rows) // 4), 4)
    ordered = np.ascontiguousarray(padded[..., [0, 2, 1, 3]].transpose(0, 2, 1, 3))
    return ordered.view("<i4")[..., 0].astype(np.int32)


class HalfSums:
    """Sums of blocks of filters over a few pixels at once."""

    def __init__(self, ctx: Context, weights: Weights, out: Output) -> None:
        self._ctx, self._out, self._dtype = ctx, out, out.dtype
        rows = weights.centered().reshape(-1, weights.values.shape[-1])
        self._pairs, filters = -(-len(rows) // 2), rows.shape[1]
        bias = out.bias
        self._bias = None if bias is None else ctx.constant("bias", bias.astype(dtypes.to_numpy(out.dtype)))
        full = filters - filters % FILTERS
        self._blocks: list[tuple[Buffer, int, int]] = []  # weights, first filter, filters of a block
        for first, last, width in ((0, full, FILTERS), (full, filters, filters - full)):
            if last > first:
                self._blocks.append((ctx.constant("weights", _packed(rows[:, first:last], width)), first, width))

    def emit(self, places: Sequence[Sequence[Expr]], read: Reader, last: Expr | None = None) -> None:
        """Write the sums of all filters for the pixels at `places` of the output.

        `last` is whether the last pixel is one that is to be stored.
        """
        for weights, first, width in self._blocks:
            with self._ctx.stmts.loop(weights.shape[0], "block") as block:
                sums = self._sums(weights, block, len(places), read)
                self._store(sums, places, block * width + first, last)

    def _sums(self, weights: Buffer, block: Expr, pixels: int, read: Reader) -> Buffer:
        stmts, width = self._ctx.stmts, weights.shape[2]
        sums = stmts.local("sums", (width, pixels), self._dtype)
        for lane in range(width):
            for pixel in range(pixels):
                stmts.store(sums, [lane, pixel], 0)
        dot = "dot2" if self._dtype == "int32" else "dot2_wide"

        def word(index: Expr, pairs: int = 2) -> None:
            with stmts.scope():
                fours = [stmts.let("four", tb.load(weights, [block, index, lane])) for lane in range(width)]
                for pair, name in zip(range(pairs), ("even_bytes", "odd_bytes"), strict=False):
                    values = [stmts.let("x", read(pixel, index * 2 + pair)) for pixel in range(pixels)]
                    for lane, four in enumerate(fours):
                        both = stmts.let("both", tb.intrinsic(name, four))
                        for pixel, value in enumerate(values):
                            total = tb.intrinsic(dot, tb.load(sums, [lane, pixel]), value, both)
                            stmts.store(sums, [lane, pixel], total)

        most = WORDS_IN_SMALL_CODE if self._ctx.small else WORDS_AT_ONCE
        repeat(self._ctx, self._pairs // 2, most, "k", word)
        if self._pairs % 2:
            word(tb.const(self._pairs // 2), 1)
        return sums

    def _store(self, sums: Buffer, places: Sequence[Sequence[Expr]], first: Expr, last: Expr | None) -> None:
        stmts, (width, _) = self._ctx.stmts, sums.shape
        for lane in range(width):
            bias = tb.const(0, self._dtype)
            if self._bias is not None:
                bias = stmts.let("start", tb.load(self._bias, [first + lane]))
            for pixel, place in enumerate(places):
                total = bias + tb.load(sums, [lane, pixel])
                if last is None or pixel + 1 < len(places):
                    self._out.store([*place, first + lane], total)
                    continue
                with stmts.when(last):
                    self._out.store([*place, first + lane], total)


class _DspWindows:
    """The windows of a few pixels: in the data itself where the kernel has one tap, else copied to a patch."""

    def __init__(self, ctx: Context, conv: Conv, source: tuple[Buffer, Frame], pixels: int) -> None:
        self._ctx, self._conv, (self._data, self._seen) = ctx, conv, source
        one_tap = prod(conv.kernel) == 1 and not conv.padded and conv.channels % 2 == 0
        self._patch = None if one_tap else Patch(ctx, conv, source, pixels, 0)
        self._places: dict[int, tuple[Expr, Expr, Expr]] = {}

    @property
    def copied(self) -> bool:
        """Whether `fill` writes anything."""
        return self._patch is not None

    def fill(self, pixel: Expr | int, place: tuple[Expr, Expr, Expr]) -> None:
        """Write what makes a window readable: of the output pixel at `place`."""
        if self._patch is not None:
            self._patch.fill(pixel, place)
        elif isinstance(pixel, int):
            self._places[pixel] = place

    def word(self, pixel: int, pair: Expr) -> Expr:
        """Return two neighbours in the window of a pixel."""
        if self._patch is not None:
            return self._patch.word(pixel, pair)
        image, y, x = self._places[pixel]
        (step_y, step_x) = self._conv.strides
        load = tb.load(self._data, self._seen(image, y * step_y, x * step_x, pair * 2), lanes=2)
        return tb.intrinsic("word", load, dtype="int32")


@template("convolution", "dsp", _accepts_conv)
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over one or two dimensions."""
    _convolution(ctx, conv.planar(), (data, frame_of(len(conv.spatial))), weights, out)


@template("dense", "dsp", _accepts_dense)
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns)."""
    conv, seen = rows_as_pixels(data.shape, out.shape[-1])
    _convolution(ctx, conv, (data, seen), weights, out)


def _sums(ctx: Context, weights: Weights, out: Output) -> HalfSums | NibbleSums:
    if not sixteenfold(weights, 1 << 15, out):
        return HalfSums(ctx, weights, out)
    reduction = weights.values.size // weights.values.shape[-1]
    order = np.full(reduction + reduction % 2, -1)
    order[:reduction] = np.arange(reduction)
    return NibbleSums(ctx, weights, order.reshape(-1, 2), out, out.bias)


def _convolution(ctx: Context, conv: Conv, source: tuple[Buffer, Frame], weights: Weights, out: Output) -> None:
    stmts, seen = ctx.stmts, source[1]
    height, width = conv.output
    count = height * width
    size = min(PIXELS, count)
    windows, sums = _DspWindows(ctx, conv, source, size), _sums(ctx, weights, out)

    def at(number: Expr) -> tuple[Expr, Expr]:
        return stmts.let("y", number // width), stmts.let("x", number % width)

    def tile(image: Expr, first: Expr, pixels: int) -> None:
        places = []
        for pixel in range(pixels):
            y, x = at(stmts.let("pixel", first + pixel))
            windows.fill(pixel, (image, y, x))
            places.append(seen(image, y, x, tb.const(0))[:-1])
        sums.emit(places, windows.word)

    def pair(image: Expr, first: Expr) -> None:
        """Write a tile in few bytes: an odd last pixel is computed twice and stored once."""
        numbers = [stmts.let("pixel", tb.minimum(first + member, count - 1)) for member in range(PIXELS)]
        spots = [at(number) for number in numbers]
        if windows.copied:
            with stmts.loop(PIXELS, "member") as member:
                windows.fill(member, (image, *at(tb.minimum(first + member, count - 1))))
        else:
            for pixel, spot in enumerate(spots):
                windows.fill(pixel, (image, *spot))
        places = [seen(image, *spot, tb.const(0))[:-1] for spot in spots]
        sums.emit(places, windows.word, tb.binary("lt", first + 1, count))

    full, rest = divmod(count, size)
    with stmts.loop(conv.batch, "image") as image:
        if ctx.small and size == PIXELS:
            with stmts.loop(full + rest, "tile") as index:
                pair(image, index * PIXELS)
            return
        with stmts.loop(full, "tile") as index:
            tile(image, index * size, size)
        if rest:
            tile(image, tb.const(full * size), rest)
