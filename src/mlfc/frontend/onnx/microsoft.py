"""Operators of ONNX Runtime's own domain that its quantizer and optimizer emit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.conv import average_pool, convolution, global_pool
from mlfc.frontend.onnx.index import wrapped_indices
from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.frontend.onnx.quantized import blocks_dequantized, integer_matmul, note, requantized, scale_and_zero
from mlfc.frontend.onnx.table import MICROSOFT, importer
from mlfc.kernels.codes import unpack_codes
from mlfc.relay.ir import Constant, Expr
from mlfc.support import dtypes

Array = npt.NDArray[Any]


def _real(node: Node, index: int) -> Expr:
    """Return input `index` dequantized by the scale and zero point in the two inputs after it."""
    scale, zero_point = scale_and_zero(node, index + 1, index + 2, "scale")
    note(node, node.input(index), scale, zero_point)
    return node.call("qnn.dequantize", node.input(index), scale, zero_point, out_dtype="float32", axis=-1)


def _integers(node: Node, x: Expr, index: int, like: int = 0) -> Expr:
    """Quantize `x` with the scale and zero point at inputs `index` and `index` + 1."""
    scale, zero_point = scale_and_zero(node, index, index + 1, "Y_scale")
    dtype = node.dtype(index + 1) if node.has(index + 1) else node.dtype(like)
    result = node.call("qnn.quantize", x, scale, zero_point, out_dtype=dtype, axis=-1, rounding="TONEVEN")
    note(node, result, scale, zero_point)
    return result


@importer("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def _qlinear_pair(node: Node) -> Expr:
    operator = "add" if node.operator.endswith("Add") else "multiply"
    return _integers(node, node.call(operator, _real(node, 0), _real(node, 3)), 6)


@importer("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def _qlinear_activation(node: Node) -> Expr:
    x, is_sigmoid = _real(node, 0), node.operator.endswith("Sigmoid")
    leaky = {} if is_sigmoid else {"alpha": node.real("alpha", 0.01)}
    return _integers(node, node.call("sigmoid" if is_sigmoid else "nn.leaky_relu", x, **leaky), 3)


@importer("QLinearSoftmax", domain=MICROSOFT)
def _qlinear_softmax(node: Node) -> Expr:
    axis = node.axis(node.integer("axis", -1), node.rank(0))
    if node.integer("opset") < 13 and axis != node.rank(0) - 1:
        node.unsupported("of several dimensions at once is not supported", "Softmax along the last axis is supported")
    return _integers(node, node.call("nn.softmax", _real(node, 0), axis=axis), 3)


@importer("QLinearGlobalAveragePool", "QLinearAveragePool", domain=MICROSOFT)
def _qlinear_pool(node: Node) -> Expr:
    if node.integer("channels_last", 0):
        node.unsupported("with channels_last is not supported", "Quantize the model before layout optimization")
    pool = global_pool if "Global" in node.operator else average_pool
    return _integers(node, pool(node, _real(node, 0)), 3)


@importer("QLinearConcat", domain=MICROSOFT)
def _qlinear_concat(node: Node) -> Expr:
    if len(node.inputs) < 5 or (len(node.inputs) - 2) % 3:
        node.wrong(f"{len(node.inputs)} inputs are not a scale, a zero point and triples")
    parts = [_real(node, index) for index in range(2, len(node.inputs), 3)]
    return _integers(node, node.concatenate(parts, node.axis(node.integer("axis"), node.rank(2))), 0, like=2)


@importer("QGemm", domain=MICROSOFT)
def _qgemm(node: Node) -> Expr:
    a, b = node.input(0), node.input(3)
    if node.real("alpha", 1.0) != 1.0:
        node.unsupported("with alpha is not supported", "Fold alpha into the scale of the weights")
    a = node.transpose(a, (1, 0)) if node.integer("transA", 0) else a
    b = node.transpose(b, (1, 0)) if node.integer("transB", 0) else b
    a_pair, b_pair = scale_and_zero(node, 1, 2, "a_scale"), scale_and_zero(node, 4, 5, "b_scale")
    note(node, node.input(0), *a_pair)
    sums = integer_matmul(node, a, b, a_pair, b_pair)
    if node.has(6):
        sums = node.call("nn.bias_add", sums, node.reshape(node.input(6), (shape_of(sums)[1],)), axis=1)
    unit = np.asarray(a_pair[0].data * b_pair[0].data)
    if not node.has(7):
        return node.call("multiply", node.cast(sums, "float32"), node.constant(unit, "float32"))
    return requantized(node, sums, unit, 1, *scale_and_zero(node, 7, 8, "y_scale"), node.dtype(8))


@importer("MatMulIntegerToFloat", domain=MICROSOFT)
def _matmul_integer_to_float(node: Node) -> Expr:
    a_pair, b_pair = scale_and_zero(node, 2, 4, "a_scale"), scale_and_zero(node, 3, 5, "b_scale")
    sums = node.cast(integer_matmul(node, node.input(0), node.input(1), a_pair, b_pair), "float32")
    real = node.call("multiply", sums, node.constant(a_pair[0].data * b_pair[0].data, "float32"))
    return node.call("add", real, node.input(6)) if node.has(6) else real


@importer("FusedConv", domain=MICROSOFT)
def _fused_conv(node: Node) -> Expr:
    activation = node.string("activation", "")
    if activation not in ("", "Relu") or node.has(3):
        node.unsupported(f"with the activation '{activation}' or a sum is not supported", "Relu is supported")
    result = convolution(node)
    return node.call("nn.relu", result) if activation else result


# Weights of 2, 4 or 8 bits with a scale per block

_UNSIGNED = {2: "uint2", 4: "uint4", 8: "uint8"}
_FLOATS = ("float32", "float16", "bfloat16")


def _width(node: Node) -> str:
    """Return the dtype of the packed numbers."""
    bits = node.integer("bits", 4)
    if bits not in _UNSIGNED:
        node.unsupported(f"with bits={bits} is not supported", "Quantize the weights to 2, 4 or 8 bits")
    return _UNSIGNED[bits]


def _block(node: Node, default: int | None = None) -> int:
    block = node.integer("block_size", default)
    if block < 16 or block & (block - 1):
        node.wrong(f"expected a block_size that is a power of 2 and at least 16, got {block}")
    return block


def _numbers(packed: Array, dtype: str, extent: int) -> Array:
    """Return the first `extent` numbers of each row of packed bytes."""
    found = unpack_codes(packed, dtypes.bits(dtype), extent)
    return found if dtype == "uint8" else found.view(dtypes.to_numpy(dtype))


def _named(node: Node, index: int, values: Array) -> Constant:
    """Return a constant with the name of an input."""
    given = node.input(index)
    return Constant(values, given.name if isinstance(given, Constant) else None, given.span)


def _expect(node: Node, what: str, given: tuple[int, ...], *expected: tuple[int, ...]) -> None:
    if given not in expected:
        node.wrong(f"expected {what} of shape {' or '.join(map(str, expected))}, got {given}")


@importer("MatMulNBits", ignores=("accuracy_level",), domain=MICROSOFT)
def _matmul_of_bits(node: Node) -> Expr:
    dtype, block, inner, units = _width(node), _block(node), node.integer("K"), node.integer("N")
    if inner < 1 or units < 1 or not node.rank(0) or node.shape(0)[-1] != inner:
        node.wrong(f"data of shape {node.shape(0)} do not fit K={inner} and N={units}")
    if node.dtype(0) not in _FLOATS:
        node.wrong(f"expected data of {', '.join(_FLOATS)}, got {node.dtype(0)}")
    packed, blocks = node.value(1, "B"), -(-inner // block)
    _expect(node, "B", packed.shape, (units, blocks, block * dtypes.bits(dtype) // 8))
    if packed.dtype != np.uint8:
        node.wrong(f"expected B of uint8, got {node.dtype(1)}")
    if node.has(4):
        order = node.value(4, "g_idx")
        if order.shape != (inner,) or np.any(order != np.arange(order.size) // block):
            node.unsupported("with a g_idx that is not in order is not supported", "Sort the columns by their group")
        if node.has(3):  # ONNX Runtime ignores them in this case
            node.unsupported("with both a g_idx and zero points is not supported", "Remove the g_idx: it is in order")
    codes = _named(node, 1, _numbers(packed.reshape(units, -1), dtype, inner))
    scales = node.value(2, "scales")
    _expect(node, "scales", scales.shape, (units * blocks,), (units, blocks))
    pair = _named(node, 2, scales.reshape(units, blocks)), _zero_points(node, dtype, (units, blocks))
    weights = blocks_dequantized(node, codes, pair, 1, block)
    result = node.call("nn.dense", node.cast(node.input(0), "float32"), weights, units=units)
    if node.has(5):
        _expect(node, "bias", node.shape(5), (units,))
        bias = node.cast(node.input(5), "float32")
        result = node.call("nn.bias_add", result, bias, axis=len(shape_of(result)) - 1)
    return node.cast(result, node.dtype(0))


def _zero_points(node: Node, dtype: str, shape: tuple[int, int]) -> Array | np.int32:
    """Return the zero points of MatMulNBits: packed codes, or numbers of the data's dtype."""
    bits = dtypes.bits(dtype)
    if not node.has(3):
        return np.int32(1 << (bits - 1))
    given, (units, blocks) = node.value(3, "zero_points"), shape
    if given.dtype != np.uint8:
        if node.dtype(3) not in _FLOATS:
            node.wrong(f"expected zero points of uint8 or like the data, got {node.dtype(3)}")
        _expect(node, "zero points", given.shape, (units * blocks,), shape)
        return given.reshape(shape).astype(np.float32)
    row_bytes = -(-blocks * bits // 8)
    _expect(node, "zero points", given.shape, (units * row_bytes,), (units, row_bytes))
    return unpack_codes(given.reshape(units, row_bytes), bits, blocks).astype(np.int32)


@importer("GatherBlockQuantized", domain=MICROSOFT)
def _gather_of_bits(node: Node) -> Expr:
    block, bits = _block(node, 128), node.integer("bits", 4)
    data, dtype = node.value(0, "data"), node.dtype(0)
    axis = node.axis(node.integer("gather_axis", 0), data.ndim)
    along = node.axis(node.integer("quantize_axis", 1), data.ndim)
    is_packed = dtype == "uint8" and bits < 8
    if is_packed:
        dtype = _width(node)
        if along != data.ndim - 1:
            node.wrong(f"quantize_axis of packed bytes must be the last one, {data.ndim - 1}, not {along}")
        data = _numbers(data, dtype, data.shape[-1] * 8 // bits)
    elif dtype not in ("int4", "uint4", "uint8"):
        node.unsupported(f"of {dtype} is not supported", "int4, uint4 and uint8 are supported")
    scales = node.value(2, "scales")
    expected = tuple(-(-extent // block) if at == along else extent for at, extent in enumerate(data.shape))
    _expect(node, "scales", scales.shape, expected)
    zero: Array | np.int32 = np.int32(1 << (bits - 1) if node.dtype(0) == "uint8" else 0)
    if node.has(3):
        given = node.value(3, "zero_points")
        if is_packed:
            _expect(node, "zero points", given.shape, (*expected[:-1], -(-expected[-1] * bits // 8)))
            given = unpack_codes(given, bits, expected[-1])
        _expect(node, "zero points", given.shape, expected)
        zero = given.astype(np.int32)
    table = blocks_dequantized(node, _named(node, 0, data), (_named(node, 2, scales), zero), along, block)
    indices = wrapped_indices(node, node.input(1), data.shape[axis])
    return node.cast(node.call("take", table, indices, axis=axis, mode="clip"), node.dtype(2))
