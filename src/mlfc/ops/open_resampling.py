"""Where the elements of a resized axis come from where the run decides how many there are: tables that the code makes.

The arithmetic is that of `resampling`, in float32, operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlfc.errors import UnsupportedError
from mlfc.ops.resampling import TIE, AxisResize
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Buffer, Expr

_FLOAT = "float32"
_BEYOND = 2.0**100  # what products of weights and distances never reach


@dataclass(frozen=True, eq=False)
class OpenTaps:
    """Tables in scratch: for each element of the axis, its taps, and their weights if it is no copy of one."""

    positions: tuple[Buffer, ...]
    weights: tuple[Buffer, ...] | None


def nearest(ctx: Context, axis: AxisResize, rounding: str, name: str) -> OpenTaps:
    """Write the table of the nearest elements; `rounding` is ONNX's name, or empty for TFLite's rule."""

    def taps(x: Expr) -> tuple[list[Expr], list[Expr]]:
        place = _ROUNDINGS[rounding](_coordinate(ctx, axis, x)) if rounding else _tflite_place(axis, x)
        return [_position(place, axis)], []

    return _tables(ctx, axis, name, taps)


def linear(ctx: Context, axis: AxisResize, name: str) -> OpenTaps:
    """Write the tables of the two neighbours of each element and of their weights."""

    def taps(x: Expr) -> tuple[list[Expr], list[Expr]]:
        let = ctx.stmts.let
        at = let("at", tb.clamp(_coordinate(ctx, axis, x), 0.0, _float(axis.extent - 1)))
        lower = let("lower", _position(tb.intrinsic("floor", at), axis))
        fraction = let("fraction", at - tb.cast(lower, _FLOAT))
        return [lower, tb.minimum(lower + 1, axis.extent - 1)], [1.0 - fraction, fraction]

    return _tables(ctx, axis, name, taps)


def cubic(ctx: Context, axis: AxisResize, alpha: float, name: str, *, exclude_outside: bool) -> OpenTaps:
    """Write the tables of the four neighbours of each element and of the weights of Keys' kernel."""
    a = np.float32(alpha)
    four, five, eight, inner, outer = (float(factor) for factor in (4 * a, 5 * a, 8 * a, a + 2, a + 3))

    def weight(distance: Expr) -> Expr:
        d = ctx.stmts.let("distance", distance)
        far = _rounded((_rounded((_rounded(d * float(a)) - five) * d) + eight) * d) - four
        near = _rounded((_rounded(d * inner) - outer) * d * d) + 1.0
        found = tb.select(tb.binary("lt", d, 1.0), near, far)
        return ctx.stmts.let("weight", tb.select(tb.binary("eq", d, 1.0), tb.const(0.0, _FLOAT), found))

    def taps(x: Expr) -> tuple[list[Expr], list[Expr]]:
        let = ctx.stmts.let
        at = let("at", _coordinate(ctx, axis, x))
        below = let("below", tb.intrinsic("floor", at))
        s, first = let("s", at - below), let("first", tb.truncated(below, "int32"))
        weights = [weight(distance) for distance in (s + 1.0, s, 1.0 - s, 2.0 - s)]
        places = [let("place", first + step) for step in (-1, 0, 1, 2)]
        if exclude_outside:
            kept = []
            for place, found in zip(places, weights, strict=True):
                inside = tb.land(tb.binary("ge", place, 0), tb.binary("lt", place, axis.extent))
                kept.append(let("weight", tb.select(inside, found, tb.const(0.0, _FLOAT))))
            total = let("total", ((kept[0] + kept[1]) + kept[2]) + kept[3])
            weights = [found / total for found in kept]
        return [tb.clamp(place, 0, axis.extent - 1) for place in places], weights

    return _tables(ctx, axis, name, taps)


def _rounded(product: Expr) -> Expr:
    """Return a product that no compiler makes one operation with a sum: tables of known extents are without."""
    return tb.clamp(product, -_BEYOND, _BEYOND)


def _tables(
    ctx: Context, axis: AxisResize, name: str, taps: Callable[[Expr], tuple[list[Expr], list[Expr]]]
) -> OpenTaps:
    stmts = ctx.stmts
    with stmts.loop(axis.target, f"{name}_place") as place:
        x = stmts.let("x", tb.cast(place, _FLOAT))
        positions, weights = taps(x)
        found = _stored(ctx, axis, f"{name}_source", place, positions)
        by = _stored(ctx, axis, f"{name}_weight", place, weights)
    return OpenTaps(found, by or None)


def _stored(ctx: Context, axis: AxisResize, name: str, place: Expr, values: Sequence[Expr]) -> tuple[Buffer, ...]:
    buffers = tuple(ctx.scratch(name, (axis.target,), value.dtype) for value in values)
    for buffer, value in zip(buffers, values, strict=True):
        ctx.stmts.store(buffer, [place], value)
    return buffers


def _float(number: object) -> Expr:
    return tb.const(number, _FLOAT)  # type: ignore[arg-type]  # an extent


def _position(place: Expr, axis: AxisResize) -> Expr:
    """Return a coordinate without fraction as a position on the axis."""
    return tb.clamp(tb.truncated(place, "int32"), 0, axis.extent - 1)


def _coordinate(ctx: Context, axis: AxisResize, x: Expr) -> Expr:
    """Return the input coordinate of an element."""
    scale = ctx.stmts.let("scale", _float(axis.target) / _float(axis.extent))
    if axis.mode in ("half_pixel", "pytorch_half_pixel"):
        found = (x + 0.5) / scale - 0.5
        return _unless_single(axis, found) if axis.mode == "pytorch_half_pixel" else found
    if axis.mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if axis.mode == "align_corners":
        return _unless_single(axis, x * _float(axis.extent - 1) / _float(axis.target - 1))
    if axis.mode == "asymmetric":
        return x / scale
    raise UnsupportedError(
        f"resizing with the mode '{axis.mode}': expected fixed extents, got {axis.extent} and {axis.target}",
        next_step="Give the model's inputs a shape in which they are fixed",
    )


def _unless_single(axis: AxisResize, found: Expr) -> Expr:
    single = tb.binary("eq", tb.const(axis.target), 1)
    return tb.select(single, tb.const(0.0, _FLOAT), found)


def _tflite_place(axis: AxisResize, x: Expr) -> Expr:
    inverse = _float(axis.extent) / _float(axis.target)
    if axis.mode == "align_corners":
        corners = _float(axis.extent - 1) / _float(axis.target - 1)
        inverse = tb.select(tb.binary("gt", tb.const(axis.target), 1), corners, inverse)
    offset = 0.5 if axis.mode in ("half_pixel", "tf_half_pixel_for_nn") else 0.0
    scaled = (x + offset) * inverse
    return _ROUNDINGS["round" if axis.mode == "align_corners" else "floor"](scaled)


def _away_from_zero(x: Expr) -> Expr:
    """Round to the nearest; no place is so far below 0 that it matters how."""
    size = tb.intrinsic("floor", tb.intrinsic("fabs", x) + 0.5)
    return tb.select(tb.binary("lt", x, 0.0), tb.const(0.0, _FLOAT) - size, size)


def _nearest(x: Expr, more: float) -> Expr:
    below = tb.intrinsic("floor", x)
    return tb.select(tb.binary("lt", x - below - 0.5, float(np.float32(more))), below, below + 1.0)


_ROUNDINGS: dict[str, Callable[[Expr], Expr]] = {
    "floor": lambda x: tb.intrinsic("floor", x),
    "ceil": lambda x: tb.intrinsic("ceil", x),
    "round": _away_from_zero,
    "round_prefer_floor": lambda x: _nearest(x, TIE),
    "round_prefer_ceil": lambda x: _nearest(x, -TIE),
}
