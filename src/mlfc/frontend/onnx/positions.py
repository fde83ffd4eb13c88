"""Positions, axes and counts that are computed at run time."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from mlfc.frontend.onnx.node import Node, int64, shape_of
from mlfc.relay.ir import Expr
from mlfc.support.dims import Dim, Extent


def count_of(node: Node, flags: Expr) -> Expr:
    """Return how many of a list of flags hold."""
    return node.call("sum", node.cast(flags, "int64"), axis=(0,), keepdims=False)


def first_true(node: Node, flags: Expr, count: Extent) -> Expr:
    """Return the places of the first flags that hold, in their order, and of others where there are too few."""
    if isinstance(count, Dim):
        return _places(node, flags, count)
    holds = node.cast(flags, "int8")
    return node.call("topk", holds, k=count, axis=0, ret_type="indices", is_ascend=False, dtype="int32")


def _places(node: Node, flags: Expr, count: Extent) -> Expr:
    """Return the places of flags that hold, of which there are `count`: each is stored where its number says."""
    running = node.call("cumsum", node.cast(flags, "int64"), axis=0)
    number = node.call("subtract", running, node.constant(1, "int64"))
    # those that do not hold are stored behind the others
    target = node.call("where", flags, number, node.constant(count, "int64"))
    target = node.call("minimum", target, node.constant(count, "int64"))
    places = node.counted(shape_of(flags)[0])
    room = node.filled((count + 1,), 0, "int64")
    stored = node.call("scatter_elements", room, target, places, axis=0, reduction="update")
    return node.cut(stored, 0, 0, count)


def with_length(node: Node, index: int, what: str, length: int | None) -> Expr:
    """Return a list of integers that is a runtime value; if its length is dynamic, runs check that it is `length`."""
    size = prod(node.shape(index))
    values = node.reshape(node.input(index), (size,))
    if not isinstance(size, Dim):
        return values
    if length is None or length < 1:
        raise node.unknown(index, what)
    is_whole = node.call("equal", int64(node, size), int64(node, length))
    node.require(is_whole, f"whether '{node.name}' has {length} numbers in '{what}'")
    return node.call("take", values, within(node, node.counted(length), int64(node, size)), axis=0)


def named_axes(node: Node, axes: Expr, rank: int) -> Expr:
    """Return [axes, rank] bools: whether an axis of a list is a dimension of a tensor."""
    axes = wrapped(node, node.cast(node.reshape(axes, (prod(shape_of(axes)), 1)), "int64"), rank, low=False)
    return node.call("equal", axes, int64(node, np.arange(rank)))


def has_known_axes(node: Node) -> bool:
    """Tell whether the axes of a node are an attribute, left out, or an input that is known at compile time."""
    return node.given("axes") or not node.has(1) or node.known_integers(1, "axes") is not None


def different_axes(node: Node, axes: Expr, rank: int) -> Expr:
    """Return which of `rank` dimensions are named by a list of axes; runs check that these are different."""
    named = node.call("any", named_axes(node, axes, rank), axis=(0,), keepdims=False)
    count = prod(shape_of(axes))
    is_whole = node.call("equal", count_of(node, named), int64(node, count))
    node.require(is_whole, f"whether '{node.name}' has {count} different axes")
    return named


def sizes_without(node: Node, named: Expr, count: int) -> Expr:
    """Return the sizes of the dimensions of input 0 that are not named, of which there are `count`."""
    if not count:
        return int64(node, np.zeros(0, np.int64))
    places = first_true(node, node.call("logical_not", named), count)
    return node.call("take", int64(node, node.shape(0)), places, axis=0)


def per_axis(node: Node, axes: Expr | None, count: Any) -> Callable[[Expr | None, int, Extent], Expr | None]:
    """Return a function of a list, an axis and a default: the element of the list that is for the axis.

    It returns None for an axis that is known not to be among `axes`, and the default for a list that is left out.
    """
    rank = node.rank(0)
    if axes is None and isinstance(count, Dim):
        axes = node.counted(count)
    known = np.arange(count) if axes is None else node.known(3)
    fixed = None if known is None else [node.axis(int(axis), rank) for axis in known.reshape(-1)]
    named = None if axes is None or fixed is not None else named_axes(node, axes, rank)

    def number(values: Expr | None, axis: int, default: Extent) -> Expr | None:
        if fixed is not None and axis not in fixed:
            return None
        if values is None:
            return int64(node, default)
        values = node.cast(values, "int64")
        if fixed is not None:
            index = fixed.index(axis)
            return node.reshape(node.cut(values, 0, index, index + 1), ())
        assert named is not None  # axes that are not fixed are named
        column = node.reshape(node.cut(named, 1, axis, axis + 1), (count,))
        given = node.call("sum", node.call("where", column, values, int64(node, 0)), axis=(0,), keepdims=False)
        is_given = node.call("any", column, axis=(0,), keepdims=False)
        return node.call("where", is_given, given, int64(node, default))

    return number


def rounded_up(node: Node, dividend: Expr, divisor: Expr) -> Expr:
    """Return ``-(-dividend // divisor)``, the quotient rounded up."""
    return node.call("negative", node.call("floor_divide", node.call("negative", dividend), divisor))


def wrapped(node: Node, at: Expr, extent: Extent, *, low: bool = True) -> Expr:
    """Return positions counted from the front; none before it unless `low` is False."""
    zero, size = node.like(0, at), node.like(extent, at)
    at = node.call("where", node.call("less", at, zero), node.call("add", at, size), at)
    return node.call("maximum", at, zero) if low else at


def clipped(node: Node, at: Expr, low: Expr, high: Expr) -> Expr:
    """Return positions limited to `low` to `high`, `high` first where they contradict."""
    return node.call("minimum", node.call("maximum", at, low), high)


def within(node: Node, at: Expr, size: Expr) -> Expr:
    """Return positions limited to those of an axis."""
    return clipped(node, at, int64(node, 0), node.call("subtract", size, int64(node, 1)))
