"""The steps of TFLite's integer LSTM, bit for bit, and the second half of an SVDF layer.

The inputs' contribution to the gates is a dense layer over all steps, requantized to 16 bits, as in `ops.recurrent`.
With `tables`, the arithmetic is that of TFLite Micro, which supports int16 data, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels import templates
from mlfc.kernels.templates import Weights
from mlfc.ops.qnn import reduced_multiplier, rescaled, saturate
from mlfc.ops.qnn_normal import IntegerNorm
from mlfc.ops.qnn_unary import tabulated_sigmoid, tabulated_tanh
from mlfc.ops.recurrent import refuse_device
from mlfc.ops.rules import declare, divided
from mlfc.relay import ir as relay
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Trait
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.intrinsics.fixed_point import logistic_q15, rounding_divide_by_pot, tanh_q15
from mlfc.tir.ir import Expr

GATE_BITS = 3
"""Integer bits of the gates before their activations: they are in units of 2**-12."""

_GATE_UNIT = 15 - GATE_BITS

_ONE = (1 << 15) - 1


def _infer(name: str, attrs: Attrs, *types: TensorType) -> TensorType:
    """Check the tensors; the result is all steps, then the cell state (for int8 its low bytes, then its high bytes).

    Of `types`: gates (batch, steps, gates * cells) or, if time is major, (steps, batch, ...), int16; weight (gates *
    cells, units), int8; hidden (batch, units), int8, or with `tables` int16; cell (batch, cells), int16; if there are
    `peephole_scales`, the peephole (gates - 1, cells), int16; if there is a `projection_scale`, the projection (units,
    cells), int8, and its bias (units,), int32.
    """
    dtype = types[2].dtype if len(types) > 2 else ""
    state = "int16" if attrs["tables"] and dtype == "int16" else "int8"
    wanted = ["int16", "int8", state, "int16", *(["int16"] if attrs["peephole_scales"] else [])]
    wanted += ["int16", "int32"] if attrs["norm_scales"] else []
    wanted += ["int8", "int32"] if attrs["projection_scale"] else []
    if attrs["tables"] and (len(types) > 4 or attrs["couples_input"]):
        raise TypeCheckError(f"{name}: TFLite Micro's LSTM has four gates, and no peephole, norm or projection")
    if [kind.dtype for kind in types] != wanted:
        raise TypeCheckError(f"{name}: expected tensors of {', '.join(wanted)}, got {', '.join(map(str, types))}")
    data, weight, hidden, cell, *others = (kind.shape for kind in types)
    if [len(shape) for shape in (data, weight, hidden, cell)] != [3, 2, 2, 2] or 0 in (*data, *hidden, *cell):
        raise TypeCheckError(f"{name}: gates of shape {data}, a hidden state of {hidden}, a cell state of {cell}")
    steps, batch = data[:2] if attrs["time_major"] else (data[1], data[0])
    units, cells, gates = hidden[1], cell[1], 3 if attrs["couples_input"] else 4
    fits = data[2] == gates * cells and weight == (gates * cells, units) and hidden[0] == cell[0] == batch
    expected: list[tuple[int, ...]] = [(gates - 1, cells)] if attrs["peephole_scales"] else []
    expected += [(gates, cells)] * 2 if attrs["norm_scales"] else []
    expected += [(units, cells), (units,)] if attrs["projection_scale"] else []
    if attrs["peephole_scales"] and units > cells:
        raise TypeCheckError(f"{name}: a peephole of {cells} cells with a projection to {units}, which TFLite misreads")
    if not fits or others != expected or not (attrs["projection_scale"] or units == cells):
        raise TypeCheckError(f"{name}: incompatible shapes {', '.join(str(kind.shape) for kind in types)}")
    if not -15 <= attrs["cell_exponent"] <= -9:
        raise TypeCheckError(f"{name}: expected a cell state in units of 2**-15 to 2**-9, got {attrs['cell_exponent']}")
    counts = [len(attrs[title]) for title in ("recurrent_scales", "peephole_scales")]
    if counts not in ([gates, gates - 1], [gates, 0]):
        raise TypeCheckError(f"{name}: expected {gates} and {gates - 1} scales, got {counts}")
    if max(attrs["norm_scales"], default=0.0) >= 1 << 15:
        raise TypeCheckError(f"{name}: a scale of the norm is too large: {max(attrs['norm_scales'])}")
    if [len(attrs["norm_scales"]), len(attrs["norm_guards"])] not in ([gates] * 2, [0, 0]):
        raise TypeCheckError(f"{name}: expected a scale and a guard of the norm for each of {gates} gates")
    rest = batch * cells * (2 if dtype == "int8" else 1)
    return TensorType((steps * batch * units + rest,), dtype)


class _QuantizedLayer:
    """The loops of one layer."""

    def __init__(self, ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
        self.ctx, self.attrs, self.out = ctx, attrs, out
        self.data, self.weight, self.first_hidden, self.first_cell, *others = inputs
        self.peephole = others.pop(0) if attrs["peephole_scales"] else None
        norm = [others.pop(0), others.pop(0)] if attrs["norm_scales"] else []
        self.projection = others
        numbers = enumerate(zip(attrs["norm_scales"], attrs["norm_guards"], strict=True))
        self.norms = [IntegerNorm(norm[0], norm[1], gate, *pair) for gate, pair in numbers]
        self.batch, self.units = self.first_hidden.shape
        self.cells = self.first_cell.shape[1]
        self.steps = self.data.shape[0 if attrs["time_major"] else 1]
        self.gates = len(attrs["recurrent_scales"])
        self.dtype = self.first_hidden.dtype
        self.hidden = ctx.scratch("hidden", (1, self.batch, self.units), self.dtype)
        if self.norms:
            self.arguments = ctx.scratch("arguments", (self.gates, self.cells), "int32")
        self.cell = ctx.scratch("cell", (self.batch, self.cells), "int16")
        wide = "int32" if self.dtype == "int8" else "int64"
        self.sums = ctx.scratch("sums", (1, self.batch, self.gates * self.cells), wide)
        self.shown = ctx.scratch("shown", (1, self.batch, self.cells), "int8") if self.projection else self.hidden

    def emit(self) -> None:
        """Write the loops of all steps and the final cell state."""
        stmts = self.ctx.stmts
        for buffer, first in ((self.hidden, self.first_hidden), (self.cell, self.first_cell)):
            with self.ctx.loops(first.shape, "s") as at:
                stmts.store(buffer, [0, *at][-len(buffer.shape) :], first.read(at))
        weights = Weights(np.ascontiguousarray(self.weight.array().T), self.attrs["hidden_zero"])
        with stmts.loop(self.steps, "step") as step:
            out = Output(self.sums.shape, self.sums.dtype, partial(stmts.store, self.sums))
            templates.dense(self.ctx, self.hidden, weights, out)
            with stmts.loop(self.batch, "row") as row:
                self._row(step, row)
            if self.projection:
                self._project(step)
        # the new cell state follows the steps: for int8 its low bytes, then its high bytes
        first, size = self.steps * self.batch * self.units, self.batch * self.cells
        for shift, begin in ((0, first), (8, first + size)) if self.dtype == "int8" else ((0, first),):
            with self.ctx.loops((self.batch, self.cells), "s") as (row, unit):
                value = tb.load(self.cell, [row, unit])
                if self.dtype == "int8":
                    value = tb.cast(tb.cast(value, "int32") >> shift, "int8")
                self.out.store([row * self.cells + unit + begin], value)

    def _seen(self, step: Expr, row: Expr, unit: Expr, gate: int, cell: Expr) -> Expr:
        """Return a gate's sum of inputs, hidden state and, if the gate has a peephole, cell state."""
        place = gate * self.cells + unit
        given = self.data(*((step, row) if self.attrs["time_major"] else (row, step)), place)
        product = _scaled(tb.load(self.sums, [0, row, place]), self.attrs["recurrent_scales"][gate], self.sums.dtype)
        argument = self._narrow("argument", tb.cast(given, "int32") + product)
        if self.peephole is None or gate == self.gates - 2:
            return argument
        eye = min(gate, self.gates - 2)
        product = tb.cast(self.peephole(eye, unit), "int32") * cell
        scaled = _scaled(product, self.attrs["peephole_scales"][eye])
        if self.units < self.cells:
            # the reference uses the projection's result count as the number of cells
            scaled = tb.select(tb.binary("lt", unit, self.units), scaled, 0)
        return self._narrow("argument", argument + scaled)

    def _narrow(self, name: str, value: Expr) -> Expr:
        return self.ctx.stmts.let(name, tb.clamp(value, *dtypes.limits("int16")))

    def _row(self, step: Expr, row: Expr) -> None:
        """Write the new cell state of a row and its output."""
        stmts, outer = self.ctx.stmts, self.gates - 1
        if not self.norms:
            with stmts.loop(self.cells, "unit", "vectorized") as unit:
                before = self._before(row, unit)
                arguments = [self._seen(step, row, unit, gate, before) for gate in range(outer)]
                new = self._update(row, unit, before, arguments)
                self._show(step, row, unit, new, self._seen(step, row, unit, outer, new))
            return
        numbers = self.arguments
        with stmts.loop(self.cells, "unit", "vectorized") as unit:
            before = self._before(row, unit)
            for gate in range(outer):
                stmts.store(numbers, [gate, unit], self._seen(step, row, unit, gate, before))
        for norm in self.norms[:-1]:
            norm.emit(self.ctx, numbers)
        with stmts.loop(self.cells, "unit", "vectorized") as unit:
            arguments = [stmts.let("argument", tb.load(numbers, [gate, unit])) for gate in range(outer)]
            new = self._update(row, unit, self._before(row, unit), arguments)
            stmts.store(numbers, [outer, unit], self._seen(step, row, unit, outer, new))
        self.norms[-1].emit(self.ctx, numbers)
        with stmts.loop(self.cells, "unit", "vectorized") as unit:
            self._show(step, row, unit, self._before(row, unit), tb.load(numbers, [outer, unit]))

    def _logistic(self, argument: Expr) -> Expr:
        if self.attrs["tables"]:
            return tabulated_sigmoid(self.ctx, argument * 3)
        return logistic_q15(argument, tb.const(GATE_BITS))

    def _tanh(self, argument: Expr, exponent: int) -> Expr:
        """Return the hyperbolic tangent of a number in units of a power of two."""
        if not self.attrs["tables"]:
            return tanh_q15(argument, tb.const(15 + exponent))
        up = exponent + _GATE_UNIT
        if up >= 0:
            return tabulated_tanh(self.ctx, argument * (3 << up))
        return tabulated_tanh(self.ctx, (argument * 3 + (1 << (-up - 1))) >> -up)

    def _before(self, row: Expr, unit: Expr) -> Expr:
        return self.ctx.stmts.let("before", tb.cast(tb.load(self.cell, [row, unit]), "int32"))

    def _update(self, row: Expr, unit: Expr, before: Expr, arguments: Sequence[Expr]) -> Expr:
        """Write the new cell state of a unit and return it."""
        stmts, attrs = self.ctx.stmts, self.attrs
        kept = stmts.let("kept", self._logistic(arguments[-2]))
        taken = stmts.let("taken", tb.const(_ONE) - kept if self.gates == 3 else self._logistic(arguments[0]))
        candidate = stmts.let("candidate", self._tanh(arguments[-1], -_GATE_UNIT))
        if attrs["tables"]:
            old = self._narrow("old", rescaled(kept * before, 2.0**-15))
            added = self._narrow("added", rescaled(taken * candidate, 2.0 ** (-30 - attrs["cell_exponent"])))
        else:
            old = rounding_divide_by_pot(kept * before, tb.const(15))
            added = rounding_divide_by_pot(taken * candidate, tb.const(30 + attrs["cell_exponent"]))
        new = self._narrow("new", old + tb.cast(tb.cast(added, "int16"), "int32"))
        if attrs["cell_clip"]:
            new = stmts.let("clipped", tb.clamp(new, -attrs["cell_clip"], attrs["cell_clip"]))
        stmts.store(self.cell, [row, unit], tb.cast(new, "int16"))
        return new

    def _show(self, step: Expr, row: Expr, unit: Expr, new: Expr, argument: Expr) -> None:
        """Write the output of a unit, computed from its cell state."""
        stmts, attrs = self.ctx.stmts, self.attrs
        opened = stmts.let("opened", self._logistic(argument))
        size = stmts.let("size", self._tanh(new, attrs["cell_exponent"]))
        scaled = _scaled(opened * size, attrs["shown_scale"]) + attrs["shown_zero"]
        shown = stmts.let("result", saturate(scaled, self.dtype))
        stmts.store(self.shown, [0, row, unit], shown)
        if not self.projection:
            self._finish(step, row, unit, shown)

    def _finish(self, step: Expr, row: Expr, unit: Expr, value: Expr) -> None:
        place = step * self.batch + row if self.attrs["time_major"] else row * self.steps + step
        self.out.store([place * self.units + unit], value)

    def _project(self, step: Expr) -> None:
        """Write the projection of the cells' outputs, which is the new hidden state."""
        stmts, attrs = self.ctx.stmts, self.attrs
        sums = self.ctx.scratch("projected", (1, self.batch, self.units), "int32")
        projection, bias = self.projection
        weights = Weights(np.ascontiguousarray(projection.array().T), attrs["shown_zero"])
        templates.dense(self.ctx, self.shown, weights, Output(sums.shape, sums.dtype, partial(stmts.store, sums)))
        clip = attrs["projection_clip"]
        with stmts.loop(self.batch, "row") as row, stmts.loop(self.units, "unit", "vectorized") as unit:
            total = tb.cast(tb.load(sums, [0, row, unit]), "uint32") + tb.cast(bias(unit), "uint32")
            scaled = _scaled(tb.cast(total, "int32"), attrs["projection_scale"])
            value = saturate(scaled + attrs["hidden_zero"], "int8")
            value = tb.clamp(value, -clip, clip) if clip else value
            value = stmts.let("result", value)
            stmts.store(self.hidden, [0, row, unit], value)
            self._finish(step, row, unit, value)


def _scaled(value: Expr, scale: float, dtype: str = "int32") -> Expr:
    """Scale a value, clamped beyond the point where its sum with another number saturates anyway."""
    if dtype == "int64":
        multiplier, shift = (tb.const(number) for number in reduced_multiplier(scale))
        product = tb.intrinsic("requantize_reduced", value, multiplier, shift, dtype="int32")
    else:
        product = rescaled(value, scale)
    return tb.clamp(product, -(1 << 20), 1 << 20)


def _emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    refuse_device(ctx)
    weights = [inputs[1], *([inputs[-2]] if attrs["projection_scale"] else [])]
    if any(tensor.value is None for tensor in weights):
        raise UnsupportedError("qnn.lstm_steps needs weights that are known at compile time")
    _QuantizedLayer(ctx, inputs, attrs, out).emit()


_ATTRS = (
    Attr("recurrent_scales", REQUIRED), Attr("peephole_scales", ()), Attr("norm_scales", ()), Attr("norm_guards", ()),
    Attr("shown_scale", REQUIRED, True), Attr("shown_zero", 0), Attr("projection_scale", 0.0, True),
    Attr("hidden_zero", 0), Attr("cell_exponent"), Attr("cell_clip", 0), Attr("projection_clip", 0),
    Attr("couples_input", False), Attr("time_major", False), Attr("tables", False),
)  # fmt: skip
declare("qnn.lstm_steps", None, _infer, Kind.ANCHOR, _ATTRS, emit=_emit, contract="bit-exact to TFLite",
        traits=Trait.NOT_IN_TVM,
        macs=lambda types, attrs, _: types[0].size // types[0].shape[2]
        * (types[1].size + (types[-2].size if attrs["projection_scale"] else 0)),
        doc="The steps of TFLite's integer LSTM, given the inputs' part of its gates")  # fmt: skip


_SUMS = {"int8": "int32", "int16": "int32", "float32": "float32"}


def _infer_svdf(name: str, attrs: Attrs, feature: TensorType, state: TensorType, weights: TensorType) -> TensorType:
    """Check feature (batch, filters), state (batch, filters, memory) and weights (filters, memory)."""
    if feature.dtype not in _SUMS or not feature.dtype == state.dtype == weights.dtype:
        raise TypeCheckError(
            f"{name}: expected tensors of int8, int16 or float32, got {feature}, {state} and {weights}"
        )
    if len(feature.shape) != 2 or len(weights.shape) != 2 or 0 in (*feature.shape, *weights.shape):
        raise TypeCheckError(f"{name}: expected matrices that are not empty, got {feature.shape} and {weights.shape}")
    filters, memory = weights.shape
    if feature.shape[1] != filters or state.shape != (*feature.shape, memory):
        raise TypeCheckError(f"{name}: tensors of {feature.shape}, {state.shape} and {weights.shape} do not fit")
    if attrs["state_zero"] and feature.dtype == "float32":
        raise TypeCheckError(f"{name}: a state of floats has no zero point")
    if attrs["rank"] < 1:
        raise TypeCheckError(f"{name}: expected a rank of at least 1 for {filters} filters, got {attrs['rank']}")
    return TensorType((feature.shape[0], divided(name, filters, attrs["rank"], "filters")), _SUMS[feature.dtype])


def _in_tvm(args: Sequence[relay.Expr], attrs: Attrs, out: TensorType) -> relay.Expr:
    newest = relay.call("expand_dims", [args[0]], axis=2)
    end = relay.tensor_type(args[1]).shape[2:]
    steps = relay.call("strided_slice", [args[1]], begin=(1,), end=end, strides=(1,), axes=(2,))
    codes = relay.call("cast", [relay.call("concatenate", [relay.Tuple((steps, newest))], axis=2)], dtype=out.dtype)
    codes = relay.call("subtract", [codes, relay.const(attrs["state_zero"], out.dtype)])
    products = relay.call("multiply", [codes, relay.call("cast", [args[2]], dtype=out.dtype)])
    sums = relay.call("sum", [products], axis=(2,))
    return relay.call("sum", [relay.call("reshape", [sums], newshape=(*out.shape, attrs["rank"]))], axis=(2,))


def _emit_svdf(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    feature, state, weights = inputs
    stmts, memory, rank = ctx.stmts, weights.shape[1], attrs["rank"]
    with stmts.loop(out.shape[0], "row") as row, stmts.loop(out.shape[1], "unit") as unit:
        total = stmts.filled("total", 1, out.dtype)

        def add(a: Expr, b: Expr) -> None:
            code = tb.cast(a, out.dtype)
            product = (code - attrs["state_zero"] if attrs["state_zero"] else code) * tb.cast(b, out.dtype)
            before = tb.load(total, [0])
            if out.dtype == "int32":  # modulo 2**32
                stmts.store(total, [0], tb.cast(tb.cast(before, "uint32") + tb.cast(product, "uint32"), "int32"))
            else:
                stmts.store(total, [0], before + product)

        with stmts.loop(rank, "part") as part:
            place = unit * rank + part
            with stmts.loop(memory - 1, "step") as step:
                add(state(row, place, step + 1), weights(place, step))
            add(feature(row, place), weights(place, memory - 1))
        out.store([row, unit], tb.load(total, [0]))


declare("nn.svdf_time", 3, _infer_svdf, Kind.REDUCE, (Attr("rank", REQUIRED), Attr("state_zero", 0)), emit=_emit_svdf,
        in_tvm=_in_tvm, macs=lambda types, _, __: types[0].shape[0] * types[2].size,
        contract="exact on integers, with int32 sums; floats in the order of the steps",
        doc="Sums of filters over the last steps: the feature, and the state except its oldest step")  # fmt: skip
