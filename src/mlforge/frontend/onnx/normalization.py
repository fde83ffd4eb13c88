"""Normalization over a batch's statistics, over layers, instances, groups and neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from mlforge.frontend.onnx.node import Node, dtype_of, shape_of
from mlforge.frontend.onnx.table import MICROSOFT, importer
from mlforge.relay.ir import Expr, TupleGetItem
from mlforge.support import dtypes


@importer("BatchNormalization", ignores=("momentum", "consumed_inputs"))
def _batch_normalization(node: Node) -> Expr:
    if node.integer("training_mode", 0) or any(node.wants(index) for index in range(1, 5)):
        node.unsupported("in training mode is not supported", "Export the model in inference mode")
    if not node.integer("spatial", 1):
        node.unsupported("with spatial=0 is not supported", "Statistics must be one number a channel")
    arguments = [node.input(index) for index in range(5)]
    if node.rank(0) < 2:
        node.wrong(f"a tensor of shape {node.shape(0)} has no channels")
    epsilon = node.real("epsilon", 1e-5)
    return TupleGetItem(node.call("nn.batch_norm", *arguments, axis=1, epsilon=epsilon), 0)


@importer("LayerNormalization", ignores=("stash_type",))
def _layer_normalization(node: Node) -> Expr:
    if node.wants(1) or node.wants(2):
        node.unsupported("with the outputs Mean and InvStdDev is not supported")
    x = node.input(0)
    axis = node.axis(node.integer("axis", -1), node.rank(0))
    return _layer_norm(node, x, axis, node.input(1), node.optional(2), node.real("epsilon", 1e-5))


def _layer_norm(node: Node, x: Expr, axis: int, scale: Expr, bias: Expr | None, epsilon: float) -> Expr:
    """Normalize over all dimensions from `axis` on, then scale and shift each of their elements."""
    shape = shape_of(x)
    inner = shape[axis:]
    flat = node.reshape(x, (*shape[:axis], prod(inner)))
    gamma = node.reshape(node.broadcast(scale, inner), (prod(inner),))
    if bias is None:
        beta: Expr = node.constant(np.zeros(prod(inner)), dtype_of(scale))
    else:
        beta = node.reshape(node.broadcast(bias, inner), (prod(inner),))
    return node.reshape(node.call("nn.layer_norm", flat, gamma, beta, axis=-1, epsilon=epsilon), shape)


@importer("SkipLayerNormalization", domain=MICROSOFT)
def _skip_layer_normalization(node: Node) -> Expr:
    if any(node.wants(index) for index in (1, 2, 3)):
        node.unsupported("with more than one output is not supported")
    total = node.call("add", node.input(0), node.input(1))
    if node.has(4):
        total = node.call("add", total, node.input(4))
    return _layer_norm(node, total, node.rank(0) - 1, node.input(2), node.optional(3), node.real("epsilon", 1e-12))


@importer("RMSNormalization", ignores=("stash_type",))
def _rms_normalization(node: Node) -> Expr:
    x = node.input(0)
    axes = range(node.axis(node.integer("axis", -1), node.rank(0)), node.rank(0))
    return node.call("multiply", _over_deviation(node, x, x, axes, node.real("epsilon", 1e-5)), node.input(1))


@importer("SimplifiedLayerNormalization", ignores=("stash_type",))
def _simplified_layer_normalization(node: Node) -> Expr:
    return _rms_normalization(node)


def _over_deviation(node: Node, x: Expr, centred: Expr, axes: Sequence[int], epsilon: float) -> Expr:
    """Return `x` over the root of the mean square of `centred` along `axes`."""
    square = node.call("multiply", centred, centred)
    mean = node.call("mean", square, axis=tuple(axes), keepdims=True)
    root = node.call("sqrt", node.call("add", mean, node.like(epsilon, mean)) if epsilon else mean)
    return node.call("divide", x, root)


def _normalized(node: Node, x: Expr, axes: Sequence[int], epsilon: float) -> Expr:
    """Return `x` with mean 0 and variance 1 along `axes`."""
    centred = node.call("subtract", x, node.call("mean", x, axis=tuple(axes), keepdims=True))
    return _over_deviation(node, centred, centred, axes, epsilon)


def _per_channel(node: Node, x: Expr, scale: Expr, bias: Expr) -> Expr:
    """Return ``x * scale + bias`` with one number a channel."""
    shape = (shape_of(scale)[0], *(1,) * (len(shape_of(x)) - 2))
    return node.call("add", node.call("multiply", x, node.reshape(scale, shape)), node.reshape(bias, shape))


@importer("InstanceNormalization")
def _instance_normalization(node: Node) -> Expr:
    x = node.input(0)
    if node.rank(0) < 3 or node.shape(1) != (node.shape(0)[1],) or node.shape(2) != node.shape(1):
        node.wrong(f"scale and bias must have one number for each channel of a tensor of shape {node.shape(0)}")
    normal = _normalized(node, x, range(2, node.rank(0)), node.real("epsilon", 1e-5))
    return _per_channel(node, normal, node.input(1), node.input(2))


@importer("GroupNormalization", since=18, ignores=("stash_type",))
def _group_normalization(node: Node) -> Expr:
    x = node.input(0)
    shape, groups = shape_of(x), node.integer("num_groups")
    if len(shape) < 2 or groups < 1 or shape[1] % groups:
        node.wrong(f"a tensor of shape {shape} has no {groups} equal groups of channels")
    wide = _widened(node, x)
    grouped = node.reshape(wide, (shape[0], groups, prod(shape[1:]) // groups))
    normal = _normalized(node, grouped, (2,), node.real("epsilon", 1e-5))
    if node.opset < 21:
        numbers = [node.reshape(node.cast(node.input(index), dtype_of(normal)), (groups, 1)) for index in (1, 2)]
        return node.cast(
            node.reshape(node.call("add", node.call("multiply", normal, numbers[0]), numbers[1]), shape), dtype_of(x)
        )
    scale, bias = (node.cast(node.input(index), dtype_of(normal)) for index in (1, 2))
    if shape_of(scale) != (shape[1],) or shape_of(bias) != (shape[1],):
        node.wrong(f"scale and bias must have one number for each of {shape[1]} channels")
    return node.cast(_per_channel(node, node.reshape(normal, shape), scale, bias), dtype_of(x))


def _widened(node: Node, x: Expr) -> Expr:
    """Return `x` in the precision in which ONNX computes statistics."""
    return node.cast(x, "float32") if dtypes.bits(dtype_of(x)) < 32 else x


@importer("LRN")
def _lrn(node: Node) -> Expr:
    size = node.integer("size")
    if not 1 <= size <= 1 << 16:
        node.wrong(f"size {size} must be positive")
    return node.call(
        "nn.lrn",
        node.input(0),
        size=size,
        axis=1,
        alpha=node.real("alpha", 1e-4),
        beta=node.real("beta", 0.75),
        bias=node.real("bias", 1.0),
    )


@importer("MeanVarianceNormalization")
def _mean_variance_normalization(node: Node) -> Expr:
    axes = sorted({node.axis(axis, node.rank(0)) for axis in node.integers("axes", (0, 2, 3))})
    x = node.input(0)
    centred = node.call("subtract", x, node.call("mean", x, axis=tuple(axes), keepdims=True))
    mean = node.call("mean", node.call("multiply", centred, centred), axis=tuple(axes), keepdims=True)
    deviation = node.call("sqrt", mean)
    return node.call("divide", centred, node.call("add", deviation, node.like(1e-9, deviation)))


@importer("LpNormalization")
def _lp_normalization(node: Node) -> Expr:
    x = node.input(0)
    axis, power = node.axis(node.integer("axis", -1), node.rank(0)), node.integer("p", 2)
    if power not in (1, 2):
        node.wrong(f"p must be 1 or 2, not {power}")
    part = node.call("abs", x) if power == 1 else node.call("multiply", x, x)
    total = node.call("sum", part, axis=(axis,), keepdims=True)
    norm = total if power == 1 else node.call("sqrt", total)
    # a vector of zeros stays one
    smallest = float(np.finfo(dtype_of(x)).tiny)
    return node.call("divide", x, node.call("maximum", norm, node.like(smallest, x)))
