"""Copies of input rows with their borders filled in, so that kernel loops need no bounds checks.

`Band` contains all rows that some output rows need. `StagedWindow` contains only the rows that one output row needs:
the next row replaces those that it no longer reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from mlfc.kernels.templates import Conv, Frame
from mlfc.support import dims, dtypes
from mlfc.support.dims import Dim, Extent
from mlfc.target.features import Value
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Buffer, Const, Expr

LEAST_BAND_BYTES = 4 * 1024  # smaller copies save little memory and copy too many rows repeatedly
MOST_MEASURED_BYTES = 1024 * 1024  # maximum size of a copy that is worth measuring
MOST_BAND_BYTES = 192 * 1024  # a band stays in the second-level cache with the weights
LARGE_BAND_BYTES = 1024 * 1024  # if the weights are too large for that cache, and should be read few times

Source: TypeAlias = "tuple[Buffer, Frame]"


@dataclass(frozen=True, eq=False)
class StagedForm:
    """The layout of elements and pixels in the copy."""

    dtype: str
    pixel: int  # elements from one pixel to the next
    step: int  # elements per read: the last read of a row may extend beyond its end
    pad_value: int  # the value on the borders, and in a pixel after the copied channels
    convert: Callable[[Expr], Expr]  # conversion from an input element to an element of the copy


@dataclass(frozen=True, eq=False)
class Channels:
    """The input channels that a pixel of the copy contains: `count` of them; the k-th is ``source(k)``."""

    count: int
    source: Callable[[Expr], Expr]


def inside(index: Expr, size: Extent, padding: tuple[int, int]) -> list[Expr]:
    """Return the conditions under which an index is inside a range that is padded on both sides."""
    before, behind = padding
    checks = [tb.binary("ge", index, 0)] * (before != 0)
    return checks + [tb.binary("lt", index, size)] * (behind != 0)


def choose(ctx: Context, condition: Expr, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """Write `then` and `otherwise` as branches of the condition; only one of them if it is a literal."""
    if isinstance(condition, Const):
        (then if condition.value else otherwise)()
        return
    with ctx.stmts.when(condition):
        then()
    with ctx.stmts.when(tb.binary("eq", condition, tb.const(False, "bool"))):
        otherwise()


def fitting_rows(conv: Conv, most: int) -> int:
    """Return the rows of the largest band, a divisor of the output's height, that needs at most `most` input rows."""
    height = conv.output[0]
    divisors = (height // count for count in range(1, height + 1) if height % count == 0)
    return next((rows for rows in divisors if (rows - 1) * conv.strides[0] + conv.extents[0] <= most), 1)


class _StagedRows:
    """Scratch of some rows, pixels side by side, each with its borders."""

    def __init__(self, ctx: Context, conv: Conv, source: Source, form: StagedForm) -> None:
        self.ctx, self.conv, self.source, self.form = ctx, conv, source, form
        self.columns = (conv.output[1] - 1) * conv.strides[1] + conv.extents[1]
        self.length = self.columns * form.pixel + form.step - 1

    def write(self, buffer: Buffer, slot: Expr, place: tuple[Expr, Expr], channels: Channels) -> None:
        """Write the row `slot` of the copy from ``(image, input row)``; rows outside the image are border values."""
        conv = self.conv
        choose(
            self.ctx,
            tb.land(*inside(place[1], conv.spatial[0], conv.padding[0])),
            lambda: self._copy(buffer, slot, place, channels),
            lambda: self._pad(buffer, slot, 0, self.length),
        )

    def at(self, slot: Expr, element: Expr) -> list[Expr]:
        """Return the indices of an element of a row of the copy."""
        return [slot, element]

    def copy(
        self, buffer: Buffer, channels: int, read: Callable[[Expr, int], Expr], to: Callable[[Expr], list[Expr]]
    ) -> None:
        """Write the copy of a pixel: `read` returns channels from an index on, and `to` is a channel's destination."""
        with self.ctx.stmts.loop(channels, "c", "vectorized") as c:
            self.ctx.stmts.store(buffer, to(c), self.form.convert(read(c, 1)))

    def _pad(self, buffer: Buffer, slot: Expr, start: Extent, stop: Extent) -> None:
        if dims.bounds(stop - start)[1] > 0:
            with self.ctx.stmts.loop(stop - start, "i", "vectorized") as i:
                self.ctx.stmts.store(buffer, self.at(slot, i + start), self.form.pad_value)

    def _copy(self, buffer: Buffer, slot: Expr, place: tuple[Expr, Expr], channels: Channels) -> None:
        stmts, conv, pixel = self.ctx.stmts, self.conv, self.form.pixel
        data, seen = self.source
        image, row = place
        left = dims.minimum(conv.padding[1][0], self.columns)
        inner = dims.minimum(conv.spatial[1], self.columns - left)
        self._pad(buffer, slot, 0, left * pixel)
        if dims.bounds(inner)[1] > 0:
            with stmts.loop(inner, "column") as column:
                at = (column + left) * pixel
                self.copy(
                    buffer,
                    channels.count,
                    lambda c, lanes: tb.load(data, seen(image, row, column, channels.source(c)), lanes),
                    lambda c: self.at(slot, at + c),
                )
                if pixel > channels.count:
                    with stmts.loop(pixel - channels.count, "c", "vectorized") as c:
                        stmts.store(buffer, self.at(slot, at + (c + channels.count)), self.form.pad_value)
        self._pad(buffer, slot, (left + inner) * pixel, self.length)


class Band(_StagedRows):
    """The copy of the input rows that a band of output rows needs, with all channels.

    A band has `rows` output rows, a divisor of the output's height; if the height is dynamic, the last band may have
    fewer. Every band reads all weights again, so a band may be as large as the weights: `weight_bytes`, and at most
    `most_bytes`.
    """

    def __init__(
        self,
        ctx: Context,
        conv: Conv,
        source: Source,
        form: StagedForm,
        weight_bytes: int,
        most_bytes: int = MOST_BAND_BYTES,
    ) -> None:
        super().__init__(ctx, conv, source, form)
        limit = min(max(weight_bytes, LEAST_BAND_BYTES), most_bytes)
        height, most = conv.output[0], limit // (self.length * dtypes.nbytes(form.dtype))
        self.is_dynamic = isinstance(height, Dim) or isinstance(self.length, Dim)
        fitting = (most - conv.extents[0]) // conv.strides[0] + 1  # output rows
        is_open = self.is_dynamic
        self.rows: Any = dims.maximum(dims.minimum(fitting, height), 1) if is_open else self._chosen(most)
        self.buffer = self.scratch()

    def scratch(self) -> Buffer:
        """Return the scratch of the rows."""
        return self.ctx.scratch("staged", (self._input_rows(self.rows), self.length), self.form.dtype)

    def _input_rows(self, rows: Any) -> Any:
        return (rows - 1) * self.conv.strides[0] + self.conv.extents[0]

    def _chosen(self, most: int) -> int:
        """Return the rows of a band that measurements chose, or the largest number that needs `most` input rows."""
        usual = fitting_rows(self.conv, most)
        height, row = self.conv.output[0], self.length * dtypes.nbytes(self.form.dtype)

        def measured() -> list[Value]:
            fitting = (rows for rows in range(height, 0, -1) if height % rows == 0)
            some = [rows for rows in fitting if self._input_rows(rows) * row <= MOST_MEASURED_BYTES]
            return [usual, *(rows for rows in some[:8] if rows != usual)]

        chosen = self.ctx.choose("band", usual, measured)
        return chosen if isinstance(chosen, int) else usual

    def fill(self, image: Expr, first: Expr, count: Any) -> None:
        """Write the loops that copy the input of `count` output rows, starting at `first`."""
        conv = self.conv
        with self.ctx.stmts.loop(self._input_rows(count), "row") as row:
            place = image, first * conv.strides[0] + row - conv.padding[0][0]
            self.write(self.buffer, row, place, self.channels())

    def channels(self) -> Channels:
        """Return the channels of a pixel."""
        return Channels(self.conv.channels, lambda c: c)


class StagedWindow(_StagedRows):
    """The copy of the input rows that one output row needs: row r is in slot ``r % (rows of the window)``."""

    def __init__(self, ctx: Context, conv: Conv, source: Source, form: StagedForm) -> None:
        super().__init__(ctx, conv, source, form)
        self.rows = conv.extents[0]
        self.fresh = min(conv.strides[0], self.rows)
        self.buffer = ctx.scratch("window", (self.rows, self.length), form.dtype)

    @contextmanager
    def output_rows(self, image: Expr, channels: Channels) -> Iterator[Expr]:
        """Open the loop over output rows, in which the window contains the input rows that each of them needs."""
        stmts, height, kept = self.ctx.stmts, self.conv.output[0], self.rows - self.fresh

        def copy(count: int, name: str, row: Expr, start: int) -> None:
            with stmts.loop(count, name) as index:
                reach = index + start
                place = image, row * self.conv.strides[0] + reach - self.conv.padding[0][0]
                self.write(self.buffer, self.slot(row, reach), place, channels)

        if not kept:
            with stmts.loop(height, "row") as row:
                stmts.refill(self.buffer)
                copy(self.fresh, "fresh", row, 0)
                yield row
            return
        # an output row shares all input rows with the previous row except the last `fresh` ones
        with stmts.carrying_loop(height, "row", self.buffer, lambda first: copy(kept, "row", first, 0)) as row:
            copy(self.fresh, "fresh", row, kept)
            yield row

    def slot(self, row: Expr, reach: Expr) -> Expr:
        """Return the slot of input row `reach` of the window of output row `row`."""
        if self.fresh == self.rows:
            return reach
        return self.ctx.stmts.let("slot", (row * self.conv.strides[0] + reach) % self.rows)
