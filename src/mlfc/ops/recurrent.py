"""Recurrent layers: LSTM, GRU and plain recurrent cells, each one loop over the steps of a sequence.

Importers write the inputs' part of the gates before these operators, as a matrix product over all steps. Both
directions of a bidirectional layer run in the same iteration; a backward direction reads and writes its sequence from
the end. Cells with integer weights quantize the hidden state by its own range at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels import templates
from mlfc.kernels.templates import TEMPLATES, Array, Conv, Product, Weights
from mlfc.ops.elementwise import limited, magnitude, sigmoid
from mlfc.ops.qnn_linear import asymmetric_scale, asymmetric_zero_point, centred, symmetric
from mlfc.ops.rules import check_alike, check_choice, check_dtype, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Trait
from mlfc.support.dims import LARGEST, bounds
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor, computed
from mlfc.tir.ir import Buffer, Expr

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""For each value of the attribute: for each direction, true if it runs backward from the end."""

RETURNS = ("all", "hidden", "cell")

FORMS = ("symmetric", "asymmetric", "whole")
"""Quantization of a state: by the largest magnitude of a row, by the range of a row (both as in TFLite's hybrid
kernels), or by the range of all rows (as in ONNX's DynamicQuantizeLinear)."""


@dataclass(frozen=True)
class CellFunction:
    """A function of one number with up to two parameters, and the defaults of these."""

    rule: Callable[[Context, Expr, Expr, Expr], Expr]  # (ctx, x, alpha, beta)
    alpha: float | None = None  # None if the function has no such parameter
    beta: float | None = None


def _elu(ctx: Context, x: Expr, alpha: Expr, _: Expr) -> Expr:
    grown = alpha * (ctx.transcendental("exp", tb.minimum(x, tb.const(0, x.dtype))) - 1)
    return tb.select(tb.binary("lt", x, 0), grown, x)


CELL_FUNCTIONS = {
    "affine": CellFunction(lambda _, x, alpha, beta: x * alpha + beta, 1.0, 0.0),
    "elu": CellFunction(_elu, 1.0),
    "hardsigmoid": CellFunction(lambda _, x, alpha, beta: limited(x * alpha + beta, 0, 1), 0.2, 0.5),
    "leakyrelu": CellFunction(lambda _, x, alpha, __: tb.select(tb.binary("lt", x, 0), x * alpha, x), 0.01),
    "relu": CellFunction(lambda _, x, *__: limited(x, 0, inf)),
    "scaledtanh": CellFunction(
        lambda ctx, x, alpha, beta: alpha * ctx.transcendental("tanh", x * beta), 1.0, 1.0
    ),
    "sigmoid": CellFunction(lambda ctx, x, *_: sigmoid(ctx, x)),
    # avoids overflow of exp of a positive number
    "softplus": CellFunction(
        lambda ctx, x, *_: tb.intrinsic("log", 1 + ctx.transcendental("exp", magnitude(x) * -1)) + limited(x, 0, inf)
    ),
    "softsign": CellFunction(lambda _, x, *__: x / (1 + magnitude(x))),
    "tanh": CellFunction(lambda ctx, x, *_: ctx.transcendental("tanh", x)),
    "thresholdedrelu": CellFunction(
        lambda _, x, alpha, __: tb.select(tb.binary("le", x, alpha), tb.const(0, x.dtype), x), 1.0
    ),
}  # fmt: skip
"""The functions that cells apply to their gates, by ONNX's names of them in lower case."""


@dataclass(frozen=True)
class CellKind:
    """Properties of one kind of cell."""

    gates: int
    functions: int  # activations of one direction
    # (directions, batch, units) -> shapes of the inputs after the common ones
    inputs: Callable[[int, int, int], list[tuple[int, ...]]]
    results: tuple[str, ...]
    emit: Callable[[Recurrence], None]
    weights: tuple[str, ...] = ()  # dtypes of the recurrent weights if they differ from the data's


def _infer(cell: CellKind, name: str, attrs: Attrs, *types: TensorType) -> TensorType:
    """Check the tensors; along its first dimension the result is as `returns` lists: all steps, then states.

    Of `types`: data (steps, batch, directions * gates * units), the inputs' part of the gates; weight (directions,
    gates * units, units); hidden (directions, batch, units), the state before the first step; lengths (batch,), or (1,)
    for all sequences; then those of the cell.
    """
    data, weight, hidden, lengths, *others = types
    check_choice(name, "direction", attrs["direction"], DIRECTIONS)
    for item in attrs["returns"]:
        check_choice(name, "a result", item, cell.results)
    if not attrs["returns"] or sorted(set(attrs["returns"]), key=RETURNS.index) != list(attrs["returns"]):
        raise TypeCheckError(f"{name}: expected a non-empty subset of {', '.join(cell.results)} in this order")
    for operand in (data, hidden, *others, *(() if cell.weights else (weight,))):
        check_alike(name, data, operand)
    if cell.weights:
        check_choice(name, "weights of", weight.dtype, cell.weights)
    if data.dtype != "float32" and (data.dtype != "float64" or cell.weights):
        raise TypeCheckError(f"{name} takes float32 and float64 tensors, not {data.dtype}")
    check_dtype(name, lengths.dtype, "integer")
    ranks = [len(item.shape) for item in types[:4]]
    if ranks != [3, 3, 3, 1] or 0 in (data.shape[2], hidden.shape[-1]):
        raise TypeCheckError(f"{name}: expected tensors of 3, 3, 3 and 1 dimensions that are not empty, got {ranks}")
    directions, batch, units = hidden.shape
    columns = cell.gates * units
    common = (1,) if lengths.shape == (1,) else (batch,)
    wanted = [(directions, columns, units), common, *cell.inputs(directions, batch, units)]
    found = [weight.shape, lengths.shape, *(item.shape for item in others)]
    fits = data.shape[1:] == (batch, directions * columns) and directions == len(DIRECTIONS[attrs["direction"]])
    if found != wanted or not fits:
        raise TypeCheckError(f"{name}: tensors of {', '.join(str(item.shape) for item in types)} do not fit")
    for function in attrs["activations"]:
        check_choice(name, "activation", str(function), CELL_FUNCTIONS)
    given = [len(attrs[title]) for title in ("activations", "alphas", "betas")]
    if given != [cell.functions * directions] * 3:
        raise TypeCheckError(
            f"{name}: expected {cell.functions * directions} activations, alphas and betas, got {given}"
        )
    rows = sum(data.shape[0] if item == "all" else 1 for item in attrs["returns"])
    return TensorType((rows, directions, batch, units), data.dtype)


@dataclass(frozen=True, eq=False)
class At:
    """The computed element of a state: its direction, row and unit, and the step's position in the sequence."""

    direction: int
    row: Expr
    position: Expr
    unit: Expr


class Recurrence:
    """The loops shared by all cells."""

    def __init__(self, cell: CellKind, ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
        self.ctx, self.attrs, self.out = ctx, attrs, out
        self.data, self.weight, self.initial, self.lengths, *self.others = inputs
        self.steps = self.data.shape[0]
        self.directions, self.batch, self.units = self.initial.shape
        self.goes_back = DIRECTIONS[attrs["direction"]]
        named = zip(attrs["activations"], attrs["alphas"], attrs["betas"], strict=True)
        every = [partial(self._function, *each) for each in named]
        self.functions = [every[first : first + cell.functions] for first in range(0, len(every), cell.functions)]
        lengths = self.lengths.value
        self._is_whole = lengths is not None and bool(np.all(lengths >= min(bounds(self.steps)[1], LARGEST)))

    def _function(self, name: str, alpha: float, beta: float, x: Expr) -> Expr:
        return CELL_FUNCTIONS[name].rule(self.ctx, x, tb.const(alpha, x.dtype), tb.const(beta, x.dtype))

    def state(self, name: str, initial: Tensor | None) -> Buffer:
        """Return scratch with one number per unit, initialized with `initial`, or undefined if that is None."""
        buffer = self.ctx.scratch(name, (1, self.batch, self.directions * self.units), self.data.dtype)
        if initial is not None:
            is_zero = initial.value is not None and not initial.value.any()
            for direction in range(self.directions):
                with self.ctx.loops((self.batch, self.units), "s") as (row, unit):
                    value = tb.const(0, buffer.dtype) if is_zero else initial(direction, row, unit)
                    self.ctx.stmts.store(buffer, [0, row, direction * self.units + unit], value)
        return buffer

    def sums(self, name: str, gates: int) -> Buffer:
        """Return scratch for the product of a state with the weights of `gates` gates."""
        return self.ctx.scratch(name, (1, self.batch, self.directions * gates * self.units), self.data.dtype)

    def multiply(self, state: Buffer, first: int, gates: int, sums: Buffer) -> None:
        """Write the product of a state with the weights of `gates` gates from `first` on."""
        columns, skip = gates * self.units, first * self.units
        out = Output(sums.shape, sums.dtype, partial(self.ctx.stmts.store, sums))
        if self.weight.value is not None:
            self.multiply_known(state, self.weight.value[:, skip : skip + columns], out)
            return
        width, dtype, (groups, rows, units) = self.units, state.dtype, self.initial.shape
        values = computed((groups, rows, units), dtype, lambda at: tb.load(state, [0, at[1], at[0] * width + at[2]]))
        weights = computed((groups, columns, units), dtype, lambda at: self.weight(at[0], at[1] + skip, at[2]))

        def store(at: Sequence[Expr], value: Expr) -> None:
            self.ctx.stmts.store(sums, [0, at[1], at[0] * columns + at[2]], value)

        result = Output((groups, rows, columns), dtype, store)
        TEMPLATES.get("product/plain")[0].emit(self.ctx, Product(rows, units, columns), values, weights, result)

    def multiply_known(self, state: Buffer, weights: Array, out: Output) -> None:
        """Write the product of a state, (1, batch, directions * units), with weights (directions, columns, units)."""
        if self.directions == 1:
            templates.dense(self.ctx, state, Weights(np.ascontiguousarray(weights[0].T)), out)
            return
        # the units of each direction are a group of channels
        width, columns = self.directions * self.units, self.directions * weights.shape[1]
        conv = Conv(1, (self.batch,), width, columns, (1,), (1,), (1,), ((0, 0),), self.directions)
        values = np.ascontiguousarray(weights.transpose(2, 0, 1)).reshape(1, self.units, -1)
        templates.convolution(self.ctx, conv, state, Weights(values), out)

    def each(self, step: Expr, rule: Callable[[At], None], *, stores: bool) -> None:
        """Write `rule` for each element of the state; after its end a sequence keeps its state, and its results are 0.

        `stores`: the rule stores the results of the step.
        """
        stmts = self.ctx.stmts
        for direction, back in enumerate(self.goes_back):
            with stmts.loop(self.batch, "row") as row:
                if self._is_whole:
                    position = stmts.let("position", self.steps - 1 - step) if back else step
                    with stmts.loop(self.units, "unit", "vectorized") as unit:
                        rule(At(direction, row, position, unit))
                    continue
                length = self._length(row)
                is_unsigned = length.dtype.startswith("u")
                length = tb.minimum(length, self.steps) if is_unsigned else tb.clamp(length, 0, self.steps)
                length = stmts.let("length", tb.cast(length, "int32"))
                with stmts.when(tb.binary("lt", step, length)):
                    position = stmts.let("position", tb.clamp(length - 1 - step, 0, self.steps - 1)) if back else step
                    with stmts.loop(self.units, "unit", "vectorized") as unit:
                        rule(At(direction, row, position, unit))
                if stores and "all" in self.attrs["returns"]:
                    with stmts.when(tb.binary("ge", step, length)):
                        with stmts.loop(self.units, "unit", "vectorized") as unit:
                            self.out.store([step, tb.const(direction), row, unit], tb.const(0, self.out.dtype))

    def _length(self, row: Expr) -> Expr:
        return self.lengths(0 if self.lengths.shape == (1,) and self.batch != 1 else row)

    def gate(self, at: At, gate: int, gates: int) -> Expr:
        """Read the inputs' part of a gate."""
        return self.data(at.position, at.row, (at.direction * gates + gate) * self.units + at.unit)

    def place(self, at: At, gate: int = 0, gates: int = 1) -> list[Expr]:
        """Return the indices of an element of a state, or of one of the sums for `gates` gates."""
        return [tb.const(0), at.row, (at.direction * gates + gate) * self.units + at.unit]

    def part(self, sums: Buffer, at: At, gate: int = 0, gates: int = 1) -> Expr:
        """Load the sum of one gate."""
        return tb.load(sums, self.place(at, gate, gates))

    def clipped(self, x: Expr) -> Expr:
        """Clamp the argument of an activation to the limit of the cell."""
        limit = self.attrs["clip"]
        return limited(x, -limit, limit) if limit else x

    def finish(self, at: At, hidden: Buffer, value: Expr) -> None:
        """Store the new hidden state, which is the result of the step."""
        value = self.ctx.stmts.let("result", value)
        self.ctx.stmts.store(hidden, self.place(at), value)
        if "all" in self.attrs["returns"]:
            self.out.store([at.position, tb.const(at.direction), at.row, at.unit], value)

    def store_last(self, **states: Buffer) -> None:
        """Write the states after the last step that `returns` requests, 0 for empty sequences."""
        row = self.steps if "all" in self.attrs["returns"] else 0
        for name in self.attrs["returns"]:
            if name == "all":
                continue
            for direction in range(self.directions):
                with self.ctx.loops((self.batch, self.units), "s") as (line, unit):
                    value = tb.load(states[name], [0, line, direction * self.units + unit])
                    if not self._is_whole or bounds(self.steps)[0] < 1:
                        length = self.steps if self._is_whole else self._length(line)
                        value = tb.select(tb.binary("gt", length, 0), value, tb.const(0, value.dtype))
                    self.out.store([tb.as_expr(row), tb.const(direction), line, unit], value)
            row += 1


def _lstm(cells: Recurrence) -> None:
    """Write an LSTM; its gates are input, output, forget and cell."""
    initial, peephole = cells.others[:2]
    stmts, units = cells.ctx.stmts, cells.units
    peeps = peephole.value is None or bool(peephole.value.any())
    hidden, cell = cells.state("hidden", cells.initial), cells.state("cell", initial)
    sums = cells.sums("sums", 4)

    def rule(at: At) -> None:
        outer, inner, last = cells.functions[at.direction]
        before = stmts.let("before", cells.part(cell, at))

        def argument(gate: int, seen: Expr | None) -> Expr:
            total = cells.gate(at, gate, 4) + cells.part(sums, at, gate, 4)
            if seen is not None and peeps:
                total = total + peephole(at.direction, gate * units + at.unit) * seen
            return stmts.let("argument", cells.clipped(total))

        taken = stmts.let("taken", outer(argument(0, before)))
        kept = tb.const(1, taken.dtype) - taken if cells.attrs["input_forget"] else outer(argument(2, before))
        kept = stmts.let("kept", kept)
        new = stmts.let("new", kept * before + taken * inner(argument(3, None)))
        if limit := cells.attrs["cell_clip"]:
            new = stmts.let("clipped", limited(new, -limit, limit))
        stmts.store(cell, cells.place(at), new)
        shown = stmts.let("shown", outer(argument(1, new)))
        cells.finish(at, hidden, shown * last(new))

    with stmts.loop(cells.steps, "step") as step:
        cells.multiply(hidden, 0, 4, sums)
        cells.each(step, rule, stores=True)
    cells.store_last(hidden=hidden, cell=cell)


def _gru(cells: Recurrence) -> None:
    """Write a GRU; its gates are update, reset and hidden."""
    (bias,) = cells.others
    stmts, is_linear = cells.ctx.stmts, cells.attrs["linear_before_reset"]
    gates = 3 if is_linear else 2
    hidden, sums = cells.state("hidden", cells.initial), cells.sums("sums", gates)
    if not is_linear:
        scaled, candidate = cells.state("scaled", None), cells.sums("candidate", 1)

    def summed(gate: int, at: At) -> Expr:
        """Return the argument of the activation of one of the first two gates."""
        return stmts.let("argument", cells.clipped(cells.gate(at, gate, 3) + cells.part(sums, at, gate, gates)))

    def scale(at: At) -> None:
        value = cells.functions[at.direction][0](summed(1, at)) * cells.part(hidden, at)
        stmts.store(scaled, cells.place(at), value)

    def rule(at: At) -> None:
        outer, inner = cells.functions[at.direction]
        part = cells.part(sums, at, 2, 3) if is_linear else cells.part(candidate, at)
        if is_linear:
            part = stmts.let("reset", outer(summed(1, at))) * (part + bias(at.direction, at.unit))
        share = stmts.let("share", outer(summed(0, at)))
        argument = stmts.let("argument", cells.clipped(cells.gate(at, 2, 3) + part))
        new = stmts.let("new", inner(argument))
        kept = share * cells.part(hidden, at)
        cells.finish(at, hidden, (tb.const(1, share.dtype) - share) * new + kept)

    with stmts.loop(cells.steps, "step") as step:
        cells.multiply(hidden, 0, gates, sums)
        if not is_linear:
            cells.each(step, scale, stores=False)
            cells.multiply(scaled, 2, 1, candidate)
        cells.each(step, rule, stores=True)
    cells.store_last(hidden=hidden)


def _rnn(cells: Recurrence) -> None:
    """Write a plain recurrent cell."""
    stmts = cells.ctx.stmts
    hidden, sums = cells.state("hidden", cells.initial), cells.sums("sums", 1)

    def rule(at: At) -> None:
        total = cells.gate(at, 0, 1) + cells.part(sums, at)
        cells.finish(at, hidden, cells.functions[at.direction][0](stmts.let("argument", cells.clipped(total))))

    with stmts.loop(cells.steps, "step") as step:
        cells.multiply(hidden, 0, 1, sums)
        cells.each(step, rule, stores=True)
    cells.store_last(hidden=hidden)


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
        """Write the product of a quantized state with the weights, rescaled to float."""
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
        whole = self._range() if form == "whole" else None
        with stmts.loop(self.batch, "row") as row:
            low, high = whole or self._range()
            self._widen(state, direction, row, low, high)
            if not whole:
                self._encode(state, direction, row, low, high)
        if whole:
            self._encode_whole(state, direction, *whole)

    def _range(self) -> tuple[Buffer, Buffer]:
        """Return buffers for the least and greatest number of a range that includes zero."""
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
        """Quantize to codes from 0 to 255, less the zero point, by the rule of DynamicQuantizeLinear."""
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


def refuse_device(ctx: Context) -> None:
    """Raise UnsupportedError on devices, where work-items would synchronize at every step, so that the host runs it."""
    if ctx.features.gpu:
        raise UnsupportedError("a recurrent layer takes its steps one after another", next_step="A host runs it")


_ATTRS = (
    Attr("activations", REQUIRED), Attr("alphas", REQUIRED), Attr("betas", REQUIRED), Attr("direction", "forward"),
    Attr("clip", 0.0, True), Attr("returns", ("all",)),
)  # fmt: skip
CONTRACT = "sums as in dense layers; relative to the largest result within 1e-5 of ONNX Runtime"


def declare_cell(
    name: str, cell: CellKind, more: tuple[Attr, ...], doc: str, loops: type[Recurrence] = Recurrence, **rest: Any
) -> None:
    """Register the operator of a cell; `loops` writes its loops, `rest` are other fields of `Operator`."""

    def macs(types: Sequence[TensorType], _: Attrs, __: TensorType) -> Any:
        return types[0].size * types[2].shape[-1]

    def emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
        refuse_device(ctx)
        cell.emit(loops(cell, ctx, inputs, attrs, out))

    count = 4 + len(cell.inputs(1, 1, 1))
    declare(name, count, partial(_infer, cell), Kind.ANCHOR, (*_ATTRS, *more), emit=emit, macs=macs,
             doc=doc, traits=Trait.NOT_IN_TVM, **{"contract": CONTRACT, **rest})  # fmt: skip


LSTM = CellKind(4, 3, lambda d, b, u: [(d, b, u), (d, 3 * u)], ("all", "hidden", "cell"), _lstm)
LSTM_ATTRS = (Attr("input_forget", False), Attr("cell_clip", 0.0, True))
declare_cell("nn.lstm_steps", LSTM, LSTM_ATTRS, "The steps of an LSTM, given the inputs' part of its gates")
declare_cell("nn.gru_steps", CellKind(3, 2, lambda d, _, u: [(d, u)], ("all", "hidden"), _gru),
         (Attr("linear_before_reset", False),),
         "The steps of a GRU, given the inputs' part of its gates")  # fmt: skip
RNN = CellKind(1, 1, lambda *_: [], ("all", "hidden"), _rnn)
declare_cell("nn.rnn_steps", RNN, (),
         "The steps of a recurrent layer, given the inputs' part of its state")  # fmt: skip


def _with_scales(cell: CellKind) -> CellKind:
    """Return a cell with integer weights, whose scales are its last input."""

    def inputs(directions: int, batch: int, units: int) -> list[tuple[int, ...]]:
        return [*cell.inputs(directions, batch, units), (directions, cell.gates * units)]

    return replace(cell, inputs=inputs, weights=("int8", "int16"))


_QUANTIZES = Attr("quantizes", "symmetric")
for _name, _cell, _attrs, _doc in (
    ("qnn.dynamic_lstm_steps", LSTM, (*LSTM_ATTRS, _QUANTIZES),
     "The steps of an LSTM with integer weights and their scales, given the inputs' part of its gates"),
    ("qnn.dynamic_rnn_steps", RNN, (_QUANTIZES,),
     "The steps of a recurrent layer with integer weights and scales, given the inputs' part of its state"),
):  # fmt: skip
    declare_cell(_name, _with_scales(_cell), _attrs, _doc, _DynamicRecurrence, rounding_sensitive=True,
                 contract="products of codes are exact; a code may be off by one if the state is by a bit")  # fmt: skip
