"""Recurrent operators of TFLite, whose state is in variable tensors: SVDF and the LSTM over a sequence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from tflite import ActivationFunctionType

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
    zero = node.zero_point(node.input(4)) if is_integer else 0
    sums = node.call("nn.svdf_time", feature, state, weights, rank=rank, state_zero=zero)
    node.assign(4, _next_state(node, state, feature))
    if node.has(3):
        sums = node.call("nn.bias_add", sums, node.expr(3), axis=1)
    if not is_integer:
        return activated(node, sums, options.FusedActivationFunction())
    # the reference leaves the fused activation to the range of the result
    scale = node.scale(node.input(4)) * node.scale(node.input(2)) / node.scale(node.output())
    return _rescaled(node, sums, scale, node.output().dtype, node.zero_point(node.output()))


def _rescaled(
    node: Node, sums: Expr, scale: np.float32 | Array, dtype: str, zero_point: int = 0, rounding: str = "DOUBLE"
) -> Expr:
    """Return integers times a scale that the reference computed in float32, or one for each of the last dimension."""
    return node.call(
        "qnn.requantize", sums, const(scale, "float64"), const(0, "int32"), const(1.0), const(zero_point, "int32"),
        axis=-1, rounding=rounding, out_dtype=dtype,
    )  # fmt: skip


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
    feature = _rescaled(node, sums, scale, state.dtype)
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
    kinds = node.input(0).dtype, node.input(_INPUT + 1).dtype
    if kinds == ("int16", "int8") or (kinds == ("int8", "int8") and node.numerics == "tflm"):
        return layer.by_tables()
    if kinds == ("int8", "int8"):
        return layer.integer()
    if kinds not in (("float32", "float32"), ("float32", "int8")):
        node.refuse(
            f"an LSTM with data and weights of types {kinds[0]} and {kinds[1]} is not supported",
            "Use float32 or int8 throughout, or int16 or float32 data with int8 weights",
        )
    if node.has(_NORM + 1):
        node.refuse("layer normalization in a float LSTM is not supported", "Quantize it to int8, or export it without")
    if node.has(_PROJECTION):
        node.refuse("a projection of a float LSTM is not supported", "Quantize it to int8, or multiply its result")
    return layer.floats(is_hybrid=kinds[1] == "int8")


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
        node, units = self.node, self._units()
        hidden, cell = node.input(_HIDDEN), node.input(_CELL)
        gates = self._integer_gates(units)
        shown = node.tensors[node.record.intermediates[4]] if len(node.record.intermediates) == 5 else None
        if shown is None:
            raise ModelError(f"expected 5 intermediate tensors, got {len(node.record.intermediates)}")
        recurrent = zip(self.scales(_RECURRENT), units, strict=True)
        attrs = {
            "recurrent_scales": tuple(float(scale * node.scale(hidden) / unit) for scale, unit in recurrent),
            "shown_scale": float(np.float32(2.0**-30 / np.float64(node.scale(shown)))),
            # LiteRT counts it from the other side where there is a projection
            "shown_zero": node.zero_point(shown) * (-1 if node.has(_PROJECTION) else 1),
            "hidden_zero": node.zero_point(hidden),
            "cell_exponent": _exponent(node, node.scale(cell)),
            "cell_clip": _code_of(self.options.CellClip(), node.scale(cell), 32767),
            "couples_input": self.couples_input,
            "time_major": self.time_major,
        }
        more = self._peephole(attrs, units) + self._norm(attrs) + self._projection(attrs, node.scale(shown))
        result = node.call(
            "qnn.lstm_steps", gates, self.joined(_RECURRENT), node.expr(_HIDDEN), node.expr(_CELL), *more, **attrs
        )
        return self._integer_results(result)

    def by_tables(self) -> Expr:
        """Return the layer on int8 or int16 as TFLite Micro computes it, whose functions are tables."""
        node, hidden, cell = self.node, self.node.input(_HIDDEN), self.node.input(_CELL)
        if self.couples_input or any(node.has(position) for position in (*range(9, 12), 16, 17, *range(20, 24))):
            node.refuse(
                "TFLite Micro's LSTM has four gates, and no peephole, projection or layer normalization",
                "Export it as int8, with --numerics litert",
            )
        if self.options.FusedActivationFunction() != ActivationFunctionType.TANH:
            node.refuse("TFLite Micro's LSTM has TANH as its activation function", "Use TANH")
        units = self._units()
        recurrent = zip(self.scales(_RECURRENT), units, strict=True)
        attrs = {
            "recurrent_scales": tuple(float(scale * node.scale(hidden) / unit) for scale, unit in recurrent),
            "shown_scale": float(2.0**-30 / np.float64(node.scale(hidden))), "shown_zero": node.zero_point(hidden),
            "hidden_zero": node.zero_point(hidden), "cell_exponent": _exponent(node, node.scale(cell)),
            "cell_clip": _code_of(self.options.CellClip(), node.scale(cell), 32767), "time_major": self.time_major,
            "tables": True,
        }  # fmt: skip
        gates = self._integer_gates(units)
        result = node.call(
            "qnn.lstm_steps", gates, self.joined(_RECURRENT), node.expr(_HIDDEN), node.expr(_CELL), **attrs
        )
        return self._integer_results(result)

    def _integer_gates(self, units: list[np.float32]) -> Expr:
        """Return what the input contributes to the gates at all steps, in 16 bits."""
        node, data = self.node, self.node.input(0)
        is_wide = data.dtype == "int16"
        data_scale, data_zero = node.quantization(data)
        sums = node.call(
            "qnn.dense", node.expr(0), self.joined(_INPUT), data_zero, const(0, "int32"), data_scale, const(1.0),
            units=len(self.gates) * self.cells, out_dtype="int64" if is_wide else "int32",
        )  # fmt: skip
        if not node.has(_NORM + 1):
            sums = node.call("nn.bias_add", sums, self.joined(_BIAS), axis=2)
        scales = [scale * node.scale(data) / unit for scale, unit in zip(self.scales(_INPUT), units, strict=True)]
        rounding = "REDUCED" if is_wide else "DOUBLE"
        return _rescaled(node, sums, np.repeat(np.asarray(scales, np.float64), self.cells), "int16", rounding=rounding)

    def floats(self, *, is_hybrid: bool) -> Expr:
        """Return the layer on floats, with weights of floats or of int8."""
        node, options = self.node, self.options
        asymmetric = bool(options.AsymmetricQuantizeInputs())
        weights, scales = self._ordered(_INPUT)
        name = f"{node.label} input"
        matrix = Constant(weights.reshape(4 * self.cells, -1), name, node.span)
        if is_hybrid:
            gates = hybrid_dense(node, node.expr(0), matrix, np.repeat(scales, self.cells), asymmetric=asymmetric)
        else:
            gates = node.call("nn.dense", node.expr(0), matrix, units=4 * self.cells)
        bias, _ = self._ordered(_BIAS)
        gates = node.call("nn.bias_add", gates, Constant(bias.reshape(-1), f"{node.label} bias", node.span), axis=2)
        gates = gates if self.time_major else node.call("transpose", gates, axes=(1, 0, 2))
        recurrent, scales = self._ordered(_RECURRENT)
        shape = (1, self.batch, self.cells)
        args = [
            gates, Constant(recurrent.reshape(1, 4 * self.cells, self.cells), f"{node.label} recurrent", node.span),
            node.call("reshape", node.expr(_HIDDEN), newshape=shape), const(np.full(self.batch, self.steps), "int32"),
            node.call("reshape", node.expr(_CELL), newshape=shape), const(self._float_peephole(), "float32"),
        ]  # fmt: skip
        function = _activation(node, options.FusedActivationFunction())
        attrs: dict[str, Any] = {
            "activations": ("sigmoid", function, function), "alphas": (0.0, 1.0, 1.0), "betas": (0.0,) * 3,
            "returns": ("all", "cell"), "input_forget": self.couples_input, "cell_clip": float(options.CellClip()),
        }  # fmt: skip
        if not is_hybrid:
            return self._float_results(node.call("nn.lstm_steps", *args, **attrs))
        scale = const(np.repeat(scales, self.cells).reshape(1, -1), "float32")
        form = "asymmetric" if asymmetric else "symmetric"
        return self._float_results(node.call("qnn.dynamic_lstm_steps", *args, scale, **attrs, quantizes=form))

    def _ordered(self, first: int) -> tuple[Array, Array]:
        """Return weights or biases of all gates in the order of the operator, and the scales of int8 ones.

        That is input, output, forget and cell. Where the share of the input is what is left of the forget gate's, the
        operator gets that gate's negative as the input gate, and derives the other one: sigmoid(-x) = 1 - sigmoid(x).
        """
        node = self.node
        values = {gate: node.value(first + gate) for gate in self.gates}
        scales = {gate: self._scale(first + gate) for gate in self.gates}
        if self.couples_input:
            values[0], values[1], scales[0] = -values[1], np.zeros_like(values[1]), scales[1]
            if values[0].dtype == np.int8 and values[0].min(initial=0) == -128:
                values[0] = -node.value(first + 1).astype(np.int16)
        order = (0, 3, 1, 2)
        return np.stack([values[gate] for gate in order]), np.array([scales[gate] for gate in order], np.float32)

    def _scale(self, position: int) -> np.float32:
        tensor = self.node.input(position)
        return np.float32(1) if tensor.quantization is None else self.node.scale(tensor)

    def _float_peephole(self) -> Array:
        """Return what the gates input, output and forget see of the cell state, in a row."""
        node = self.node
        if not node.has(_PEEPHOLE + 2):
            return np.zeros((1, 3 * self.cells), np.float32)
        found = {}
        for gate in range(self.couples_input, 3):
            value = node.value(_PEEPHOLE + gate)
            if value.shape != (self.cells,):
                raise ModelError(f"a peephole of shape {value.shape} for {self.cells} cells")
            found[gate] = value.astype(np.float32) * self._scale(_PEEPHOLE + gate)
        if self.couples_input:
            found[0], found[1] = -found[1], np.zeros_like(found[1])
        return np.concatenate([found[0], found[2], found[1]]).reshape(1, -1)

    def _float_results(self, result: Expr) -> Expr:
        """Take the steps and the states out of the rows that the layer gives."""
        node, steps = self.node, self.steps
        shape = (self.batch, self.cells)
        whole = node.call("reshape", _cut(node, result, 0, steps), newshape=(steps, *shape))
        node.assign(_HIDDEN, node.call("reshape", _cut(node, whole, steps - 1, steps), newshape=shape))
        node.assign(_CELL, node.call("reshape", _cut(node, result, steps, steps + 1), newshape=shape))
        return whole if self.time_major else node.call("transpose", whole, axes=(1, 0, 2))

    def _units(self) -> list[np.float32]:
        """Return the unit of each gate before its function, or before its normalization."""
        if not self.node.has(_NORM + 1):
            return [np.float32(2.0**-12)] * len(self.gates)
        if len(self.node.record.intermediates) != 5:
            raise ModelError(f"expected 5 intermediate tensors, got {len(self.node.record.intermediates)}")
        return [self.node.scale(self.node.tensors[self.node.record.intermediates[gate]]) for gate in self.gates]

    def _norm(self, attrs: dict[str, Any]) -> list[Expr]:
        """Return weights and bias of the layer normalization, and add its numbers to the attributes."""
        node = self.node
        if not node.has(_NORM + 1):
            return []
        weights, bias = ([node.value(first + gate) for gate in self.gates] for first in (_NORM, _BIAS))
        if any(value.shape != (self.cells,) or value.dtype != np.int16 for value in weights):
            raise ModelError("a layer normalization that is not one int16 for each cell")
        scales = self.scales(_NORM)
        attrs["norm_scales"] = tuple(map(float, scales))
        attrs["norm_guards"] = tuple(max(1, int(np.float32(10000) * scale)) for scale in scales)
        span = node.span
        return [
            Constant(np.stack(weights), f"{node.label} norm", span),
            Constant(np.stack(bias), f"{node.label} bias", span),
        ]

    def _peephole(self, attrs: dict[str, Any], units: list[np.float32]) -> list[Expr]:
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
        of_gates = [*units[:-2], units[-1]]
        scales = [unit * node.scale(node.input(place)) / other for place, other in zip(gates, of_gates, strict=True)]
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
        """Take the steps and the states out of what the layer gives: of int8 bytes."""
        node, size = self.node, self.steps * self.batch * self.units
        leading = (self.steps, self.batch) if self.time_major else (self.batch, self.steps)
        cut = self.batch * self.cells
        whole = node.call("reshape", _cut(node, result, 0, size), newshape=(*leading, self.units))
        axis = 0 if self.time_major else 1
        last = node.call("strided_slice", whole, begin=(self.steps - 1,), end=(self.steps,), strides=(1,), axes=(axis,))
        node.assign(_HIDDEN, node.call("reshape", last, newshape=(self.batch, self.units)))
        if ir.tensor_type(result).dtype == "int16":
            cell = _cut(node, result, size, size + cut)
            node.assign(_CELL, node.call("reshape", cell, newshape=(self.batch, self.cells)))
            return whole
        low, high = (
            node.call("cast", _cut(node, result, begin, begin + cut), dtype="int16") for begin in (size, size + cut)
        )
        cell = node.call("add", node.call("bitwise_and", low, const(255, "int16")),
                         node.call("multiply", high, const(256, "int16")))  # fmt: skip
        node.assign(_CELL, node.call("reshape", cell, newshape=(self.batch, self.cells)))
        return whole


def _activation(node: Node, function: int) -> str:
    """Return the function of an LSTM's cell."""
    names = {
        ActivationFunctionType.NONE: "affine", ActivationFunctionType.RELU: "relu", ActivationFunctionType.TANH: "tanh",
    }  # fmt: skip
    if function not in names:
        node.refuse(f"an LSTM with the activation function number {function} is not supported", "Use TANH")
    return names[function]


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
