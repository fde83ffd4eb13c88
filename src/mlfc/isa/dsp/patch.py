"""The windows of several output pixels of a convolution, widened to pairs of 16-bit numbers.

A patch is filled once for all filters. Padding is filled with the zero point, so the reduction needs no bounds checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import prod
from typing import TypeAlias

import numpy as np

from mlfc.kernels.staging import choose
from mlfc.kernels.templates import Array, Conv, Frame, is_padded
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Buffer, Const, Expr

# larger patches are in the workspace instead of on the stack
STACK_BYTES = 1024
_COPIED_AT_ONCE, _COPIED_IN_SMALL_CODE = 8, 2
_WIDENED_AT_ONCE = 4
MOST_SPELLED_OUT = 24

_TOP_BITS = -0x7F7F7F80  # of four bytes, as an int32

Place: TypeAlias = "tuple[Expr, Expr, Expr]"  # image, row, column


def repeat(ctx: Context, extent: int, most: int, name: str, body: Callable[[Expr], None]) -> None:
    """Write `body` for each index below `extent`, in a loop unrolled up to `most` times."""
    # small code has one loop, unrolled by the largest power of two that leaves no remainder
    counts = (1, 2, 4, 8) if ctx.small else range(1, most + 1)
    size = max(count for count in counts if extent % count == 0 and count <= most)
    if size <= most // 2 and not ctx.small:
        size = min(most, extent)
    with ctx.stmts.loop(extent // size, name) as index:
        for offset in range(size):
            body(index * size + offset)
    for offset in range(extent - extent % size, extent):
        body(tb.const(offset))


def signed_word(load: Expr) -> Expr:
    """Return four bytes as a word of signed ones; flipping the top bit of an unsigned byte subtracts 128."""
    word = tb.intrinsic("word", load, dtype="int32")
    return word ^ _TOP_BITS if load.dtype == "uint8x4" else word


def widen(ctx: Context, extent: int, read: Callable[[Expr], Expr], write: Callable[[Expr, Expr], None]) -> None:
    """Write the copy of `extent` neighbouring bytes to neighbouring int16, unrolled if they are few.

    Each store is separate: gcc needs more instructions to combine two stores than for separate ones.
    """

    def some(first: Expr, count: int) -> None:
        loads = [read(first + index) for index in range(count)]
        wide = [tb.cast(load, "int16") for load in loads]
        # unsigned bytes less 128
        signed = [value - 128 if load.dtype == "uint8" else value for value, load in zip(wide, loads, strict=True)]
        values = [ctx.stmts.let("value", value) for value in signed]
        for index, value in enumerate(values):
            write(first + index, value)
            ctx.stmts.fence("joining stores would take longer")

    looped = extent // _WIDENED_AT_ONCE if extent > MOST_SPELLED_OUT or ctx.small else 0
    with ctx.stmts.loop(looped, "column") as column:
        some(column * _WIDENED_AT_ONCE, _WIDENED_AT_ONCE)
    if ctx.small:
        with ctx.stmts.loop(extent % _WIDENED_AT_ONCE, "column") as column:
            some(column + looped * _WIDENED_AT_ONCE, 1)
        return
    for first in range(looped * _WIDENED_AT_ONCE, extent, _WIDENED_AT_ONCE):
        some(tb.const(first), min(_WIDENED_AT_ONCE, extent - first))


class Patch:
    """The inputs of `pixels` output pixels, in the order of the weights.

    If the number of channels is a multiple of four, four are widened at once: the even bytes of a word are one pair,
    the odd ones the next. `order`, (steps, 2), is the reduction element (kernel row, column, channel) in each half of a
    step's word.
    """

    def __init__(self, ctx: Context, conv: Conv, source: tuple[Buffer, Frame], pixels: int, zero: int) -> None:
        self._ctx, self._conv, self._zero = ctx, conv, zero
        self._data, self._seen = source
        self._halves = self._data.dtype == "int16"
        self._by_words = conv.channels % (2 if self._halves else 4) == 0
        self._reduction = prod(conv.kernel) * conv.channels
        in_fours = self._by_words and not self._halves
        self.order = word_order(self._reduction) if in_fours else natural_order(self._reduction)
        steps = len(self.order)
        shape, dtype = ((pixels, steps), "int32") if self._by_words else ((pixels, 2 * steps), "int16")
        # neighbouring pixels are read through one address for any number of steps
        self._side_by_side = ctx.small and self._by_words
        if self._side_by_side:
            shape = (steps, pixels)
        make = ctx.stmts.local if 4 * pixels * steps <= STACK_BYTES and not ctx.small else ctx.scratch
        self._buffer = make("patch", shape, dtype)
        if 2 * steps > self._reduction:
            for pixel in range(pixels):
                ctx.stmts.store(self._buffer, [pixel, self._reduction], 0)

    def _place(self, pixel: Expr | int, element: Expr) -> list[Expr | int]:
        return [element, pixel] if self._side_by_side else [pixel, element]

    def word(self, pixel: int, step: Expr) -> Expr:
        """Return the pair of one pixel at a step."""
        if self._by_words:
            return tb.load(self._buffer, self._place(pixel, step))
        return tb.intrinsic("word", tb.load(self._buffer, [pixel, step * 2], lanes=2), dtype="int32")

    def alone(self) -> AbstractContextManager[None]:
        """Open a block that does not use earlier patches."""
        return self._ctx.stmts.refilling(self._buffer)

    def refill(self) -> None:
        """Declare that the patches of all pixels are filled here before they are read."""
        self._ctx.stmts.refill(self._buffer)

    def fill(self, pixel: Expr | int, place: Place) -> None:
        """Write the code that fills the patch of the output pixel at `place`."""
        stmts, conv = self._ctx.stmts, self._conv
        image, y, x = place
        top = stmts.let("top", y * conv.strides[0] - conv.padding[0][0])
        left = stmts.let("left", x * conv.strides[1] - conv.padding[1][0])
        inside = tb.land(*self._checks((top, left), conv.extents))
        taps = partial(self._taps, pixel, (image, top, left))
        choose(self._ctx, inside, partial(taps, tested=False), partial(taps, tested=True))

    def _checks(self, start: tuple[Expr, Expr], extents: Sequence[int]) -> list[Expr]:
        """Return the conditions under which `extents` elements, starting at `start`, are inside the input."""
        checks = []
        for first, extent, size, pads in zip(start, extents, self._conv.spatial, self._conv.padding, strict=True):
            if is_padded(pads):
                checks += [tb.binary("ge", first, 0), tb.binary("le", first, size - extent)]
        return checks

    def _taps(self, pixel: Expr | int, corner: Place, *, tested: bool) -> None:
        stmts, conv = self._ctx.stmts, self._conv
        image, top, left = corner
        extent = conv.kernel[1] * conv.channels
        if not tested and not self._by_words and extent <= MOST_SPELLED_OUT:  # short rows: taps and channels at once
            with stmts.loop(conv.kernel[0], "ky") as ky:
                y = stmts.let("y", top + ky * conv.dilation[0])

                def read(index: Expr) -> Expr:
                    x = left + index // conv.channels * conv.dilation[1]
                    return tb.load(self._data, self._seen(image, y, x, index % conv.channels))

                def write(index: Expr, value: Expr) -> None:
                    stmts.store(self._buffer, [pixel, ky * extent + index], value)

                widen(self._ctx, extent, read, write)
            return
        with stmts.loop(conv.kernel[0], "ky") as ky, stmts.loop(conv.kernel[1], "kx") as kx:
            y = stmts.let("y", top + ky * conv.dilation[0])
            x = stmts.let("x", left + kx * conv.dilation[1])
            tap = ky * conv.kernel[1] + kx
            if not tested:
                self._copy(pixel, tap, (image, y, x))
                return
            # a window of only padding: the bounds proof cannot see that none of its taps is read
            valid = tb.land(*self._checks((y, x), (1, 1))) if self._reaches(top, left) else tb.const(False, "bool")
            choose(self._ctx, valid, lambda: self._copy(pixel, tap, (image, y, x)), lambda: self._pad(pixel, tap))

    def _reaches(self, *start: Expr) -> bool:
        """Return whether a window with a literal start has a tap inside the input; other windows may have one."""
        conv = self._conv
        return all(
            not isinstance(first, Const) or any(0 <= first.value + tap * step < size for tap in range(taps))
            for first, taps, step, size in zip(start, conv.kernel, conv.dilation, conv.spatial, strict=True)
        )

    def _copy(self, pixel: Expr | int, tap: Expr, place: Place) -> None:
        """Write the code that widens the channels of one tap."""
        stmts, channels = self._ctx.stmts, self._conv.channels

        def word(index: Expr) -> None:
            loaded = tb.load(self._data, self._seen(*place, index * 4), lanes=4)
            four = stmts.let("four", signed_word(loaded))
            at = tap * (channels // 2) + index * 2
            stmts.store(self._buffer, self._place(pixel, at), tb.intrinsic("even_bytes", four))
            stmts.store(self._buffer, self._place(pixel, at + 1), tb.intrinsic("odd_bytes", four))

        def half(index: Expr) -> None:
            loaded = tb.load(self._data, self._seen(*place, index * 2), lanes=2)
            word = tb.intrinsic("word", loaded, dtype="int32")
            stmts.store(self._buffer, self._place(pixel, tap * (channels // 2) + index), word)

        def element(index: Expr, value: Expr) -> None:
            stmts.store(self._buffer, [pixel, tap * channels + index], value)

        if self._by_words and self._halves:
            repeat(self._ctx, channels // 2, self._at_once, "c", half)
        elif self._by_words:
            repeat(self._ctx, channels // 4, self._at_once, "c", word)
        else:
            widen(self._ctx, channels, lambda index: tb.load(self._data, self._seen(*place, index)), element)

    def _pad(self, pixel: Expr | int, tap: Expr) -> None:
        """Write the code that fills one tap with the zero point."""
        count = self._conv.channels // 2 if self._by_words else self._conv.channels
        value = (self._zero & 0xFFFF) * 0x10001 if self._by_words else self._zero
        signed = value - (1 << 32) if value >= 1 << 31 else value
        dtype = self._buffer.dtype

        def fill(index: Expr) -> None:
            self._ctx.stmts.store(self._buffer, self._place(pixel, tap * count + index), tb.const(signed, dtype))

        repeat(self._ctx, count, self._at_once, "c", fill)

    @property
    def _at_once(self) -> int:
        return _COPIED_IN_SMALL_CODE if self._ctx.small else _COPIED_AT_ONCE


def word_order(reduction: int) -> Array:
    """Return the elements of each pair for words of four widened bytes: even bytes, then odd ones."""
    fours = np.arange(reduction).reshape(-1, 2, 2)
    return np.ascontiguousarray(fours.transpose(0, 2, 1)).reshape(-1, 2)


def natural_order(reduction: int) -> Array:
    """Return the elements of each pair of neighbours, -1 for none."""
    order = np.full(reduction + reduction % 2, -1)
    order[:reduction] = np.arange(reduction)
    return order.reshape(-1, 2)
