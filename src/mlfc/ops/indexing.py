"""Operators whose elements are picked by the values of an index tensor.

Whatever the index values are, generated code stays inside its buffers: rules clamp or wrap every index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.ops.elementwise import check_dtype, converted
from mlfc.ops.rules import normalized_axis, tensors
from mlfc.ops.shape import unraveled
from mlfc.relay.ir import TensorType, Type
from mlfc.relay.op import OPERATORS, Attr, Kind, Operator
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Output, Reader, Tensor
from mlfc.tir.ir import Expr

Attrs = Mapping[str, Any]

_UPDATES = ("update", "add", "mul", "min", "max")


def _indices_type(name: str, kind: TensorType) -> TensorType:
    if not dtypes.is_integer(kind.dtype):
        raise TypeCheckError(f"{name}: indices must be integers, not {kind.dtype}")
    return kind


def _widened(index: Expr) -> Expr:
    """Return an index as int32 or, where its values may not fit, int64."""
    if index.dtype == "int64":
        return index
    return tb.cast(index, "int64" if index.dtype in ("uint32", "uint64") else "int32")


def in_bounds(index: Expr, extent: int, mode: str) -> Expr:
    """Return an int32 index inside [0, extent).

    Parameters
    ----------
    index : Expr
        Of any integer dtype.
    extent : int
    mode : str
        ``clip`` limits; ``wrap`` counts modulo the extent; ``negative`` counts negative values from the
        end, then limits.
    """
    index = _widened(index)
    if mode == "wrap":
        return tb.cast(index % extent, "int32")
    if mode == "negative":
        index = tb.select(tb.binary("lt", index, 0), index + extent, index)
    return tb.cast(tb.clamp(index, 0, extent - 1), "int32")


def _no_empty(name: str, data: TensorType, indices: TensorType, extents: Sequence[int]) -> None:
    if indices.size and 0 in extents:
        raise TypeCheckError(f"{name}: nothing can be picked from an empty dimension of {data.shape}")


def _infer_take(types: Sequence[Type], attrs: Attrs) -> TensorType:
    data, indices = tensors("take", types)
    _indices_type("take", indices)
    if attrs["mode"] not in ("clip", "wrap", "fast"):
        raise TypeCheckError(f"take: mode '{attrs['mode']}' is not clip, wrap or fast")
    batch, axis = _batch_dims(attrs, len(indices.shape)), attrs["axis"]
    if axis is None:
        if batch:
            raise TypeCheckError("take: batch_dims needs an axis")
        _no_empty("take", data, indices, data.shape)
        return TensorType(indices.shape, data.dtype)
    axis = normalized_axis("take", axis, len(data.shape))
    if not 0 <= batch <= min(axis, len(indices.shape)) or data.shape[:batch] != indices.shape[:batch]:
        raise TypeCheckError(f"take: {batch} batch dimensions do not fit {data.shape} and {indices.shape}")
    _no_empty("take", data, indices, data.shape[axis : axis + 1])
    return TensorType((*data.shape[:axis], *indices.shape[batch:], *data.shape[axis + 1 :]), data.dtype)


def _batch_dims(attrs: Attrs, rank: int) -> int:
    batch: int = attrs["batch_dims"]
    return batch + rank if batch < 0 else batch


def _take(_: Context, inputs: Sequence[Tensor], attrs: Attrs, __: TensorType) -> Reader:
    data, picks = inputs
    mode = "wrap" if attrs["mode"] == "wrap" else "clip"
    if attrs["axis"] is None:
        return lambda at: data.read(unraveled(in_bounds(picks.read(at), prod(data.shape), mode), data.shape))
    axis = attrs["axis"] % len(data.shape)
    batch = _batch_dims(attrs, len(picks.shape))
    last = axis + len(picks.shape) - batch

    def read(at: Indices) -> Expr:
        pick = picks.read([*at[:batch], *at[axis:last]])
        return data.read([*at[:axis], in_bounds(pick, data.shape[axis], mode), *at[last:]])

    return read


def _infer_gather(types: Sequence[Type], attrs: Attrs) -> TensorType:
    data, indices = tensors("gather", types)
    _indices_type("gather", indices)
    axis = normalized_axis("gather", attrs["axis"], len(data.shape))
    _check_aligned("gather", data, indices, axis)
    return TensorType(indices.shape, data.dtype)


def _check_aligned(name: str, data: TensorType, indices: TensorType, axis: int) -> None:
    fits = len(data.shape) == len(indices.shape) and all(
        k == axis or own <= all_ for k, (own, all_) in enumerate(zip(indices.shape, data.shape, strict=True))
    )
    if not fits:
        raise TypeCheckError(f"{name}: indices of {indices.shape} do not lie inside {data.shape} beside axis {axis}")
    _no_empty(name, data, indices, data.shape[axis : axis + 1])


def _gather(_: Context, inputs: Sequence[Tensor], attrs: Attrs, __: TensorType) -> Reader:
    data, picks = inputs
    axis = attrs["axis"] % len(data.shape)

    def read(at: Indices) -> Expr:
        return data.read([*at[:axis], in_bounds(picks.read(at), data.shape[axis], "negative"), *at[axis + 1 :]])

    return read


def _infer_gather_nd(types: Sequence[Type], attrs: Attrs) -> TensorType:
    data, indices = tensors("gather_nd", types)
    batch = attrs["batch_dims"]
    depth = _tuple_length("gather_nd", data, indices, batch)
    if not 0 <= batch < len(indices.shape) or data.shape[:batch] != indices.shape[1 : batch + 1]:
        raise TypeCheckError(f"gather_nd: {batch} batch dimensions do not fit {data.shape} and {indices.shape}")
    return TensorType((*indices.shape[1:], *data.shape[batch + depth :]), data.dtype)


def _tuple_length(name: str, data: TensorType, indices: TensorType, batch: int) -> int:
    """Return how many dimensions one index tuple, which lies along the first axis of `indices`, picks from."""
    _indices_type(name, indices)
    if not indices.shape or batch + indices.shape[0] > len(data.shape):
        raise TypeCheckError(f"{name}: index tuples of {indices.shape} do not fit {data.shape}")
    _no_empty(name, data, indices, data.shape[batch : batch + indices.shape[0]])
    return indices.shape[0]


def _gather_nd(_: Context, inputs: Sequence[Tensor], attrs: Attrs, __: TensorType) -> Reader:
    data, picks = inputs
    batch, depth, leading = attrs["batch_dims"], picks.shape[0], len(picks.shape) - 1

    def read(at: Indices) -> Expr:
        picked = [in_bounds(picks(k, *at[:leading]), data.shape[batch + k], "negative") for k in range(depth)]
        return data.read([*at[:batch], *picked, *at[leading:]])

    return read


def _combined(mode: str, old: Expr, update: Expr) -> Expr:
    if mode == "update":
        return update
    return tb.binary(mode, old, update)


def _scatter(
    ctx: Context, inputs: Sequence[Tensor], mode: str, out: Output, place: Callable[[Indices], list[Expr]]
) -> None:
    """Copy the data to scratch, apply the updates in order, store the result."""
    data, _, updates = inputs
    buffer = ctx.scratch("result", data.shape, data.dtype)
    with ctx.loops(data.shape) as at:
        ctx.stmts.store(buffer, at, data.read(at))
    if prod(updates.shape):
        with _ordered_loops(ctx, updates.shape) as at:
            target = [ctx.stmts.let("at", index) for index in place(at)]
            ctx.stmts.store(buffer, target, _combined(mode, tb.load(buffer, target), updates.read(at)))
    with ctx.loops(data.shape, "o") as at:
        out.store(at, tb.load(buffer, at))


@contextmanager
def _ordered_loops(ctx: Context, shape: Sequence[int]) -> Iterator[tuple[Expr, ...]]:
    """Open one serial loop an axis: two updates may meet in one element, so none may run side by side."""
    with ExitStack() as stack:
        yield tuple(stack.enter_context(ctx.stmts.loop(extent, f"u{axis}")) for axis, extent in enumerate(shape))


def _check_mode(name: str, mode: str, dtype: str) -> None:
    if mode not in _UPDATES:
        raise TypeCheckError(f"{name}: '{mode}' is not one of {', '.join(_UPDATES)}")
    if mode != "update":
        check_dtype(name, dtype, "number")


def _infer_scatter_elements(types: Sequence[Type], attrs: Attrs) -> TensorType:
    data, indices, updates = tensors("scatter_elements", types)
    _indices_type("scatter_elements", indices)
    _check_mode("scatter_elements", attrs["reduction"], data.dtype)
    axis = normalized_axis("scatter_elements", attrs["axis"], len(data.shape))
    _check_aligned("scatter_elements", data, indices, axis)
    if updates != TensorType(indices.shape, data.dtype):
        raise TypeCheckError(f"scatter_elements: updates {updates} do not match {indices} into {data}")
    return data


def _scatter_elements(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    data, picks, _ = inputs
    axis = attrs["axis"] % len(data.shape)

    def place(at: Indices) -> list[Expr]:
        return [*at[:axis], in_bounds(picks.read(at), data.shape[axis], "negative"), *at[axis + 1 :]]

    _scatter(ctx, inputs, attrs["reduction"], out, place)


def _infer_scatter_nd(types: Sequence[Type], attrs: Attrs) -> TensorType:
    data, indices, updates = tensors("scatter_nd", types)
    _check_mode("scatter_nd", attrs["mode"], data.dtype)
    depth = _tuple_length("scatter_nd", data, indices, 0)
    if updates != TensorType((*indices.shape[1:], *data.shape[depth:]), data.dtype):
        raise TypeCheckError(f"scatter_nd: updates {updates} do not match {indices} into {data}")
    return data


def _scatter_nd(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    data, picks, _ = inputs
    depth, leading = picks.shape[0], len(picks.shape) - 1

    def place(at: Indices) -> list[Expr]:
        picked = [in_bounds(picks(k, *at[:leading]), data.shape[k], "negative") for k in range(depth)]
        return [*picked, *at[leading:]]

    _scatter(ctx, inputs, attrs["mode"], out, place)


def _infer_one_hot(types: Sequence[Type], attrs: Attrs) -> TensorType:
    indices, on_value, off_value = tensors("one_hot", types)
    _indices_type("one_hot", indices)
    if on_value.size != 1 or off_value.size != 1 or on_value.dtype != off_value.dtype:
        raise TypeCheckError(f"one_hot: {on_value} and {off_value} must be two scalars of one dtype")
    if attrs["depth"] < 0:
        raise TypeCheckError(f"one_hot: depth {attrs['depth']} is negative")
    axis = normalized_axis("one_hot", attrs["axis"], len(indices.shape) + 1)
    shape = (*indices.shape[:axis], attrs["depth"], *indices.shape[axis:])
    return TensorType(shape, attrs["dtype"] or on_value.dtype)


def _one_hot(_: Context, inputs: Sequence[Tensor], attrs: Attrs, out_type: TensorType) -> Reader:
    picks, on_value, off_value = inputs
    axis = attrs["axis"] % len(out_type.shape)

    def scalar(tensor: Tensor) -> Expr:
        return converted(tensor.read([tb.const(0)] * len(tensor.shape)), out_type.dtype)

    def read(at: Indices) -> Expr:
        pick = _widened(picks.read([*at[:axis], *at[axis + 1 :]]))
        return tb.select(tb.binary("eq", pick, tb.cast(at[axis], pick.dtype)), scalar(on_value), scalar(off_value))

    return read


for _operator in (
    Operator(
        "take", 2, _infer_take, Kind.INJECTIVE, (Attr("batch_dims", 0), Attr("axis", None), Attr("mode", "clip")),
        _take, contract="exact; an index outside is limited ('wrap': counted modulo the extent)",
        doc="Slices along a dimension by index",
    ),
    Operator(
        "gather", 2, _infer_gather, Kind.INJECTIVE, (Attr("axis", None),), _gather,
        contract="exact; a negative index counts from the end, others outside are limited",
        doc="Elements along a dimension, an index for each",
    ),
    Operator(
        "gather_nd", 2, _infer_gather_nd, Kind.INJECTIVE, (Attr("batch_dims", 0), Attr("index_rank", None)), _gather_nd,
        contract="exact; a negative index counts from the end, others outside are limited",
        doc="Slices by index tuples, which lie along the first axis of the indices",
    ),
    Operator(
        "scatter_elements", 3, _infer_scatter_elements, Kind.REDUCE,
        (Attr("axis", 0), Attr("reduction", "update")), emit=_scatter_elements,
        contract="exact; updates apply in order", doc="A tensor with elements replaced or combined, an index for each",
    ),
    Operator(
        "scatter_nd", 3, _infer_scatter_nd, Kind.REDUCE, (Attr("mode", "update"),), emit=_scatter_nd,
        contract="exact; updates apply in order", doc="A tensor with slices replaced or combined by index tuples",
    ),
    Operator(
        "one_hot", 3, _infer_one_hot, Kind.INJECTIVE, (Attr("depth", 1), Attr("axis", -1), Attr("dtype", None)),
        _one_hot, doc="The on value where the position along a new dimension is the index, else the off value",
    ),
):  # fmt: skip
    OPERATORS.add(_operator.name, _operator)
