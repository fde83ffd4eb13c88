"""Fused activation functions, and activation operators."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from tflite import ActivationFunctionType

from mlfc.frontend.common import gelu
from mlfc.frontend.tflite.node import CODES, Node, converts
from mlfc.relay.ir import Expr, const, tensor_type
from mlfc.support import dtypes

_RANGES: dict[int, tuple[float | None, float | None]] = {
    ActivationFunctionType.NONE: (None, None),
    ActivationFunctionType.RELU: (0.0, None),
    ActivationFunctionType.RELU_N1_TO_1: (-1.0, 1.0),
    ActivationFunctionType.RELU6: (0.0, 6.0),
}
_RELU_0_TO_1 = 1 << 8  # not a fused function, so the number is beyond a byte
_RANGES[_RELU_0_TO_1] = (0.0, 1.0)
_SOFTMAX_TYPES = (("int8", "int8"), ("uint8", "uint8"), ("int8", "int16"), ("int16", "int16"))


def activated(node: Node, expr: Expr, function: int, *, tanh: bool = False) -> Expr:
    """Apply the fused activation `function` of TFLite to a float expression.

    `tanh` is True if the operator's reference kernel computes TANH. Otherwise TANH is omitted, as by these kernels.
    """
    if tanh and function == ActivationFunctionType.TANH and tensor_type(expr).dtype == "float32":
        return node.call("tanh", expr)
    low, high = _range(node, function)
    if low is None:
        return expr
    if low == 0.0 and high is None:
        return node.call("nn.relu", expr)
    return node.call("clip", expr, a_min=low, a_max=high)


def _range(node: Node, function: int) -> tuple[float | None, float | None]:
    if function not in _RANGES:
        node.refuse(f"the fused activation function number {function} is not supported", "Use RELU, RELU6 or none")
    return _RANGES[function]


def clipped(node: Node, expr: Expr, function: int) -> Expr:
    """Clip a quantized expression to the range of codes of the fused activation function."""
    output = node.output()
    low, high = _range(node, function)
    lowest, highest = dtypes.limits(output.dtype)

    def code(real: float) -> int:
        """Return the code of a number; like TFLite's reference, divide in float32 and round ties away from zero."""
        quotient = float(np.float32(real) / node.scale(output))
        return node.zero_point(output) + int(math.copysign(math.floor(abs(quotient) + 0.5), quotient))

    first = lowest if low is None else max(lowest, code(low))
    last = highest if high is None else min(highest, code(high))
    if (first, last) == (lowest, highest):
        return expr
    return node.call("clip", expr, a_min=float(first), a_max=float(last))


def requantized(
    node: Node, expr: Expr, in_scale: npt.NDArray[np.floating], *, axis: int, rounding: str, function: int
) -> Expr:
    """Requantize int32 sums to the first output, and apply the fused activation function.

    `in_scale` is the scale of the sums, one or one per index of `axis`; float64 where the reference multiplies the
    scales of data and weights in double.
    """
    output = node.output()
    scale = in_scale.reshape(()) if in_scale.size == 1 else in_scale
    out_scale, out_zero = node.quantization(output)
    result = node.call(
        "qnn.requantize", expr, const(scale), const(0, "int32"), out_scale, out_zero,
        axis=axis, rounding=rounding, out_dtype=output.dtype,
    )  # fmt: skip
    return clipped(node, result, function)


@converts("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", scaled=CODES)
def _relu(node: Node) -> Expr:
    function = getattr(ActivationFunctionType, node.record.code, _RELU_0_TO_1)
    if not node.quantized:
        return activated(node, node.expr(0), function)
    (in_scale, in_zero), (out_scale, out_zero) = (node.quantization(each) for each in (node.input(0), node.output()))
    # the reference divides the scales in float32
    ratio = np.float32(in_scale.data) / np.float32(out_scale.data)
    in_scale = const(np.float64(ratio) * np.float64(out_scale.data), "float64")
    result = node.call(
        "qnn.requantize", node.expr(0), in_scale, in_zero, out_scale, out_zero,
        rounding="DOUBLE", out_dtype=node.output().dtype,
    )  # fmt: skip
    return clipped(node, result, function)


def of_codes(node: Node, name: str, allowed: tuple[str, ...] = CODES, **attrs: object) -> Expr:
    """Return a quantized operator on the first input, with scales and zero points of input and output."""
    source, output = node.input(0), node.output()
    if source.dtype not in allowed or source.dtype != output.dtype:
        node.refuse(
            f"{node.record.code} from {source.type_name} to {output.type_name} is not supported", "Use int8 or float32"
        )
    return node.call(name, node.expr(0), *node.quantizations(source, output), **attrs)


@converts("LOGISTIC", "TANH", scaled=CODES)
def _squashed(node: Node) -> Expr:
    name = "tanh" if node.record.code == "TANH" else "sigmoid"
    if not node.quantized:
        return node.call(name, node.expr(0))
    # LiteRT's kernels use a table computed in float32, TFLite Micro's use fixed point
    return of_codes(node, f"qnn.{name}", fixed_point=node.numerics == "tflm")


@converts("HARD_SWISH", scaled=CODES)
def _hard_swish(node: Node) -> Expr:
    if node.quantized:
        return of_codes(node, "qnn.hardswish", ("int8", "uint8"))
    gate = node.call("clip", node.call("add", node.expr(0), const(3.0)), a_min=0.0, a_max=6.0)
    return node.call("divide", node.call("multiply", node.expr(0), gate), const(6.0))


@converts("LEAKY_RELU", scaled=CODES)
def _leaky_relu(node: Node) -> Expr:
    alpha = float(node.options("LeakyReluOptions").Alpha())
    if node.quantized:
        return of_codes(node, "qnn.leaky_relu", alpha=alpha)
    return node.call("nn.leaky_relu", node.expr(0), alpha=alpha)


@converts("PRELU", scaled=CODES)
def _prelu(node: Node) -> Expr:
    data, alpha = node.expr(0), node.expr(1)
    if node.quantized:
        scales = node.quantizations(node.input(0), node.input(1), node.output())
        return node.call("qnn.prelu", data, alpha, *scales)
    # nn.prelu has one slope per channel; TFLite broadcasts
    negative = node.call("less", data, const(0.0))
    return node.call("where", negative, node.call("multiply", data, alpha), data)


@converts("ELU", scaled=CODES)
def _elu(node: Node) -> Expr:
    if node.quantized:
        return of_codes(node, "qnn.elu", ("int8", "uint8"))
    data = node.expr(0)
    below = node.call("subtract", node.call("exp", node.call("minimum", data, const(0.0))), const(1.0))
    return node.call("where", node.call("less", data, const(0.0)), below, data)


@converts("GELU", scaled=CODES)
def _gelu(node: Node) -> Expr:
    options = node.record.options("GeluOptions")
    approximate = bool(options.Approximate()) if options is not None else False
    data = node.expr(0)
    if node.quantized:
        return of_codes(node, "qnn.gelu", approximate=approximate)
    return gelu(node.call, lambda value: const(value, tensor_type(data).dtype), data, tanh=approximate)


@converts("SOFTMAX", scaled=CODES)
def _softmax(node: Node) -> Expr:
    beta = float(node.options("SoftmaxOptions").Beta())
    if not np.isfinite(beta) or (node.quantized and beta <= 0):
        node.refuse(f"SOFTMAX with beta {beta:g} is not supported", "Use a positive number, usually 1")
    if not node.quantized:
        data = node.expr(0)
        if beta != 1.0:
            data = node.call("multiply", data, const(beta))
        return node.call("nn.softmax", data, axis=-1)
    source, output = node.input(0), node.output()
    if (source.dtype, output.dtype) not in _SOFTMAX_TYPES:
        node.refuse(
            f"SOFTMAX from {source.type_name} to {output.type_name} is not supported", "Use int8 to int8, or float32"
        )
    # the exponent is beta * scale * code, so beta is multiplied into the input's scale
    exact = np.float32 if source.dtype == "int16" else np.float64
    scales = (const(np.float64(exact(beta) * exact(node.scale(source)))), *node.quantizations(source, output)[1:])
    return node.call("qnn.softmax", node.expr(0), *scales, axis=-1, out_dtype=output.dtype)


@converts("LOG_SOFTMAX", scaled=CODES)
def _log_softmax(node: Node) -> Expr:
    if node.quantized:
        return of_codes(node, "qnn.log_softmax", ("int8", "uint8"))
    return node.call("nn.log_softmax", node.expr(0), axis=-1)
