"""Quantized convolutions, dense layers and matrix products: exact int32 sums of zero-centred products.

The scales among the arguments say what the integers mean; the sums do not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels import templates
from mlfc.ops import conv, conv_types, dense
from mlfc.ops.rules import tensors
from mlfc.relay.ir import TensorType, Type
from mlfc.relay.op import OPERATORS, Attr, Kind, Operator
from mlfc.tir.context import Context, Output, Tensor

Attrs = Mapping[str, Any]


def _check(name: str, types: Sequence[Type], filters: int) -> None:
    """Check operand dtypes, zero points (int32) and scales (float32), the second of each maybe per channel."""
    found = tensors(name, types)
    for operand in found[:2]:
        if operand.dtype not in ("int8", "uint8", "int16"):
            raise TypeCheckError(f"{name}: operands must be int8, uint8 or int16, not {operand.dtype}")
    for index, what, dtype in ((2, "zero point", "int32"), (3, "zero point", "int32"),
                               (4, "scale", "float32"), (5, "scale", "float32")):  # fmt: skip
        kind = found[index]
        if kind.dtype != dtype:
            raise TypeCheckError(f"{name}: argument {index}, a {what}, must be {dtype}, not {kind.dtype}")
        allowed: tuple[tuple[int, ...], ...] = ((), (1,)) if index in (2, 4) else ((), (1,), (filters,))
        if kind.shape not in allowed:
            raise TypeCheckError(f"{name}: argument {index}, a {what}, has shape {kind.shape}")


def _int32(name: str, attrs: Attrs) -> str:
    dtype = conv_types.result_dtype(attrs, "int32")
    if dtype != "int32":
        raise TypeCheckError(f"{name}: out_dtype must be int32, not {dtype}")
    return dtype


def zero_points(name: str, inputs: Sequence[Tensor]) -> dense.Zeros:
    """Return the zero points among the inputs of a quantized operator, which must be constants."""
    data, weight = inputs[2].value, inputs[3].value
    if data is None or weight is None:
        raise UnsupportedError(f"{name} needs zero points that are known at compile time")
    if weight.size == 1:
        return int(data.reshape(())), int(weight.reshape(()))
    return int(data.reshape(())), np.asarray(weight, np.int32)


def _tensor_type(tensor: Tensor) -> TensorType:
    return TensorType(tensor.shape, tensor.dtype)


def _infer_conv(types: list[Type], attrs: Attrs) -> TensorType:
    name = "qnn.conv2d"
    data, weight = tensors(name, types)[:2]
    conv.check_rank(name, data, 2)
    sizes = conv_types.conv_geometry(name, data, weight, attrs)
    _check(name, types, sizes.filters)
    return TensorType(conv_types.arranged(sizes.batch, sizes.filters, sizes.output, attrs), _int32(name, attrs))


def _emit_conv(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
    name = "qnn.conv2d"
    conv.channels_last(name, attrs, 2)
    data, weight = inputs[:2]
    value = conv.constant_weights(name, weight)
    sizes = conv_types.conv_geometry(name, _tensor_type(data), _tensor_type(weight), attrs)
    ordered = conv.ordered_weights(value, attrs, sizes)
    templates.convolution(ctx, sizes, data.in_memory(ctx), templates.Weights(ordered, *zero_points(name, inputs)), out)


def _infer_transpose(types: list[Type], attrs: Attrs) -> TensorType:
    name = "qnn.conv2d_transpose"
    data, weight = tensors(name, types)[:2]
    conv.check_rank(name, data, 2)
    sizes = conv_types.transpose_geometry(name, data, weight, attrs)
    _check(name, types, sizes.channels)
    return TensorType(conv_types.arranged(sizes.batch, sizes.channels, sizes.spatial, attrs), _int32(name, attrs))


def _emit_transpose(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
    name = "qnn.conv2d_transpose"
    conv.channels_last(name, attrs, 2)
    data, weight = inputs[:2]
    value = conv.constant_weights(name, weight)
    sizes = conv_types.transpose_geometry(name, _tensor_type(data), _tensor_type(weight), attrs)
    ordered = conv.transposed_weights(value, attrs)
    templates.transposed(ctx, sizes, data.in_memory(ctx), templates.Weights(ordered, *zero_points(name, inputs)), out)


def _infer_dense(types: list[Type], attrs: Attrs) -> TensorType:
    found = tensors("qnn.dense", types)
    result = dense.infer_dense("qnn.dense", [found[0], _like(found[0], found[1])], attrs, _int32("qnn.dense", attrs))
    _check("qnn.dense", types, result.shape[-1])
    return result


def _infer_batch(types: list[Type], attrs: Attrs) -> TensorType:
    name = "qnn.batch_matmul"
    found = tensors(name, types)
    result = dense.infer_batch(name, [found[0], _like(found[0], found[1])], attrs, _int32(name, attrs))
    _check(name, types, result.shape[-1])
    return result


def _like(data: TensorType, weight: TensorType) -> TensorType:
    """Return the weights' type with the data's dtype: quantized operands may mix int8 and uint8."""
    return TensorType(weight.shape, data.dtype)


def _emit_dense(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
    dense.emit_dense(ctx, inputs, attrs, out, zero_points("qnn.dense", inputs))


def _emit_batch(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
    dense.emit_batch(ctx, inputs, attrs, out, zero_points("qnn.batch_matmul", inputs))


def _operator(name: str, attrs: tuple[Attr, ...], macs: Any, doc: str) -> Operator:
    infer, emit = _RULES[name]
    return Operator(
        name, 6, infer, Kind.ANCHOR, attrs, emit=emit, takes_bias=True, macs=macs, contract="exact", doc=doc
    )


_RULES: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "qnn.conv2d": (_infer_conv, _emit_conv),
    "qnn.conv2d_transpose": (_infer_transpose, _emit_transpose),
    "qnn.dense": (_infer_dense, _emit_dense),
    "qnn.batch_matmul": (_infer_batch, _emit_batch),
}
for _declared in (
    _operator("qnn.conv2d", conv_types.conv_attrs(2), conv.conv_macs,
              "Convolution of quantized data with quantized weights; int32 sums."),
    _operator("qnn.conv2d_transpose", conv_types.transpose_attrs(2), conv.transpose_macs,
              "Transposed convolution of quantized data; int32 sums."),
    _operator("qnn.dense", dense.DENSE_ATTRS, dense.product_macs,
              "Dense layer of quantized data; int32 sums."),
    _operator("qnn.batch_matmul", dense.BATCH_ATTRS, dense.product_macs,
              "Matrix product of each pair of a batch of quantized matrices; int32 sums."),
):  # fmt: skip
    OPERATORS.add(_declared.name, _declared)
