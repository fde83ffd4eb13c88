"""LSTM layers of TFLite on floats, with weights of floats or of int8.

One operator loops over the steps of a plain layer. What it has not, such as a projection, is written out step by step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tflite import ActivationFunctionType

from mlfc.errors import ModelError
from mlfc.frontend.tflite.activation import activated
from mlfc.frontend.tflite.linear import hybrid_dense
from mlfc.frontend.tflite.lstm import Array, InputNumbers, Lstm, cut
from mlfc.frontend.tflite.node import Node
from mlfc.frontend.tflite.weights import shape_of
from mlfc.relay.ir import Constant, Expr, Tuple, const

FUNCTIONS = {
    ActivationFunctionType.NONE: "affine", ActivationFunctionType.RELU: "relu", ActivationFunctionType.TANH: "tanh",
}  # fmt: skip
"""The functions of a cell that operators over all steps have."""

_NORM_EPSILON = 1e-8


class FloatLstm(Lstm):
    """One direction of a layer."""

    def __init__(
        self, node: Node, data: Expr, options: Any, *, time_major: bool, at: InputNumbers = InputNumbers(),  # noqa: B008 (frozen)
        backwards: bool = False, auxiliary: Expr | None = None,
    ) -> None:  # fmt: skip
        super().__init__(node, data, options, time_major=time_major, at=at)
        self.backwards, self.auxiliary = backwards, auxiliary
        self.is_hybrid = node.input(at.inputs + 1).dtype == "int8"
        self.asymmetric = bool(options.AsymmetricQuantizeInputs())
        self.function = int(options.FusedActivationFunction())
        self.has_norm = at.norm >= 0 and node.has(at.norm + 1)
        self.projects = node.has(at.projection)
        if auxiliary is not None:
            if shape_of(auxiliary)[:2] != shape_of(data)[:2]:
                raise ModelError(f"auxiliary data of shape {shape_of(auxiliary)} beside {shape_of(data)}")
            self.check(at.auxiliary, (self.cells, shape_of(auxiliary)[2]))
        if not self.projects and self.units != self.cells:
            raise ModelError(f"{self.units} results of {self.cells} cells without a projection")

    def layer(self) -> Expr:
        """Return the results of all steps in the order of the data, and assign the states."""
        node = self.node
        plain = not self.has_norm and not self.projects and self.function in FUNCTIONS
        whole = self._looped() if plain else self._unrolled()
        return whole if self.time_major else node.call("transpose", whole, axes=(1, 0, 2))

    def _looped(self) -> Expr:
        node, options = self.node, self.options
        gates = self._product(self.data, *self._ordered(self.at.inputs), "input")
        if self.auxiliary is not None:
            more = self._product(self.auxiliary, *self._ordered(self.at.auxiliary), "auxiliary")
            gates = node.call("add", gates, more)
        bias, _ = self._ordered(self.at.bias)
        gates = node.call("nn.bias_add", gates, Constant(bias.reshape(-1), f"{node.label} bias", node.span), axis=2)
        gates = gates if self.time_major else node.call("transpose", gates, axes=(1, 0, 2))
        recurrent, scales = self._ordered(self.at.recurrent)
        shape = (1, self.batch, self.cells)
        args = [
            gates, Constant(recurrent.reshape(1, 4 * self.cells, self.cells), f"{node.label} recurrent", node.span),
            node.call("reshape", node.expr(self.at.hidden), newshape=shape),
            const(np.full(self.batch, self.steps), "int32"),
            node.call("reshape", node.expr(self.at.cell), newshape=shape), const(self._float_peephole(), "float32"),
        ]  # fmt: skip
        function = FUNCTIONS[self.function]
        attrs: dict[str, Any] = {
            "activations": ("sigmoid", function, function), "alphas": (0.0, 1.0, 1.0), "betas": (0.0,) * 3,
            "returns": ("all", "cell"), "input_forget": self.couples_input, "cell_clip": float(options.CellClip()),
            "direction": "reverse" if self.backwards else "forward",
        }  # fmt: skip
        if not self.is_hybrid:
            return self._results(node.call("nn.lstm_steps", *args, **attrs))
        scale = const(np.repeat(scales, self.cells).reshape(1, -1), "float32")
        form = "asymmetric" if self.asymmetric else "symmetric"
        return self._results(node.call("qnn.dynamic_lstm_steps", *args, scale, **attrs, quantizes=form))

    def _product(self, data: Expr, weights: Array, scales: Array, title: str) -> Expr:
        """Return the product of data with weights (gates, cells, inputs)."""
        node, units = self.node, weights.shape[0] * weights.shape[1]
        matrix = Constant(weights.reshape(units, -1), f"{node.label} {title}", node.span)
        if not self.is_hybrid:
            return node.call("nn.dense", data, matrix, units=units)
        return hybrid_dense(node, data, matrix, np.repeat(scales, weights.shape[1]), asymmetric=self.asymmetric)

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
        if not node.has(self.at.peephole + 2):
            return np.zeros((1, 3 * self.cells), np.float32)
        found = {}
        for gate in range(self.couples_input, 3):
            value = node.value(self.at.peephole + gate)
            if value.shape != (self.cells,):
                raise ModelError(f"a peephole of shape {value.shape} for {self.cells} cells")
            found[gate] = value.astype(np.float32) * self._scale(self.at.peephole + gate)
        if self.couples_input:
            found[0], found[1] = -found[1], np.zeros_like(found[1])
        return np.concatenate([found[0], found[2], found[1]]).reshape(1, -1)

    def _results(self, result: Expr) -> Expr:
        """Take the steps and the states out of the rows that the layer gives."""
        node, steps = self.node, self.steps
        shape = (self.batch, self.cells)
        whole = node.call("reshape", cut(node, result, 0, steps), newshape=(steps, *shape))
        last = 0 if self.backwards else steps - 1
        node.assign(self.at.hidden, node.call("reshape", cut(node, whole, last, last + 1), newshape=shape))
        node.assign(self.at.cell, node.call("reshape", cut(node, result, steps, steps + 1), newshape=shape))
        return whole

    def _stacked(self, first: int) -> tuple[Array, Array]:
        """Return what gates have from a place on, and the scales of weights of int8."""
        values = np.stack([self.node.value(first + gate) for gate in self.gates])
        return values, np.array([self._scale(first + gate) for gate in self.gates], np.float32)

    def _unrolled(self) -> Expr:
        """Return the results of all steps, each of which has operators of its own."""
        node, at = self.node, self.at
        data = self.data if self.time_major else node.call("transpose", self.data, axes=(1, 0, 2))
        gates = self._product(data, *self._stacked(at.inputs), "input")
        if self.auxiliary is not None:
            more = self.auxiliary if self.time_major else node.call("transpose", self.auxiliary, axes=(1, 0, 2))
            gates = node.call("add", gates, self._product(more, *self._stacked(at.auxiliary), "auxiliary"))
        if not self.has_norm:
            gates = node.call("nn.bias_add", gates, const(self._stacked(at.bias)[0].reshape(-1), "float32"), axis=2)
        hidden, cell = node.expr(at.hidden), node.expr(at.cell)
        found: list[Expr] = []
        for step in reversed(range(self.steps)) if self.backwards else range(self.steps):
            part = node.call("reshape", cut(node, gates, step, step + 1), newshape=(self.batch, -1))
            part = node.call("add", part, self._product(hidden, *self._stacked(at.recurrent), "recurrent"))
            hidden, cell = self._step(part, cell)
            found.append(node.call("reshape", hidden, newshape=(1, self.batch, self.units)))
        node.assign(at.hidden, hidden)
        node.assign(at.cell, cell)
        if len(found) == 1:
            return found[0]
        return node.call("concatenate", Tuple(tuple(reversed(found) if self.backwards else found)), axis=0)

    def _step(self, sums: Expr, before: Expr) -> tuple[Expr, Expr]:
        """Return hidden and cell state behind a step, of the sums of its gates."""
        node = self.node

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
        position = self.at.projection
        weights, scale = node.value(position)[None], np.array([self._scale(position)], np.float32)
        if weights.shape[1:] != (self.units, self.cells):
            raise ModelError(f"a projection of shape {weights.shape[1:]}")
        result = self._product(shown, weights, scale, "projection")
        if node.has(position + 1):
            result = node.call("nn.bias_add", result, node.expr(position + 1), axis=1)
        return self._clipped(result, self.options.ProjClip()), cell

    def _argument(self, sums: Expr, gate: int, cell: Expr | None) -> Expr:
        """Return what the function of a gate gets; all gates but one may see the cell state."""
        node, first = self.node, (gate - self.gates[0]) * self.cells
        result = node.call("strided_slice", sums, begin=(first,), end=(first + self.cells,), strides=(1,), axes=(1,))
        if cell is not None and node.has(self.at.peephole + 2):
            place = self.at.peephole + min(gate, 2)
            seen = node.value(place).astype(np.float32) * self._scale(place)
            result = node.call("add", result, node.call("multiply", const(seen, "float32"), cell))
        return self._normalized(result, gate) if self.has_norm else result

    def _normalized(self, data: Expr, gate: int) -> Expr:
        node = self.node
        centred = node.call("subtract", data, node.call("mean", data, axis=(1,), keepdims=True))
        variance = node.call("mean", node.call("multiply", centred, centred), axis=(1,), keepdims=True)
        spread = node.call("rsqrt", node.call("add", variance, const(_NORM_EPSILON)))
        scaled = node.call("multiply", node.call("multiply", centred, spread), node.expr(self.at.norm + gate))
        return node.call("add", scaled, node.expr(self.at.bias + gate))

    def _clipped(self, data: Expr, limit: float) -> Expr:
        return self.node.call("clip", data, a_min=-limit, a_max=limit) if limit > 0 else data
