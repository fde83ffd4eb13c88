"""Class probabilities from the probabilities of each pair of classes.

By the second approach of Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling",
JMLR 5 (2004), with libsvm's stopping rule: no class has an error above 0.005 / number of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

from mlfc.errors import TypeCheckError
from mlfc.ops.rules import check_dtype, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Kind, Trait
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Expr

_ROUNDS = 100
_ERROR = 0.005


def _infer(name: str, _: Attrs, data: TensorType) -> TensorType:
    check_dtype(name, data.dtype, "float")
    if len(data.shape) != 2 or data.shape[1] < 1:
        raise TypeCheckError(f"{name}: expected rows of pairs, got the shape {data.shape}")
    classes = (1 + isqrt(1 + 8 * data.shape[1])) // 2
    if classes * (classes - 1) // 2 != data.shape[1]:
        raise TypeCheckError(f"{name}: expected n * (n - 1) / 2 columns for n classes, got {data.shape[1]}")
    return TensorType((data.shape[0], classes), data.dtype)


def _emit(ctx: Context, inputs: Sequence[Tensor], _: Attrs, out: Output) -> None:
    (pairs,) = inputs
    stmts, classes, dtype = ctx.stmts, out.shape[1], out.dtype
    with stmts.loop(out.shape[0], "row") as row:
        shapes = {"matrix": (classes, classes), "guess": (classes,), "product": (classes,), "total": (1,)}
        state = _CouplingState(*(stmts.local(name, shape, dtype) for name, shape in shapes.items()))
        worst, goes_on = stmts.local("worst", (1,), dtype), stmts.local("goes_on", (1,), "bool")
        stmts.store(goes_on, [0], True)
        with stmts.loop(classes, "class") as one:
            stmts.store(state.guess, [one], tb.const(1 / classes, dtype))
            _fill(ctx, state.matrix, pairs, row, one)
        with stmts.loop(_ROUNDS, "round"), stmts.when(tb.load(goes_on, [0])):
            state.multiply(ctx, worst)
            stmts.store(goes_on, [0], tb.binary("ge", tb.load(worst, [0]), tb.const(_ERROR / classes, dtype)))
            with stmts.when(tb.load(goes_on, [0])), stmts.loop(classes, "class") as one:
                state.improve(ctx, one)
        with stmts.loop(classes, "class") as one:
            out.store([row, one], tb.load(state.guess, [one]))


def _fill(ctx: Context, matrix: Buffer, pairs: Tensor, row: Expr, one: Expr) -> None:
    """Write the row of a class in the matrix of the quadratic form that the probabilities minimize."""
    classes = matrix.shape[0]

    def wins(first: Expr, second: Expr) -> Expr:
        """Return the probability of the first of two classes, given that it is one of the two."""
        low, high = tb.minimum(first, second), tb.maximum(first, second)
        place = (low * (2 * classes - 1 - low)) // 2 + high - low - 1
        value = pairs(row, tb.clamp(place, 0, pairs.shape[1] - 1))
        return tb.select(tb.binary("lt", first, second), value, tb.const(1, value.dtype) - value)

    ctx.stmts.store(matrix, [one, one], 0.0)
    with ctx.stmts.loop(classes, "other") as other, ctx.stmts.when(tb.binary("ne", other, one)):
        loses = ctx.stmts.let("loses", wins(other, one))
        ctx.stmts.store(matrix, [one, other], tb.const(0, loses.dtype) - loses * wins(one, other))
        ctx.stmts.store(matrix, [one, one], tb.load(matrix, [one, one]) + loses * loses)


@dataclass(frozen=True, eq=False)
class _CouplingState:
    """The current probabilities p, their product Qp with the matrix, and the quadratic form p'Qp."""

    matrix: Buffer
    guess: Buffer
    product: Buffer
    total: Buffer

    def multiply(self, ctx: Context, worst: Buffer) -> None:
        """Compute both products, and the error of the worst class."""
        stmts, classes = ctx.stmts, self.guess.shape[0]
        stmts.store(self.total, [0], 0.0)
        stmts.store(worst, [0], 0.0)
        with stmts.loop(classes, "class") as one:
            stmts.store(self.product, [one], 0.0)
            with stmts.loop(classes, "other") as other:
                part = tb.load(self.matrix, [one, other]) * tb.load(self.guess, [other])
                stmts.store(self.product, [one], tb.load(self.product, [one]) + part)
            part = tb.load(self.guess, [one]) * tb.load(self.product, [one])
            stmts.store(self.total, [0], tb.load(self.total, [0]) + part)
        with stmts.loop(classes, "class") as one:
            apart = tb.load(self.product, [one]) - tb.load(self.total, [0])
            stmts.store(
                worst, [0], tb.maximum(tb.load(worst, [0]), tb.maximum(apart, tb.const(0, apart.dtype) - apart))
            )

    def improve(self, ctx: Context, one: Expr) -> None:
        """Emit a step for the class `one`: solve its equation for its probability, then normalize all to the sum 1."""
        stmts = ctx.stmts
        own, product = tb.load(self.matrix, [one, one]), tb.load(self.product, [one])
        change = stmts.let("change", (tb.load(self.total, [0]) - product) / own)
        scale = stmts.let("scale", change + tb.const(1, change.dtype))
        stmts.store(self.guess, [one], tb.load(self.guess, [one]) + change)
        grown = tb.load(self.total, [0]) + change * (change * own + product + product)
        stmts.store(self.total, [0], grown / scale / scale)
        with stmts.loop(self.guess.shape[0], "other") as other:
            moved = tb.load(self.product, [other]) + change * tb.load(self.matrix, [one, other])
            stmts.store(self.product, [other], moved / scale)
            stmts.store(self.guess, [other], tb.load(self.guess, [other]) / scale)


declare("ml.pairwise_coupling", 1, _infer, Kind.ANCHOR, emit=_emit, traits=Trait.NOT_IN_TVM,
        contract="libsvm's steps in the dtype of the data; 0.005 over the number of classes where it stops",
        doc="Class probabilities (rows, classes) from those of the pairs (0, 1), (0, 2), ...")  # fmt: skip
