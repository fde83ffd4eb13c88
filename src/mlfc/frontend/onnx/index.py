"""Slicing, gathering and scattering of elements by index, and the indices of distinct or nonzero elements.

The number of results of Unique and NonZero depends on the data, unless the model declares it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError
from mlfc.frontend.onnx.node import Node, dtype_of, int64, is_float, shape_of
from mlfc.frontend.onnx.run_tables import (
    clipped,
    count_of,
    different_axes,
    first_true,
    per_axis,
    rounded_up,
    within,
    wrapped,
)
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Constant, Expr
from mlfc.support.dims import LARGEST, Dim, Extent, UndecidedError, bounds, is_static, maximum, minimum

_LISTS = "starts", "ends", "axes", "steps"


@importer("Slice")
@importer("Slice", since=10)
def _slice(node: Node) -> Expr:
    if node.opset < 10:
        lists = [node.integers("starts"), node.integers("ends")]
        lists.append(node.integers("axes", range(len(lists[0]))))
        node = replace(node, inputs=[node.input(0), *(int64(node, values) for values in lists)])
    known = {
        index: node.known_integers(index, what) for index, what in enumerate(_LISTS, 1) if index < 3 or node.has(index)
    }
    starts, ends = known[1] or (), known[2] or ()
    if None not in known.values():
        axes, steps = known.get(3), known.get(4)
        axes = tuple(range(len(starts))) if axes is None else axes
        try:
            return _sliced(node, starts, ends, axes, (1,) * len(starts) if steps is None else steps)
        except (UndecidedError, TypeCheckError) as error:
            node.undecided(error)
    return _sliced_at_run(node, next((index for index, values in known.items() if values is None), 1))


def _sliced_at_run(node: Node, index: int) -> Expr:
    """Gather the elements of each axis by computed indices; input `index` is a runtime value."""
    x, old, axes = node.input(0), node.shape(0), node.optional(3)
    count = prod(node.shape(1) if axes is None else shape_of(axes))
    for each in filter(node.has, (1, 2, 4)):
        node.has_shape(node.shape(each), (count,))
    if isinstance(count, Dim):
        different_axes(node, node.counted(count) if axes is None else axes, len(old))
    number = per_axis(node, axes, count)
    lists, cuts = (node.input(1), node.input(2), node.optional(4)), {}
    for axis, extent in enumerate(old):
        cut = [number(values, axis, default) for values, default in zip(lists, (0, extent, 1), strict=True)]
        given = [item for item in cut if item is not None]
        if len(given) == len(cut):
            cuts[axis] = _computed_cut(node, extent, *given)
    declared: Sequence[int | None] = node.declared_along([*cuts]) or [None] * len(cuts)
    for size, (axis, (begin, step, steps)) in zip(declared, cuts.items(), strict=True):
        found = node.size(index, _LISTS[index - 1], steps, size, 0, old[axis])
        if old[axis] == 0:
            continue
        at = node.call("add", begin, node.call("multiply", node.counted(found), step))
        # positions are within the axis unless the declared size is wrong
        x = node.call("take", x, at if size is None else within(node, at, int64(node, old[axis])), axis=axis)
    return x


def _computed_cut(node: Node, extent: Extent, start: Expr, end: Expr, step: Expr) -> tuple[Expr, Expr, Expr]:
    """Return the first position of a slice of one axis, its step and its number of elements, as ONNX clamps them."""
    size = int64(node, extent)
    if isinstance(step, Constant) and int(step.data.reshape(())) > 0:
        begin, stop = (clipped(node, wrapped(node, item, extent, low=False), 0, size) for item in (start, end))
    else:
        is_back = node.call("less", step, 0)
        low = node.call("where", is_back, -1, int64(node, 0))
        high = node.call("where", is_back, node.call("subtract", size, 1), size)
        begin = clipped(node, wrapped(node, start, extent), 0, high)
        stop = clipped(node, wrapped(node, end, extent, low=False), low, high)
        for mark in _ENDLESS:
            is_mark = node.call("logical_and", is_back, node.call("equal", end, mark))
            stop = node.call("where", is_mark, low, stop)
    return begin, step, node.call("maximum", rounded_up(node, node.call("subtract", stop, begin), step), 0)


def _sliced(
    node: Node, starts: tuple[Any, ...], ends: tuple[Any, ...], axes: tuple[int, ...], steps: tuple[int, ...]
) -> Expr:
    x, shape = node.input(0), node.shape(0)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        node.wrong(f"starts {starts}, ends {ends}, axes {axes} and steps {steps} do not fit together")
    begin: list[Extent] = [0] * len(shape)
    end, strides = list(shape), [1] * len(shape)
    numbered = [node.axis(axis, len(shape)) for axis in axes]
    if len(set(numbered)) != len(axes):
        node.wrong(f"axes {axes} name a dimension twice")
    for start, stop, axis, step in zip(starts, ends, numbered, steps, strict=True):
        if is_static((start, stop, step, shape[axis])):
            positions = range(*_limited(shape[axis], start, stop, step), step)[:: 1 if step > 0 else -1]
            begin[axis], end[axis] = (positions[0], positions[-1] + 1) if positions else (0, 0)
            strides[axis] = positions.step if len(positions) > 1 else 1
        else:
            begin[axis], end[axis], strides[axis] = _open_range(shape[axis], start, stop, step)
    if (begin, end, strides) != ([0] * len(shape), list(shape), [1] * len(shape)):
        pairs = zip(end, shape, strict=True)
        end = [LARGEST if isinstance(stop, Dim) and stop == extent else stop for stop, extent in pairs]
        x = node.call("strided_slice", x, begin=tuple(begin), end=tuple(end), strides=tuple(strides), axes=None)
    for axis, step in zip(numbered, steps, strict=True):
        x = node.call("reverse", x, axis=axis) if step < 0 else x
    return x


_FEW_INDICES = 64  # maximum number of constant indices that are computed as dimension sizes


def _open_range(extent: Extent, start: Extent, stop: Extent, step: int) -> tuple[Extent, Extent, int]:
    """Return (begin, end, stride) of a slice in ascending order; UndecidedError if a sign is only known at run time."""
    begin, end = _limited(extent, start, stop, step)
    if abs(step) >= min(bounds(extent)[1], LARGEST):  # one element at most
        return begin, begin + minimum(maximum(end - begin if step > 0 else begin - end, 0), 1), 1
    if step > 0:
        return begin, maximum(end, begin), step
    count = maximum((begin - end - 1) // -step + 1, 0)
    # the last element of a backward slice is the first one in axis order
    lowest = begin + (count - 1) * step
    return maximum(minimum(lowest, begin + 1), 0), begin + 1, -step


# slice ends that ONNX Runtime treats as the end of the axis, or as its start if the step is negative
_ENDLESS = (LARGEST, (1 << 63) - 1)


def _limited(extent: Extent, start: Extent, stop: Extent, step: int) -> tuple[Any, Any]:
    """Return the start and end of a slice, counted from the front and clamped to the axis as ONNX defines it."""

    def from_front(at: Extent) -> Any:
        # every dimension is smaller, even if its bounds do not show it: 12 * n
        if not isinstance(at, Dim) and abs(at) >= LARGEST:
            return extent if at > 0 else -1
        return at + extent if at < 0 else at

    first, last = (0, extent) if step > 0 else (-1, extent - 1)
    begin, end = from_front(start), -1 if step < 0 and stop in _ENDLESS else from_front(stop)
    return minimum(maximum(begin, 0), last), minimum(maximum(end, first), last)


def wrapped_indices(node: Node, indices: Expr, extent: Extent) -> Expr:
    """Return nonnegative indices; in ONNX negative ones count from the end."""
    if isinstance(indices, Constant) and isinstance(extent, Dim):
        places = [int(at) + extent if at < 0 else int(at) for at in indices.data.reshape(-1)]
        if len(places) <= _FEW_INDICES:
            return node.reshape(node.constant(places, dtype_of(indices)), indices.data.shape)
    elif isinstance(indices, Constant):
        values = indices.data
        if values.size and (values.min() < -extent or values.max() >= extent):
            node.wrong(f"indices must be in [{-extent}, {extent - 1}]")
        return node.constant(np.where(values < 0, values + extent, values), dtype_of(indices))
    return wrapped(node, indices, extent, low=False)


@importer("Gather")
def _gather(node: Node) -> Expr:
    axis = node.axis(node.integer("axis", 0), node.rank(0))
    indices = wrapped_indices(node, node.input(1), node.shape(0)[axis])
    return node.call("take", node.input(0), indices, axis=axis)


@importer("GatherElements")
def _gather_elements(node: Node) -> Expr:
    axis = node.axis(node.integer("axis", 0), node.rank(0))
    return node.call("gather", node.input(0), node.input(1), axis=axis)


def _tuples_first(node: Node, indices: Expr) -> Expr:
    """Return indices with the axis of index tuples moved from the end to the front, as in Relay."""
    rank = len(shape_of(indices))
    if rank == 0:
        node.wrong("the indices must have at least one dimension")
    return node.transpose(indices, (rank - 1, *range(rank - 1)))


@importer("GatherND")
def _gather_nd(node: Node) -> Expr:
    batch = node.integer("batch_dims", 0)
    return node.call("gather_nd", node.input(0), _tuples_first(node, node.input(1)), batch_dims=batch)


_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@importer("ScatterND", since=11)
@importer("ScatterElements", "Scatter")
def _scatter(node: Node) -> Expr:
    x, indices, updates = (node.input(index) for index in range(3))
    reduction = node.string("reduction", "none")
    if reduction not in _REDUCTIONS:
        node.wrong(f"reduction '{reduction}' is not known")
    if node.operator == "ScatterND":
        return node.call("scatter_nd", x, _tuples_first(node, indices), updates, mode=_REDUCTIONS[reduction])
    axis = node.axis(node.integer("axis", 0), node.rank(0))
    return node.call("scatter_elements", x, indices, updates, axis=axis, reduction=_REDUCTIONS[reduction])


@importer("OneHot")
def _one_hot(node: Node) -> Expr:
    rank, declared = node.rank(0) + 1, node.declared_shape
    axis = node.axis(node.integer("axis", -1), rank)
    depth = node.extent(1, "depth", declared[axis] if declared is not None and len(declared) == rank else None)
    if not isinstance(depth, Dim) and not 0 < depth < 1 << 31:
        node.wrong(f"depth {depth} must be positive")
    if not node.has_shape(node.shape(2), (2,)):
        node.wrong(f"values must be the two numbers off and on, not a tensor of shape {node.shape(2)}")
    indices = wrapped(node, node.cast(node.input(0), "int64"), depth, low=False)
    off, on = (node.reshape(node.cut(node.input(2), 0, index, index + 1), ()) for index in (0, 1))
    return node.call("one_hot", indices, on, off, depth=depth, axis=axis, dtype=node.dtype(2))


@importer("ReverseSequence")
def _reverse_sequence(node: Node) -> Expr:
    time, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    return node.call("reverse_sequence", node.input(0), node.input(1), seq_axis=time, batch_axis=batch)


@importer("Compress", since=9)
def _compress(node: Node) -> Expr:
    """Keep the slices whose condition is true, in order."""
    x, (length,) = node.input(0), node.shape(1)
    if node.given("axis"):
        axis = node.axis(node.integer("axis"), node.rank(0))
    else:
        axis, x = 0, node.reshape(x, (prod(node.shape(0)),))
    extent = shape_of(x)[axis]
    if bounds(length - extent)[0] > 0:
        node.wrong(f"{length} conditions do not fit {extent} slices")
    condition = node.input(1)
    if bounds(length - extent)[1] > 0:  # ONNX Runtime ignores conditions beyond the last slice
        length = minimum(length, extent)
        condition = node.cut(condition, 0, 0, length)
    wanted = node.declared[0] if node.declared else None
    if node.known(1) is not None or (wanted is None and node.dynamic is None):
        places = np.flatnonzero(node.value(1, "condition"))
        return node.call("take", x, node.constant(places, "int32"), axis=axis)
    others = shape_of(x)[:axis], shape_of(x)[axis + 1 :]
    if wanted is not None and (
        len(wanted) != len(shape_of(x)) or (wanted[:axis], wanted[axis + 1 :]) != others or wanted[axis] > length
    ):
        node.wrong(f"{length} conditions on a tensor of shape {shape_of(x)} cannot give one of shape {wanted}")
    declared = None if wanted is None else wanted[axis]
    count = node.size(1, "condition", count_of(node, condition), declared, 0, length)
    return node.call("take", x, first_true(node, condition, count), axis=axis)


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
