"""Convolutions, dense layers and matrix products on devices, mostly as tiles of one matrix product.

A convolution's first matrix is made of the windows of its input, gathered where they are needed (implicit GEMM). Of few
rows weights are read once, so all that counts is that they are read side by side: neighbouring work-items take
neighbouring columns, and the others of the group share out the reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from mlfc.kernels.geometry import Conv, Product
from mlfc.kernels.gpu_groups import fold_in_tree, power_of_two, shared_out, unraveled
from mlfc.kernels.gpu_sources import Matrix, MatrixElements, Packed, Patches, TensorRows, elements_of
from mlfc.kernels.gpu_tile import GpuTiledProduct, MatrixSource, ProductArithmetic, ProductSizes, choose
from mlfc.kernels.plain import accumulator_dtype, bias_values, factor, read_matrix
from mlfc.kernels.templates import Array, Weights, template
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Expr

FEW_ROWS = 4
"""Up to so many rows a product needs no tiles: `few_rows`."""


_COLUMNS = 8  # 32 bytes of weights, which memory delivers at a time
_MANY_COLUMNS, _WIDE = 1 << 13, 32


@dataclass(frozen=True, eq=False)
class Operands:
    """A tensor and weights as one matrix product takes them."""

    elements: MatrixElements
    weights: Array  # (layers, reduction, columns) in the dtype of the elements
    how: ProductArithmetic
    start: Array | None  # what is added to the sums of the columns of all layers


def plain_sum(dtype: str) -> ProductArithmetic:
    """Return sums of products in a dtype."""
    return ProductArithmetic(dtype, lambda total, a, b: total + a * b)


def operands(data: Buffer, weights: Array, raw: Weights, out: Output, channels: int) -> Operands:
    """Choose how data and weights meet: in words of four bytes, in the sums' dtype else.

    `weights` are centered, (layers, reduction, columns); `raw` has the zero point of the data. `channels` elements of a
    run along the reduction are side by side in the data.
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
    """Write the product of lines and weights; ``place(layer, row, column)`` is that of a result, its channel last."""
    schedule = choose(ctx.features, sizes)

    def store(layer: Expr, row: Expr, column: Expr, total: Expr) -> None:
        at = place(layer, row, column)
        out.store(at, finished(ctx, total, found.start, at[-1], out))

    sources = lines, Packed(ctx, found.weights, schedule.tile)
    GpuTiledProduct(ctx, schedule, sizes, sources, found.how).emit(store)


def _are_few(rows: Extent) -> bool:
    """Tell whether rows are few; those that the run counts may be many."""
    return isinstance(rows, int) and 0 < rows <= FEW_ROWS


def _may_be_any(count: Extent) -> bool:
    """Tell whether there is something to compute; where the run decides that, it launches no group for nothing."""
    return isinstance(count, Dim) or count > 0


def is_dense(conv: Conv) -> bool:
    """Tell whether a convolution of single pixels is a dense layer of few rows."""
    single = all(size == 1 for size in (*conv.spatial, *conv.kernel)) and not conv.padded
    return single and conv.groups == 1 and _are_few(conv.batch)


def _takes_windows(_ctx: Context, conv: Conv, *_: object) -> bool:
    return _may_be_any(prod(conv.output) * conv.batch) and not is_dense(conv)


@template("convolution", "gpu", _takes_windows)
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


def _takes_many(_ctx: Context, data: Buffer, *_: object) -> bool:
    rows = prod(data.shape[:-1])
    return _may_be_any(rows) and not _are_few(rows)


@template("dense", "gpu", _takes_many)
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns)."""
    *leading, depth = data.shape
    found = operands(data, weights.centered()[None], weights, out, depth)
    columns = weights.values.shape[1]
    rows = TensorRows(ctx, found.elements)
    sizes = ProductSizes(1, prod(leading), columns, rows.depth)
    multiply(ctx, sizes, rows, found, out, lambda _, row, column: [*unraveled(row, leading), column])


def _takes_matrices(_: Context, sizes: Product, _a: Tensor, _b: Tensor, out: Output) -> bool:
    return len(out.shape) >= 2 and _may_be_any(prod(out.shape)) and _may_be_any(sizes.reduction)


@template("product", "gpu", _takes_matrices)
def product(ctx: Context, sizes: Product, a: Tensor, b: Tensor, out: Output) -> None:
    """Write a batch of products of two matrices."""
    batch, dtype = out.shape[:-2], accumulator_dtype(out)
    bias = bias_values(out)
    whole = ProductSizes(prod(batch), sizes.rows, sizes.columns, sizes.reduction)

    def first(layer: Expr, row: Expr, k: Expr) -> Expr:
        place = (k, row) if sizes.transpose_a else (row, k)
        return factor(read_matrix(a, unraveled(layer, batch), *place), sizes.a_zero, dtype)

    def second(layer: Expr, column: Expr, k: Expr) -> Expr:
        place = (column, k) if sizes.transpose_b else (k, column)
        return factor(read_matrix(b, unraveled(layer, batch), *place), sizes.b_zero, dtype)

    def store(layer: Expr, row: Expr, column: Expr, total: Expr) -> None:
        out.store([*unraveled(layer, batch), row, column], finished(ctx, total, bias, column, out))

    sources = (
        Matrix(ctx, sizes.rows, sizes.reduction, dtype, not sizes.transpose_a, first),
        Matrix(ctx, sizes.columns, sizes.reduction, dtype, sizes.transpose_b, second),
    )
    GpuTiledProduct(ctx, choose(ctx.features, whole), whole, sources, plain_sum(dtype)).emit(store)


def _takes(_ctx: Context, data: Buffer, *_: object) -> bool:
    return _are_few(prod(data.shape[:-1]))


@template("dense", "gpu", _takes)
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
    elements = found.elements.one_at_a_time()
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


def _takes_pixels(_ctx: Context, conv: Conv, *_: object) -> bool:
    return is_dense(conv)


@template("convolution", "gpu", _takes_pixels)
def single_pixels(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution of single pixels as the dense layer that it is."""
    rows = replace(weights, values=weights.values.reshape(conv.channels, conv.filters))
    few_rows(ctx, data, rows, out)
