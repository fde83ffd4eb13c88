"""Recurrent operators of TFLite, whose state is in variable tensors: LSTMs and plain recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tflite import LSTMKernelType

from mlfc.errors import ModelError
from mlfc.frontend.tflite.activation import activated
from mlfc.frontend.tflite.linear import hybrid_dense
from mlfc.frontend.tflite.lstm import InputNumbers, Lstm, cut
from mlfc.frontend.tflite.lstm_float import FUNCTIONS, FloatLstm
from mlfc.frontend.tflite.node import Node, converts
from mlfc.frontend.tflite.weights import shape_of
from mlfc.relay.ir import Constant, Expr, Tuple, const

_FORWARD = InputNumbers(hidden=35, cell=36, norm=-1, auxiliary=40)
_BACKWARD = InputNumbers(18, 22, 26, 29, 33, hidden=37, cell=38, norm=-1, auxiliary=44)
_AUXILIARY = 39


@converts("UNIDIRECTIONAL_SEQUENCE_LSTM")
def _lstm(node: Node) -> Expr:
    options = node.options("UnidirectionalSequenceLSTMOptions")
    return _layer(node, node.expr(0), options, time_major=bool(options.TimeMajor()))


@converts("LSTM")
def _lstm_cell(node: Node) -> Expr | list[Expr]:
    """Convert LSTM, which is one step; of its two kernels, the basic one has its weights in one matrix."""
    options = node.options("LSTMOptions")
    if options.KernelType() == LSTMKernelType.BASIC:
        return _basic(node)
    step = node.call("expand_dims", node.expr(0), axis=0)
    return node.call("squeeze", _layer(node, step, options, time_major=True), axis=(0,))


def _layer(node: Node, data: Expr, options: Any, *, time_major: bool) -> Expr:
    """Return an LSTM by the types of its data and weights."""
    kinds = node.input(0).dtype, node.input(InputNumbers().inputs + 1).dtype
    is_micro = kinds == ("int8", "int8") and node.numerics == "tflm" and node.record.code != "LSTM"
    if kinds == ("int16", "int8") or is_micro:
        return Lstm(node, data, options, time_major=time_major).by_tables()
    if kinds == ("int8", "int8"):
        return Lstm(node, data, options, time_major=time_major).integer()
    _check_floats(node, *kinds)
    return FloatLstm(node, data, options, time_major=time_major).layer()


def _check_floats(node: Node, data: str, weights: str) -> None:
    if (data, weights) not in (("float32", "float32"), ("float32", "int8")):
        node.refuse(
            f"{node.record.code} with data and weights of types {data} and {weights} is not supported",
            "Use float32 or int8 throughout, or int16 or float32 data with int8 weights",
        )


def _basic(node: Node) -> list[Expr]:
    """Return results, states, joined data and sums of a cell in float32."""
    data, hidden, weights, bias, cell = (node.expr(position) for position in range(5))
    if any(node.input(position).dtype != "float32" for position in range(5)):
        node.refuse("LSTM's basic kernel is supported in float32 only", "Use float32 or its full kernel")
    (batch, size), units = shape_of(data), shape_of(hidden)[-1]
    expected = [(batch, units), (4 * units, size + units), (4 * units,), (batch, units)]
    if [shape_of(item) for item in (hidden, weights, bias, cell)] != expected:
        raise ModelError(f"tensors that do not fit data of shape {(batch, size)} and {units} units")
    joined = node.call("concatenate", Tuple((data, hidden)), axis=1)
    sums = node.call("nn.bias_add", node.call("nn.dense", joined, weights, units=4 * units), bias, axis=1)
    taken, candidate, kept, opened = (
        node.call("strided_slice", sums, begin=(first,), end=(first + units,), strides=(1,), axes=(1,))
        for first in range(0, 4 * units, units)
    )
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
    found = []
    backward, auxiliary = _auxiliary(node, _AUXILIARY, node.has(_FORWARD.auxiliary + 1))
    for at, data in ((_FORWARD, node.expr(0)), (_BACKWARD, backward)):
        layer = FloatLstm(
            node, data, options, time_major=bool(options.TimeMajor()), at=at, backwards=at is _BACKWARD,
            auxiliary=auxiliary,
        )  # fmt: skip
        found.append(layer.layer())
    return _joined(node, found, merges=bool(options.MergeOutputs()))


def _auxiliary(node: Node, position: int, has_weights: bool) -> tuple[Expr, Expr | None]:
    """Return what the backward direction reads, and what both do beside their data.

    Without weights of its own, auxiliary data is what the backward direction of the layer before gave.
    """
    if not node.has(position):
        return node.expr(0), None
    if has_weights:
        return node.expr(0), node.expr(position)
    return node.expr(position), None


def _joined(node: Node, found: Sequence[Expr], *, merges: bool) -> Expr | list[Expr]:
    return node.call("concatenate", Tuple(tuple(found)), axis=2) if merges else list(found)


@dataclass(frozen=True)
class _Rnn:
    """Where a direction has its tensors; `auxiliary`: -1 for none."""

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
    return _joined(node, [ahead, back], merges=bool(options.MergeOutputs()))


def _recurrence(
    node: Node, data: Expr, options: Any, at: _Rnn, *, time_major: bool, auxiliary: Expr | None = None,
    backwards: bool = False,
) -> Expr:  # fmt: skip
    """Return the results of a direction of a recurrent layer, and assign its state."""
    _check_floats(node, node.input(0).dtype, node.input(at.weights).dtype)
    units = node.value(at.weights).shape[0]
    if len(shape_of(data)) != 3 or 0 in shape_of(data):
        raise ModelError(f"data of shape {shape_of(data)} where a sequence of batches belongs")
    if not time_major:
        data = node.call("transpose", data, axes=(1, 0, 2))
    steps, batch, size = shape_of(data)
    expected = [(units, size), (units, units), (units,), (batch, units)]
    if [shape_of(node.expr(place)) for place in (at.weights, at.recurrent, at.bias, at.hidden)] != expected:
        raise ModelError(f"tensors that do not fit data of shape {shape_of(data)} and {units} units")
    gates = _product(node, data, at.weights, options)
    if auxiliary is not None:
        more = auxiliary if time_major else node.call("transpose", auxiliary, axes=(1, 0, 2))
        gates = node.call("add", gates, _product(node, more, at.auxiliary, options))
    gates = node.call("nn.bias_add", gates, node.expr(at.bias), axis=2)
    if options.FusedActivationFunction() in FUNCTIONS:
        whole = _looped(node, gates, options, at, backwards=backwards)
    else:
        whole = _unrolled(node, gates, options, at, backwards=backwards)
    last = 0 if backwards else steps - 1
    node.assign(at.hidden, node.call("reshape", cut(node, whole, last, last + 1), newshape=(batch, units)))
    return whole if time_major else node.call("transpose", whole, axes=(1, 0, 2))


def _product(node: Node, data: Expr, place: int, options: Any) -> Expr:
    weights = node.expr(place)
    if node.input(place).dtype == "float32":
        return node.call("nn.dense", data, weights, units=shape_of(weights)[0])
    asymmetric = bool(options.AsymmetricQuantizeInputs())
    return hybrid_dense(node, data, weights, node.scale(node.input(place)), asymmetric=asymmetric)


def _looped(node: Node, gates: Expr, options: Any, at: _Rnn, *, backwards: bool) -> Expr:
    steps, batch, units = shape_of(gates)
    recurrent = node.value(at.recurrent)
    args = [
        gates, Constant(recurrent[None], node.input(at.recurrent).name, node.span),
        node.call("reshape", node.expr(at.hidden), newshape=(1, batch, units)),
        const(np.full(batch, steps), "int32"),
    ]  # fmt: skip
    attrs: dict[str, Any] = {
        "activations": (FUNCTIONS[options.FusedActivationFunction()],), "alphas": (1.0,), "betas": (0.0,),
        "direction": "reverse" if backwards else "forward",
    }  # fmt: skip
    if recurrent.dtype == np.int8:
        scale = const(np.full((1, units), node.scale(node.input(at.recurrent))), "float32")
        form = "asymmetric" if options.AsymmetricQuantizeInputs() else "symmetric"
        result = node.call("qnn.dynamic_rnn_steps", *args, scale, **attrs, quantizes=form)
    else:
        result = node.call("nn.rnn_steps", *args, **attrs)
    return node.call("reshape", result, newshape=(steps, batch, units))


def _unrolled(node: Node, gates: Expr, options: Any, at: _Rnn, *, backwards: bool) -> Expr:
    """Return all steps of a layer with a function that cells do not have."""
    steps, batch, units = shape_of(gates)
    hidden, found = node.expr(at.hidden), []
    for step in reversed(range(steps)) if backwards else range(steps):
        part = node.call("reshape", cut(node, gates, step, step + 1), newshape=(batch, units))
        sums = node.call("add", part, _product(node, hidden, at.recurrent, options))
        hidden = activated(node, sums, options.FusedActivationFunction(), tanh=True)
        found.append(node.call("reshape", hidden, newshape=(1, batch, units)))
    return node.call("concatenate", Tuple(tuple(reversed(found) if backwards else found)), axis=0)
