"""Positions and weights of the input elements that each element of a resized axis is computed from.

Two families of rules meet here. ONNX divides by the scale and names its rounding; its reference is ONNX Runtime
(onnxruntime/core/providers/cpu/tensor/upsamplebase.h). TFLite multiplies by the inverse scale; its reference is
tensorflow/lite/kernels/internal/reference/resize_nearest_neighbor.h. Both compute in float32, and so does
this file: a coordinate that falls on an element or half-way between two must fall there here too.

Rules are loop-level expressions. The tables of a static axis are evaluated at compile time and become constants; those
of a dynamic axis are computed by the code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError
from mlfc.support.dims import is_static
from mlfc.tir import builder as tb
from mlfc.tir import interpreter
from mlfc.tir.context import Context
from mlfc.tir.ir import Buffer, Expr, Var

_FLOAT = "float32"
_BEYOND = 2.0**100  # what products of weights and distances never reach
TIE = 1e-6
"""Distance from half-way between two elements up to which ONNX Runtime treats a coordinate as a tie."""

Let = Callable[[str, Expr], Expr]
"""Names a value that is used more than once."""


@dataclass(frozen=True)
class Columns:
    """For one element of a resized axis, the input elements that it is computed from."""

    positions: list[Expr]
    weights: list[Expr]  # none for a copy of one element
    outside: Expr | None = None  # whether it takes the extrapolation value


@dataclass(frozen=True)
class AxisResize:
    """How one axis is resized."""

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
                f"the coordinate transformation mode '{self.mode}' is not known",
                next_step=f"Known: {', '.join(_MODES)}",
            )
        return _MODES[self.mode](self, x, let)

    def outside(self, coordinate: Expr) -> Expr | None:
        """Return whether an element takes the extrapolation value; None where the mode has none."""
        if self.mode != "tf_crop_and_resize":
            return None
        return tb.binary("lor", tb.binary("lt", coordinate, 0.0), tb.binary("gt", coordinate, self.last))

    def position(self, place: Expr) -> Expr:
        """Return a coordinate without fraction as a position on the axis."""
        return tb.clamp(tb.truncated(place, "int32"), 0, self.extent - 1)

    def unless_single(self, found: Expr, single: Expr) -> Expr:
        """Return a coordinate, or another one if the axis is resized to one element."""
        return tb.select(tb.binary("eq", tb.const(self.target), 1), single, found)


def _float(number: object) -> Expr:
    return tb.const(number, _FLOAT)  # type: ignore[arg-type]  # a dimension size


def _scale(axis: AxisResize, let: Let) -> Expr:
    return let("scale", _float(axis.target) / _float(axis.extent))


def _half_pixel(axis: AxisResize, x: Expr, let: Let) -> Expr:
    return (x + 0.5) / _scale(axis, let) - 0.5


def _align_corners(axis: AxisResize, x: Expr, _: Let) -> Expr:
    return axis.unless_single(x * axis.last / _float(axis.target - 1), _float(0.0))


def _crop(axis: AxisResize, x: Expr, let: Let) -> Expr:
    start, end = (_float(float(np.float32(edge))) for edge in (axis.start, axis.end))
    begin = let("begin", _rounded(start * axis.last))
    found = begin + x * (end - start) * axis.last / _float(axis.target - 1)
    return axis.unless_single(found, (start + end) * 0.5 * axis.last)


_MODES: dict[str, Callable[[AxisResize, Expr, Let], Expr]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": lambda axis, x, let: axis.unless_single(_half_pixel(axis, x, let), _float(0.0)),
    "tf_half_pixel_for_nn": lambda axis, x, let: (x + 0.5) / _scale(axis, let),
    "align_corners": _align_corners,
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
    """Return a product that compilers cannot contract with a sum: tables that are constants are rounded."""
    return tb.clamp(product, -_BEYOND, _BEYOND)


# Rules: of an axis, an output element and `let` to its columns

Rule = Callable[[AxisResize, Expr, Let], Columns]


def nearest(rounding: str) -> Rule:
    """Return the rule of copying the nearest element; `rounding` is ONNX's name, or empty for TFLite's rule."""
    if rounding and rounding not in _ROUNDINGS:
        raise TypeCheckError(
            f"the rounding method '{rounding}' is not known", next_step=f"Known: {', '.join(_ROUNDINGS)}"
        )

    def rule(axis: AxisResize, x: Expr, let: Let) -> Columns:
        if not rounding:
            return Columns([axis.position(_tflite_place(axis, x))], [])
        at = let("at", axis.coordinate(x, let))
        return Columns([axis.position(_ROUNDINGS[rounding](at))], [], axis.outside(at))

    return rule


def _tflite_place(axis: AxisResize, x: Expr) -> Expr:
    inverse = _float(axis.extent) / _float(axis.target)
    if axis.mode == "align_corners":
        inverse = axis.unless_single(axis.last / _float(axis.target - 1), inverse)
    offset = 0.5 if axis.mode in ("half_pixel", "tf_half_pixel_for_nn") else 0.0
    return _ROUNDINGS["round" if axis.mode == "align_corners" else "floor"]((x + offset) * inverse)


def linear(axis: AxisResize, x: Expr, let: Let) -> Columns:
    """Weigh the two neighbours of an element by their distances."""
    given = let("coordinate", axis.coordinate(x, let))
    at = let("at", tb.clamp(given, 0.0, axis.last))
    lower = let("lower", axis.position(tb.intrinsic("floor", at)))
    fraction = let("fraction", at - tb.cast(lower, _FLOAT))
    upper = tb.minimum(lower + 1, axis.extent - 1)
    return Columns([lower, upper], [1.0 - fraction, fraction], axis.outside(given))


def cubic(alpha: float, *, exclude_outside: bool) -> Rule:
    """Return the rule of weighing the four neighbours of an element by Keys' kernel with coefficient `alpha`."""
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


# Tables


@dataclass(frozen=True, eq=False)
class TapTable:
    """For all elements of a resized axis: positions, weights, and whether they take the extrapolation value."""

    positions: tuple[Buffer, ...]
    weights: tuple[Buffer, ...]
    outside: Buffer | None
    last: Any  # position of the last input element that is read
    repetition: int = 0  # how often each input element is repeated where that is all that happens, else 0


def table(ctx: Context, axis: AxisResize, name: str, rule: Rule) -> TapTable:
    """Return the table of an axis: constants where it is static, else computed in scratch memory."""
    if is_static((axis.extent, axis.target)):
        return _constant_table(ctx, axis, name, rule)
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


def _constant_table(ctx: Context, axis: AxisResize, name: str, rule: Rule) -> TapTable:
    positions, weights, outside = evaluated(axis, rule)
    repetition = 0
    if not weights and outside is None:
        (places,) = positions
        factor = max(1, int(np.count_nonzero(places == 0)))
        repetition = factor if np.array_equal(places, np.arange(len(places)) // factor) else 0
    return TapTable(
        () if repetition else tuple(ctx.constant(f"{name}_source", column) for column in positions),
        tuple(ctx.constant(f"{name}_weight", column) for column in weights),
        None if outside is None else ctx.constant(f"{name}_outside", outside),
        max(int(column.max(initial=0)) for column in positions),
        repetition,
    )


def evaluated(
    axis: AxisResize, rule: Rule
) -> tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]], npt.NDArray[Any] | None]:
    """Return positions, weights and outside elements of a static axis, one array for each neighbour.

    The last is None if no element is outside.
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
