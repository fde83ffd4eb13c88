"""Plain scalar matrix products: a dense layer, and products of two computed matrices."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.kernels import summation
from mlfc.kernels.geometry import Product
from mlfc.kernels.plain import FilterSums, accumulator_dtype, bias_values, factor, nest
from mlfc.kernels.templates import Weights, template
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Expr


@template("dense", "plain")
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns)."""
    rows = weights.centered()[:, None, :]
    sums = FilterSums(ctx, rows, out)
    with nest(ctx, data.shape[:-1], "row") as place:
        with sums.over(tb.const(0), place) as (_, add, end_piece), sums.steps(rows.shape[0], end_piece) as k:
            add([k], factor(tb.load(data, [*place, k]), weights.data_zero, sums.dtype))


def read_matrix(tensor: Tensor, batch: Sequence[Expr], row: Expr, column: Expr) -> Expr:
    """Read an element of the matrix of `batch`; missing and unit batch dimensions serve every batch."""
    if len(tensor.shape) == 1:
        return tensor(column)
    leading = tensor.shape[:-2]
    own = batch[len(batch) - len(leading) :]
    return tensor(*(index if extent > 1 else 0 for extent, index in zip(leading, own, strict=True)), row, column)


@template("product", "plain")
def product(ctx: Context, sizes: Product, a: Tensor, b: Tensor, out: Output) -> None:
    """Write a batch of products of two matrices, reading both in place."""
    stmts, dtype = ctx.stmts, accumulator_dtype(out)
    bias = bias_values(out)
    table = None if bias is None else ctx.constant("bias", bias)
    bias_last = dtypes.is_float(dtype)
    long = summation.is_long(dtype, sizes.reduction)
    with nest(ctx, out.shape[:-2], "batch") as batch:
        with stmts.loop(sizes.rows, "row") as row, stmts.loop(sizes.columns, "column") as column:
            total = stmts.local("total", (1,), dtype)
            stmts.store(total, [0], 0 if table is None or bias_last else tb.load(table, [column]))
            with summation.piece(ctx, sizes.reduction, not long) as (start, extent):
                part = stmts.local("part", (1,), dtype) if long else total
                if long:
                    stmts.store(part, [0], 0)
                with stmts.loop(extent, "k") as offset:
                    k = start + offset
                    first = read_matrix(a, batch, *((k, row) if sizes.transpose_a else (row, k)))
                    second = read_matrix(b, batch, *((column, k) if sizes.transpose_b else (k, column)))
                    step = factor(first, sizes.a_zero, dtype) * factor(second, sizes.b_zero, dtype)
                    stmts.store(part, [0], tb.load(part, [0]) + step)
                if long:
                    stmts.store(total, [0], tb.load(total, [0]) + tb.load(part, [0]))
            place = [*batch, row, column] if len(out.shape) > 1 else [column]
            result = tb.load(total, [0])
            if table is not None and bias_last:
                result = result + tb.load(table, [column])
            out.store(place, tb.cast(result, out.dtype))
