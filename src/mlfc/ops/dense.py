"""Dense layers, matrix products and determinants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels import templates
from mlfc.kernels.folding import serial_loops
from mlfc.kernels.templates import Product
from mlfc.ops.conv import FLOAT_CONTRACT, OperandRule, ZerosRule, like_operands, no_zeros
from mlfc.ops.rules import broadcast_shape, check_dtype, declare, same_extent
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Trait
from mlfc.support.dims import Dim
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor

_DENSE_ATTRS = (Attr("units", REQUIRED), Attr("out_dtype", None))
_TRANSPOSE = (Attr("transpose_a", False), Attr("transpose_b", False))


def _product_sizes(name: str, a: Sequence[int], b: Sequence[int], transpose_a: bool, transpose_b: bool) -> Product:
    """Return the sizes of the product over the last two axes; raise TypeCheckError where they do not fit."""
    if len(a) < 1 or len(b) < 2 or (transpose_a and len(a) < 2):
        raise TypeCheckError(f"{name}: {tuple(a)} and {tuple(b)} are not matrices")
    first = a[-2:] if len(a) > 1 else (1, *a)
    rows, inner = (first[1], first[0]) if transpose_a else (first[0], first[1])
    columns, reduction = (b[-2], b[-1]) if transpose_b else (b[-1], b[-2])
    if isinstance(inner, Dim) or isinstance(reduction, Dim):
        same_extent(name, inner, reduction, "columns of the data and rows of the weights")
    elif inner != reduction:
        raise TypeCheckError(f"{name}: the data has {inner} columns, the weights take {reduction}")
    return Product(rows, inner, columns, transpose_a, transpose_b)


def _infer_dense(name: str, attrs: Attrs, data: TensorType, weight: TensorType) -> tuple[int, ...]:
    """Return the shape of a dense layer or of a product with one matrix of weights."""
    if len(weight.shape) != 2:
        raise TypeCheckError(f"{name}: expected weights of 2 dimensions, got {len(weight.shape)}")
    transpose_a, transpose_b = attrs.get("transpose_a", False), attrs.get("transpose_b", True)
    sizes = _product_sizes(name, data.shape, weight.shape, transpose_a, transpose_b)
    if attrs["units"] not in (None, sizes.columns):
        raise TypeCheckError(f"{name}: units={attrs['units']}, but the weights make {sizes.columns}")
    leading = data.shape[:-1] if not transpose_a else (*data.shape[:-2], sizes.rows)
    return (*leading, sizes.columns)


def _infer_batch(name: str, attrs: Attrs, a: TensorType, b: TensorType) -> tuple[int, ...]:
    """Return the shape of a batch of matrix products; a batch of one is broadcast."""
    if len(a.shape) != 3 or len(b.shape) != 3:
        raise TypeCheckError(f"{name}: expected operands of 3 dimensions, got {len(a.shape)} and {len(b.shape)}")
    sizes = _product_sizes(name, a.shape, b.shape, attrs["transpose_a"], attrs["transpose_b"])
    (batch,) = broadcast_shape(name, a.shape[:1], b.shape[:1])
    return (batch, sizes.rows, sizes.columns)


def declare_product(
    name: str,
    doc: str,
    *,
    batched: bool = False,
    num_inputs: int = 2,
    attrs: tuple[Attr, ...] = _DENSE_ATTRS,
    check: OperandRule = like_operands,
    zeros: ZerosRule = no_zeros,
    before: Callable[..., None] = lambda *_: None,
    contract: str = FLOAT_CONTRACT,
    **rest: Any,
) -> None:
    """Register a dense layer or a batch of matrix products; `rest` are other fields of `Operator`, or replace them."""
    shape_of = _infer_batch if batched else _infer_dense

    def infer(_: str, given: Attrs, *types: TensorType) -> TensorType:
        before(name, given, *types)
        shape = shape_of(name, given, types[0], types[1])
        return TensorType(shape, check(name, given, types, shape[-1]))

    def emit(ctx: Context, inputs: Sequence[Tensor], given: Attrs, out: Output) -> None:
        """Write a product: packed if one constant matrix is used for all rows, else as a product of two tensors."""
        transpose, (a, b) = (given.get("transpose_a", False), given.get("transpose_b", True)), inputs[:2]
        data_zero, weight_zero = zeros(name, inputs)
        if b.value is not None and not transpose[0] and (not batched or b.shape[0] == 1):
            matrix = b.value[0] if batched else b.value
            weights = templates.Weights(matrix.T if transpose[1] else matrix, data_zero, weight_zero)
            templates.dense(ctx, a.in_memory(ctx), weights, out)
            return
        if not isinstance(weight_zero, int):
            raise UnsupportedError(
                f"{name}: a product of two computed tensors requires one zero point, got one per column"
            )
        sizes = _product_sizes(name, a.shape, b.shape, *transpose)
        templates.emit("product", ctx, replace(sizes, a_zero=data_zero, b_zero=weight_zero), a, b, out)

    def macs(types: Sequence[TensorType], given: Attrs, out: TensorType) -> Any:
        return out.size * types[0].shape[-2 if given.get("transpose_a", False) else -1]

    declare(name, num_inputs, infer, Kind.ANCHOR, attrs, takes_bias=True, macs=macs, contract=contract, doc=doc,
            **{"emit": emit, **rest})  # fmt: skip


def dense_filters(types: Sequence[TensorType], _: Attrs) -> tuple[int, tuple[int, ...]]:
    """Return the axes of the result and of the weights that count output channels, as `Operator.filters`."""
    return len(types[0].shape) - 1, (0,)


BATCH_ATTRS = (Attr("out_dtype", None), *_TRANSPOSE)
declare_product("nn.dense", "Rows of data times the transpose of weights (units, in).", filters=dense_filters)
declare_product("nn.matmul", "Matrix product, either operand transposed.", attrs=(*_DENSE_ATTRS, *_TRANSPOSE))
declare_product("nn.batch_matmul", "Matrix product of each pair of a batch.", batched=True, attrs=BATCH_ATTRS)


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
