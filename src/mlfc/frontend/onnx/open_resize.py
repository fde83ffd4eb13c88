"""Resizing axes whose extents the run decides: positions and weights of neighbours are computed when the model runs.

Positions are ratios of integers, as in `image`; what is behind the point becomes a float64 for the weights alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from math import prod

from mlfc.frontend.onnx.node import Node, dtype_of, is_float, shape_of
from mlfc.frontend.onnx.resize_method import Method
from mlfc.relay.ir import Expr
from mlfc.support.dims import Dim, Extent, bounds, maximum, minimum


@dataclass(frozen=True)
class OpenAxis:
    """One axis of a Resize: its extents before and after, and the scale as a ratio, which the run may compute."""

    size: Extent
    out: Extent
    over: Extent | Expr
    under: Extent | Expr

    @property
    def stays(self) -> bool:
        """Whether nothing is to be done."""
        return self.size == self.out and self.over == self.under

    @property
    def is_ratio(self) -> bool:
        """Whether the scale is the ratio of the extents, of which there are some."""
        is_whole = isinstance(self.under, int) and self.under == 1 and isinstance(self.over, int)
        return bounds(self.size)[0] > 0 and (is_whole or (self.over == self.out and self.under == self.size))


def scaled(size: Extent, scale: float) -> OpenAxis:
    """Return an axis that grows by a number."""
    exact = Fraction(scale)
    return OpenAxis(size, size * exact.numerator // exact.denominator, exact.numerator, exact.denominator)


_SCALE_BITS = 31


def late_scaled(node: Node, scales: Expr, axes: Sequence[int]) -> list[OpenAxis]:
    """Return axes that grow by numbers that the run gives: whole numbers of 2 ** -31, as they are from 2 ** -8 on.

    The run refuses numbers below that, and those of which 23 bits are before the point.
    """
    found = [OpenAxis(size, size, 1, 1) for size in node.shape(0)]
    under = 1 << _SCALE_BITS
    for place, axis in enumerate(axes):
        scale = node.cast(node.reshape(node.cut(scales, 0, place, place + 1), ()), "float64")
        low, high = (node.constant(value, "float64") for value in (2.0**-8, 2.0**23))
        fits = node.call("logical_and", node.call("greater_equal", scale, low), node.call("less", scale, high))
        node.require(fits, f"whether scale {place} of '{node.name}' is from 1/256 to 2**23")
        scale = node.call("minimum", node.call("maximum", scale, low), high)
        over = node.cast(node.call("multiply", scale, node.constant(float(under), "float64")), "int64")
        size = node.shape(0)[axis]
        out = node.call("multiply", node.constant(size, "int64"), over)
        out = node.call("floor_divide", out, node.constant(under, "int64"))
        found[axis] = OpenAxis(size, node.late(out), over, under)
    return found


def within_sizes(node: Node, sizes: Sequence[Extent], axes: Sequence[int], *, larger: bool) -> list[OpenAxis]:
    """Return axes that grow by one number: the least by which one of them has its size, or the largest."""
    shape, chosen = node.shape(0), maximum if larger else minimum
    found = [OpenAxis(size, size, 1, 1) for size in shape]
    best: tuple[Expr, Expr] | None = None
    for size, axis in zip(sizes, axes, strict=True):
        over: Expr = node.constant(size, "int64")
        under: Expr = node.constant(shape[axis], "int64")
        if best is not None:
            one, other = node.call("multiply", over, best[1]), node.call("multiply", best[0], under)
            is_better = node.call("greater" if larger else "less", one, other)
            over, under = (
                node.call("where", is_better, new, old) for new, old in zip((over, under), best, strict=True)
            )
        best = over, under
    assert best is not None
    for axis in axes:
        outs = [(2 * size * shape[axis] + shape[at]) // (2 * shape[at]) for size, at in zip(sizes, axes, strict=True)]
        found[axis] = OpenAxis(shape[axis], reduce(chosen, outs), *best)
    return found


def resized(node: Node, axes: Sequence[OpenAxis], method: Method) -> Expr:
    """Return input 0 of the node with its axes resized, one after the other."""
    if method.antialias or method.coordinates == "tf_crop_and_resize":
        how = "with antialias" if method.antialias else "by tf_crop_and_resize"
        node.unsupported(f"{how} to a size that the run decides is not supported", "Give the inputs fixed shapes")
    if any(bounds(axis.out)[1] < 1 for axis in axes):
        node.wrong(f"a tensor of shape {node.shape(0)} cannot become {tuple(axis.out for axis in axes)}")
    x = node.input(0)
    # neighbours that are added must be so in the order of fixed sizes
    is_image = method.mode != "nearest" and method.is_image(len(axes)) and is_float(x)
    if is_image and all(axis.stays for axis in axes[:2]) and all(axis.is_ratio for axis in axes[2:]):
        return method.as_image(node, x, (axes[2].out, axes[3].out))
    dtype = dtype_of(x)
    if method.mode != "nearest":
        x = node.cast(x, "float32")
    for index, axis in enumerate(axes):
        if not axis.stays:
            x = _Resizing(node, axis, method).along(x, index)
    return node.cast(x, dtype)


def weighted(node: Node, x: Expr, index: int, places: Expr, weights: Expr) -> Expr:
    """Return the weighted sums of the elements of an axis at places, of shape (elements of the result, taps).

    A sum of two products becomes one operation with either of them, code of other extents might choose the other: a
    reduction has one order.
    """
    rank = len(shape_of(x))
    elements = node.call("take", x, places, axis=index)
    factors = node.reshape(weights, (*shape_of(weights), *(1,) * (rank - index - 1)))
    return node.call("sum", node.call("multiply", elements, factors), axis=(index + 1,))


@dataclass(frozen=True)
class _Resizing:
    node: Node
    axis: OpenAxis
    method: Method

    def along(self, x: Expr, index: int) -> Expr:
        """Gather the neighbours of every element and add them, weighted."""
        numerators, denominator = self._ratio()
        below = self._op("floor_divide", numerators, denominator)
        rest = self._op("floor_mod", numerators, denominator)
        if self.method.mode == "nearest":
            above = self._above(rest, denominator)
            return self._taken(
                x, below if above is None else self._op("add", below, self.node.cast(above, "int64")), index
            )
        wide = [self.node.cast(item, "float64") for item in (rest, denominator)]
        fraction = self._op("divide", *wide)
        reach = 1 if self.method.mode == "linear" else 2
        steps = range(1 - reach, 1 + reach)
        places = [self._op("add", below, self._int(step)) for step in steps]
        weights = [self._weight(fraction, step) for step in steps]
        if self.method.exclude_outside:
            weights = self._inside(places, weights)
        factors = self.node.cast(self._table(weights), "float32")
        return weighted(self.node, x, index, self._table([self._limited(place) for place in places]), factors)

    def _table(self, columns: Sequence[Expr]) -> Expr:
        return self.node.concatenate([self.node.call("expand_dims", column, axis=1) for column in columns], 1)

    def _op(self, operator: str, *args: Expr) -> Expr:
        return self.node.call(operator, *args)

    def _int(self, value: Extent | Expr) -> Expr:
        return self.node.constant(value, "int64") if isinstance(value, (int, Dim)) else value

    def _product(self, *values: Extent | Expr) -> Expr:
        """Return a product, which is an extent where all its factors are."""
        extents = [value for value in values if isinstance(value, (int, Dim))]
        rest = [value for value in values if not isinstance(value, (int, Dim))]
        return reduce(partial(self._op, "multiply"), rest, self._int(prod(extents)))

    def _real(self, value: float) -> Expr:
        return self.node.constant(value, "float64")

    def _ratio(self) -> tuple[Expr, Expr]:
        """Return the positions in the input as numerators and their denominator."""
        axis, mode, at = self.axis, self.method.coordinates, self.node.counted(self.axis.out)
        if mode == "align_corners":
            return self._op("multiply", at, self._int(axis.size - 1)), self._int(maximum(axis.out - 1, 1))
        if mode == "asymmetric":
            return self._op("multiply", at, self._int(axis.under)), self._int(axis.over)
        middle = self._op("add", self._op("multiply", at, self._int(2)), self._int(1))
        middle = self._op("multiply", middle, self._int(axis.under))
        denominator = self._product(2, axis.over)
        if mode == "tf_half_pixel_for_nn":
            return middle, denominator
        if mode == "half_pixel_symmetric":
            more = self._op("subtract", self._product(axis.size, axis.over), self._product(axis.out, axis.under))
            middle = self._op("add", middle, more)
        halves = self._op("subtract", middle, self._int(axis.over))
        if mode == "pytorch_half_pixel" and bounds(axis.out)[0] <= 1:
            alone = self._op("equal", self._int(axis.out), self._int(1))
            halves = self._op("where", alone, self._op("multiply", at, denominator), halves)
        return halves, denominator

    def _above(self, rest: Expr, denominator: Expr) -> Expr | None:
        """Tell which positions are rounded to the element above."""
        twice = self._op("multiply", rest, self._int(2))
        if self.method.nearest == "round_prefer_floor":
            return self._op("greater", twice, denominator)
        if self.method.nearest == "round_prefer_ceil":
            return self._op("greater_equal", twice, denominator)
        return self._op("greater", rest, self._int(0)) if self.method.nearest == "ceil" else None

    def _limited(self, places: Expr) -> Expr:
        return self._op("minimum", self._op("maximum", places, self._int(0)), self._int(self.axis.size - 1))

    def _taken(self, x: Expr, places: Expr, index: int) -> Expr:
        return self.node.call("take", x, self._limited(places), axis=index)

    def _weight(self, fraction: Expr, step: int) -> Expr:
        distance = self._op("abs", self._op("subtract", self._real(float(step)), fraction))
        if self.method.mode == "linear":
            return self._op("subtract", self._real(1.0), distance)
        a = self.method.cubic_a
        near = step in (0, 1)
        factors = (a + 2, -(a + 3), 0.0, 1.0) if near else (a, -5 * a, 8 * a, -4 * a)
        result: Expr = self._real(factors[0])
        for factor in factors[1:]:
            result = self._op("add", self._op("multiply", result, distance), self._real(factor))
        return result

    def _inside(self, places: Sequence[Expr], weights: Sequence[Expr]) -> list[Expr]:
        """Return weights of the elements inside of the input, which are 1 together."""
        kept = []
        for place, weight in zip(places, weights, strict=True):
            low = self._op("greater_equal", place, self._int(0))
            inside = self._op("logical_and", low, self._op("less", place, self._int(self.axis.size)))
            kept.append(self._op("where", inside, weight, self._real(0.0)))
        total = kept[0]
        for weight in kept[1:]:
            total = self._op("add", total, weight)
        return [self._op("divide", weight, total) for weight in kept]
