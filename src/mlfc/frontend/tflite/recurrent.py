"""Recurrent operators of TFLite, with states in variable tensors: LSTMs, plain recurrent layers and SVDF."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tflite import LSTMKernelType

from mlfc.errors import ModelError
from mlfc.frontend.tflite.arithmetic import activated
from mlfc.frontend.tflite.linear import hybrid_dense
from mlfc.frontend.tflite.lstm import FUNCTIONS, InputNumbers, Lstm, rescaled_sums
from mlfc.frontend.tflite.node import Node, converts, shape_of
from mlfc.relay.ir import Constant, Expr, const

_FORWARD = InputNumbers(hidden=35, cell=36, norm=-1, auxiliary=40)
_BACKWARD = InputNumbers(18, 22, 26, 29, 33, hidden=37, cell=38, norm=-1, auxiliary=44)
_AUXILIARY = 39


@converts("UNIDIRECTIONAL_SEQUENCE_LSTM")
def _lstm(node: Node) -> Expr:
    options = node.options("UnidirectionalSequenceLSTMOptions")
    return _layer(node, node.expr(0), options, time_major=bool(options.TimeMajor()))


@converts("LSTM")
def _lstm_cell(node: Node) -> Expr | list[Expr]:
    """Convert LSTM, a single step; the basic kernel has all weights in one matrix, the full one has them per gate."""
    options = node.options("LSTMOptions")
    if options.KernelType() == LSTMKernelType.BASIC:
        return _basic(node)
    step = node.call("expand_dims", node.expr(0), axis=0)
    return node.call("squeeze", _layer(node, step, options, time_major=True), axis=(0,))


def _layer(node: Node, data: Expr, options: Any, *, time_major: bool) -> Expr:
    """Return an LSTM, chosen by the types of its data and weights."""
    kinds = node.input(0).dtype, node.input(InputNumbers().inputs + 1).dtype
    is_micro = kinds == ("int8", "int8") and node.numerics == "tflm" and node.record.code != "LSTM"
    if kinds[0] not in ("int8", "int16") or kinds[1] != "int8":
        _check_floats(node, *kinds)
        return Lstm(node, data, options, time_major=time_major).floats()
    return Lstm(node, data, options, time_major=time_major).integer(tables=is_micro or kinds[0] == "int16")


def _check_floats(node: Node, data: str, weights: str) -> None:
    if (data, weights) not in (("float32", "float32"), ("float32", "int8")):
        node.refuse(
            f"{node.record.code} with data and weights of types {data} and {weights} is not supported",
            "Use float32 or int8 throughout, or int16 or float32 data with int8 weights",
        )


def _basic(node: Node) -> list[Expr]:
    """Return result, cell state, concatenated data and gate sums of a float32 cell."""
    data, hidden, weights, bias, cell = (node.expr(position) for position in range(5))
    if any(node.input(position).dtype != "float32" for position in range(5)):
        node.refuse("LSTM's basic kernel is supported in float32 only", "Use float32 or its full kernel")
    (batch, size), units = shape_of(data), shape_of(hidden)[-1]
    expected = [(batch, units), (4 * units, size + units), (4 * units,), (batch, units)]
    if [shape_of(item) for item in (hidden, weights, bias, cell)] != expected:
        raise ModelError(f"its tensors do not fit data of shape {(batch, size)} and {units} units")
    joined = node.joined((data, hidden), 1)
    sums = node.call("nn.bias_add", node.call("nn.dense", joined, weights, units=4 * units), bias, axis=1)
    taken, candidate, kept, opened = (node.cut(sums, gate * units, (gate + 1) * units, 1) for gate in range(4))
    added = node.call("multiply", node.call("sigmoid", taken), node.call("tanh", candidate))
    new = node.call("add", added, node.call("multiply", node.call("sigmoid", kept), cell))
    shown = node.call("multiply", node.call("sigmoid", opened), node.call("tanh", new))
    for position, value in ((1, shown), (4, new)):
        if node.input(position).is_variable:
            node.assign(position, value)
    return [shown, new, joined, sums]


@converts("BIDIRECTIONAL_SEQUENCE_LSTM")
def _bidirectional_lstm(node: Node) -> Expr | list[Expr]:
    options = node.options("BidirectionalSequenceLSTMOptions")
    _check_floats(node, node.input(0).dtype, node.input(2).dtype)
    backward, auxiliary = _auxiliary(node, _AUXILIARY, node.has(_FORWARD.auxiliary + 1))
    time_major = bool(options.TimeMajor())
    ahead = Lstm(node, node.expr(0), options, time_major=time_major, at=_FORWARD, auxiliary=auxiliary).floats()
    back = Lstm(
        node, backward, options, time_major=time_major, at=_BACKWARD, backwards=True, auxiliary=auxiliary
    ).floats()
    return node.joined((ahead, back), 2) if options.MergeOutputs() else [ahead, back]


def _auxiliary(node: Node, position: int, has_weights: bool) -> tuple[Expr, Expr | None]:
    """Return the data of the backward direction, which may be auxiliary data, and the auxiliary data of both."""
    if not node.has(position):
        return node.expr(0), None
    if has_weights:
        return node.expr(0), node.expr(position)
    return node.expr(position), None


@dataclass(frozen=True)
class _Rnn:
    """Input positions of the tensors of one direction; `auxiliary` is -1 if it has none."""

    weights: int = 1
    recurrent: int = 2
    bias: int = 3
    hidden: int = 4
    auxiliary: int = -1


@converts("RNN")
def _rnn_cell(node: Node) -> Expr:
    options = node.options("RNNOptions")
    step = node.call("expand_dims", node.expr(0), axis=0)
    return node.call("squeeze", _recurrence(node, step, options, _Rnn(), time_major=True), axis=(0,))


@converts("UNIDIRECTIONAL_SEQUENCE_RNN")
def _rnn(node: Node) -> Expr:
    options = node.options("SequenceRNNOptions")
    return _recurrence(node, node.expr(0), options, _Rnn(), time_major=bool(options.TimeMajor()))


@converts("BIDIRECTIONAL_SEQUENCE_RNN")
def _bidirectional_rnn(node: Node) -> Expr | list[Expr]:
    options = node.options("BidirectionalSequenceRNNOptions")
    backward, auxiliary = _auxiliary(node, 9, node.has(10))
    time_major = bool(options.TimeMajor())
    ahead = _recurrence(node, node.expr(0), options, _Rnn(auxiliary=10), time_major=time_major, auxiliary=auxiliary)
    back = _recurrence(
        node, backward, options, _Rnn(5, 6, 7, 8, 11), time_major=time_major, auxiliary=auxiliary, backwards=True
    )
    return node.joined((ahead, back), 2) if options.MergeOutputs() else [ahead, back]


def _recurrence(
    node: Node, data: Expr, options: Any, at: _Rnn, *, time_major: bool, auxiliary: Expr | None = None,
    backwards: bool = False,
) -> Expr:  # fmt: skip
    """Return the results of one direction of a recurrent layer, and assign its state."""
    _check_floats(node, node.input(0).dtype, node.input(at.weights).dtype)
    units = node.value(at.weights).shape[0]
    if len(shape_of(data)) != 3 or 0 in shape_of(data):
        raise ModelError(f"expected data of 3 dimensions, sequences of batches, got shape {shape_of(data)}")
    if not time_major:
        data = node.call("transpose", data, axes=(1, 0, 2))
    steps, batch, size = shape_of(data)
    expected = [(units, size), (units, units), (units,), (batch, units)]
    if [shape_of(node.expr(place)) for place in (at.weights, at.recurrent, at.bias, at.hidden)] != expected:
        raise ModelError(f"its tensors do not fit data of shape {shape_of(data)} and {units} units")
    asymmetric = bool(options.AsymmetricQuantizeInputs())
    gates = _product(node, data, at.weights, asymmetric)
    if auxiliary is not None:
        more = auxiliary if time_major else node.call("transpose", auxiliary, axes=(1, 0, 2))
        gates = node.call("add", gates, _product(node, more, at.auxiliary, asymmetric))
    gates = node.call("nn.bias_add", gates, node.expr(at.bias), axis=2)
    steps_of = _looped if options.FusedActivationFunction() in FUNCTIONS else _unrolled
    whole = steps_of(node, gates, int(options.FusedActivationFunction()), at, asymmetric, backwards)
    last = 0 if backwards else steps - 1
    node.assign(at.hidden, node.call("reshape", node.cut(whole, last, last + 1), newshape=(batch, units)))
    return whole if time_major else node.call("transpose", whole, axes=(1, 0, 2))


def _product(node: Node, data: Expr, place: int, asymmetric: bool) -> Expr:
    """Return the product of float data with float or int8 weights."""
    weights = node.expr(place)
    if node.input(place).dtype == "float32":
        return node.call("nn.dense", data, weights, units=shape_of(weights)[0])
    return hybrid_dense(node, data, weights, node.scale(node.input(place)), asymmetric=asymmetric)


def _looped(node: Node, gates: Expr, function: int, at: _Rnn, asymmetric: bool, backwards: bool) -> Expr:
    """Return the results of a single operator over all steps."""
    steps, batch, units = shape_of(gates)
    recurrent = node.value(at.recurrent)
    args = [
        gates, Constant(recurrent[None], node.input(at.recurrent).name, node.span),
        node.call("reshape", node.expr(at.hidden), newshape=(1, batch, units)),
        const(np.full(batch, steps), "int32"),
    ]  # fmt: skip
    attrs: dict[str, Any] = {
        "activations": (FUNCTIONS[function],), "alphas": (1.0,), "betas": (0.0,),
        "direction": "reverse" if backwards else "forward",
    }  # fmt: skip
    is_hybrid = recurrent.dtype == np.int8
    if is_hybrid:
        args.append(const(np.full((1, units), node.scale(node.input(at.recurrent))), "float32"))
        attrs["quantizes"] = "asymmetric" if asymmetric else "symmetric"
    result = node.call("qnn.dynamic_rnn_steps" if is_hybrid else "nn.rnn_steps", *args, **attrs)
    return node.call("reshape", result, newshape=(steps, batch, units))


def _unrolled(node: Node, gates: Expr, function: int, at: _Rnn, asymmetric: bool, backwards: bool) -> Expr:
    """Return all steps of a layer with an activation that cell operators do not support."""
    steps, batch, units = shape_of(gates)
    hidden, found = node.expr(at.hidden), {}
    for step in sorted(range(steps), reverse=backwards):
        part = node.call("reshape", node.cut(gates, step, step + 1), newshape=(batch, units))
        sums = node.call("add", part, _product(node, hidden, at.recurrent, asymmetric))
        hidden = activated(node, sums, function, tanh=True)
        found[step] = node.call("reshape", hidden, newshape=(1, batch, units))
    return node.joined((found[step] for step in range(steps)), 0)


@converts("SVDF")
def _svdf(node: Node) -> Expr:
    options = node.options("SVDFOptions")
    data, feature_weights, time_weights = node.expr(0), node.value(1), node.value(2)
    rank, batch = options.Rank(), shape_of(data)[0]
    if feature_weights.ndim != 2 or time_weights.ndim != 2 or shape_of(data)[1:] != feature_weights.shape[1:]:
        raise ModelError(f"weights {feature_weights.shape} and {time_weights.shape} do not fit data {shape_of(data)}")
    filters, memory = time_weights.shape
    if filters != feature_weights.shape[0] or shape_of(node.expr(4)) != (batch, filters * memory):
        raise ModelError(f"a state of shape {shape_of(node.expr(4))} does not fit {filters} filters of {memory} steps")
    is_integer = node.input(0).dtype == "int8"
    asymmetric = bool(options.AsymmetricQuantizeInputs())
    feature = _integer_feature(node) if is_integer else _product(node, data, 1, asymmetric)
    state = node.call("reshape", node.expr(4), newshape=(batch, filters, memory))
    weights = node.expr(2)
    if node.input(2).dtype == "int8" and not is_integer:
        weights = node.call("qnn.dequantize", weights, *node.quantization(node.input(2)))
    zero = node.zero_point(node.input(4)) if is_integer else 0
    sums = node.call("nn.svdf_time", feature, state, weights, rank=rank, state_zero=zero)
    following = feature
    if memory > 1:
        seen = node.call("reshape", feature, newshape=(batch, filters, 1))
        whole = node.joined((node.cut(state, 1, memory, 2), seen), 2)
        following = node.call("reshape", whole, newshape=(batch, filters * memory))
    node.assign(4, following)
    if node.has(3):
        sums = node.call("nn.bias_add", sums, node.expr(3), axis=1)
    if not is_integer:
        return activated(node, sums, options.FusedActivationFunction(), tanh=True)
    # the reference implements the fused activation by the range of the result
    scale = node.scale(node.input(4)) * node.scale(node.input(2)) / node.scale(node.output())
    return rescaled_sums(node, sums, scale, node.output().dtype, node.zero_point(node.output()))


def _integer_feature(node: Node) -> Expr:
    """Return the product of data and feature weights as codes of the state."""
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
    # the reference clamps before it adds the zero point of the state
    zero = node.zero_point(state)
    return node.call("add", feature, const(zero, state.dtype)) if zero else feature
