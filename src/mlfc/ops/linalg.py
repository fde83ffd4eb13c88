"""Linear algebra: determinants."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.errors import TypeCheckError
from mlfc.kernels.folding import serial_loops
from mlfc.ops.rules import check_dtype, declare, same_extent
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Kind, Trait
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor


def _infer(name: str, _: Attrs, data: TensorType) -> TensorType:
    check_dtype(name, data.dtype, "float")
    if len(data.shape) < 2:
        raise TypeCheckError(f"{name}: expected square matrices, got the shape {data.shape}")
    same_extent(name, data.shape[-2], data.shape[-1], "rows and columns of square matrices")
    return TensorType(data.shape[:-2], data.dtype)


def _emit(ctx: Context, inputs: Sequence[Tensor], _: Attrs, out: Output) -> None:
    """Triangularize each matrix with partial pivoting, and multiply the diagonal."""
    (data,) = inputs
    stmts, size = ctx.stmts, data.shape[-1]
    dtype = "float64" if data.dtype == "float64" else "float32"
    matrix = ctx.scratch("matrix", (max(size, 1), max(size, 1)), dtype)
    product = stmts.local("product", (1,), dtype)
    with serial_loops(ctx, out.shape, "i") as at:
        stmts.store(product, [0], 1)
        with serial_loops(ctx, (size, size), "copy") as (row, column):
            stmts.store(matrix, [row, column], tb.cast(data.read([*at, row, column]), dtype))
        with stmts.loop(size, "step") as step:
            place = stmts.filled("place", 1, "int32", step)
            with stmts.loop(size, "row") as row, stmts.when(tb.binary("gt", row, step)):
                best = tb.clamp(tb.load(place, [0]), 0, size - 1)
                sizes = (tb.intrinsic("fabs", tb.load(matrix, [other, step])) for other in (row, best))
                with stmts.when(tb.binary("gt", *sizes)):
                    stmts.store(place, [0], row)
            pivot = stmts.let("pivot", tb.clamp(tb.load(place, [0]), 0, size - 1))
            with stmts.when(tb.binary("ne", pivot, step)):
                with stmts.loop(size, "column") as column:
                    held = stmts.let("held", tb.load(matrix, [step, column]))
                    stmts.store(matrix, [step, column], tb.load(matrix, [pivot, column]))
                    stmts.store(matrix, [pivot, column], held)
                stmts.store(product, [0], tb.const(0, dtype) - tb.load(product, [0]))
            largest = stmts.let("largest", tb.load(matrix, [step, step]))
            stmts.store(product, [0], tb.load(product, [0]) * largest)
            with stmts.when(tb.binary("ne", largest, tb.const(0, dtype))):
                with stmts.loop(size, "row") as row, stmts.when(tb.binary("gt", row, step)):
                    factor = stmts.let("factor", tb.load(matrix, [row, step]) / largest)
                    with stmts.loop(size, "column") as column:
                        rest = tb.load(matrix, [row, column]) - factor * tb.load(matrix, [step, column])
                        stmts.store(matrix, [row, column], rest)
        out.store(at, tb.cast(tb.load(product, [0]), out.dtype))


declare("linalg.det", 1, _infer, Kind.REDUCE, emit=_emit, contract="as LAPACK's order of elimination gives it",
        traits=Trait.NOT_IN_TVM, doc="Determinants of square matrices")  # fmt: skip
