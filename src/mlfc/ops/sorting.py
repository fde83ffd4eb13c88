"""The places of the largest and smallest elements along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlfc.errors import TypeCheckError
from mlfc.kernels.folding import serial_loops
from mlfc.ops.reduce import sorts_before
from mlfc.ops.rules import check_choice, check_dtype, declare, normalized_axis, optional_dtype, replaced
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind
from mlfc.support.dims import maximum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Expr

_RETURNS = ("values", "indices")


def _infer(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    check_dtype(name, data.dtype, "number")
    check_choice(name, "ret_type", attrs["ret_type"], _RETURNS)
    axis = normalized_axis(name, attrs["axis"], len(data.shape))
    if not 0 <= attrs["k"] <= data.shape[axis]:
        raise TypeCheckError(f"{name}: {attrs['k']} elements of {data.shape} along axis {axis} cannot be picked")
    dtype = optional_dtype(attrs["dtype"], "int32") if attrs["ret_type"] == "indices" else data.dtype
    check_dtype(name, dtype, "number")
    return TensorType(replaced(data.shape, axis, attrs["k"]), dtype)


def _emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    """Keep the best elements so far in order; one that is better than the last of them moves those behind it on."""
    (data,) = inputs
    stmts, k = ctx.stmts, attrs["k"]
    axis = attrs["axis"] % len(data.shape)
    size = maximum(k, 1)  # the run may want none
    best, place = ctx.scratch("best", (size,), data.dtype), ctx.scratch("place", (size,), "int32")
    wins = sorts_before(data.dtype, ascending=bool(attrs["is_ascend"]))
    with serial_loops(ctx, replaced(data.shape, axis), "i") as at:
        with stmts.loop(data.shape[axis], "element") as i:
            value = stmts.let("value", data.read([*at[:axis], i, *at[axis:]]))
            is_among = tb.select(tb.binary("lt", i, k), True, wins(value, tb.load(best, [size - 1])))
            with stmts.when(is_among):
                _insert(ctx, best, place, value, i, wins)
        with stmts.loop(k, "rank") as rank:
            found = tb.load(best if attrs["ret_type"] == "values" else place, [rank])
            out.store([*at[:axis], rank, *at[axis:]], tb.cast(found, out.dtype))


def _insert(
    ctx: Context, best: Buffer, place: Buffer, value: Expr, i: Expr, wins: Callable[[Expr, Expr], Expr]
) -> None:
    stmts = ctx.stmts
    carried, carried_place = stmts.local("carried", (1,), best.dtype), stmts.local("carried_place", (1,), "int32")
    moves = stmts.local("moves", (1,), "bool")
    for buffer, start in ((carried, value), (carried_place, i), (moves, False)):
        stmts.store(buffer, [0], start)
    with stmts.loop(tb.minimum(i + 1, best.shape[0]), "rank") as rank:
        is_free = stmts.let("is_free", tb.binary("eq", rank, i))
        goes_here = tb.select(is_free, True, wins(value, tb.load(best, [rank])))
        with stmts.when(tb.binary("lor", tb.load(moves, [0]), goes_here)):
            for buffer, held in ((best, carried), (place, carried_place)):
                before = stmts.let("before", tb.select(is_free, tb.load(held, [0]), tb.load(buffer, [rank])))
                stmts.store(buffer, [rank], tb.load(held, [0]))
                stmts.store(held, [0], before)
            stmts.store(moves, [0], True)


declare("topk", 1, _infer, Kind.REDUCE,
        (Attr("k", 1), Attr("axis", -1), Attr("ret_type", "values"), Attr("is_ascend", False), Attr("dtype", "int32")),
        emit=_emit, contract="exact; equal elements in their order, NaN above all numbers",
        doc="The largest or smallest elements along a dimension in order, or their places")  # fmt: skip
