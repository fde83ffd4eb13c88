"""Elementwise operators, type conversions, and activation functions, alone or fused."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import numpy.typing as npt
from tflite import ActivationFunctionType

from mlfc.frontend.common import gelu
from mlfc.frontend.tflite.node import CODES, Node, converts, is_quantized, same_quantization
from mlfc.frontend.tflite.schema import TfliteTensor
from mlfc.ops.qnn_arithmetic import shifts_of
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, const, tensor_type
from mlfc.support import dtypes
from mlfc.support.fixed_point import quantize_multiplier

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


_RELAY = {
    "ADD": "add", "SUB": "subtract", "MUL": "multiply", "DIV": "divide", "MAXIMUM": "maximum", "MINIMUM": "minimum",
    "POW": "power", "FLOOR_DIV": "floor_divide", "FLOOR_MOD": "floor_mod", "EQUAL": "equal",
    "NOT_EQUAL": "not_equal", "LESS": "less", "LESS_EQUAL": "less_equal", "GREATER": "greater",
    "GREATER_EQUAL": "greater_equal", "LOGICAL_AND": "logical_and", "LOGICAL_OR": "logical_or",
    "LOGICAL_NOT": "logical_not", "ABS": "abs", "NEG": "negative", "EXP": "exp", "LOG": "log", "SQRT": "sqrt",
    "RSQRT": "rsqrt", "SIN": "sin", "COS": "cos", "FLOOR": "floor", "CEIL": "ceil", "SIGN": "sign", "ROUND": "round",
    "BITWISE_XOR": "bitwise_xor", "STABLEHLO_ADD": "add", "STABLEHLO_MULTIPLY": "multiply",
    "STABLEHLO_MAXIMUM": "maximum", "STABLEHLO_MINIMUM": "minimum",
}  # fmt: skip
# LiteRT applies these to the codes, regardless of scales and zero points
_BY_CODES = ("NEG", "FLOOR_DIV", "FLOOR_MOD", "BITWISE_XOR")
_QUANTIZED = {"ADD": "qnn.add", "SUB": "qnn.subtract", "MUL": "qnn.mul", "DIV": "qnn.div"}
# comparisons shift codes left by this many bits before rescaling them to a common scale
_COMPARISON_BITS = 8


@converts("ADD", "MUL", scaled=("int8", "uint8"))
@converts("SUB", "DIV", scaled=CODES)
def _fused_arithmetic(node: Node) -> Expr:
    code = node.record.code
    options = node.record.options(f"{code.title()}Options")
    function = 0 if options is None else int(options.FusedActivationFunction())
    tensors = (node.input(0), node.input(1), node.output())
    if not is_quantized(tensors[2]):
        return activated(node, node.call(_RELAY[code], node.expr(0), node.expr(1)), function)
    dtypes_of = {tensor.dtype for tensor in tensors}
    if len(dtypes_of) > 1 or not dtypes_of <= {*CODES}:
        given = ", ".join(tensor.type_name for tensor in tensors)
        node.refuse(f"quantized {code} of types {given} is not supported", "Use int8 throughout, or float32")
    attrs = {}
    if code in ("ADD", "SUB") and dtypes_of == {"int16"} and node.numerics == "litert":
        # LiteRT adds by shifts if the scales are powers of two; without options ADD may, SUB may not
        may_shift = code == "ADD" if options is None else options.PotScaleInt16()
        if may_shift and shifts_of([float(node.scale(tensor)) for tensor in tensors]) is not None:
            attrs["shifted"] = True
    result = node.call(_QUANTIZED[code], node.expr(0), node.expr(1), *node.quantizations(*tensors), **attrs)
    return clipped(node, result, function)


@converts("ADD_N")
def _add_n(node: Node) -> Expr:
    if node.quantized:
        node.refuse("quantized ADD_N is not supported", "Use ADD")
    return reduce(lambda total, item: node.call("add", total, item), node.operands())


@converts("MAXIMUM", "MINIMUM")
def _extreme(node: Node) -> Expr:
    tensors = (node.input(0), node.input(1), node.output())
    if not all(same_quantization(tensor, tensors[2]) for tensor in tensors[:2]):
        node.refuse(f"{node.record.code} of different scales is not supported", "Requantize to one scale first")
    lhs, rhs = node.expr(0), node.expr(1)
    if dtypes.is_float(tensors[2].dtype):  # if one operand is NaN, LiteRT returns the second
        wins = node.call("greater" if node.record.code == "MAXIMUM" else "less", lhs, rhs)
        return node.call("where", wins, lhs, rhs)
    return node.call(_RELAY[node.record.code], lhs, rhs)


@converts(
    "POW", "LOGICAL_AND", "LOGICAL_OR", "SIN", "COS", "FLOOR", "CEIL", "ROUND", "SIGN", "LOGICAL_NOT", *_BY_CODES,
    "STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM",
)  # fmt: skip
def _plain(node: Node) -> Expr:
    if node.record.code not in _BY_CODES:
        _refuse_codes(node)
    return node.call(_RELAY[node.record.code], *node.operands())


def _refuse_codes(node: Node) -> None:
    """Refuse quantized tensors, on whose codes the operator cannot be computed."""
    if node.quantized:
        node.refuse(f"quantized {node.record.code} is not supported", "Keep this operator in float32")


@converts("ABS", scaled=("int8", "uint8"))
@converts("EXP", "LOG", "RSQRT", scaled=CODES)
def _unary(node: Node) -> Expr:
    name = _RELAY[node.record.code]
    if not node.quantized:
        return node.call(name, node.expr(0))
    attrs = {"fixed_point": True} if name == "rsqrt" and node.input(0).dtype == "int8" else {}
    return of_codes(node, f"qnn.{name}", ("int8", "int16"), **attrs)


@converts("SQRT", scaled=CODES)
def _sqrt(node: Node) -> Expr:
    source, output = node.input(0), node.output()
    if not node.quantized:
        return node.call("sqrt", node.expr(0))
    real = node.call("sqrt", node.call("qnn.dequantize", node.expr(0), *node.quantization(source), out_dtype="float32"))
    # the reference truncates
    whole = node.call("cast", node.call("divide", real, const(node.scale(output), "float32")), dtype="int32")
    moved = node.call("add", whole, const(node.zero_point(output), "int32"))
    low, high = dtypes.limits(output.dtype)
    return node.call("cast", node.call("clip", moved, a_min=float(low), a_max=float(high)), dtype=output.dtype)


@converts("SQUARE", "SQUARED_DIFFERENCE", scaled=CODES)
def _square(node: Node) -> Expr:
    if node.quantized and node.record.code == "SQUARED_DIFFERENCE" and node.output().dtype == "int8":
        scales = node.quantizations(node.input(0), node.input(1), node.output())
        return node.call("qnn.squared_difference", node.expr(0), node.expr(1), *scales)
    _refuse_codes(node)
    x = node.expr(0) if node.record.code == "SQUARE" else node.call("subtract", node.expr(0), node.expr(1))
    return node.call("multiply", x, x)


@converts("EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", scaled=("int8", "uint8"))
@converts("NOT_EQUAL", scaled=CODES)
def _comparison(node: Node) -> Expr:
    lhs, rhs = node.expr(0), node.expr(1)
    # the reference orders int16 by code, regardless of the scales
    by_codes = node.input(0).dtype == "int16" and node.record.code not in ("EQUAL", "NOT_EQUAL")
    if is_quantized(node.input(0)) and is_quantized(node.input(1)) and not by_codes:
        lhs, rhs = _comparable(node, 0), _comparable(node, 1)
    return node.call(_RELAY[node.record.code], lhs, rhs)


def _comparable(node: Node, position: int) -> Expr:
    """Return codes on the common scale of the reference's comparison, whose rounding may make neighbours equal."""
    tensor = node.input(position)
    if quantize_multiplier(float(node.scale(tensor)))[1] > 0:
        node.refuse(f"comparing codes of the scale {node.scale(tensor):g} is not supported", "Use scales below 1")
    wide = node.call("cast", node.expr(position), dtype="int32")
    centred = node.call("subtract", wide, const(node.zero_point(tensor), "int32"))
    raised = node.call("multiply", centred, const(1 << _COMPARISON_BITS, "int32"))
    return node.call(
        "qnn.requantize", raised, const(node.scale(tensor), "float32"), const(0, "int32"), const(1.0, "float32"),
        const(0, "int32"), rounding="DOUBLE", out_dtype="int32",
    )  # fmt: skip


@converts("SELECT", "SELECT_V2")
def _select(node: Node) -> Expr:
    condition, then, otherwise = (node.expr(position) for position in range(3))
    if not all(same_quantization(node.input(position), node.output()) for position in (1, 2)):
        node.refuse("SELECT of different scales is not supported", "Requantize to one scale first")
    rank = len(ir.tensor_type(then).shape)
    short = len(ir.tensor_type(condition).shape)
    if node.record.code == "SELECT" and short == 1 and rank > 1:
        # the old SELECT selects whole rows if the condition has one dimension
        condition = node.call("reshape", condition, newshape=(-1, *(1,) * (rank - 1)))
    return node.call("where", condition, then, otherwise)


@converts("QUANTIZE")
def _quantize(node: Node) -> Expr:
    source, output = node.input(0), node.output()
    if not is_quantized(output) and (output.dtype != "int32" or output.quantization is None):
        node.refuse(f"QUANTIZE to {output.type_name} without a scale is not supported")
    if source.dtype == "float32":
        return node.call("qnn.quantize", node.expr(0), *node.quantization(output), out_dtype=output.dtype)
    if is_quantized(source) or (source.dtype == "int32" and source.quantization is not None):
        scales, dtype = node.quantizations(source, output), output.dtype
        return node.call("qnn.requantize", node.expr(0), *scales, rounding="DOUBLE", out_dtype=dtype)
    return node.refuse(f"QUANTIZE of {source.type_name} is not supported", "Give it float32 or int8")


@converts("DEQUANTIZE")
def _dequantize(node: Node) -> Expr:
    source, expr = node.input(0), node.expr(0)
    if source.dtype == "float16":
        if isinstance(expr, Constant):
            return Constant(expr.data.astype(np.float32), node.output().name, node.span)
        return node.call("cast", expr, dtype="float32")
    if source.quantization is None or not (is_quantized(source) or source.dtype in dtypes.NARROW_INTEGERS):
        node.refuse(f"DEQUANTIZE of {source.type_name} is not supported", "Give it int8, uint8, int16 or float16")
    if isinstance(expr, Constant):
        return Constant(dequantized(source, expr), node.output().name, node.span)
    return node.call("qnn.dequantize", expr, *node.quantization(source), out_dtype="float32")


def dequantized(tensor: TfliteTensor, constant: Constant) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return the real numbers of a quantized constant, computed in float32 as in the reference."""
    quantization = tensor.quantization
    assert quantization is not None  # checked by the caller
    shape = [1] * constant.data.ndim
    if len(quantization.scales) > 1:
        shape[quantization.axis] = -1
    scales = quantization.scales.reshape(shape) if shape else quantization.scales[0]
    zeros = quantization.zero_points.reshape(shape) if shape else quantization.zero_points[0]
    return np.asarray((constant.data.astype(np.int32) - zeros).astype(np.float32) * scales, np.float32)


@converts("CAST")
def _cast(node: Node) -> Expr:
    data, target = node.expr(0), node.output().dtype
    if not target:
        node.refuse(f"CAST to {node.output().type_name} is not supported")
    if ir.tensor_type(data).dtype in ("float16", "float32", "float64") and target in dtypes.INTEGERS:
        return _saturated(node, data, target)
    return node.call("cast", data, dtype=target)


def _saturated(node: Node, data: Expr, target: str) -> Expr:
    """Return floats as integers with saturation; NaN becomes the upper limit."""
    if ir.tensor_type(data).dtype == "float16":
        data = node.call("cast", data, dtype="float32")
    kind = ir.tensor_type(data).dtype
    number = dtypes.to_numpy(kind).type
    low, high = dtypes.limits(target)
    last = number(high)
    if int(last) > high:  # the next number below
        last = np.nextafter(last, number(0))
    fits = node.call("less_equal", data, const(last, kind))
    inside = node.call("maximum", node.call("where", fits, data, const(0, kind)), const(number(low), kind))
    return node.call("where", fits, node.call("cast", inside, dtype=target), const(high, target))


@converts("BITCAST")
def _bitcast(node: Node) -> Expr:
    source, target = node.input(0), node.output().dtype
    if not source.dtype or not target or dtypes.bits(source.dtype) != dtypes.bits(target):
        node.refuse(f"BITCAST from {source.type_name} to {node.output().type_name} is not supported")
    return node.call("reinterpret", node.expr(0), dtype=target)


@converts("RIGHT_SHIFT")
def _right_shift(node: Node) -> Expr:
    data, amount = node.operands()
    most = dtypes.bits(ir.tensor_type(data).dtype) - 1
    return node.call("right_shift", data, node.call("clip", amount, a_min=0.0, a_max=float(most)))


@converts("BUCKETIZE")
def _bucketize(node: Node) -> Expr:
    """Convert BUCKETIZE: count the boundaries that do not exceed each number."""
    options, shape = node.options("BucketizeOptions"), node.shape(0)
    boundaries = options.BoundariesAsNumpy() if options.BoundariesLength() else np.zeros(0, np.float32)
    if not boundaries.size:
        node.refuse("BUCKETIZE without boundaries is not supported")
    data = node.call("reshape", node.call("cast", node.expr(0), dtype="float32"), newshape=(*shape, 1))
    passed = node.call("greater_equal", data, const(boundaries, "float32"))
    return node.call("sum", node.call("cast", passed, dtype="int32"), axis=(len(shape),), keepdims=False)
