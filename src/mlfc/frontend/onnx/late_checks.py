"""Checks of runs: values that decide shapes must not contradict the shapes that a model declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from mlfc.frontend.onnx.index import ENDLESS
from mlfc.frontend.onnx.late import LATE, Convert, Results, named_axes, per_axis, wrapped
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.relay.ir import Constant, Expr
from mlfc.support import dtypes
from mlfc.support.dims import Extent

_LARGEST_LIST = 64  # sets of axes that are compared


def declared_result(node: Node, convert: Convert) -> Results | None:
    """Return the result of a node in the shape that the model declares, which runs check; None where it does not."""
    late = LATE.get(node.operator)
    result = None if late is None else late(node, convert)
    check = _CHECKS.get(node.operator)
    if result is not None and check is not None:
        first = result[0] if isinstance(result, Sequence) else result
        check(node, shape_of(first))
    return result


def int64(node: Node, value: Any) -> Expr:
    """Return integers as a tensor."""
    return node.constant(value, "int64")


def total_of(node: Node, flags: Expr) -> Expr:
    """Return how many of some bools are true."""
    return node.call("sum", node.cast(flags, "int64"), axis=(0,), keepdims=False)


def _require(node: Node, flags: Expr) -> None:
    """Require bools to be true."""
    size = prod(shape_of(flags))
    flag = node.call("all", node.reshape(flags, (size,)), axis=(0,), keepdims=False)
    node.require(flag, f"whether '{node.name}' gives the shape that the model declares")


def _require_value(node: Node, index: int, value: Sequence[Any]) -> None:
    """Require an input to have a value; what is None in it does not matter."""
    given = node.cast(node.reshape(node.input(index), (prod(node.shape(index)),)), "int64")
    if shape_of(given) != (len(value),):
        node.wrong(f"{shape_of(given)[0]} numbers of input {index} are not the {len(value)} of a declared shape")
    places = [place for place, item in enumerate(value) if item is not None]
    if places:
        asked = node.call("take", given, int64(node, places), axis=0)
        _require(node, node.call("equal", asked, int64(node, [value[place] for place in places])))


def asked_shape(node: Node) -> Expr:
    """Return the shape that a Reshape asks for, in which 0 and -1 are replaced by what they stand for."""
    shape, rank = node.shape(0), prod(node.shape(1))
    wanted, minus = node.cast(node.input(1), "int64"), int64(node, -1)
    if not node.integer("allowzero", 0):
        # a 0 beyond the rank of the tensor copies nothing: -2 equals no size
        old = int64(node, [*shape[:rank], *[-2] * (rank - len(shape))])
        wanted = node.call("where", node.call("equal", wanted, int64(node, 0)), old, wanted)
    is_left = node.call("equal", wanted, minus)
    one_at_most = node.call("less_equal", total_of(node, is_left), int64(node, 1))
    node.require(one_at_most, f"whether '{node.name}' has one -1 at most")
    known = node.call("prod", node.call("where", is_left, int64(node, 1), wanted), axis=(0,), keepdims=False)
    rest = node.call("floor_divide", int64(node, prod(shape)), node.call("maximum", known, int64(node, 1)))
    return node.call("where", is_left, rest, wanted)


def range_count(node: Node, start: Expr, limit: Expr, delta: Expr) -> Expr:
    """Return how many numbers a range has."""
    distance = node.call("subtract", limit, start)
    if dtypes.is_integer(dtype_of(start)):
        # -(-distance // delta): the quotient rounded up
        distance, step = node.cast(distance, "int64"), node.cast(delta, "int64")
        count = node.call("negative", node.call("floor_divide", node.call("negative", distance), step))
    else:
        wide = [node.cast(item, "float64") for item in (distance, delta)]
        count = node.cast(node.call("ceil", node.call("divide", *wide)), "int64")
    return node.call("maximum", count, int64(node, 0))


def kept_steps(node: Node, extent: Extent, cut: tuple[Expr, Expr, Expr]) -> tuple[Expr, Expr, Expr]:
    """Return the first place of a slice (start, end, step) of one axis, its step, and how many elements it keeps."""
    start, end, step = cut
    zero, one, size = (int64(node, value) for value in (0, 1, extent))
    last = node.call("subtract", size, one)
    if isinstance(step, Constant) and int(step.data.reshape(())) > 0:
        begin, stop = (_clipped(node, wrapped(node, item, extent, low=False), zero, size) for item in (start, end))
    else:
        is_back = node.call("less", step, zero)
        low = node.call("where", is_back, int64(node, -1), zero)
        high = node.call("where", is_back, last, size)
        begin = _clipped(node, wrapped(node, start, extent), zero, high)
        stop = _clipped(node, wrapped(node, end, extent, low=False), low, high)
        for mark in ENDLESS:
            is_mark = node.call("logical_and", is_back, node.call("equal", end, int64(node, mark)))
            stop = node.call("where", is_mark, low, stop)
    distance = node.call("subtract", stop, begin)
    steps = node.call("negative", node.call("floor_divide", node.call("negative", distance), step))
    return begin, step, node.call("maximum", steps, zero)


def _clipped(node: Node, at: Expr, low: Expr, high: Expr) -> Expr:
    return node.call("minimum", node.call("maximum", at, low), high)


def _check_reshape(node: Node, stated: Sequence[Any]) -> None:
    """Refuse runs in which a shape is not what the model states."""
    if shape_of(node.input(1)) == (len(stated),) and stated:
        same = node.call("equal", asked_shape(node), int64(node, stated))
        same = node.call("all", same, axis=(0,), keepdims=False)
        node.require(same, f"whether '{node.name}' gives the shape that the model states")


def _check_axes(node: Node, stated: Sequence[Any]) -> None:
    """Refuse runs in which other axes are named than those that give the shape which the model states."""
    shape, is_less = node.shape(0), node.operator == "Squeeze"
    longer, shorter = (shape, stated) if is_less else (stated, shape)
    fitting = [
        axes
        for axes in combinations(range(len(longer)), len(longer) - len(shorter))
        if all(longer[axis] == 1 for axis in axes)
        and [extent for axis, extent in enumerate(longer) if axis not in axes] == [*shorter]
    ]
    if not 0 < len(fitting) <= _LARGEST_LIST:
        return
    named = node.call("any", named_axes(node, node.input(1), len(longer)), axis=(0,), keepdims=False)
    masks = node.constant([[axis in axes for axis in range(len(longer))] for axes in fitting], "bool")
    same = node.call("all", node.call("equal", masks, named), axis=(1,), keepdims=False)
    node.require(
        node.call("any", same, axis=(0,), keepdims=False),
        f"whether '{node.name}' gives the shape that the model states",
    )


def _check_expand(node: Node, declared: Sequence[Any]) -> None:
    """Require what is asked for, broadcast with the tensor, to be the declared shape."""
    rank = prod(node.shape(1))
    asked = node.cast(node.reshape(node.input(1), (rank,)), "int64")
    old = [1] * (len(declared) - len(node.shape(0))) + list(node.shape(0))
    same = node.call("equal", asked, int64(node, declared[len(declared) - rank :]))
    is_one = node.call("equal", asked, int64(node, 1))
    keeps = [now == before for now, before in zip(declared, old, strict=True)][len(declared) - rank :]
    if rank:
        _require(node, node.call("logical_or", same, node.call("logical_and", is_one, node.constant(keeps, "bool"))))


def _check_tile(node: Node, declared: Sequence[Any]) -> None:
    _require_value(node, 1, [new // old for new, old in zip(declared, node.shape(0), strict=True)])


def _check_split(node: Node, _declared: Sequence[Any]) -> None:
    axis = node.axis(node.integer("axis", 0), node.rank(0))
    _require_value(node, 1, [shape[axis] for shape in node.stated[: len(node.outputs)] if shape is not None])


def _check_top_k(node: Node, declared: Sequence[Any]) -> None:
    _require_value(node, 1, [declared[node.axis(node.integer("axis", -1), len(declared))]])


def _check_size(node: Node, declared: Sequence[Any]) -> None:
    axes = [node.axis(axis, len(declared)) for axis in node.integers("axes", range(len(declared)))]
    _require_value(node, 3 if node.operator == "Resize" else 1, [declared[axis] for axis in axes])


def _check_reduction(node: Node, declared: Sequence[Any]) -> None:
    """Require the axes to be a set that gives the declared shape."""
    rank, count, keep = node.rank(0), prod(node.shape(1)), bool(node.integer("keepdims", 1))
    if not count:
        return
    fitting = [
        np.isin(np.arange(rank), axes)
        for axes in combinations(range(rank), count)
        if [1 if axis in axes else extent for axis, extent in enumerate(node.shape(0)) if keep or axis not in axes]
        == [*declared]
    ]
    given = node.call("any", named_axes(node, node.input(1), rank), axis=(0,), keepdims=False)
    same = node.call("all", node.call("equal", given, node.constant(fitting, "bool")), axis=(1,), keepdims=False)
    _require(node, node.call("any", same, axis=(0,), keepdims=False))


def _check_axis(node: Node, _declared: Sequence[Any]) -> None:
    named = named_axes(node, node.input(1), node.rank(0))
    _require(node, node.call("any", named, axis=(0, 1), keepdims=False))


def _check_range(node: Node, declared: Sequence[Any]) -> None:
    start, limit, delta = (node.reshape(node.input(index), ()) for index in range(3))
    _require(node, node.call("equal", range_count(node, start, limit, delta), int64(node, declared[0])))


def _check_slice(node: Node, declared: Sequence[Any]) -> None:
    found = per_axis(node, node.optional(3), prod(node.shape(1)))
    for axis, extent in enumerate(node.shape(0)):
        start, end = (found(node.input(index), axis, default) for index, default in ((1, 0), (2, extent)))
        step = found(node.optional(4), axis, 1)
        if start is not None and end is not None and step is not None:
            _, _, steps = kept_steps(node, extent, (start, end, step))
            _require(node, node.call("equal", steps, int64(node, declared[axis])))


def _check_pad(node: Node, declared: Sequence[Any]) -> None:
    count = prod(node.shape(1)) // 2
    found = per_axis(node, node.optional(3), count)
    ends = [node.cut(node.input(1), 0, begin, begin + count) for begin in (0, count)]
    for axis, extent in enumerate(node.shape(0)):
        first, second = (found(end, axis, 0) for end in ends)
        if first is not None and second is not None:
            total = node.call("add", first, second)
            _require(node, node.call("equal", total, int64(node, declared[axis] - extent)))


_CHECKS: dict[str, Callable[[Node, Sequence[Any]], None]] = {
    "Reshape": _check_reshape, "Squeeze": _check_axes, "Unsqueeze": _check_axes,
    "ConstantOfShape": lambda node, declared: _require_value(node, 0, declared),
    "MaxUnpool": lambda node, declared: _require_value(node, 2, declared),
    "AffineGrid": lambda node, declared: _require_value(node, 1, [declared[0], None, *declared[1:-1]]),
    "Expand": _check_expand, "Tile": _check_tile, "Split": _check_split, "TopK": _check_top_k, "OneHot": _check_top_k,
    "CenterCropPad": _check_size, "Resize": _check_size, "Range": _check_range, "Slice": _check_slice,
    "Pad": _check_pad, "CumProd": _check_axis, "CumSum": _check_axis,
    **dict.fromkeys(
        ("BlackmanWindow", "HammingWindow", "HannWindow"),
        lambda node, declared: _require_value(node, 0, [prod(declared)]),
    ),
    **{
        f"Reduce{name}": _check_reduction
        for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}  # fmt: skip
