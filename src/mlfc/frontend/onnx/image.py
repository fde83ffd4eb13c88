"""Resizing, sampling and selection of image regions.

Coordinates are computed in float32, operation by operation as ONNX Runtime computes them
(onnxruntime/core/providers/cpu/tensor/upsamplebase.h), so that ties fall to the same element. Static axes become
constants; the same formulas of `run_tables` compute the positions and weights of dynamic axes at run time.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial, reduce
from math import prod
from typing import Any

import numpy as np

from mlfc.frontend.onnx.conv import WindowAttributes, conv_attributes, conv_window
from mlfc.frontend.onnx.linear import matmul
from mlfc.frontend.onnx.node import Node, dtype_of, int64, is_float, shape_of
from mlfc.frontend.onnx.run_tables import Numbers, RunTable, allow, as_expr, count_of, counted, real
from mlfc.frontend.onnx.table import importer
from mlfc.ops.image import TIE
from mlfc.ops.rules import TooSmallError
from mlfc.relay.ir import Expr
from mlfc.support import cost, dtypes
from mlfc.support.dims import Dim, Extent, bounds, is_static, maximum, minimum

# modes that image.resize2d computes exactly as ONNX does if the scale is exactly the ratio of the sizes
_SHARED_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_COORDINATES = (*_SHARED_COORDINATES, "half_pixel_symmetric", "tf_crop_and_resize", "tf_half_pixel_for_nn")
_POLICIES = ("not_larger", "not_smaller")
_SIZE_LIMIT = 1 << 24
_TAP_BYTES = 64  # memory per neighbour of an output element while indices and weights are computed
_EXACT_FACTOR = 256
"""Products of a dimension size with integers up to this one are exact in float32 for all practical tensors."""


@dataclass(frozen=True)
class _Method:
    """The interpolation of a Resize node: its attributes."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@dataclass(frozen=True)
class _Axis:
    """One axis of a Resize. The region of interest is a pair of fractions of the axis."""

    size: Extent  # input size
    out: Extent  # output size
    scale: float | Expr  # a float32, computed at run time for dynamic sizes; `out` may be rounded from it
    roi: tuple[float, float] = (0.0, 1.0)
    is_ratio: bool = True  # whether the scale is exactly the ratio of the sizes, for all sizes

    @property
    def stays(self) -> bool:
        """True if the axis is not resized."""
        return self.size == self.out and self.scale == 1.0

    @property
    def is_static(self) -> bool:
        """True if positions and weights are known at compile time."""
        return is_static((self.size, self.out)) and isinstance(self.scale, float)


@importer("Upsample")
@importer("Upsample", since=9)
@importer("Resize", since=10)
def _upsample(node: Node) -> Expr:
    every, is_attribute = range(node.rank(0)), node.operator == "Upsample" and node.opset < 9
    axes = _scaled_axes(node, node.reals("scales"), every) if is_attribute else _axes_by_scales(node, 1, every)
    mode = {"bilinear": "linear"}.get(node.string("mode", "nearest"), node.string("mode", "nearest"))
    if mode not in ("nearest", "linear"):
        node.wrong(f"mode '{mode}' is not known")
    # ONNX Runtime rounds up if the axis shrinks
    scales = [axis.scale if isinstance(axis.scale, float) else math.nan for axis in axes]
    grows, shrinks = all(scale >= 1.0 for scale in scales), all(scale <= 1.0 for scale in scales)
    return _resized(node, axes, _Method(mode, "asymmetric", "floor" if grows else "ceil" if shrinks else "simple"), 0.0)


def _axes_by_scales(node: Node, index: int, axes: Sequence[int]) -> list[_Axis]:
    node.has_shape(node.shape(index), (len(axes),))
    if node.dynamic is not None and node.known(index) is None and node.shape(index) == (len(axes),):
        parts = [node.cut(node.input(index), 0, place, place + 1) for place in range(len(axes))]
        return _scaled_axes(node, [node.cast(node.reshape(part, ()), "float32") for part in parts], axes)
    return _scaled_axes(node, [float(scale) for scale in node.value(index, "scales").reshape(-1)], axes)


@importer("Resize", since=11)
def _resize(node: Node) -> Expr:
    rank = node.rank(0)
    axes = [node.axis(axis, rank) for axis in node.integers("axes", range(rank))]
    method = _Method(
        node.string("mode", "nearest"), node.string("coordinate_transformation_mode", "half_pixel"),
        node.string("nearest_mode", "round_prefer_floor"), node.real("cubic_coeff_a", -0.75),
        bool(node.integer("exclude_outside", 0)), bool(node.integer("antialias", 0)),
    )  # fmt: skip
    if method.mode not in ("nearest", "linear", "cubic"):
        node.wrong(f"mode '{method.mode}' is not known")
    if method.coordinates not in _COORDINATES or method.nearest not in _ROUNDINGS:
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
        roi = [float(edge) for edge in node.value(1, "roi").reshape(-1)]
        if len(roi) != 2 * len(axes):
            node.wrong(f"roi has {len(roi)} numbers for {len(axes)} axes")
        for axis, begin, end in zip(axes, roi, roi[len(axes) :], strict=False):
            found[axis] = replace(found[axis], roi=(begin, end))
    return _resized(node, found, method, extrapolated)


def _scaled_axes(node: Node, scales: Sequence[float | Expr], axes: Sequence[int]) -> list[_Axis]:
    shape = node.shape(0)
    if len(scales) != len(axes) or any(isinstance(scale, float) and not 0 < scale < _SIZE_LIMIT for scale in scales):
        node.wrong(f"scales {tuple(scales)} do not fit the axes {tuple(axes)} of a tensor of shape {shape}")
    return _changed(node, axes, (_scaled(node, shape[axis], scale) for axis, scale in zip(axes, scales, strict=True)))


def _changed(node: Node, axes: Sequence[int], changed: Iterable[_Axis]) -> list[_Axis]:
    """Return all axes of input 0, with those in `axes` resized."""
    found = [_Axis(size, size, 1.0) for size in node.shape(0)]
    for axis, new in zip(axes, changed, strict=True):
        found[axis] = new
    return found


def _scaled(node: Node, size: Extent, scale: float | Expr) -> _Axis:
    """Return an axis resized by a scale; like ONNX Runtime, round the product of scale and size to float32."""

    def product(scale: Expr) -> Any:
        return node.runtime_size(node.cast(node.call("multiply", size, scale), "int64"))

    if not isinstance(scale, float):
        low, high = 2.0**-24, 2.0**23
        fits = node.call("logical_and", node.call("greater_equal", scale, low), node.call("less", scale, high))
        node.require(fits, f"whether the scales of '{node.name}' are from 2**-24 to 2**23")
        return _Axis(size, product(node.call("minimum", scale, high)), scale, is_ratio=False)
    exact = Fraction(scale)
    is_ratio = exact.denominator == 1
    if not isinstance(size, Dim):
        return _Axis(size, int(np.float32(size) * np.float32(scale)), scale, is_ratio=is_ratio)
    if exact.numerator <= _EXACT_FACTOR:
        return _Axis(size, size * exact.numerator // exact.denominator, scale, is_ratio=is_ratio)
    assert node.dynamic is not None  # as sizes are dynamic
    found = node.dynamic.frame.scaled
    if (size, scale) not in found:
        found[size, scale] = product(node.constant(scale, "float32"))
    return _Axis(size, found[size, scale], scale, is_ratio=False)


def _sized_axes(node: Node, sizes: Sequence[Extent], axes: Sequence[int], policy: str) -> list[_Axis]:
    shape, old = node.shape(0), [node.shape(0)[axis] for axis in axes]
    if len(sizes) != len(axes) or any(not _is_size(size) for size in sizes) or 0 in shape:
        node.wrong(f"sizes {tuple(sizes)} do not fit the axes {tuple(axes)} of a tensor of shape {shape}")
    if policy not in (*_POLICIES, "stretch"):
        node.wrong(f"keep_aspect_ratio_policy '{policy}' is not known")
    pairs = list(zip(old, sizes, strict=True))
    if policy == "stretch":
        small = [size for size, out in pairs if size != out and isinstance(size, Dim) and bounds(size)[0] < 1]
        if small:
            raise TooSmallError(node.operator, small[0], 1, "elements")
        return _changed(
            node, axes, (_Axis(size, out, 1.0 if size == out else _ratio(node, size, out)) for size, out in pairs)
        )
    # one scale for all axes: the smallest or largest at which some axis has its requested size
    ratios = [_ratio(node, *pair) for pair in pairs]
    static, larger = [ratio for ratio in ratios if isinstance(ratio, float)], policy == _POLICIES[1]
    best: float | Expr
    if len(static) == len(ratios):
        best = max(static) if larger else min(static)
        outs = [int(_rounded(np.float32(best) * np.float32(size))) for size in old]
    else:
        exprs = [node.constant(ratio, "float32") if isinstance(ratio, float) else ratio for ratio in ratios]
        best = reduce(partial(node.call, "maximum" if larger else "minimum"), exprs)
        products = [RunTable(node, node.call("multiply", size, best)) for size in old]
        outs = [node.runtime_size(node.cast(_rounded(product).expr, "int64")) for product in products]
    return _changed(node, axes, (_Axis(size, out, best, is_ratio=False) for size, out in zip(old, outs, strict=True)))


def _ratio(node: Node, size: Extent, out: Extent) -> float | Expr:
    if is_static((size, out)):
        return float(np.float32(int(out)) / np.float32(int(size)))  # type: ignore[arg-type]  # numbers
    return node.call("divide", node.constant(out, "float32"), size)


def _is_size(out: Extent) -> bool:
    return bounds(out)[1] >= 1 and (isinstance(out, Dim) or out < _SIZE_LIMIT)


def _resized(node: Node, axes: Sequence[_Axis], method: _Method, extrapolated: float) -> Expr:
    x = node.input(0)
    if any(not _is_size(axis.out) and axis.size != 0 for axis in axes):
        node.wrong(f"a tensor of shape {node.shape(0)} cannot become {tuple(axis.out for axis in axes)}")
    if is_float(x) and _is_plain_image(node, axes, method):
        return node.call(
            "image.resize2d", x, size=(axes[2].out, axes[3].out), roi=(0.0, 0.0, 0.0, 0.0), layout="NCHW",
            method={"nearest": "nearest_neighbor"}.get(method.mode, method.mode), cubic_alpha=method.cubic_a,
            cubic_exclude=0, coordinate_transformation_mode=method.coordinates,
            rounding_method=method.nearest if method.mode == "nearest" else "",
        )  # fmt: skip
    copied = _copies(node, axes)
    if copied is True:
        return x
    dtype = dtype_of(x)
    rounds = dtypes.is_integer(dtype) and (method.antialias or method.mode == "cubic")
    if method.mode != "nearest":
        x = node.cast(x, "float32")
    for index, axis in reversed([*enumerate(axes)]) if rounds else enumerate(axes):
        # ONNX Runtime also ignores the region of interest of an axis whose size does not change
        if not (axis.stays or (method.antialias and axis.size == axis.out)):
            x = _along(node, x, index, axis, method, extrapolated, copied)
            x = _nearest_integer(node, x, dtype) if rounds and method.antialias else x
    return node.cast(_nearest_integer(node, x, dtype) if rounds else x, dtype)


def _nearest_integer(node: Node, x: Expr, dtype: str) -> Expr:
    """Round to an integer dtype with ties up and saturation, as ONNX Runtime does after each axis."""
    low, high = dtypes.limits(dtype)
    x = node.call("floor", node.call("add", x, 0.5))
    return node.call("clip", x, a_min=float(low), a_max=high * (1.0 if high < 1 << 24 else 1 - 2.0**-24))


def _is_plain_image(node: Node, axes: Sequence[_Axis], method: _Method) -> bool:
    """Return whether ``image.resize2d``, which divides sizes in float32, computes the same result."""
    is_plain = not (method.exclude_outside or method.antialias) and method.coordinates in _SHARED_COORDINATES
    if len(axes) != 4 or not is_plain or not all(axis.stays for axis in axes[:2]):
        return False
    if method.mode != "nearest":
        return all(axis.is_ratio for axis in axes[2:])  # for all sizes
    # for static axes, the scale must be the quotient of the sizes
    return all(axis.is_static and axis.size and axis.scale == _ratio(node, axis.size, axis.out) for axis in axes[2:])


def _copies(node: Node, axes: Sequence[_Axis]) -> Numbers:
    """Return whether all sizes are unchanged, in which case ONNX Runtime copies the tensor regardless of the scales."""
    changed = [axis for axis in axes if axis.size != axis.out]
    if any(is_static((axis.size, axis.out)) or (isinstance(axis.scale, float) and not 1 <= axis.scale < 2)
           for axis in changed):  # fmt: skip
        return False
    if all(axis.is_ratio for axis in changed):
        return not changed
    return reduce(operator.and_, (RunTable(node, int64(node, axis.size)) == axis.out for axis in changed))


def _along(node: Node, x: Expr, index: int, axis: _Axis, method: _Method, extrapolated: float, copied: Numbers) -> Expr:
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
    rank, dtype = len(shape_of(x)), "int32" if axis.is_static else "int64"
    if method.mode == "nearest":
        if method.nearest != "simple":
            rounded = _ROUNDINGS[method.nearest](at)
        elif isinstance(axis.scale, float):  # Upsample and Resize of opset 10 round up if the axis shrinks
            rounded = np.ceil(at) if axis.scale < 1 else np.floor(at)
        else:
            rounded = np.where(RunTable(node, axis.scale) < 1.0, np.ceil(at), np.floor(at))
        result = node.call("take", x, as_expr(node, np.clip(rounded, 0, last), dtype), axis=index)
    else:
        inside = np.clip(at, 0, last) if method.mode == "linear" and shrink == 1.0 else at
        positions, weights = _neighbours(axis, method, inside, reach, shrink)
        elements = node.call("take", x, as_expr(node, positions, dtype), axis=index)
        factors = as_expr(node, weights, "float32")
        factors = node.reshape(factors, (*shape_of(factors), *(1,) * (rank - index - 1)))
        # A sum of two products would be contracted to an FMA of either one, depending on the code of each shape;
        # a reduction has a fixed order.
        result = node.call("sum", node.call("multiply", elements, factors), axis=(index + 1,))
    if method.coordinates == "tf_crop_and_resize":
        outside = (at < 0) | (last < at)
        if not isinstance(outside, np.ndarray) or outside.any():
            column = [axis.out if position == index else 1 for position in range(rank)]
            flags = node.reshape(as_expr(node, outside, "bool"), column)
            result = node.call("where", flags, extrapolated, result)
    return result


def _is_unchanged(node: Node, axis: _Axis, method: _Method, copied: Numbers) -> Numbers:
    """Return the runtime condition under which ONNX Runtime leaves a dynamic axis unchanged; None for never."""
    if method.antialias:
        return RunTable(node, int64(node, axis.size)) == axis.out
    if method.coordinates in ("tf_crop_and_resize", "tf_half_pixel_for_nn"):  # others keep an axis of scale 1
        scale = node.constant(axis.scale, "float32") if isinstance(axis.scale, float) else axis.scale
        kept = RunTable(node, scale) == 1.0
        return kept | copied if isinstance(copied, RunTable) else kept
    return copied if isinstance(copied, RunTable) else None


def _coordinates(node: Node, axis: _Axis, mode: str) -> tuple[Any, Any]:
    """Return the input coordinate of every output element, and the coordinate of the last input element."""

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
        # the product is exact in float64, so that no compiler contracts it with the following sum
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
    if mode == "half_pixel_symmetric":  # the cut-off part of the last element is distributed over both sides
        half_pixel = times(size / 2.0, -(out / (scale * size) - 1)) + half_pixel
    if mode == "pytorch_half_pixel":
        return unless_single(lambda: half_pixel - 0.5, number(0.0)), last
    return half_pixel - 0.5, last


def _neighbours(axis: _Axis, method: _Method, at: Any, reach: float, shrink: float) -> tuple[Numbers, Any]:
    """Return the indices and weights of the neighbours of every output element, both (elements, neighbours)."""
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
    """Round to the nearest integer; fractions of at least 0.5 + `more` round up."""
    below = np.floor(at)
    return np.where(at - below - 0.5 < more, below, below + 1.0)


_ROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda at: _rounded(at, TIE),
    "round_prefer_ceil": lambda at: _rounded(at, -TIE),
    "floor": np.floor,
    "ceil": np.ceil,
}


_METHODS = {"linear": "bilinear", "cubic": "bicubic"}
_LAYOUTS = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


@importer("GridSample")
def _grid_sample(node: Node) -> Expr:
    rank, mode = node.rank(0), node.string("mode", "linear")
    if rank not in _LAYOUTS:
        node.unsupported(f"of a tensor of {rank} dimensions is not supported")
    if node.rank(1) != rank:
        node.wrong(f"a grid of shape {node.shape(1)} does not fit a tensor of shape {node.shape(0)}")
    grid = node.transpose(node.input(1), (0, rank - 1, *range(1, rank - 1)))
    return node.call(
        "image.grid_sample", node.input(0), grid, method=_METHODS.get(mode, mode), layout=_LAYOUTS[rank],
        padding_mode=node.string("padding_mode", "zeros"), align_corners=bool(node.integer("align_corners", 0)),
    )  # fmt: skip


@importer("AffineGrid")
def _affine_grid(node: Node) -> Expr:
    """Multiply the normalized coordinates of all positions, which depend on dimension sizes only, by the matrices."""
    theta, declared = node.shape(0), node.declared_shape
    # the grid does not depend on the number of channels
    wanted = None if declared is None or len(declared) < 4 else [declared[0], None, *declared[1:-1]]
    size = node.sizes(1, "size", wanted)
    is_size = len(size) in (4, 5) and all(bounds(extent)[1] >= 1 for extent in size)
    fits = is_size and len(theta) == 3 and node.has_shape(theta[1:], (len(size) - 2, len(size) - 1))
    if not fits or (is_static((theta[0], size[0])) and theta[0] != size[0]):
        node.wrong(f"matrices of shape {theta} do not fit the size {size}")
    if theta[0] != size[0]:
        is_equal = node.call("equal", int64(node, theta[0]), size[0])
        node.require(is_equal, f"whether the size of '{node.name}' is that of its matrices")
    places, dtype = size[2:], node.dtype(0)
    allow(node, *places, each=8 * (len(places) + 1))
    # normalized coordinates from -1 to 1: of pixel centres, or of the corner pixels with align_corners
    corners, grid = bool(node.integer("align_corners", 0)), []
    for steps, extent in zip(counted(node, *places), places, strict=True):
        last = real(node, maximum(extent - 1, 1) if corners else extent)
        grid.append((2 * steps + (1 - extent)).astype("float64") / last)
    spread = [
        np.broadcast_to(part[tuple(slice(None) if at == axis else None for at in range(len(places)))], places)
        for axis, part in enumerate(grid)
    ]
    ones = np.broadcast_to((grid[0] * 0.0 + 1.0).reshape(*(places[0], *[1] * (len(places) - 1))), places)
    # the first coordinate is that of the last axis
    columns = np.stack([*reversed(spread), ones], 0).reshape(len(places) + 1, prod(places))
    wide = dtype if dtype == "float64" else "float32"
    moved = matmul(node, node.cast(node.input(0), wide), as_expr(node, columns, wide))
    turned = node.transpose(moved, (0, 2, 1))
    return node.cast(node.reshape(turned, (theta[0], *places, shape_of(turned)[-1])), dtype)


@importer("DeformConv")
def _deform_conv(node: Node) -> Expr:
    """Sample the image once for each kernel tap, then apply a 1x1 convolution."""
    x, weight = node.input(0), node.input(1)
    window = conv_window(node, weight, ranks=(2,))
    attributes = conv_attributes(node, weight, window)
    batch, channels, *extents = node.shape(0)
    taps, parts, out = prod(window.kernel), node.integer("offset_group", 1), window.out
    if parts < 1 or channels % parts or node.shape(2) != (batch, parts * taps * 2, *out):
        node.wrong(f"offsets of shape {node.shape(2)} do not fit {parts} groups of {channels} channels at {out}")
    if node.has(4) and node.shape(4) != (batch, parts * taps, *out):
        node.wrong(f"a mask of shape {node.shape(4)} does not fit {parts} groups of {taps} taps at {out}")
    moved = node.reshape(node.input(2), (batch * parts, taps, 2, *out))
    places = node.call("add", moved, _undeformed(node, window, dtype_of(x)))
    # image.grid_sample has coordinates from -1 to 1, the last axis first
    double = np.array([2.0 / extent for extent in extents]).reshape(2, 1, 1)
    first = np.array([1.0 / extent - 1.0 for extent in extents]).reshape(2, 1, 1)
    scaled = node.call("multiply", places, node.constant(double, dtype_of(x)))
    grid = node.transpose(node.call("add", scaled, node.constant(first, dtype_of(x))), (0, 2, 1, 3, 4))
    grid = node.call("take", grid, node.constant([1, 0], "int64"), axis=1, batch_dims=0, mode="clip")
    sampled = node.call(
        "image.grid_sample", node.reshape(x, (batch * parts, channels // parts, *extents)),
        node.reshape(grid, (batch * parts, 2, taps * out[0], out[1])), method="bilinear", layout="NCHW",
        padding_mode="zeros", align_corners=False,
    )  # fmt: skip
    if node.has(4):
        sampled = node.call("multiply", sampled, node.reshape(node.input(4), (batch * parts, 1, taps * out[0], out[1])))
    filters, depth = shape_of(weight)[:2]
    attributes |= {"kernel_size": (1, 1), "strides": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0)}
    result = node.call(
        "nn.conv2d", node.reshape(sampled, (batch, channels * taps, *out)),
        node.reshape(weight, (filters, depth * taps, 1, 1)), **attributes,
    )  # fmt: skip
    return node.call("nn.bias_add", result, node.input(3), axis=1) if node.has(3) else result


def _undeformed(node: Node, window: WindowAttributes, dtype: str) -> Expr:
    """Return the input coordinates of the taps without offsets, of shape (taps, 2, *out): row, then column."""
    cost.require("constants", 16 * prod(window.kernel) * prod(window.out), node.name)
    sides = zip(window.kernel, window.dilations, window.out, window.strides, window.begin, strict=True)
    rows, columns = (
        (np.arange(count) * dilation)[:, None] + np.arange(extent) * stride - before
        for count, dilation, extent, stride, before in sides
    )
    both = np.stack(np.broadcast_arrays(rows[:, None, :, None], columns[None, :, None, :]), 2)
    return node.constant(both.reshape(-1, 2, *window.out), dtype)


@importer("NonMaxSuppression")
def _non_max_suppression(node: Node) -> Expr:
    """Select boxes. The number of result rows is the declared one, else the maximum possible.

    Unused rows are filled with -1; boxes beyond the last row are dropped.
    """
    boxes, scores = node.shape(0), node.shape(1)
    if len(boxes) != 3 or len(scores) != 3:
        node.wrong(f"expected batches, got boxes of shape {boxes} and scores of shape {scores}")
    if not node.has_shape(boxes, (scores[0], scores[2], 4)):
        node.wrong(f"boxes of shape {boxes} and scores of shape {scores} do not fit")
    declared = node.declared[0] if node.declared else None
    if declared is not None:
        if len(declared) != 2 or declared[1] != 3:
            node.wrong(f"the result is declared to be of shape {declared}, not rows of 3")
        rows = declared[0]
    elif node.has(2) and node.dynamic is not None:  # of the maximum number of rows, keep those that were selected
        if node.dynamic.known(node.input(2)) is not None:
            limit = minimum(maximum(node.extent(2, "max_output_boxes_per_class"), 0), scores[2])
        else:
            asked = node.call("minimum", node.reshape(node.input(2), ()), scores[2])
            limit = node.runtime_size(node.call("maximum", asked, 0), 0, scores[2])
        rows = prod(scores[:2]) * limit
        found = _select(node, rows)
        column = node.reshape(node.cut(found, 1, 0, 1), (rows,))
        return node.cut(found, 0, 0, node.runtime_size(count_of(node, node.call("greater_equal", column, 0)), 0, rows))
    elif node.has(2):
        (most,) = node.value(2, "max_output_boxes_per_class").reshape(-1).tolist()
        rows = prod(scores[:2]) * min(max(most, 0), scores[2])
    else:
        rows = 0
    return _select(node, rows)


def _select(node: Node, rows: Extent) -> Expr:
    defaults = ((2, 0, "int64"), (3, 0.0, "float32"), (4, float("-inf"), "float32"))
    limits = [node.optional(index) or node.constant(value, dtype) for index, value, dtype in defaults]
    centred = bool(node.integer("center_point_box", 0))
    return node.call("vision.select_boxes", node.input(0), node.input(1), *limits, rows=rows, center_point_box=centred)


@importer("RoiAlign")
def _roi_align(node: Node) -> Expr:
    """Prepend the image index to each region, as Relay's operator expects."""
    data, rois, images = node.shape(0), node.shape(1), node.shape(2)
    if len(data) != 4 or len(rois) != 2 or not node.has_shape((*rois, *images), (rois[0], 4, rois[0])):
        node.wrong(f"data of shape {data}, regions of {rois} and numbers of images of {images} do not fit")
    if bounds(data[0])[0] > 1 << 24:
        node.unsupported(f"of {data[0]} images is not supported: float32 does not count further")
    mode = node.string("coordinate_transformation_mode", "half_pixel") if node.opset >= 16 else "output_half_pixel"
    if mode not in ("half_pixel", "output_half_pixel"):
        node.wrong(f"expected coordinate_transformation_mode half_pixel or output_half_pixel, got '{mode}'")
    pooled = node.integer("output_height", 1), node.integer("output_width", 1)
    if min(pooled) < 1:
        node.wrong(f"a region cannot be pooled to {pooled}")
    edges = node.input(1) if node.dtype(1) == "float64" else node.cast(node.input(1), "float32")
    numbers = node.cast(node.reshape(node.input(2), (rois[0], 1)), dtype_of(edges))
    return node.call(
        "vision.roi_align", node.input(0), node.concatenate([numbers, edges], 1), pooled_size=pooled,
        spatial_scale=node.real("spatial_scale", 1.0), sample_ratio=node.integer("sampling_ratio", 0) or -1,
        layout="NCHW", mode=node.string("mode", "avg").lower(), aligned=mode == "half_pixel",
    )  # fmt: skip
