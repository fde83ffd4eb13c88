"""Recurrent operators of TFLite, whose state is in variable tensors: SVDF and the LSTM over a sequence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import ModelError
from mlfc.frontend.tflite.activation import activated
from mlfc.frontend.tflite.linear import hybrid_dense
from mlfc.frontend.tflite.node import Node, converts
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, Tuple, const

Array = npt.NDArray[Any]


def _shape(expr: Expr) -> tuple[int, ...]:
    return ir.tensor_type(expr).shape


@converts("SVDF")
def _svdf(node: Node) -> Expr:
    options = node.options("SVDFOptions")
    data, feature_weights, time_weights = node.expr(0), node.value(1), node.value(2)
    rank, batch = options.Rank(), _shape(data)[0]
    if feature_weights.ndim != 2 or time_weights.ndim != 2 or _shape(data)[1:] != feature_weights.shape[1:]:
        raise ModelError(f"weights {feature_weights.shape} and {time_weights.shape} on data of shape {_shape(data)}")
    filters, memory = time_weights.shape
    if filters != feature_weights.shape[0] or _shape(node.expr(4)) != (batch, filters * memory):
        raise ModelError(f"a state of shape {_shape(node.expr(4))} for {filters} filters of {memory} steps")
    is_integer = node.input(0).dtype == "int8"
    feature = _integer_feature(node) if is_integer else _float_feature(node, bool(options.AsymmetricQuantizeInputs()))
    state = node.call("reshape", node.expr(4), newshape=(batch, filters, memory))
    weights = node.expr(2)
    if node.input(2).dtype == "int8" and not is_integer:
        weights = node.call("qnn.dequantize", weights, *node.quantization(node.input(2)))
    sums = node.call("nn.svdf_time", feature, state, weights, rank=rank)
    node.assign(4, _next_state(node, state, feature))
    if node.has(3):
        sums = node.call("nn.bias_add", sums, node.expr(3), axis=1)
    if not is_integer:
        return activated(node, sums, options.FusedActivationFunction())
    # the reference leaves the fused activation to the range of the result
    scale = node.scale(node.input(4)) * node.scale(node.input(2)) / node.scale(node.output())
    return _rescaled(node, sums, scale, node.output().dtype, node.zero_point(node.output()))


def _rescaled(node: Node, sums: Expr, scale: np.float32 | Array, dtype: str, zero_point: int = 0) -> Expr:
    """Return integers times a scale that the reference computed in float32, or one for each of the last dimension."""
    return node.call(
        "qnn.requantize", sums, const(scale, "float64"), const(0, "int32"), const(1.0), const(zero_point, "int32"),
        axis=-1, rounding="DOUBLE", out_dtype=dtype,
    )  # fmt: skip


def _integer_feature(node: Node) -> Expr:
    """Return the product of the data and the feature weights as codes of the state."""
    weight, units = node.input(1), node.value(1).shape[0]
    (data_scale, data_zero), (weight_scale, weight_zero) = (node.quantization(node.input(index)) for index in (0, 1))
    sums = node.call(
        "qnn.dense", node.expr(0), node.expr(1), data_zero, weight_zero, data_scale, weight_scale, units=units,
        out_dtype="int32",
    )  # fmt: skip
    scale = node.scale(node.input(0)) * node.scale(weight) / node.scale(node.input(4))
    return _rescaled(node, sums, scale, "int16")


def _float_feature(node: Node, asymmetric: bool) -> Expr:
    units = node.value(1).shape[0]
    if node.input(1).dtype == "float32":
        return node.call("nn.dense", node.expr(0), node.expr(1), units=units)
    return hybrid_dense(node, node.expr(0), node.expr(1), node.scale(node.input(1)), asymmetric=asymmetric)


def _next_state(node: Node, state: Expr, feature: Expr) -> Expr:
    """Return the state a step on."""
    batch, filters, memory = _shape(state)
    if memory == 1:
        return feature
    kept = node.call("strided_slice", state, begin=(1,), end=(memory,), strides=(1,), axes=(2,))
    seen = node.call("reshape", feature, newshape=(batch, filters, 1))
    whole = node.call("concatenate", Tuple((kept, seen)), axis=2)
    return node.call("reshape", whole, newshape=(batch, filters * memory))


_INPUT, _RECURRENT, _PEEPHOLE, _BIAS, _PROJECTION, _HIDDEN, _CELL, _NORM = 1, 5, 9, 12, 16, 18, 19, 20


@converts("UNIDIRECTIONAL_SEQUENCE_LSTM")
def _lstm(node: Node) -> Expr:
    layer = _Lstm(node)
    if node.has(_NORM + 1):
        node.refuse("an LSTM with layer normalization is not supported", "Export it without")
    if node.input(0).dtype == "int8":
        return layer.integer()
    return node.refuse("a float LSTM is not supported")


class _Lstm:
    """One layer: its gates, in the order input, forget, cell and output, the first of which it may derive."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.options = node.options("UnidirectionalSequenceLSTMOptions")
        self.time_major = bool(self.options.TimeMajor())
        self.couples_input = not node.has(_INPUT)
        self.gates = range(1 if self.couples_input else 0, 4)
        data = _shape(node.expr(0))
        self.units, self.cells = _shape(node.expr(_HIDDEN))[-1], _shape(node.expr(_CELL))[-1]
        if len(data) != 3 or 0 in data:
            raise ModelError(f"data of shape {data} where a sequence of batches belongs")
        self.steps, self.batch = data[:2] if self.time_major else (data[1], data[0])
        for first, shape in (
            (_INPUT, (self.cells, data[2])),
            (_RECURRENT, (self.cells, self.units)),
            (_BIAS, (self.cells,)),
        ):
            for gate in self.gates:
                found = node.value(first + gate).shape
                if found != shape:
                    raise ModelError(f"input {first + gate} has shape {found} where {shape} belongs")
        for position, width in ((_HIDDEN, self.units), (_CELL, self.cells)):
            if _shape(node.expr(position)) != (self.batch, width):
                raise ModelError(f"a state of shape {_shape(node.expr(position))} where {(self.batch, width)} belongs")

    def joined(self, first: int) -> Constant:
        """Return the weights or biases of all gates, one below the other."""
        values = [self.node.value(first + gate) for gate in self.gates]
        names = " ".join(self.node.input(first + gate).name for gate in self.gates)
        return Constant(np.concatenate(values), names, self.node.span)

    def scales(self, first: int) -> list[np.float32]:
        """Return the scale of each gate's weights."""
        return [self.node.scale(self.node.input(first + gate)) for gate in self.gates]

    def integer(self) -> Expr:
        """Return the layer on int8, whose gates and cell state have 16 bits."""
        node, unit = self.node, np.float32(2.0**-12)
        data, hidden, cell = node.input(0), node.input(_HIDDEN), node.input(_CELL)
        data_scale, data_zero = node.quantization(data)
        sums = node.call(
            "qnn.dense", node.expr(0), self.joined(_INPUT), data_zero, const(0, "int32"), data_scale, const(1.0),
            units=len(self.gates) * self.cells, out_dtype="int32",
        )  # fmt: skip
        sums = node.call("nn.bias_add", sums, self.joined(_BIAS), axis=2)
        scales = [scale * node.scale(data) / unit for scale in self.scales(_INPUT)]
        gates = _rescaled(node, sums, np.repeat(np.asarray(scales, np.float64), self.cells), "int16")
        shown = node.tensors[node.record.intermediates[4]] if len(node.record.intermediates) == 5 else None
        if shown is None:
            raise ModelError(f"expected 5 intermediate tensors, got {len(node.record.intermediates)}")
        attrs = {
            "recurrent_scales": tuple(float(scale * node.scale(hidden) / unit) for scale in self.scales(_RECURRENT)),
            "shown_scale": float(np.float32(2.0**-30 / np.float64(node.scale(shown)))),
            # LiteRT counts it from the other side where there is a projection
            "shown_zero": node.zero_point(shown) * (-1 if node.has(_PROJECTION) else 1),
            "hidden_zero": node.zero_point(hidden),
            "cell_exponent": _exponent(node, node.scale(cell)),
            "cell_clip": _code_of(self.options.CellClip(), node.scale(cell), 32767),
            "couples_input": self.couples_input,
            "time_major": self.time_major,
        }
        more = self._peephole(attrs) + self._projection(attrs, node.scale(shown))
        result = node.call(
            "qnn.lstm_steps", gates, self.joined(_RECURRENT), node.expr(_HIDDEN), node.expr(_CELL), *more, **attrs
        )
        return self._integer_results(result)

    def _peephole(self, attrs: dict[str, Any]) -> list[Expr]:
        """Return what gates see of the cell state, and add its scales to the attributes."""
        node = self.node
        if not node.has(_PEEPHOLE + 2):
            return []
        gates = [
            position for position in range(_PEEPHOLE, _PEEPHOLE + 3) if position > _PEEPHOLE or not self.couples_input
        ]
        values = [node.value(position) for position in gates]
        if any(value.shape != (self.cells,) or value.dtype != np.int16 for value in values):
            raise ModelError("a peephole that is not one int16 for each cell")
        unit = np.float32(2.0 ** attrs["cell_exponent"])
        scales = [unit * node.scale(node.input(position)) / np.float32(2.0**-12) for position in gates]
        attrs["peephole_scales"] = tuple(map(float, scales))
        return [Constant(np.stack(values), f"{node.label} peephole", node.span)]

    def _projection(self, attrs: dict[str, Any], shown: np.float32) -> list[Expr]:
        """Return projection and bias, and add their scale to the attributes."""
        node = self.node
        if not node.has(_PROJECTION):
            return []
        weights = node.value(_PROJECTION)
        bias: Expr = const(np.zeros(self.units), "int32")
        if node.has(_PROJECTION + 1):
            bias = node.expr(_PROJECTION + 1)
        if weights.shape != (self.units, self.cells) or _shape(bias) != (self.units,):
            raise ModelError(f"a projection of shape {weights.shape}, and a bias of {_shape(bias)}")
        scale = node.scale(node.input(_PROJECTION)) * shown / node.scale(node.input(_HIDDEN))
        attrs["projection_scale"] = float(scale)
        attrs["projection_clip"] = _code_of(self.options.ProjClip(), node.scale(node.output()), 127)
        return [node.expr(_PROJECTION), bias]

    def _integer_results(self, result: Expr) -> Expr:
        """Take the steps and the states out of the bytes that the layer gives."""
        node, size = self.node, self.steps * self.batch * self.units
        leading = (self.steps, self.batch) if self.time_major else (self.batch, self.steps)
        cut = self.batch * self.cells
        whole = node.call("reshape", _cut(node, result, 0, size), newshape=(*leading, self.units))
        axis = 0 if self.time_major else 1
        last = node.call("strided_slice", whole, begin=(self.steps - 1,), end=(self.steps,), strides=(1,), axes=(axis,))
        node.assign(_HIDDEN, node.call("reshape", last, newshape=(self.batch, self.units)))
        low, high = (
            node.call("cast", _cut(node, result, begin, begin + cut), dtype="int16") for begin in (size, size + cut)
        )
        cell = node.call("add", node.call("bitwise_and", low, const(255, "int16")),
                         node.call("multiply", high, const(256, "int16")))  # fmt: skip
        node.assign(_CELL, node.call("reshape", cell, newshape=(self.batch, self.cells)))
        return whole


def _cut(node: Node, data: Expr, begin: int, end: int) -> Expr:
    return node.call("strided_slice", data, begin=(begin,), end=(end,), strides=(1,), axes=(0,))


def _exponent(node: Node, scale: np.float32) -> int:
    """Return the power of two that a scale is."""
    significand, exponent = math.frexp(float(scale))
    if significand != 0.5 or not -15 <= exponent - 1 <= -9:
        node.refuse(f"a cell state of scale {scale} is not supported", "It must be a power of two from 2**-15 to 2**-9")
    return exponent - 1


def _code_of(limit: float, scale: np.float32, most: int) -> int:
    """Return a limit in units of a scale, truncated as the reference does; 0 where there is none."""
    return int(min(np.float32(limit) / scale, np.float32(most))) if limit > 0 else 0
