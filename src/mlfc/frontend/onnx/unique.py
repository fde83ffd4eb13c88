"""Unique and NonZero, whose number of results depends on the data, unless the model declares it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.node import Node, int64, is_float, shape_of
from mlfc.frontend.onnx.run_tables import count_of, first_true
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr
from mlfc.support.dims import Extent, bounds


@importer("NonZero")
def _non_zero(node: Node) -> Expr:
    shape, known = node.shape(0), node.known(0)
    wanted = node.declared[0] if node.declared else None
    if known is not None or (wanted is None and node.dynamic is None):
        return node.constant(np.stack(np.nonzero(node.value(0, "X"))), "int64")
    if wanted is not None and (len(wanted) != 2 or wanted[0] != len(shape) or bounds(wanted[1] - prod(shape))[0] > 0):
        node.wrong(f"a tensor of shape {shape} cannot give places of shape {wanted}")
    x = node.cast(node.input(0), "int8") if node.dtype(0) == "bool" else node.input(0)
    flags = node.reshape(node.call("not_equal", x, 0), (prod(shape),))
    count = node.size(0, "X", count_of(node, flags), None if wanted is None else wanted[1], 0, prod(shape))
    if not shape:
        return node.call("zeros", shape=(0, count), dtype="int64")
    places = node.cast(first_true(node, flags, count), "int64")
    rows, step = [], prod(shape)
    for extent in shape:
        step //= extent
        row = node.call("floor_mod", node.call("floor_divide", places, step), extent)
        rows.append(node.reshape(row, (1, count)))
    return node.concatenate(rows, 0)


@importer("Unique", since=11)
def _unique(node: Node) -> list[Expr]:
    """Return the unique elements, their first indices, the inverse indices, and the counts."""
    shape = node.shape(0)
    axis = node.axis(node.integer("axis"), len(shape)) if node.given("axis") else None
    is_sorted = node.flag("sorted", 1)
    # the declared number of unique elements; 0 if no result depends on it
    count: int | None = 0
    if _needs_count(node):
        places = ((index, (axis or 0) if index == 0 else 0) for index in (0, 1, 3) if index < len(node.declared))
        shapes = ((node.declared[index], at) for index, at in places)
        count = next((given[at] for given, at in shapes if given is not None and at < len(given)), None)
    is_flat = axis is None or len(shape) == 1
    if node.known(0) is not None or (node.dynamic is None and (not is_flat or count is None)):
        results: list[npt.NDArray[Any]] = [*np.unique(node.value(0, "X"), True, True, True, axis=axis)]
        results[2] = results[2].reshape(-1)
        if not is_sorted:
            order = np.argsort(results[1], kind="stable")
            elements = np.take(results[0], order, axis or 0)
            results = [elements, results[1][order], np.argsort(order)[results[2]], results[3][order]]
        return [node.constant(results[0], node.dtype(0)), *(int64(node, part) for part in results[1:])]
    if not is_flat:
        return _of_slices(node, axis or 0, is_sorted=is_sorted)
    if count is not None and bounds(count - prod(shape))[0] > 0:
        node.wrong(f"{count} different elements are more than a tensor of shape {shape} has")
    return _of_elements(node, count, is_sorted=is_sorted)


def _needs_count(node: Node) -> bool:
    return any(map(node.wants, (0, 1, 3))) or not node.flag("sorted", 1)


def _of_elements(node: Node, declared: int | None, *, is_sorted: bool) -> list[Expr]:
    """Sort the elements; each one that differs from its predecessor is new. NaN differs from everything."""
    size = prod(node.shape(0))
    x = node.reshape(node.input(0), (size,))
    x = node.cast(x, "int8") if node.dtype(0) == "bool" else x
    ascending = {"k": size, "axis": 0, "is_ascend": True}
    places = node.call("topk", x, ret_type="indices", dtype="int64", **ascending)
    elements = node.call("take", x, places, axis=0)
    numbers: Expr = node.counted(size)
    before = node.call("take", elements, node.call("maximum", node.call("subtract", numbers, 1), 0), axis=0)
    is_new = node.call("logical_or", node.call("equal", numbers, 0), node.call("not_equal", elements, before))
    group = node.call("subtract", node.call("cumsum", node.cast(is_new, "int64"), axis=0), 1)
    inverse = node.call("scatter_elements", _filled(node, "zeros", size), places, group, axis=0, reduction="update")
    count: Extent = 0
    if _needs_count(node):
        count = node.size(0, "X", count_of(node, is_new), declared, min(1, bounds(size)[0]), size)
    begins = first_true(node, is_new, count)
    first = node.call("take", places, begins, axis=0)
    found = node.call("take", elements, begins, axis=0)
    # groups beyond the declared number are counted in an extra element, which is dropped
    kept = node.call("minimum", group, count)
    room, ones = _filled(node, "zeros", count + 1), _filled(node, "ones", size)
    counts = node.cut(node.call("scatter_elements", room, kept, ones, axis=0, reduction="add"), 0, 0, count)
    if not is_sorted and count != 0:
        order = node.call("topk", first, k=count, axis=0, ret_type="indices", is_ascend=True, dtype="int64")
        first, found, counts = (node.call("take", part, order, axis=0) for part in (first, found, counts))
        room = _filled(node, "zeros", count)
        number = node.call("scatter_elements", room, order, node.counted(count), axis=0, reduction="update")
        inverse = node.call("take", number, node.call("minimum", inverse, count - 1), axis=0)
    assert shape_of(found) == (count,)
    return [node.cast(found, node.dtype(0)), first, inverse, counts]


def _of_slices(node: Node, axis: int, *, is_sorted: bool) -> list[Expr]:
    """Compare all pairs of slices: a slice without an equal predecessor is new; new slices are ranked."""
    x, rank = node.input(0), node.rank(0)
    order = (axis, *(other for other in range(rank) if other != axis))
    shape = tuple(node.shape(0)[other] for other in order)
    size, width = shape[0], prod(shape[1:])
    turned = node.transpose(x, order)
    rows = node.reshape(node.cast(turned, "int8") if node.dtype(0) == "bool" else turned, (size, width))
    one, other = node.reshape(rows, (size, 1, width)), node.reshape(rows, (1, size, width))
    differs = node.call("not_equal", one, other)
    numbers = node.counted(size)
    before = node.call("less", node.reshape(numbers, (1, size)), node.reshape(numbers, (size, 1)))
    less = node.call("less", one, other)
    if is_float(rows):  # NaN is greater than all numbers; NaNs are ordered by index
        is_first = node.reshape(node.transpose(before, (1, 0)), (size, size, 1))
        is_less = node.call("logical_or", node.call("equal", one, one), is_first)
        less = node.call("logical_or", less, node.call("logical_and", node.call("isnan", other), is_less))
    first_unlike = node.call("argmax", node.cast(differs, "int8"), axis=(2,), keepdims=True, select_last_index=False)
    less = node.reshape(node.call("gather", less, node.cast(first_unlike, "int64"), axis=2), (size, size))
    equal = node.call("logical_not", node.call("any", differs, axis=(2,), keepdims=False))
    repeats = node.call("any", node.call("logical_and", equal, before), axis=(1,), keepdims=False)
    is_new = node.call("logical_not", repeats)
    below = node.call("logical_and", less, node.reshape(is_new, (size, 1)))
    group = node.call("sum", node.cast(below, "int64"), axis=(0,), keepdims=False)
    count = node.runtime_size(count_of(node, is_new), min(1, bounds(size)[0]), size)
    if not is_sorted:
        # groups are numbered in the order of their first slices
        start = node.call("subtract", node.call("cumsum", node.cast(is_new, "int64"), axis=0), 1)
        places = node.call("take", _first_of_each(node, group, count, size), group, axis=0)
        group = node.call("take", start, places, axis=0)
    first = _first_of_each(node, group, count, size)
    room, ones = _filled(node, "zeros", count), _filled(node, "ones", size)
    counts = node.call("scatter_elements", room, group, ones, axis=0, reduction="add")
    return [node.call("take", x, first, axis=axis), first, group, counts]


def _first_of_each(node: Node, group: Expr, count: Extent, size: Extent) -> Expr:
    """Return the first index of each of `count` group numbers in a list."""
    room = node.call("full", node.constant(size, "int64"), shape=(count,), dtype="int64")
    first = node.call("scatter_elements", room, group, node.counted(size), axis=0, reduction="min")
    # a group of NaN may have no member, as NaN compares unequal to itself
    return node.call("minimum", first, size - 1)


def _filled(node: Node, operator: str, size: Extent) -> Expr:
    return node.call(operator, shape=(size,), dtype="int64")
