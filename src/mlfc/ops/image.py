"""Operators on images: resizing, and moves between channels and space.

The coordinates of resized axes follow one of two rules. ONNX divides by the scale and names its rounding; its reference
is ONNX Runtime (core/providers/cpu/tensor/upsamplebase.h). TFLite multiplies by the inverse scale; its reference is
lite/kernels/internal/reference/resize_nearest_neighbor.h. Both compute in float32, and so does this file, so that
coordinates on an element or half-way between two elements match exactly. Tables of a static axis are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.ops.elementwise import converted
from mlfc.ops.rules import Element, check_choice, declare, divided
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Elements, Kind
from mlfc.support import cost, dtypes
from mlfc.support.dims import Shape, bounds, is_static
from mlfc.tir import builder as tb
from mlfc.tir import interpreter
from mlfc.tir.context import Context, Indices, Output, Reader, Tensor
from mlfc.tir.ir import Buffer, Expr, Var

_CHANNELS_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
# bytes per element of a resized axis during the computation of its neighbours and their weights
_TAP_BYTES = 64
_METHODS = ("nearest_neighbor", "linear", "cubic")
_UPSAMPLING_METHODS = {"nearest_neighbor": "nearest_neighbor", "bilinear": "linear", "bicubic": "cubic"}


_FLOAT = "float32"
_BEYOND = 2.0**100  # an upper bound of products of weights and distances
TIE = 1e-6
"""Distance from half-way between two elements up to which ONNX Runtime treats a coordinate as a tie."""

Let = Callable[[str, Expr], Expr]
"""Bind a value that is used more than once to a name."""


@dataclass(frozen=True, eq=False)
class Columns:
    """The input elements from which one element of a resized axis is computed."""

    positions: Sequence[Expr]
    weights: Sequence[Expr]  # none for a copy of one element
    outside: Expr | None = None  # true if the result is the extrapolation value


@dataclass(frozen=True)
class AxisResize:
    """Resize parameters of one axis."""

    extent: Any  # input elements
    target: Any  # output elements
    mode: str  # ONNX's coordinate transformation mode
    start: float = 0.0  # of the region of ``tf_crop_and_resize``, in units of the input
    end: float = 1.0

    @property
    def last(self) -> Expr:
        """Coordinate of the last input element."""
        return _float(self.extent - 1)

    def coordinate(self, x: Expr, let: Let) -> Expr:
        """Return the input coordinate of output element `x`."""
        if self.mode not in _MODES:
            raise TypeCheckError(
                f"unknown coordinate transformation mode '{self.mode}'",
                next_step=f"Known: {', '.join(_MODES)}",
            )
        return _MODES[self.mode](self, x, let)

    def outside(self, coordinate: Expr) -> Expr | None:
        """Return the condition that an element is the extrapolation value; None if the mode does not extrapolate."""
        if self.mode != "tf_crop_and_resize":
            return None
        return tb.binary("lor", tb.binary("lt", coordinate, 0.0), tb.binary("gt", coordinate, self.last))

    def position(self, place: Expr) -> Expr:
        """Convert a coordinate without fraction to a clamped index on the axis."""
        return tb.clamp(tb.truncated(place, "int32"), 0, self.extent - 1)

    def unless_single(self, found: Expr, single: Expr) -> Expr:
        """Select `found`, or `single` if the resized axis has one element."""
        return tb.select(tb.binary("eq", tb.const(self.target), 1), single, found)


def _float(number: object) -> Expr:
    return tb.const(number, _FLOAT)  # type: ignore[arg-type]  # a dimension size


def _scale(axis: AxisResize, let: Let) -> Expr:
    return let("scale", _float(axis.target) / _float(axis.extent))


def _half_pixel(axis: AxisResize, x: Expr, let: Let) -> Expr:
    return (x + 0.5) / _scale(axis, let) - 0.5


def _crop(axis: AxisResize, x: Expr, let: Let) -> Expr:
    start, end = (_float(float(np.float32(edge))) for edge in (axis.start, axis.end))
    begin = let("begin", _rounded(start * axis.last))
    found = begin + x * (end - start) * axis.last / _float(axis.target - 1)
    return axis.unless_single(found, (start + end) * 0.5 * axis.last)


_MODES: dict[str, Callable[[AxisResize, Expr, Let], Expr]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": lambda axis, x, let: axis.unless_single(_half_pixel(axis, x, let), _float(0.0)),
    "tf_half_pixel_for_nn": lambda axis, x, let: (x + 0.5) / _scale(axis, let),
    "align_corners": lambda axis, x, _: axis.unless_single(x * axis.last / _float(axis.target - 1), _float(0.0)),
    "asymmetric": lambda axis, x, let: x / _scale(axis, let),
    "tf_crop_and_resize": _crop,
}


def _away_from_zero(x: Expr) -> Expr:
    """Round to the nearest integer, ties away from zero."""
    size = tb.intrinsic("floor", tb.intrinsic("fabs", x) + 0.5)
    return tb.select(tb.binary("lt", x, 0.0), _float(0.0) - size, size)


def _nearest_integer(x: Expr, more: float) -> Expr:
    below = tb.intrinsic("floor", x)
    return tb.select(tb.binary("lt", x - below - 0.5, float(np.float32(more))), below, below + 1.0)


_ROUNDINGS: dict[str, Callable[[Expr], Expr]] = {
    "floor": lambda x: tb.intrinsic("floor", x),
    "ceil": lambda x: tb.intrinsic("ceil", x),
    "round": _away_from_zero,
    "round_prefer_floor": lambda x: _nearest_integer(x, TIE),
    "round_prefer_ceil": lambda x: _nearest_integer(x, -TIE),
}


def _rounded(product: Expr) -> Expr:
    """Prevent the contraction of a product with a sum into an FMA, as products in constant tables are rounded."""
    return tb.clamp(product, -_BEYOND, _BEYOND)


Rule = Callable[[AxisResize, Expr, Let], Columns]
"""Maps an axis, an output element and `let` to the columns."""


def nearest(rounding: str) -> Rule:
    """Return the rule that copies the nearest element; `rounding` is ONNX's name, or empty for TFLite's rule."""
    if rounding and rounding not in _ROUNDINGS:
        raise TypeCheckError(f"unknown rounding method '{rounding}'", next_step=f"Known: {', '.join(_ROUNDINGS)}")

    def rule(axis: AxisResize, x: Expr, let: Let) -> Columns:
        if rounding:
            at = let("at", axis.coordinate(x, let))
            return Columns([axis.position(_ROUNDINGS[rounding](at))], [], axis.outside(at))
        inverse = _float(axis.extent) / _float(axis.target)
        if axis.mode == "align_corners":
            inverse = axis.unless_single(axis.last / _float(axis.target - 1), inverse)
        offset = 0.5 if axis.mode in ("half_pixel", "tf_half_pixel_for_nn") else 0.0
        place = _ROUNDINGS["round" if axis.mode == "align_corners" else "floor"]((x + offset) * inverse)
        return Columns([axis.position(place)], [])

    return rule


def linear(axis: AxisResize, x: Expr, let: Let) -> Columns:
    """Interpolate linearly between the two neighbours of an element."""
    given = let("coordinate", axis.coordinate(x, let))
    at = let("at", tb.clamp(given, 0.0, axis.last))
    lower = let("lower", axis.position(tb.intrinsic("floor", at)))
    fraction = let("fraction", at - tb.cast(lower, _FLOAT))
    upper = tb.minimum(lower + 1, axis.extent - 1)
    return Columns([lower, upper], [1.0 - fraction, fraction], axis.outside(given))


def cubic(alpha: float, *, exclude_outside: bool) -> Rule:
    """Return the rule that applies Keys' kernel with coefficient `alpha` to the four neighbours of an element."""
    a = np.float32(alpha)
    four, five, eight, inner, outer = (float(factor) for factor in (4 * a, 5 * a, 8 * a, a + 2, a + 3))

    def weight(distance: Expr, let: Let) -> Expr:
        d = let("distance", distance)
        far = _rounded((_rounded((_rounded(d * float(a)) - five) * d) + eight) * d) - four
        near = _rounded((_rounded(d * inner) - outer) * d * d) + 1.0
        found = tb.select(tb.binary("lt", d, 1.0), near, far)
        # at a distance of exactly one both polynomials are zero, up to rounding
        return let("weight", tb.select(tb.binary("eq", d, 1.0), _float(0.0), found))

    def rule(axis: AxisResize, x: Expr, let: Let) -> Columns:
        at = let("at", axis.coordinate(x, let))
        below = let("below", tb.intrinsic("floor", at))
        s, first = let("s", at - below), let("first", tb.truncated(below, "int32"))
        weights = [weight(distance, let) for distance in (s + 1.0, s, 1.0 - s, 2.0 - s)]
        places = [let("place", first + step) for step in (-1, 0, 1, 2)]
        if exclude_outside:
            kept = []
            for place, found in zip(places, weights, strict=True):
                inside = tb.land(tb.binary("ge", place, 0), tb.binary("lt", place, axis.extent))
                kept.append(let("weight", tb.select(inside, found, _float(0.0))))
            total = let("total", ((kept[0] + kept[1]) + kept[2]) + kept[3])
            weights = [found / total for found in kept]
        return Columns([tb.clamp(place, 0, axis.extent - 1) for place in places], weights, axis.outside(at))

    return rule


@dataclass(frozen=True, eq=False)
class TapTable:
    """Positions, weights and extrapolation flags of all elements of a resized axis."""

    positions: tuple[Buffer, ...]
    weights: tuple[Buffer, ...]
    outside: Buffer | None
    last: Any  # position of the last input element that is read
    repetition: int = 0  # copies of each input element if the resize only repeats elements, else 0


def table(ctx: Context, axis: AxisResize, name: str, rule: Rule) -> TapTable:
    """Return the table of an axis: constants if the axis is static, else scratch memory computed at run time."""
    if is_static((axis.extent, axis.target)):
        sources, factors, beyond = evaluated(axis, rule)
        repetition = 0
        if not factors and beyond is None:
            (found,) = sources
            factor = max(1, int(np.count_nonzero(found == 0)))
            repetition = factor if np.array_equal(found, np.arange(len(found)) // factor) else 0
        return TapTable(
            () if repetition else tuple(ctx.constant(f"{name}_source", column) for column in sources),
            tuple(ctx.constant(f"{name}_weight", column) for column in factors),
            None if beyond is None else ctx.constant(f"{name}_outside", beyond),
            max(int(column.max(initial=0)) for column in sources),
            repetition,
        )
    with ctx.stmts.loop(axis.target, f"{name}_place") as place:
        x = ctx.stmts.let("x", tb.cast(place, _FLOAT))
        columns = rule(axis, x, ctx.stmts.let)

        def stored(title: str, values: Sequence[Expr]) -> tuple[Buffer, ...]:
            buffers = tuple(ctx.scratch(f"{name}_{title}", (axis.target,), value.dtype) for value in values)
            for buffer, value in zip(buffers, values, strict=True):
                ctx.stmts.store(buffer, [place], value)
            return buffers

        positions, weights = stored("source", columns.positions), stored("weight", columns.weights)
        outside = None if columns.outside is None else stored("outside", [columns.outside])[0]
    return TapTable(positions, weights, outside, axis.extent - 1)


def evaluated(
    axis: AxisResize, rule: Rule
) -> tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]], npt.NDArray[Any] | None]:
    """Return the positions and weights of a static axis, one array per neighbour, and the extrapolation flags.

    The flags are None if no element is extrapolated.
    """
    place = Var("place")
    columns = rule(axis, tb.cast(place, _FLOAT), lambda _, value: value)
    exprs = [*columns.positions, *columns.weights, *([] if columns.outside is None else [columns.outside])]
    env = {place: np.arange(axis.target, dtype=np.int32)}
    found = [np.broadcast_to(interpreter.evaluate_expr(expr, env, {}), (axis.target,)) for expr in exprs]
    arrays = [np.ascontiguousarray(array) for array in found]
    count, by = len(columns.positions), len(columns.weights)
    outside = arrays[-1] if columns.outside is not None and arrays[-1].any() else None
    return arrays[:count], arrays[count : count + by], outside


def spatial_axes(name: str, layout: str, rank: int) -> tuple[int, ...]:
    """Return the positions of the spatial axes in a layout such as ``NCHW``; raise TypeCheckError for others."""
    if sorted(layout) != sorted(_CHANNELS_FIRST[rank]):
        raise TypeCheckError(f"{name}: layout '{layout}' is not an order of {_CHANNELS_FIRST[rank]}")
    return tuple(layout.index(letter) for letter in _CHANNELS_FIRST[rank][2:])


@dataclass(frozen=True)
class Resize:
    """Parameters of a resize: axes, target shape and interpolation rule, as in the attributes of ``image.resize2d``."""

    axes: tuple[int, ...]
    target: Shape  # new sizes of `axes`
    method: str
    mode: str
    rounding: str = ""
    roi: tuple[float, ...] = ()  # starts of all axes, then their ends
    alpha: float = -0.5
    exclude_outside: bool = False
    extrapolation: float = 0.0

    def each(self, shape: Shape) -> list[AxisResize]:
        """Return the resize parameters of each resized axis of a tensor of `shape`."""
        count = len(self.axes)
        roi = self.roi if len(self.roi) == 2 * count else (0.0,) * count + (1.0,) * count
        pairs = zip(self.axes, self.target, strict=True)
        return [
            AxisResize(shape[axis], target, self.mode, roi[place], roi[count + place])
            for place, (axis, target) in enumerate(pairs)
        ]

    @property
    def rule(self) -> Rule:
        """The rule that computes the positions and weights along each axis."""
        if self.method == "nearest_neighbor":
            return nearest(self.rounding)
        if self.method == "linear":
            return linear
        return cubic(self.alpha, exclude_outside=self.exclude_outside)

    def checked(self, name: str, data: TensorType) -> Shape:
        """Return the shape of the result; raise TypeCheckError if the resize is invalid."""
        check_choice(name, "method", self.method, _METHODS)
        if self.method != "nearest_neighbor" and not dtypes.is_float(data.dtype):
            raise TypeCheckError(f"{name} interpolates floats, not {data.dtype}")
        # float32 represents all coordinates exactly only up to this size
        ends = [bounds(target) for target in self.target]
        if any(high < 1 or low < 0 or (low == high and high >= 1 << 24) for low, high in ends) or any(
            data.shape[axis] < 1 for axis in self.axes
        ):
            raise TypeCheckError(f"{name}: a tensor of shape {data.shape} cannot be resized to {self.target}")
        for single in self.each(data.shape):  # raises for unknown modes and roundings
            self.rule(single, tb.const(0.0, "float32"), lambda _, value: value)
        shape = list(data.shape)
        for axis, target in zip(self.axes, self.target, strict=True):
            shape[axis] = target
        return tuple(shape)


def emit_resize(ctx: Context, data: Tensor, resize: Resize, out: Output) -> None:
    """Write the loops that store every element of the resized tensor; tables are loaded outside the inner loop."""
    known = [out.shape[axis] for axis in resize.axes if isinstance(out.shape[axis], int)]
    cost.require("constants", _TAP_BYTES * sum(known))
    pairs = zip(resize.axes, resize.each(data.shape), strict=True)
    tables = {axis: table(ctx, how, f"axis{axis}", resize.rule) for axis, how in pairs}
    indices: list[Expr] = []
    sources: list[Columns | None] = []
    with ExitStack() as stack:
        for axis, extent in enumerate(out.shape):
            kind = "vectorized" if axis == len(out.shape) - 1 else "serial"
            indices.append(stack.enter_context(ctx.stmts.loop(extent, f"i{axis}", kind)))
            sources.append(_source(ctx, tables[axis], f"axis{axis}", indices[-1]) if axis in tables else None)
        out.store(indices, _interpolated(data.read, indices, sources, resize, out.dtype))


def _source(ctx: Context, table: TapTable, name: str, index: Expr) -> Columns:
    """Load the table of an axis at `index`, once for all inner loops."""
    let = ctx.stmts.let
    if table.repetition:
        return Columns((let(f"{name}_at", index // table.repetition),), (), None)
    # the clamps do not change values; they prove bounds without knowledge of the table's contents
    limited = [tb.clamp(tb.load(column, [index]), 0, table.last) for column in table.positions]
    positions = tuple(let(f"{name}_at", place) for place in limited)
    weights = tuple(let(f"{name}_by", tb.load(column, [index])) for column in table.weights)
    return Columns(positions, weights, None if table.outside is None else tb.load(table.outside, [index]))


def _interpolated(
    read: Reader, indices: Indices, sources: Sequence[Columns | None], resize: Resize, dtype: str
) -> Expr:
    """Return the weighted sum over all combinations of the taps of the resized axes."""
    resized = [axis for axis, source in enumerate(sources) if source is not None]
    chosen = [source for source in sources if source is not None]
    total: Expr | None = None
    for combination in product(*(range(len(source.positions)) for source in chosen)):
        at = list(indices)
        weight: Expr | None = None
        for axis, source, tap in zip(resized, chosen, combination, strict=True):
            at[axis] = source.positions[tap]
            if source.weights:
                weight = source.weights[tap] if weight is None else weight * source.weights[tap]
        element = read(at)
        if weight is not None:
            element = tb.cast(element, weight.dtype) * weight
        if total is None:
            # a sum of two products may be fused with either product, and code of other shapes might choose the other
            # one
            total = element if weight is None else tb.binary("add", tb.const(0.0, element.dtype), element)
        else:
            total = total + element
    assert total is not None
    value = converted(total, dtype)
    for source in chosen:
        if source.outside is not None:
            value = tb.select(source.outside, tb.const(resize.extrapolation, dtype), value)
    return value


def _resize(rank: int, name: str, attrs: Attrs, data: TensorType) -> Resize:
    size = attrs["size"]
    if len(data.shape) != rank + 2:
        raise TypeCheckError(f"{name}: expected data of {rank + 2} dimensions, got {len(data.shape)}")
    if not isinstance(size, tuple) or len(size) != rank:
        raise TypeCheckError(f"{name}: expected a size of {rank} numbers, got {size}")
    return Resize(
        spatial_axes(name, attrs["layout"], rank), size, attrs["method"], attrs["coordinate_transformation_mode"],
        attrs["rounding_method"], tuple(map(float, attrs["roi"] or ())), attrs["cubic_alpha"],
        bool(attrs["cubic_exclude"]), attrs["extrapolation_value"],
    )  # fmt: skip


def _upsampling(name: str, attrs: Attrs, data: TensorType) -> Resize:
    if len(data.shape) != 4:
        raise TypeCheckError(f"{name}: the data must have 4 dimensions, not {len(data.shape)}")
    check_choice(name, "method", attrs["method"], _UPSAMPLING_METHODS)
    axes = spatial_axes(name, attrs["layout"], 2)
    scales = (attrs["scale_h"], attrs["scale_w"])
    target: list[Any] = []
    for axis, scale in zip(axes, scales, strict=True):
        extent = data.shape[axis]
        if not isinstance(extent, int) and not float(scale).is_integer():
            raise UnsupportedError(f"{name}: expected a static dimension to scale by {scale}, got {extent}",
                                   next_step="Declare model inputs with a shape in which it is static")  # fmt: skip
        target.append(round(extent * scale) if isinstance(extent, int) else extent * int(scale))
    mode = "align_corners" if attrs["align_corners"] else "asymmetric"
    return Resize(axes, tuple(target), _UPSAMPLING_METHODS[attrs["method"]], mode)


def _declare_resize(
    name: str, attrs: tuple[Attr, ...], plan: Callable[[str, Attrs, TensorType], Resize], doc: str
) -> None:
    def infer(_: str, given: Attrs, data: TensorType) -> TensorType:
        dtype = given.get("out_dtype") or data.dtype
        dtypes.bits(dtype)
        return TensorType(plan(name, given, data).checked(name, data), dtype)

    def emit(ctx: Context, inputs: Sequence[Tensor], given: Attrs, out: Output) -> None:
        (data,) = inputs
        emit_resize(ctx, data, plan(name, given, TensorType(data.shape, data.dtype)), out)

    contract = "nearest_neighbor exact; others at most 4 ULP of the largest input"
    declare(name, 1, infer, Kind.ANCHOR, attrs, emit=emit, contract=contract, doc=doc)


for _rank, _layout in _CHANNELS_FIRST.items():
    _attrs = (
        Attr("size", None), Attr("roi", None), Attr("layout", _layout), Attr("method", "linear"),
        Attr("coordinate_transformation_mode", "half_pixel"), Attr("rounding_method", "round"),
        Attr("cubic_alpha", -0.5, is_float=True), Attr("cubic_exclude", 0),
        Attr("extrapolation_value", 0.0, is_float=True), Attr("out_dtype", None),
    )  # fmt: skip
    _doc = "Resize the spatial axes as ONNX's Resize does."
    _declare_resize(f"image.resize{_rank}d", _attrs, partial(_resize, _rank), _doc)
_declare_resize(
    "nn.upsampling",
    (
        Attr("scale_h", REQUIRED, is_float=True), Attr("scale_w", REQUIRED, is_float=True), Attr("layout", "NCHW"),
        Attr("method", "nearest_neighbor"), Attr("align_corners", False),
    ),
    _upsampling,
    "Enlarge images by a factor.",
)  # fmt: skip


@dataclass(frozen=True)
class _Blocks:
    """Positions of the channel and spatial axes in a layout, and the size and order of blocks."""

    channel: int
    rows: int
    columns: int
    size: int
    channel_major: bool

    @staticmethod
    def of(name: str, attrs: Attrs, data: TensorType) -> _Blocks:
        if len(data.shape) != 4:
            raise TypeCheckError(f"{name}: the data must have 4 dimensions, not {len(data.shape)}")
        rows, columns = spatial_axes(name, attrs["layout"], 2)
        mode, size = attrs["mode"], attrs["block_size"]
        if mode not in ("DCR", "CRD") or size < 1:
            raise TypeCheckError(f"{name}: expected mode DCR or CRD and block_size >= 1, got '{mode}' and {size}")
        return _Blocks(attrs["layout"].index("C"), rows, columns, size, mode == "CRD")


def _infer_depth_to_space(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    blocks = _Blocks.of(name, attrs, data)
    area = blocks.size**2
    shape = list(data.shape)
    if isinstance(shape[blocks.channel], int) and shape[blocks.channel] % area:
        raise TypeCheckError(f"{name}: {data.shape[blocks.channel]} channels do not fill blocks of {area}")
    shape[blocks.channel] = divided(name, shape[blocks.channel], area, "channels")
    shape[blocks.rows] *= blocks.size
    shape[blocks.columns] *= blocks.size
    return TensorType(tuple(shape), data.dtype)


def _infer_space_to_depth(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    blocks = _Blocks.of(name, attrs, data)
    shape = list(data.shape)
    if data.is_static and (shape[blocks.rows] % blocks.size or shape[blocks.columns] % blocks.size):
        raise TypeCheckError(f"{name}: {data.shape} does not divide into blocks of {blocks.size}")
    shape[blocks.channel] *= blocks.size**2
    shape[blocks.rows] = divided(name, shape[blocks.rows], blocks.size, "rows")
    shape[blocks.columns] = divided(name, shape[blocks.columns], blocks.size, "columns")
    return TensorType(tuple(shape), data.dtype)


def _depth_to_space(of: Element, data: Tensor) -> Expr:
    blocks = _Blocks.of("nn.depth_to_space", of.attrs, TensorType(data.shape, data.dtype))
    at = list(of.at)
    row, column = at[blocks.rows], at[blocks.columns]
    place = row % blocks.size * blocks.size + column % blocks.size
    channel, channels = at[blocks.channel], of.out.shape[blocks.channel]  # shallow ones
    at[blocks.channel] = channel * blocks.size**2 + place if blocks.channel_major else place * channels + channel
    at[blocks.rows], at[blocks.columns] = row // blocks.size, column // blocks.size
    return data.read(at)


def _space_to_depth(of: Element, data: Tensor) -> Expr:
    blocks = _Blocks.of("nn.space_to_depth", of.attrs, TensorType(data.shape, data.dtype))
    channels, area = data.shape[blocks.channel], blocks.size**2
    at = list(of.at)
    deep = at[blocks.channel]
    place = deep % area if blocks.channel_major else deep // channels
    at[blocks.channel] = deep // area if blocks.channel_major else deep % channels
    at[blocks.rows] = at[blocks.rows] * blocks.size + place // blocks.size
    at[blocks.columns] = at[blocks.columns] * blocks.size + place % blocks.size
    return data.read(at)


_BLOCK_ATTRS = (Attr("block_size", 1), Attr("layout", "NCHW"), Attr("mode", "DCR"))
declare("nn.depth_to_space", 1, _infer_depth_to_space, Kind.INJECTIVE, _BLOCK_ATTRS, _depth_to_space,
        elements=Elements.MOVED, doc="Move channels into spatial blocks; DCR or CRD as in ONNX.")  # fmt: skip
declare("nn.space_to_depth", 1, _infer_space_to_depth, Kind.INJECTIVE, _BLOCK_ATTRS, _space_to_depth,
        elements=Elements.MOVED,
        doc="Move spatial blocks into channels, the inverse of nn.depth_to_space.")  # fmt: skip
