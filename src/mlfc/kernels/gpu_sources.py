"""The matrices that devices multiply: patches of images, rows of tensors, packed weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from mlfc.kernels.geometry import Conv, is_padded
from mlfc.kernels.gpu_groups import unraveled
from mlfc.kernels.gpu_tile import VECTOR, GpuTile
from mlfc.kernels.templates import Array
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Buffer, Expr

_TOP_BITS = -0x7F7F7F80  # of each byte of a word


@dataclass(frozen=True, eq=False)
class MatrixElements:
    """How elements of a tensor in memory become elements of a matrix."""

    data: Buffer
    dtype: str  # of the matrix
    packed: int = 1  # elements of the tensor, along its last axis, in one of the matrix: 4 bytes of a word, else 1
    width: int = 1  # elements of the matrix that one load brings
    zero: int = 0  # subtracted from elements that are not packed
    blank: int = 0  # the matrix's element where the tensor has none

    def read(self, indices: Sequence[Expr]) -> Expr:
        """Return `width` elements of the matrix from the tensor's element at `indices` on."""
        if self.packed > 1:
            word = tb.intrinsic("word", tb.load(self.data, indices, self.packed), dtype="int32")
            return word ^ _TOP_BITS if self.data.dtype == "uint8" else word
        if self.width > 1:
            return tb.load(self.data, indices, self.width)
        value = tb.cast(tb.load(self.data, indices), self.dtype)
        return value - self.zero if self.zero else value

    def one_at_a_time(self) -> MatrixElements:
        """Return the same elements, each brought by a load of its own."""
        return replace(self, width=1)

    @property
    def nothing(self) -> Expr:
        """The value of `read` where there is no element."""
        return tb.const(self.blank, dtypes.vector(self.dtype, self.width))


def elements_of(data: Buffer, dtype: str, channels: int, words: bool, zero: int) -> MatrixElements:
    """Return how a tensor whose last axis is cut into runs of `channels` is read: the widest loads that fit."""
    if words:
        signed = zero - 128 if data.dtype == "uint8" else zero
        return MatrixElements(data, "int32", packed=4, blank=int(np.full(4, signed, np.int8).view(np.int32)[0]))
    whole = data.dtype == dtype and dtypes.nbytes(dtype) == 4 and channels % VECTOR == 0 and not zero
    return MatrixElements(data, dtype, width=VECTOR if whole else 1, zero=zero)


class Patches:
    """Windows of images as rows; along the reduction, taps and then channels of a group."""

    along = True

    def __init__(self, ctx: Context, conv: Conv, elements: MatrixElements) -> None:
        self._stmts, self._conv, self._elements = ctx.stmts, conv, elements
        self.dtype, self.width = elements.dtype, elements.width
        self._channels = conv.group_channels // elements.packed
        self._rows = conv.batch * prod(conv.output)

    @property
    def depth(self) -> Any:
        """Elements of the reduction."""
        return prod(self._conv.kernel) * self._channels

    def line(self, layer: Expr, line: Expr) -> Any:
        """Write where a window starts."""
        stmts, conv = self._stmts, self._conv
        pixel = stmts.let("pixel", tb.minimum(line, self._rows - 1))
        image, *places = unraveled(pixel, (conv.batch, *conv.output))
        starts = [
            stmts.let("start", place * stride - pads[0])
            for place, stride, pads in zip(places, conv.strides, conv.padding, strict=True)
        ]
        return stmts.let("image", image), starts, layer

    def step(self, step: Expr, depth: int) -> Any:
        """Write the tap and the first channel of a step, if that is one tap; else return its first element."""
        if self._channels % depth:
            return step * depth, None, self.depth % depth != 0
        per_tap = self._channels // depth
        tap = self._stmts.let("tap", step // per_tap)
        return self._tap(tap), self._stmts.let("channel", step % per_tap * depth), False

    def fetch(self, line: Any, step: Any, place: Expr) -> Expr:
        """Return elements of a window."""
        image, starts, layer = line
        conv, width = self._conv, self.width
        start, channel, ends = step
        checks: list[Expr] = []
        if channel is not None:
            taps, channel = start, channel + place
        else:
            units = self._channels // width
            position = self._stmts.let("position", (start + place) // width)
            if ends:
                checks.append(tb.binary("lt", position, self.depth // width))
            taps, channel = self._tap(position // units), position % units * width
        places = [first + tap * step for first, tap, step in zip(starts, taps, conv.dilation, strict=True)]
        for index, size, pads in zip(places, conv.spatial, conv.padding, strict=True):
            if is_padded(pads):
                checks += [tb.binary("ge", index, 0), tb.binary("lt", index, size)]
        indices = [image, *places, layer * conv.group_channels + channel * self._elements.packed]
        return tb.select(tb.land(*checks), self._elements.read(indices), self._elements.nothing)

    def _tap(self, tap: Expr) -> Sequence[Expr]:
        return unraveled(tap, self._conv.kernel)


class TensorRows:
    """A tensor's rows: all its dimensions but the last one count them."""

    along = True

    def __init__(self, ctx: Context, elements: MatrixElements) -> None:
        self._stmts, self._elements = ctx.stmts, elements
        self.dtype, self.width = elements.dtype, elements.width
        self._leading: Sequence[Any]
        self._length: Any
        *self._leading, self._length = elements.data.shape

    @property
    def depth(self) -> Any:
        """Elements of the reduction."""
        return self._length // self._elements.packed

    def line(self, layer: Expr, line: Expr) -> Any:
        """Write the indices of a row."""
        del layer
        row = self._stmts.let("row", tb.minimum(line, prod(self._leading) - 1))
        return [self._stmts.let("index", index) for index in unraveled(row, self._leading)]

    def step(self, step: Expr, depth: int) -> Any:
        """Return the first element of a step."""
        return step * depth, self.depth % depth != 0

    def fetch(self, line: Any, step: Any, place: Expr) -> Expr:
        """Return elements of a row."""
        start, ends = step
        position = self._stmts.let("position", (start + place) // self.width)
        inside = tb.binary("lt", position, self.depth // self.width) if ends else tb.land()
        value = self._elements.read([*line, position * (self.width * self._elements.packed)])
        return tb.select(inside, value, self._elements.nothing)


class Packed:
    """Weights of (layers, reduction, columns), with zeros up to the sizes of tiles."""

    along = False
    width = VECTOR

    def __init__(self, ctx: Context, weights: Array, tile: GpuTile) -> None:
        layers, depth, columns = weights.shape
        full = layers, -(-depth // tile.depth) * tile.depth, -(-columns // tile.columns) * tile.columns
        values = np.zeros(full, weights.dtype)
        values[:, :depth, :columns] = weights
        self._buffer = ctx.constant("weights", values)
        self.dtype = self._buffer.dtype

    def line(self, layer: Expr, line: Expr) -> Any:
        """Return the layer and the column."""
        return layer, line

    def step(self, step: Expr, depth: int) -> Any:
        """Return the first element of a step."""
        return step * depth

    def fetch(self, line: Any, step: Any, place: Expr) -> Expr:
        """Return a row's elements of neighbouring columns."""
        layer, column = line
        return tb.load(self._buffer, [layer, step + place, column], VECTOR)


class Matrix:
    """A matrix that is computed where it is read, by ``read(layer, line, place)``.

    `along` is whether elements that follow each other in memory are along the reduction.
    """

    width = 1

    def __init__(
        self, ctx: Context, lines: Any, depth: Any, dtype: str, along: bool, read: Callable[[Expr, Expr, Expr], Expr]
    ) -> None:
        self._stmts, self._lines, self._depth, self._read = ctx.stmts, lines, depth, read
        self.dtype, self.along = dtype, along

    def line(self, layer: Expr, line: Expr) -> Any:
        """Write the line's number, limited to the existing ones."""
        return layer, self._stmts.let("line", tb.minimum(line, self._lines - 1))

    def step(self, step: Expr, depth: int) -> Any:
        """Return the first element of a step."""
        return step * depth, self._depth % depth != 0

    def fetch(self, line: Any, step: Any, place: Expr) -> Expr:
        """Return an element."""
        start, ends = step
        position = self._stmts.let("position", start + place)
        inside = tb.binary("lt", position, self._depth) if ends else tb.land()
        return tb.select(inside, self._read(line[0], line[1], position), tb.const(0, self.dtype))
