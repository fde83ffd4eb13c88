"""Where the elements of a resized axis come from: positions and weights, by ONNX's definition of Resize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

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
    """One axis of a Resize.

    Attributes
    ----------
    size, out : int
        Extent before and after.
    scale : float
        What the model says; `out` may be rounded from it.
    roi : tuple of float
        Begin and end of the region of interest, in parts of the axis.
    """

    size: int
    out: int
    scale: float
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


def source_coordinates(axis: Axis, mode: str) -> Floats:
    """Return the position in the input of every element of the result."""
    at = np.arange(axis.out, dtype=np.float64)
    if mode == "align_corners":
        return at * (axis.size - 1) / (axis.out - 1) if axis.out > 1 else np.zeros(axis.out)
    if mode == "asymmetric":
        return at / axis.scale
    if mode == "tf_half_pixel_for_nn":
        return (at + 0.5) / axis.scale
    if mode == "tf_crop_and_resize":
        begin, end = axis.roi
        last = axis.size - 1
        if axis.out == 1:
            return np.full(1, 0.5 * (begin + end) * last)
        return begin * last + at * (end - begin) * last / (axis.out - 1)
    if mode == "pytorch_half_pixel" and axis.out == 1:
        return np.zeros(1)
    half_pixel = (at + 0.5) / axis.scale - 0.5
    if mode == "half_pixel_symmetric":
        adjustment = axis.out / (axis.scale * axis.size)
        return axis.size / 2 * (1 - adjustment) + half_pixel
    return half_pixel


def taps(axis: Axis, method: Method) -> Taps:
    """Return where the elements of the resized axis come from."""
    at = source_coordinates(axis, method.coordinates)
    outside = (at < 0) | (at > axis.size - 1)
    if method.mode == "nearest":
        chosen = _nearest(at, method.nearest)
        return Taps(_limited(chosen[:, None], axis.size), np.ones((axis.out, 1)), outside)
    below = np.floor(at).astype(np.int64)
    fraction = at - below
    shrink = min(axis.scale, 1.0) if method.antialias else 1.0
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


def _nearest(at: Floats, mode: str) -> Ints:
    rounded: npt.NDArray[Any] = {
        "round_prefer_floor": np.ceil(at - 0.5),
        "round_prefer_ceil": np.floor(at + 0.5),
        "floor": np.floor(at),
        "ceil": np.ceil(at),
    }[mode]
    return rounded.astype(np.int64)


def _limited(positions: Ints, size: int) -> Ints:
    return np.clip(positions, 0, size - 1)


def _linear(distance: Floats) -> Floats:
    return np.clip(1.0 - np.abs(distance), 0.0, 1.0)


def _cubic(distance: Floats, a: float) -> Floats:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
