"""Elementwise arithmetic, comparison, logic, selection and activation functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from math import inf, prod

import numpy as np

from mlfc.frontend.common import gelu
from mlfc.frontend.onnx.draws import dropped
from mlfc.frontend.onnx.node import Node, dtype_of, exceeds_halves, is_float, shape_of, wide
from mlfc.frontend.onnx.table import MICROSOFT, importer
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.relay.ir import Expr
from mlfc.support import dtypes

_UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan",
    "Atanh": "atanh", "BitwiseNot": "bitwise_not", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "IsNaN": "isnan", "Log": "log", "Neg": "negative",
    "Not": "logical_not", "Round": "round", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh",
    "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_BINARY = {
    "Add": "add", "And": "logical_and", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor", "Equal": "equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
    "Less": "less", "LessOrEqual": "less_equal", "Mul": "multiply", "Or": "logical_or", "Sub": "subtract",
    "Xor": "logical_xor",
}  # fmt: skip
_TERNARY = {"Where": "where"}
_VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _of_inputs(operator: str, count: int, node: Node) -> Expr:
    return node.call(operator, *(node.input(index) for index in range(count)))


def _folded(operator: str, node: Node) -> Expr:
    return reduce(partial(node.call, operator), node.all_inputs())


for _count, _table in enumerate((_UNARY, _BINARY, _TERNARY), 1):
    for _name, _operator in _table.items():
        importer(_name)(partial(_of_inputs, _operator, _count))
for _name, _operator in _VARIADIC.items():
    importer(_name)(partial(_folded, _operator))


@importer("BitCast", since=26)
def _bit_cast(node: Node) -> Expr:
    dtype = dtype_name(node.integer("to"), node.name)
    if dtypes.bits(dtype) != dtypes.bits(node.dtype(0)):
        node.wrong(f"{node.dtype(0)} and {dtype} differ in size")
    if dtype == "bool":  # a bool has one valid bit
        return node.call("not_equal", node.call("reinterpret", node.input(0), dtype="uint8"), 0)
    return node.call("reinterpret", node.input(0), dtype=dtype)


@importer("Mean")
def _mean(node: Node) -> Expr:
    total = reduce(partial(node.call, "add"), [wide(node, each) for each in node.all_inputs()])
    return node.cast(node.call("divide", total, len(node.inputs)), node.dtype(0))


@importer("Reciprocal")
def _reciprocal(node: Node) -> Expr:
    return node.call("divide", 1.0, node.input(0))


@importer("Div")
def _div(node: Node) -> Expr:
    return _of_inputs("divide" if is_float(node.input(0)) else "trunc_divide", 2, node)


@importer("Mod")
def _mod(node: Node) -> Expr:
    return _of_inputs("trunc_mod" if node.integer("fmod", 0) == 1 else "floor_mod", 2, node)


@importer("Pow")
def _pow(node: Node) -> Expr:
    base, exponent = node.input(0), node.input(1)
    dtype = wide = dtype_of(base)
    if not is_float(base) and is_float(exponent):
        wide = "float64" if dtypes.bits(dtype) > 16 else "float32"
    elif not is_float(base):
        known, (low, high) = node.known(1), dtypes.limits(dtype)
        if dtype_of(exponent) != dtype and (known is None or not np.all((known >= low) & (known <= high))):
            wide = "uint64" if dtype_of(exponent).startswith("u") else "int64"
    return node.cast(node.call("power", node.cast(base, wide), node.cast(exponent, wide)), dtype)


@importer("BitShift")
def _bit_shift(node: Node) -> Expr:
    direction = node.string("direction")
    if direction not in ("LEFT", "RIGHT"):
        node.wrong(f"the direction must be LEFT or RIGHT, not '{direction}'")
    x, amount = node.input(0), node.input(1)
    width, signed = dtypes.bits(dtype_of(x)), dtype_of(x).startswith("int")
    operator = "left_shift" if direction == "LEFT" else "right_shift"
    known = node.known(1)
    if known is not None and known.size and known.min() >= 0 and known.max() < width:
        return node.call(operator, x, amount)
    # shifting by the bit width or more yields 0, or copies of the sign
    far = node.call("greater_equal", amount, width)
    if signed:
        far = node.call("logical_or", far, node.call("less", amount, 0))
    shifted = node.call(operator, x, node.call("where", far, width - 1, amount))
    return shifted if signed and direction == "RIGHT" else node.call("where", far, 0, shifted)


@importer("IsInf")
def _is_inf(node: Node) -> Expr:
    x = node.input(0)
    result = node.call("isinf", x)
    for attribute, side in (("detect_negative", "greater"), ("detect_positive", "less")):
        if node.integer(attribute, 1) == 0:
            result = node.call("logical_and", result, node.call(side, x, 0.0))
    return result


@importer("Clip")
@importer("Clip", since=11)
def _clip(node: Node) -> Expr:
    x, largest = node.input(0), _largest(node)
    if node.opset < 11:
        return clip(node, x, node.real("min", -largest), node.real("max", largest))
    limits = ((1, -largest, "less", "maximum"), (2, largest, "greater", "minimum"))
    if is_float(x) and all(node.known(index) is not None or not node.has(index) for index, *_ in limits):
        ends = [default if (known := node.known(index)) is None else known for index, default, *_ in limits]
        return clip(node, x, *(float(np.reshape(end, ())) for end in ends))
    for index, default, beyond, integers in limits:
        if not is_float(x):
            x = node.call(integers, x, node.reshape(node.input(index), ())) if node.has(index) else x
            continue
        end = node.reshape(node.input(index), ()) if node.has(index) else node.like(default, x)
        x = node.call("where", node.call(beyond, x, end), end, x)  # NaN as a limit has no effect
    return x


def _largest(node: Node) -> float:
    """Return ONNX Runtime's default limit of Clip: float32's in older opsets, each dtype's own in newer ones."""
    dtype, opset = node.dtype(0), node.opset
    if not dtypes.is_float(dtype):
        return np.inf
    own, of_float32 = (dtypes.float_range(kind)[1] for kind in (dtype, "float32"))
    largest = own if opset >= 12 or (opset == 11 and dtype == "float64") else of_float32
    return largest if largest <= own else np.inf


def clip(node: Node, x: Expr, low: float, high: float) -> Expr:
    """Return `x` clipped to [low, high]; NaN as a bound has no effect."""
    low, high = (-np.inf if np.isnan(low) else low), (np.inf if np.isnan(high) else high)
    if np.isfinite(low) and np.isfinite(high):
        return node.call("clip", x, a_min=low, a_max=high)
    if low > -np.inf:
        x = node.call("nn.relu", x) if low == 0.0 else node.call("maximum", x, low)
    return node.call("minimum", x, high) if high < np.inf else x


@importer("Cast", "CastLike")
def _cast(node: Node) -> Expr:
    dtype = dtype_name(node.integer("to"), node.name) if node.operator == "Cast" else node.dtype(1)
    saturate, mode = node.flag("saturate", 1), node.string("round_mode", "up")
    return narrowed(node, node.input(0), dtype, saturate=saturate, round_mode=mode)


def narrowed(node: Node, x: Expr, dtype: str, *, saturate: bool, round_mode: str = "up") -> Expr:
    """Return `x` cast to `dtype`; saturation and rounding modes only affect 8-bit floats."""
    if dtype not in dtypes.NARROW_FLOATS or (saturate and round_mode == "up"):
        return node.cast(x, dtype)
    return node.call("cast_narrow", x, dtype=dtype, saturate=saturate, round_mode=round_mode)


@importer("Identity", sequences=True)
def _identity(node: Node) -> Expr:
    return node.input(0)


@importer("Dropout", ignores=("ratio", "is_test"))
def _dropout(node: Node) -> Expr | list[Expr]:
    training, ratio = node.known(2), node.known(1)
    drops = ratio is None or ratio.any() if node.has(1) else True
    if node.has(2) and drops and (training is None or training.any()):
        return dropped(node, node.optional(1), node.input(2) if training is None else None)
    node.attribute("seed")
    if not node.wants(1):
        return node.input(0)
    # before opset 12 ONNX Runtime's mask in inference mode is all false, and before opset 10 it has the data's dtype
    dtype = "bool" if node.opset >= 10 else node.dtype(0)
    return [node.input(0), node.filled(node.shape(0), int(node.opset >= 12), dtype)]


def _below_zero(node: Node, x: Expr, instead: Expr) -> Expr:
    """Return `x` with negative elements replaced by `instead`."""
    return node.call("where", node.call("less", x, 0.0), instead, x)


def _scaled(node: Node, x: Expr, factor: float, offset: float = 0.0) -> Expr:
    """Return ``factor * x + offset``."""
    product = x if factor == 1.0 else node.call("multiply", x, factor)
    return product if offset == 0.0 else node.call("add", product, offset)


def _limited(node: Node, x: Expr, factor: float, offset: float) -> Expr:
    """Return ``factor * x + offset`` clipped to [0, 1]."""
    return clip(node, _scaled(node, x, factor, offset), 0.0, 1.0)


def _exponential(node: Node, x: Expr, alpha: float) -> Expr:
    """Return ``alpha * (exp(x) - 1)``."""
    return _scaled(node, _scaled(node, node.call("exp", x), 1.0, -1.0), alpha)


def softplus(node: Node, x: Expr) -> Expr:
    """Return ``log(1 + exp(x))`` without overflow for large `x`, and accurate for small results."""
    decaying = node.call("exp", node.call("negative", node.call("abs", x)))
    sum_ = node.call("add", decaying, 1.0)
    ratio = node.call("divide", decaying, node.call("subtract", sum_, 1.0))  # corrects the rounding error of the sum
    rest = node.call("multiply", node.call("log", sum_), ratio)
    return node.call("add", node.call("nn.relu", x), node.call("where", node.call("equal", sum_, 1.0), decaying, rest))


def _gelu(node: Node, x: Expr, *, tanh: bool) -> Expr:
    return gelu(node.call, lambda value: node.like(value, x), x, tanh=tanh)


def _selu(node: Node, x: Expr) -> Expr:
    alpha, gamma = node.real("alpha", 1.67326319217681884765625), node.real("gamma", 1.05070102214813232421875)
    return _scaled(node, _below_zero(node, x, _exponential(node, x, alpha)), gamma)


def _celu(node: Node, x: Expr) -> Expr:
    alpha = node.real("alpha", 1.0)
    if not 0.0 < abs(alpha) < inf:
        node.wrong(f"expected a finite number other than zero as alpha, got {alpha}")
    return _below_zero(node, x, _exponential(node, _scaled(node, x, 1.0 / alpha), alpha))


def _gated(node: Node, x: Expr, alpha: float) -> Expr:
    return node.call("multiply", x, node.call("sigmoid", _scaled(node, x, node.real("alpha", alpha))))


def _shrink(node: Node, x: Expr) -> Expr:
    limit, bias, dtype = node.real("lambd", 0.5), node.real("bias", 0.0), dtype_of(x)
    x = x if dtypes.is_float(dtype) else node.cast(x, "float32")  # as the attributes are real numbers
    inner = node.call("where", node.call("greater", x, limit), node.call("subtract", x, bias), 0.0)
    return node.cast(node.call("where", node.call("less", x, -limit), node.call("add", x, bias), inner), dtype)


_FUNCTIONS: dict[str, Callable[[Node, Expr], Expr]] = {
    "Relu": lambda node, x: node.call("nn.relu", x),
    "LeakyRelu": lambda node, x: node.call("nn.leaky_relu", x, alpha=node.real("alpha", 0.01)),
    "PRelu": lambda node, x: _below_zero(node, x, node.call("multiply", x, node.input(1))),
    "Elu": lambda node, x: _below_zero(node, x, _exponential(node, x, node.real("alpha", 1.0))),
    "Selu": _selu,
    "Celu": _celu,
    "HardSigmoid": lambda node, x: _limited(node, x, node.real("alpha", 0.2), node.real("beta", 0.5)),
    "HardSwish": lambda node, x: node.call("multiply", x, _limited(node, x, 1.0 / 6.0, 0.5)),
    "Softplus": softplus,
    "Mish": lambda node, x: node.call("nn.mish", x),
    "Softsign": lambda node, x: node.call("divide", x, _scaled(node, node.call("abs", x), 1.0, 1.0)),
    "Swish": lambda node, x: _gated(node, x, 1.0),
    "ThresholdedRelu": lambda node, x: node.call("where", node.call("greater", x, node.real("alpha", 1.0)), x, 0.0),
    "Shrink": _shrink,
}
_MICROSOFT_FUNCTIONS: dict[str, Callable[[Node, Expr], Expr]] = {
    "QuickGelu": lambda node, x: _gated(node, x, 1.702),
    "Gelu": lambda node, x: _gelu(node, x, tanh=False),
    "FastGelu": lambda node, x: _gelu(node, node.call("add", x, node.input(1)) if node.has(1) else x, tanh=True),
    "BiasGelu": lambda node, x: _gelu(node, node.call("add", x, node.input(1)), tanh=False),
}


def _applied(node: Node, function: Callable[[Node, Expr], Expr]) -> Expr:
    x = node.input(0)
    return node.cast(function(node, wide(node, x)), dtype_of(x)) if exceeds_halves(node) else function(node, x)


for _domain, _functions in (("", _FUNCTIONS), (MICROSOFT, _MICROSOFT_FUNCTIONS)):
    for _name, _function in _functions.items():
        importer(_name, domain=_domain)(lambda node, function=_function: _applied(node, function))


@importer("Gelu")
def _gelu_of_attribute(node: Node) -> Expr:
    approximate = node.string("approximate", "none")
    if approximate not in ("none", "tanh"):
        node.wrong(f"'approximate' must be none or tanh, not '{approximate}'")
    return _gelu(node, node.input(0), tanh=approximate == "tanh")


@importer("Softmax", "LogSoftmax", "Hardmax", since=13)
def _softmax(node: Node) -> Expr:
    return _softmax_along(node, node.input(0), node.axis(node.integer("axis", -1), node.rank(0)))


@importer("Softmax", "LogSoftmax", "Hardmax")
def _softmax_of_flattened(node: Node) -> Expr:
    """Apply a softmax over all dimensions from the axis on, flattened into one, as defined before opset 13."""
    x, shape = node.input(0), node.shape(0)
    axis = node.axis(node.integer("axis", 1), len(shape))
    if prod(shape[axis:]) == shape[axis] and node.operator != "Hardmax":
        return _softmax_along(node, x, axis)
    flat = node.reshape(x, (prod(shape[:axis]), prod(shape[axis:])))
    return node.reshape(_softmax_along(node, flat, 1), shape)


def _softmax_along(node: Node, x: Expr, axis: int) -> Expr:
    if node.operator != "Hardmax":
        return node.call("nn.softmax" if node.operator == "Softmax" else "nn.log_softmax", x, axis=axis)
    shape = shape_of(x)
    if 0 in shape:
        return x
    # 1 at the first maximum, 0 elsewhere
    largest = node.cast(node.call("argmax", x, axis=(axis,), keepdims=True), "int32")
    column = [size if index == axis else 1 for index, size in enumerate(shape)]
    positions = node.reshape(node.counted(shape[axis], "int32"), column)
    return node.cast(node.call("equal", positions, largest), dtype_of(x))
