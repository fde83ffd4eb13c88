"""Inputs that decide shapes and come only when the model runs: what the model states of its outputs stands for them.

An importer asks for the value of such an input. Where that is not constant, the operator's function in this file is
asked instead: it takes the shape from what the model states of the node's outputs, and computes with the value what
else depends on it. A value that would give another shape ends the run (`late_checks`); until then it never causes an
access beyond a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.linear import matmul
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.quantized import centred
from mlfc.frontend.onnx.run_tables import RunTable, placed
from mlfc.relay.ir import Expr
from mlfc.support.dims import Extent

Array: TypeAlias = npt.NDArray[Any]
Results: TypeAlias = "Expr | Sequence[Expr]"
Convert: TypeAlias = "Callable[[Node], Results]"
# takes a node and the operator's importer; None where the stated shapes do not say enough
Late: TypeAlias = "Callable[[Node, Convert], Results | None]"

# sets of axes that give the stated shape: each is computed
_CANDIDATE_LIMIT = 8
LATE: dict[str, Late] = {}


def _late(*operators: str) -> Callable[[Late], Late]:
    def register(function: Late) -> Late:
        LATE.update(dict.fromkeys(operators, function))
        return function

    return register


def _stated(node: Node, index: int = 0) -> tuple[int, ...] | None:
    return node.stated[index] if index < len(node.stated) else None


# The value follows from the shape


@_late("Reshape", "Squeeze", "Unsqueeze")
def _same_elements(node: Node, _convert: Convert) -> Expr | None:
    shape = _stated(node)
    node.attribute("allowzero")
    return node.reshape(node.input(0), shape) if shape is not None and prod(shape) == prod(node.shape(0)) else None


@_late("ConstantOfShape")
def _constant_of_shape(node: Node, convert: Convert) -> Results | None:
    shape = _stated(node)
    return None if shape is None else convert(node.with_value(0, shape))


@_late("Expand")
def _expand(node: Node, convert: Convert) -> Results | None:
    shape = _stated(node)
    return None if shape is None else convert(node.with_value(1, shape))


@_late("BlackmanWindow", "HammingWindow", "HannWindow")
def _window(node: Node, convert: Convert) -> Results | None:
    shape = _stated(node)
    return None if shape is None else convert(node.with_value(0, prod(shape)))


@_late("MaxUnpool")
def _max_unpool(node: Node, convert: Convert) -> Results | None:
    shape = _stated(node)
    return None if shape is None else convert(node.with_value(2, shape))


@_late("AffineGrid")
def _affine_grid(node: Node, convert: Convert) -> Results | None:
    """Take the size from the shape of the grid; how many channels it is for changes nothing."""
    shape = _stated(node)
    return None if shape is None or len(shape) < 4 else convert(node.with_value(1, [shape[0], 1, *shape[1:-1]]))


@_late("Tile")
def _tile(node: Node, convert: Convert) -> Results | None:
    shape, old = _stated(node), node.shape(0)
    if shape is None or len(shape) != len(old) or 0 in old:
        return None
    return convert(node.with_value(1, [new // extent for new, extent in zip(shape, old, strict=True)]))


@_late("Split")
def _split(node: Node, convert: Convert) -> Results | None:
    axis = node.axis(node.integer("axis", 0), node.rank(0))
    shapes = [_stated(node, index) for index in range(len(node.outputs))]
    sizes = [shape[axis] for shape in shapes if shape is not None and axis < len(shape)]
    return convert(node.with_value(1, sizes)) if len(sizes) == len(shapes) else None


@_late("OneHot")
def _one_hot(node: Node, convert: Convert) -> Results | None:
    shape, rank = _stated(node), node.rank(0) + 1
    if shape is None or len(shape) != rank:
        return None
    return convert(node.with_value(1, shape[node.axis(node.integer("axis", -1), rank)]))


@_late("TopK")
def _top_k(node: Node, convert: Convert) -> Results | None:
    axis = node.axis(node.integer("axis", -1), node.rank(0))
    shape = _stated(node) or _stated(node, 1)
    return convert(node.with_value(1, [shape[axis]])) if shape is not None and axis < len(shape) else None


@_late("CenterCropPad", "Resize")
def _sized(node: Node, convert: Convert) -> Results | None:
    """Take sizes from the shape; scales do not follow from it, nor does what keeps an aspect ratio."""
    index, rank, shape = 3 if node.operator == "Resize" else 1, node.rank(0), _stated(node)
    stretched = node.string("keep_aspect_ratio_policy", "stretch") == "stretch"
    if shape is None or len(shape) != rank or not node.has(index) or not stretched:
        return None
    axes = [node.axis(axis, rank) for axis in node.integers("axes", range(rank))]
    others = [axis for axis in range(rank) if axis not in axes]
    if any(shape[axis] != node.shape(0)[axis] for axis in others):
        return None
    return convert(node.with_value(index, [shape[axis] for axis in axes]))


# One of few values


@_late(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def _reduce(node: Node, convert: Convert) -> Results | None:
    """Reduce along each set of axes that gives the stated shape; which one it is shows when the model runs."""
    shape, old, keep = _stated(node), node.shape(0), node.flag("keepdims", 1)
    if shape is None or len(node.shape(1)) > 1:
        return None
    fitting = [
        axes
        for axes in combinations(range(len(old)), prod(node.shape(1)))
        if [1 if axis in axes else extent for axis, extent in enumerate(old) if keep or axis not in axes] == [*shape]
    ]
    if not 0 < len(fitting) <= _CANDIDATE_LIMIT:
        return None
    along = [convert(node.with_value(1, axes)) for axes in fitting]
    named = named_axes(node, node.input(1), len(old)) if len(fitting) > 1 else None
    return _chosen(node, named, [np.isin(np.arange(len(old)), axes) for axes in fitting], along)


@_late("CumProd", "CumSum")
def _running(node: Node, convert: Convert) -> Results | None:
    rank = node.rank(0)
    if prod(node.shape(1)) != 1 or not 0 < rank <= _CANDIDATE_LIMIT:
        return None
    along = [convert(node.with_value(1, axis)) for axis in range(rank)]
    named = named_axes(node, node.input(1), rank) if rank > 1 else None
    return _chosen(node, named, list(np.eye(rank, dtype=bool)), along)


def named_axes(node: Node, axes: Expr, rank: int) -> Expr:
    """Return [axes, rank] truth values: whether this axis of those given is that dimension."""
    axes = node.cast(node.reshape(axes, (prod(shape_of(axes)), 1)), "int64")
    axes = node.call(
        "where", node.call("less", axes, _int64(node, 0)), node.call("add", axes, _int64(node, rank)), axes
    )
    return node.call("equal", axes, _int64(node, np.arange(rank)))


def _chosen(node: Node, named: Expr | None, masks: Sequence[Array], results: Sequence[Results]) -> Expr:
    """Return the result of the mask that says which dimensions are named; the last if none does."""
    found, *others = [result[0] if isinstance(result, Sequence) else result for result in reversed(results)]
    if named is None:
        return found
    given = node.call("any", named, axis=(0,), keepdims=False)
    for mask, result in zip(reversed(masks[:-1]), others, strict=True):
        same = node.call("equal", given, node.constant(mask, "bool"))
        found = node.call("where", node.call("all", same, axis=(0,), keepdims=False), result, found)
    return found


# Positions computed when the model runs


@_late("Range")
def _range(node: Node, _convert: Convert) -> Expr | None:
    shape = _stated(node)
    if shape is None or len(shape) != 1:
        return None
    start, delta = (node.reshape(node.input(index), ()) for index in (0, 2))
    steps = node.counted(shape[0], dtype_of(start))
    return node.call("add", start, node.call("multiply", steps, delta))


@_late("Slice")
def _slice(node: Node, _convert: Convert) -> Expr | None:
    x, shape, old = node.input(0), _stated(node), node.shape(0)
    if shape is None or len(shape) != len(old) or node.opset < 10:
        return None
    number = per_axis(node, node.optional(3), prod(node.shape(1)))
    for axis, extent in enumerate(old):
        start, step = number(node.input(1), axis, 0), number(node.optional(4), axis, 1)
        if start is None or step is None or extent == 0:
            if shape[axis] != extent:
                return None
            continue
        start = wrapped(node, start, extent)
        last = node.call("where", node.call("less", step, _int64(node, 0)), *_numbers(node, extent - 1, extent))
        start = node.call("minimum", start, last)
        steps = node.call("multiply", node.counted(shape[axis]), step)
        x = node.call("take", x, _within(node, node.call("add", start, steps), _int64(node, extent)), axis=axis)
    return x


def per_axis(node: Node, axes: Expr | None, count: int) -> Callable[[Expr | None, int, Extent], Expr | None]:
    """Return a function that gives the number that a list has for an axis; a default where no axis is that.

    It gives None for an axis that is known not to be among `axes`, and the default for a list that is left out.
    """
    rank = node.rank(0)
    known = np.arange(count) if axes is None else node.known(3)
    fixed = None if known is None else [node.axis(int(axis), rank) for axis in known.reshape(-1)]
    named = None if axes is None or fixed is not None else named_axes(node, axes, rank)

    def number(values: Expr | None, axis: int, default: Extent) -> Expr | None:
        if fixed is not None and axis not in fixed:
            return None
        if values is None:
            return _int64(node, default)
        values = node.cast(values, "int64")
        if fixed is not None:
            index = fixed.index(axis)
            return node.reshape(node.cut(values, 0, index, index + 1), ())
        assert named is not None  # axes that are not fixed are named
        column = node.reshape(node.cut(named, 1, axis, axis + 1), (count,))
        given = node.call("sum", node.call("where", column, values, _int64(node, 0)), axis=(0,), keepdims=False)
        is_given = node.call("any", column, axis=(0,), keepdims=False)
        return node.call("where", is_given, given, _int64(node, default))

    return number


@_late("Pad")
def _pad(node: Node, _convert: Convert) -> Expr | None:
    x, shape, old, mode = node.input(0), _stated(node), node.shape(0), node.string("mode", "constant")
    if shape is None or len(shape) != len(old) or 0 in old or node.opset < 11:
        return None
    if mode not in ("constant", "edge", "reflect", "wrap"):
        node.wrong(f"mode '{mode}' is not known")
    count = prod(node.shape(1)) // 2
    before = node.cut(node.input(1), 0, 0, count)
    number = per_axis(node, node.optional(3), count)
    value = node.reshape(node.input(2), ()) if node.has(2) else node.like(0, x)
    for axis, extent in enumerate(old):
        start = number(before, axis, 0)
        if start is None:
            if shape[axis] != extent:
                return None
            continue
        if mode == "constant":
            x = placed(node, x, axis, RunTable(node, node.call("negative", start)), shape[axis], value)
            continue
        cut, kept = _after_cutting(node, start, extent, shape[axis] - extent)
        at = _minus(node, node.counted(shape[axis]), node.call("maximum", start, _int64(node, 0)))
        inside = _mirrored(node, at, kept, mode)
        x = node.call("take", x, _within(node, node.call("add", cut, inside), _int64(node, extent)), axis=axis)
    return x


def _after_cutting(node: Node, before: Expr, extent: Extent, grown: Extent) -> tuple[Expr, Expr]:
    """Return how many elements negative pads cut in front, and how many they leave, at least one."""
    zero, one, size = _numbers(node, 0, 1, extent)
    cut = node.call("maximum", node.call("negative", before), zero)
    cut_behind = node.call("maximum", _minus(node, before, _int64(node, grown)), zero)
    return cut, node.call("maximum", _minus(node, size, node.call("add", cut, cut_behind)), one)


def _mirrored(node: Node, at: Expr, extent: Expr, mode: str) -> Expr:
    """Return the positions that padding repeats."""
    one = _int64(node, 1)
    if mode == "wrap":
        return node.call("floor_mod", at, extent)
    if mode == "reflect":
        period = node.call("multiply", _int64(node, 2), _minus(node, extent, one))
        at = node.call("floor_mod", at, node.call("maximum", period, one))
        at = node.call("minimum", at, _minus(node, period, at))
    return _within(node, at, extent)


def _minus(node: Node, left: Expr, right: Expr) -> Expr:
    return node.call("subtract", left, right)


def _int64(node: Node, value: Any) -> Expr:
    return node.constant(value, "int64")


def _numbers(node: Node, *values: Extent) -> list[Expr]:
    return [_int64(node, value) for value in values]


def wrapped(node: Node, at: Expr, extent: Extent, *, low: bool = True) -> Expr:
    """Return positions counted from the front; none before it unless `low` is False."""
    zero, size = _numbers(node, 0, extent)
    at = node.call("where", node.call("less", at, zero), node.call("add", at, size), at)
    return node.call("maximum", at, zero) if low else at


def _within(node: Node, at: Expr, extent: Expr) -> Expr:
    zero, one = _numbers(node, 0, 1)
    return node.call("minimum", node.call("maximum", at, zero), _minus(node, extent, one))


# Scales and zero points


@_late("QLinearMatMul")
def _qlinear_matmul(node: Node, _convert: Convert) -> Expr | None:
    """Multiply integers less their zero points; the scales meet the sums, which are rounded to even."""
    if any(prod(node.shape(index)) != 1 for index in (1, 2, 4, 5, 6, 7)):
        return None
    sums = matmul(node, centred(node, 0, 2), centred(node, 3, 5))
    a, b, y = (node.cast(node.reshape(node.input(index), ()), "float32") for index in (1, 4, 6))
    real = node.call("multiply", node.cast(sums, "float32"), node.call("divide", node.call("multiply", a, b), y))
    dtype = node.dtype(7)
    limits = np.iinfo(dtype)
    zero_point = node.cast(node.reshape(node.input(7), ()), "float32")
    whole = node.call("add", node.call("round", real), zero_point)
    return node.cast(node.call("clip", whole, a_min=float(limits.min), a_max=float(limits.max)), dtype)
