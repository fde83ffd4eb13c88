"""Depthwise convolution of bytes on targets that multiply pairs of 16-bit numbers.

Loops from outside in: image, channel, band of rows, two neighbouring results. The input rows of a band are first
widened into a small plane of one channel, whose borders contain the zero point: two neighbouring taps are one word, and
the weights of a channel stay in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from mlfc.isa.dsp import weights as dsp_weights
from mlfc.isa.dsp.patch import STACK_BYTES, widen
from mlfc.kernels.staging import choose
from mlfc.kernels.templates import Array, Conv, Frame, Weights, frame_of, template
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

RESULTS = 2
# a plane of fewer rows would be refilled too often
_LEAST_ROWS = 4


def _accepts(_: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    # sums over int16 have 32 bits if none can overflow
    narrow = data.dtype in dsp_weights.BYTES or (data.dtype == "int16" and weights.data_zero == 0)
    bytes_only = narrow and out.dtype == "int32" and weights.values.dtype.kind in "iu"
    plane = len(conv.spatial) <= 2 and all(step == 1 for step in conv.dilation)
    return bytes_only and plane and weights.centered().dtype == np.int8


@template("depthwise", "dsp", _accepts)
def depthwise(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a depthwise convolution over one or two dimensions, with any channel multiplier."""
    seen = frame_of(len(conv.spatial))
    _DspDepthwise(ctx, conv.planar(), (data, seen), dsp_weights.for_signed(data.dtype, weights), out).emit()


@dataclass(frozen=True)
class _Term:
    """A product for one result, of the given halves of words of data and weights; empty for both halves."""

    data: int
    weight: int
    halves: str


class _RowWords:
    """The composition of a row's neighbouring results from words of data and of weights.

    `pairs` are the taps in the halves of each word of weights, -1 for none; `words` is the number of words of data for
    `RESULTS` results; `terms` has a list for each result.
    """

    def __init__(self, taps: int, stride: int) -> None:
        self.pairs: list[tuple[int, int]] = []
        positions = [[(result * stride + tap, tap) for tap in range(taps)] for result in range(RESULTS)]
        for first, tap in (item for result in positions for item in result):
            if first % 2 == 0 and tap + 1 < taps and (tap, tap + 1) not in self.pairs:
                self.pairs.append((tap, tap + 1))
        self.terms = [self._terms(result, taps) for result in positions]
        self.words = 1 + max(term.data for result in self.terms for term in result)

    def _terms(self, positions: Sequence[tuple[int, int]], taps: int) -> list[_Term]:
        terms = []
        for position, tap in positions:
            if position % 2 == 0 and tap + 1 < taps:
                terms.append(_Term(position // 2, self.pairs.index((tap, tap + 1)), ""))
            elif position % 2 == 0 or tap == 0:
                if all(tap not in pair for pair in self.pairs):
                    self.pairs.append((tap, -1))
                index = next(index for index, pair in enumerate(self.pairs) if tap in pair)
                halves = "bt"[position % 2] + "bt"[self.pairs[index].index(tap)]
                terms.append(_Term(position // 2, index, halves))
        return terms


class _DspDepthwise:
    """Writes the loops of one depthwise convolution over (height, width)."""

    def __init__(self, ctx: Context, conv: Conv, source: tuple[Buffer, Frame], weights: Weights, out: Output) -> None:
        self.ctx, self.conv, self.out, self.zero = ctx, conv, out, weights.data_zero
        self.data, self.seen = source
        self.row = _RowWords(conv.kernel[1], conv.strides[1])
        largest = 1 << 15 if self.data.dtype == "int16" else dsp_weights.LARGEST_INPUT
        bias, self.narrow = dsp_weights.start(weights, out.bias, largest)
        self.bias = ctx.constant("bias", bias)
        centered = weights.centered()
        # ordered by filter, taps take a quarter less space than in words for a kernel of three columns
        by_filter = np.ascontiguousarray(centered.reshape(-1, centered.shape[-1]).T)
        self.weights = ctx.constant("weights", by_filter if ctx.small else self._packed(centered))
        last = (conv.output[1] - 1) // RESULTS * RESULTS * conv.strides[1]
        self.length = last + 2 * self.row.words
        self.band = self._band_rows()
        rows = self._input_rows(self.band)
        make = ctx.stmts.local if 2 * rows * self.length <= STACK_BYTES and not ctx.small else ctx.scratch
        self.plane = make("plane", (rows, self.length), "int16")

    def _input_rows(self, rows: int) -> int:
        return (rows - 1) * self.conv.strides[0] + self.conv.kernel[0]

    def _band_rows(self) -> Any:
        """Return the number of output rows of a band; the last band may have fewer."""
        height = self.conv.output[0]
        fitting = [rows for rows in range(1, height + 1) if 2 * self.length * self._input_rows(rows) <= STACK_BYTES]
        most = max([min(height, _LEAST_ROWS), *fitting])
        usual = -(-height // -(-height // most))
        whole = [rows for rows in (height, -(-height // 2), -(-height // 4)) if rows != usual]
        # small code has one form of each band
        return self.ctx.choose("band", usual, lambda: [usual] if self.ctx.small else [usual, *dict.fromkeys(whole)])

    def _packed(self, centered: Array) -> Array:
        """Return (filters, words): the even bytes of a word are one pair of weights, its odd bytes the next one."""
        rows = centered.reshape(*self.conv.kernel, -1)
        padded = np.concatenate([rows, np.zeros_like(rows[:, :1])], axis=1)  # tap -1
        pairs = padded[:, self.row.pairs].reshape(-1, 2, rows.shape[-1]).transpose(2, 0, 1)
        even = np.pad(pairs, ((0, 0), (0, pairs.shape[1] % 2), (0, 0)))
        fours = even.reshape(len(even), -1, 2, 2).transpose(0, 1, 3, 2).reshape(len(even), -1, 4)
        return np.ascontiguousarray(fours).view("<i4")[..., 0].astype(np.int32)

    def emit(self) -> None:
        """Write all loops."""
        stmts, conv = self.ctx.stmts, self.conv
        multiplier, bands = conv.filters // conv.channels, -(-conv.output[0] // self.band)

        def clear(_: Expr) -> None:
            with stmts.loop(self.plane.shape[0], "row") as row, stmts.loop(self.length, "column") as column:
                stmts.store(self.plane, [row, column], self.zero)

        with (
            stmts.loop(conv.batch, "image") as image,
            stmts.carrying_loop(conv.channels, "channel", self.plane, clear) as channel,
            stmts.loop(bands, "band") as band,
        ):
            first = band * self.band
            rows = stmts.let("rows", tb.minimum(self.band, conv.output[0] - first))
            self._fill(image, channel, first, whole=bands == 1 and not self.ctx.small)
            with stmts.loop(multiplier, "copy") as copy:
                self._rows(image, channel * multiplier + copy, first, rows)

    def _fill(self, image: Expr, channel: Expr, first: Expr, *, whole: bool) -> None:
        """Write the copy of the input for output rows from `first` on; a `whole` plane needs no row checks."""
        stmts, conv = self.ctx.stmts, self.conv
        top, height = conv.padding[0][0], conv.spatial[0]
        if whole:
            with stmts.loop(min(height, self.plane.shape[0] - top), "row") as row:
                self._copy(row + top, (image, row, channel))
            return
        with stmts.loop(self.plane.shape[0], "row") as row:
            y = stmts.let("y", first * conv.strides[0] + row - top)
            valid = tb.land(tb.binary("ge", y, 0), tb.binary("lt", y, height))
            choose(self.ctx, valid, lambda: self._copy(row, (image, y, channel)), lambda: self._pad(row))

    def _pad(self, row: Expr) -> None:
        """Write the code that fills a row with the zero point; its borders already contain it."""
        with self.ctx.stmts.loop(self._columns, "column") as column:
            self.ctx.stmts.store(self.plane, [row, column + self.conv.padding[1][0]], self.zero)

    @property
    def _columns(self) -> Any:
        """The number of input columns that are read."""
        return min(self.conv.spatial[1], self.length - self.conv.padding[1][0])

    def _copy(self, row: Expr, place: tuple[Expr, Expr, Expr]) -> None:
        image, y, channel = place
        left = self.conv.padding[1][0]

        def write(x: Expr, value: Expr) -> None:
            self.ctx.stmts.store(self.plane, [row, x + left], value)

        widen(self.ctx, self._columns, lambda x: tb.load(self.data, self.seen(image, y, x, channel)), write)

    def _rows(self, image: Expr, index: Expr, first: Expr, rows: Expr) -> None:
        stmts, conv = self.ctx.stmts, self.conv
        weights = self._weights(index)
        bias = stmts.let("start", tb.load(self.bias, [index]))
        width = conv.output[1]
        full, rest = divmod(width, RESULTS)
        with stmts.loop(rows, "y") as y:
            top = y * conv.strides[0]

            def results(x: Expr, count: int) -> None:
                for result, total in enumerate(self._sums((top, x * conv.strides[1]), weights, bias, count)):
                    place = self.seen(image, first + y, x + result, index)
                    if not self.ctx.small or result == 0:
                        self.out.store(place, total)
                        continue
                    with stmts.when(tb.binary("lt", x + result, width)):
                        self.out.store(place, total)

            with stmts.loop(full + rest if self.ctx.small else full, "x") as tile:
                results(tile * RESULTS, RESULTS)
            if rest and not self.ctx.small:
                results(tb.const(full * RESULTS), rest)

    def _weights(self, index: Expr) -> list[list[Expr]]:
        """Write the loads of one filter's weights; return the pairs of each row of the kernel."""
        stmts, pairs = self.ctx.stmts, len(self.row.pairs)
        found: list[Expr] = []
        if self.ctx.small:
            for row, (low, high) in product(range(self.conv.kernel[0]), self.row.pairs):
                places = ([index, row * self.conv.kernel[1] + tap] for tap in (low, high))
                taps = [tb.cast(tb.load(self.weights, place), "int32") for place in places]
                word = taps[0] if high < 0 else (taps[0] & 0xFFFF) | (taps[1] << 16)  # -1: a single tap
                found.append(stmts.let("w", word))
            return [found[row * pairs : (row + 1) * pairs] for row in range(self.conv.kernel[0])]
        for number in range(self.weights.shape[1]):
            four = stmts.let("four", tb.load(self.weights, [index, number]))
            found += [stmts.let("w", tb.intrinsic(name, four)) for name in ("even_bytes", "odd_bytes")]
        return [found[row * pairs : (row + 1) * pairs] for row in range(self.conv.kernel[0])]

    def _sums(self, corner: tuple[Expr, Expr], weights: Sequence[Sequence[Expr]], bias: Expr, count: int) -> list[Expr]:
        """Write the sums of `count` neighbouring results and return them."""
        stmts, (top, left) = self.ctx.stmts, corner
        sums = [bias] * count
        for row, pairs in enumerate(weights):
            pairs_of = (tb.load(self.plane, [top + row, left + 2 * word], lanes=2) for word in range(self.row.words))
            words = [stmts.let("x", tb.intrinsic("word", pair, dtype="int32")) for pair in pairs_of]
            for result in range(count):
                for term in self.row.terms[result]:
                    name = f"mac_{term.halves}" if term.halves else "dot2"
                    sums[result] = tb.intrinsic(name, sums[result], words[term.data], pairs[term.weight])
        if not self.narrow:
            return sums
        return [tb.intrinsic("within", total, tb.const(dsp_weights.NARROW)) for total in sums]
