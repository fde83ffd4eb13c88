"""Resizing images and tensors by ONNX's definition of Resize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import ge, le

from mlfc.frontend.onnx.node import Node, dtype_of, is_float
from mlfc.frontend.onnx.resize_axis import Axis, Method, along, copies, scaled, sized, within_sizes
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, bounds

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)  # fmt: skip
_POLICIES = ("not_larger", "not_smaller")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


_SIZE_LIMIT = 1 << 24


@importer("Upsample")
def _upsample_attributes(node: Node) -> Expr:
    return _upsampled(node, _scaled_axes(node, node.reals("scales"), range(node.rank(0))))


@importer("Upsample", since=9)
@importer("Resize", since=10)
def _upsample(node: Node) -> Expr:
    return _upsampled(node, _axes_by_scales(node, 1, range(node.rank(0))))


def _axes_by_scales(node: Node, index: int, axes: Sequence[int]) -> list[Axis]:
    node.has_shape(node.shape(index), (len(axes),))
    if node.dynamic is not None and node.known(index) is None and node.shape(index) == (len(axes),):
        parts = [node.cut(node.input(index), 0, place, place + 1) for place in range(len(axes))]
        return _scaled_axes(node, [node.cast(node.reshape(part, ()), "float32") for part in parts], axes)
    return _scaled_axes(node, [float(scale) for scale in node.value(index, "scales").reshape(-1)], axes)


def _upsampled(node: Node, axes: Sequence[Axis]) -> Expr:
    mode = {"bilinear": "linear"}.get(node.string("mode", "nearest"), node.string("mode", "nearest"))
    if mode not in ("nearest", "linear"):
        node.wrong(f"mode '{mode}' is not known")
    # ONNX Runtime rounds up where an axis gets smaller
    scales = [axis.scale if isinstance(axis.scale, float) else None for axis in axes]
    grows, shrinks = (all(s is not None and same(s, 1.0) for s in scales) for same in (ge, le))
    return _resized(node, axes, Method(mode, "asymmetric", "floor" if grows else "ceil" if shrinks else "simple"), 0.0)


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
    if node.has(2) and (not node.has(3) or node.shape(2) != (0,)):
        found = _axes_by_scales(node, 2, axes)
    elif node.has(3):
        node.has_shape(node.shape(3), (len(axes),))
        declared = node.declared_along(axes) if policy == "stretch" else None
        found = _sized_axes(node, node.sizes(3, "sizes", declared), axes, policy)
    else:
        node.wrong("neither scales nor sizes are given")
    if method.coordinates == "tf_crop_and_resize":
        found = _with_regions(node, found, axes)
    return _resized(node, found, method, extrapolated)


def _scaled_axes(node: Node, scales: Sequence[float | Expr], axes: Sequence[int]) -> list[Axis]:
    shape = node.shape(0)
    if len(scales) != len(axes) or any(isinstance(scale, float) and not 0 < scale < _SIZE_LIMIT for scale in scales):
        node.wrong(f"scales {tuple(scales)} do not fit the axes {tuple(axes)} of a tensor of shape {shape}")
    found = [Axis(size, size, 1.0) for size in shape]
    for axis, scale in zip(axes, scales, strict=True):
        found[axis] = scaled(node, shape[axis], scale)
    return found


def _sized_axes(node: Node, sizes: Sequence[Extent], axes: Sequence[int], policy: str) -> list[Axis]:
    shape = node.shape(0)
    if len(sizes) != len(axes) or any(not _is_size(size) for size in sizes) or 0 in shape:
        node.wrong(f"sizes {tuple(sizes)} do not fit the axes {tuple(axes)} of a tensor of shape {shape}")
    if policy in _POLICIES:
        return within_sizes(node, sizes, axes, larger=policy == _POLICIES[1])
    if policy != "stretch":
        node.wrong(f"keep_aspect_ratio_policy '{policy}' is not known")
    found = [Axis(size, size, 1.0) for size in shape]
    for axis, size in zip(axes, sizes, strict=True):
        found[axis] = sized(node, shape[axis], size)
    return found


def _is_size(out: Extent) -> bool:
    return bounds(out)[1] >= 1 and (isinstance(out, Dim) or out < _SIZE_LIMIT)


def _with_regions(node: Node, found: Sequence[Axis], axes: Sequence[int]) -> list[Axis]:
    roi = [float(edge) for edge in node.value(1, "roi").reshape(-1)]
    if len(roi) != 2 * len(axes):
        node.wrong(f"roi has {len(roi)} numbers for {len(axes)} axes")
    regions = list(found)
    for position, axis in enumerate(axes):
        regions[axis] = replace(found[axis], roi=(roi[position], roi[len(axes) + position]))
    return regions


def _resized(node: Node, axes: Sequence[Axis], method: Method, extrapolated: float) -> Expr:
    x = node.input(0)
    if any(not _is_size(axis.out) and axis.size != 0 for axis in axes):
        node.wrong(f"a tensor of shape {node.shape(0)} cannot become {tuple(axis.out for axis in axes)}")
    if is_float(x) and _is_plain_image(axes, method):
        return method.as_image(node, x, (axes[2].out, axes[3].out))
    copied = copies(node, axes)
    if copied is True:
        return x
    dtype = dtype_of(x)
    rounds = dtypes.is_integer(dtype) and (method.antialias or method.mode == "cubic")
    if method.mode != "nearest":
        x = node.cast(x, "float32")
    for index, axis in reversed([*enumerate(axes)]) if rounds else enumerate(axes):
        # ONNX Runtime does not read the region of an axis that keeps its size, either
        if not (axis.stays or (method.antialias and axis.size == axis.out)):
            x = along(node, x, index, axis, method, extrapolated, copied)
            x = _nearest_integer(node, x, dtype) if rounds and method.antialias else x
    return node.cast(_nearest_integer(node, x, dtype) if rounds else x, dtype)


def _nearest_integer(node: Node, x: Expr, dtype: str) -> Expr:
    """Round to the nearest number of an integer dtype, as ONNX defines and ONNX Runtime does after each axis."""
    low, high = dtypes.limits(dtype)
    x = node.call("floor", node.call("add", x, node.like(0.5, x)))
    return node.call("clip", x, a_min=float(low), a_max=high * (1.0 if high < 1 << 24 else 1 - 2.0**-24))


def _is_plain_image(axes: Sequence[Axis], method: Method) -> bool:
    """Return whether ``image.resize2d``, which divides sizes in float32, computes the same."""
    if not method.is_image(len(axes)) or not all(axis.stays for axis in axes[:2]):
        return False
    if method.mode == "nearest":
        return all(axis.is_static and axis.is_quotient for axis in axes[2:])
    # must be true for all sizes
    return all(axis.is_ratio for axis in axes[2:])
