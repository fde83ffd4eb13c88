"""Pooling of regions of feature maps to one size: ``vision.roi_align``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.kernels.folding import serial_loops
from mlfc.ops.elementwise import converted
from mlfc.ops.image import spatial_axes
from mlfc.ops.rules import TooSmallError, check_choice, check_dtype, declare, replaced
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind
from mlfc.support.dims import bounds
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Const, Expr

_MODES = ("avg", "max")
_MOST_SAMPLES = 1 << 10  # of a bin along an axis


def _infer(name: str, attrs: Attrs, data: TensorType, rois: TensorType) -> TensorType:
    """Check data against regions: rows of image index, left, upper, right and lower edge."""
    for kind in (data, rois):
        check_dtype(name, kind.dtype, "float")
    check_choice(name, "mode", attrs["mode"], _MODES)
    if len(data.shape) != 4 or len(rois.shape) != 2 or rois.shape[1] != 5:
        raise TypeCheckError(f"{name}: data of shape {data.shape} and regions of shape {rois.shape} do not fit")
    axes = spatial_axes(name, attrs["layout"], 2)
    if attrs["sample_ratio"] > _MOST_SAMPLES:
        raise TypeCheckError(f"{name}: expected a sample_ratio of at most {_MOST_SAMPLES}, got {attrs['sample_ratio']}")
    pooled = attrs["pooled_size"]
    if not isinstance(pooled, tuple) or len(pooled) != 2 or any(not isinstance(n, int) or n < 1 for n in pooled):
        raise TypeCheckError(f"{name}: expected a pooled_size of two numbers of at least 1, got {pooled}")
    for axis in (attrs["layout"].index("N"), *axes):
        if bounds(data.shape[axis])[0] < 1 <= bounds(data.shape[axis])[1]:
            raise TooSmallError(name, data.shape[axis], 1, "a dimension")
    # float32 coordinates do not count further
    ends = [bounds(data.shape[axis]) for axis in axes]
    images = bounds(data.shape[attrs["layout"].index("N")])[0]
    if images < 1 or any(low < 1 or (low == high and high >= 1 << 22) for low, high in ends):
        raise TypeCheckError(f"{name}: regions of data of shape {data.shape} cannot be pooled")
    shape = replaced(data.shape, attrs["layout"].index("N"), rois.shape[0])
    for axis, extent in zip(axes, pooled, strict=True):
        shape = replaced(shape, axis, extent)
    return TensorType(shape, data.dtype)


@dataclass(frozen=True)
class _RegionSide:
    """A region along one axis, divided into bins, which are divided into samples."""

    ctx: Context
    extent: Any  # of the data
    first: Expr  # start of the region
    size: Expr  # of a bin
    samples: Expr  # of a bin, a float
    most: Any  # samples of a bin in the image, and one outside

    def span(self, index: Expr) -> tuple[Expr, Expr]:
        """Return the first sample of bin `index` that may be inside the image, as a float, and the number of samples.

        Bins larger than the image have more samples outside, which contribute 0.
        """
        let, dtype = self.ctx.stmts.let, self.first.dtype
        if isinstance(self.samples, Const):
            return tb.const(0, dtype), tb.cast(self.samples, "int32")
        before = tb.const(-1, dtype) - self.first - tb.cast(index, dtype) * self.size
        skipped = tb.intrinsic("floor", before * self.samples / self.size) - tb.const(1, dtype)
        begin = let("begin", tb.clamp(skipped, tb.const(0, dtype), self.samples))
        count = tb.clamp(self.samples - begin, tb.const(0, dtype), tb.const(self.most, dtype))
        return begin, let("taken", tb.clamp(tb.truncated(count, "int32"), 0, self.most))

    def place(self, index: Expr, sample: Expr) -> Expr:
        """Return the coordinate of a sample of bin `index`."""
        dtype = self.first.dtype
        within = (sample + tb.const(0.5, dtype)) * self.size / self.samples
        return self.ctx.stmts.let("place", self.first + tb.cast(index, dtype) * self.size + within)

    def taps(self, place: Expr) -> list[tuple[Expr, Expr]]:
        """Return the two neighbouring elements of a sample, with their weights; a sample outside is clamped."""
        let, dtype, last = self.ctx.stmts.let, place.dtype, self.extent - 1
        at = let("at", tb.clamp(place, tb.const(0, dtype), tb.const(last, dtype)))
        low = let("low", tb.clamp(tb.truncated(at, "int32"), 0, last))
        share = let("share", at - tb.cast(low, dtype))
        high = let("high", tb.minimum(low + 1, last))
        return [(low, let("rest", tb.const(1, dtype) - share)), (high, share)]


def _side(ctx: Context, attrs: Attrs, extent: Any, pooled: int, edges: tuple[Expr, Expr]) -> _RegionSide:
    let, dtype = ctx.stmts.let, edges[0].dtype
    offset = tb.const(0.5 if attrs["aligned"] else 0.0, dtype)
    first, end = (let("edge", edge * tb.const(attrs["spatial_scale"], dtype) - offset) for edge in edges)
    whole = end - first if attrs["aligned"] else tb.maximum(end - first, tb.const(1, dtype))
    size = let("size", whole / tb.const(pooled, dtype))
    if attrs["sample_ratio"] > 0:
        return _RegionSide(ctx, extent, first, size, tb.const(attrs["sample_ratio"], dtype), attrs["sample_ratio"])
    samples = let("samples", tb.maximum(tb.intrinsic("ceil", size), tb.const(0, dtype)))
    return _RegionSide(ctx, extent, first, size, samples, extent + 5)


def _emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    """Compute each sample of a bin once, and fold it into the results of all channels."""
    data, rois = inputs
    layout, stmts = attrs["layout"], ctx.stmts
    image_axis, channel_axis, axes = layout.index("N"), layout.index("C"), spatial_axes("", layout, 2)
    dtype, counted = ("float64" if kind == "float64" else "float32" for kind in (data.dtype, rois.dtype))
    channels, images = data.shape[channel_axis], data.shape[image_axis]
    results = ctx.scratch("results", (channels,), dtype)
    kind = "vectorized" if channel_axis == 3 else "serial"
    with stmts.loop(rois.shape[0], "region") as region:
        number, left, upper, right, lower = (tb.cast(rois(region, column), counted) for column in range(5))
        image = stmts.let("image", tb.clamp(tb.truncated(number, "int32"), 0, images - 1))
        edges = ((upper, lower), (left, right))
        sides = [
            _side(ctx, attrs, data.shape[axis], pooled, edge)
            for axis, pooled, edge in zip(axes, attrs["pooled_size"], edges, strict=True)
        ]
        with serial_loops(ctx, attrs["pooled_size"], "bin") as bins:
            with stmts.loop(channels, "clear", kind) as channel:
                stmts.store(results, [channel], 0)
            begins, counts = zip(*(side.span(index) for side, index in zip(sides, bins, strict=True)), strict=True)
            with serial_loops(ctx, counts, "sample") as samples:
                taken = [begin + tb.cast(at, begin.dtype) for begin, at in zip(begins, samples, strict=True)]
                _add_sample(ctx, data, attrs, image, sides, bins, taken, results)
            count = tb.maximum(tb.cast(sides[0].samples * sides[1].samples, dtype), tb.const(1, dtype))
            count = stmts.let("count", count)
            with stmts.loop(channels, "channel", kind) as channel:
                found = tb.load(results, [channel])
                mean = found / count if attrs["mode"] == "avg" else found
                to = {image_axis: region, channel_axis: channel, **dict(zip(axes, bins, strict=True))}
                out.store([to[axis] for axis in range(4)], converted(mean, out.dtype))


def _add_sample(
    ctx: Context, data: Tensor, attrs: Attrs, image: Expr, sides: Sequence[_RegionSide], bins: Sequence[Expr],
    samples: Sequence[Expr], results: Buffer,
) -> None:  # fmt: skip
    layout, stmts = attrs["layout"], ctx.stmts
    axes, dtype = spatial_axes("", layout, 2), results.dtype
    places = [side.place(*at) for side, at in zip(sides, zip(bins, samples, strict=True), strict=True)]
    inside = []  # within the image or less than one element outside; false for NaN
    for side, place in zip(sides, places, strict=True):
        low, high = tb.const(-1, place.dtype), tb.const(side.extent, place.dtype)
        inside.append(tb.land(tb.binary("ge", place, low), tb.binary("le", place, high)))
    is_inside = stmts.let("inside", tb.land(*inside))
    rows, columns = (side.taps(place) for side, place in zip(sides, places, strict=True))
    corners = [
        (row, column, stmts.let("weight", tb.cast(row_weight * column_weight, dtype)))
        for row, row_weight in rows
        for column, column_weight in columns
    ]
    is_first = tb.land(*(tb.binary("eq", sample, tb.const(0, sample.dtype)) for sample in samples))
    kind = "vectorized" if layout[3] == "C" else "serial"
    with stmts.loop(data.shape[layout.index("C")], "channel", kind) as channel:
        at = {layout.index("N"): image, layout.index("C"): channel}
        parts = []
        for row, column, weight in corners:
            every = {**at, axes[0]: row, axes[1]: column}
            parts.append(weight * tb.cast(data.read([every[axis] for axis in range(4)]), dtype))
        before = tb.load(results, [channel])
        if attrs["mode"] == "avg":
            value = tb.select(is_inside, parts[0] + parts[1] + parts[2] + parts[3], tb.const(0, dtype))
            stmts.store(results, [channel], before + value)
        else:
            highest = tb.maximum(tb.maximum(tb.maximum(parts[0], parts[1]), parts[2]), parts[3])
            value = stmts.let("value", tb.select(is_inside, highest, tb.const(0, dtype)))
            stmts.store(results, [channel], tb.select(is_first, value, tb.maximum(before, value)))


declare("vision.roi_align", 2, _infer, Kind.ANCHOR,
        (Attr("pooled_size", REQUIRED), Attr("spatial_scale", 1.0, is_float=True), Attr("sample_ratio", -1),
         Attr("layout", "NCHW"), Attr("mode", "avg"), Attr("aligned", False, in_tvm={})),
        emit=_emit,
        contract="samples and sums in float32, of float64 in float64; max takes the largest weighted element, as ONNX "
        "does",
        doc="Pool regions (image, left, upper, right and lower edge) to one size by bilinear samples")  # fmt: skip
