"""SVDF of TFLite, whose state is in a variable tensor: filters of the input, weighted over the last steps."""

from __future__ import annotations

from mlfc.errors import ModelError
from mlfc.frontend.tflite.activation import activated
from mlfc.frontend.tflite.linear import hybrid_dense
from mlfc.frontend.tflite.lstm import rescaled_sums
from mlfc.frontend.tflite.node import Node, converts
from mlfc.frontend.tflite.weights import shape_of
from mlfc.relay.ir import Expr, Tuple, const


@converts("SVDF")
def _svdf(node: Node) -> Expr:
    options = node.options("SVDFOptions")
    data, feature_weights, time_weights = node.expr(0), node.value(1), node.value(2)
    rank, batch = options.Rank(), shape_of(data)[0]
    if feature_weights.ndim != 2 or time_weights.ndim != 2 or shape_of(data)[1:] != feature_weights.shape[1:]:
        raise ModelError(f"weights {feature_weights.shape} and {time_weights.shape} on data of shape {shape_of(data)}")
    filters, memory = time_weights.shape
    if filters != feature_weights.shape[0] or shape_of(node.expr(4)) != (batch, filters * memory):
        raise ModelError(f"a state of shape {shape_of(node.expr(4))} for {filters} filters of {memory} steps")
    is_integer = node.input(0).dtype == "int8"
    feature = _integer_feature(node) if is_integer else _float_feature(node, bool(options.AsymmetricQuantizeInputs()))
    state = node.call("reshape", node.expr(4), newshape=(batch, filters, memory))
    weights = node.expr(2)
    if node.input(2).dtype == "int8" and not is_integer:
        weights = node.call("qnn.dequantize", weights, *node.quantization(node.input(2)))
    zero = node.zero_point(node.input(4)) if is_integer else 0
    sums = node.call("nn.svdf_time", feature, state, weights, rank=rank, state_zero=zero)
    node.assign(4, _next_state(node, state, feature))
    if node.has(3):
        sums = node.call("nn.bias_add", sums, node.expr(3), axis=1)
    if not is_integer:
        return activated(node, sums, options.FusedActivationFunction(), tanh=True)
    # the reference leaves the fused activation to the range of the result
    scale = node.scale(node.input(4)) * node.scale(node.input(2)) / node.scale(node.output())
    return rescaled_sums(node, sums, scale, node.output().dtype, node.zero_point(node.output()))


def _integer_feature(node: Node) -> Expr:
    """Return the product of the data and the feature weights as codes of the state."""
    weight, units = node.input(1), node.value(1).shape[0]
    (data_scale, data_zero), (weight_scale, weight_zero) = (node.quantization(node.input(index)) for index in (0, 1))
    sums = node.call(
        "qnn.dense", node.expr(0), node.expr(1), data_zero, weight_zero, data_scale, weight_scale, units=units,
        out_dtype="int32",
    )  # fmt: skip
    state = node.input(4)
    if state.dtype not in ("int8", "int16") or node.input(2).dtype != state.dtype:
        node.refuse(f"SVDF of int8 with a state of type {state.type_name} is not supported", "Use int16 or int8")
    scale = node.scale(node.input(0)) * node.scale(weight) / node.scale(state)
    feature = rescaled_sums(node, sums, scale, state.dtype)
    # the reference limits it before it adds the zero point of the state
    zero = node.zero_point(state)
    return node.call("add", feature, const(zero, state.dtype)) if zero else feature


def _float_feature(node: Node, asymmetric: bool) -> Expr:
    units = node.value(1).shape[0]
    if node.input(1).dtype == "float32":
        return node.call("nn.dense", node.expr(0), node.expr(1), units=units)
    return hybrid_dense(node, node.expr(0), node.expr(1), node.scale(node.input(1)), asymmetric=asymmetric)


def _next_state(node: Node, state: Expr, feature: Expr) -> Expr:
    """Return the state a step on."""
    batch, filters, memory = shape_of(state)
    if memory == 1:
        return feature
    kept = node.call("strided_slice", state, begin=(1,), end=(memory,), strides=(1,), axes=(2,))
    seen = node.call("reshape", feature, newshape=(batch, filters, 1))
    whole = node.call("concatenate", Tuple((kept, seen)), axis=2)
    return node.call("reshape", whole, newshape=(batch, filters * memory))
