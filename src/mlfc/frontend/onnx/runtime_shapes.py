"""Operators whose output shape depends on an input that is not constant, where the model does not declare it.

The dimension sizes are then symbols that integers define at run time: the number of elements of a range, the end of a
slice, the elements of a shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import prod
from typing import Any, TypeAlias

from mlfc.errors import MlfcError
from mlfc.frontend.onnx.declared_shapes import declared_result, grown_by, padded, slices
from mlfc.frontend.onnx.index import count_of, first_true
from mlfc.frontend.onnx.node import Node, UnknownValueError, dtype_of, shape_of
from mlfc.frontend.onnx.runtime_values import Convert, Results, asked_shape, int64, named_axes, range_count
from mlfc.frontend.onnx.shape import extent_from_end, stretched
from mlfc.relay.ir import Expr
from mlfc.support import dtypes
from mlfc.support.dims import LARGEST, Dim, UndecidedError, bounds, maximum, minimum

Late: TypeAlias = "Callable[[Node, Convert], Results | None]"

_LATE: dict[str, Late] = {}
_LARGEST_LIST = 64  # elements of a list of dimension sizes
# the inputs of these are integers of any sign, or floats, not dimension sizes
_NO_EXTENTS = {"Slice", "Pad", "Range", "CumSum", "CumProd", "Col2Im", "SplitToSequence"}

_REDUCTIONS = {
    f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
}


def late_result(node: Node, convert: Convert, refusal: Exception) -> Results | None:
    """Return the result of a node whose importer requires a runtime value; None if that is not supported."""
    if isinstance(refusal, UnknownValueError):
        try:
            result = declared_result(node, convert)
        except (UnknownValueError, UndecidedError, MlfcError):
            result = None
        if result is not None:
            return result
    own = _LATE.get(node.operator)
    if own is not None:
        return own(node, convert)
    if isinstance(refusal, UnknownValueError) and node.operator not in _NO_EXTENTS | _REDUCTIONS:
        return _as_extents(node, convert, refusal.index)
    return None


def _late(*operators: str) -> Callable[[Late], Late]:
    def register(function: Late) -> Late:
        _LATE.update(dict.fromkeys(operators, function))
        return function

    return register


def _as_extents(node: Node, convert: Convert, index: int) -> Results | None:
    """Import a node with every element of an input as a dimension size that is defined at run time."""
    shape, asked = node.shape(index), node.input(index)
    if node.operator == "OneHot":
        asked = node.cast(asked, "int64")  # a depth may be a float
    if not dtypes.is_integer(dtype_of(asked)) or len(shape) > 1 or isinstance(prod(shape), Dim):
        return None
    if prod(shape) > _LARGEST_LIST:
        return None
    found = numbers(node, asked)
    try:
        return convert(node.with_value(index, found if shape else found[0]))
    except UnknownValueError as other:
        if other.index == index:
            return None
        return _as_extents(node.with_value(index, found if shape else found[0]), convert, other.index)


def numbers(node: Node, values: Expr, high: Sequence[Any] = ()) -> list[Any]:
    """Return the elements of a list of integers as dimension sizes."""
    count = prod(shape_of(values))
    flat = node.reshape(values, (count,))
    limits = high or [LARGEST] * count
    return [
        node.late(node.reshape(node.cut(flat, 0, at, at + 1), ()), 0, limit)
        for at, limit in zip(range(count), limits, strict=True)
    ]


def _require_different(node: Node, named: Expr, count: Any) -> None:
    is_whole = node.call("equal", count_of(node, named), int64(node, count))
    node.require(is_whole, f"whether '{node.name}' has {count} different axes")


@_late("Reshape")
def _reshape(node: Node, _convert: Convert) -> Results | None:
    given = shape_of(node.input(1))
    if len(given) != 1 or isinstance(given[0], Dim):
        return None
    return reshaped(node, asked_shape(node)) if given[0] else node.reshape(node.input(0), ())


def reshaped(node: Node, asked: Expr) -> Expr:
    """Return input 0 in a shape computed at run time; a run fails if the number of elements differs."""
    size, extents = prod(node.shape(0)), numbers(node, asked)
    total = node.call("prod", asked, axis=(0,), keepdims=False)
    node.require(node.call("equal", total, int64(node, size)), f"whether the shape of '{node.name}' fits its elements")
    if size == 0:
        return node.filled(extents, 0, node.dtype(0))
    # the new shape has all elements, which the run has checked
    flat = node.reshape(node.input(0), (size,))
    return node.reshape(node.call("take", flat, node.counted(prod(extents)), axis=0), extents)


@_late("Squeeze", "Unsqueeze")
def _squeeze(node: Node, _convert: Convert) -> Results | None:
    """Remove or insert dimensions of size 1 along axes that are runtime values."""
    shape, count = node.shape(0), prod(node.shape(1))
    is_less = node.operator == "Squeeze"
    rank = len(shape) if is_less else len(shape) + count
    if isinstance(count, Dim) or not 0 < count <= rank <= _LARGEST_LIST or not shape:
        return None
    named = node.call("any", named_axes(node, node.input(1), rank), axis=(0,), keepdims=False)
    _require_different(node, named, count)
    if not is_less:
        place = node.call("cumsum", node.cast(node.call("logical_not", named), "int64"), axis=0)
        place = node.call("maximum", node.call("subtract", place, int64(node, 1)), int64(node, 0))
        # places beyond the input are refused above
        place = node.call("minimum", place, int64(node, len(shape) - 1))
        kept = node.call("take", int64(node, shape), place, axis=0)
        return reshaped(node, node.call("where", named, int64(node, 1), kept))
    if count == rank:
        node.require(node.call("equal", int64(node, prod(shape)), int64(node, 1)), f"whether '{node.name}' drops 1")
        return node.call("take", node.reshape(node.input(0), (prod(shape),)), int64(node, 0), axis=0)
    places = first_true(node, node.call("logical_not", named), rank - count)
    return reshaped(node, node.call("take", int64(node, shape), places, axis=0))


@_late(*sorted(_REDUCTIONS))
def _reduce(node: Node, convert: Convert) -> Results | None:
    """Gather the elements of each reduction in one row of a matrix, and reduce its columns."""
    old, rank, count = node.shape(0), node.rank(0), prod(node.shape(1))
    keep = node.flag("keepdims", 1)
    if not 0 < rank <= _LARGEST_LIST or len(node.shape(1)) != 1 or (isinstance(count, Dim) and not keep):
        return None
    named = node.call("any", named_axes(node, node.input(1), rank), axis=(0,), keepdims=False)
    _require_different(node, named, count)
    if not node.flag("noop_with_empty_axes"):
        named = node.call("logical_or", named, node.call("equal", int64(node, count), int64(node, 0)))
    sizes, one = int64(node, old), int64(node, 1)
    kept, gone = node.call("where", named, one, sizes), node.call("where", named, sizes, one)
    shape = numbers(node, kept, [maximum(size, 1) for size in old])  # a reduced axis has 1 also if it had 0
    columns = node.late(node.call("prod", gone, axis=(0,), keepdims=False))
    rows = prod(shape)
    positions = node.call(
        "add",
        node.reshape(_positions(node, rows, kept), (rows, 1)),
        node.reshape(_positions(node, columns, gone), (1, columns)),
    )
    if prod(old) == 0:
        table = node.filled((rows, columns), 0, node.dtype(0))
    else:
        table = node.call("take", node.reshape(node.input(0), (prod(old),)), positions, axis=0)
    attributes = {**node.attributes, "keepdims": 0}
    result = convert(replace(node.with_value(1, [1]), inputs=[table, int64(node, [1])], attributes=attributes))
    assert not isinstance(result, Sequence)  # a reduction has one result
    result = node.reshape(result, shape)
    return result if keep else _squeeze(replace(node, operator="Squeeze", inputs=[result, node.input(1)]), convert)


def _positions(node: Node, count: Any, shape: Expr) -> Expr:
    """Return the offsets in input 0 of the first `count` elements of a shape that is 1 along some of its axes."""
    at: Expr = node.counted(count)
    found = int64(node, 0)
    for axis in reversed(range(node.rank(0))):
        size = node.call("maximum", node.reshape(node.cut(shape, 0, axis, axis + 1), ()), int64(node, 1))
        step = node.call("multiply", node.call("floor_mod", at, size), int64(node, prod(node.shape(0)[axis + 1 :])))
        at, found = node.call("floor_divide", at, size), node.call("add", found, step)
    return found


@_late("TopK")
def _top_k(node: Node, convert: Convert) -> Results | None:
    extent = node.shape(0)[node.axis(node.integer("axis", -1), node.rank(0))]
    if node.opset < 10:  # since then, k is an input
        node = replace(node, inputs=[node.input(0), node.constant([node.integer("k")], "int64")], opset=10)
    wanted = node.reshape(node.input(1), ())
    count = node.late(wanted, 0, extent)
    if isinstance(extent, Dim):
        few = node.call("less_equal", node.cast(wanted, "int64"), int64(node, extent))
        node.require(few, f"whether '{node.name}' takes elements that there are")
        count = minimum(count, extent)
    return convert(node.with_value(1, [count]))


@_late("Expand")
def _expand(node: Node, convert: Convert) -> Results | None:
    """Use the requested size where the tensor's dimension is 1, and the tensor's size elsewhere."""
    rank = prod(node.shape(1))
    if isinstance(rank, Dim):
        return None
    x, kept, values = node.input(0), [], node.cast(node.reshape(node.input(1), (rank,)), "int64")
    for place in range(rank):
        old, asked = extent_from_end(x, place - rank), node.reshape(node.cut(values, 0, place, place + 1), ())
        if old == 1:
            kept.append(node.late(asked))
            continue
        size, one = int64(node, old), int64(node, 1)
        fits = [node.call("equal", asked, one), node.call("equal", asked, size), node.call("equal", size, one)]
        node.require(reduce(partial(node.call, "logical_or"), fits), f"whether the operands of '{node.name}' broadcast")
        is_dynamic = isinstance(old, Dim) and bounds(old)[0] < 2
        kept.append(node.late(node.call("where", fits[2], asked, size)) if is_dynamic else old)
        x = stretched(node, x, place - rank, kept[-1])
    return convert(replace(node.with_value(1, kept), inputs=[x, int64(node, kept)]))


@_late("Range")
def _range(node: Node, _convert: Convert) -> Results | None:
    start, limit, delta = (node.reshape(node.input(index), ()) for index in range(3))
    extent = node.late(range_count(node, start, limit, delta))
    return node.call("add", start, node.call("multiply", node.counted(extent, dtype_of(start)), delta))


@_late("Slice")
def _slice(node: Node, _convert: Convert) -> Results | None:
    if node.opset < 10:
        return None
    axes = node.optional(3)
    count = prod(node.shape(1) if axes is None else shape_of(axes))
    for index in filter(node.has, (1, 2, 4)):
        node.has_shape(node.shape(index), (count,))
    if isinstance(count, Dim):
        named = named_axes(node, node.counted(count) if axes is None else axes, node.rank(0))
        _require_different(node, node.call("any", named, axis=(0,), keepdims=False), count)
    x = node.input(0)
    for axis, (begin, step, steps) in (slices(node) or {}).items():
        count = node.late(steps, 0, node.shape(0)[axis])
        # within the axis where there is a result
        places = node.call("add", begin, node.call("multiply", node.counted(count), step))
        x = node.call("take", x, places, axis=axis)
    return x


@_late("Pad")
def _pad(node: Node, _convert: Convert) -> Results | None:
    """Compute the size of each axis, and gather the elements by position."""
    if node.opset < 11:
        return None
    old, mode = node.shape(0), node.string("mode", "constant")
    count = prod(node.shape(1))
    if isinstance(count, Dim) or mode not in ("constant", "edge", "reflect", "wrap"):
        return None
    known = _known_pads(node, count // 2)
    if known is not None:
        changed = {axis: pads for axis, pads in known.items() if pads != (0, 0)}
        pads = [pair[end] for end in (0, 1) for pair in changed.values()]
        inputs = [*node.inputs, *[None] * (4 - len(node.inputs))]
        inputs[1], inputs[3] = int64(node, pads), int64(node, list(changed))
        shape = tuple(
            maximum(extent + sum(changed.get(axis, (0, 0))), 0) if axis in changed else extent
            for axis, extent in enumerate(old)
        )
        return padded(replace(node, inputs=inputs), shape)
    grown = list(old)
    for axis, total in grown_by(node).items():
        size = node.call("add", total, int64(node, old[axis]))
        grown[axis] = node.late(node.call("maximum", size, int64(node, 0)))
    return padded(node, tuple(grown))


def _known_pads(node: Node, count: int) -> dict[int, tuple[Any, Any]] | None:
    """Return the pads before and behind each padded axis; None if they are runtime values."""
    assert node.dynamic is not None
    pads = node.dynamic.known(node.input(1))
    axes = None if node.optional(3) is None else node.known(3)
    if pads is None or (node.has(3) and axes is None):
        return None
    named = range(count) if axes is None else [node.axis(int(axis), node.rank(0)) for axis in axes.reshape(-1)]
    flat = pads.reshape(-1)
    return {axis: (flat[place], flat[count + place]) for place, axis in enumerate(named)}
