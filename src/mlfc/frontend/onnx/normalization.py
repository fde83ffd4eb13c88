"""Batch, layer, RMS, instance, group and local response normalization."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlfc.frontend.onnx.node import Node, dtype_of, exceeds_halves, shape_of, wide
from mlfc.frontend.onnx.table import MICROSOFT, importer
from mlfc.relay.ir import Expr, TupleGetItem


@importer("BatchNormalization", ignores=("momentum", "consumed_inputs"))
def _batch_normalization(node: Node) -> Expr | list[Expr]:
    if node.integer("training_mode", 0) and node.opset >= 14:
        return _batch_statistics(node)
    if any(node.wants(index) for index in range(1, 5)):
        node.unsupported("in training mode is not supported", "Export the model in inference mode")
    arguments, shape = [node.input(index) for index in range(5)], node.shape(0)
    if node.rank(0) < 2:
        node.wrong(f"a tensor of shape {shape} has no channels")
    epsilon, per_element = node.real("epsilon", 1e-5), not node.integer("spatial", 1)
    if per_element:  # per-element statistics: those of channels when each sample is flattened
        if not all(node.has_shape(node.shape(index), shape[1:]) for index in range(1, 5)):
            node.wrong(f"with spatial=0, expected statistics of shape {shape[1:]}, got {node.shape(1)}")
        count = prod(shape[1:])
        arguments = [
            node.reshape(value, (count,) if index else (shape[0], count)) for index, value in enumerate(arguments)
        ]
    if exceeds_halves(node):
        arguments = [wide(node, value) for value in arguments]
    result = TupleGetItem(node.call("nn.batch_norm", *arguments, axis=1, epsilon=epsilon), 0)
    return node.cast(node.reshape(result, shape) if per_element else result, node.dtype(0))


def _batch_statistics(node: Node) -> list[Expr]:
    """Normalize by the statistics of the batch itself; the outputs after the first are the running statistics."""
    x, rank = node.input(0), node.rank(0)
    if rank < 2 or 0 in node.shape(0):
        node.wrong(f"a tensor of shape {node.shape(0)} has no channels with statistics")
    momentum, axes = node.real("momentum", 0.9), (0, *range(2, rank))
    scale, bias, *running = (node.input(index) for index in range(1, 5))
    wide = x if dtype_of(x) == "float64" else node.cast(x, "float32")
    column = (1, node.shape(0)[1], *(1,) * (rank - 2))
    mean = node.call("mean", wide, axis=axes, keepdims=True)
    centred = node.call("subtract", wide, mean)
    variance = node.call("mean", node.call("multiply", centred, centred), axis=axes, keepdims=True)
    slope, offset = (node.cast(node.reshape(each, column), dtype_of(wide)) for each in (scale, bias))
    deviation = node.call("sqrt", node.call("add", variance, node.real("epsilon", 1e-5)))
    y = node.call("add", node.call("multiply", slope, node.call("divide", centred, deviation)), offset)
    kept = []
    for old, new in zip(running, (mean, variance), strict=True):
        kind = dtype_of(old) if dtype_of(old) == "float64" else dtype_of(wide)
        flat = node.call("multiply", node.cast(node.reshape(new, column[1:2]), kind), 1.0 - momentum)
        before = node.call("multiply", node.cast(old, kind), momentum)
        kept.append(node.cast(node.call("add", before, flat), dtype_of(old)))
    return [node.cast(y, dtype_of(x)), *kept]


@importer("LayerNormalization", ignores=("stash_type",))
def _layer_normalization(node: Node) -> Expr | list[Expr]:
    x, scale, bias = node.input(0), node.input(1), node.optional(2)
    axis = node.axis(node.integer("axis", -1), node.rank(0))
    epsilon = node.real("epsilon", 1e-5)
    if not node.wants(1) and not node.wants(2):
        return _layer_norm(node, x, axis, scale, bias, epsilon)
    axes = tuple(range(axis, node.rank(0)))
    wide = x if dtype_of(x) == "float64" else node.cast(x, "float32")
    mean = node.call("mean", wide, axis=axes, keepdims=True)
    centred = node.call("subtract", wide, mean)
    inverse = node.call("divide", 1.0, _deviation(node, centred, axes, epsilon))
    scaled = node.call("multiply", node.cast(node.call("multiply", centred, inverse), dtype_of(x)), scale)
    statistics = [node.cast(each, "float32") for each in (mean, inverse)]  # even for float64 inputs
    return [scaled if bias is None else node.call("add", scaled, bias), *statistics]


def _layer_norm(node: Node, x: Expr, axis: int, scale: Expr, bias: Expr | None, epsilon: float) -> Expr:
    """Normalize over all dimensions from `axis` on, then scale and shift elementwise."""
    shape = shape_of(x)
    inner, size = shape[axis:], prod(shape[axis:])
    flat = node.reshape(x, (*shape[:axis], size))
    gamma = node.reshape(node.broadcast(scale, inner), (size,))
    beta = node.filled((size,), 0.0, dtype_of(scale))
    if bias is not None:
        beta = node.reshape(node.broadcast(bias, inner), (size,))
    return node.reshape(node.call("nn.layer_norm", flat, gamma, beta, axis=-1, epsilon=epsilon), shape)


@importer("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_layer_normalization(node: Node) -> list[Expr]:
    """Return the result, and the normalized sum as the fourth output; the statistics are only for training."""
    if node.wants(1) or node.wants(2):
        node.unsupported("with its mean or deviation as output is not supported")
    simplified = "Simplified" in node.operator
    bias, epsilon = 3 if simplified else 4, node.real("epsilon", 1e-12)
    total = node.call("add", node.input(0), node.input(1))
    if node.has(bias):
        total = node.call("add", total, node.input(bias))
    axis = len(shape_of(total)) - 1
    if simplified:
        result = _rms_norm(node, total, [axis], node.input(2), epsilon)
    else:
        result = _layer_norm(node, total, axis, node.input(2), node.optional(3), epsilon)
    return [result, total, total, total]


@importer("EmbedLayerNormalization", domain=MICROSOFT, ignores=("mask_index_type",))
def _embed_layer_normalization(node: Node) -> list[Expr]:
    """Return the normalized sum of the embeddings, the number of unmasked tokens per row, and the sum."""
    if node.rank(0) != 2:
        node.wrong(f"expected token numbers of shape (batch, sequence), got {node.shape(0)}")
    batch, count = node.shape(0)
    positions = node.input(8) if node.has(8) else node.counted(count, "int32")
    total = node.call("take", node.input(2), node.input(0), axis=0)
    total = node.call("add", total, node.call("take", node.input(3), positions, axis=0))
    if node.has(1):
        total = node.call("add", total, node.call("take", node.input(4), node.input(1), axis=0))
    result = _layer_norm(node, total, 2, node.input(5), node.optional(6), node.real("epsilon", 1e-12))
    if node.has(7):
        kept = node.cast(node.call("equal", node.input(7), 1), "int32")
        counts = node.call("sum", kept, axis=(1,), keepdims=False)
    else:
        counts = node.filled((batch,), 0, "int32")
    return [result, counts, total]


@importer("RMSNormalization", "SimplifiedLayerNormalization", ignores=("stash_type",))
def _rms_normalization(node: Node) -> Expr:
    axes = range(node.axis(node.integer("axis", -1), node.rank(0)), node.rank(0))
    return _rms_norm(node, node.input(0), axes, node.input(1), node.real("epsilon", 1e-5))


def _rms_norm(node: Node, x: Expr, axes: Sequence[int], scale: Expr, epsilon: float) -> Expr:
    precise = wide(node, x)
    normal = node.call("divide", precise, _deviation(node, precise, axes, epsilon))
    return node.call("multiply", node.cast(normal, dtype_of(x)), scale)


def _deviation(node: Node, centred: Expr, axes: Sequence[int], epsilon: float) -> Expr:
    """Return the root of the mean square along `axes`; squares of 16-bit floats would overflow."""
    mean = node.call("mean", node.call("multiply", centred, centred), axis=tuple(axes), keepdims=True)
    return node.call("sqrt", node.call("add", mean, epsilon) if epsilon else mean)


@importer("InstanceNormalization")
def _instance_normalization(node: Node) -> Expr:
    arguments = [node.input(index) for index in range(3)]
    return node.call("nn.instance_norm", *arguments, axis=1, epsilon=node.real("epsilon", 1e-5))


@importer("GroupNormalization", since=18, ignores=("stash_type",))
@importer("GroupNormalization", since=21, ignores=("stash_type",))
def _group_normalization(node: Node) -> Expr:
    groups, parameters = node.integer("num_groups"), [node.input(1), node.input(2)]
    if node.opset < 21:  # scale and bias are per group, shared by its channels
        if node.rank(0) < 2 or groups < 1 or node.shape(1) != (groups,) or node.shape(2) != (groups,):
            node.wrong(f"scale and bias must have one number for each of {groups} groups of {node.shape(0)}")
        channels = node.shape(0)[1] // groups
        parameters = [node.call("repeat", each, repeats=channels, axis=0) for each in parameters]
    epsilon = node.real("epsilon", 1e-5)
    return node.call("nn.group_norm", node.input(0), *parameters, num_groups=groups, axis=1, epsilon=epsilon)


@importer("LRN")
def _lrn(node: Node) -> Expr:
    size = node.integer("size")
    if not 1 <= size <= 1 << 16:
        node.wrong(f"size {size} must be positive")
    alpha, beta, bias = node.real("alpha", 1e-4), node.real("beta", 0.75), node.real("bias", 1.0)
    return node.call("nn.lrn", node.input(0), size=size, axis=1, alpha=alpha, beta=beta, bias=bias)


@importer("MeanVarianceNormalization")
def _mean_variance_normalization(node: Node) -> Expr:
    axes = sorted({node.axis(axis, node.rank(0)) for axis in node.integers("axes", (0, 2, 3))})
    x = wide(node, node.input(0))
    centred = node.call("subtract", x, node.call("mean", x, axis=tuple(axes), keepdims=True))
    result = node.call("divide", centred, node.call("add", _deviation(node, centred, axes, 0.0), 1e-9))
    return node.cast(result, node.dtype(0))


@importer("LpNormalization")
def _lp_normalization(node: Node) -> Expr:
    x = wide(node, node.input(0))
    axis, power = node.axis(node.integer("axis", -1), node.rank(0)), node.integer("p", 2)
    if power not in (1, 2):
        node.wrong(f"p must be 1 or 2, not {power}")
    part = node.call("abs", x) if power == 1 else node.call("multiply", x, x)
    total = node.call("sum", part, axis=(axis,), keepdims=True)
    norm = total if power == 1 else node.call("sqrt", total)
    # rows of zeros remain zeros
    result = node.call("divide", x, node.call("where", node.call("equal", norm, 0.0), 1.0, norm))
    return node.cast(result, node.dtype(0))
