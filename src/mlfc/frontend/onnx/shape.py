"""Shape operators, which rearrange elements without arithmetic, and constants derived from shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate, zip_longest
from math import prod
from typing import Any

import numpy as np

from mlfc.frontend.onnx.node import Node, int64, shape_of
from mlfc.frontend.onnx.run_tables import (
    as_expr,
    clipped,
    count_of,
    counted,
    different_axes,
    has_known_axes,
    rounded_up,
    sizes_without,
    with_length,
)
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
    # the product of several dimensions may be divisible even if no single dimension is
    is_product = -1 in given and len(symbols_of(node.shape(0))) > 1
    return _regrouped(node, wanted) if is_product else node.reshape(node.input(0), wanted)


def reshaped(node: Node, sizes: Expr, index: int, what: str) -> Expr:
    """Return input 0 reshaped to sizes that are computed from input `index` at run time."""
    declared = node.declared_shape
    is_as_large = declared is not None and prod(declared) == prod(node.shape(0))
    return _regrouped(node, node.sizes(index, what, declared if is_as_large else None, values=sizes))


def reshaped_at_run(node: Node) -> Node:
    """Return a Reshape to the number of elements of its requested shape; require this to be the input's at run time."""
    wanted = _wanted_shape(node, node.int_values(1, "shape"))
    return replace(node, inputs=[_all_elements(node, wanted), int64(node, wanted)])


def _regrouped(node: Node, shape: Sequence[Extent]) -> Expr:
    is_whole = prod(shape) == prod(node.shape(0))
    return node.reshape(node.input(0) if is_whole else _all_elements(node, shape), shape)


def _all_elements(node: Node, wanted: Sequence[Extent]) -> Expr:
    """Return the elements of input 0 as a list with the length of a shape; require equal element counts at run time."""
    size, total = prod(node.shape(0)), prod(wanted)
    node.require(node.call("equal", int64(node, size), total), f"whether the shape of '{node.name}' fits its elements")
    if size == 0:
        return node.filled((total,), 0, node.dtype(0))
    return node.call("take", node.reshape(node.input(0), (size,)), node.counted(total), axis=0)


def _wanted_shape(node: Node, given: Sequence[Extent]) -> list[Extent]:
    """Return the requested shape of a Reshape with 0 and -1 resolved."""
    shape, wanted, keep_zeros = node.shape(0), list(given), bool(node.integer("allowzero", 0))
    for index, extent in enumerate(wanted):
        if extent == 0 and not keep_zeros:
            if index >= len(shape):
                node.wrong(f"the 0 at position {index} of {tuple(wanted)} copies a dimension that {shape} lacks")
            wanted[index] = shape[index]
    # dynamic sizes are never the special values -1 and 0
    if wanted.count(-1) > 1 or any(bounds(extent)[1] < (0 if extent != -1 else -1) for extent in wanted):
        node.wrong(f"{tuple(wanted)} is not a shape")
    known = prod(extent for extent in wanted if extent != -1)
    if -1 in wanted and known != 0:
        wanted[wanted.index(-1)] = prod(shape) // known
    if -1 in wanted or bounds(prod(wanted) - prod(shape))[0] > 0 or bounds(prod(wanted) - prod(shape))[1] < 0:
        node.wrong(f"a tensor of shape {shape} cannot become {tuple(wanted)}")
    return wanted


def _requested_sizes(node: Node) -> Expr:
    """Return the runtime shape of a Reshape with 0 and -1 resolved."""
    shape, declared = node.shape(0), node.declared_shape
    wanted = node.cast(with_length(node, "shape", None if declared is None else len(declared)), "int64")
    (rank,) = shape_of(wanted)
    if not node.integer("allowzero", 0):
        # a 0 beyond the input's rank has no dimension to copy: -2 matches no size
        old = int64(node, [*shape[:rank], *[-2] * (rank - len(shape))])
        wanted = node.call("where", node.call("equal", wanted, 0), old, wanted)
    is_left = node.call("equal", wanted, -1)
    node.require(node.call("less_equal", count_of(node, is_left), 1), f"whether '{node.name}' has one -1 at most")
    known = node.call("prod", node.call("where", is_left, 1, wanted), axis=(0,), keepdims=False)
    rest = node.call("floor_divide", prod(shape), node.call("maximum", known, 1))
    return node.call("where", is_left, rest, wanted)


@importer("Flatten")
def _flatten(node: Node) -> Expr:
    shape = node.shape(0)
    axis = node.integer("axis", 1)
    if axis != len(shape):  # axis may equal the rank
        axis = node.axis(axis, len(shape))
    return node.reshape(node.input(0), (prod(shape[:axis]), prod(shape[axis:])))


@importer("Transpose")
def _transpose(node: Node) -> Expr:
    rank = node.rank(0)
    order = node.integers("perm", tuple(range(rank))[::-1])
    if sorted(order) != list(range(rank)):
        node.wrong(f"perm {order} is not an order of {rank} dimensions")
    return node.transpose(node.input(0), order)


def axes_of(node: Node, index: int = 1) -> tuple[int, ...] | None:
    """Return the axes of the attribute, or of input `index` in newer opsets; None if both are missing."""
    if node.given("axes"):
        return node.integers("axes")
    return node.int_values(index, "axes") if node.has(index) else None


@importer("Squeeze")
def _squeeze(node: Node) -> Expr:
    shape = node.shape(0)
    if not has_known_axes(node):
        return reshaped(node, _sizes_without_axes(node), 1, "axes")
    given = axes_of(node)
    if given:
        axes = sorted({node.axis(axis, len(shape)) for axis in given})
    else:  # an empty list selects all dimensions of size 1, as in ONNX Runtime
        ends = {axis: bounds(extent) for axis, extent in enumerate(shape)}
        maybe = [axis for axis, (low, high) in ends.items() if low <= 1 <= high and isinstance(shape[axis], Dim)]
        axes = sorted([*(axis for axis, extent in enumerate(shape) if extent == 1), *_dropped(node, maybe)])
    still_open = [axis for axis in axes if isinstance(shape[axis], Dim) and bounds(shape[axis])[0] <= 1]
    if still_open:
        return _squeezed(node, axes, still_open)
    if any(shape[axis] != 1 for axis in axes):
        node.wrong(f"dimensions {tuple(axes)} of a tensor of shape {shape} are not all 1")
    return node.call("squeeze", node.input(0), axis=tuple(axes)) if axes else node.input(0)


def _dropped(node: Node, maybe: Sequence[int]) -> Sequence[int]:
    """Return the dynamic dimensions that a Squeeze without axes drops: none or all of `maybe`; checked at run time."""
    if not maybe or node.dynamic is None:
        return ()
    if not node.dynamic.choose(node.name):
        return maybe
    for axis in maybe:
        is_more = node.call("not_equal", int64(node, node.shape(0)[axis]), 1)
        node.require(is_more, f"whether '{node.name}' keeps dimension {axis}, which is not 1")
    return ()


def _squeezed(node: Node, axes: Sequence[int], still_open: Sequence[int]) -> Expr:
    """Drop dynamic axes that must be 1: constrain a symbol of an input to 1; check other sizes at run time."""
    assert node.dynamic is not None
    result, shape = node.input(0), node.shape(0)
    for axis in still_open if len(node.dynamic.frames) == 1 else ():
        if shape[axis].symbol is not None:
            same_extent("Squeeze", shape[axis], 1)
    for axis in reversed(axes):
        if axis in still_open:
            is_one = node.call("equal", int64(node, shape[axis]), 1)
            node.require(is_one, f"whether '{node.name}' drops a dimension of 1")
            result = node.call("take", result, int64(node, 0), axis=axis)
        elif shape[axis] == 1:
            result = node.call("squeeze", result, axis=(axis,))
        else:
            node.wrong(f"dimension {axis} of a tensor of shape {shape} is not 1")
    return result


def _sizes_without_axes(node: Node) -> Expr:
    """Return the dimension sizes that remain after dropping runtime axes, which must be distinct and of size 1."""
    shape, declared = node.shape(0), node.declared_shape
    axes = with_length(node, "axes", None if declared is None else len(shape) - len(declared))
    (count,) = shape_of(axes)
    if count > len(shape):
        raise node.unknown(1, "axes")
    named = different_axes(node, axes, len(shape))
    dropped = node.call("where", named, int64(node, shape), int64(node, 1))
    is_one = node.call("equal", node.call("prod", dropped, axis=(0,), keepdims=False), 1)
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
    """Return the input's sizes with 1 inserted at runtime axes, which must be distinct."""
    shape, declared = node.shape(0), node.declared_shape
    axes = with_length(node, "axes", None if declared is None else len(declared) - len(shape))
    (count,) = shape_of(axes)
    named = different_axes(node, axes, len(shape) + count)
    if not shape:
        return int64(node, [1] * count)
    place = node.call("cumsum", node.cast(node.call("logical_not", named), "int64"), axis=0)
    # out-of-range axes are refused above
    place = clipped(node, node.call("subtract", place, 1), 0, len(shape) - 1)
    return node.call("where", named, 1, node.call("take", int64(node, shape), place, axis=0))


@importer("Concat")
def _concat(node: Node) -> Expr:
    return node.concatenate(node.all_inputs(), node.axis(node.integer("axis"), node.rank(0)))


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
        rest = extent % count if node.opset < 18 else 0  # since opset 18, the last part may be smaller
        if isinstance(rest, Dim):
            node.require(node.call("equal", int64(node, rest), 0), f"whether '{node.name}' has equal parts")
        elif rest:
            node.wrong(f"dimension {axis} of {shape_of(x)} cannot be split into {count} equal parts")
        part = -(-extent // count)
        sizes = tuple(maximum(0, minimum(part, extent - part * index)) for index in range(count))
    low, high = bounds(sum(sizes) - extent)
    if not low <= 0 <= high or min((bounds(size)[1] for size in sizes), default=-1) < 0 or len(sizes) < count:
        node.wrong(f"sizes {sizes} do not split dimension {axis} of {shape_of(x)} into {len(node.outputs)}")
    if (low, high) != (0, 0):
        is_whole = node.call("equal", int64(node, sum(sizes)), extent)
        node.require(is_whole, f"whether the sizes of '{node.name}' add up to dimension {axis}")
    return [node.cut(x, axis, end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


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
        # a dynamic size is assumed not to be 1, unless the other size is larger
        pairs = [*zip_longest(reversed(shape_of(x)), reversed(wanted), fillvalue=1)][::-1]
        return node.broadcast(
            x, [new if old == 1 else old if new == 1 else same_extent("Expand", old, new) for old, new in pairs]
        )
    try:
        shape = np.broadcast_shapes(node.shape(0), wanted)
    except ValueError:
        node.wrong(f"a tensor of shape {node.shape(0)} does not broadcast to {wanted}")
    return node.broadcast(node.input(0), shape)


def _broadcast_sizes(node: Node) -> tuple[Any, ...]:
    """Return the trailing sizes of the result of an Expand whose shape is a runtime value."""
    rank, declared = prod(node.shape(1)), node.declared_shape
    if isinstance(rank, Dim):
        raise node.unknown(1, "shape")
    asked = node.cast(node.reshape(node.input(1), (rank,)), "int64")
    old = [extent_from_end(node.input(0), axis - rank) for axis in range(rank)]
    if any(size != 1 for size in old):
        sizes = int64(node, old)
        is_one = node.call("equal", sizes, 1)
        fits = [node.call("equal", asked, 1), node.call("equal", asked, sizes), is_one]
        broadcast = node.call("all", reduce(partial(node.call, "logical_or"), fits), axis=(0,), keepdims=False)
        node.require(broadcast, f"whether the operands of '{node.name}' broadcast")
        asked = node.call("where", is_one, asked, sizes)
    is_known = declared is not None and len(declared) == max(rank, node.rank(0))
    wanted = declared[len(declared) - rank :] if declared is not None and is_known else None
    found = node.sizes(1, "shape", wanted, values=asked)
    rows = zip(found, old, [bounds(size)[0] <= 1 <= bounds(size)[1] for size in old], strict=True)
    return tuple(new if isinstance(new, int) or is_free else size for new, size, is_free in rows)


def extent_from_end(operand: Expr, axis: int) -> Any:
    """Return the size of an axis counted from the end; 1 beyond the tensor's rank."""
    shape = shape_of(operand)
    return shape[axis] if -axis <= len(shape) else 1


def stretched(node: Node, operand: Expr, axis: int, wide: Extent) -> Expr:
    """Return an operand broadcast along an axis counted from the end; its size must be `wide` or 1 at run time."""
    extent = extent_from_end(operand, axis)
    if not isinstance(extent, Dim) or extent == wide:
        return operand
    number = int64(node, extent)
    fits = (node.call("equal", number, other) for other in (wide, 1))
    node.require(node.call("logical_or", *fits), f"whether the operands of '{node.name}' broadcast")
    places = node.call("minimum", node.counted(wide), extent - 1)
    return node.call("take", operand, places, axis=axis + len(shape_of(operand)))


@importer("Tile")
def _tile(node: Node) -> Expr:
    node.has_shape(node.shape(1), (node.rank(0),))
    old, new = node.shape(0), node.declared_shape or ()
    is_known = len(old) == len(new) and is_static(old) and all(a and b % a == 0 for a, b in zip(old, new, strict=True))
    declared = [b // a for a, b in zip(old, new, strict=True)] if is_known else None
    repeats = node.sizes(1, "repeats", declared)
    if len(repeats) != len(old) or any(bounds(count)[1] < 0 for count in repeats):
        node.wrong(f"repeats {repeats} do not fit a tensor of shape {old}")
    if all(count == 1 for count in repeats):
        return node.input(0)
    return node.call("tile", node.input(0), reps=repeats)


@importer("DepthToSpace", "SpaceToDepth")
def _depth_and_space(node: Node) -> Expr:
    block, mode = node.integer("blocksize"), node.string("mode", "DCR")
    if node.rank(0) != 4 or block < 1:
        node.wrong(f"blocksize {block} does not fit a tensor of shape {node.shape(0)}")
    operator = "nn.depth_to_space" if node.operator == "DepthToSpace" else "nn.space_to_depth"
    return node.call(operator, node.input(0), block_size=block, layout="NCHW", mode=mode)


@importer("Trilu")
def _trilu(node: Node) -> Expr:
    diagonal = node.optional(1) or node.constant(0, "int64")
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
        "without a tensor or numbers is not supported", "Strings and sparse tensors cannot be compiled"
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
        low, high, step = (node.value(index, what).reshape(()) for index, what in enumerate(_ENDS))
        if float(step) == 0.0 or not np.isfinite(float(high) - float(low)):
            node.wrong("start and limit must be finite and delta must not be zero")
        number = int if low.dtype.kind in "iu" else float
        (size,) = _checked(node, (max(0, -int(-(number(high) - number(low)) // number(step))),))
        return Constant((low + np.arange(size).astype(low.dtype) * step).astype(low.dtype), None, node.span)
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


def _end(node: Node, index: int) -> Any:
    """Return an end of a range if it is an integer, or a float equal to a dimension size; None otherwise."""
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
    if dtypes.is_integer(node.dtype(0)):  # the difference may overflow the dtype
        start, limit, delta = (node.cast(item, "int64") for item in (start, limit, delta))
        count = rounded_up(node, node.call("subtract", limit, start), delta)
    else:
        distance = node.cast(node.call("subtract", limit, start), "float64")
        count = node.cast(node.call("ceil", node.call("divide", distance, node.cast(delta, "float64"))), "int64")
    return node.call("maximum", count, 0)


@importer("EyeLike")
def _eye_like(node: Node) -> Expr:
    if node.rank(0) != 2:
        node.wrong(f"a tensor of shape {node.shape(0)} is not a matrix")
    dtype = dtype_name(node.attribute("dtype"), node.name) if node.given("dtype") else node.dtype(0)
    if is_static(node.shape(0)):
        _checked(node, node.shape(0))
    rows, columns = counted(node, *node.shape(0))
    return as_expr(node, rows[:, None] == columns[None, :] - node.integer("k", 0), dtype)
