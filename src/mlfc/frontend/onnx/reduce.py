"""Reductions along axes, arg-reductions, running sums and products, and top-k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, islice
from math import prod
from typing import TypeAlias

import numpy as np

from mlfc.frontend.onnx.node import Node, dtype_of, int64, is_float, shape_of, wide
from mlfc.frontend.onnx.run_tables import different_axes, has_known_axes, named_axes, sizes_without
from mlfc.frontend.onnx.shape import axes_of
from mlfc.frontend.onnx.table import importer
from mlfc.ops.rules import TooSmallError
from mlfc.relay.ir import Expr
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, UndecidedError, bounds, is_static, maximum, minimum

Reduction: TypeAlias = "Callable[[Node], Expr]"

_LARGEST_RANK = 64  # of a tensor whose axes are computed at run time
_CHOICE_LIMIT = 8  # candidate results to select from at run time, and sets of axes to compare
_SEARCH_LIMIT = 1 << 12  # sets of axes that are checked against the declared shape


def _reduction(*operators: str) -> Callable[[Reduction], Reduction]:
    """Return a decorator that registers the importer of a reduction; its axes may be computed at run time."""

    def register(convert: Reduction) -> Reduction:
        importer(*operators)(lambda node: convert(node) if has_known_axes(node) else _reduced_at_run(node, convert))
        return convert

    return register


def _reduced_at_run(node: Node, convert: Reduction) -> Expr:
    """Reduce along the only axes that match the declared shape, or gather the elements and reduce rows of a matrix."""
    x, old, rank, count = node.input(0), node.shape(0), node.rank(0), prod(node.shape(1))
    keep, declared = node.flag("keepdims", 1), node.declared_shape
    sets: list[Sequence[int]] = []
    if declared is not None and not isinstance(count, Dim) and is_static(old):
        for axes in islice(combinations(range(rank), count), _SEARCH_LIMIT):
            left = [1 if axis in axes else size for axis, size in enumerate(old) if keep or axis not in axes]
            sets += [axes] if left == [*declared] and len(sets) < _CHOICE_LIMIT else []
    if not sets:  # no set of axes matches the declared shape
        declared = None
    if not 0 < rank <= _LARGEST_RANK or (isinstance(count, Dim) and not keep):
        raise node.unknown(1, "axes")
    named = different_axes(node, node.reshape(node.input(1), (count,)), rank)
    if isinstance(count, Dim) and not node.flag("noop_with_empty_axes"):
        named = node.call("logical_or", named, node.call("equal", int64(node, count), 0))
    sizes = int64(node, old)
    kept, gone = node.call("where", named, 1, sizes), node.call("where", named, sizes, int64(node, 1))
    # the size of a reduced axis is 1 even if it was 0
    high = [maximum(size, 1) for size in old] if keep else []
    values = kept if keep else sizes_without(node, named, rank - count)
    shape = node.sizes(1, "axes", declared, values=values, high=high)
    # all matching sets reduce the same elements
    if len({tuple(axis for axis in axes if old[axis] != 1) for axes in sets}) == 1 and len(sets) < _CHOICE_LIMIT:
        return convert(replace(node, inputs=[x, int64(node, sets[0])]))
    rows = prod(shape)
    if declared is None:
        columns = node.size(1, "axes", node.call("prod", gone, axis=(0,), keepdims=False))
    else:
        columns = prod(old) // rows if rows else 1
    begins = node.reshape(_positions(node, rows, kept), (rows, 1))
    positions = node.call("add", begins, node.reshape(_positions(node, columns, gone), (1, columns)))
    if prod(old) == 0:
        table = node.filled((rows, columns), 0, node.dtype(0))
    else:
        table = node.call("take", node.reshape(x, (prod(old),)), positions, axis=0)
    attributes = {**node.attributes, "keepdims": 0}
    result = convert(replace(node, inputs=[table, int64(node, [1])], attributes=attributes))
    return node.reshape(result, shape)


def _positions(node: Node, count: Extent, shape: Expr) -> Expr:
    """Return the offsets in input 0 of the first `count` elements of a shape that is 1 along some of its axes."""
    at: Expr = node.counted(count)
    found = int64(node, 0)
    for axis in reversed(range(node.rank(0))):
        size = node.call("maximum", node.reshape(node.cut(shape, 0, axis, axis + 1), ()), 1)
        step = node.call("multiply", node.call("floor_mod", at, size), prod(node.shape(0)[axis + 1 :]))
        at, found = node.call("floor_divide", at, size), node.call("add", found, step)
    return found


def reduced(node: Node, operator: str, x: Expr) -> Expr:
    """Return `x` reduced along the node's axes, or `x` if there are none."""
    axes, keep = _axes(node, x), node.flag("keepdims", 1)
    if operator in ("max", "min") and any(shape_of(x)[axis] == 0 for axis in axes):
        return _extreme_of_nothing(node, operator, x, axes)
    return node.call(operator, x, axis=axes, keepdims=keep) if axes else x


def _extreme_of_nothing(node: Node, operator: str, x: Expr, axes: Sequence[int]) -> Expr:
    """Return the identity of the reduction: the lowest value for a maximum, the highest for a minimum."""
    keep, dtype = node.flag("keepdims", 1), dtype_of(x)
    shape = [1 if axis in axes else extent for axis, extent in enumerate(shape_of(x)) if keep or axis not in axes]
    low, high = (-np.inf, np.inf) if is_float(x) else dtypes.limits(dtype)
    return node.broadcast(node.constant(low if operator == "max" else high, dtype), shape)


def _axes(node: Node, x: Expr) -> tuple[int, ...]:
    """Return the nonnegative axes to reduce; an empty tuple if the tensor is unchanged."""
    rank, given, is_no_op = len(shape_of(x)), axes_of(node), node.flag("noop_with_empty_axes")
    if given:
        return tuple(sorted({node.axis(axis, rank) for axis in given}))
    return () if is_no_op else tuple(range(rank))


@_reduction("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")
def _reduce(node: Node) -> Expr:
    x, operator = node.input(0), node.operator.removeprefix("Reduce").lower()
    if dtype_of(x) == "bool":
        # the maximum of bools is any, the minimum is all
        operator = {"max": "any", "min": "all"}.get(operator, operator)
    return reduced(node, operator, x)


@_reduction("ReduceL1", "ReduceLogSum", "ReduceL2", "ReduceSumSquare")
def _reduced_sum(node: Node) -> Expr:
    """Sum elements, magnitudes or squares, and apply a final log or square root."""
    x = wide(node, node.input(0))
    if node.operator != "ReduceLogSum":
        x = node.call("abs", x) if node.operator == "ReduceL1" else node.call("multiply", x, x)
    total = reduced(node, "sum", x)
    after = {"ReduceLogSum": "log", "ReduceL2": "sqrt"}.get(node.operator)
    return node.cast(node.call(after, total) if after else total, node.dtype(0))


@_reduction("ReduceLogSumExp")
def _reduce_log_sum_exp(node: Node) -> Expr:
    """Subtract the maximum before the exponentials, so that they do not overflow, unless it is infinite."""
    x = node.input(0)
    axes, keep = _axes(node, x), node.flag("keepdims", 1)
    if not axes:
        return x
    if any(shape_of(x)[axis] == 0 for axis in axes):
        return _extreme_of_nothing(node, "max", x, axes)
    largest = node.call("max", x, axis=axes, keepdims=True)
    largest = node.call("where", node.call("isinf", largest), node.call("zeros_like", largest), largest)
    total = node.call("sum", node.call("exp", node.call("subtract", x, largest)), axis=axes, keepdims=True)
    result = node.call("add", node.call("log", total), largest)
    if keep:
        return result
    return node.reshape(result, [extent for axis, extent in enumerate(shape_of(x)) if axis not in axes])


@importer("ArgMax", "ArgMin")
def _position(node: Node) -> Expr:
    axis = node.axis(node.integer("axis", 0), node.rank(0))
    extent = node.shape(0)[axis]
    if isinstance(extent, Dim) and bounds(extent)[0] < 1:
        raise TooSmallError(node.operator, extent, 1, "a dimension")
    result = node.call(
        node.operator.lower(), node.input(0), axis=(axis,), keepdims=node.flag("keepdims", 1),
        select_last_index=bool(node.integer("select_last_index", 0)),
    )  # fmt: skip
    return node.cast(result, "int64")


@importer("CumSum", "CumProd")
def _running(node: Node) -> Expr:
    """Compute a running sum or product; for an axis with a runtime value, select from the results of all axes."""
    rank = node.rank(0)
    if node.known(1) is not None:
        return _running_along(node, node.axis(int(node.value(1, "axis").reshape(())), rank))
    if prod(node.shape(1)) != 1 or not 0 < rank <= _CHOICE_LIMIT:
        raise node.unknown(1, "axis")
    named = node.reshape(named_axes(node, node.input(1), rank), (rank,))
    found = _running_along(node, rank - 1)
    for axis in reversed(range(rank - 1)):
        is_axis = node.reshape(node.cut(named, 0, axis, axis + 1), ())
        found = node.call("where", is_axis, _running_along(node, axis), found)
    is_one = node.call("any", named, axis=(0,), keepdims=False)
    node.require(is_one, f"whether the axis of '{node.name}' is one of its tensor")
    return found


def _running_along(node: Node, axis: int) -> Expr:
    x, operator = node.input(0), node.operator.lower()
    backwards = bool(node.integer("reverse", 0))
    if backwards:
        x = node.call("reverse", x, axis=axis)
    x = node.call(operator, x, axis=axis, dtype=dtype_of(x), exclusive=bool(node.integer("exclusive", 0)))
    return node.call("reverse", x, axis=axis) if backwards else x


@importer("TopK")
def _top_k(node: Node) -> list[Expr]:
    x = node.input(0)
    axis = node.axis(node.integer("axis", -1), len(shape_of(x)))
    extent = shape_of(x)[axis]
    declared = node.declared_along([axis])
    count = node.integer("k") if node.opset < 10 else node.extent(1, "k", declared[0] if declared else None, extent)
    if bounds(count)[1] < 0 or bounds(count - extent)[0] > 0:
        node.wrong(f"{count} elements cannot be picked from {extent}")
    is_few = False
    try:
        is_few = count <= extent
    except UndecidedError as error:
        node.undecided(error)
    if not is_few:
        few = node.call("less_equal", int64(node, count), extent)
        node.require(few, f"whether '{node.name}' takes elements that there are")
        count = minimum(count, extent)
    ascending = node.opset >= 11 and node.integer("largest", 1) != 1  # as ONNX Runtime for other values
    node.integer("sorted", 1)  # the result is sorted in either case
    places = node.call("topk", x, k=count, axis=axis, ret_type="indices", is_ascend=ascending, dtype="int64")
    return [node.call("gather", x, places, axis=axis), places]
