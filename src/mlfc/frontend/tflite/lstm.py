"""LSTM layers of TFLite with integer weights and gates of 16 bits, and what all LSTM layers share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tflite import ActivationFunctionType

from mlfc.errors import ModelError
from mlfc.frontend.tflite.node import Node
from mlfc.frontend.tflite.weights import shape_of
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, const

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class InputNumbers:
    """Where an operator has the tensors of one direction, of those of gates the first; -1 for what it cannot have."""

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
    """One layer: its gates, in the order input, forget, cell and output, the first of which it may derive."""

    def __init__(
        self, node: Node, data: Expr, options: Any, *, time_major: bool, at: InputNumbers = InputNumbers()
    ) -> None:  # fmt: skip
        self.node, self.data, self.options, self.at = node, data, options, at
        self.time_major = time_major
        self.couples_input = not node.has(self.at.inputs)
        self.gates = range(1 if self.couples_input else 0, 4)
        shape = shape_of(data)
        self.units, self.cells = shape_of(node.expr(self.at.hidden))[-1], shape_of(node.expr(self.at.cell))[-1]
        if len(shape) != 3 or 0 in shape:
            raise ModelError(f"data of shape {shape} where a sequence of batches belongs")
        self.steps, self.batch = shape[:2] if self.time_major else (shape[1], shape[0])
        for first, wanted in (
            (self.at.inputs, (self.cells, shape[2])),
            (self.at.recurrent, (self.cells, self.units)),
            (self.at.bias, (self.cells,)),
        ):
            self.check(first, wanted)
        for position, width in ((self.at.hidden, self.units), (self.at.cell, self.cells)):
            found = shape_of(node.expr(position))
            if found != (self.batch, width):
                raise ModelError(f"a state of shape {found} where {(self.batch, width)} belongs")

    def check(self, first: int, shape: tuple[int, ...]) -> None:
        """Raise ModelError unless what each gate has from a place on is of one shape."""
        for gate in self.gates:
            found = self.node.value(first + gate).shape
            if found != shape:
                raise ModelError(f"input {first + gate} has shape {found} where {shape} belongs")

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
        hidden, cell = node.input(self.at.hidden), node.input(self.at.cell)
        gates = self._integer_gates(units)
        shown = node.tensors[node.record.intermediates[4]] if len(node.record.intermediates) == 5 else None
        if shown is None:
            raise ModelError(f"expected 5 intermediate tensors, got {len(node.record.intermediates)}")
        recurrent = zip(self.scales(self.at.recurrent), units, strict=True)
        attrs = {
            "recurrent_scales": tuple(float(scale * node.scale(hidden) / unit) for scale, unit in recurrent),
            "shown_scale": float(np.float32(2.0**-30 / np.float64(node.scale(shown)))),
            # LiteRT counts it from the other side where there is a projection
            "shown_zero": node.zero_point(shown) * (-1 if node.has(self.at.projection) else 1),
            "hidden_zero": node.zero_point(hidden),
            "cell_exponent": _exponent(node, node.scale(cell)),
            "cell_clip": _code_of(self.options.CellClip(), node.scale(cell), 32767),
            "couples_input": self.couples_input,
            "time_major": self.time_major,
        }
        more = self._peephole(attrs, units) + self._norm(attrs) + self._projection(attrs, node.scale(shown))
        return self._integer_steps(gates, attrs, *more)

    def by_tables(self) -> Expr:
        """Return the layer on int8 or int16 as TFLite Micro computes it, whose functions are tables."""
        node, hidden, cell = self.node, self.node.input(self.at.hidden), self.node.input(self.at.cell)
        if self.couples_input or any(node.has(position) for position in (*range(9, 12), 16, 17, *range(20, 24))):
            node.refuse(
                "TFLite Micro's LSTM has four gates, and no peephole, projection or layer normalization",
                "Export it as int8, with --numerics litert",
            )
        if self.options.FusedActivationFunction() != ActivationFunctionType.TANH:
            node.refuse("TFLite Micro's LSTM has TANH as its activation function", "Use TANH")
        units = self._units()
        recurrent = zip(self.scales(self.at.recurrent), units, strict=True)
        attrs = {
            "recurrent_scales": tuple(float(scale * node.scale(hidden) / unit) for scale, unit in recurrent),
            "shown_scale": float(2.0**-30 / np.float64(node.scale(hidden))), "shown_zero": node.zero_point(hidden),
            "hidden_zero": node.zero_point(hidden), "cell_exponent": _exponent(node, node.scale(cell)),
            "cell_clip": _code_of(self.options.CellClip(), node.scale(cell), 32767), "time_major": self.time_major,
            "tables": True,
        }  # fmt: skip
        return self._integer_steps(self._integer_gates(units), attrs)

    def _integer_steps(self, gates: Expr, attrs: dict[str, Any], *more: Expr) -> Expr:
        node, at = self.node, self.at
        given = (gates, self.joined(at.recurrent), node.expr(at.hidden), node.expr(at.cell), *more)
        return self._integer_results(node.call("qnn.lstm_steps", *given, **attrs))

    def _integer_gates(self, units: list[np.float32]) -> Expr:
        """Return what the input contributes to the gates at all steps, in 16 bits."""
        node, data = self.node, self.node.input(0)
        is_wide = data.dtype == "int16"
        data_scale, data_zero = node.quantization(data)
        sums = node.call(
            "qnn.dense", self.data, self.joined(self.at.inputs), data_zero, const(0, "int32"), data_scale, const(1.0),
            units=len(self.gates) * self.cells, out_dtype="int64" if is_wide else "int32",
        )  # fmt: skip
        if not node.has(self.at.norm + 1):
            sums = node.call("nn.bias_add", sums, self.joined(self.at.bias), axis=2)
        scales = [
            scale * node.scale(data) / unit for scale, unit in zip(self.scales(self.at.inputs), units, strict=True)
        ]
        rounding = "REDUCED" if is_wide else "DOUBLE"
        return rescaled_sums(
            node, sums, np.repeat(np.asarray(scales, np.float64), self.cells), "int16", rounding=rounding
        )

    def _units(self) -> list[np.float32]:
        """Return the unit of each gate before its function, or before its normalization."""
        if not self.node.has(self.at.norm + 1):
            return [np.float32(2.0**-12)] * len(self.gates)
        if len(self.node.record.intermediates) != 5:
            raise ModelError(f"expected 5 intermediate tensors, got {len(self.node.record.intermediates)}")
        return [self.node.scale(self.node.tensors[self.node.record.intermediates[gate]]) for gate in self.gates]

    def _norm(self, attrs: dict[str, Any]) -> list[Expr]:
        """Return weights and bias of the layer normalization, and add its numbers to the attributes."""
        node = self.node
        if not node.has(self.at.norm + 1):
            return []
        weights, bias = ([node.value(first + gate) for gate in self.gates] for first in (self.at.norm, self.at.bias))
        if any(value.shape != (self.cells,) or value.dtype != np.int16 for value in weights):
            raise ModelError("a layer normalization that is not one int16 for each cell")
        scales = self.scales(self.at.norm)
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
        if not node.has(self.at.peephole + 2):
            return []
        gates = [
            position
            for position in range(self.at.peephole, self.at.peephole + 3)
            if position > self.at.peephole or not self.couples_input
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
        if not node.has(self.at.projection):
            return []
        weights = node.value(self.at.projection)
        bias: Expr = const(np.zeros(self.units), "int32")
        if node.has(self.at.projection + 1):
            bias = node.expr(self.at.projection + 1)
        if weights.shape != (self.units, self.cells) or shape_of(bias) != (self.units,):
            raise ModelError(f"a projection of shape {weights.shape}, and a bias of {shape_of(bias)}")
        scale = node.scale(node.input(self.at.projection)) * shown / node.scale(node.input(self.at.hidden))
        attrs["projection_scale"] = float(scale)
        attrs["projection_clip"] = _code_of(self.options.ProjClip(), node.scale(node.output()), 127)
        return [node.expr(self.at.projection), bias]

    def _integer_results(self, result: Expr) -> Expr:
        """Take the steps and the states out of what the layer gives: of int8 bytes."""
        node, size = self.node, self.steps * self.batch * self.units
        leading = (self.steps, self.batch) if self.time_major else (self.batch, self.steps)
        count = self.batch * self.cells
        whole = node.call("reshape", cut(node, result, 0, size), newshape=(*leading, self.units))
        axis = 0 if self.time_major else 1
        last = node.call("strided_slice", whole, begin=(self.steps - 1,), end=(self.steps,), strides=(1,), axes=(axis,))
        node.assign(self.at.hidden, node.call("reshape", last, newshape=(self.batch, self.units)))
        if ir.tensor_type(result).dtype == "int16":
            cell = cut(node, result, size, size + count)
            node.assign(self.at.cell, node.call("reshape", cell, newshape=(self.batch, self.cells)))
            return whole
        low, high = (
            node.call("cast", cut(node, result, begin, begin + count), dtype="int16") for begin in (size, size + count)
        )
        cell = node.call("add", node.call("bitwise_and", low, const(255, "int16")),
                         node.call("multiply", high, const(256, "int16")))  # fmt: skip
        node.assign(self.at.cell, node.call("reshape", cell, newshape=(self.batch, self.cells)))
        return whole


def cut(node: Node, data: Expr, begin: int, end: int) -> Expr:
    """Return rows of a tensor."""
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


def rescaled_sums(
    node: Node, sums: Expr, scale: np.float32 | Array, dtype: str, zero_point: int = 0, rounding: str = "DOUBLE"
) -> Expr:
    """Return integers times a scale that the reference computed in float32, or one for each of the last dimension."""
    return node.call(
        "qnn.requantize", sums, const(scale, "float64"), const(0, "int32"), const(1.0), const(zero_point, "int32"),
        axis=-1, rounding=rounding, out_dtype=dtype,
    )  # fmt: skip
