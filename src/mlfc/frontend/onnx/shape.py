"""Shape and arrangement, which move elements and compute nothing, and constants that follow from shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.node import Node, int64, shape_of
from mlfc.frontend.onnx.positions import (
    count_of,
    different_axes,
    has_known_axes,
    rounded_up,
    sizes_without,
    with_length,
)
from mlfc.frontend.onnx.run_tables import as_expr, counted
from mlfc.frontend.onnx.table import importer
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.frontend.symbolic import Quotient
from mlfc.ops.rules import same_extent
from mlfc.relay.ir import Constant, Expr
from mlfc.support import cost, dtypes
from mlfc.support.dims import Dim, Extent, UndecidedError, bounds, is_static, maximum, minimum, symbols_of


@importer("Reshape")
def _reshape(node: Node) -> Expr:
    given = node.known_integers(1, "shape")
    if given is None:
        return reshaped(node, _requested_sizes(node), 1, "shape")
    wanted = _wanted_shape(node, given)
    # a product of dimensions may be a multiple of what no single one of them has to be
    is_product = -1 in given and len(symbols_of(node.shape(0))) > 1
    return _regrouped(node, wanted) if is_product else node.reshape(node.input(0), wanted)


def reshaped(node: Node, sizes: Expr, index: int, what: str) -> Expr:
    """Return input 0 in a shape that is computed from input `index` at run time."""
    declared = node.declared_shape
    is_as_large = declared is not None and prod(declared) == prod(node.shape(0))
    return _regrouped(node, node.sizes(index, what, declared if is_as_large else None, values=sizes))


def reshaped_at_run(node: Node) -> Node:
    """Return a Reshape with as many elements as its shape has; runs check that these are all elements."""
    wanted = _wanted_shape(node, node.int_values(1, "shape"))
    return replace(node, inputs=[_all_elements(node, wanted), int64(node, wanted)])


def _regrouped(node: Node, shape: Sequence[Extent]) -> Expr:
    is_whole = prod(shape) == prod(node.shape(0))
    return node.reshape(node.input(0) if is_whole else _all_elements(node, shape), shape)


def _all_elements(node: Node, wanted: Sequence[Extent]) -> Expr:
    """Return the elements of input 0 in a list as long as a shape requires; runs check that its size is the same."""
    size, total = prod(node.shape(0)), prod(wanted)
    fits = node.call("equal", int64(node, size), int64(node, total))
    node.require(fits, f"whether the shape of '{node.name}' fits its elements")
    if size == 0:
        return node.filled((total,), 0, node.dtype(0))
    return node.call("take", node.reshape(node.input(0), (size,)), node.counted(total), axis=0)


def _wanted_shape(node: Node, given: Sequence[Extent]) -> list[Extent]:
    """Return the shape that a Reshape asks for, with numbers in place of 0 and -1."""
    keep_zeros = bool(node.integer("allowzero", 0))
    shape = node.shape(0)
    wanted = list(given)
    for index, extent in enumerate(wanted):
        if extent == 0 and not keep_zeros:
            if index >= len(shape):
                node.wrong(f"the 0 at position {index} of {tuple(wanted)} copies a dimension that {shape} has not")
            wanted[index] = shape[index]
    # an extent that the run decides is none of -1 and 0, which stand for others
    if wanted.count(-1) > 1 or any(bounds(extent)[1] < (0 if extent != -1 else -1) for extent in wanted):
        node.wrong(f"{tuple(wanted)} is not a shape")
    known = prod(extent for extent in wanted if extent != -1)
    if -1 in wanted and known != 0:
        wanted[wanted.index(-1)] = prod(shape) // known
    if -1 in wanted or bounds(prod(wanted) - prod(shape))[0] > 0 or bounds(prod(wanted) - prod(shape))[1] < 0:
        node.wrong(f"a tensor of shape {shape} cannot become {tuple(wanted)}")
    return wanted


def _requested_sizes(node: Node) -> Expr:
    """Return the shape that a Reshape requests at run time, with 0 and -1 replaced by the sizes they stand for."""
    shape, declared, minus = node.shape(0), node.declared_shape, int64(node, -1)
    wanted = node.cast(with_length(node, 1, "shape", None if declared is None else len(declared)), "int64")
    (rank,) = shape_of(wanted)
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


@importer("Flatten")
def _flatten(node: Node) -> Expr:
    shape = node.shape(0)
    axis = node.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        node.wrong(f"axis {axis} is outside a tensor of {len(shape)} dimensions")
    axis = axis + len(shape) if axis < 0 else axis
    return node.reshape(node.input(0), (prod(shape[:axis]), prod(shape[axis:])))


@importer("Transpose")
def _transpose(node: Node) -> Expr:
    rank = node.rank(0)
    order = node.integers("perm", tuple(range(rank))[::-1])
    if sorted(order) != list(range(rank)):
        node.wrong(f"perm {order} is not an order of {rank} dimensions")
    return node.transpose(node.input(0), order)


def axes_of(node: Node, index: int = 1) -> tuple[int, ...] | None:
    """Return the axes given by the attribute, or by input `index` in newer opsets; None if neither is."""
    if node.given("axes"):
        return node.integers("axes")
    return node.int_values(index, "axes") if node.has(index) else None


@importer("Squeeze")
def _squeeze(node: Node) -> Expr:
    shape = node.shape(0)
    if not has_known_axes(node):
        return reshaped(node, _sizes_without_axes(node), 1, "axes")
    given = axes_of(node) or None  # an empty list names all dimensions of 1, as in ONNX Runtime
    axes = (
        tuple(index for index, extent in enumerate(shape) if extent == 1)
        if given is None
        else tuple(sorted({node.axis(axis, len(shape)) for axis in given}))
    )
    if given is None:
        maybe = [axis for axis, extent in enumerate(shape) if isinstance(extent, Dim) and _may_be_one(extent)]
        axes = tuple(sorted((*axes, *_dropped(node, maybe))))
    still_open = [axis for axis in axes if isinstance(shape[axis], Dim) and bounds(shape[axis])[0] <= 1]
    if still_open:
        return _squeezed(node, axes, still_open)
    if any(shape[axis] != 1 for axis in axes):
        node.wrong(f"dimensions {axes} of a tensor of shape {shape} are not all 1")
    return node.call("squeeze", node.input(0), axis=axes) if axes else node.input(0)


def _may_be_one(extent: Extent) -> bool:
    low, high = bounds(extent)
    return low <= 1 <= high


def _dropped(node: Node, maybe: Sequence[int]) -> Sequence[int]:
    """Return which dimensions a Squeeze without axes drops, of those that the run may find to be 1: none, or all."""
    if not maybe or node.dynamic is None:
        return ()
    if not node.dynamic.choose(node.name):
        return maybe
    for axis in maybe:
        is_more = node.call("not_equal", node.constant(node.shape(0)[axis], "int64"), node.constant(1, "int64"))
        node.require(is_more, f"whether '{node.name}' keeps dimension {axis}, which is not 1")
    return ()


def _squeezed(node: Node, axes: Sequence[int], still_open: Sequence[int]) -> Expr:
    """Drop axes that have to be 1 in the run: one of an input is, from now on; others the run checks."""
    assert node.dynamic is not None
    result, shape = node.input(0), node.shape(0)
    for axis in still_open if len(node.dynamic.frames) == 1 else ():
        if shape[axis].symbol is not None:
            same_extent("Squeeze", shape[axis], 1)
    for axis in reversed(axes):
        if axis in still_open:
            is_one = node.call("equal", node.constant(shape[axis], "int64"), node.constant(1, "int64"))
            node.require(is_one, f"whether '{node.name}' drops a dimension of 1")
            result = node.call("take", result, node.constant(0, "int64"), axis=axis)
        elif shape[axis] == 1:
            result = node.call("squeeze", result, axis=(axis,))
        else:
            node.wrong(f"dimension {axis} of a tensor of shape {shape} is not 1")
    return result


def _sizes_without_axes(node: Node) -> Expr:
    """Return the sizes of the dimensions that axes computed at run time leave; these must be different, and of 1."""
    shape, declared = node.shape(0), node.declared_shape
    axes = with_length(node, 1, "axes", None if declared is None else len(shape) - len(declared))
    (count,) = shape_of(axes)
    if count > len(shape):
        raise node.unknown(1, "axes")
    named = different_axes(node, axes, len(shape))
    dropped = node.call("where", named, int64(node, shape), int64(node, 1))
    is_one = node.call("equal", node.call("prod", dropped, axis=(0,), keepdims=False), int64(node, 1))
    node.require(is_one, f"whether '{node.name}' drops dimensions of 1")
    return sizes_without(node, named, len(shape) - count)


@importer("Unsqueeze")
def _unsqueeze(node: Node) -> Expr:
    if not has_known_axes(node):
        return reshaped(node, _sizes_with_axes(node), 1, "axes")
    given = axes_of(node)
    if given is None:
        node.wrong("axes are not given")
    rank = node.rank(0) + len(given)
    axes = sorted({node.axis(axis, rank) for axis in given})
    if len(axes) != len(given):
        node.wrong(f"axes {given} name a dimension twice")
    result = node.input(0)
    for axis in axes:
        result = node.call("expand_dims", result, axis=axis)
    return result


def _sizes_with_axes(node: Node) -> Expr:
    """Return the sizes of the input with 1 inserted at axes computed at run time, which must be different."""
    shape, declared = node.shape(0), node.declared_shape
    axes = with_length(node, 1, "axes", None if declared is None else len(declared) - len(shape))
    (count,) = shape_of(axes)
    named = different_axes(node, axes, len(shape) + count)
    if not shape:
        return int64(node, [1] * count)
    place = node.call("cumsum", node.cast(node.call("logical_not", named), "int64"), axis=0)
    place = node.call("maximum", node.call("subtract", place, int64(node, 1)), int64(node, 0))
    # places beyond the input are refused above
    place = node.call("minimum", place, int64(node, len(shape) - 1))
    kept = node.call("take", int64(node, shape), place, axis=0)
    return node.call("where", named, int64(node, 1), kept)


@importer("Concat")
def _concat(node: Node) -> Expr:
    parts = node.all_inputs()
    return node.concatenate(parts, node.axis(node.integer("axis"), node.rank(0)))


@importer("Split")
def _split(node: Node) -> list[Expr]:
    x = node.input(0)
    axis = node.axis(node.integer("axis", 0), node.rank(0))
    extent, count = shape_of(x)[axis], len(node.outputs)
    if node.given("split"):
        sizes = node.integers("split")
    elif node.has(1):
        shapes = [shape for shape in node.declared[:count] if shape is not None and axis < len(shape)]
        declared = [shape[axis] for shape in shapes]
        sizes = node.sizes(1, "split", declared if len(declared) == count else None)
    else:
        count = node.integer("num_outputs", count)
        if count < 1:
            node.wrong(f"dimension {axis} of {shape_of(x)} cannot be split into {count}")
        cost.require("operators", count, node.name)
        rest = extent % count if node.opset < 18 else 0  # since then, the last part may be smaller
        if isinstance(rest, Dim):
            is_none = node.call("equal", node.constant(rest, "int64"), node.constant(0, "int64"))
            node.require(is_none, f"whether '{node.name}' has equal parts")
        elif rest:
            node.wrong(f"dimension {axis} of {shape_of(x)} cannot be split into {count} equal parts")
        part = -(-extent // count)
        sizes = tuple(maximum(0, minimum(part, extent - part * index)) for index in range(count))
    low, high = bounds(sum(sizes) - extent)
    if not low <= 0 <= high or min((bounds(size)[1] for size in sizes), default=-1) < 0 or len(sizes) < count:
        node.wrong(f"sizes {sizes} do not split dimension {axis} of {shape_of(x)} into {len(node.outputs)}")
    if (low, high) != (0, 0):
        total, whole = (node.constant(size, "int64") for size in (sum(sizes), extent))
        node.require(node.call("equal", total, whole), f"whether the sizes of '{node.name}' add up to dimension {axis}")
    ends = list(accumulate(sizes))
    return [node.cut(x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]


@importer("Expand")
def _expand(node: Node) -> Expr:
    given = node.known_integers(1, "shape")
    wanted = _broadcast_sizes(node) if given is None else given
    if any(bounds(extent)[1] < 0 for extent in wanted):
        node.wrong(f"{wanted} is not a shape")
    if not is_static((*node.shape(0), *wanted)):
        x = node.input(0)
        for axis in range(-min(node.rank(0), len(wanted)), 0):
            if given is None or (isinstance(wanted[axis], int) and wanted[axis] > 1 and node.dynamic is not None):
                x = stretched(node, x, axis, wanted[axis])
        return node.broadcast(x, _expanded(shape_of(x), wanted))
    try:
        shape = np.broadcast_shapes(node.shape(0), wanted)
    except ValueError:
        node.wrong(f"a tensor of shape {node.shape(0)} does not broadcast to {wanted}")
    return node.broadcast(node.input(0), shape)


def _broadcast_sizes(node: Node) -> tuple[Any, ...]:
    """Return the sizes of the last dimensions of the result of an Expand whose shape is a runtime value."""
    rank, declared = prod(node.shape(1)), node.declared_shape
    if isinstance(rank, Dim):
        raise node.unknown(1, "shape")
    asked, one = node.cast(node.reshape(node.input(1), (rank,)), "int64"), int64(node, 1)
    old = [extent_from_end(node.input(0), axis - rank) for axis in range(rank)]
    if any(size != 1 for size in old):
        sizes = int64(node, old)
        is_one = node.call("equal", sizes, one)
        fits = [node.call("equal", asked, one), node.call("equal", asked, sizes), is_one]
        broadcast = node.call("all", reduce(partial(node.call, "logical_or"), fits), axis=(0,), keepdims=False)
        node.require(broadcast, f"whether the operands of '{node.name}' broadcast")
        asked = node.call("where", is_one, asked, sizes)
    is_known = declared is not None and len(declared) == max(rank, node.rank(0))
    wanted = declared[len(declared) - rank :] if declared is not None and is_known else None
    found = node.sizes(1, "shape", wanted, values=asked)
    return tuple(
        new if isinstance(new, int) or bounds(size)[0] <= 1 <= bounds(size)[1] else size
        for new, size in zip(found, old, strict=True)
    )


def extent_from_end(operand: Expr, axis: int) -> Any:
    """Return the size of an axis, counted from the end; 1 if the tensor has fewer."""
    shape = shape_of(operand)
    return shape[axis] if -axis <= len(shape) else 1


def stretched(node: Node, operand: Expr, axis: int, wide: Extent) -> Expr:
    """Return an operand broadcast along an axis, counted from the end; runs check that its size is that or 1."""
    extent = extent_from_end(operand, axis)
    if not isinstance(extent, Dim) or extent == wide:
        return operand
    number = node.constant(extent, "int64")
    fits = (node.call("equal", number, node.constant(other, "int64")) for other in (wide, 1))
    node.require(node.call("logical_or", *fits), f"whether the operands of '{node.name}' broadcast")
    places = node.call("minimum", node.counted(wide), node.constant(extent - 1, "int64"))
    return node.call("take", operand, places, axis=axis + len(shape_of(operand)))


def _expanded(shape: Sequence[Extent], wanted: Sequence[Extent]) -> tuple[Extent, ...]:
    """Return what a tensor is broadcast to; an extent that the run decides is no 1, unless the other is larger."""
    rank = max(len(shape), len(wanted))
    rows = zip([1] * (rank - len(shape)) + [*shape], [1] * (rank - len(wanted)) + [*wanted], strict=True)
    return tuple(new if old == 1 else old if new == 1 else same_extent("Expand", old, new) for old, new in rows)


@importer("Tile")
def _tile(node: Node) -> Expr:
    node.has_shape(node.shape(1), (node.rank(0),))
    repeats = node.sizes(1, "repeats", _repeats(node))
    if len(repeats) != node.rank(0) or any(bounds(count)[1] < 0 for count in repeats):
        node.wrong(f"repeats {repeats} do not fit a tensor of shape {node.shape(0)}")
    if all(count == 1 for count in repeats):
        return node.input(0)
    return node.call("tile", node.input(0), reps=repeats)


def _repeats(node: Node) -> Sequence[int] | None:
    """Return how often the declared result repeats each dimension."""
    old, new = node.shape(0), node.declared_shape or ()
    if len(old) != len(new) or not is_static(old) or any(b % a if a else True for a, b in zip(old, new, strict=True)):
        return None
    return [b // a for a, b in zip(old, new, strict=True)]


@importer("DepthToSpace", "SpaceToDepth")
def _depth_and_space(node: Node) -> Expr:
    block, mode = node.integer("blocksize"), node.string("mode", "DCR")
    if node.rank(0) != 4 or block < 1:
        node.wrong(f"blocksize {block} does not fit a tensor of shape {node.shape(0)}")
    operator = "nn.depth_to_space" if node.operator == "DepthToSpace" else "nn.space_to_depth"
    return node.call(operator, node.input(0), block_size=block, layout="NCHW", mode=mode)


@importer("Trilu")
def _trilu(node: Node) -> Expr:
    diagonal = node.input(1) if node.has(1) else node.constant(0, "int64")
    return node.call("trilu", node.input(0), diagonal, upper=bool(node.integer("upper", 1)))


_ELEMENT_LIMIT = 1 << 24
_LARGEST_ITEM = 8


@importer("Constant")
def _constant(node: Node) -> Expr:
    tensor = node.attribute("value")
    if isinstance(tensor, np.ndarray):
        return Constant(tensor, None, node.span)
    kinds = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}
    for name, dtype in kinds.items():
        value = node.attribute(name)
        if value is not None:
            return node.constant(value, dtype)
    return node.unsupported(
        "without a tensor or numbers is not supported", "Strings and sparse tensors have no place in a compiled model"
    )


@importer("ConstantOfShape")
def _constant_of_shape(node: Node) -> Expr:
    fill = node.attribute("value")
    value = np.zeros(1, np.float32) if fill is None else np.asarray(fill)
    shape = node.sizes(0, "input", node.declared_shape)
    if value.size != 1 or any(extent < 0 for extent in shape):
        node.wrong(f"cannot fill the shape {shape} with a value of {value.size} elements")
    if not is_static(shape):
        return node.call("full", Constant(value.reshape(()), None, node.span), shape=shape, dtype=None)
    return Constant(np.full(_checked(node, shape), value.reshape(())), None, node.span)


def _checked(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    if prod(shape) > _ELEMENT_LIMIT:
        node.unsupported(f"makes a constant of shape {shape}, which is too large")
    cost.require("constants", prod(shape) * _LARGEST_ITEM, node.name)
    return shape


@importer("Shape")
def _shape(node: Node) -> Expr:
    shape = node.shape(0)
    start, end = node.integer("start", 0), node.integer("end", len(shape))
    return node.constant(list(shape[start:end]), "int64")


@importer("Size")
def _size(node: Node) -> Expr:
    return node.constant(prod(node.shape(0)), "int64")


@importer("Range", ignores=("stash_type",))
def _range(node: Node) -> Expr:
    if all(node.known(index) is not None for index in range(3)):
        return _known_range(node, [node.value(index, what).reshape(()) for index, what in enumerate(_ENDS)])
    ends = [_end(node, index) for index in range(3)]
    start, limit, delta = ends
    if delta == 0:
        node.wrong("delta must not be zero")
    count = None
    if None not in ends:
        try:
            count = maximum(-(-(limit - start) // delta), 0)
        except UndecidedError as error:
            node.undecided(error)
    if count is None:
        index = ends.index(None) if None in ends else 0
        declared = node.declared_shape
        count = node.size(index, _ENDS[index], _steps(node), declared[0] if declared and len(declared) == 1 else None)
    numbers: Expr = node.counted(count, node.dtype(0))
    if delta != 1:
        numbers = node.call("multiply", numbers, node.reshape(node.input(2), ()))
    return numbers if start == 0 else node.call("add", node.reshape(node.input(0), ()), numbers)


_ENDS = "start", "limit", "delta"


def _known_range(node: Node, ends: Sequence[npt.NDArray[Any]]) -> Expr:
    start, limit, delta = ends
    if float(delta) == 0.0 or not np.isfinite(float(limit) - float(start)):
        node.wrong("start and limit must be finite and delta must not be zero")
    exact = start.dtype.kind in "iu"
    distance = int(limit) - int(start) if exact else float(limit) - float(start)
    step = int(delta) if exact else float(delta)
    count = max(0, -int(-distance // step))
    _checked(node, (count,))
    return Constant((start + np.arange(count).astype(start.dtype) * delta).astype(start.dtype), None, node.span)


def _end(node: Node, index: int) -> Any:
    """Return an end of a range that is an integer, or a float that is an extent; None for others."""
    known = None if node.dynamic is None else node.dynamic.known(node.input(index))
    if known is None:
        value = node.known(index)
        return int(value.reshape(())) if value is not None and float(value.reshape(())).is_integer() else None
    (number,) = known.reshape(-1)
    if isinstance(number, Quotient):
        return number.extent if number.by == 1 else None
    return number if isinstance(number, Dim) else int(number)


def _steps(node: Node) -> Expr:
    """Return the number of elements of a range whose ends are computed at run time."""
    start, limit, delta = (node.reshape(node.input(index), ()) for index in range(3))
    if dtypes.is_integer(node.dtype(0)):  # the distance may exceed the dtype
        start, limit, delta = (node.cast(item, "int64") for item in (start, limit, delta))
        count = rounded_up(node, node.call("subtract", limit, start), delta)
    else:
        distance = node.call("subtract", limit, start)
        wide = [node.cast(item, "float64") for item in (distance, delta)]
        count = node.cast(node.call("ceil", node.call("divide", *wide)), "int64")
    return node.call("maximum", count, int64(node, 0))


@importer("EyeLike")
def _eye_like(node: Node) -> Expr:
    if node.rank(0) != 2:
        node.wrong(f"a tensor of shape {node.shape(0)} is not a matrix")
    code = node.attribute("dtype")
    dtype = node.dtype(0) if code is None else dtype_name(code, node.name)
    if is_static(node.shape(0)):
        _checked(node, node.shape(0))
    rows, columns = counted(node, *node.shape(0))
    return as_expr(node, rows[:, None] == columns[None, :] - node.integer("k", 0), dtype)
