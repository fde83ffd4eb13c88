"""Activation functions, as defined in ONNX's operator documentation."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod

from mlfc.frontend.common import gelu
from mlfc.frontend.onnx.elementwise import clip
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.table import MICROSOFT, importer
from mlfc.relay.ir import Expr
from mlfc.support import dtypes


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


for _domain, _functions in (("", _FUNCTIONS), (MICROSOFT, _MICROSOFT_FUNCTIONS)):
    for _name, _function in _functions.items():
        importer(_name, domain=_domain)(lambda node, function=_function: function(node, node.input(0)))


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
