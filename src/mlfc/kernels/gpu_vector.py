"""Dense layers of few rows on devices: weights are read once, so all that counts is that they are read side by side.

Neighbouring work-items take neighbouring columns; the reduction is shared out among the others of the group and folded
in a tree.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from mlfc.kernels.geometry import Conv
from mlfc.kernels.gpu_groups import fold_in_tree, power_of_two, shared_out, unraveled
from mlfc.kernels.gpu_product import FEW_ROWS, finished, is_dense, operands
from mlfc.kernels.templates import Weights, template
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer

_COLUMNS = 8  # 32 bytes of weights: what memory gives at a time
_MANY_COLUMNS, _WIDE = 1 << 13, 32


def _takes(ctx: Context, data: Buffer, weights: Weights, out: Output) -> bool:
    del ctx, weights, out
    return 0 < prod(data.shape[:-1]) <= FEW_ROWS


@template("dense", "gpu", _takes)
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
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


def _takes_pixels(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    del ctx, data, weights, out
    return is_dense(conv)


@template("convolution", "gpu", _takes_pixels)
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution of single pixels as the dense layer that it is."""
    rows = replace(weights, values=weights.values.reshape(conv.channels, conv.filters))
    dense(ctx, data, rows, out)
