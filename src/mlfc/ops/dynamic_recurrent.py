"""The steps of cells with integer weights: each step quantizes the hidden state by its own range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mlfc.errors import UnsupportedError
from mlfc.ops.elementwise import magnitude
from mlfc.ops.qnn_linear import asymmetric_scale, asymmetric_zero_point, centred, symmetric
from mlfc.ops.recurrent import LSTM, LSTM_ATTRS, RNN, CellKind, Recurrence, declare_cell
from mlfc.relay.ir import Attrs
from mlfc.relay.op import Attr
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Expr

FORMS = ("symmetric", "asymmetric", "whole")
"""How a state becomes integers: by the largest magnitude of a row, by the range of a row (both as TFLite's hybrid
kernels do it), or by the range of all rows (as ONNX's DynamicQuantizeLinear)."""


class _DynamicRecurrence(Recurrence):
    """The loops of a cell whose state is quantized before it is multiplied."""

    def __init__(self, cell: CellKind, ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
        super().__init__(cell, ctx, inputs, attrs, out)
        if self.weight.value is None or attrs["quantizes"] not in FORMS:
            raise UnsupportedError("a dynamic cell needs weights that are known at compile time")
        width = (1, self.batch, self.directions * self.units)
        self.codes = ctx.scratch("codes", width, "int8" if attrs["quantizes"] == "symmetric" else "int16")
        self.factors = ctx.scratch("factors", (self.batch, self.directions), "float32")

    def multiply(self, state: Buffer, first: int, gates: int, sums: Buffer) -> None:
        """Write the product of a quantized state with the weights, and what it stands for."""
        stmts, scales = self.ctx.stmts, self.others[-1]
        for direction in range(self.directions):
            self._quantize(state, direction)
        products = self.ctx.scratch("products", sums.shape, "int32")
        integers = Output(sums.shape, "int32", partial(stmts.store, products))
        self.multiply_known(self.codes, self.weight.array(), integers)
        columns = gates * self.units
        for direction in range(self.directions):
            with stmts.loop(self.batch, "row") as row:
                factor = stmts.let("factor", tb.load(self.factors, [row, direction]))
                with stmts.loop(columns, "column", "vectorized") as column:
                    place = [tb.const(0), row, column + direction * columns]
                    scale = factor * scales(direction, column + first * self.units)
                    stmts.store(sums, place, tb.cast(tb.load(products, place), "float32") * scale)

    def _quantize(self, state: Buffer, direction: int) -> None:
        stmts, form = self.ctx.stmts, self.attrs["quantizes"]
        if form == "whole":
            low, high = self._range()
            with stmts.loop(self.batch, "row") as row:
                self._widen(state, direction, row, low, high)
            self._encode_whole(state, direction, low, high)
            return
        with stmts.loop(self.batch, "row") as row:
            low, high = self._range()
            self._widen(state, direction, row, low, high)
            self._encode(state, direction, row, low, high)

    def _range(self) -> tuple[Buffer, Buffer]:
        """Return numbers that will hold a range with zero in it."""
        found = [self.ctx.stmts.local(name, (1,), "float32") for name in ("low", "high")]
        for buffer in found:
            self.ctx.stmts.store(buffer, [0], 0.0)
        return found[0], found[1]

    def _widen(self, state: Buffer, direction: int, row: Expr, low: Buffer, high: Buffer) -> None:
        stmts = self.ctx.stmts
        with stmts.loop(self.units, "unit") as unit:
            value = stmts.let("value", tb.load(state, [0, row, direction * self.units + unit]))
            if self.attrs["quantizes"] == "symmetric":
                stmts.store(high, [0], tb.maximum(magnitude(value), tb.load(high, [0])))
            else:
                stmts.store(low, [0], tb.minimum(value, tb.load(low, [0])))
                stmts.store(high, [0], tb.maximum(value, tb.load(high, [0])))

    def _encode(self, state: Buffer, direction: int, row: Expr, low: Buffer, high: Buffer) -> None:
        stmts = self.ctx.stmts
        top, bottom = stmts.let("top", tb.load(high, [0])), stmts.let("bottom", tb.load(low, [0]))
        is_symmetric = self.attrs["quantizes"] == "symmetric"
        scale = stmts.let("scale", top / 127.0 if is_symmetric else asymmetric_scale(bottom, top))
        zero = tb.const(0) if is_symmetric else stmts.let("zero", asymmetric_zero_point(bottom, top))
        stmts.store(self.factors, [row, direction], scale)
        with stmts.loop(self.units, "unit", "vectorized") as unit:
            place = [tb.const(0), row, direction * self.units + unit]
            value = tb.load(state, place)
            stmts.store(self.codes, place, symmetric(value, top) if is_symmetric else centred(value, scale, zero))

    def _encode_whole(self, state: Buffer, direction: int, low: Buffer, high: Buffer) -> None:
        """Write codes from 0 to 255, less the zero point, by the rule of DynamicQuantizeLinear."""
        stmts = self.ctx.stmts
        bottom = stmts.let("bottom", tb.load(low, [0]))
        span = stmts.let("span", (tb.load(high, [0]) - bottom) / 255.0)
        scale = stmts.let("scale", tb.select(tb.binary("eq", span, 0.0), tb.const(1.0, "float32"), span))
        nearest = tb.intrinsic("round_even", tb.const(0.0, "float32") - bottom / scale)
        zero = stmts.let("zero", tb.clamp(nearest, 0.0, 255.0))
        with stmts.loop(self.batch, "row") as row:
            stmts.store(self.factors, [row, direction], scale)
            with stmts.loop(self.units, "unit", "vectorized") as unit:
                place = [tb.const(0), row, direction * self.units + unit]
                code = tb.intrinsic("round_even", tb.load(state, place) / scale)
                limited = tb.clamp(tb.clamp(code + zero, 0.0, 255.0) - zero, -255.0, 255.0)
                stmts.store(self.codes, place, tb.cast(tb.truncated(limited, "int32"), "int16"))


def _inputs(cell: CellKind, directions: int, batch: int, units: int) -> list[tuple[int, ...]]:
    return [*cell.inputs(directions, batch, units), (directions, cell.gates * units)]


_FACTS: dict[str, Any] = {
    "rounding_sensitive": True,
    "contract": "products of codes are exact; a code may be off by one if the state is by a bit",
}


declare_cell("qnn.dynamic_lstm_steps", replace(LSTM, inputs=partial(_inputs, LSTM), weights=("int8", "int16")),
             (*LSTM_ATTRS, Attr("quantizes", "symmetric")),
             "The steps of an LSTM with integer weights and their scales, given the inputs' part of its gates",
             _DynamicRecurrence, **_FACTS)  # fmt: skip
declare_cell("qnn.dynamic_rnn_steps", replace(RNN, inputs=partial(_inputs, RNN), weights=("int8", "int16")),
             (Attr("quantizes", "symmetric"),),
             "The steps of a recurrent layer with integer weights and scales, given the inputs' part of its state",
             _DynamicRecurrence, **_FACTS)  # fmt: skip
