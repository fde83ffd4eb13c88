"""Samples of images (image.grid_sample), pooled regions (vision.roi_align), and non-maximum suppression of boxes.

Suppression is greedy: it removes boxes that overlap better ones.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.kernels.folding import serial_loops
from mlfc.ops.elementwise import converted
from mlfc.ops.image import spatial_axes
from mlfc.ops.rules import TooSmallError, check_choice, check_dtype, declare, replaced, same_shape, scalar
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Layout, Trait
from mlfc.support import dtypes
from mlfc.support.dims import Dim, bounds, is_static, maximum, minimum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Const, Expr

_METHODS = ("nearest", "bilinear", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")
# Keys' coefficient, as in PyTorch, ONNX and TVM
_CUBIC_A = -0.75
# a cubic kernel reads two elements on either side: beyond this margin no tap is inside the image
_MARGIN = 3


def _infer(name: str, attrs: Attrs, data: TensorType, grid: TensorType) -> TensorType:
    """Check data against a grid (batch, coordinates, *positions); the first coordinate counts along the last axis."""
    check_choice(name, "method", attrs["method"], _METHODS)
    check_choice(name, "padding_mode", attrs["padding_mode"], _PADDINGS)
    check_dtype(name, data.dtype, "number" if attrs["method"] == "nearest" else "float")
    check_dtype(name, grid.dtype, "float")
    rank = len(data.shape) - 2
    if not 1 <= rank <= 3:
        raise TypeCheckError(f"{name}: expected data of 3 to 5 dimensions, got {len(data.shape)}")
    axes = spatial_axes(name, attrs["layout"], rank)
    batch = attrs["layout"].index("N")
    wanted = (data.shape[batch], rank)
    if len(grid.shape) != rank + 2 or (is_static((*grid.shape[:2], *wanted)) and grid.shape[:2] != wanted):
        raise TypeCheckError(f"{name}: a grid of shape {grid.shape} does not fit data of shape {data.shape}")
    same_shape(name, grid.shape[:2], wanted, "batches and coordinates")
    # float32 represents all coordinates exactly only up to this size
    ends = [bounds(data.shape[axis]) for axis in axes]
    if any(low < 1 or (low == high and high >= 1 << 22) for low, high in ends):
        raise TypeCheckError(f"{name}: a tensor of shape {data.shape} cannot be sampled")
    shape = list(data.shape)
    for axis, extent in zip(axes, grid.shape[2:], strict=True):
        shape[axis] = extent
    return TensorType(tuple(shape), data.dtype)


@dataclass(frozen=True)
class _Tap:
    """An input element of a sample: position, weight, and whether it is inside the image."""

    position: Expr
    weight: Expr | None
    inside: Expr | None


@dataclass(frozen=True)
class _SampledAxis:
    """Sampling parameters of one spatial axis."""

    ctx: Context
    extent: Any
    method: str
    padding: str
    corners: bool  # -1 and 1 are the centres of the first and last element if true, else their outer edges

    def taps(self, place: Expr, weigh: str) -> list[_Tap]:
        """Return the input elements for the coordinate `place`, with weights of dtype `weigh`."""
        let = self.ctx.stmts.let
        at = (place + _like(1, place)) * _like(0.5, place) * _like(self.extent - 1, place)
        if not self.corners:
            at = ((place + _like(1, place)) * _like(self.extent, place) - _like(1, place)) * _like(0.5, place)
        if self.method == "nearest":
            at = tb.intrinsic("round_even", at)
        at = let("at", at)
        if self.padding == "reflection":
            at = tb.clamp(self._reflected(at), *self._edges(at))
        else:  # clamp to the axis or near it; NaN counts as the lowest coordinate
            # a cubic with border padding clamps the taps to the axis, not the coordinate
            margin = _MARGIN if self.padding == "zeros" or self.method == "bicubic" else 0
            at = tb.clamp(at, _like(-margin, at), _like(self.extent - 1 + margin, at))
        at = let("at", at)
        below = let("below", tb.intrinsic("floor", at))
        first = let("first", tb.truncated(below, "int32"))
        if self.method == "nearest":
            return [self._tap(first, None)]
        fraction = let("fraction", tb.cast(at - below, weigh))
        weights = [_like(1, fraction) - fraction, fraction] if self.method == "bilinear" else _cubic(fraction)
        steps = range(1 - len(weights) // 2, 1 + len(weights) // 2)
        return [self._tap(first + step, let("weight", weight)) for step, weight in zip(steps, weights, strict=True)]

    def _edges(self, at: Expr) -> tuple[Expr, Expr]:
        if self.corners:
            return _like(0.0, at), _like(self.extent - 1, at)
        last = _like(self.extent - 0.5, at) if isinstance(self.extent, int) else _like(self.extent, at) - 0.5
        return _like(-0.5, at), last

    def _reflected(self, at: Expr) -> Expr:
        if self.corners and self.extent == 1:
            return _like(0, at)
        let, around = self.ctx.stmts.let, 2 * (self.extent - 1 if self.corners else self.extent)
        low, high = self._edges(at)
        from_low = let("from_low", at - low)
        turns = tb.intrinsic("floor", from_low / _like(around, at))
        rest = let("rest", from_low - turns * _like(around, at))
        back = tb.minimum(rest, _like(around, at) - rest) + low
        # coordinates inside are not rounded again
        found = tb.select(tb.land(tb.binary("ge", at, low), tb.binary("le", at, high)), at, back)
        if self.corners and isinstance(self.extent, Dim):
            return tb.select(tb.binary("eq", tb.const(self.extent), 1), _like(0, at), found)
        return found

    def _tap(self, position: Expr, weight: Expr | None) -> _Tap:
        last = self.extent - 1
        let = self.ctx.stmts.let
        if self.padding == "zeros":
            position = let("position", position)
            inside = tb.land(tb.binary("ge", position, 0), tb.binary("le", position, last))
            return _Tap(let("position", tb.clamp(position, 0, last)), weight, let("inside", inside))
        if self.padding == "reflection" and bounds(last)[1] > 0:
            around = 2 * last if self.corners else 2 * last + 2
            position = let("position", position % maximum(around, 1))
            position = tb.minimum(position, (around if self.corners else around - 1) - position)
        return _Tap(let("position", tb.clamp(position, 0, last)), weight, None)


def _like(value: float, expr: Expr) -> Expr:
    return tb.const(value, expr.dtype)


def _cubic(fraction: Expr) -> list[Expr]:
    a, one = _CUBIC_A, _like(1, fraction)

    def near(x: Expr) -> Expr:
        return (_like(a + 2, x) * x - _like(a + 3, x)) * x * x + one

    def far(x: Expr) -> Expr:
        return ((_like(a, x) * x - _like(5 * a, x)) * x + _like(8 * a, x)) * x - _like(4 * a, x)

    rest = one - fraction
    return [far(fraction + one), near(fraction), near(rest), far(rest + one)]


def _emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    """Compute the taps of each sample once, and sum them for every channel."""
    data, grid = inputs
    layout, rank, stmts = attrs["layout"], len(data.shape) - 2, ctx.stmts
    axes = spatial_axes("image.grid_sample", layout, rank)
    weigh = "float64" if data.dtype == "float64" else "float32"
    counted = "float64" if grid.dtype == "float64" else "float32"
    with ctx.loops(grid.shape[:1] + grid.shape[2:]) as (image, *place):
        taps = []
        for number, axis in enumerate(axes):
            given = _SampledAxis(
                ctx, data.shape[axis], attrs["method"], attrs["padding_mode"], bool(attrs["align_corners"])
            )
            coordinate = stmts.let("coordinate", tb.cast(grid(image, rank - 1 - number, *place), counted))
            taps.append(given.taps(coordinate, weigh))
        channel_axis = layout.index("C")
        kind = "vectorized" if channel_axis == rank + 1 else "serial"
        with stmts.loop(data.shape[channel_axis], "channel", kind) as channel:
            at = {layout.index("N"): image, channel_axis: channel}
            every = ({**at, **dict(zip(axes, combination, strict=True))} for combination in product(*taps))
            total = reduce(operator.add, [_weighted(data, each, weigh) for each in every])
            to = {**at, **dict(zip(axes, place, strict=True))}
            out.store([to[axis] for axis in range(rank + 2)], converted(total, out.dtype))


def _weighted(data: Tensor, at: dict[int, Expr | _Tap], weigh: str) -> Expr:
    taps = [part for part in at.values() if isinstance(part, _Tap)]
    parts = (at[axis] for axis in range(len(at)))
    element = data.read([part.position if isinstance(part, _Tap) else part for part in parts])
    inside = [tap.inside for tap in taps if tap.inside is not None]
    if inside:
        element = tb.select(tb.land(*inside), element, tb.const(0, element.dtype))
    weights = [tap.weight for tap in taps if tap.weight is not None]
    return tb.cast(element, weigh) * reduce(operator.mul, weights) if weights else element


declare("image.grid_sample", 2, _infer, Kind.ANCHOR,
        (Attr("method", "bilinear"), Attr("layout", "NCHW"), Attr("padding_mode", "zeros"),
         Attr("align_corners", True)),
        emit=_emit, layout=Layout.LOGICAL,
        contract="nearest exact where coordinates are; a coordinate that is NaN counts as the lowest",
        doc="Sample images at the coordinates of a grid, which range from -1 to 1")  # fmt: skip


_MODES = ("avg", "max")
_MOST_SAMPLES = 1 << 10  # of a bin along an axis


def _infer_roi_align(name: str, attrs: Attrs, data: TensorType, rois: TensorType) -> TensorType:
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


def _emit_roi_align(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
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


declare("vision.roi_align", 2, _infer_roi_align, Kind.ANCHOR,
        (Attr("pooled_size", REQUIRED), Attr("spatial_scale", 1.0, is_float=True), Attr("sample_ratio", -1),
         Attr("layout", "NCHW"), Attr("mode", "avg"), Attr("aligned", False, in_tvm={})),
        emit=_emit_roi_align,
        contract="samples and sums in float32, of float64 in float64; max takes the largest weighted element, as ONNX "
        "does",
        doc="Pool regions (image, left, upper, right and lower edge) to one size by bilinear samples")  # fmt: skip


_LOWEST = float("-inf")


def _infer_boxes(
    name: str, attrs: Attrs, boxes: TensorType, scores: TensorType, most: TensorType, *limits: TensorType
) -> TensorType:
    """Check boxes (batch, boxes, 4), scores (batch, classes, boxes) and three scalars; the result has `rows` rows."""
    for kind in (boxes, scores, *limits):
        check_dtype(name, kind.dtype, "float")
    check_dtype(name, most.dtype, "integer")
    if any(kind.size != 1 for kind in (most, *limits)):
        raise TypeCheckError(f"{name}: the maximum number of boxes and the thresholds must be scalars")
    fits = len(boxes.shape) == len(scores.shape) == 3 and boxes.dtype == scores.dtype
    if not fits or boxes.shape != (scores.shape[0], scores.shape[2], 4):
        raise TypeCheckError(f"{name}: boxes {boxes} and scores {scores} do not fit")
    if attrs["rows"] < 0:
        raise TypeCheckError(f"{name}: the result cannot have {attrs['rows']} rows")
    return TensorType((attrs["rows"], 3), "int64")


def _emit_boxes(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    """Select the best remaining box and suppress those that overlap it, until none remains."""
    boxes, scores, most, overlap, lowest = inputs
    stmts, rows = ctx.stmts, out.shape[0]
    batches, classes, count = scores.shape
    found = ctx.scratch("found", (maximum(rows, 1), 3), "int64")
    left = ctx.scratch("left", (maximum(count, 1),), "bool")
    row = stmts.filled("row", 1, "int32")
    with ctx.loops((rows, 3), "clear") as at:
        stmts.store(found, at, -1)
    low, high = dtypes.limits(most.dtype)
    limited = tb.minimum(scalar(most), minimum(count, int(high)))
    wanted = stmts.let("wanted", tb.cast(limited if low == 0 else tb.maximum(limited, 0), "int32"))
    limit = stmts.let("limit", tb.cast(scalar(overlap), _wide(boxes)))
    threshold = stmts.let("threshold", tb.cast(scalar(lowest), scores.dtype))
    with stmts.loop(batches, "batch") as batch, stmts.loop(classes, "label") as label:
        with stmts.loop(count, "box") as box:
            score = stmts.let("score", scores(batch, label, box))
            unlimited = tb.binary("eq", threshold, tb.const(_LOWEST, threshold.dtype))
            passes = tb.binary("lor", tb.binary("gt", score, threshold), unlimited)
            # NaN is equal to nothing, so a box with this score is never selected
            stmts.store(left, [box], tb.land(passes, tb.binary("eq", score, score)))
        with stmts.loop(wanted, "turn"):
            # the remaining box with the highest score, the first if several are equal; -1 if none remains
            found_box, found_score = stmts.local("best", (1,), "int32"), stmts.local("best_score", (1,), scores.dtype)
            stmts.store(found_box, [0], -1)
            stmts.store(found_score, [0], _LOWEST)
            with stmts.loop(count, "box") as box, stmts.when(tb.load(left, [box])):
                own = stmts.let("own", scores(batch, label, box))
                is_first = tb.binary("lt", tb.load(found_box, [0]), 0)
                with stmts.when(tb.binary("lor", is_first, tb.binary("gt", own, tb.load(found_score, [0])))):
                    stmts.store(found_box, [0], box)
                    stmts.store(found_score, [0], own)
            best = stmts.let("best_box", tb.load(found_box, [0]))
            with stmts.when(tb.binary("ge", best, 0)):
                chosen = stmts.let("chosen", tb.clamp(best, 0, count - 1))
                place = stmts.let("place", tb.load(row, [0]))
                with stmts.when(tb.binary("lt", place, rows)):
                    inside = stmts.let("inside", tb.clamp(place, 0, maximum(rows, 1) - 1))
                    for column, value in enumerate((batch, label, chosen)):
                        stmts.store(found, [inside, column], tb.cast(value, "int64"))
                    stmts.store(row, [0], place + 1)
                stmts.store(left, [chosen], False)
                _strike_out(ctx, boxes, left, batch, chosen, limit, centred=bool(attrs["center_point_box"]))
    with ctx.loops(out.shape, "o") as at:
        out.store(at, tb.load(found, at))


def _wide(boxes: Tensor) -> str:
    return "float64" if boxes.dtype == "float64" else "float32"


def _strike_out(
    ctx: Context, boxes: Tensor, left: Buffer, batch: Expr, chosen: Expr, limit: Expr, *, centred: bool
) -> None:
    """Suppress the boxes whose intersection over union with the chosen box exceeds `limit`."""
    stmts = ctx.stmts
    own = _edges(ctx, boxes, batch, chosen, centred=centred)
    with stmts.loop(boxes.shape[1], "box") as box, stmts.when(tb.load(left, [box])):
        other = _edges(ctx, boxes, batch, box, centred=centred)
        sides = [
            stmts.let("common", tb.minimum(own[axis][1], other[axis][1]) - tb.maximum(own[axis][0], other[axis][0]))
            for axis in range(2)
        ]
        both = stmts.let("both", sides[0] * sides[1])
        areas = [stmts.let("area", (y[1] - y[0]) * (x[1] - x[0])) for y, x in (own, other)]
        union = stmts.let("union", areas[0] + areas[1] - both)
        zero = tb.const(0, both.dtype)
        positive = [tb.binary("gt", value, zero) for value in (*sides, both, *areas, union)]
        share = tb.binary("div", both, union)
        with stmts.when(tb.land(*positive)), stmts.when(tb.binary("gt", share, limit)):
            stmts.store(left, [box], False)


def _edges(ctx: Context, boxes: Tensor, batch: Expr, box: Expr, *, centred: bool) -> list[tuple[Expr, Expr]]:
    """Return the lower and the upper edge along both axes."""
    a, b, c, d = (ctx.stmts.let("edge", tb.cast(boxes(batch, box, k), _wide(boxes))) for k in range(4))
    let = ctx.stmts.let
    if centred:
        half = tb.const(0.5, _wide(boxes))
        pairs = [(b - d * half, b + d * half), (a - c * half, a + c * half)]
    else:
        pairs = [(tb.minimum(a, c), tb.maximum(a, c)), (tb.minimum(b, d), tb.maximum(b, d))]
    return [(let("low", low), let("high", high)) for low, high in pairs]


declare("vision.select_boxes", 5, _infer_boxes, Kind.ANCHOR, (Attr("rows", REQUIRED), Attr("center_point_box", False)),
        emit=_emit_boxes, traits=Trait.NOT_IN_TVM,
        contract="exact up to the rounding of areas; rows without a box are -1, boxes without a row are left out",
        note="rows without a box are -1, boxes without a row are left out",
        doc="Batch, class and index of the boxes with the best scores that do not overlap better ones")  # fmt: skip
