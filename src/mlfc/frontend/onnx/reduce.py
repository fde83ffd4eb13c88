"""Reductions along axes, positions of extremes, running sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlfc.frontend.onnx.node import Node, dtype_of, is_float, shape_of, wide
from mlfc.frontend.onnx.shape import axes_of
from mlfc.frontend.onnx.table import importer
from mlfc.ops.rules import TooSmallError
from mlfc.relay.ir import Expr
from mlfc.support.dims import Dim, bounds


def reduced(node: Node, operator: str, x: Expr) -> Expr:
    """Return `x` reduced along the node's axes; on no axes at all it stays as it is."""
    axes = _axes(node, x)
    keep = node.flag("keepdims", 1)
    if operator in ("max", "min") and any(shape_of(x)[axis] == 0 for axis in axes):
        return _extreme_of_nothing(node, operator, x, axes)
    return node.call(operator, x, axis=axes, keepdims=keep) if axes else x


def _extreme_of_nothing(node: Node, operator: str, x: Expr, axes: Sequence[int]) -> Expr:
    """Return what any element would change: the least value as a maximum, the greatest as a minimum."""
    keep, dtype = node.flag("keepdims", 1), dtype_of(x)
    shape = [1 if axis in axes else extent for axis, extent in enumerate(shape_of(x)) if keep or axis not in axes]
    if is_float(x):
        value = -np.inf if operator == "max" else np.inf
    else:
        value = np.iinfo(dtype).min if operator == "max" else np.iinfo(dtype).max
    return node.broadcast(node.constant(value, dtype), shape)


def _axes(node: Node, x: Expr) -> tuple[int, ...]:
    """Return the axes to reduce, counted from the front; none where the tensor stays as it is."""
    rank = len(shape_of(x))
    given = axes_of(node)
    no_axes_is_all = not node.flag("noop_with_empty_axes")
    if given:
        return tuple(sorted({node.axis(axis, rank) for axis in given}))
    return tuple(range(rank)) if no_axes_is_all else ()


@importer("ReduceMean", "ReduceProd", "ReduceSum")
def _reduce(node: Node) -> Expr:
    return reduced(node, node.operator.removeprefix("Reduce").lower(), node.input(0))


@importer("ReduceMax", "ReduceMin")
def _extreme(node: Node) -> Expr:
    x, operator = node.input(0), node.operator.removeprefix("Reduce").lower()
    if dtype_of(x) == "bool":
        # the largest of truth values is whether any is true, the smallest whether all are
        operator = "any" if operator == "max" else "all"
    return reduced(node, operator, x)


@importer("ReduceL1", "ReduceLogSum", "ReduceL2", "ReduceSumSquare")
def _reduced_sum(node: Node) -> Expr:
    """Sum elements, magnitudes or squares; the sum may be changed at last."""
    x = wide(node, node.input(0))
    if node.operator != "ReduceLogSum":
        x = node.call("abs", x) if node.operator == "ReduceL1" else node.call("multiply", x, x)
    total = reduced(node, "sum", x)
    after = {"ReduceLogSum": "log", "ReduceL2": "sqrt"}.get(node.operator)
    return node.cast(node.call(after, total) if after else total, node.dtype(0))


@importer("ReduceLogSumExp")
def _reduce_log_sum_exp(node: Node) -> Expr:
    """Take the largest element out of the sum, so that it does not overflow; an infinite one may stay in."""
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
    extent = node.shape(0)[node.axis(node.integer("axis", 0), node.rank(0))]
    if isinstance(extent, Dim) and bounds(extent)[0] < 1:
        raise TooSmallError(node.operator, extent, 1, "a dimension")
    result = node.call(
        node.operator.lower(), node.input(0), axis=(node.axis(node.integer("axis", 0), node.rank(0)),),
        keepdims=node.flag("keepdims", 1), select_last_index=bool(node.integer("select_last_index", 0)),
    )  # fmt: skip
    return node.cast(result, "int64")


@importer("CumSum", "CumProd")
def _running(node: Node) -> Expr:
    x, operator = node.input(0), node.operator.lower()
    axis = node.axis(int(node.value(1, "axis").reshape(())), node.rank(0))
    backwards = bool(node.integer("reverse", 0))
    if backwards:
        x = node.call("reverse", x, axis=axis)
    x = node.call(operator, x, axis=axis, dtype=dtype_of(x), exclusive=bool(node.integer("exclusive", 0)))
    return node.call("reverse", x, axis=axis) if backwards else x


@importer("TopK")
def _top_k(node: Node) -> list[Expr]:
    x = node.input(0)
    axis = node.axis(node.integer("axis", -1), len(shape_of(x)))
    counts = (node.integer("k"),) if node.opset < 10 else node.int_values(1, "k")
    if len(counts) != 1 or bounds(counts[0])[1] < 0 or bounds(counts[0] - shape_of(x)[axis])[0] > 0:
        node.wrong(f"{', '.join(map(str, counts))} elements cannot be picked from {shape_of(x)[axis]}")
    ascending = node.opset >= 11 and node.integer("largest", 1) != 1  # as ONNX Runtime reads other values
    node.integer("sorted", 1)  # in order they are either way
    places = node.call("topk", x, k=counts[0], axis=axis, ret_type="indices", is_ascend=ascending, dtype="int64")
    return [node.call("gather", x, places, axis=axis), places]
