"""Recurrent layers: LSTM, GRU and RNN. The gate contributions of the inputs are one matrix product over all steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.node import Node, dtype_of, shape_of, wide
from mlfc.frontend.onnx.quantized import dynamic_quantize_linear
from mlfc.frontend.onnx.table import MICROSOFT, importer
from mlfc.ops.recurrent import CELL_FUNCTIONS, DIRECTIONS
from mlfc.relay.ir import Constant, Expr, Span
from mlfc.relay.visitor import with_span
from mlfc.support import dtypes
from mlfc.support.dims import LARGEST, bounds, is_static


@dataclass(frozen=True)
class _RecurrentCell:
    """Properties of a kind of recurrent cell."""

    operator: str
    gates: int
    functions: tuple[str, ...]  # default activations of one direction
    results: tuple[str, ...]


_LSTM = _RecurrentCell("nn.lstm_steps", 4, ("sigmoid", "tanh", "tanh"), ("all", "hidden", "cell"))
_GRU = _RecurrentCell("nn.gru_steps", 3, ("sigmoid", "tanh"), ("all", "hidden"))
_DYNAMIC_LSTM = replace(_LSTM, operator="qnn.dynamic_lstm_steps")
_RNN = _RecurrentCell("nn.rnn_steps", 1, ("tanh",), ("all", "hidden"))


@importer("LSTM", ignores=("output_sequence",))
def _lstm(node: Node) -> list[Expr]:
    layer = _Layer(node, _LSTM)
    return layer.results(
        layer.gates(layer.bias()), layer.lstm_inputs(), input_forget=bool(node.integer("input_forget", 0))
    )


@importer("GRU", ignores=("output_sequence",))
def _gru(node: Node) -> list[Expr]:
    layer = _Layer(node, _GRU)
    linear, none = bool(node.integer("linear_before_reset", 0)), layer.zeros((layer.directions, layer.units))
    if not linear or not node.has(3):
        return layer.results(layer.gates(layer.bias()), [none], linear_before_reset=linear)
    # the recurrent bias of the last gate is added before the reset gate is applied
    own, recurrent = layer.biases()
    cut = 2 * layer.units
    bias = node.call("add", own, node.concatenate([node.cut(recurrent, 1, 0, cut), none], 1))
    last = node.cut(recurrent, 1, cut, 3 * layer.units)
    return layer.results(layer.gates(bias), [last], linear_before_reset=True)


@importer("RNN", ignores=("output_sequence",))
def _rnn(node: Node) -> list[Expr]:
    layer = _Layer(node, _RNN)
    return layer.results(layer.gates(layer.bias()), [])


@importer("DynamicQuantizeLSTM", domain=MICROSOFT)
def _dynamic_lstm(node: Node) -> list[Expr]:
    weights, recurrent = (_centred(node, index) for index in (1, 2))
    turned = [Constant(matrix.transpose(0, 2, 1), None, node.span) for matrix in (weights, recurrent)]
    layer = _Layer(replace(node, inputs=[node.inputs[0], *turned, *node.inputs[3:]]), _DYNAMIC_LSTM)
    columns = layer.directions * 4 * layer.units
    if node.dtype(0) != "float32":
        node.unsupported(f"of {node.dtype(0)} is not supported", "Give it float32")
    codes, scale, zero_point = dynamic_quantize_linear(node)
    centred = node.call("subtract", node.cast(codes, "int16"), node.cast(zero_point, "int16"))
    one, zero = node.constant(1.0, "float32"), node.constant(0, "int32")
    matrix = Constant(turned[0].data.reshape(columns, -1), f"{node.name} W", node.span)
    sums = node.call("qnn.dense", centred, matrix, zero, zero, one, one, units=columns, out_dtype="int32")
    unit = node.call("multiply", scale, node.constant(_scales(node, 8, layer).reshape(-1), "float32"))
    gates = node.call("multiply", node.cast(sums, "float32"), unit)
    bias = layer.bias()
    if bias is not None:
        gates = node.call("nn.bias_add", gates, node.reshape(bias, (columns,)), axis=2)
    scales = node.constant(_scales(node, 10, layer), "float32")
    return layer.results(
        gates, [*layer.lstm_inputs(), scales], input_forget=bool(node.integer("input_forget", 0)), quantizes="whole"
    )


def _centred(node: Node, index: int) -> npt.NDArray[Any]:
    """Return integer weights minus their zero points, (directions, inputs, columns)."""
    weights, zero_point = node.value(index, "W" if index == 1 else "R"), node.value(2 * index + 7, "zero point")
    if weights.ndim != 3 or weights.dtype not in (np.int8, np.uint8) or zero_point.dtype != weights.dtype:
        node.wrong(f"expected weights of int8 or uint8 and 3 dimensions, got {weights.dtype} of {weights.shape}")
    if zero_point.shape not in ((weights.shape[0],), (weights.shape[0], weights.shape[2])):
        node.wrong(f"zero points of shape {zero_point.shape} do not fit weights of shape {weights.shape}")
    wide = weights.astype(np.int16) - zero_point.reshape(weights.shape[0], 1, -1).astype(np.int16)
    return wide.astype(np.int8) if wide.min(initial=0) >= -128 and wide.max(initial=0) <= 127 else wide


def _scales(node: Node, index: int, layer: _Layer) -> npt.NDArray[Any]:
    """Return the scale of each weight column, (directions, columns)."""
    scales, columns = node.value(index, "scale"), 4 * layer.units
    if scales.shape not in ((layer.directions,), (layer.directions, columns)):
        node.wrong(f"scales of shape {scales.shape} do not fit {layer.directions} x {columns} columns")
    return np.broadcast_to(scales.reshape(layer.directions, -1), (layer.directions, columns))


class _Layer:
    """Sizes, inputs and results common to LSTM, GRU and RNN."""

    def __init__(self, node: Node, cell: _RecurrentCell) -> None:
        self.node, self.cell = node, cell
        self.direction = node.string("direction", "forward").lower()
        if self.direction not in DIRECTIONS:
            node.wrong(f"expected direction {', '.join(DIRECTIONS)}, got '{self.direction}'")
        self.directions = len(DIRECTIONS[self.direction])
        self.layout = node.integer("layout", 0)
        if self.layout not in (0, 1):
            node.wrong(f"expected layout 0 or 1, got {self.layout}")
        shapes = [node.shape(index) for index in range(3)]
        if [len(shape) for shape in shapes] != [3, 3, 3]:
            node.wrong(f"expected X, W and R of 3 dimensions, got {', '.join(map(str, shapes))}")
        data, weight, recurrent = shapes
        self.units = recurrent[2]
        columns = cell.gates * self.units
        wanted = (self.directions, columns, data[2], self.directions, columns, self.units)
        if not node.has_shape((*weight, *recurrent), wanted):
            node.wrong(f"W of shape {weight} and R of shape {recurrent} do not fit data of shape {data}")
        if node.given("hidden_size") and not node.has_shape((self.units,), (node.integer("hidden_size"),)):
            node.wrong(f"hidden_size is {node.integer('hidden_size')}, but R has {self.units} units")
        self.steps, self.batch = (data[1], data[0]) if self.layout else data[:2]
        if 0 in (data[2], self.units):
            node.unsupported(f"of data of shape {data} is not supported", "Only the batch and the time may be empty")

    def zeros(self, shape: tuple[int, ...]) -> Expr:
        """Return zeros in the dtype of the computation."""
        dtype = self.node.dtype(0)
        return self.node.filled(shape, 0.0, "float32" if dtype in dtypes.HALVES else dtype)

    def optional(self, index: int, shape: tuple[int, ...]) -> Expr:
        """Return an input of the given shape, or zeros if it is omitted."""
        if not self.node.has(index):
            return self.zeros(shape)
        if not self.node.has_shape(self.node.shape(index), shape):
            self.node.wrong(f"expected input {index} of shape {shape}, got {self.node.shape(index)}")
        return wide(self.node, self.node.input(index))  # 16-bit states would lose precision at every step

    def initial(self, index: int) -> Expr:
        """Return an initial state, (directions, batch, units)."""
        if not self.layout:
            return self.optional(index, (self.directions, self.batch, self.units))
        return self.node.transpose(self.optional(index, (self.batch, self.directions, self.units)), (1, 0, 2))

    def lstm_inputs(self) -> list[Expr]:
        """Return the initial cell state and the peephole weights."""
        return [self.initial(6), self.optional(7, (self.directions, 3 * self.units))]

    def biases(self) -> tuple[Expr, Expr]:
        """Return the input bias and the recurrent bias of the gates, each (directions, columns)."""
        columns = self.cell.gates * self.units
        both = self.optional(3, (self.directions, 2 * columns))
        return self.node.cut(both, 1, 0, columns), self.node.cut(both, 1, columns, 2 * columns)

    def bias(self) -> Expr | None:
        """Return the sum of both biases, or None if the node has none."""
        return self.node.call("add", *self.biases()) if self.node.has(3) else None

    def gates(self, bias: Expr | None) -> Expr:
        """Return the gate contributions of the inputs, (steps, batch, directions * columns)."""
        node, columns = self.node, self.directions * self.cell.gates * self.units
        data = wide(node, node.input(0))
        data = node.transpose(data, (1, 0, 2)) if self.layout else data
        weight = node.reshape(wide(node, node.input(1)), (columns, shape_of(data)[2]))
        product = node.call("nn.dense", data, weight, units=columns)
        return product if bias is None else node.call("nn.bias_add", product, node.reshape(bias, (columns,)), axis=2)

    def lengths(self) -> Expr:
        """Return the sequence lengths."""
        node = self.node
        if not node.has(4):
            if is_static((self.batch, self.steps)):
                return node.constant(np.full(self.batch, self.steps), "int32")
            # every sequence has all steps, whose number is dynamic
            return node.constant([min(bounds(self.steps)[1], LARGEST)], "int32")
        if not node.has_shape(node.shape(4), (self.batch,)) or node.dtype(4) not in ("int32", "int64"):
            node.wrong(f"expected {self.batch} sequence_lens, got {node.dtype(4)} of shape {node.shape(4)}")
        return node.input(4)

    def results(self, gates: Expr, more: Sequence[Expr], **attrs: Any) -> list[Expr]:
        """Return the outputs of the node; the entry of an unused output is an arbitrary expression."""
        node = self.node
        wanted = [name for index, name in enumerate(self.cell.results) if node.wants(index)] or ["hidden"]
        # the final states are elements of the full output if every sequence has all steps, and at least one
        derives = "all" in wanted and "hidden" in wanted and not node.has(4) and bounds(self.steps)[0] > 0
        returns = [name for name in wanted if name != "hidden" or not derives]
        clip = node.real("clip") if node.given("clip") else 0.0
        if not 0 <= clip < np.inf:
            node.wrong(f"expected a clip above 0, got {clip}")
        weight, initial = wide(node, node.input(2)), self.initial(5)
        found = node.call(
            self.cell.operator, gates, weight, initial, self.lengths(), *more,
            **self.functions(), direction=self.direction, clip=clip, returns=tuple(returns), **attrs,
        )  # fmt: skip
        if derives and returns == ["all"] and not self.layout and dtype_of(found) == node.dtype(0):
            # the result is an output itself: naming it later would duplicate the operand of the final states
            found = with_span(found, Span((node.name,), node.outputs[0]))
        counts = [self.steps if name == "all" else 1 for name in returns]
        rows = zip(returns, counts, accumulate(counts), strict=True)
        parts = {name: self.part(node.cut(found, 0, end - count, end), name) for name, count, end in rows}
        if derives:  # from the last step of each direction
            places = [0 if goes_back else self.steps - 1 for goes_back in DIRECTIONS[self.direction]]
            lasts = [node.cut(node.cut(found, 0, at, at + 1), 1, row, row + 1) for row, at in enumerate(places)]
            parts["hidden"] = self.part(node.concatenate(lasts, 1), "hidden")
        return [parts.get(name, found) for name in self.cell.results]

    def part(self, part: Expr, name: str) -> Expr:
        """Return one result of the operator in the layout of the node's output."""
        node = self.node
        part = node.cast(part, node.dtype(0))
        if name == "all":
            return node.transpose(part, (2, 0, 1, 3)) if self.layout else part
        part = node.reshape(part, (self.directions, self.batch, self.units))
        return node.transpose(part, (1, 0, 2)) if self.layout else part

    def functions(self) -> dict[str, Any]:
        """Return the attributes for activations and their parameters."""
        node = self.node
        default = self.cell.functions * self.directions
        given = node.attribute("activations")
        names = default
        if given is not None:
            texts = (item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in given)
            names = tuple(text.lower() for text in texts)
        unknown = [name for name in names if name not in CELL_FUNCTIONS]
        if unknown:
            node.unsupported(
                f"with the activation '{unknown[0]}' is not supported", f"Known: {', '.join(CELL_FUNCTIONS)}"
            )
        if len(names) != len(default):
            node.wrong(f"expected {len(default)} activations, got {len(names)}")
        found = [CELL_FUNCTIONS[name] for name in names]
        alphas, betas = (list(node.reals(f"activation_{letter}", ())) for letter in ("alpha", "beta"))

        def following(given: list[float], default: float | None) -> float:
            # parameter lists have entries only for functions with a parameter
            return 0.0 if default is None else given.pop(0) if given else default

        return {
            "activations": names,
            "alphas": tuple(following(alphas, function.alpha) for function in found),
            "betas": tuple(following(betas, function.beta) for function in found),
        }
