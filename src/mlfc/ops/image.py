"""Operators on images: resizing, and moves between channels and space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.ops import resampling
from mlfc.ops.elementwise import converted
from mlfc.ops.resampling import AxisResize
from mlfc.ops.rules import Element, check_choice, declare, divided
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Elements, Kind
from mlfc.support import cost, dtypes
from mlfc.support.dims import Extent, Shape, bounds
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Output, Reader, Tensor
from mlfc.tir.ir import Expr

_CHANNELS_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
# of an element of a resized axis while its neighbours and their weights are worked out
_TAP_BYTES = 64
_METHODS = ("nearest_neighbor", "linear", "cubic")
_UPSAMPLING_METHODS = {"nearest_neighbor": "nearest_neighbor", "bilinear": "linear", "bicubic": "cubic"}


def spatial_axes(name: str, layout: str, rank: int) -> tuple[int, ...]:
    """Return the positions of the spatial axes in a layout such as ``NCHW``; raise TypeCheckError for others."""
    if sorted(layout) != sorted(_CHANNELS_FIRST[rank]):
        raise TypeCheckError(f"{name}: layout '{layout}' is not an order of {_CHANNELS_FIRST[rank]}")
    return tuple(layout.index(letter) for letter in _CHANNELS_FIRST[rank][2:])


@dataclass(frozen=True)
class Resize:
    """How a tensor is resized: which axes, to what, and by which rule, as in the attributes of ``image.resize2d``."""

    axes: tuple[int, ...]
    target: Shape  # new extents of `axes`
    method: str
    mode: str
    rounding: str = ""
    roi: tuple[float, ...] = ()  # starts of all axes, then their ends
    alpha: float = -0.5
    exclude_outside: bool = False
    extrapolation: float = 0.0

    def each(self, shape: Shape) -> list[AxisResize]:
        """Return how each resized axis of a tensor of `shape` is resized."""
        count = len(self.axes)
        roi = self.roi if len(self.roi) == 2 * count else (0.0,) * count + (1.0,) * count
        pairs = zip(self.axes, self.target, strict=True)
        return [
            AxisResize(shape[axis], target, self.mode, roi[place], roi[count + place])
            for place, (axis, target) in enumerate(pairs)
        ]

    @property
    def rule(self) -> resampling.Rule:
        """The rule of the positions and weights along each axis."""
        if self.method == "nearest_neighbor":
            return resampling.nearest(self.rounding)
        if self.method == "linear":
            return resampling.linear
        return resampling.cubic(self.alpha, exclude_outside=self.exclude_outside)

    def checked(self, name: str, data: TensorType) -> Shape:
        """Return the shape of the result; raise TypeCheckError for what cannot be resized."""
        check_choice(name, "method", self.method, _METHODS)
        if self.method != "nearest_neighbor" and not dtypes.is_float(data.dtype):
            raise TypeCheckError(f"{name} interpolates floats, not {data.dtype}")
        # float32 coordinates do not count further
        ends = [bounds(target) for target in self.target]
        if any(high < 1 or low < 0 or (low == high and high >= 1 << 24) for low, high in ends) or any(
            data.shape[axis] < 1 for axis in self.axes
        ):
            raise TypeCheckError(f"{name}: a tensor of shape {data.shape} cannot be resized to {self.target}")
        for single in self.each(data.shape):  # refuses modes and roundings that do not exist
            self.rule(single, tb.const(0.0, "float32"), lambda _, value: value)
        shape = list(data.shape)
        for axis, target in zip(self.axes, self.target, strict=True):
            shape[axis] = target
        return tuple(shape)


def emit_resize(ctx: Context, data: Tensor, resize: Resize, out: Output) -> None:
    """Write the loops that store every element of the resized tensor; tables are read outside the inner loop."""
    known = [out.shape[axis] for axis in resize.axes if isinstance(out.shape[axis], int)]
    cost.require("constants", _TAP_BYTES * sum(known))
    pairs = zip(resize.axes, resize.each(data.shape), strict=True)
    tables = {axis: resampling.table(ctx, how, f"axis{axis}", resize.rule) for axis, how in pairs}
    indices: list[Expr] = []
    sources: list[_ResizeSource | None] = []
    stmts = ctx.stmts

    def nest(axis: int) -> None:
        if axis == len(out.shape):
            value = _interpolated(data.read, indices, sources, resize, out.dtype)
            out.store(list(indices), value)
            return
        kind = "vectorized" if axis == len(out.shape) - 1 else "serial"
        with stmts.loop(out.shape[axis], f"i{axis}", kind) as index:
            indices.append(index)
            sources.append(_source(ctx, tables[axis], f"axis{axis}", index) if axis in tables else None)
            nest(axis + 1)
            indices.pop()
            sources.pop()

    nest(0)


@dataclass(frozen=True, eq=False)
class _ResizeSource:
    """What one output position of a resized axis reads: positions, weights, and whether it lies outside."""

    positions: tuple[Expr, ...]
    weights: tuple[Expr, ...]
    outside: Expr | None


def _source(ctx: Context, table: resampling.TapTable, name: str, index: Expr) -> _ResizeSource:
    """Read the table of an axis at `index`, once for all loops inside."""
    let = ctx.stmts.let
    if table.repetition:
        return _ResizeSource((let(f"{name}_at", index // table.repetition),), (), None)
    # the limits change nothing; they let the bounds of what is read be proven without the table
    limited = [tb.clamp(tb.load(column, [index]), 0, table.last) for column in table.positions]
    positions = tuple(let(f"{name}_at", place) for place in limited)
    weights = tuple(let(f"{name}_by", tb.load(column, [index])) for column in table.weights)
    return _ResizeSource(positions, weights, None if table.outside is None else tb.load(table.outside, [index]))


def _interpolated(
    read: Reader, indices: Indices, sources: Sequence[_ResizeSource | None], resize: Resize, dtype: str
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
            # the sum of two products becomes one operation with either: code of other extents might choose the other
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


def _scaled(name: str, extent: Extent, scale: float) -> Any:
    if isinstance(extent, int):
        return round(extent * scale)
    if not float(scale).is_integer():
        raise UnsupportedError(f"{name}: expected a fixed extent to be scaled by {scale}, got {extent}",
                               next_step="Give the model's inputs a shape in which it is fixed")  # fmt: skip
    return extent * int(scale)


def _upsampling(name: str, attrs: Attrs, data: TensorType) -> Resize:
    if len(data.shape) != 4:
        raise TypeCheckError(f"{name}: the data must have 4 dimensions, not {len(data.shape)}")
    check_choice(name, "method", attrs["method"], _UPSAMPLING_METHODS)
    axes = spatial_axes(name, attrs["layout"], 2)
    scales = (attrs["scale_h"], attrs["scale_w"])
    target = tuple(_scaled(name, data.shape[axis], scale) for axis, scale in zip(axes, scales, strict=True))
    mode = "align_corners" if attrs["align_corners"] else "asymmetric"
    return Resize(axes, target, _UPSAMPLING_METHODS[attrs["method"]], mode)


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
    """Positions of channels and space in a layout, and the size and order of blocks."""

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
            raise TypeCheckError(f"{name}: mode '{mode}' with blocks of {size} is not known")
        return _Blocks(attrs["layout"].index("C"), rows, columns, size, mode == "CRD")

    def channel_of(self, place: Expr, channel: Expr, channels: int) -> Expr:
        """Return the deep channel of `channel` at `place` in its block; `channels` is the number of shallow ones."""
        if self.channel_major:
            return channel * (self.size * self.size) + place
        return place * channels + channel


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
    at[blocks.channel] = blocks.channel_of(place, at[blocks.channel], of.out.shape[blocks.channel])
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
        elements=Elements.MOVED, doc="Spread channels over blocks of space; DCR or CRD as in ONNX.")  # fmt: skip
declare("nn.space_to_depth", 1, _infer_space_to_depth, Kind.INJECTIVE, _BLOCK_ATTRS, _space_to_depth,
        elements=Elements.MOVED,
        doc="Gather blocks of space into channels, the inverse of nn.depth_to_space.")  # fmt: skip
