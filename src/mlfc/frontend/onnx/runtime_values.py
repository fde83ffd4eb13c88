"""Integers that are computed at run time and decide shapes: positions, axes, and numbers of elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from mlfc.frontend.onnx.index import ENDLESS, count_of
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.relay.ir import Constant, Expr
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent

Results: TypeAlias = "Expr | Sequence[Expr]"
Convert: TypeAlias = "Callable[[Node], Results]"


def int64(node: Node, value: Any) -> Expr:
    """Return integers as a tensor."""
    return node.constant(value, "int64")


def named_axes(node: Node, axes: Expr, rank: int) -> Expr:
    """Return [axes, rank] bools: whether an axis of a list is a dimension of a tensor."""
    axes = wrapped(node, node.cast(node.reshape(axes, (prod(shape_of(axes)), 1)), "int64"), rank, low=False)
    return node.call("equal", axes, int64(node, np.arange(rank)))


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


def asked_shape(node: Node) -> Expr:
    """Return the shape that a Reshape requests, with 0 and -1 replaced by the sizes they stand for."""
    shape, rank = node.shape(0), prod(node.shape(1))
    wanted, minus = node.cast(node.input(1), "int64"), int64(node, -1)
    if not node.integer("allowzero", 0):
        # a 0 beyond the rank of the tensor copies nothing: -2 equals no size
        old = int64(node, [*shape[:rank], *[-2] * (rank - len(shape))])
        wanted = node.call("where", node.call("equal", wanted, int64(node, 0)), old, wanted)
    is_left = node.call("equal", wanted, minus)
    one_at_most = node.call("less_equal", count_of(node, is_left), int64(node, 1))
    node.require(one_at_most, f"whether '{node.name}' has one -1 at most")
    known = node.call("prod", node.call("where", is_left, int64(node, 1), wanted), axis=(0,), keepdims=False)
    rest = node.call("floor_divide", int64(node, prod(shape)), node.call("maximum", known, int64(node, 1)))
    return node.call("where", is_left, rest, wanted)


def range_count(node: Node, start: Expr, limit: Expr, delta: Expr) -> Expr:
    """Return the number of elements of a range."""
    if dtypes.is_integer(dtype_of(start)):  # the distance may exceed the dtype
        start, limit, delta = (node.cast(item, "int64") for item in (start, limit, delta))
        count = _quotient_up(node, node.call("subtract", limit, start), delta)
    else:
        distance = node.call("subtract", limit, start)
        wide = [node.cast(item, "float64") for item in (distance, delta)]
        count = node.cast(node.call("ceil", node.call("divide", *wide)), "int64")
    return node.call("maximum", count, int64(node, 0))


def kept_steps(node: Node, extent: Extent, cut: Sequence[Expr]) -> tuple[Expr, Expr, Expr]:
    """Return the first position of a slice (start, end, step) of one axis, its step, and its number of elements."""
    start, end, step = cut
    zero, one, size = (int64(node, value) for value in (0, 1, extent))
    last = node.call("subtract", size, one)
    if isinstance(step, Constant) and int(step.data.reshape(())) > 0:
        begin, stop = (clipped(node, wrapped(node, item, extent, low=False), zero, size) for item in (start, end))
    else:
        is_back = node.call("less", step, zero)
        low = node.call("where", is_back, int64(node, -1), zero)
        high = node.call("where", is_back, last, size)
        begin = clipped(node, wrapped(node, start, extent), zero, high)
        stop = clipped(node, wrapped(node, end, extent, low=False), low, high)
        for mark in ENDLESS:
            is_mark = node.call("logical_and", is_back, node.call("equal", end, int64(node, mark)))
            stop = node.call("where", is_mark, low, stop)
    count = _quotient_up(node, node.call("subtract", stop, begin), step)
    return begin, step, node.call("maximum", count, zero)


def _quotient_up(node: Node, dividend: Expr, divisor: Expr) -> Expr:
    """Return ``-(-dividend // divisor)``, the quotient rounded up."""
    return node.call("negative", node.call("floor_divide", node.call("negative", dividend), divisor))


def wrapped(node: Node, at: Expr, extent: Extent, *, low: bool = True) -> Expr:
    """Return positions counted from the front; none before it unless `low` is False."""
    zero, size = int64(node, 0), int64(node, extent)
    at = node.call("where", node.call("less", at, zero), node.call("add", at, size), at)
    return node.call("maximum", at, zero) if low else at


def clipped(node: Node, at: Expr, low: Expr, high: Expr) -> Expr:
    """Return positions limited to `low` to `high`, `high` first where they contradict."""
    return node.call("minimum", node.call("maximum", at, low), high)


def within(node: Node, at: Expr, size: Expr) -> Expr:
    """Return positions limited to those of an axis."""
    return clipped(node, at, int64(node, 0), node.call("subtract", size, int64(node, 1)))
