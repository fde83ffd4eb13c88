"""Samples of images at coordinates from a tensor: ``image.grid_sample``."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.ops.elementwise import converted
from mlfc.ops.image import spatial_axes
from mlfc.ops.rules import check_choice, check_dtype, declare, same_shape
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind, Layout
from mlfc.support.dims import Dim, bounds, is_static, maximum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Expr

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
