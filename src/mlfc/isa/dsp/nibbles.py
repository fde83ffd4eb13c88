"""Sums with weights of four bits on targets that multiply pairs of 16-bit numbers.

A word has eight weights of one filter. Masked, it is four of them in the high halves of its bytes, which are 16 times
the weight; shifted by four bits first, the other four. So a pair takes one instruction more than with bytes, and what
is added up is 16 times the sum, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from mlfc.isa.dsp.patch import repeat
from mlfc.kernels.templates import Array, Weights
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

FILTERS = 2
_WORDS_AT_ONCE = 2
_HIGH = -0x0F0F0F10  # the high halves of four bytes
_PAIRS = 4  # of a word


Reader: TypeAlias = Callable[[int, Expr], Expr]


def _packed(rows: Array, order: Array, width: int) -> Array:
    """Return (blocks, words, width) int32; `order` (pairs, 2) has the elements of each pair, -1 for none."""
    pairs = np.pad(order, ((0, -len(order) % _PAIRS), (0, 0)), constant_values=-1)
    ordered = np.where(pairs[..., None] < 0, 0, rows.astype(np.int64)[pairs]) & 15  # (pairs, 2, filters)
    words = ordered.reshape(-1, _PAIRS, 2, rows.shape[1])
    # pairs 0 and 1 are the low halves of the even and of the odd bytes, 2 and 3 the high ones
    shifts = np.array([[0, 16], [8, 24], [4, 20], [12, 28]])
    packed = (words << shifts[None, :, :, None]).sum(axis=(1, 2)).astype(np.uint32).view(np.int32)
    return np.ascontiguousarray(packed.reshape(len(packed), -1, width).transpose(1, 0, 2))


class NibbleSums:
    """Sums of blocks of filters over a few pixels at once, each with what it starts with."""

    def __init__(self, ctx: Context, weights: Weights, order: Array, out: Output, start: Array | None) -> None:
        self._ctx, self._out, self._pairs = ctx, out, len(order)
        rows = weights.centered().reshape(-1, weights.values.shape[-1])
        full = rows.shape[1] - rows.shape[1] % FILTERS
        self._start = None if start is None else ctx.constant("bias", start.astype(dtypes.to_numpy(out.dtype)))
        self._blocks: list[tuple[Buffer, int, int]] = []  # weights, first filter, filters of a block
        for first, last, width in ((0, full, FILTERS), (full, rows.shape[1], rows.shape[1] - full)):
            if last > first:
                packed = _packed(rows[:, first:last], order, width)
                self._blocks.append((ctx.constant("weights", packed), first, width))

    def emit(self, places: Sequence[Sequence[Expr]], read: Reader, last: Expr | None = None) -> None:
        """Write the sums of all filters for the pixels at `places`; `last` is whether the last one is to be stored."""
        stmts = self._ctx.stmts
        for weights, first, width in self._blocks:
            with stmts.loop(weights.shape[0], "block") as block:
                sums = self._sums(weights, block, len(places), read)
                for lane in range(width):
                    filter_ = block * width + (first + lane)
                    start = tb.const(0, self._out.dtype)
                    if self._start is not None:
                        start = stmts.let("start", tb.load(self._start, [filter_]))
                    for pixel, place in enumerate(places):
                        total = start + (tb.load(sums, [lane, pixel]) >> 4)
                        if last is None or pixel + 1 < len(places):
                            self._out.store([*place, filter_], total)
                            continue
                        with stmts.when(last):
                            self._out.store([*place, filter_], total)

    def _sums(self, weights: Buffer, block: Expr, pixels: int, read: Reader) -> Buffer:
        stmts, width = self._ctx.stmts, weights.shape[2]
        sums = stmts.local("sums", (width, pixels), self._out.dtype)
        for lane in range(width):
            for pixel in range(pixels):
                stmts.store(sums, [lane, pixel], 0)
        dot = "dot2" if self._out.dtype == "int32" else "dot2_wide"

        def word(index: Expr, pairs: int = _PAIRS) -> None:
            with stmts.scope():
                eights = [stmts.let("eight", tb.load(weights, [block, index, lane])) for lane in range(width)]
                for half in range(0, pairs, 2):
                    fours = [
                        stmts.let("four", (eight if half else tb.intrinsic("nibbles_up", eight)) & _HIGH)
                        for eight in eights
                    ]
                    for pair, name in zip(range(half, min(half + 2, pairs)), ("even_bytes", "odd_bytes"), strict=False):
                        values = [stmts.let("x", read(pixel, index * _PAIRS + pair)) for pixel in range(pixels)]
                        for lane, four in enumerate(fours):
                            both = stmts.let("both", tb.intrinsic(name, four))
                            for pixel, value in enumerate(values):
                                total = tb.intrinsic(dot, tb.load(sums, [lane, pixel]), value, both)
                                stmts.store(sums, [lane, pixel], total)

        repeat(self._ctx, self._pairs // _PAIRS, 1 if self._ctx.small else _WORDS_AT_ONCE, "k", word)
        if self._pairs % _PAIRS:
            word(tb.const(self._pairs // _PAIRS), self._pairs % _PAIRS)
        return sums
