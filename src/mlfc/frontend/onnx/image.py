"""Resizing images and tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from mlfc.frontend.onnx.interpolation import COORDINATES, NEAREST, Axis, Method, taps
from mlfc.frontend.onnx.node import Node, dtype_of, is_float, shape_of
from mlfc.frontend.onnx.table import importer
from mlfc.ops.resampling import AxisResize, nearest_taps
from mlfc.relay.ir import Expr
from mlfc.support import cost

_SIZE_LIMIT = 1 << 24
# of an element of a resized axis while its neighbours and their weights are worked out
_TAP_BYTES = 64
# What image.resize2d computes just as ONNX does, where the scale is exactly the ratio of the sizes.
_SHARED_COORDINATES = ("half_pixel", "align_corners", "asymmetric")


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
    return _resized(node, _scaled_axes(node, scales, range(node.rank(0))), Method(mode, "asymmetric", "floor"), 0.0)


@importer("Resize", since=11)
def _resize(node: Node) -> Expr:
    rank = node.rank(0)
    axes = [node.axis(axis, rank) for axis in node.integers("axes", range(rank))]
    method = Method(
        node.string("mode", "nearest"),
        node.string("coordinate_transformation_mode", "half_pixel"),
        node.string("nearest_mode", "round_prefer_floor"),
        node.real("cubic_coeff_a", -0.75),
        bool(node.integer("exclude_outside", 0)),
        bool(node.integer("antialias", 0)),
    )
    if method.mode not in ("nearest", "linear", "cubic"):
        node.wrong(f"mode '{method.mode}' is not known")
    if method.coordinates not in COORDINATES or method.nearest not in NEAREST:
        node.wrong(f"'{method.coordinates}' with '{method.nearest}' is not known")
    extrapolated = node.real("extrapolation_value", 0.0)
    policy = node.string("keep_aspect_ratio_policy", "stretch")
    scales = node.value(2, "scales").reshape(-1) if node.has(2) else ()
    if len(scales):
        found = _scaled_axes(node, [float(scale) for scale in scales], axes)
    elif node.has(3):
        found = _sized_axes(node, node.int_values(3, "sizes"), axes, policy)
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
        found[axis] = Axis(shape[axis], math.floor(shape[axis] * scale), Fraction(scale))
    return found


def _sized_axes(node: Node, sizes: Sequence[int], axes: Sequence[int], policy: str) -> list[Axis]:
    shape = node.shape(0)
    if len(sizes) != len(axes) or any(not 0 < size < _SIZE_LIMIT for size in sizes) or 0 in shape:
        node.wrong(f"sizes {tuple(sizes)} do not fit the axes {tuple(axes)} of a tensor of shape {shape}")
    ratios = [Fraction(size, shape[axis]) for size, axis in zip(sizes, axes, strict=True)]
    if policy in ("not_larger", "not_smaller"):
        common = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [common] * len(axes)
        sizes = [math.floor(common * shape[axis] + Fraction(1, 2)) for axis in axes]
    elif policy != "stretch":
        node.wrong(f"keep_aspect_ratio_policy '{policy}' is not known")
    found = [Axis(size, size, Fraction(1)) for size in shape]
    for axis, size, ratio in zip(axes, sizes, ratios, strict=True):
        found[axis] = Axis(shape[axis], size, ratio)
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
    if any(not 0 < axis.out < _SIZE_LIMIT for axis in axes):
        node.wrong(f"a tensor of shape {node.shape(0)} cannot become {tuple(axis.out for axis in axes)}")
    if _is_plain_image(axes, method) and is_float(x):
        return _as_image(node, x, axes, method)
    dtype = dtype_of(x)
    if method.mode != "nearest":
        x = node.cast(x, "float32")
    for index, axis in enumerate(axes):
        if axis.out != axis.size or axis.scale != 1 or method.coordinates == "tf_crop_and_resize":
            x = _along(node, x, index, axis, method, extrapolated)
    return node.cast(x, dtype)


def _is_plain_image(axes: Sequence[Axis], method: Method) -> bool:
    """Tell whether ``image.resize2d`` computes the same."""
    exact = all(axis.scale * axis.size == axis.out for axis in axes)
    return (
        len(axes) == 4
        and exact
        and all(axis.out == axis.size for axis in axes[:2])
        and method.coordinates in _SHARED_COORDINATES
        and (method.mode != "nearest" or all(_is_nearest_alike(axis, method) for axis in axes[2:]))
        and not (method.exclude_outside or method.antialias)
    )


def _is_nearest_alike(axis: Axis, method: Method) -> bool:
    """Tell whether ``image.resize2d``, which computes positions in float32, takes the elements that ONNX defines."""
    plan = AxisResize(axis.size, axis.out, method.coordinates)
    return np.array_equal(nearest_taps(plan, method.nearest).indices, taps(axis, method).positions)


def _as_image(node: Node, x: Expr, axes: Sequence[Axis], method: Method) -> Expr:
    methods = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
    return node.call(
        "image.resize2d",
        x,
        size=(axes[2].out, axes[3].out),
        roi=(0.0, 0.0, 0.0, 0.0),
        layout="NCHW",
        method=methods[method.mode],
        coordinate_transformation_mode=method.coordinates,
        rounding_method=method.nearest if method.mode == "nearest" else "",
        cubic_alpha=method.cubic_a,
        cubic_exclude=0,
    )


def _along(node: Node, x: Expr, index: int, axis: Axis, method: Method, extrapolated: float) -> Expr:
    """Resize one axis: gather the neighbours of every element and add them, weighted."""
    cost.require("constants", _TAP_BYTES * axis.out, node.name)
    found = taps(axis, method)
    column = [axis.out if position == index else 1 for position in range(len(shape_of(x)))]
    result: Expr | None = None
    for k in range(found.positions.shape[1]):
        part = node.call("take", x, node.constant(found.positions[:, k], "int32"), axis=index)
        if method.mode != "nearest":
            part = node.call("multiply", part, node.constant(found.weights[:, k].reshape(column), dtype_of(x)))
        result = part if result is None else node.call("add", result, part)
    assert result is not None
    if method.coordinates == "tf_crop_and_resize" and found.outside.any():
        outside = node.constant(found.outside.reshape(column), "bool")
        result = node.call("where", outside, node.like(extrapolated, result), result)
    return result
