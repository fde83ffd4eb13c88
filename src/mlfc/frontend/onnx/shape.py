"""Shape and arrangement, which move elements and compute nothing, and constants that follow from shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.frontend.onnx.run_tables import placed
from mlfc.frontend.onnx.table import importer
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.frontend.symbolic import Quotient
from mlfc.ops.rules import TooSmallError, same_extent
from mlfc.relay.ir import Constant, Expr
from mlfc.support import cost, dtypes
from mlfc.support.dims import Dim, Extent, bounds, is_static, maximum, minimum, symbols_of


@importer("Reshape")
def _reshape(node: Node) -> Expr:
    wanted = _wanted_shape(node)
    # a product of dimensions may be a multiple of what no single one of them has to be
    is_product = -1 in node.int_values(1, "shape") and len(symbols_of(node.shape(0))) > 1
    if is_product and prod(wanted) != prod(node.shape(0)):
        return _reshape(reshaped_at_run(node))
    return node.reshape(node.input(0), wanted)


def reshaped_at_run(node: Node) -> Node:
    """Return a Reshape with as many elements as its shape has; runs check that these are all elements."""
    wanted = _wanted_shape(node)
    size, total = prod(node.shape(0)), prod(wanted)
    fits = node.call("equal", node.constant(size, "int64"), node.constant(total, "int64"))
    node.require(fits, f"whether the shape of '{node.name}' fits its elements")
    elements = node.call("take", node.reshape(node.input(0), (size,)), node.counted(total), axis=0)
    return replace(node, inputs=[elements, node.constant(wanted, "int64")])


def _wanted_shape(node: Node) -> list[Extent]:
    """Return the shape that a Reshape asks for, with numbers in place of 0 and -1."""
    keep_zeros = bool(node.integer("allowzero", 0))
    shape = node.shape(0)
    wanted = list(node.int_values(1, "shape"))
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


@importer("Unsqueeze")
def _unsqueeze(node: Node) -> Expr:
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
        sizes = node.int_values(1, "split")
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
    wanted = node.int_values(1, "shape")
    if any(bounds(extent)[1] < 0 for extent in wanted):
        node.wrong(f"{wanted} is not a shape")
    if not is_static((*node.shape(0), *wanted)):
        x = node.input(0)
        for axis in range(-min(node.rank(0), len(wanted)), 0):
            if isinstance(wanted[axis], int) and wanted[axis] > 1 and node.dynamic is not None:
                x = stretched(node, x, axis, wanted[axis])
        return node.broadcast(x, _expanded(shape_of(x), wanted))
    try:
        shape = np.broadcast_shapes(node.shape(0), wanted)
    except ValueError:
        node.wrong(f"a tensor of shape {node.shape(0)} does not broadcast to {wanted}")
    return node.broadcast(node.input(0), shape)


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
    repeats = node.int_values(1, "repeats")
    if len(repeats) != node.rank(0) or any(bounds(count)[1] < 0 for count in repeats):
        node.wrong(f"repeats {repeats} do not fit a tensor of shape {node.shape(0)}")
    if all(count == 1 for count in repeats):
        return node.input(0)
    return node.call("tile", node.input(0), reps=repeats)


@importer("Pad")
def _pad_attributes(node: Node) -> Expr:
    x = node.input(0)
    return pad(node, x, node.integers("pads"), node.like(node.real("value", 0.0), x), node.string("mode", "constant"))


@importer("Pad", since=11)
def _pad(node: Node) -> Expr:
    x, rank = node.input(0), node.rank(0)
    node.has_shape(node.shape(1), (2 * (prod(node.shape(3)) if node.has(3) else rank),))
    pads = node.int_values(1, "pads")
    if node.has(3):
        axes = [node.axis(axis, rank) for axis in node.int_values(3, "axes")]
        if len(pads) != 2 * len(axes):
            node.wrong(f"{len(pads)} pads do not fit {len(axes)} axes")
        full = [0] * 2 * rank
        for position, axis in enumerate(axes):
            full[axis], full[rank + axis] = pads[position], pads[len(axes) + position]
        pads = tuple(full)
    value = node.reshape(node.input(2), ()) if node.has(2) else node.like(0, x)
    return pad(node, x, pads, value, node.string("mode", "constant"))


def pad(node: Node, x: Expr, pads: Sequence[int], value: Expr, mode: str) -> Expr:
    """Return `x` with `pads` (all begins, then all ends) elements more a dimension; negative ones cut."""
    rank = len(shape_of(x))
    if len(pads) != 2 * rank:
        node.wrong(f"{len(pads)} pads do not fit a tensor of {rank} dimensions")
    widths = list(zip(pads[:rank], pads[rank:], strict=True))
    for axis, (before, after) in enumerate(widths):
        extent = shape_of(x)[axis]
        begin, end = maximum(0, -before), extent - maximum(0, -after)
        if bounds(extent + before + after)[1] < 0 or (mode != "constant" and bounds(begin - end)[0] > 0):
            node.wrong(f"pads {tuple(pads)} cut more than dimension {axis} has")
        _require_elements(node, extent, before + after)
        if mode == "constant" and bounds(end - begin)[0] < 0 < bounds(maximum(before, after))[1]:
            # what is cut on one side may be padding of the other
            x = placed(node, x, axis, -before, extent + before + after, value)
            widths[axis] = (0, 0)
        else:
            x = node.cut(x, axis, begin, end)
    widths = [(maximum(0, before), maximum(0, after)) for before, after in widths]
    if all(pair == (0, 0) for pair in widths):
        return x
    if mode == "wrap":
        return _wrapped(node, x, widths)
    if mode not in ("constant", "edge", "reflect"):
        node.wrong(f"mode '{mode}' is not known")
    return node.call("nn.pad", x, value, pad_width=tuple(widths), pad_mode=mode)


def _require_elements(node: Node, extent: Extent, more: Extent) -> None:
    """Require that a dimension has at least the elements that negative pads cut in total."""
    if bounds(extent + more)[0] >= 0:
        return
    if isinstance(more, int) and isinstance(extent, Dim) and extent.symbol is not None:
        raise TooSmallError(node.operator, extent, -more, "a dimension")
    left, zero = node.constant(extent + more, "int64"), node.constant(0, "int64")
    node.require(node.call("greater_equal", left, zero), f"whether '{node.name}' cuts elements that there are")


def _wrapped(node: Node, x: Expr, widths: Sequence[tuple[int, int]]) -> Expr:
    for axis, (before, after) in enumerate(widths):
        extent = shape_of(x)[axis]
        if (before, after) != (0, 0):
            places: Expr
            if is_static((before, after, extent)):
                places = node.constant(np.arange(-before, extent + after) % extent, "int32")
            else:
                places = node.call("subtract", node.counted(extent + before + after), node.constant(before, "int64"))
                places = node.call("floor_mod", places, node.constant(extent, "int64"))
            x = node.call("take", x, places, axis=axis)
    return x


@importer("CenterCropPad")
def _center_crop_pad(node: Node) -> Expr:
    x = node.input(0)
    rank = node.rank(0)
    axes = [node.axis(axis, rank) for axis in node.integers("axes", range(rank))]
    node.has_shape(node.shape(1), (len(axes),))
    sizes = node.int_values(1, "shape")
    if len(sizes) != len(axes) or any(bounds(size)[1] < 0 for size in sizes):
        node.wrong(f"shape {sizes} does not fit the axes {tuple(axes)}")
    pads = [0] * 2 * rank
    for axis, size in zip(axes, sizes, strict=True):
        missing = size - node.shape(0)[axis]
        # cropping drops the smaller half in front, padding adds it there
        before = maximum(missing, 0) // 2 - maximum(-missing, 0) // 2
        pads[axis], pads[rank + axis] = before, missing - before
    return pad(node, x, pads, node.like(0, x), "constant")


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
    shape = node.int_values(0, "input")
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
    if node.dynamic is not None and any(node.known(index) is None for index in range(3)):
        return _open_range(node, [_end(node, index, what) for index, what in enumerate(("start", "limit", "delta"))])
    start, limit, delta = (
        node.value(index, what).reshape(()) for index, what in enumerate(("start", "limit", "delta"))
    )
    if float(delta) == 0.0 or not np.isfinite(float(limit) - float(start)):
        node.wrong("start and limit must be finite and delta must not be zero")
    exact = start.dtype.kind in "iu"
    distance = int(limit) - int(start) if exact else float(limit) - float(start)
    step = int(delta) if exact else float(delta)
    count = max(0, -int(-distance // step))
    _checked(node, (count,))
    return Constant((start + np.arange(count).astype(start.dtype) * delta).astype(start.dtype), None, node.span)


def _end(node: Node, index: int, what: str) -> Any:
    """Return an end of a range, which may be a float that is an extent."""
    known = None if node.dynamic is None else node.dynamic.known(node.input(index))
    number = None if known is None else known.reshape(-1)[0]
    return number.extent if isinstance(number, Quotient) and number.by == 1 else node.extent(index, what)


def _open_range(node: Node, ends: Sequence[Extent]) -> Expr:
    start, limit, delta = ends
    if delta == 0:
        node.wrong("delta must not be zero")
    count = maximum(-(-(limit - start) // delta), 0)
    numbers: Expr = node.counted(count, node.dtype(0))
    if delta != 1:
        numbers = node.call("multiply", numbers, node.reshape(node.input(2), ()))
    return numbers if start == 0 else node.call("add", numbers, node.reshape(node.input(0), ()))


@importer("EyeLike")
def _eye_like(node: Node) -> Expr:
    if node.rank(0) != 2:
        node.wrong(f"a tensor of shape {node.shape(0)} is not a matrix")
    code = node.attribute("dtype")
    dtype = node.dtype(0) if code is None else dtype_name(code, node.name)
    if not is_static(node.shape(0)):
        return _open_eye(node, dtype)
    rows, columns = _checked(node, node.shape(0))
    eye: npt.NDArray[Any] = np.eye(rows, columns, min(max(node.integer("k", 0), -rows), columns))
    return Constant(eye.astype(dtypes.to_numpy(dtype)), None, node.span)


def _open_eye(node: Node, dtype: str) -> Expr:
    rows, columns = (node.counted(extent) for extent in node.shape(0))
    diagonal = node.call("subtract", columns, node.constant(node.integer("k", 0), "int64"))
    return node.cast(node.call("equal", node.call("expand_dims", rows, axis=1), diagonal), dtype)
