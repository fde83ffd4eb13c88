"""Operators that select elements by the values of an index tensor, or by their own order.

Generated code stays inside its buffers for any index values: rules clamp or wrap every index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from math import prod

from mlfc.errors import TypeCheckError
from mlfc.kernels.folding import serial_loops
from mlfc.ops import rules
from mlfc.ops.elementwise import converted
from mlfc.ops.reduce import wins_by
from mlfc.ops.rules import (
    Element,
    at_most,
    check_choice,
    check_dtype,
    declare,
    fixed,
    normalized_axis,
    optional_dtype,
    replaced,
    same_shape,
    scalar,
)
from mlfc.ops.shape import unraveled
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Elements, Kind, Trait
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, Shape, bounds, maximum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Output, Tensor
from mlfc.tir.extents import as_index
from mlfc.tir.ir import Const, Expr

_UPDATES = ("update", "add", "mul", "min", "max")


def check_indices(name: str, kind: TensorType) -> None:
    """Refuse indices that are not integers."""
    if not dtypes.is_integer(kind.dtype):
        raise TypeCheckError(f"{name}: indices must be integers, not {kind.dtype}")


def _widened(index: Expr) -> Expr:
    """Cast an index to int32, or to int64 if its dtype has values beyond int32."""
    if index.dtype == "int64":
        return index
    return tb.cast(index, "int64" if index.dtype in ("uint32", "uint64") else "int32")


def in_bounds(index: Expr, extent: Extent, mode: str) -> Expr:
    """Return an index of any integer dtype as an int32 index inside [0, extent).

    `mode`: ``clip`` clamps; ``wrap`` counts modulo the extent; ``negative`` counts negative values from the end, then
    clamps.
    """
    index = _widened(index)
    if mode == "wrap":
        return tb.cast(index % extent, "int32")
    if mode == "negative":
        index = tb.select(tb.binary("lt", index, 0), index + extent, index)
    return tb.cast(tb.clamp(index, 0, extent - 1), "int32")


def _unless_empty(shape: Shape, value: Expr) -> Expr:
    """Return a selected element, or 0 if a dimension to select from is empty at run time."""
    return tb.select(_is_filled(shape), value, tb.const(0, value.dtype))


def _is_filled(shape: Shape) -> Expr:
    dynamic = [extent for extent in shape if isinstance(extent, Dim) and bounds(extent)[0] < 1]
    return tb.land(*(tb.binary("gt", as_index(extent), 0) for extent in dynamic))


def _no_empty(name: str, data: TensorType, indices: TensorType, extents: Sequence[int]) -> None:
    if 0 not in indices.shape and 0 in extents:
        raise TypeCheckError(f"{name}: cannot select from an empty dimension of {data.shape}")


def _infer_take(name: str, attrs: Attrs, data: TensorType, indices: TensorType) -> TensorType:
    check_indices(name, indices)
    check_choice(name, "mode", attrs["mode"], ("clip", "wrap", "fast"))
    batch, axis = _batch_dims(attrs, len(indices.shape)), attrs["axis"]
    if axis is None:
        if batch:
            raise TypeCheckError(f"{name}: batch_dims requires an axis")
        _no_empty(name, data, indices, data.shape)
        return TensorType(indices.shape, data.dtype)
    axis = normalized_axis(name, axis, len(data.shape))
    fits = 0 <= batch <= min(axis, len(indices.shape))
    if not fits or (data.is_static and indices.is_static and data.shape[:batch] != indices.shape[:batch]):
        raise TypeCheckError(f"{name}: {batch} batch dimensions do not match {data.shape} and {indices.shape}")
    same_shape(name, data.shape[:batch], indices.shape[:batch], "batches")
    _no_empty(name, data, indices, data.shape[axis : axis + 1])
    return TensorType(replaced(data.shape, axis, *indices.shape[batch:]), data.dtype)


def _batch_dims(attrs: Attrs, rank: int) -> int:
    batch: int = attrs["batch_dims"]
    return batch + rank if batch < 0 else batch


def _take(of: Element, data: Tensor, picks: Tensor) -> Expr:
    mode, axis, at = "wrap" if of.attrs["mode"] == "wrap" else "clip", of.attrs["axis"], of.at
    if axis is None:
        found = data.read(unraveled(in_bounds(picks.read(at), prod(data.shape), mode), data.shape))
        return _unless_empty(data.shape, found)
    axis %= len(data.shape)
    batch = _batch_dims(of.attrs, len(picks.shape))
    last = axis + len(picks.shape) - batch
    pick = picks.read([*at[:batch], *at[axis:last]])
    found = data.read([*at[:axis], in_bounds(pick, data.shape[axis], mode), *at[last:]])
    return _unless_empty(data.shape, found)


def _infer_gather(name: str, attrs: Attrs, data: TensorType, indices: TensorType) -> TensorType:
    check_indices(name, indices)
    _check_aligned(name, data, indices, normalized_axis(name, attrs["axis"], len(data.shape)))
    return TensorType(indices.shape, data.dtype)


def _check_aligned(name: str, data: TensorType, indices: TensorType, axis: int) -> None:
    fits = len(data.shape) == len(indices.shape) and all(
        k == axis or at_most(name, *pair) for k, pair in enumerate(zip(indices.shape, data.shape, strict=True))
    )
    if not fits:
        raise TypeCheckError(f"{name}: indices of {indices.shape} exceed {data.shape} outside axis {axis}")
    _no_empty(name, data, indices, data.shape[axis : axis + 1])


def _picked_along(axis: int, data: Tensor, picks: Tensor, at: Indices) -> list[Expr]:
    """Return `at` with the index of `axis` replaced by the value of `picks` at `at`."""
    axis %= len(data.shape)
    return [*replaced(at, axis, in_bounds(picks.read(at), data.shape[axis], "negative"))]


def _infer_gather_nd(name: str, attrs: Attrs, data: TensorType, indices: TensorType) -> TensorType:
    batch = attrs["batch_dims"]
    depth = _tuple_length(name, data, indices, batch)
    fits = 0 <= batch < len(indices.shape)
    if not fits or (data.is_static and indices.is_static and data.shape[:batch] != indices.shape[1 : batch + 1]):
        raise TypeCheckError(f"{name}: {batch} batch dimensions do not match {data.shape} and {indices.shape}")
    same_shape(name, data.shape[:batch], indices.shape[1 : batch + 1], "batches")
    return TensorType((*indices.shape[1:], *data.shape[batch + depth :]), data.dtype)


def _tuple_length(name: str, data: TensorType, indices: TensorType, batch: int) -> int:
    """Return the length of the index tuples along the first axis of `indices`."""
    check_indices(name, indices)
    depth = fixed(name, indices.shape[0], "the length of an index tuple") if indices.shape else len(data.shape) + 1
    if batch + depth > len(data.shape):
        raise TypeCheckError(f"{name}: index tuples of {indices.shape} do not fit {data.shape}")
    _no_empty(name, data, indices, data.shape[batch : batch + depth])
    return depth


def _picked_tuple(batch: int, data: Tensor, picks: Tensor, at: Indices) -> list[Expr]:
    """Return the batch indices of `at`, the index tuple of `picks` at its leading indices, and the slice indices."""
    depth, leading = picks.shape[0], len(picks.shape) - 1
    picked = [in_bounds(picks(k, *at[:leading]), data.shape[batch + k], "negative") for k in range(depth)]
    return [*at[:batch], *picked, *at[leading:]]


def _scatter(
    ctx: Context, inputs: Sequence[Tensor], mode: str, out: Output, place: Callable[[Indices], list[Expr]]
) -> None:
    """Copy the data to scratch, apply the updates in order, store the result."""
    data, _, updates = inputs
    buffer = ctx.scratch("result", data.shape, data.dtype)
    with ctx.loops(data.shape) as at:
        ctx.stmts.store(buffer, at, data.read(at))
    if 0 not in updates.shape:
        is_filled = _is_filled(data.shape)
        guard = nullcontext() if isinstance(is_filled, Const) else ctx.stmts.when(is_filled)
        with guard, serial_loops(ctx, updates.shape, "u") as at:  # in order, as two updates may have the same target
            target = [ctx.stmts.let("at", index) for index in place(at)]
            update = updates.read(at)
            value = update if mode == "update" else tb.binary(mode, tb.load(buffer, target), update)
            ctx.stmts.store(buffer, target, value)
    with ctx.loops(data.shape, "o") as at:
        out.store(at, tb.load(buffer, at))


def _infer_scatter(name: str, attrs: Attrs, data: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
    by_tuples = name == "scatter_nd"
    if not by_tuples:
        check_indices(name, indices)
    mode = attrs["mode" if by_tuples else "reduction"]
    check_choice(name, "mode", mode, _UPDATES)
    if mode != "update":
        rules.check_dtype(name, data.dtype, "number")
    if by_tuples:
        shape = (*indices.shape[1:], *data.shape[_tuple_length(name, data, indices, 0) :])
    else:
        _check_aligned(name, data, indices, normalized_axis(name, attrs["axis"], len(data.shape)))
        shape = indices.shape
    wanted = TensorType(shape, data.dtype)
    if not (wanted.is_static and updates.is_static) and updates.dtype == data.dtype:
        same_shape(name, updates.shape, shape, "updates")
    elif updates != wanted:
        raise TypeCheckError(f"{name}: updates {updates} do not match {indices} into {data}")
    return data


def _infer_one_hot(name: str, attrs: Attrs, indices: TensorType, on: TensorType, off: TensorType) -> TensorType:
    check_indices(name, indices)
    if on.size != 1 or off.size != 1 or on.dtype != off.dtype:
        raise TypeCheckError(f"{name}: {on} and {off} must be two scalars of one dtype")
    if attrs["depth"] < 0:
        raise TypeCheckError(f"{name}: depth {attrs['depth']} is negative")
    axis = normalized_axis(name, attrs["axis"], len(indices.shape) + 1)
    shape = (*indices.shape[:axis], attrs["depth"], *indices.shape[axis:])
    return TensorType(shape, attrs["dtype"] or on.dtype)


def _one_hot(of: Element, picks: Tensor, on: Tensor, off: Tensor) -> Expr:
    axis, dtype = of.attrs["axis"] % len(of.at), of.out.dtype
    pick = _widened(picks.read([*of.at[:axis], *of.at[axis + 1 :]]))
    hit = tb.binary("eq", pick, tb.cast(of.at[axis], pick.dtype))
    return tb.select(hit, converted(scalar(on), dtype), converted(scalar(off), dtype))


_LIMITED = "exact; a negative index counts from the end, others outside are limited"
declare("take", 2, _infer_take, Kind.INJECTIVE,
        (Attr("batch_dims", 0), Attr("axis", None), Attr("mode", "clip")), _take,
        elements=Elements.MOVED, traits=Trait.PICK,
        contract="exact; an index outside is limited ('wrap': counted modulo the extent)",
        doc="Slices along a dimension by index")  # fmt: skip
declare("gather", 2, _infer_gather, Kind.INJECTIVE, (Attr("axis", None),),
        lambda of, data, picks: _unless_empty(
            data.shape, data.read(_picked_along(of.attrs["axis"], data, picks, of.at))
        ), contract=_LIMITED, elements=Elements.MOVED, traits=Trait.PICK,
        doc="Elements along a dimension, with one index per element")  # fmt: skip
declare("gather_nd", 2, _infer_gather_nd, Kind.INJECTIVE, (Attr("batch_dims", 0), Attr("index_rank", None)),
        lambda of, data, picks: _unless_empty(
            data.shape, data.read(_picked_tuple(of.attrs["batch_dims"], data, picks, of.at))
        ),
        contract=_LIMITED, elements=Elements.MOVED, traits=Trait.PICK | Trait.TUPLES,
        doc="Slices by index tuples along the first axis of the indices")  # fmt: skip
declare("scatter_elements", 3, _infer_scatter, Kind.REDUCE, (Attr("axis", 0), Attr("reduction", "update")),
        emit=lambda ctx, inputs, attrs, out: _scatter(ctx, inputs, attrs["reduction"], out,
                                                      partial(_picked_along, attrs["axis"], *inputs[:2])),
        contract="exact; updates apply in order", traits=Trait.PUT,
        doc="A tensor with elements replaced or combined, with one index per element")  # fmt: skip
declare("scatter_nd", 3, _infer_scatter, Kind.REDUCE, (Attr("mode", "update"),),
        emit=lambda ctx, inputs, attrs, out: _scatter(ctx, inputs, attrs["mode"], out,
                                                      partial(_picked_tuple, 0, *inputs[:2])),
        contract="exact; updates apply in order", traits=Trait.PUT | Trait.TUPLES,
        doc="A tensor with slices replaced or combined by index tuples")  # fmt: skip
declare("one_hot", 3, _infer_one_hot, Kind.INJECTIVE, (Attr("depth", 1), Attr("axis", -1), Attr("dtype", None)),
        _one_hot,
        doc="The on value where the position along a new dimension is the index, else the off value")  # fmt: skip


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
