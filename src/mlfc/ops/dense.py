"""Dense layers and matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels import templates
from mlfc.kernels.geometry import Product
from mlfc.ops.conv import FLOAT_CONTRACT, operands
from mlfc.ops.conv_types import result_dtype
from mlfc.ops.rules import broadcast_shape
from mlfc.relay.ir import TensorType, Type
from mlfc.relay.op import OPERATORS, REQUIRED, Attr, Kind, Operator
from mlfc.tir.context import Context, Output, Tensor

Attrs = Mapping[str, Any]
Zeros: TypeAlias = "tuple[int, int | npt.NDArray[np.int32]]"

DENSE_ATTRS = (Attr("units", REQUIRED), Attr("out_dtype", None))
BATCH_ATTRS = (Attr("out_dtype", None), Attr("transpose_a", False), Attr("transpose_b", False))


def product_sizes(name: str, a: Sequence[int], b: Sequence[int], transpose_a: bool, transpose_b: bool) -> Product:
    """Return the sizes of the product over the last two axes; raise TypeCheckError where they do not fit."""
    if len(a) < 1 or len(b) < 2 or (transpose_a and len(a) < 2):
        raise TypeCheckError(f"{name}: {tuple(a)} and {tuple(b)} are not matrices")
    first = a[-2:] if len(a) > 1 else (1, *a)
    rows, inner = (first[1], first[0]) if transpose_a else (first[0], first[1])
    columns, reduction = (b[-2], b[-1]) if transpose_b else (b[-1], b[-2])
    if inner != reduction:
        raise TypeCheckError(f"{name}: the data has {inner} columns, the weights take {reduction}")
    return Product(rows, inner, columns, transpose_a, transpose_b)


def infer_dense(name: str, types: list[Type], attrs: Attrs, default: str | None = None) -> TensorType:
    """Type rule of dense layers and of products with one matrix of weights."""
    data, weight = operands(name, types)
    if len(weight.shape) != 2:
        raise TypeCheckError(f"{name}: the weights must have 2 dimensions, not {len(weight.shape)}")
    transpose_a, transpose_b = attrs.get("transpose_a", False), attrs.get("transpose_b", True)
    sizes = product_sizes(name, data.shape, weight.shape, transpose_a, transpose_b)
    if attrs["units"] not in (None, sizes.columns):
        raise TypeCheckError(f"{name}: units={attrs['units']}, but the weights make {sizes.columns}")
    leading = data.shape[:-1] if not transpose_a else (*data.shape[:-2], sizes.rows)
    return TensorType((*leading, sizes.columns), result_dtype(attrs, default or data.dtype))


def infer_batch(name: str, types: list[Type], attrs: Attrs, default: str | None = None) -> TensorType:
    """Type rule of a batch of matrix products; a batch of one serves all."""
    a, b = operands(name, types)
    if len(a.shape) != 3 or len(b.shape) != 3:
        raise TypeCheckError(f"{name}: the operands must have 3 dimensions, not {len(a.shape)} and {len(b.shape)}")
    sizes = product_sizes(name, a.shape, b.shape, attrs["transpose_a"], attrs["transpose_b"])
    (batch,) = broadcast_shape(name, a.shape[:1], b.shape[:1])
    return TensorType((batch, sizes.rows, sizes.columns), result_dtype(attrs, default or a.dtype))


def product_macs(types: Sequence[Any], attrs: Attrs, out_type: Any) -> int:
    """Return the multiply-accumulates of a dense layer or product."""
    data = types[0]
    return int(out_type.size * data.shape[-2 if attrs.get("transpose_a", False) else -1])


def emit_dense(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output, zeros: Zeros = (0, 0)) -> None:
    """Write a dense layer: packed where the weights are known, else as a product of two tensors."""
    data, weight = inputs[:2]
    transpose_a, transpose_b = attrs.get("transpose_a", False), attrs.get("transpose_b", True)
    if weight.value is not None and not transpose_a:
        value = weight.value.T if transpose_b else weight.value
        templates.dense(ctx, data.in_memory(ctx), templates.Weights(value, *zeros), out)
        return
    sizes = product_sizes("nn.dense", data.shape, weight.shape, transpose_a, transpose_b)
    templates.product(ctx, _with_zeros(sizes, zeros), data, weight, out)


def emit_batch(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output, zeros: Zeros = (0, 0)) -> None:
    """Write a batch of products; a constant matrix that serves the whole batch is packed."""
    a, b = inputs[:2]
    if b.value is not None and b.shape[0] == 1 and not attrs["transpose_a"]:
        value = b.value[0].T if attrs["transpose_b"] else b.value[0]
        templates.dense(ctx, a.in_memory(ctx), templates.Weights(value, *zeros), out)
        return
    sizes = product_sizes("nn.batch_matmul", a.shape, b.shape, attrs["transpose_a"], attrs["transpose_b"])
    templates.product(ctx, _with_zeros(sizes, zeros), a, b, out)


def _with_zeros(sizes: Product, zeros: Zeros) -> Product:
    data_zero, weight_zero = zeros
    if not isinstance(weight_zero, int):
        raise UnsupportedError("a product of two computed tensors takes one zero point, not one per column")
    return replace(sizes, a_zero=data_zero, b_zero=weight_zero)


def _add_dense(name: str, attrs: tuple[Attr, ...], doc: str) -> None:
    def infer(types: list[Type], attrs: Attrs) -> TensorType:
        return infer_dense(name, types, attrs)

    def emit(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
        emit_dense(ctx, inputs, attrs, out)

    OPERATORS.add(
        name,
        Operator(name, 2, infer, Kind.ANCHOR, attrs, emit=emit, takes_bias=True, macs=product_macs,
                 contract=FLOAT_CONTRACT, doc=doc),
    )  # fmt: skip


_add_dense("nn.dense", DENSE_ATTRS, "Rows of data times the transpose of weights (units, in).")
_add_dense(
    "nn.matmul", (*DENSE_ATTRS, Attr("transpose_a", False), Attr("transpose_b", False)),
    "Matrix product, either operand transposed.",
)  # fmt: skip


def _infer_batch(types: list[Type], attrs: Attrs) -> TensorType:
    return infer_batch("nn.batch_matmul", types, attrs)


def _emit_batch(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
    emit_batch(ctx, inputs, attrs, out)


OPERATORS.add(
    "nn.batch_matmul",
    Operator("nn.batch_matmul", 2, _infer_batch, Kind.ANCHOR, BATCH_ATTRS, emit=_emit_batch, takes_bias=True,
             macs=product_macs, contract=FLOAT_CONTRACT, doc="Matrix product of each pair of a batch."),
)  # fmt: skip
