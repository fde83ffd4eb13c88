"""Convolutions, dense layers and matrix products on devices, mostly as tiles of one matrix product (implicit GEMM).

With few rows, weights are read only once, so only coalesced reads matter: neighbouring work-items process neighbouring
columns, and the others of the group split the reduction.

In depthwise convolutions, neighbouring work-items process neighbouring channels, each a strip of pixels. Memory
bandwidth limits them: each element that an item loads is used for all windows of its strip that contain it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from mlfc.kernels.gpu_fold import below, each_result, fold_in_tree, power_of_two, shared_out, unraveled
from mlfc.kernels.gpu_tile import (
    VECTOR,
    GpuTile,
    GpuTiledProduct,
    MatrixSource,
    ProductArithmetic,
    ProductSizes,
    choose,
)
from mlfc.kernels.plain import accumulator_dtype, bias_values, factor, read_matrix
from mlfc.kernels.templates import Array, Conv, Product, Weights, frame_of, is_padded, strip_columns, template
from mlfc.kernels.transposed import Phase, phases, places, windows
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Expr

_TOP_BITS = -0x7F7F7F80  # the top bit of each byte of a word


@dataclass(frozen=True, eq=False)
class MatrixElements:
    """Mapping from elements of a tensor in memory to elements of a matrix."""

    data: Buffer
    dtype: str  # of the matrix
    packed: int = 1  # elements of the tensor, along its last axis, per matrix element: the 4 bytes of a word, else 1
    width: int = 1  # matrix elements per load
    zero: int = 0  # subtracted from elements that are not packed
    blank: int = 0  # the matrix's element outside the tensor

    def read(self, indices: Sequence[Expr]) -> Expr:
        """Return `width` elements of the matrix, starting at the tensor's element at `indices`."""
        if self.packed > 1:
            word = tb.intrinsic("word", tb.load(self.data, indices, self.packed), dtype="int32")
            return word ^ _TOP_BITS if self.data.dtype == "uint8" else word
        if self.width > 1:
            return tb.load(self.data, indices, self.width)
        value = tb.cast(tb.load(self.data, indices), self.dtype)
        return value - self.zero if self.zero else value

    @property
    def nothing(self) -> Expr:
        """The value of `read` outside the tensor."""
        return tb.const(self.blank, dtypes.vector(self.dtype, self.width))


def elements_of(data: Buffer, dtype: str, channels: int, words: bool, zero: int) -> MatrixElements:
    """Return the mapping for a tensor whose last axis has runs of `channels`, with the widest loads that fit."""
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
        """The number of elements of the reduction."""
        return prod(self._conv.kernel) * self._channels

    def line(self, layer: Expr, line: Expr) -> Any:
        """Write the start of a window."""
        stmts, conv = self._stmts, self._conv
        pixel = stmts.let("pixel", tb.minimum(line, self._rows - 1))
        image, *places = unraveled(pixel, (conv.batch, *conv.output))
        starts = [
            stmts.let("start", place * stride - pads[0])
            for place, stride, pads in zip(places, conv.strides, conv.padding, strict=True)
        ]
        return stmts.let("image", image), starts, layer

    def step(self, step: Expr, depth: int) -> Any:
        """Write the tap and the first channel of a step if it has one tap; otherwise return its first element."""
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


class Packed:
    """Weights of (layers, reduction, columns), padded with zeros to multiples of the tile sizes."""

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
    """A matrix that is computed or loaded on access by ``read(line, place)``; `line` returns the first argument.

    `along` is whether elements that are adjacent in memory follow each other along the reduction.
    """

    def __init__(
        self, ctx: Context, depth: Any, dtype: str, along: bool, line: Callable[[Expr, Expr], Any],
        read: Callable[[Any, Expr], Expr], nothing: Expr, width: int = 1,
    ) -> None:  # fmt: skip
        self._stmts, self.line, self._read, self._nothing = ctx.stmts, line, read, nothing
        self.depth, self.dtype, self.along, self.width = depth, dtype, along, width

    def step(self, step: Expr, depth: int) -> Any:
        """Return the first element of a step."""
        return step * depth, self.depth % depth != 0

    def fetch(self, line: Any, step: Any, place: Expr) -> Expr:
        """Return elements of a line."""
        start, ends = step
        position = self._stmts.let("position", (start + place) // self.width)
        inside = tb.binary("lt", position, self.depth // self.width) if ends else tb.land()
        return tb.select(inside, self._read(line, position * self.width), self._nothing)


def tensor_rows(ctx: Context, elements: MatrixElements) -> Matrix:
    """Return a tensor's rows: all dimensions except the last are flattened."""
    stmts, (*leading, length) = ctx.stmts, elements.data.shape

    def indices(_: Expr, line: Expr) -> list[Expr]:
        row = stmts.let("row", tb.minimum(line, prod(leading) - 1))
        return [stmts.let("index", index) for index in unraveled(row, leading)]

    def read(line: list[Expr], position: Expr) -> Expr:
        return elements.read([*line, position * elements.packed])

    depth = length // elements.packed
    return Matrix(ctx, depth, elements.dtype, True, indices, read, elements.nothing, elements.width)


FEW_ROWS = 4
"""Maximum number of rows of a product without tiles: `few_rows`."""


_COLUMNS = 8  # 32 bytes of weights, the size of a memory transaction
_MANY_COLUMNS, _WIDE = 1 << 13, 32


@dataclass(frozen=True, eq=False)
class Operands:
    """A tensor and weights in the form of one matrix product."""

    elements: MatrixElements
    weights: Array  # (layers, reduction, columns) in the dtype of the elements
    how: ProductArithmetic
    start: Array | None  # initial values of the sums of the columns of all layers


def plain_sum(dtype: str) -> ProductArithmetic:
    """Return the arithmetic that sums products in a dtype."""
    return ProductArithmetic(dtype, lambda total, a, b: total + a * b)


def operands(data: Buffer, weights: Array, raw: Weights, out: Output, channels: int) -> Operands:
    """Choose the elements of data and weights: words of four bytes, or the dtype of the sums.

    `weights` are centered, (layers, reduction, columns); `raw` has the zero point of the data. In the data, `channels`
    elements of a run along the reduction are adjacent.
    """
    dtype, bias = accumulator_dtype(out), bias_values(out)
    bytes_ = weights.dtype == np.int8 and data.dtype in ("int8", "uint8") and dtype == "int32"
    if not bytes_ or channels % 4:
        elements = elements_of(data, dtype, channels, False, raw.data_zero)
        return Operands(elements, weights.astype(dtypes.to_numpy(dtype)), plain_sum(dtype), bias)
    elements = elements_of(data, dtype, channels, True, raw.data_zero)
    layers, depth, columns = weights.shape
    groups = weights.reshape(layers, depth // 4, 4, columns).swapaxes(2, 3)
    words = np.ascontiguousarray(groups).view("<i4")[..., 0].astype(np.int32)
    zero = raw.data_zero - 128 if data.dtype == "uint8" else raw.data_zero
    start = np.zeros(layers * columns, np.int64) if bias is None else bias.astype(np.int64)
    start = start - zero * weights.astype(np.int64).sum(axis=1).reshape(-1)
    how = ProductArithmetic("int32", lambda total, a, b: tb.intrinsic("dot4_s8", total, a, b))
    return Operands(elements, words, how, start.astype(np.int32) if start.any() else None)


def finished(ctx: Context, total: Expr, start: Array | None, column: Expr, out: Output) -> Expr:
    """Return a result from its sum."""
    if start is not None:
        total = total + tb.load(ctx.constant("start", start), [column])
    return tb.cast(total, out.dtype)


def multiply(
    ctx: Context,
    sizes: ProductSizes,
    lines: MatrixSource,
    found: Operands,
    out: Output,
    place: Callable[..., Sequence[Expr]],
) -> None:
    """Write the product of lines and weights; ``place(layer, row, column)`` returns result indices, channel last."""
    schedule = choose(ctx.features, sizes)

    def store(layer: Expr, row: Expr, column: Expr, total: Expr) -> None:
        at = place(layer, row, column)
        out.store(at, finished(ctx, total, found.start, at[-1], out))

    sources = lines, Packed(ctx, found.weights, schedule.tile)
    GpuTiledProduct(ctx, schedule, sizes, sources, found.how).emit(store)


def _are_few(rows: Extent) -> bool:
    """Return whether rows are few; a dynamic number of rows is not."""
    return isinstance(rows, int) and 0 < rows <= FEW_ROWS


def _may_be_any(count: Extent) -> bool:
    """Return whether there may be results; if a dynamic count is 0, no group is launched."""
    return isinstance(count, Dim) or count > 0


def is_dense(conv: Conv) -> bool:
    """Return whether a convolution of single pixels is a dense layer of few rows."""
    single = all(size == 1 for size in (*conv.spatial, *conv.kernel)) and not conv.padded
    return single and conv.groups == 1 and _are_few(conv.batch)


@template("convolution", "gpu", lambda _, conv, *__: _may_be_any(prod(conv.output) * conv.batch) and not is_dense(conv))
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over any number of dimensions."""
    values = weights.centered().reshape(-1, conv.groups, conv.group_filters).swapaxes(0, 1)
    found = operands(data, values, weights, out, conv.group_channels)
    columns = conv.group_filters
    patches = Patches(ctx, conv, found.elements)
    sizes = ProductSizes(conv.groups, conv.batch * prod(conv.output), columns, patches.depth)
    shape = conv.batch, *conv.output

    def place(layer: Expr, row: Expr, column: Expr) -> list[Expr]:
        return [*unraveled(row, shape), layer * columns + column]

    multiply(ctx, sizes, patches, found, out, place)


@template("dense", "gpu", lambda _, data, *__: _may_be_any(rows := prod(data.shape[:-1])) and not _are_few(rows))
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns)."""
    *leading, depth = data.shape
    found = operands(data, weights.centered()[None], weights, out, depth)
    columns = weights.values.shape[1]
    rows = tensor_rows(ctx, found.elements)
    sizes = ProductSizes(1, prod(leading), columns, rows.depth)
    multiply(ctx, sizes, rows, found, out, lambda _, row, column: [*unraveled(row, leading), column])


@template(
    "product", "gpu",
    lambda _, sizes, __, ___, out: len(out.shape) >= 2 and all(map(_may_be_any, (prod(out.shape), sizes.reduction))),
)  # fmt: skip
def product(ctx: Context, sizes: Product, a: Tensor, b: Tensor, out: Output) -> None:
    """Write a batch of products of two matrices."""
    batch, dtype = out.shape[:-2], accumulator_dtype(out)
    bias = bias_values(out)
    whole = ProductSizes(prod(batch), sizes.rows, sizes.columns, sizes.reduction)

    def first(line: tuple[Expr, Expr], k: Expr) -> Expr:
        layer, row = line
        place = (k, row) if sizes.transpose_a else (row, k)
        return factor(read_matrix(a, unraveled(layer, batch), *place), sizes.a_zero, dtype)

    def second(line: tuple[Expr, Expr], k: Expr) -> Expr:
        layer, column = line
        place = (column, k) if sizes.transpose_b else (k, column)
        return factor(read_matrix(b, unraveled(layer, batch), *place), sizes.b_zero, dtype)

    def store(layer: Expr, row: Expr, column: Expr, total: Expr) -> None:
        out.store([*unraveled(layer, batch), row, column], finished(ctx, total, bias, column, out))

    def limited(lines: Extent) -> Callable[[Expr, Expr], Any]:
        return lambda layer, line: (layer, ctx.stmts.let("line", tb.minimum(line, lines - 1)))

    nothing = tb.const(0, dtype)
    sources = (
        Matrix(ctx, sizes.reduction, dtype, not sizes.transpose_a, limited(sizes.rows), first, nothing),
        Matrix(ctx, sizes.reduction, dtype, sizes.transpose_b, limited(sizes.columns), second, nothing),
    )
    GpuTiledProduct(ctx, choose(ctx.features, whole), whole, sources, plain_sum(dtype)).emit(store)


@template("dense", "gpu", lambda _, data, *__: _are_few(prod(data.shape[:-1])))
def few_rows(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write few rows of data times constant weights (reduction, columns)."""
    stmts = ctx.stmts
    *leading, depth = data.shape
    found = operands(data, weights.centered()[None], weights, out, depth)
    rows = prod(leading)
    table = ctx.constant("weights", found.weights[0])
    steps, columns = table.shape
    width = _WIDE if columns >= _MANY_COLUMNS else _COLUMNS
    lanes = power_of_two(steps, ctx.features.group_items // width)
    elements = replace(found.elements, width=1)
    with stmts.launch((-(-columns // width),), (width, lanes)) as ((group,), (x, lane)):
        column = stmts.let("column", group * width + x)
        inside = stmts.let("inside", tb.minimum(column, columns - 1))
        sums = stmts.local("sums", (rows,), found.how.dtype)
        with stmts.loop(rows, "r", "unrolled") as row:
            stmts.store(sums, [row], 0)
        with shared_out(ctx, steps, lane, lanes) as k:
            weight = stmts.let("weight", tb.load(table, [k, inside]))
            for number in range(rows):
                element = elements.read([*unraveled(tb.const(number), leading), k * elements.packed])
                stmts.store(sums, [number], found.how.add(tb.load(sums, [number]), element, weight))
        partial = stmts.shared("partial", (lanes, width), found.how.dtype)
        for number in range(rows):
            stmts.store(partial, [lane, x], tb.load(sums, [number]))
            fold_in_tree(ctx, partial, lane, [x], lambda a, b: a + b)
            with stmts.when(tb.land(tb.binary("eq", lane, 0), tb.binary("lt", column, columns))):
                total = finished(ctx, tb.load(partial, [0, x]), found.start, column, out)
                out.store([*unraveled(tb.const(number), leading), column], total)
            if number + 1 < rows:
                stmts.barrier()


@template("convolution", "gpu", lambda _, conv, *__: is_dense(conv))
def single_pixels(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution of single pixels as the equivalent dense layer."""
    rows = replace(weights, values=weights.values.reshape(conv.channels, conv.filters))
    few_rows(ctx, data, rows, out)


_MOST_PHASES = 16  # maximum number of phases, each of which is a launch
_FEWEST_COLUMNS = 4


def _takes(_ctx: Context, conv: Conv, data: Buffer, *_: object) -> bool:
    few = prod(conv.strides) <= _MOST_PHASES and conv.group_channels >= _FEWEST_COLUMNS
    return few and bool(prod(conv.spatial) * prod(data.shape))


@template("transposed", "gpu", _takes)
def transposed(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a transposed convolution over any number of dimensions."""
    values = weights.centered().reshape(*conv.kernel, conv.groups, conv.filters // conv.groups, -1)
    for phase in phases(conv):
        if all(axis.taps for axis in phase):
            _product(ctx, conv, phase, values, data, weights, out)
        else:
            _nothing(ctx, conv, phase, out)


def _product(
    ctx: Context, conv: Conv, phase: Sequence[Phase], values: Array, data: Buffer, weights: Weights, out: Output
) -> None:
    """Write the launches of a phase with taps."""
    rank, size = len(phase), data.shape[1:-1]
    part = values[np.ix_(*(axis.taps for axis in phase))]
    groups, inner, made = part.shape[rank:]
    packed = np.moveaxis(part, rank, 0).reshape(groups, -1, made)
    found = operands(data, packed, weights, out, inner)
    convolution = windows(conv, phase, size)
    patches = Patches(ctx, convolution, found.elements)
    sizes = ProductSizes(groups, conv.batch * prod(convolution.output), made, patches.depth)

    def place(layer: Expr, row: Expr, column: Expr) -> list[Expr]:
        channel = layer * made + column
        image, *at = unraveled(row, (conv.batch, *convolution.output))
        return [image, *places(conv, phase, at), channel]

    multiply(ctx, sizes, patches, found, out, place)


def _nothing(ctx: Context, conv: Conv, phase: Sequence[Phase], out: Output) -> None:
    """Write the launch of a phase without taps."""
    shape = conv.batch, *(axis.count for axis in phase), conv.channels
    with each_result(ctx, shape) as (image, *at, channel):
        place = [image, *places(conv, phase, at), channel]
        zero = tb.const(0, accumulator_dtype(out))
        out.store(place, finished(ctx, zero, bias_values(out), channel, out))


_STRIP = 4  # pixels of an item
_MOST_TAPS = 64  # maximum number of taps that are unrolled


@template(
    "depthwise", "gpu",
    lambda _, conv, *__: len(conv.spatial) <= 2 and conv.kernel[-1] * conv.kernel[0] <= _MOST_TAPS,
)  # fmt: skip
def depthwise(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a depthwise convolution over one or two dimensions."""
    stmts, plane, frame, dtype = ctx.stmts, conv.planar(), frame_of(len(conv.spatial)), accumulator_dtype(out)
    height, width = plane.output
    strip = min(_STRIP, width)
    before, read = plane.padding[1][0], (-(-width // strip) * strip - 1) * plane.strides[1] + plane.extents[1]
    may_miss = before > 0 or read - before > plane.spatial[1]  # whether some strip reads columns outside the data
    values = weights.centered().reshape(*plane.kernel, conv.filters).astype(dtypes.to_numpy(dtype))
    table = ctx.constant("weights", values)
    multiplier = conv.filters // conv.channels
    bias = bias_values(out)
    with stmts.loop(plane.batch, "n") as n, stmts.loop(height, "y") as y, stmts.loop(-(-width // strip), "strip") as at:
        with stmts.loop(conv.filters, "filter") as channel:
            sums = stmts.local("sums", (strip,), dtype)
            with stmts.loop(strip, "s", "unrolled") as index:
                stmts.store(sums, [index], 0)
            top = stmts.let("top", y * plane.strides[0] - plane.padding[0][0])
            left = stmts.let("left", at * (strip * plane.strides[1]) - plane.padding[1][0])
            for ky in range(plane.kernel[0]):
                row = stmts.let("row", top + ky * plane.dilation[0])
                is_checked = is_padded(plane.padding[0])
                with stmts.when(_inside(row, plane.spatial[0])) if is_checked else nullcontext():
                    for column, uses in strip_columns(plane, strip).items():
                        at_x = left + column
                        element = tb.load(data, frame(n, row, at_x, channel // multiplier))
                        value = factor(element, weights.data_zero, dtype)
                        if may_miss:
                            value = tb.select(_inside(at_x, plane.spatial[1]), value, tb.const(0, dtype))
                        x = stmts.let("x", value)
                        for used, kx in uses:
                            total = tb.load(sums, [used]) + x * tb.load(table, [ky, kx, channel])
                            stmts.store(sums, [used], total)
            with stmts.loop(strip, "p", "unrolled") as pixel:
                place = stmts.let("place", at * strip + pixel)
                with below(ctx, place, width, strip):
                    result = tb.load(sums, [pixel])
                    if bias is not None:
                        result = result + tb.load(ctx.constant("bias", bias), [channel])
                    out.store(frame(n, y, place, channel), tb.cast(result, out.dtype))


def _inside(index: Expr, extent: int) -> Expr:
    return tb.land(tb.binary("ge", index, 0), tb.binary("lt", index, extent))
