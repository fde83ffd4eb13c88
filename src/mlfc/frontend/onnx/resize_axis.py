"""Resize one axis by ONNX's definition: the weighted sum of the neighbours of every element.

Coordinates are computed in float32, operation by operation as ONNX Runtime computes them
(onnxruntime/core/providers/cpu/tensor/upsamplebase.h), so that ties fall to the same element. Static axes become
constants; the same formulas of `run_tables` compute the positions and weights of dynamic axes at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.frontend.onnx.run_tables import Numbers, RunTable, as_expr
from mlfc.ops.resampling import TIE
from mlfc.ops.rules import TooSmallError
from mlfc.relay.ir import Expr
from mlfc.support import cost
from mlfc.support.dims import Dim, Extent, bounds, is_static

# bytes of a neighbour of an element of a resized axis while it and its weight are computed
_TAP_BYTES = 64
_EXACT_FACTOR = 256
"""Products of an extent with numbers up to this one are exact in float32 for all extents of practical tensors."""
# What image.resize2d computes just as ONNX does, where the scale is exactly the ratio of the sizes.
_SHARED_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


@dataclass(frozen=True)
class Method:
    """The interpolation of a Resize node: its attributes."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False

    def is_image(self, rank: int) -> bool:
        """Tell whether ``image.resize2d`` may compute a Resize of the last axes of a tensor of `rank` dimensions."""
        is_plain = not (self.exclude_outside or self.antialias)
        return rank == 4 and is_plain and self.coordinates in _SHARED_COORDINATES

    def as_image(self, node: Node, x: Expr, size: tuple[Extent, ...]) -> Expr:
        """Resize the last two axes by ``image.resize2d``."""
        return node.call(
            "image.resize2d", x, size=size, roi=(0.0, 0.0, 0.0, 0.0), layout="NCHW",
            method={"nearest": "nearest_neighbor"}.get(self.mode, self.mode), cubic_alpha=self.cubic_a,
            cubic_exclude=0, coordinate_transformation_mode=self.coordinates,
            rounding_method=self.nearest if self.mode == "nearest" else "",
        )  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """One axis of a Resize; the region of interest has its begin and end in parts of the axis."""

    size: Extent  # elements before
    out: Extent  # elements after
    scale: float | Expr  # a float32, computed at run time where sizes are dynamic; `out` may be rounded from it
    roi: tuple[float, float] = (0.0, 1.0)
    is_ratio: bool = True  # whether the scale is the ratio of the sizes for all sizes

    @property
    def stays(self) -> bool:
        """True if the axis is not resized."""
        return self.size == self.out and self.scale == 1.0

    @property
    def is_static(self) -> bool:
        """True if positions and weights are known at compile time."""
        return is_static((self.size, self.out)) and isinstance(self.scale, float)

    @property
    def is_quotient(self) -> bool:
        """True if the scale of a static axis is the quotient of its sizes in float32."""
        return self.size != 0 and self.scale == float(np.float32(self.out) / np.float32(self.size))  # type: ignore[arg-type]  # numbers


def scaled(node: Node, size: Extent, scale: float | Expr) -> Axis:
    """Return an axis that is resized by a number: ONNX Runtime rounds the product with the size to float32.

    A number that is computed at run time must be from 2 ** -24 to 2 ** 23.
    """
    if not isinstance(scale, float):
        low, high = (node.constant(value, "float32") for value in (2.0**-24, 2.0**23))
        fits = node.call("logical_and", node.call("greater_equal", scale, low), node.call("less", scale, high))
        node.require(fits, f"whether the scales of '{node.name}' are from 2**-24 to 2**23")
        return Axis(size, _product(node, size, node.call("minimum", scale, high)), scale, is_ratio=False)
    exact = Fraction(scale)
    is_ratio = exact.denominator == 1
    if not isinstance(size, Dim):
        return Axis(size, int(np.float32(size) * np.float32(scale)), scale, is_ratio=is_ratio)
    if exact.numerator <= _EXACT_FACTOR:
        return Axis(size, size * exact.numerator // exact.denominator, scale, is_ratio=is_ratio)
    assert node.dynamic is not None  # as sizes are dynamic
    found = node.dynamic.frame.scaled
    if (size, scale) not in found:
        found[size, scale] = _product(node, size, node.constant(scale, "float32"))
    return Axis(size, found[size, scale], scale, is_ratio=False)


def _product(node: Node, size: Extent, scale: Expr) -> Any:
    product = node.call("multiply", node.constant(size, "float32"), scale)
    return node.runtime_size(node.cast(product, "int64"))


def sized(node: Node, size: Extent, out: Extent) -> Axis:
    """Return an axis that is resized to a size; it must have elements."""
    if size != out and isinstance(size, Dim) and bounds(size)[0] < 1:
        raise TooSmallError(node.operator, size, 1, "elements")
    return Axis(size, out, 1.0 if out == size else _ratio(node, size, out))


def _ratio(node: Node, size: Extent, out: Extent) -> float | Expr:
    if is_static((size, out)):
        return float(np.float32(int(out)) / np.float32(int(size)))  # type: ignore[arg-type]  # numbers
    return node.call("divide", *(node.constant(extent, "float32") for extent in (out, size)))


def within_sizes(node: Node, sizes: Sequence[Extent], axes: Sequence[int], *, larger: bool) -> list[Axis]:
    """Return axes that are resized by one factor: the smallest, or largest, that gives one of them its size."""
    shape = node.shape(0)
    found = [Axis(size, size, 1.0) for size in shape]
    ratios = [_ratio(node, shape[axis], size) for size, axis in zip(sizes, axes, strict=True)]
    static = [ratio for ratio in ratios if isinstance(ratio, float)]
    if len(static) == len(ratios):
        best = max(static) if larger else min(static)
        for axis in axes:
            whole = int(_rounded(np.float32(best) * np.float32(shape[axis])))
            found[axis] = Axis(shape[axis], whole, best, is_ratio=False)
        return found
    exprs = [node.constant(ratio, "float32") if isinstance(ratio, float) else ratio for ratio in ratios]
    chosen = reduce(lambda one, other: node.call("maximum" if larger else "minimum", one, other), exprs)
    for axis in axes:
        product = RunTable(node, node.call("multiply", node.constant(shape[axis], "float32"), chosen))
        out = node.runtime_size(node.cast(_rounded(product).expr, "int64"))
        found[axis] = Axis(shape[axis], out, chosen, is_ratio=False)
    return found


def copies(node: Node, axes: Sequence[Axis]) -> Numbers:
    """Return whether no axis changes its size: ONNX Runtime copies the tensor then, whatever the scales are."""
    changed = [axis for axis in axes if axis.size != axis.out]
    if any(is_static((axis.size, axis.out)) or (isinstance(axis.scale, float) and not 1 <= axis.scale < 2)
           for axis in changed):  # fmt: skip
        return False
    if not changed or all(axis.is_ratio for axis in changed):
        return not changed
    sizes = [[RunTable(node, node.constant(size, "int64")) for size in (axis.size, axis.out)] for axis in changed]
    return reduce(lambda one, other: one & other, [size == out for size, out in sizes])


def along(node: Node, x: Expr, index: int, axis: Axis, method: Method, extrapolated: float, copied: Numbers) -> Expr:
    """Return `x` with one axis resized, or unchanged if it is `copied`, which may be a runtime value."""
    shrink = min(axis.scale, 1.0) if method.antialias and isinstance(axis.scale, float) else 1.0
    if method.antialias and not isinstance(axis.scale, float):
        node.unsupported("with antialias to a dynamic size is not supported", "Give the inputs static shapes")
    reach = {"nearest": 0.5, "linear": 1.0}.get(method.mode, 2.0)
    if axis.is_static:
        cost.require("constants", int(_TAP_BYTES * axis.out * 2 * math.ceil(reach / shrink)), node.name)
    at, last = _coordinates(node, axis, method.coordinates)
    unchanged = None if axis.is_static else _is_unchanged(node, axis, method, copied)
    if unchanged is not None:
        own: Numbers = RunTable(node, node.counted(axis.out, "float32"))
        at = np.where(unchanged, own, at)
    column = [axis.out if position == index else 1 for position in range(len(shape_of(x)))]
    if method.mode == "nearest":
        rounded = _rounded_simply(node, axis, at) if method.nearest == "simple" else _ROUNDINGS[method.nearest](at)
        places = np.clip(rounded, 0, last)
        result = node.call("take", x, as_expr(node, places, "int32" if axis.is_static else "int64"), axis=index)
    else:
        if method.mode == "linear" and shrink == 1.0:
            at_inside = np.clip(at, 0, last)
        else:
            at_inside = at
        positions, weights = _neighbours(axis, method, at_inside, reach, shrink)
        tables = as_expr(node, positions, "int32" if axis.is_static else "int64"), as_expr(node, weights, "float32")
        result = weighted(node, x, index, *tables)
    if method.coordinates == "tf_crop_and_resize":
        outside = (at < 0) | (last < at)
        if not isinstance(outside, np.ndarray) or outside.any():
            flags = node.reshape(as_expr(node, outside, "bool"), column)
            result = node.call("where", flags, node.like(extrapolated, result), result)
    return result


def _is_unchanged(node: Node, axis: Axis, method: Method, copied: Numbers) -> Numbers:
    """Return the run-time condition on which ONNX Runtime leaves a dynamic axis as it is; None for never."""
    if method.antialias:
        sizes = (RunTable(node, node.constant(size, "int64")) for size in (axis.size, axis.out))
        return next(sizes) == next(sizes)
    if method.coordinates in ("tf_crop_and_resize", "tf_half_pixel_for_nn"):  # others keep an axis of scale 1
        scale = node.constant(axis.scale, "float32") if isinstance(axis.scale, float) else axis.scale
        kept = RunTable(node, scale) == 1.0
        return kept | copied if isinstance(copied, RunTable) else kept
    return copied if isinstance(copied, RunTable) else None


def _rounded_simply(node: Node, axis: Axis, at: Any) -> Any:
    """Round as Upsample and Resize of opset 10: up if the axis shrinks."""
    if isinstance(axis.scale, float):
        return np.ceil(at) if axis.scale < 1 else np.floor(at)
    return np.where(RunTable(node, axis.scale) < 1.0, np.ceil(at), np.floor(at))


def weighted(node: Node, x: Expr, index: int, places: Expr, weights: Expr) -> Expr:
    """Return the weighted sums of the elements of an axis at places, of shape (elements of the result, taps).

    A sum of two products becomes one operation with either of them, code of other extents might choose the other: a
    reduction has one order.
    """
    rank = len(shape_of(x))
    elements = node.call("take", x, places, axis=index)
    factors = node.reshape(weights, (*shape_of(weights), *(1,) * (rank - index - 1)))
    return node.call("sum", node.call("multiply", elements, factors), axis=(index + 1,))


def _coordinates(node: Node, axis: Axis, mode: str) -> tuple[Any, Any]:
    """Return the coordinate in the input of every element of the result, and that of the last input element."""

    def number(value: Extent | float | Expr) -> Any:
        if axis.is_static:
            return np.float32(value)  # type: ignore[arg-type]  # no expression, as the axis is static
        return RunTable(node, node.constant(value, "float32") if isinstance(value, (int, float, Dim)) else value)

    at: Any = RunTable(node, node.counted(axis.out, "float32"))
    if axis.is_static:
        at = np.arange(axis.out, dtype=np.float32)  # type: ignore[arg-type]  # a number
    size, out, scale = number(axis.size), number(axis.out), number(axis.scale)
    last = size - 1

    def unless_single(found: Callable[[], Any], single: Any) -> Any:
        low, high = bounds(axis.out)
        if high <= 1:
            return at * 0.0 + single
        return found() if low > 1 else np.where(out == 1.0, single, found())

    def times(a: Any, b: Any) -> Any:
        # float64 holds the product: no compiler fuses it with the sum that follows
        return (a.astype("float64") * b.astype("float64")).astype("float32")

    if mode == "asymmetric":
        return at / scale, last
    if mode == "tf_half_pixel_for_nn":
        return (at + 0.5) / scale, last
    if mode == "align_corners":
        return unless_single(lambda: at * last / (out - 1), number(0.0)), last
    if mode == "tf_crop_and_resize":
        begin, end = map(number, axis.roi)
        whole = unless_single(
            lambda: times(begin, last) + times(at * (end - begin), last) / (out - 1), (begin + end) * 0.5 * last
        )
        return whole, last
    half_pixel = (at + 0.5) / scale
    if mode == "half_pixel_symmetric":  # what is cut off of the last element is cut off on both sides
        half_pixel = times(size / 2.0, -(out / (scale * size) - 1)) + half_pixel
    if mode == "pytorch_half_pixel":
        return unless_single(lambda: half_pixel - 0.5, number(0.0)), last
    return half_pixel - 0.5, last


def _neighbours(axis: Axis, method: Method, at: Any, reach: float, shrink: float) -> tuple[Numbers, Any]:
    """Return tables of the neighbours of every element and of their weights, of shape (elements, neighbours)."""
    below = np.floor(at)
    fraction = (at - below).astype("float64")
    first = math.floor(-reach / shrink) + 1
    steps = np.arange(first, 2 - first) if shrink < 1.0 else np.arange(1 - int(reach), 1 + int(reach))
    distance = np.abs((fraction[:, None] - steps[None, :]) * shrink)
    if method.mode == "linear":
        weights: Any = np.clip(-distance + 1.0, 0.0, 1.0)
    else:
        a = method.cubic_a
        near = ((distance * (a + 2) - (a + 3)) * distance * distance) + 1.0
        far = ((distance * a - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance < 1.0, near, np.where(distance < 2.0, far, 0.0))
    positions: Any = below.astype("int64")[:, None] + steps[None, :]
    if method.exclude_outside:
        weights = np.where((positions >= 0) & (positions < axis.size), weights, 0.0)
    if method.exclude_outside or shrink < 1.0:
        weights = weights / weights.sum(axis=1)[:, None]
    return np.clip(positions, 0, axis.size - 1), weights


def _rounded(at: Any, more: float = 0.0) -> Any:
    """Round to the nearest integer; up where the fraction exceeds 0.5 by at least `more`."""
    below = np.floor(at)
    return np.where(at - below - 0.5 < more, below, below + 1.0)


_ROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda at: _rounded(at, TIE),
    "round_prefer_ceil": lambda at: _rounded(at, -TIE),
    "floor": np.floor,
    "ceil": np.ceil,
}
