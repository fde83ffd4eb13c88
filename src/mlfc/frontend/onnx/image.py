"""Resizing images and tensors by ONNX's definition of Resize."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.node import Node, dtype_of, is_float, shape_of
from mlfc.frontend.onnx.open_resize import OpenAxis, late_scaled, resized, scaled, weighted, within_sizes
from mlfc.frontend.onnx.resize_method import Method
from mlfc.frontend.onnx.table import importer
from mlfc.ops.resampling import AxisResize, nearest_taps
from mlfc.relay.ir import Expr
from mlfc.support import cost
from mlfc.support.dims import is_static

Floats: TypeAlias = "npt.NDArray[np.float64]"
Ints: TypeAlias = "npt.NDArray[np.int64]"

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)  # fmt: skip
_POLICIES = ("not_larger", "not_smaller")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Axis:
    """One axis of a Resize; the region of interest has its begin and end in parts of the axis."""

    size: int  # extent before
    out: int  # extent after
    scale: Fraction  # as the model gives it, exactly; `out` may be rounded from it
    roi: tuple[float, float] = (0.0, 1.0)
    is_ratio: bool = True  # whether the scale is the ratio of the extents, and would be of any others


@dataclass(frozen=True)
class Taps:
    """Element i of the result is ``sum(weights[i, k] * x[positions[i, k]])``; `outside` is beyond the input."""

    positions: Ints
    weights: Floats
    outside: npt.NDArray[np.bool_]


def source_coordinates(axis: Axis, mode: str) -> tuple[Ints, Floats]:
    """Return the position in the input of every element of the result: the whole number below it, and the rest.

    Positions are computed exactly, as a ratio of integers: floats would put some on the wrong side of an element.
    """
    if mode == "tf_crop_and_resize":
        at = _cropped(axis)
        whole = np.floor(at)
        return whole.astype(np.int64), at - whole
    numerators, denominator = _ratio(axis, mode, np.arange(axis.out, dtype=np.int64))
    return numerators // denominator, numerators % denominator / denominator


def _cropped(axis: Axis) -> Floats:
    begin, end = axis.roi
    last = axis.size - 1
    if axis.out == 1:
        return np.full(1, 0.5 * (begin + end) * last)
    return begin * last + np.arange(axis.out) * (end - begin) * last / (axis.out - 1)


def _ratio(axis: Axis, mode: str, at: Ints) -> tuple[Ints, int]:
    """Return numerators and their denominator; both stay far below 2**63, for at is below size times scale."""
    over, under = axis.scale.numerator, axis.scale.denominator
    if mode == "align_corners":
        return (at * (axis.size - 1), axis.out - 1) if axis.out > 1 else (at, 1)
    if mode == "asymmetric":
        return at * under, over
    if mode == "pytorch_half_pixel" and axis.out == 1:
        return at, 1
    middle = (2 * at + 1) * under  # (at + 1/2) / scale, in halves of 1 / over
    if mode == "tf_half_pixel_for_nn":
        return middle, 2 * over
    if mode == "half_pixel_symmetric":  # what is cut off of the last element is cut off on both sides
        middle = middle + axis.size * over - axis.out * under
    return middle - over, 2 * over


def taps(axis: Axis, method: Method) -> Taps:
    """Return where the elements of the resized axis come from."""
    below, fraction = source_coordinates(axis, method.coordinates)
    outside = (below < 0) | (below + fraction > axis.size - 1)
    if method.mode == "nearest":
        chosen = below + _ABOVE[method.nearest](fraction)
        return Taps(_limited(chosen[:, None], axis.size), np.ones((axis.out, 1)), outside)
    shrink = float(min(axis.scale, Fraction(1))) if method.antialias else 1.0
    reach = _reach(method)
    first = int(np.floor(-reach / shrink)) + 1
    steps = np.arange(first, 2 - first) if shrink < 1.0 else np.arange(1 - reach, 1 + reach)
    distance = (steps[None, :] - fraction[:, None]) * shrink
    weights = _linear(distance) if method.mode == "linear" else _cubic(distance, method.cubic_a)
    positions = below[:, None] + steps[None, :]
    if method.exclude_outside:
        weights = np.where((positions < 0) | (positions >= axis.size), 0.0, weights)
    if method.exclude_outside or shrink < 1.0:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return Taps(_limited(positions, axis.size), weights, outside)


def _reach(method: Method) -> int:
    """Return how many neighbours on each side an element between others is made of."""
    return 1 if method.mode == "linear" else 2


_ABOVE: dict[str, Callable[[Floats], npt.NDArray[np.bool_]]] = {
    "round_prefer_floor": lambda fraction: fraction > 0.5,
    "round_prefer_ceil": lambda fraction: fraction >= 0.5,
    "floor": lambda fraction: fraction >= 1.0,
    "ceil": lambda fraction: fraction > 0.0,
}
"""Which positions are rounded to the element above, by what they are behind the point."""


def _limited(positions: Ints, size: int) -> Ints:
    return np.clip(positions, 0, size - 1)


def _linear(distance: Floats) -> Floats:
    return np.clip(1.0 - np.abs(distance), 0.0, 1.0)


def _cubic(distance: Floats, a: float) -> Floats:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


_SIZE_LIMIT = 1 << 24
# of a neighbour of an element of a resized axis while they and their weights are worked out
_TAP_BYTES = 64


@importer("Upsample")
def _upsample_attributes(node: Node) -> Expr:
    return _upsampled(node, node.reals("scales"))


@importer("Upsample", since=9)
@importer("Resize", since=10)
def _upsample(node: Node) -> Expr:
    return _upsampled(node, tuple(float(scale) for scale in node.value(1, "scales").reshape(-1)))


def _upsampled(node: Node, scales: Sequence[float]) -> Expr:
    mode = {"bilinear": "linear"}.get(node.string("mode", "nearest"), node.string("mode", "nearest"))
    if mode not in ("nearest", "linear"):
        node.wrong(f"mode '{mode}' is not known")
    method = Method(mode, "asymmetric", "floor")
    if not is_static(node.shape(0)):
        return _open_resized(node, scales, range(node.rank(0)), method)
    return _resized(node, _scaled_axes(node, scales, range(node.rank(0))), method, 0.0)


def _open_resized(node: Node, scales: Sequence[float], axes: Sequence[int], method: Method) -> Expr:
    """Resize by scales a tensor whose extents the run decides."""
    if len(scales) != len(axes) or any(not 0 < scale < _SIZE_LIMIT for scale in scales):
        node.wrong(f"scales {tuple(scales)} do not fit the axes {tuple(axes)} of a tensor of shape {node.shape(0)}")
    found = [OpenAxis(size, size, 1, 1) for size in node.shape(0)]
    for axis, scale in zip(axes, scales, strict=True):
        found[axis] = scaled(node.shape(0)[axis], scale)
    return resized(node, found, method)


@importer("Resize", since=11)
def _resize(node: Node) -> Expr:
    rank = node.rank(0)
    axes = [node.axis(axis, rank) for axis in node.integers("axes", range(rank))]
    method = Method(
        node.string("mode", "nearest"), node.string("coordinate_transformation_mode", "half_pixel"),
        node.string("nearest_mode", "round_prefer_floor"), node.real("cubic_coeff_a", -0.75),
        bool(node.integer("exclude_outside", 0)), bool(node.integer("antialias", 0)),
    )  # fmt: skip
    if method.mode not in ("nearest", "linear", "cubic"):
        node.wrong(f"mode '{method.mode}' is not known")
    if method.coordinates not in COORDINATES or method.nearest not in NEAREST:
        node.wrong(f"'{method.coordinates}' with '{method.nearest}' is not known")
    extrapolated = node.real("extrapolation_value", 0.0)
    policy = node.string("keep_aspect_ratio_policy", "stretch")
    if node.dynamic is not None and node.has(2) and node.known(2) is None and node.shape(2) == (len(axes),):
        return resized(node, late_scaled(node, node.input(2), axes), method)
    scales = node.value(2, "scales").reshape(-1) if node.has(2) else ()
    if not is_static(node.shape(0)) and len(scales):
        return _open_resized(node, [float(scale) for scale in scales], axes, method)
    if len(scales):
        found = _scaled_axes(node, [float(scale) for scale in scales], axes)
    elif node.has(3):
        sizes = node.int_values(3, "sizes")
        if not is_static((*node.shape(0), *sizes)) and policy == "stretch" and len(sizes) == len(axes):
            own = [OpenAxis(size, size, 1, 1) for size in node.shape(0)]
            for axis, size in zip(axes, sizes, strict=True):
                own[axis] = OpenAxis(node.shape(0)[axis], size, size, node.shape(0)[axis])
            return resized(node, own, method)
        if not is_static((*node.shape(0), *sizes)) and policy in _POLICIES and len(sizes) == len(axes):
            return resized(node, within_sizes(node, sizes, axes, larger=policy == _POLICIES[1]), method)
        found = _sized_axes(node, sizes, axes, policy)
    else:
        node.wrong("neither scales nor sizes are given")
    if method.coordinates == "tf_crop_and_resize":
        found = _with_regions(node, found, axes)
    return _resized(node, found, method, extrapolated)


def _scaled_axes(node: Node, scales: Sequence[float], axes: Sequence[int]) -> list[Axis]:
    shape = node.shape(0)
    if len(scales) != len(axes) or any(not 0 < scale < _SIZE_LIMIT for scale in scales):
        node.wrong(f"scales {tuple(scales)} do not fit the axes {tuple(axes)} of a tensor of shape {shape}")
    found = [Axis(size, size, Fraction(1)) for size in shape]
    for axis, scale in zip(axes, scales, strict=True):
        exact = Fraction(scale)
        found[axis] = Axis(shape[axis], math.floor(shape[axis] * exact), exact, is_ratio=exact.denominator == 1)
    return found


def _sized_axes(node: Node, sizes: Sequence[int], axes: Sequence[int], policy: str) -> list[Axis]:
    shape = node.shape(0)
    if len(sizes) != len(axes) or any(not 0 < size < _SIZE_LIMIT for size in sizes) or 0 in shape:
        node.wrong(f"sizes {tuple(sizes)} do not fit the axes {tuple(axes)} of a tensor of shape {shape}")
    ratios = [Fraction(size, shape[axis]) for size, axis in zip(sizes, axes, strict=True)]
    if policy in _POLICIES:
        common = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [common] * len(axes)
        sizes = [math.floor(common * shape[axis] + Fraction(1, 2)) for axis in axes]
    elif policy != "stretch":
        node.wrong(f"keep_aspect_ratio_policy '{policy}' is not known")
    found = [Axis(size, size, Fraction(1)) for size in shape]
    for axis, size, ratio in zip(axes, sizes, ratios, strict=True):
        found[axis] = Axis(shape[axis], size, ratio, is_ratio=policy == "stretch")
    return found


def _with_regions(node: Node, found: Sequence[Axis], axes: Sequence[int]) -> list[Axis]:
    roi = [float(edge) for edge in node.value(1, "roi").reshape(-1)]
    if len(roi) != 2 * len(axes):
        node.wrong(f"roi has {len(roi)} numbers for {len(axes)} axes")
    regions = list(found)
    for position, axis in enumerate(axes):
        old = found[axis]
        regions[axis] = Axis(old.size, old.out, old.scale, (roi[position], roi[len(axes) + position]))
    return regions


def _resized(node: Node, axes: Sequence[Axis], method: Method, extrapolated: float) -> Expr:
    x = node.input(0)
    if any(not 0 < axis.out < _SIZE_LIMIT and axis.size != 0 for axis in axes):
        node.wrong(f"a tensor of shape {node.shape(0)} cannot become {tuple(axis.out for axis in axes)}")
    if is_float(x) and _is_plain_image(node, axes, method):
        return method.as_image(node, x, (axes[2].out, axes[3].out))
    dtype = dtype_of(x)
    if method.mode != "nearest":
        x = node.cast(x, "float32")
    for index, axis in enumerate(axes):
        if axis.out != axis.size or axis.scale != 1 or method.coordinates == "tf_crop_and_resize":
            x = _along(node, x, index, axis, method, extrapolated)
    return node.cast(x, dtype)


def _is_plain_image(node: Node, axes: Sequence[Axis], method: Method) -> bool:
    """Tell whether ``image.resize2d`` computes the same."""
    if not method.is_image(len(axes)) or any(axis.out != axis.size for axis in axes[:2]):
        return False
    if method.mode == "nearest":
        exact = all(axis.scale * axis.size == axis.out for axis in axes)
        return exact and all(_is_nearest_alike(node, axis, method) for axis in axes[2:])
    return all(axis.is_ratio for axis in axes)  # whatever the size is, as code of open extents has to know


def _is_nearest_alike(node: Node, axis: Axis, method: Method) -> bool:
    """Tell whether ``image.resize2d``, which computes positions in float32, takes the elements that ONNX defines."""
    plan = AxisResize(axis.size, axis.out, method.coordinates)
    return np.array_equal(nearest_taps(plan, method.nearest).indices, _counted_taps(node, axis, method).positions)


def _counted_taps(node: Node, axis: Axis, method: Method) -> Taps:
    spread = max(1, math.ceil(1 / axis.scale)) if method.antialias else 1
    count = 1 if method.mode == "nearest" else 2 * _reach(method) * spread
    cost.require("constants", _TAP_BYTES * axis.out * count, node.name)
    return taps(axis, method)


def _along(node: Node, x: Expr, index: int, axis: Axis, method: Method, extrapolated: float) -> Expr:
    """Resize one axis: gather the neighbours of every element and add them, weighted."""
    found = _counted_taps(node, axis, method)
    column = [axis.out if position == index else 1 for position in range(len(shape_of(x)))]
    if method.mode == "nearest":
        result = node.call("take", x, node.constant(found.positions[:, 0], "int32"), axis=index)
    else:
        places, weights = (
            node.constant(table, dtype) for table, dtype in ((found.positions, "int32"), (found.weights, dtype_of(x)))
        )
        result = weighted(node, x, index, places, weights)
    if method.coordinates == "tf_crop_and_resize" and found.outside.any():
        outside = node.constant(found.outside.reshape(column), "bool")
        result = node.call("where", outside, node.like(extrapolated, result), result)
    return result
