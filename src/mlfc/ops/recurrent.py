"""Recurrent layers: LSTM, GRU and plain recurrent cells, each one loop over the steps of a sequence.

What the inputs contribute to the gates is a matrix product over all steps, which importers write before these
operators. What is left depends on the step before: the product of the hidden state with the recurrent weights, written
by the templates of dense layers, and the cell's own arithmetic. Both directions of a bidirectional layer take their
steps together. A direction that goes back reads and writes its sequence from the end: nothing is reversed in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels import templates
from mlfc.kernels.geometry import Conv, Product
from mlfc.kernels.templates import TEMPLATES, Array, Weights
from mlfc.ops.cell_functions import Function, check_functions, functions_of
from mlfc.ops.elementwise import limited
from mlfc.ops.rules import check_alike, check_choice, check_dtype, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind
from mlfc.support.dims import LARGEST, Extent, bounds
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor, computed
from mlfc.tir.ir import Buffer, Expr

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""By the attribute's values, whether each direction goes back from the end."""

RETURNS = ("all", "hidden", "cell")


@dataclass(frozen=True)
class CellKind:
    """What one kind of cell is."""

    gates: int
    functions: int  # activations of one direction
    inputs: Callable[
        [int, int, int], list[tuple[int, ...]]
    ]  # (directions, batch, units): shapes behind the common ones
    results: tuple[str, ...]
    emit: Callable[[Recurrence], None]
    weights: tuple[str, ...] = ()  # the dtypes of the recurrent weights, where those are not of the data's


def _infer(cell: CellKind, name: str, attrs: Attrs, *types: TensorType) -> TensorType:
    """Check the tensors; the result has, along its first dimension, what `returns` names: all steps, then states.

    Of `types`: data (steps, batch, directions * gates * units), the inputs' part of the gates; weight (directions,
    gates * units, units); hidden (directions, batch, units), the state before the first step; lengths (batch,), or (1,)
    for all sequences; then those of the cell.
    """
    data, weight, hidden, lengths, *others = types
    check_choice(name, "direction", attrs["direction"], DIRECTIONS)
    for item in attrs["returns"]:
        check_choice(name, "a result", item, cell.results)
    if not attrs["returns"] or sorted(set(attrs["returns"]), key=RETURNS.index) != list(attrs["returns"]):
        raise TypeCheckError(f"{name}: expected some of {', '.join(cell.results)} in this order, each once")
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
    if (
        found != wanted
        or data.shape[1:] != (batch, directions * columns)
        or not directions == len(DIRECTIONS[attrs["direction"]])
    ):
        raise TypeCheckError(f"{name}: tensors of {', '.join(str(item.shape) for item in types)} do not fit")
    check_functions(name, attrs, cell.functions * directions)
    rows = sum(data.shape[0] if item == "all" else 1 for item in attrs["returns"])
    return TensorType((rows, directions, batch, units), data.dtype)


@dataclass(frozen=True, eq=False)
class At:
    """The element of a state that is computed: its direction, row and unit, and the step's place in the sequence."""

    direction: int
    row: Expr
    position: Expr
    unit: Expr


class Recurrence:
    """The loops that all cells share."""

    def __init__(self, cell: CellKind, ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
        self.ctx, self.attrs, self.out = ctx, attrs, out
        self.data, self.weight, self.initial, self.lengths, *self.others = inputs
        self.steps = self.data.shape[0]
        self.directions, self.batch, self.units = self.initial.shape
        self.goes_back = DIRECTIONS[attrs["direction"]]
        lists = (attrs["activations"], attrs["alphas"], attrs["betas"])
        every = list(functions_of(ctx, *lists))
        self.functions: list[list[Function]] = [
            every[index * cell.functions : (index + 1) * cell.functions] for index in range(self.directions)
        ]
        lengths = self.lengths.value
        self._is_whole = lengths is not None and bool(np.all(lengths >= min(bounds(self.steps)[1], LARGEST)))

    def state(self, name: str, initial: Tensor | None) -> Buffer:
        """Return scratch of one number for each unit, which starts with `initial`, or undefined if that is None."""
        buffer = self.ctx.scratch(name, (1, self.batch, self.directions * self.units), self.data.dtype)
        if initial is not None:
            is_zero = initial.value is not None and not initial.value.any()
            for direction in range(self.directions):
                with self.ctx.loops((self.batch, self.units), "s") as (row, unit):
                    value = tb.const(0, buffer.dtype) if is_zero else initial(direction, row, unit)
                    self.ctx.stmts.store(buffer, [0, row, direction * self.units + unit], value)
        return buffer

    def sums(self, name: str, gates: int) -> Buffer:
        """Return scratch for the product of a state with the weights of so many gates."""
        return self.ctx.scratch(name, (1, self.batch, self.directions * gates * self.units), self.data.dtype)

    def multiply(self, state: Buffer, first: int, gates: int, sums: Buffer) -> None:
        """Write the product of a state with the weights of `gates` gates from `first` on."""
        columns, skip = gates * self.units, first * self.units
        out = Output(sums.shape, sums.dtype, partial(self.ctx.stmts.store, sums))
        if self.weight.value is None:
            self._multiply_computed(state, columns, skip, sums)
            return
        self.multiply_known(state, self.weight.value[:, skip : skip + columns], out)

    def multiply_known(self, state: Buffer, weights: Array, out: Output) -> None:
        """Write the product of a state, (1, batch, directions * units), with weights (directions, columns, units)."""
        if self.directions == 1:
            templates.dense(self.ctx, state, Weights(np.ascontiguousarray(weights[0].T)), out)
            return
        # each direction's units are a group of channels
        width, columns = self.directions * self.units, self.directions * weights.shape[1]
        conv = Conv(1, (self.batch,), width, columns, (1,), (1,), (1,), ((0, 0),), self.directions)
        values = np.ascontiguousarray(weights.transpose(2, 0, 1)).reshape(1, self.units, -1)
        templates.convolution(self.ctx, conv, state, Weights(values), out)

    def _multiply_computed(self, state: Buffer, columns: int, skip: int, sums: Buffer) -> None:
        """Write the product with weights that are only known when the code runs."""
        first = computed(
            (self.directions, self.batch, self.units), state.dtype,
            lambda at: tb.load(state, [0, at[1], at[0] * self.units + at[2]]),
        )  # fmt: skip
        second = computed(
            (self.directions, columns, self.units), state.dtype, lambda at: self.weight(at[0], at[1] + skip, at[2])
        )
        out = Output(
            (self.directions, self.batch, columns), state.dtype,
            lambda at, value: self.ctx.stmts.store(sums, [0, at[1], at[0] * columns + at[2]], value),
        )  # fmt: skip
        plain = TEMPLATES.get("product/plain")[0]
        plain.emit(self.ctx, Product(self.batch, self.units, columns), first, second, out)

    def each(self, step: Expr, rule: Callable[[At], None], *, stores: bool) -> None:
        """Write `rule` for each element of the state; a sequence that has ended keeps it, and its results are 0.

        `stores`: whether the rule stores the results of the step.
        """
        stmts = self.ctx.stmts
        for direction, back in enumerate(self.goes_back):
            with stmts.loop(self.batch, "row") as row:
                if self._is_whole:
                    position = stmts.let("position", self.steps - 1 - step) if back else step
                    with stmts.loop(self.units, "unit", "vectorized") as unit:
                        rule(At(direction, row, position, unit))
                    continue
                length = stmts.let("length", limited_index(self._length(row), self.steps))
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
        """Return the indices of an element of a state, or of one of so many sums."""
        return [tb.const(0), at.row, (at.direction * gates + gate) * self.units + at.unit]

    def clipped(self, x: Expr) -> Expr:
        """Return the argument of a function within the limits of the cell."""
        limit = self.attrs["clip"]
        return limited(x, -limit, limit) if limit else x

    def finish(self, at: At, hidden: Buffer, value: Expr) -> None:
        """Store the new hidden state, which is the result of the step."""
        value = self.ctx.stmts.let("result", value)
        self.ctx.stmts.store(hidden, self.place(at), value)
        if "all" in self.attrs["returns"]:
            self.out.store([at.position, tb.const(at.direction), at.row, at.unit], value)

    def store_last(self, **states: Buffer) -> None:
        """Write the states after the last step where they are asked for, 0 for empty sequences."""
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


def limited_index(value: Expr, most: Extent) -> Expr:
    """Return an integer of any dtype as an int32 from 0 to `most`."""
    return tb.cast(tb.minimum(value, most) if value.dtype.startswith("u") else tb.clamp(value, 0, most), "int32")


def _lstm(cells: Recurrence) -> None:
    """Write an LSTM; its gates are input, output, forget and cell."""
    initial, peephole = cells.others[:2]
    stmts, units = cells.ctx.stmts, cells.units
    peeps = peephole.value is None or bool(peephole.value.any())
    hidden, cell = cells.state("hidden", cells.initial), cells.state("cell", initial)
    sums = cells.sums("sums", 4)

    def rule(at: At) -> None:
        outer, inner, last = cells.functions[at.direction]
        before = stmts.let("before", tb.load(cell, cells.place(at)))

        def argument(gate: int, seen: Expr | None) -> Expr:
            total = cells.gate(at, gate, 4) + tb.load(sums, cells.place(at, gate, 4))
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
    stmts = cells.ctx.stmts
    hidden = cells.state("hidden", cells.initial)
    if cells.attrs["linear_before_reset"]:
        sums = cells.sums("sums", 3)
        update, reset = (partial(_summed, cells, sums, gate, 3) for gate in range(2))
        multiplied = partial(_recurrent, cells, sums, 2, 3)
    else:
        sums, scaled, candidate = cells.sums("sums", 2), cells.state("scaled", None), cells.sums("candidate", 1)
        update, reset = (partial(_summed, cells, sums, gate, 2) for gate in range(2))
        multiplied = partial(_recurrent, cells, candidate, 0, 1)

    def scale(at: At) -> None:
        value = cells.functions[at.direction][0](reset(at)) * tb.load(hidden, cells.place(at))
        stmts.store(scaled, cells.place(at), value)

    def rule(at: At) -> None:
        outer, inner = cells.functions[at.direction]
        part = multiplied(at)
        if cells.attrs["linear_before_reset"]:
            part = stmts.let("reset", outer(reset(at))) * (part + bias(at.direction, at.unit))
        share = stmts.let("share", outer(update(at)))
        argument = stmts.let("argument", cells.clipped(cells.gate(at, 2, 3) + part))
        new = stmts.let("new", inner(argument))
        kept = share * tb.load(hidden, cells.place(at))
        cells.finish(at, hidden, (tb.const(1, share.dtype) - share) * new + kept)

    with stmts.loop(cells.steps, "step") as step:
        if cells.attrs["linear_before_reset"]:
            cells.multiply(hidden, 0, 3, sums)
        else:
            cells.multiply(hidden, 0, 2, sums)
            cells.each(step, scale, stores=False)
            cells.multiply(scaled, 2, 1, candidate)
        cells.each(step, rule, stores=True)
    cells.store_last(hidden=hidden)


def _recurrent(cells: Recurrence, sums: Buffer, gate: int, gates: int, at: At) -> Expr:
    """Return the hidden state's part of a gate."""
    return tb.load(sums, cells.place(at, gate, gates))


def _summed(cells: Recurrence, sums: Buffer, gate: int, gates: int, at: At) -> Expr:
    """Return the argument of the function of one of a GRU's first two gates."""
    total = cells.gate(at, gate, 3) + _recurrent(cells, sums, gate, gates, at)
    return cells.ctx.stmts.let("argument", cells.clipped(total))


def _rnn(cells: Recurrence) -> None:
    """Write a plain recurrent cell."""
    stmts = cells.ctx.stmts
    hidden, sums = cells.state("hidden", cells.initial), cells.sums("sums", 1)

    def rule(at: At) -> None:
        total = cells.gate(at, 0, 1) + _recurrent(cells, sums, 0, 1, at)
        cells.finish(at, hidden, cells.functions[at.direction][0](stmts.let("argument", cells.clipped(total))))

    with stmts.loop(cells.steps, "step") as step:
        cells.multiply(hidden, 0, 1, sums)
        cells.each(step, rule, stores=True)
    cells.store_last(hidden=hidden)


def refuse_device(ctx: Context) -> None:
    """Raise UnsupportedError where work-items would wait for each other at every step: then a host does the work."""
    if ctx.features.gpu:
        raise UnsupportedError("a recurrent layer takes its steps one after another", next_step="A host runs it")


def _emit(
    cell: CellKind, loops: type[Recurrence], ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output
) -> None:
    refuse_device(ctx)
    cell.emit(loops(cell, ctx, inputs, attrs, out))


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

    count = 4 + len(cell.inputs(1, 1, 1))
    declare(name, count, partial(_infer, cell), Kind.ANCHOR, (*_ATTRS, *more), emit=partial(_emit, cell, loops),
            macs=macs, doc=doc, **{"contract": CONTRACT, **rest})  # fmt: skip


LSTM = CellKind(4, 3, lambda d, b, u: [(d, b, u), (d, 3 * u)], ("all", "hidden", "cell"), _lstm)
LSTM_ATTRS = (Attr("input_forget", False), Attr("cell_clip", 0.0, True))
declare_cell("nn.lstm_steps", LSTM, LSTM_ATTRS, "The steps of an LSTM, given the inputs' part of its gates")
declare_cell("nn.gru_steps", CellKind(3, 2, lambda d, _, u: [(d, u)], ("all", "hidden"), _gru),
         (Attr("linear_before_reset", False),),
         "The steps of a GRU, given the inputs' part of its gates")  # fmt: skip
RNN = CellKind(1, 1, lambda *_: [], ("all", "hidden"), _rnn)
declare_cell("nn.rnn_steps", RNN, (),
         "The steps of a recurrent layer, given the inputs' part of its state")  # fmt: skip
