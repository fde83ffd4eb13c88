"""Operators of ONNX Runtime's own domain that its quantizer and optimizer write."""

from __future__ import annotations

import numpy as np

from mlfc.frontend.onnx.conv import average_pool, convolution, global_pool
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.quantized import integer_matmul, note, requantized, scale_and_zero
from mlfc.frontend.onnx.table import MICROSOFT, importer
from mlfc.relay.ir import Expr


def _real(node: Node, index: int) -> Expr:
    """Return input `index`, followed by its scale and zero point, as real numbers."""
    scale, zero_point = scale_and_zero(node, index + 1, index + 2, "scale")
    note(node, node.input(index), scale, zero_point)
    return node.call("qnn.dequantize", node.input(index), scale, zero_point, out_dtype="float32", axis=-1)


def _integers(node: Node, x: Expr, index: int, like: int = 0) -> Expr:
    """Return `x` as integers whose scale and zero point are the inputs from `index` on."""
    scale, zero_point = scale_and_zero(node, index, index + 1, "Y_scale")
    dtype = node.dtype(index + 1) if node.has(index + 1) else node.dtype(like)
    result = node.call("qnn.quantize", x, scale, zero_point, out_dtype=dtype, axis=-1, rounding="TONEVEN")
    note(node, result, scale, zero_point)
    return result


@importer("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def _qlinear_pair(node: Node) -> Expr:
    operator = "add" if node.operator.endswith("Add") else "multiply"
    return _integers(node, node.call(operator, _real(node, 0), _real(node, 3)), 6)


@importer("QLinearSigmoid", domain=MICROSOFT)
def _qlinear_sigmoid(node: Node) -> Expr:
    return _integers(node, node.call("sigmoid", _real(node, 0)), 3)


@importer("QLinearLeakyRelu", domain=MICROSOFT)
def _qlinear_leaky_relu(node: Node) -> Expr:
    return _integers(node, node.call("nn.leaky_relu", _real(node, 0), alpha=node.real("alpha", 0.01)), 3)


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
    x = _real(node, 0)
    return _integers(node, global_pool(node, x, "avg") if "Global" in node.operator else average_pool(node, x), 3)


@importer("QLinearConcat", domain=MICROSOFT)
def _qlinear_concat(node: Node) -> Expr:
    if len(node.inputs) < 5 or (len(node.inputs) - 2) % 3:
        node.wrong(f"{len(node.inputs)} inputs are not a scale, a zero point and triples")
    parts = [_real(node, index) for index in range(2, len(node.inputs), 3)]
    axis = node.axis(node.integer("axis"), node.rank(2))
    return _integers(node, node.concatenate(parts, axis), 0, like=2)


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
        real = node.constant(unit, "float32")
        return node.call("multiply", node.cast(sums, dtype_of(real)), real)
    return requantized(node, sums, unit, 1, *scale_and_zero(node, 7, 8, "y_scale"), node.dtype(8))


@importer("MatMulIntegerToFloat", domain=MICROSOFT)
def _matmul_integer_to_float(node: Node) -> Expr:
    a_pair, b_pair = scale_and_zero(node, 2, 4, "a_scale"), scale_and_zero(node, 3, 5, "b_scale")
    sums = integer_matmul(node, node.input(0), node.input(1), a_pair, b_pair)
    unit = node.constant(a_pair[0].data * b_pair[0].data, "float32")
    real = node.call("multiply", node.cast(sums, "float32"), unit)
    return node.call("add", real, node.input(6)) if node.has(6) else real


@importer("FusedConv", domain=MICROSOFT)
def _fused_conv(node: Node) -> Expr:
    activation = node.string("activation", "")
    if activation not in ("", "Relu") or node.has(3):
        node.unsupported(f"with the activation '{activation}' or a sum is not supported", "Relu is supported")
    result = convolution(node)
    return node.call("nn.relu", result) if activation else result


@importer("CDist", domain=MICROSOFT)
def _distances(node: Node) -> Expr:
    """Return the distance of each row of the first input from each row of the second; skl2onnx writes it on request."""
    first, second = (node.shape(index) for index in range(2))
    metric = node.string("metric", "sqeuclidean")
    if len(first) != 2 or len(second) != 2 or first[1] != second[1] or metric not in ("euclidean", "sqeuclidean"):
        node.wrong(f"there is no distance '{metric}' between rows of {first} and {second}")
    apart = node.call("subtract", node.reshape(node.input(0), (first[0], 1, first[1])), node.input(1))
    squares = node.call("sum", node.call("multiply", apart, apart), axis=(2,), keepdims=False)
    return squares if metric == "sqeuclidean" else node.call("sqrt", squares)
