"""LSTM layers of TFLite: integer ones with 16-bit gates, and float ones with float or int8 weights.

A float layer with a projection, a layer normalization or an unusual activation is unrolled; others are one operator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tflite import ActivationFunctionType

from mlfc.errors import ModelError
from mlfc.frontend.tflite.arithmetic import activated
from mlfc.frontend.tflite.linear import hybrid_dense
from mlfc.frontend.tflite.node import Node, shape_of
from mlfc.frontend.tflite.schema import TfliteTensor
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, const

Array = npt.NDArray[Any]

FUNCTIONS = {
    ActivationFunctionType.NONE: "affine", ActivationFunctionType.RELU: "relu", ActivationFunctionType.TANH: "tanh",
}  # fmt: skip
"""Cell activations that the operators over all steps support."""

_NORM_EPSILON = 1e-8


@dataclass(frozen=True)
class InputNumbers:
    """Input positions of the tensors of one direction, the first gate's for per-gate tensors; -1 if unsupported."""

    inputs: int = 1
    recurrent: int = 5
    peephole: int = 9
    bias: int = 12
    projection: int = 16
    hidden: int = 18
    cell: int = 19
    norm: int = 20
    auxiliary: int = -1


class Lstm:
    """One direction of a layer.

    Its gates are input, forget, cell and output; the input gate may be derived from the forget gate.
    """

    def __init__(
        self, node: Node, data: Expr, options: Any, *, time_major: bool, at: InputNumbers = InputNumbers(),
        backwards: bool = False, auxiliary: Expr | None = None,
    ) -> None:  # fmt: skip
        self.node, self.data, self.options, self.at = node, data, options, at
        self.time_major, self.backwards, self.auxiliary = time_major, backwards, auxiliary
        self.couples_input = not node.has(at.inputs)
        self.gates = range(self.couples_input, 4)
        self.has_peephole, self.projects = node.has(at.peephole + 2), node.has(at.projection)
        self.has_norm = at.norm >= 0 and node.has(at.norm + 1)
        self.is_hybrid = node.input(at.inputs + 1).dtype == "int8"
        self.asymmetric = bool(options.AsymmetricQuantizeInputs())
        self.function = int(options.FusedActivationFunction())
        shape = shape_of(data)
        self.units, self.cells = shape_of(node.expr(at.hidden))[-1], shape_of(node.expr(at.cell))[-1]
        if len(shape) != 3 or 0 in shape:
            raise ModelError(f"expected data of 3 dimensions, sequences of batches, got shape {shape}")
        self.steps, self.batch = shape[:2] if time_major else (shape[1], shape[0])
        self._check(at.inputs, (self.cells, shape[2]))
        self._check(at.recurrent, (self.cells, self.units))
        self._check(at.bias, (self.cells,))
        for position, width in ((at.hidden, self.units), (at.cell, self.cells)):
            found = shape_of(node.expr(position))
            if found != (self.batch, width):
                raise ModelError(f"a state has the shape {found}, expected {(self.batch, width)}")

    def _check(self, first: int, shape: tuple[int, ...]) -> None:
        """Raise ModelError unless the tensors of all gates, at positions from `first` on, have the same shape."""
        for gate in self.gates:
            found = self.node.value(first + gate).shape
            if found != shape:
                raise ModelError(f"input {first + gate} has shape {found}, expected {shape}")

    # Integers

    def integer(self, *, tables: bool) -> Expr:
        """Return the layer for int8 or int16; with `tables`, the activations are those of TFLite Micro."""
        node, at = self.node, self.at
        others = (*range(9, 12), 16, 17, *range(20, 24))
        if tables and (self.couples_input or any(map(node.has, others))):
            node.refuse(
                "TFLite Micro's LSTM has four gates, and no peephole, projection or layer normalization",
                "Export it as int8, with --numerics litert",
            )
        if tables and self.options.FusedActivationFunction() != ActivationFunctionType.TANH:
            node.refuse("TFLite Micro's LSTM has TANH as its activation function", "Use TANH")
        hidden, cell = node.input(at.hidden), node.scale(node.input(at.cell))
        # the scale of each gate before its activation, or before its normalization
        units = [node.scale(self._intermediate(gate)) if self.has_norm else np.float32(2.0**-12) for gate in self.gates]
        gates = self._integer_gates(units)
        shown = hidden if tables else self._intermediate(4)
        shown_scale = 2.0**-30 / np.float64(node.scale(shown))
        significand, exponent = math.frexp(float(cell))
        if significand != 0.5 or not -15 <= exponent - 1 <= -9:
            refused = f"a cell state of scale {cell} is not supported"
            node.refuse(refused, "It must be a power of two from 2**-15 to 2**-9")
        attrs = {
            "recurrent_scales": tuple(map(float, self._relative(at.recurrent, hidden, units))),
            "shown_scale": float(shown_scale if tables else np.float32(shown_scale)),
            # LiteRT's sign is opposite if the layer has a projection
            "shown_zero": node.zero_point(shown) * (-1 if self.projects else 1),
            "hidden_zero": node.zero_point(hidden),
            "cell_exponent": exponent - 1,
            "cell_clip": _code_of(self.options.CellClip(), cell, 32767),
            "couples_input": self.couples_input,
            "time_major": self.time_major,
            "tables": tables,
        }
        more = self._peephole(attrs, units) + self._norm(attrs) + self._projection(attrs, node.scale(shown))
        recurrent = self._joined(at.recurrent)
        given = (gates, recurrent, node.expr(at.hidden), node.expr(at.cell), *more)
        return self._integer_results(node.call("qnn.lstm_steps", *given, **attrs))

    def _joined(self, first: int) -> Constant:
        """Return the weights or biases of all gates, concatenated along the first axis."""
        values = [self.node.value(first + gate) for gate in self.gates]
        names = " ".join(self.node.input(first + gate).name for gate in self.gates)
        return Constant(np.concatenate(values), names, self.node.span)

    def _intermediate(self, number: int) -> TfliteTensor:
        found = self.node.record.intermediates
        if len(found) != 5:
            raise ModelError(f"expected 5 intermediate tensors, got {len(found)}")
        return self.node.tensors[found[number]]

    def _relative(self, first: int, source: TfliteTensor, units: list[np.float32]) -> list[np.float32]:
        """Return the scale of the products of each gate's weights with a tensor, relative to the gate's scale."""
        scales = (self.node.scale(self.node.input(first + gate)) for gate in self.gates)
        return [scale * self.node.scale(source) / unit for scale, unit in zip(scales, units, strict=True)]

    def _integer_gates(self, units: list[np.float32]) -> Expr:
        """Return the contributions of the input to the gates at all steps, in 16 bits."""
        node, data = self.node, self.node.input(0)
        is_wide = data.dtype == "int16"
        data_scale, data_zero = node.quantization(data)
        sums = node.call(
            "qnn.dense", self.data, self._joined(self.at.inputs), data_zero, const(0, "int32"), data_scale, const(1.0),
            units=len(self.gates) * self.cells, out_dtype="int64" if is_wide else "int32",
        )  # fmt: skip
        if not self.has_norm:
            sums = node.call("nn.bias_add", sums, self._joined(self.at.bias), axis=2)
        scales = np.repeat(np.asarray(self._relative(self.at.inputs, data, units), np.float64), self.cells)
        return rescaled_sums(node, sums, scales, "int16", rounding="REDUCED" if is_wide else "DOUBLE")

    def _stacked_words(self, positions: list[int], title: str, fault: str) -> Constant:
        values = [self.node.value(position) for position in positions]
        if any(value.shape != (self.cells,) or value.dtype != np.int16 for value in values):
            raise ModelError(fault)
        return Constant(np.stack(values), f"{self.node.label} {title}", self.node.span)

    def _norm(self, attrs: dict[str, Any]) -> list[Expr]:
        """Return weights and bias of the layer normalization, and add its parameters to the attributes."""
        node = self.node
        if not self.has_norm:
            return []
        positions = [self.at.norm + gate for gate in self.gates]
        scales = [node.scale(node.input(position)) for position in positions]
        attrs["norm_scales"] = tuple(map(float, scales))
        attrs["norm_guards"] = tuple(max(1, int(np.float32(10000) * scale)) for scale in scales)
        bias = np.stack([node.value(self.at.bias + gate) for gate in self.gates])
        fault = "the layer normalization weights must be one int16 per cell"
        return [self._stacked_words(positions, "norm", fault), Constant(bias, f"{node.label} bias", node.span)]

    def _peephole(self, attrs: dict[str, Any], units: list[np.float32]) -> list[Expr]:
        """Return the peephole weights, and add their scales to the attributes."""
        node = self.node
        if not self.has_peephole:
            return []
        positions = [self.at.peephole + gate for gate in self.gates[:-1]]
        found = self._stacked_words(positions, "peephole", "the peephole weights must be one int16 per cell")
        unit = np.float32(2.0 ** attrs["cell_exponent"])
        pairs = zip(positions, [*units[:-2], units[-1]], strict=True)
        attrs["peephole_scales"] = tuple(float(unit * node.scale(node.input(place)) / other) for place, other in pairs)
        return [found]

    def _projection(self, attrs: dict[str, Any], shown: np.float32) -> list[Expr]:
        """Return projection weights and bias, and add their scale to the attributes."""
        node, position = self.node, self.at.projection
        if not self.projects:
            return []
        weights = node.value(position)
        bias = node.expr(position + 1) if node.has(position + 1) else const(np.zeros(self.units), "int32")
        if weights.shape != (self.units, self.cells) or shape_of(bias) != (self.units,):
            raise ModelError(
                f"a projection of shape {weights.shape} and a bias of {shape_of(bias)} do not fit the cells and results"
            )
        scale = node.scale(node.input(position)) * shown / node.scale(node.input(self.at.hidden))
        attrs["projection_scale"] = float(scale)
        attrs["projection_clip"] = _code_of(self.options.ProjClip(), node.scale(node.output()), 127)
        return [node.expr(position), bias]

    def _integer_results(self, result: Expr) -> Expr:
        """Extract steps and states from the layer's result; an int8 result holds the cell state as pairs of bytes."""
        node, size, count = self.node, self.steps * self.batch * self.units, self.batch * self.cells
        axis = 0 if self.time_major else 1
        leading = (self.steps, self.batch) if self.time_major else (self.batch, self.steps)
        whole = node.call("reshape", node.cut(result, 0, size), newshape=(*leading, self.units))
        last = node.cut(whole, self.steps - 1, self.steps, axis)
        node.assign(self.at.hidden, node.call("reshape", last, newshape=(self.batch, self.units)))
        cell = node.cut(result, size, size + count)
        if ir.tensor_type(result).dtype != "int16":
            low, high = (
                node.call("cast", part, dtype="int16")
                for part in (cell, node.cut(result, size + count, size + 2 * count))
            )
            low = node.call("bitwise_and", low, const(255, "int16"))
            cell = node.call("add", low, node.call("multiply", high, const(256, "int16")))
        node.assign(self.at.cell, node.call("reshape", cell, newshape=(self.batch, self.cells)))
        return whole

    # Floats

    def floats(self) -> Expr:
        """Return the results of all steps in the order of the data, and assign the states."""
        if self.auxiliary is not None:
            if shape_of(self.auxiliary)[:2] != shape_of(self.data)[:2]:
                raise ModelError(
                    f"auxiliary data of shape {shape_of(self.auxiliary)} does not fit data of {shape_of(self.data)}"
                )
            self._check(self.at.auxiliary, (self.cells, shape_of(self.auxiliary)[2]))
        if not self.projects and self.units != self.cells:
            raise ModelError(f"{self.units} results of {self.cells} cells require a projection")
        is_plain = not self.has_norm and not self.projects and self.function in FUNCTIONS
        return self._time_major(self._looped() if is_plain else self._unrolled())

    def _time_major(self, data: Expr) -> Expr:
        """Swap the axes of steps and batch unless the operator is time-major."""
        return data if self.time_major else self.node.call("transpose", data, axes=(1, 0, 2))

    def _looped(self) -> Expr:
        """Return the results of a single operator over all steps."""
        node, at = self.node, self.at
        gates = self._gates(self.data, self.auxiliary, ordered=True)
        bias, _ = self._weights(at.bias, ordered=True)
        gates = node.call("nn.bias_add", gates, Constant(bias.reshape(-1), f"{node.label} bias", node.span), axis=2)
        recurrent, scales = self._weights(at.recurrent, ordered=True)
        recurrent = recurrent.reshape(1, 4 * self.cells, self.cells)
        shape, function = (self.batch, self.cells), FUNCTIONS[self.function]
        args = [
            self._time_major(gates), Constant(recurrent, f"{node.label} recurrent", node.span),
            node.call("reshape", node.expr(at.hidden), newshape=(1, *shape)),
            const(np.full(self.batch, self.steps), "int32"),
            node.call("reshape", node.expr(at.cell), newshape=(1, *shape)), const(self._float_peephole(), "float32"),
        ]  # fmt: skip
        attrs: dict[str, Any] = {
            "activations": ("sigmoid", function, function), "alphas": (0.0, 1.0, 1.0), "betas": (0.0,) * 3,
            "returns": ("all", "cell"), "input_forget": self.couples_input,
            "cell_clip": float(self.options.CellClip()), "direction": "reverse" if self.backwards else "forward",
        }  # fmt: skip
        if self.is_hybrid:
            args.append(const(np.repeat(scales, self.cells).reshape(1, -1), "float32"))
            attrs["quantizes"] = "asymmetric" if self.asymmetric else "symmetric"
        result = node.call("qnn.dynamic_lstm_steps" if self.is_hybrid else "nn.lstm_steps", *args, **attrs)
        whole = node.call("reshape", node.cut(result, 0, self.steps), newshape=(self.steps, *shape))
        last = 0 if self.backwards else self.steps - 1
        node.assign(at.hidden, node.call("reshape", node.cut(whole, last, last + 1), newshape=shape))
        cell = node.cut(result, self.steps, self.steps + 1)
        node.assign(at.cell, node.call("reshape", cell, newshape=shape))
        return whole

    def _gates(self, data: Expr, auxiliary: Expr | None, *, ordered: bool) -> Expr:
        """Return the contributions of the data and the auxiliary data to the gates at all steps."""
        gates = self._product(data, *self._weights(self.at.inputs, ordered=ordered), "input")
        if auxiliary is None:
            return gates
        more = self._product(auxiliary, *self._weights(self.at.auxiliary, ordered=ordered), "auxiliary")
        return self.node.call("add", gates, more)

    def _product(self, data: Expr, weights: Array, scales: Array, title: str) -> Expr:
        """Return the product of data with weights (gates, cells, inputs)."""
        node, units = self.node, weights.shape[0] * weights.shape[1]
        matrix = Constant(weights.reshape(units, -1), f"{node.label} {title}", node.span)
        if not self.is_hybrid:
            return node.call("nn.dense", data, matrix, units=units)
        return hybrid_dense(node, data, matrix, np.repeat(scales, weights.shape[1]), asymmetric=self.asymmetric)

    def _weights(self, first: int, *, ordered: bool) -> tuple[Array, Array]:
        """Return weights or biases of all gates, and the scales of int8 ones.

        With `ordered`, they are in the operator's gate order: input, output, forget and cell. With a coupled
        input gate, the operator gets the negated forget gate as the input gate, and derives the forget gate:
        sigmoid(-x) = 1 - sigmoid(x).
        """
        values = {gate: self.node.value(first + gate) for gate in self.gates}
        scales = {gate: self._scale(first + gate) for gate in self.gates}
        if ordered and self.couples_input:
            forget = values[1]
            is_lowest = forget.dtype == np.int8 and forget.min(initial=0) == -128  # its negative needs 9 bits
            values[0], values[1] = -(forget.astype(np.int16) if is_lowest else forget), np.zeros_like(forget)
            scales[0] = scales[1]
        order = (0, 3, 1, 2) if ordered else tuple(self.gates)
        return np.stack([values[gate] for gate in order]), np.array([scales[gate] for gate in order], np.float32)

    def _scale(self, position: int) -> np.float32:
        tensor = self.node.input(position)
        return np.float32(1) if tensor.quantization is None else self.node.scale(tensor)

    def _float_peephole(self) -> Array:
        """Return the peephole weights of the gates input, output and forget, in a row."""
        if not self.has_peephole:
            return np.zeros((1, 3 * self.cells), np.float32)
        found = {}
        for gate in range(self.couples_input, 3):
            value = self.node.value(self.at.peephole + gate)
            if value.shape != (self.cells,):
                raise ModelError(f"a peephole of shape {value.shape} does not fit {self.cells} cells")
            found[gate] = value.astype(np.float32) * self._scale(self.at.peephole + gate)
        if self.couples_input:
            found[0], found[1] = -found[1], np.zeros_like(found[1])
        return np.concatenate([found[0], found[2], found[1]]).reshape(1, -1)

    def _unrolled(self) -> Expr:
        """Return the results of all steps, each of which has its own operators."""
        node, at = self.node, self.at
        auxiliary = None if self.auxiliary is None else self._time_major(self.auxiliary)
        gates = self._gates(self._time_major(self.data), auxiliary, ordered=False)
        if not self.has_norm:
            bias, _ = self._weights(at.bias, ordered=False)
            gates = node.call("nn.bias_add", gates, const(bias.reshape(-1), "float32"), axis=2)
        hidden, cell, recurrent = node.expr(at.hidden), node.expr(at.cell), self._weights(at.recurrent, ordered=False)
        found: dict[int, Expr] = {}
        for step in sorted(range(self.steps), reverse=self.backwards):
            part = node.call("reshape", node.cut(gates, step, step + 1), newshape=(self.batch, -1))
            part = node.call("add", part, self._product(hidden, *recurrent, "recurrent"))
            hidden, cell = self._step(part, cell)
            found[step] = node.call("reshape", hidden, newshape=(1, self.batch, self.units))
        node.assign(at.hidden, hidden)
        node.assign(at.cell, cell)
        return found[0] if self.steps == 1 else node.joined([found[step] for step in range(self.steps)], 0)

    def _step(self, sums: Expr, before: Expr) -> tuple[Expr, Expr]:
        """Return hidden and cell state after a step, from the sums of its gates."""
        node, position = self.node, self.at.projection

        def squashed(gate: int, cell: Expr) -> Expr:
            return node.call("sigmoid", self._argument(sums, gate, cell))

        forget = squashed(1, before)
        taken = node.call("subtract", const(1.0), forget) if self.couples_input else squashed(0, before)
        candidate = activated(node, self._argument(sums, 2, None), self.function, tanh=True)
        kept = node.call("multiply", forget, before)
        cell = self._clipped(node.call("add", kept, node.call("multiply", candidate, taken)), self.options.CellClip())
        shown = node.call("multiply", squashed(3, cell), activated(node, cell, self.function, tanh=True))
        if not self.projects:
            return shown, cell
        weights, scale = node.value(position)[None], np.array([self._scale(position)], np.float32)
        if weights.shape[1:] != (self.units, self.cells):
            raise ModelError(f"a projection of shape {weights.shape[1:]} does not fit the cells and results")
        result = self._product(shown, weights, scale, "projection")
        if node.has(position + 1):
            result = node.call("nn.bias_add", result, node.expr(position + 1), axis=1)
        return self._clipped(result, self.options.ProjClip()), cell

    def _argument(self, sums: Expr, gate: int, cell: Expr | None) -> Expr:
        """Return the argument of a gate's activation; all gates but the cell gate may have peephole weights."""
        node, first = self.node, (gate - self.gates[0]) * self.cells
        result = node.cut(sums, first, first + self.cells, 1)
        if cell is not None and self.has_peephole:
            place = self.at.peephole + min(gate, 2)
            seen = node.value(place).astype(np.float32) * self._scale(place)
            result = node.call("add", result, node.call("multiply", const(seen, "float32"), cell))
        if not self.has_norm:
            return result
        centred = node.call("subtract", result, node.call("mean", result, axis=(1,), keepdims=True))
        variance = node.call("mean", node.call("multiply", centred, centred), axis=(1,), keepdims=True)
        spread = node.call("rsqrt", node.call("add", variance, const(_NORM_EPSILON)))
        scaled = node.call("multiply", node.call("multiply", centred, spread), node.expr(self.at.norm + gate))
        return node.call("add", scaled, node.expr(self.at.bias + gate))

    def _clipped(self, data: Expr, limit: float) -> Expr:
        return self.node.call("clip", data, a_min=-limit, a_max=limit) if limit > 0 else data


def _code_of(limit: float, scale: np.float32, most: int) -> int:
    """Return a limit in units of a scale, truncated as in the reference; 0 for no limit."""
    return int(min(np.float32(limit) / scale, np.float32(most))) if limit > 0 else 0


def rescaled_sums(
    node: Node, sums: Expr, scale: np.float32 | Array, dtype: str, zero_point: int = 0, rounding: str = "DOUBLE"
) -> Expr:
    """Return integers times one scale, or one per index of the last axis; the reference computes scales in float32."""
    return node.call(
        "qnn.requantize", sums, const(scale, "float64"), const(0, "int32"), const(1.0), const(zero_point, "int32"),
        axis=-1, rounding=rounding, out_dtype=dtype,
    )  # fmt: skip
