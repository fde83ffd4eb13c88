"""Activation functions, each by its definition in ONNX's operator documentation."""

from __future__ import annotations

import math
from math import prod

from mlfc.frontend.onnx.elementwise import clip
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.table import MICROSOFT, importer
from mlfc.relay.ir import Expr


@importer("Relu")
def _relu(node: Node) -> Expr:
    return node.call("nn.relu", node.input(0))


@importer("LeakyRelu")
def _leaky_relu(node: Node) -> Expr:
    return node.call("nn.leaky_relu", node.input(0), alpha=node.real("alpha", 0.01))


@importer("PRelu")
def _prelu(node: Node) -> Expr:
    x = node.input(0)
    return _below_zero(node, x, node.call("multiply", x, node.input(1)))


def _below_zero(node: Node, x: Expr, instead: Expr) -> Expr:
    """Return `x` with `instead` where it is negative."""
    return node.call("where", node.call("less", x, node.like(0.0, x)), instead, x)


def _scaled(node: Node, x: Expr, factor: float, offset: float = 0.0) -> Expr:
    """Return ``factor * x + offset``."""
    product = x if factor == 1.0 else node.call("multiply", x, node.like(factor, x))
    return product if offset == 0.0 else node.call("add", product, node.like(offset, x))


def _exponential(node: Node, x: Expr, alpha: float) -> Expr:
    """Return ``alpha * (exp(x) - 1)``."""
    return _scaled(node, _scaled(node, node.call("exp", x), 1.0, -1.0), alpha)


@importer("Elu")
def _elu(node: Node) -> Expr:
    x = node.input(0)
    return _below_zero(node, x, _exponential(node, x, node.real("alpha", 1.0)))


@importer("Selu")
def _selu(node: Node) -> Expr:
    x = node.input(0)
    alpha = node.real("alpha", 1.67326319217681884765625)
    gamma = node.real("gamma", 1.05070102214813232421875)
    return _scaled(node, _below_zero(node, x, _exponential(node, x, alpha)), gamma)


@importer("Celu")
def _celu(node: Node) -> Expr:
    x = node.input(0)
    alpha = node.real("alpha", 1.0)
    if alpha == 0.0:
        node.wrong("alpha must not be zero")
    return _below_zero(node, x, _exponential(node, _scaled(node, x, 1.0 / alpha), alpha))


@importer("HardSigmoid")
def _hard_sigmoid(node: Node) -> Expr:
    return clip(node, _scaled(node, node.input(0), node.real("alpha", 0.2), node.real("beta", 0.5)), 0.0, 1.0)


@importer("HardSwish")
def _hard_swish(node: Node) -> Expr:
    x = node.input(0)
    return node.call("multiply", x, clip(node, _scaled(node, x, 1.0 / 6.0, 0.5), 0.0, 1.0))


@importer("Softplus")
def _softplus(node: Node) -> Expr:
    return softplus(node, node.input(0))


def softplus(node: Node, x: Expr) -> Expr:
    """Return ``log(1 + exp(x))``, which does not overflow for large `x`."""
    decaying = node.call("exp", node.call("negative", node.call("abs", x)))
    return node.call("add", node.call("nn.relu", x), node.call("log", _scaled(node, decaying, 1.0, 1.0)))


@importer("Mish")
def _mish(node: Node) -> Expr:
    x = node.input(0)
    return node.call("multiply", x, node.call("tanh", softplus(node, x)))


@importer("Softsign")
def _softsign(node: Node) -> Expr:
    x = node.input(0)
    return node.call("divide", x, _scaled(node, node.call("abs", x), 1.0, 1.0))


@importer("Swish")
def _swish(node: Node) -> Expr:
    x = node.input(0)
    return node.call("multiply", x, node.call("sigmoid", _scaled(node, x, node.real("alpha", 1.0))))


@importer("QuickGelu", domain=MICROSOFT)
def _quick_gelu(node: Node) -> Expr:
    x = node.input(0)
    return node.call("multiply", x, node.call("sigmoid", _scaled(node, x, node.real("alpha", 1.702))))


@importer("Gelu")
def _gelu(node: Node) -> Expr:
    approximate = node.string("approximate", "none")
    if approximate not in ("none", "tanh"):
        node.wrong(f"'approximate' must be none or tanh, not '{approximate}'")
    return gelu(node, node.input(0), tanh=approximate == "tanh")


@importer("Gelu", domain=MICROSOFT)
def _microsoft_gelu(node: Node) -> Expr:
    return gelu(node, node.input(0), tanh=False)


@importer("FastGelu", domain=MICROSOFT)
def _fast_gelu(node: Node) -> Expr:
    x = node.call("add", node.input(0), node.input(1)) if node.has(1) else node.input(0)
    return gelu(node, x, tanh=True)


@importer("BiasGelu", domain=MICROSOFT)
def _bias_gelu(node: Node) -> Expr:
    return gelu(node, node.call("add", node.input(0), node.input(1)), tanh=False)


def gelu(node: Node, x: Expr, *, tanh: bool) -> Expr:
    """Return ``x * Phi(x)``, Phi by erf or by its usual approximation with tanh."""
    if tanh:
        cubed = node.call("multiply", node.call("multiply", x, x), x)
        inner = _scaled(node, node.call("add", x, _scaled(node, cubed, 0.044715)), math.sqrt(2.0 / math.pi))
        curve = node.call("tanh", inner)
    else:
        curve = node.call("erf", _scaled(node, x, math.sqrt(0.5)))
    return node.call("multiply", _scaled(node, x, 0.5), _scaled(node, curve, 1.0, 1.0))


@importer("ThresholdedRelu")
def _thresholded_relu(node: Node) -> Expr:
    x = node.input(0)
    above = node.call("greater", x, node.like(node.real("alpha", 1.0), x))
    return node.call("where", above, x, node.like(0.0, x))


@importer("Shrink")
def _shrink(node: Node) -> Expr:
    x = node.input(0)
    limit, bias = node.real("lambd", 0.5), node.real("bias", 0.0)
    low = node.call("less", x, node.like(-limit, x))
    high = node.call("greater", x, node.like(limit, x))
    inner = node.call("where", high, node.call("subtract", x, node.like(bias, x)), node.like(0.0, x))
    return node.call("where", low, node.call("add", x, node.like(bias, x)), inner)


@importer("Softmax")
def _softmax_flat(node: Node) -> Expr:
    return _over_flattened(node, "nn.softmax")


@importer("LogSoftmax")
def _log_softmax_flat(node: Node) -> Expr:
    return _over_flattened(node, "nn.log_softmax")


@importer("Softmax", since=13)
def _softmax(node: Node) -> Expr:
    return node.call("nn.softmax", node.input(0), axis=node.axis(node.integer("axis", -1), node.rank(0)))


@importer("LogSoftmax", since=13)
def _log_softmax(node: Node) -> Expr:
    return node.call("nn.log_softmax", node.input(0), axis=node.axis(node.integer("axis", -1), node.rank(0)))


def _over_flattened(node: Node, operator: str) -> Expr:
    """Before opset 13 all dimensions from the axis on are one."""
    x = node.input(0)
    shape = shape_of(x)
    axis = node.axis(node.integer("axis", 1), len(shape))
    if prod(shape[axis:]) == shape[axis]:
        return node.call(operator, x, axis=axis)
    flat = node.reshape(x, (prod(shape[:axis]), prod(shape[axis:])))
    return node.reshape(node.call(operator, flat, axis=1), shape)


@importer("Hardmax")
def _hardmax_flat(node: Node) -> Expr:
    x = node.input(0)
    shape = shape_of(x)
    axis = node.axis(node.integer("axis", 1), len(shape))
    flat = node.reshape(x, (prod(shape[:axis]), prod(shape[axis:])))
    return node.reshape(_first_largest(node, flat, 1), shape)


@importer("Hardmax", since=13)
def _hardmax(node: Node) -> Expr:
    return _first_largest(node, node.input(0), node.axis(node.integer("axis", -1), node.rank(0)))


def _first_largest(node: Node, x: Expr, axis: int) -> Expr:
    """Return 1 at the first largest element along `axis`, 0 elsewhere."""
    shape = shape_of(x)
    largest = node.cast(node.call("argmax", x, axis=(axis,), keepdims=True), "int32")
    positions = node.reshape(
        node.constant(range(shape[axis]), "int32"), [size if index == axis else 1 for index, size in enumerate(shape)]
    )
    return node.cast(node.call("equal", positions, largest), dtype_of(x))
