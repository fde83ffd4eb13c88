"""A copy of the input with its borders filled in, so that the tile's loops need no tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from mlforge.kernels.frame import Frame
from mlforge.kernels.geometry import Conv
from mlforge.ops.tensor import Context
from mlforge.support import dtypes
from mlforge.tir import builder as tb
from mlforge.tir.ir import Buffer, Const, Expr

BAND_BYTES = 192 * 1024  # a band of the copy stays in the second-level cache beside the weights

Source: TypeAlias = "tuple[Buffer, Frame]"


@dataclass(frozen=True, eq=False)
class Form:
    """How the copy holds an element and a pixel.

    Attributes
    ----------
    dtype : str
    pixel : int
        Elements from one pixel to the next; those beyond the channels hold the pad value.
    step : int
        Elements that one read takes: the last of a row may reach past its end.
    pad_value : int
    convert : callable
        Element of the input to element of the copy.
    """

    dtype: str
    pixel: int
    step: int
    pad_value: int
    convert: Callable[[Expr], Expr]


class Stage:
    """The copy of one band of input rows: a row of `buffer` is an input row, pixels side by side.

    Attributes
    ----------
    band : int
        Output rows whose input is in the copy at one time; a divisor of the output's height.
    """

    def __init__(self, ctx: Context, conv: Conv, source: Source, form: Form) -> None:
        self.ctx, self.conv, self.source, self.form = ctx, conv, source, form
        self.columns = (conv.output[1] - 1) * conv.strides[1] + conv.extents[1]
        self.length = self.columns * form.pixel + form.step - 1
        self.band = self._band(self.length * dtypes.nbytes(form.dtype))
        self.buffer = ctx.scratch("staged", (self._rows(self.band), self.length), form.dtype)

    def _rows(self, band: int) -> int:
        return (band - 1) * self.conv.strides[0] + self.conv.extents[0]

    def _band(self, row_bytes: int) -> int:
        height = self.conv.output[0]
        fitting = (
            height // count
            for count in range(1, height + 1)
            if height % count == 0 and self._rows(height // count) * row_bytes <= BAND_BYTES
        )
        return next(fitting, 1)

    def fill(self, image: Expr, first: Expr) -> None:
        """Write the loops that copy the band of output rows from `first` on."""
        stmts, conv = self.ctx.stmts, self.conv
        top, bottom = conv.padding[0]
        with stmts.loop(self.buffer.shape[0], "row") as row:
            inside = first * conv.strides[0] + row - top
            checks = [tb.binary("ge", inside, 0)] * bool(top)
            checks += [tb.binary("lt", inside, conv.spatial[0])] * bool(bottom)
            valid = tb.land(*checks)
            if isinstance(valid, Const):
                self._copy(image, row, inside)
                return
            with stmts.when(valid):
                self._copy(image, row, inside)
            with stmts.when(tb.binary("eq", valid, tb.const(False, "bool"))):
                self._pad(row, 0, self.length)

    def _pad(self, row: Expr, start: int, stop: int) -> None:
        if stop > start:
            with self.ctx.stmts.loop(stop - start, "i", "vectorized") as i:
                self.ctx.stmts.store(self.buffer, [row, i + start], self.form.pad_value)

    def _copy(self, image: Expr, row: Expr, inside: Expr) -> None:
        """Copy an input row between its borders."""
        stmts, conv, pixel = self.ctx.stmts, self.conv, self.form.pixel
        data, seen = self.source
        left = min(conv.padding[1][0], self.columns)
        inner = min(conv.spatial[1], self.columns - left)
        # a depthwise multiplier repeats each channel; a pixel that is the input's own has one element a channel
        repeats = max(1, min(conv.filters, pixel) // conv.channels) if conv.depthwise else 1
        used = conv.channels * repeats
        self._pad(row, 0, left * pixel)
        if inner:
            with stmts.loop(inner, "column") as column:
                at = (column + left) * pixel
                with stmts.loop(used, "c", "vectorized") as c:
                    value = tb.load(data, seen(image, inside, column, c // repeats))
                    stmts.store(self.buffer, [row, at + c], self.form.convert(value))
                if pixel > used:
                    with stmts.loop(pixel - used, "c", "vectorized") as c:
                        stmts.store(self.buffer, [row, at + (c + used)], self.form.pad_value)
        self._pad(row, (left + inner) * pixel, self.length)
