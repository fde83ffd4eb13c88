"""Operators that work element by element, and conversions between types."""

from __future__ import annotations

from functools import reduce

import numpy as np

from mlfc.frontend.tflite.activation import activated, clipped, of_codes, rescaled
from mlfc.frontend.tflite.node import CODES, Node, converts, is_quantized, same_quantization
from mlfc.frontend.tflite.schema import TfliteTensor
from mlfc.ops.qnn_arithmetic import shifts_of
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, const
from mlfc.support import dtypes
from mlfc.support.fixed_point import quantize_multiplier

_FUSED = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions"}
_RELAY = {
    "ADD": "add", "SUB": "subtract", "MUL": "multiply", "DIV": "divide", "MAXIMUM": "maximum", "MINIMUM": "minimum",
    "POW": "power", "FLOOR_DIV": "floor_divide", "FLOOR_MOD": "floor_mod", "EQUAL": "equal",
    "NOT_EQUAL": "not_equal", "LESS": "less", "LESS_EQUAL": "less_equal", "GREATER": "greater",
    "GREATER_EQUAL": "greater_equal", "LOGICAL_AND": "logical_and", "LOGICAL_OR": "logical_or",
    "LOGICAL_NOT": "logical_not", "ABS": "abs", "NEG": "negative", "EXP": "exp", "LOG": "log", "SQRT": "sqrt",
    "RSQRT": "rsqrt", "SIN": "sin", "COS": "cos", "FLOOR": "floor", "CEIL": "ceil", "SIGN": "sign", "ROUND": "round",
}  # fmt: skip
_QUANTIZED = {"ADD": "qnn.add", "SUB": "qnn.subtract", "MUL": "qnn.mul", "DIV": "qnn.div"}
# comparisons scale codes up by this many bits before they bring them to a common scale
_COMPARISON_BITS = 8


@converts("ADD", "MUL", scaled=("int8", "uint8"))
@converts("SUB", "DIV", scaled=CODES)
def _fused_arithmetic(node: Node) -> Expr:
    code = node.record.code
    options = node.record.options(_FUSED[code])
    function = 0 if options is None else int(options.FusedActivationFunction())
    lhs, rhs, output = node.input(0), node.input(1), node.output()
    if is_quantized(output):
        if not lhs.dtype == rhs.dtype == output.dtype or output.dtype not in CODES:
            given = ", ".join(tensor.type_name for tensor in (lhs, rhs, output))
            node.refuse(f"quantized {code} of types {given} is not supported", "Use int8 throughout, or float32")
        scales = node.quantizations(lhs, rhs, output)
        attrs = {"shifted": True} if _adds_by_shifts(node) else {}
        return clipped(node, node.call(_QUANTIZED[code], node.expr(0), node.expr(1), *scales, **attrs), function)
    return activated(node, node.call(_RELAY[code], node.expr(0), node.expr(1)), function)


@converts("ADD_N")
def _add_n(node: Node) -> Expr:
    if node.quantized:
        node.refuse("quantized ADD_N is not supported", "Use ADD")
    return reduce(lambda total, item: node.call("add", total, item), node.operands())


def _adds_by_shifts(node: Node) -> bool:
    """Tell whether LiteRT adds by shifts: int16 of scales that are powers of two, unless the options forbid it."""
    code = node.record.code
    if code not in ("ADD", "SUB") or node.output().dtype != "int16" or node.numerics != "litert":
        return False
    options = node.record.options(_FUSED[code])
    scales = [float(node.scale(tensor)) for tensor in (node.input(0), node.input(1), node.output())]
    # of an operator without options SUB does not, ADD does
    asked = code == "ADD" if options is None else bool(options.PotScaleInt16())
    return asked and shifts_of(scales) is not None


@converts("MAXIMUM", "MINIMUM")
def _extreme(node: Node) -> Expr:
    tensors = (node.input(0), node.input(1), node.output())
    if not all(same_quantization(tensor, tensors[2]) for tensor in tensors[:2]):
        node.refuse(f"{node.record.code} of different scales is not supported", "Requantize to one scale first")
    lhs, rhs = node.expr(0), node.expr(1)
    if dtypes.is_float(tensors[2].dtype):  # where one is NaN, LiteRT returns the second
        wins = node.call("greater" if node.record.code == "MAXIMUM" else "less", lhs, rhs)
        return node.call("where", wins, lhs, rhs)
    return node.call(_RELAY[node.record.code], lhs, rhs)


@converts(
    "POW", "LOGICAL_AND", "LOGICAL_OR", "SIN", "COS", "FLOOR", "CEIL",
    "ROUND", "SIGN", "LOGICAL_NOT",
)  # fmt: skip
def _plain(node: Node) -> Expr:
    _refuse_codes(node)
    return node.call(_RELAY[node.record.code], *node.operands())


_STABLEHLO = {"ADD": "add", "MULTIPLY": "multiply", "MAXIMUM": "maximum", "MINIMUM": "minimum"}


@converts(*(f"STABLEHLO_{code}" for code in _STABLEHLO))
def _stablehlo(node: Node) -> Expr:
    _refuse_codes(node)
    return node.call(_STABLEHLO[node.record.code.removeprefix("STABLEHLO_")], *node.operands())


@converts("NEG", "FLOOR_DIV", "FLOOR_MOD")
def _of_codes(node: Node) -> Expr:
    """Convert operators that compute with codes as they are, whatever their scales and zero points: LiteRT's do."""
    return node.call(_RELAY[node.record.code], *node.operands())


def _refuse_codes(node: Node) -> None:
    """Refuse integers that stand for real numbers: their codes cannot be computed with as they are."""
    if node.quantized:
        node.refuse(f"quantized {node.record.code} is not supported", "Keep this operator in float32")


@converts("ABS", scaled=("int8", "uint8"))
@converts("EXP", "LOG", scaled=CODES)
def _unary(node: Node) -> Expr:
    code = node.record.code
    return (
        of_codes(node, f"qnn.{_RELAY[code]}", ("int8", "int16"))
        if node.quantized
        else node.call(_RELAY[code], node.expr(0))
    )


@converts("SQRT", "RSQRT", scaled=CODES)
def _root(node: Node) -> Expr:
    code, source, output = node.record.code, node.input(0), node.output()
    if not node.quantized:
        return node.call(_RELAY[code], node.expr(0))
    if code == "RSQRT":
        attrs = {"fixed_point": True} if source.dtype == "int8" else {}
        return of_codes(node, "qnn.rsqrt", ("int8", "int16"), **attrs)
    real = node.call("sqrt", node.call("qnn.dequantize", node.expr(0), *node.quantization(source), out_dtype="float32"))
    # the reference cuts off what is behind the point
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
    # the reference compares the order of int16 by their codes, whatever their scales
    by_codes = node.input(0).dtype == "int16" and node.record.code not in ("EQUAL", "NOT_EQUAL")
    if is_quantized(node.input(0)) and is_quantized(node.input(1)) and not by_codes:
        lhs, rhs = _comparable(node, 0), _comparable(node, 1)
    return node.call(_RELAY[node.record.code], lhs, rhs)


def _comparable(node: Node, position: int) -> Expr:
    """Return codes on the common scale on which the reference compares; it rounds, so neighbours may become equal."""
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
        # the old SELECT picks whole rows by a condition of one dimension
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
        return rescaled(node, node.expr(0), source)
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
    """Return the real numbers of a quantized constant, in float32 as the reference computes them."""
    quantization = tensor.quantization
    assert quantization is not None  # the caller looked
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
    """Return floats as integers: numbers beyond those of the type become its ends, and NaN the upper one."""
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


@converts("BITWISE_XOR")
def _bitwise_xor(node: Node) -> Expr:
    return node.call("bitwise_xor", *node.operands())


@converts("RIGHT_SHIFT")
def _right_shift(node: Node) -> Expr:
    data, amount = node.operands()
    most = dtypes.bits(ir.tensor_type(data).dtype) - 1
    return node.call("right_shift", data, node.call("clip", amount, a_min=0.0, a_max=float(most)))


@converts("BUCKETIZE")
def _bucketize(node: Node) -> Expr:
    """Convert BUCKETIZE: how many boundaries are not above each number."""
    options, shape = node.options("BucketizeOptions"), node.shape(0)
    boundaries = options.BoundariesAsNumpy() if options.BoundariesLength() else np.zeros(0, np.float32)
    if not boundaries.size:
        node.refuse("BUCKETIZE without boundaries is not supported")
    data = node.call("reshape", node.call("cast", node.expr(0), dtype="float32"), newshape=(*shape, 1))
    passed = node.call("greater_equal", data, const(boundaries, "float32"))
    return node.call("sum", node.call("cast", passed, dtype="int32"), axis=(len(shape),), keepdims=False)
