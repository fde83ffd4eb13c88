"""Largest and smallest elements along an axis, and their indices."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.errors import TypeCheckError
from mlfc.kernels.folding import serial_loops
from mlfc.ops.reduce import wins_by
from mlfc.ops.rules import check_choice, check_dtype, declare, normalized_axis, optional_dtype, replaced
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind
from mlfc.support.dims import maximum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor

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
    """Keep the best elements so far in order; an element better than the last shifts those after its position."""
    (data,) = inputs
    stmts, k = ctx.stmts, attrs["k"]
    axis = attrs["axis"] % len(data.shape)
    size = maximum(k, 1)  # k may be 0 at run time
    best, place = ctx.scratch("best", (size,), data.dtype), ctx.scratch("place", (size,), "int32")
    ascends = bool(attrs["is_ascend"])  # NaN is largest
    wins = wins_by("lt" if ascends else "gt", data.dtype, nan_wins=not ascends)
    with serial_loops(ctx, replaced(data.shape, axis), "i") as at:
        with stmts.loop(data.shape[axis], "element") as i:
            value = stmts.let("value", data.read([*at[:axis], i, *at[axis:]]))
            is_among = tb.select(tb.binary("lt", i, k), True, wins(value, tb.load(best, [size - 1])))
            with stmts.when(is_among):
                carried = stmts.local("carried", (1,), data.dtype)
                carried_place, moves = stmts.local("carried_place", (1,), "int32"), stmts.local("moves", (1,), "bool")
                for buffer, start in ((carried, value), (carried_place, i), (moves, False)):
                    stmts.store(buffer, [0], start)
                with stmts.loop(tb.minimum(i + 1, size), "rank") as rank:
                    is_free = stmts.let("is_free", tb.binary("eq", rank, i))
                    goes_here = tb.select(is_free, True, wins(value, tb.load(best, [rank])))
                    with stmts.when(tb.binary("lor", tb.load(moves, [0]), goes_here)):
                        for buffer, held in ((best, carried), (place, carried_place)):
                            before = tb.select(is_free, tb.load(held, [0]), tb.load(buffer, [rank]))
                            before = stmts.let("before", before)
                            stmts.store(buffer, [rank], tb.load(held, [0]))
                            stmts.store(held, [0], before)
                        stmts.store(moves, [0], True)
        with stmts.loop(k, "rank") as rank:
            found = tb.load(best if attrs["ret_type"] == "values" else place, [rank])
            out.store([*at[:axis], rank, *at[axis:]], tb.cast(found, out.dtype))


declare("topk", 1, _infer, Kind.REDUCE,
        (Attr("k", 1), Attr("axis", -1), Attr("ret_type", "values"), Attr("is_ascend", False), Attr("dtype", "int32")),
        emit=_emit, contract="exact; equal elements in their order, NaN above all numbers",
        doc="The largest or smallest elements along a dimension in order, or their indices")  # fmt: skip
