"""Operators whose output shape depends on an input that is not constant, with the shape that the model declares.

An importer asks for the value of such an input. Where that is only known at run time, the operator's function in this
file takes the shape from what the model declares of the node's outputs, and computes with the value whatever else
depends on it. Every run requires the value to agree with the declared shape. A value that does not agree never causes
an access outside a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.linear import matmul
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.quantized import centred
from mlfc.frontend.onnx.run_tables import RunTable, placed
from mlfc.frontend.onnx.runtime_values import (
    Convert,
    Results,
    asked_shape,
    int64,
    kept_steps,
    named_axes,
    per_axis,
    range_count,
    within,
)
from mlfc.relay.ir import Expr
from mlfc.support.dims import Extent

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[Any, ...]
# takes a node, the operator's importer and the declared shape; returns None where that does not determine the result
Declared: TypeAlias = "Callable[[Node, Convert, Shape], Results | None]"

_CANDIDATE_LIMIT = 8  # sets of axes that give the declared shape: each is computed
_LARGEST_LIST = 64  # sets of axes that are compared
_DECLARED: dict[str, Declared] = {}
_OF_ANY_SHAPE: dict[str, Callable[[Node, Convert], Results | None]] = {}


def _declared(*operators: str) -> Callable[[Declared], Declared]:
    def register(function: Declared) -> Declared:
        _DECLARED.update(dict.fromkeys(operators, function))
        return function

    return register


def declared_result(node: Node, convert: Convert) -> Results | None:
    """Return the result of a node in the shape that the model declares, which runs check; None where it does not."""
    if node.operator in _OF_ANY_SHAPE:
        return _OF_ANY_SHAPE[node.operator](node, convert)
    shape = next((shape for shape in node.declared if shape is not None), None)
    function = _DECLARED.get(node.operator)
    return None if function is None or shape is None else function(node, convert, shape)


def _require(node: Node, flags: Expr) -> None:
    """Require bools to be true."""
    flag = node.call("all", node.reshape(flags, (prod(shape_of(flags)),)), axis=(0,), keepdims=False)
    node.require(flag, f"whether '{node.name}' gives the shape that the model declares")


def _require_size(node: Node, number: Expr, size: Extent) -> None:
    _require(node, node.call("equal", number, int64(node, size)))


def _require_axes(node: Node, named: Expr, candidates: Sequence[Array]) -> None:
    """Require the named axes to be one of some sets."""
    given = node.call("any", named, axis=(0,), keepdims=False)
    same = node.call("equal", node.constant(np.stack(candidates), "bool"), given)
    _require(node, node.call("any", node.call("all", same, axis=(1,), keepdims=False), axis=(0,), keepdims=False))


def _sets(rank: int, count: int, fits: Callable[[tuple[int, ...]], bool]) -> list[Array]:
    """Return the sets of `count` axes that fit, as masks of the dimensions."""
    return [np.isin(np.arange(rank), axes) for axes in combinations(range(rank), count) if fits(axes)]


# The value follows from the shape


def _by_value(
    value_of: Callable[[Node, Shape], Sequence[Any] | None], index: int, node: Node, convert: Convert, shape: Shape
) -> Results | None:
    """Import a node with the input value that gives the declared shape; elements that are None may have any value."""
    value = value_of(node, shape) if node.has(index) else None
    if value is None:
        return None
    if prod(node.shape(index)) != len(value):
        node.wrong(
            f"expected {len(value)} numbers in input {index} for the declared shape, got {prod(node.shape(index))}"
        )
    numbers = [1 if item is None else item for item in value]
    result = convert(node.with_value(index, np.reshape(numbers, node.shape(index))))
    given = node.cast(node.reshape(node.input(index), (len(value),)), "int64")
    places = [place for place, item in enumerate(value) if item is not None]
    if places:
        asked = node.call("take", given, int64(node, places), axis=0)
        _require(node, node.call("equal", asked, int64(node, [value[place] for place in places])))
    return result


def _repeats(node: Node, shape: Shape) -> Sequence[Any] | None:
    old = node.shape(0)
    if len(shape) != len(old) or 0 in old:
        return None
    return [new // extent for new, extent in zip(shape, old, strict=True)]


def _lengths(node: Node, _shape: Shape) -> Sequence[Any] | None:
    axis = node.axis(node.integer("axis", 0), node.rank(0))
    shapes = node.declared[: len(node.outputs)]
    sizes = [shape[axis] for shape in shapes if shape is not None and axis < len(shape)]
    return sizes if len(sizes) == len(node.outputs) else None


def _size_along(node: Node, shape: Shape) -> Sequence[Any] | None:
    rank = node.rank(0) + (node.operator == "OneHot")
    return [shape[node.axis(node.integer("axis", -1), rank)]] if len(shape) == rank else None


def _sizes(node: Node, shape: Shape) -> Sequence[Any] | None:
    """Return sizes; scales do not follow from the shape, and neither does what keeps an aspect ratio."""
    rank, stretched = node.rank(0), node.string("keep_aspect_ratio_policy", "stretch") == "stretch"
    if len(shape) != rank or not stretched:
        return None
    axes = [node.axis(axis, rank) for axis in node.integers("axes", range(rank))]
    if any(shape[axis] != node.shape(0)[axis] for axis in range(rank) if axis not in axes):
        return None
    return [shape[axis] for axis in axes]


_DECLARED.update(
    {
        "ConstantOfShape": partial(_by_value, lambda _, shape: shape, 0),
        "MaxUnpool": partial(_by_value, lambda _, shape: shape, 2),
        # the number of channels changes nothing in the grid
        "AffineGrid": partial(
            _by_value, lambda _, shape: [shape[0], None, *shape[1:-1]] if len(shape) > 3 else None, 1
        ),
        "Tile": partial(_by_value, _repeats, 1),
        "Split": partial(_by_value, _lengths, 1),
        "CenterCropPad": partial(_by_value, _sizes, 1),
        "Resize": partial(_by_value, _sizes, 3),
        **dict.fromkeys(("OneHot", "TopK"), partial(_by_value, _size_along, 1)),
        **dict.fromkeys(
            ("BlackmanWindow", "HammingWindow", "HannWindow"), partial(_by_value, lambda _, shape: [prod(shape)], 0)
        ),
    }
)


@_declared("Reshape")
def _reshape(node: Node, _convert: Convert, shape: Shape) -> Results | None:
    node.attribute("allowzero")
    if prod(shape) != prod(node.shape(0)):
        return None
    if shape_of(node.input(1)) == (len(shape),) and shape:
        _require(node, node.call("equal", asked_shape(node), int64(node, shape)))
    return node.reshape(node.input(0), shape)


@_declared("Squeeze", "Unsqueeze")
def _with_other_ones(node: Node, _convert: Convert, shape: Shape) -> Results | None:
    if prod(shape) != prod(node.shape(0)):
        return None
    old = node.shape(0)
    longer, shorter = (old, shape) if node.operator == "Squeeze" else (shape, old)

    def fits(axes: tuple[int, ...]) -> bool:
        rest = [extent for axis, extent in enumerate(longer) if axis not in axes]
        return all(longer[axis] == 1 for axis in axes) and rest == [*shorter]

    fitting = _sets(len(longer), len(longer) - len(shorter), fits) if len(longer) >= len(shorter) else []
    if 0 < len(fitting) <= _LARGEST_LIST:
        _require_axes(node, named_axes(node, node.input(1), len(longer)), fitting)
    return node.reshape(node.input(0), shape)


@_declared("Expand")
def _expand(node: Node, convert: Convert, shape: Shape) -> Results | None:
    """Require the value, broadcast with the tensor, to be the declared shape."""
    result = convert(node.with_value(1, shape))
    rank = prod(node.shape(1))
    asked = node.cast(node.reshape(node.input(1), (rank,)), "int64")
    old = [1] * (len(shape) - len(node.shape(0))) + list(node.shape(0))
    same = node.call("equal", asked, int64(node, shape[len(shape) - rank :]))
    is_one = node.call("equal", asked, int64(node, 1))
    keeps = [now == before for now, before in zip(shape, old, strict=True)][len(shape) - rank :]
    if rank:
        _require(node, node.call("logical_or", same, node.call("logical_and", is_one, node.constant(keeps, "bool"))))
    return result


# One of few values


@_declared(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def _reduce(node: Node, convert: Convert, shape: Shape) -> Results | None:
    """Reduce along each set of axes that gives the declared shape, and select the result at run time."""
    old, keep = node.shape(0), node.flag("keepdims", 1)
    if len(node.shape(1)) > 1:
        return None

    def fits(axes: tuple[int, ...]) -> bool:
        sizes = [1 if axis in axes else extent for axis, extent in enumerate(old) if keep or axis not in axes]
        return sizes == [*shape]

    count = prod(node.shape(1))
    fitting = _sets(len(old), count, fits)
    if not 0 < len(fitting) <= _CANDIDATE_LIMIT:
        return None
    along = [convert(node.with_value(1, np.flatnonzero(axes))) for axes in fitting]
    named = named_axes(node, node.input(1), len(old)) if count else None
    result = _chosen(node, named, fitting, along)
    if named is not None:
        _require_axes(node, named, fitting)
    return result


def _running(node: Node, convert: Convert) -> Results | None:
    rank = node.rank(0)
    if prod(node.shape(1)) != 1 or not 0 < rank <= _CANDIDATE_LIMIT:
        return None
    along = [convert(node.with_value(1, axis)) for axis in range(rank)]
    named = named_axes(node, node.input(1), rank)
    result = _chosen(node, named, list(np.eye(rank, dtype=bool)), along)
    _require(node, node.call("any", named, axis=(0, 1), keepdims=False))
    return result


def _chosen(node: Node, named: Expr | None, masks: Sequence[Array], results: Sequence[Results]) -> Expr:
    """Return the result whose mask equals the named dimensions; the last if none does."""
    found, *others = [result[0] if isinstance(result, Sequence) else result for result in reversed(results)]
    if named is None or not others:
        return found
    given = node.call("any", named, axis=(0,), keepdims=False)
    for mask, result in zip(reversed(masks[:-1]), others, strict=True):
        same = node.call("equal", given, node.constant(mask, "bool"))
        found = node.call("where", node.call("all", same, axis=(0,), keepdims=False), result, found)
    return found


# Positions computed at run time


@_declared("Range")
def _range(node: Node, _convert: Convert, shape: Shape) -> Results | None:
    if len(shape) != 1:
        return None
    start, limit, delta = (node.reshape(node.input(index), ()) for index in range(3))
    _require_size(node, range_count(node, start, limit, delta), shape[0])
    return node.call("add", start, node.call("multiply", node.counted(shape[0], dtype_of(start)), delta))


@_declared("Slice")
def _slice(node: Node, _convert: Convert, shape: Shape) -> Results | None:
    x, old = node.input(0), node.shape(0)
    cuts = slices(node)
    if cuts is None or len(shape) != len(old):
        return None
    whole = [axis for axis, extent in enumerate(old) if axis not in cuts or extent == 0]
    if any(shape[axis] != old[axis] for axis in whole):
        return None
    for axis, (begin, step, steps) in cuts.items():
        _require_size(node, steps, shape[axis])
        if axis not in whole:
            at = node.call("add", begin, node.call("multiply", node.counted(shape[axis]), step))
            x = node.call("take", x, within(node, at, int64(node, old[axis])), axis=axis)
    return x


def slices(node: Node) -> dict[int, tuple[Expr, Expr, Expr]] | None:
    """Return the first position, step and number of elements of each axis that a Slice cuts, as ONNX limits them."""
    if node.opset < 10:
        return None
    axes = node.optional(3)
    number = per_axis(node, axes, prod(node.shape(1) if axes is None else shape_of(axes)))
    cuts = {}
    for axis, extent in enumerate(node.shape(0)):
        lists = (node.input(1), 0), (node.input(2), extent), (node.optional(4), 1)
        cut = [number(values, axis, default) for values, default in lists]
        given = [item for item in cut if item is not None]
        if len(given) == len(cut):
            cuts[axis] = kept_steps(node, extent, given)
    return cuts


@_declared("Pad")
def _pad(node: Node, _convert: Convert, shape: Shape) -> Results | None:
    result = padded(node, shape)
    if result is not None:
        for axis, total in grown_by(node).items():
            _require_size(node, total, shape[axis] - node.shape(0)[axis])
    return result


def grown_by(node: Node) -> dict[int, Expr]:
    """Return the sum of the pads of each axis that a Pad may change."""
    count = prod(node.shape(1)) // 2
    number = per_axis(node, node.optional(3), count)
    ends = [node.cut(node.input(1), 0, begin, begin + count) for begin in (0, count)]
    pads = {axis: [number(end, axis, 0) for end in ends] for axis in range(node.rank(0))}
    return {axis: node.call("add", *pair) for axis, pair in pads.items() if None not in pair}  # type: ignore[arg-type]


def padded(node: Node, shape: Shape) -> Expr | None:
    """Return the result of a Pad whose pads are computed, in a shape that follows from them."""
    x, old, mode = node.input(0), node.shape(0), node.string("mode", "constant")
    if len(shape) != len(old) or 0 in old or node.opset < 11:
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
        pads = node.call("maximum", start, int64(node, 0))
        inside = _mirrored(node, node.call("subtract", node.counted(shape[axis]), pads), kept, mode)
        x = node.call("take", x, within(node, node.call("add", cut, inside), int64(node, extent)), axis=axis)
    return x


def _after_cutting(node: Node, before: Expr, extent: Extent, grown: Extent) -> tuple[Expr, Expr]:
    """Return how many elements negative pads cut in front, and how many they leave, at least one."""
    zero, one, size = (int64(node, value) for value in (0, 1, extent))
    cut = node.call("maximum", node.call("negative", before), zero)
    cut_behind = node.call("maximum", node.call("subtract", before, int64(node, grown)), zero)
    return cut, node.call("maximum", node.call("subtract", size, node.call("add", cut, cut_behind)), one)


def _mirrored(node: Node, at: Expr, extent: Expr, mode: str) -> Expr:
    """Return the positions that padding repeats."""
    one = int64(node, 1)
    if mode == "wrap":
        return node.call("floor_mod", at, extent)
    if mode == "reflect":
        period = node.call("multiply", int64(node, 2), node.call("subtract", extent, one))
        at = node.call("floor_mod", at, node.call("maximum", period, one))
        at = node.call("minimum", at, node.call("subtract", period, at))
    return within(node, at, extent)


# Scales and zero points


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


_OF_ANY_SHAPE.update({"QLinearMatMul": _qlinear_matmul, "CumProd": _running, "CumSum": _running})
