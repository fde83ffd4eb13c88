"""Where the elements of a resized axis come from: positions and weights, by ONNX's definition of Resize."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.float64]"
Ints: TypeAlias = "npt.NDArray[np.int64]"

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Axis:
    """One axis of a Resize; the region of interest has its begin and end in parts of the axis."""

    size: int  # extent before
    out: int  # extent after
    scale: Fraction  # as the model gives it, exactly; `out` may be rounded from it
    roi: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Method:
    """How elements between the given ones are made."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@dataclass(frozen=True)
class Taps:
    """Element i of the result is ``sum(weights[i, k] * x[positions[i, k]])``; `outside` is beyond the input."""

    positions: Ints
    weights: Floats
    outside: npt.NDArray[np.bool_]


def source_coordinates(axis: Axis, mode: str) -> tuple[Ints, Floats]:
    """Return the position in the input of every element of the result: the whole number below it, and the rest.

    Positions are computed exactly, as a ratio of integers: floats would put some on the wrong side of an element.
    """
    if mode == "tf_crop_and_resize":
        at = _cropped(axis)
        whole = np.floor(at)
        return whole.astype(np.int64), at - whole
    numerators, denominator = _ratio(axis, mode, np.arange(axis.out, dtype=np.int64))
    return numerators // denominator, numerators % denominator / denominator


def _cropped(axis: Axis) -> Floats:
    begin, end = axis.roi
    last = axis.size - 1
    if axis.out == 1:
        return np.full(1, 0.5 * (begin + end) * last)
    return begin * last + np.arange(axis.out) * (end - begin) * last / (axis.out - 1)


def _ratio(axis: Axis, mode: str, at: Ints) -> tuple[Ints, int]:
    """Return numerators and their denominator; both stay far below 2**63, for at is below size times scale."""
    over, under = axis.scale.numerator, axis.scale.denominator
    if mode == "align_corners":
        return (at * (axis.size - 1), axis.out - 1) if axis.out > 1 else (at, 1)
    if mode == "asymmetric":
        return at * under, over
    if mode == "pytorch_half_pixel" and axis.out == 1:
        return at, 1
    middle = (2 * at + 1) * under  # (at + 1/2) / scale, in halves of 1 / over
    if mode == "tf_half_pixel_for_nn":
        return middle, 2 * over
    if mode == "half_pixel_symmetric":  # what is cut off of the last element is cut off on both sides
        middle = middle + axis.size * over - axis.out * under
    return middle - over, 2 * over


def taps(axis: Axis, method: Method) -> Taps:
    """Return where the elements of the resized axis come from."""
    below, fraction = source_coordinates(axis, method.coordinates)
    outside = (below < 0) | (below + fraction > axis.size - 1)
    if method.mode == "nearest":
        chosen = below + _ABOVE[method.nearest](fraction)
        return Taps(_limited(chosen[:, None], axis.size), np.ones((axis.out, 1)), outside)
    shrink = float(min(axis.scale, Fraction(1))) if method.antialias else 1.0
    reach = 1 if method.mode == "linear" else 2
    first = int(np.floor(-reach / shrink)) + 1
    steps = np.arange(first, 2 - first) if shrink < 1.0 else np.arange(1 - reach, 1 + reach)
    distance = (steps[None, :] - fraction[:, None]) * shrink
    weights = _linear(distance) if method.mode == "linear" else _cubic(distance, method.cubic_a)
    positions = below[:, None] + steps[None, :]
    if method.exclude_outside:
        weights = np.where((positions < 0) | (positions >= axis.size), 0.0, weights)
    if method.exclude_outside or shrink < 1.0:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return Taps(_limited(positions, axis.size), weights, outside)


_ABOVE: dict[str, Callable[[Floats], npt.NDArray[np.bool_]]] = {
    "round_prefer_floor": lambda fraction: fraction > 0.5,
    "round_prefer_ceil": lambda fraction: fraction >= 0.5,
    "floor": lambda fraction: fraction >= 1.0,
    "ceil": lambda fraction: fraction > 0.0,
}
"""Which positions are rounded to the element above, by what they are behind the point."""


def _limited(positions: Ints, size: int) -> Ints:
    return np.clip(positions, 0, size - 1)


def _linear(distance: Floats) -> Floats:
    return np.clip(1.0 - np.abs(distance), 0.0, 1.0)


def _cubic(distance: Floats, a: float) -> Floats:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
