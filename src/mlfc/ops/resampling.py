"""Where the elements of a resized axis come from: tables made at compile time.

Two families of rules meet here. ONNX divides by the scale and names its rounding; its reference is ONNX Runtime
(onnxruntime/core/providers/cpu/tensor/upsamplebase.h). TFLite multiplies by the inverse scale; its reference is
tensorflow/lite/kernels/internal/reference/resize_nearest_neighbor.h. Both compute in float32, and so does
this file: a coordinate that falls on an element or half-way between two must fall there here too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Taps:
    """For each element of a resized axis, the input elements that it is made of."""

    indices: Integers  # shape (output, taps)
    weights: Floats | None = None  # shape (output, taps); None for a copy of the one tap
    # shape (output,): elements outside the input, which take the extrapolation value
    outside: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class AxisResize:
    """How one axis is resized."""

    extent: Any  # input elements
    target: Any  # output elements
    mode: str  # ONNX's coordinate transformation mode
    start: float = 0.0  # of the region of ``tf_crop_and_resize``, in units of the input
    end: float = 1.0

    def coordinates(self) -> Floats:
        """Return the input coordinate of each output element."""
        if self.mode not in _MODES:
            raise TypeCheckError(
                f"the coordinate transformation mode '{self.mode}' is not known",
                next_step=f"Known: {', '.join(_MODES)}",
            )
        return _MODES[self.mode](self, np.arange(self.target, dtype=np.float32))

    @property
    def scale(self) -> np.float32:
        """Output elements an input element."""
        return np.float32(self.target) / np.float32(self.extent)

    def outside(self, coordinates: Floats) -> npt.NDArray[np.bool_] | None:
        """Tell which elements take the extrapolation value, where the mode has one."""
        if self.mode != "tf_crop_and_resize":
            return None
        return np.asarray((coordinates < 0) | (coordinates > self.extent - 1), np.bool_)


def _half_pixel(axis: AxisResize, x: Floats) -> Floats:
    return (x + np.float32(0.5)) / axis.scale - np.float32(0.5)


def _align_corners(axis: AxisResize, x: Floats) -> Floats:
    if axis.target == 1:
        return np.zeros_like(x)
    return x * np.float32(axis.extent - 1) / np.float32(axis.target - 1)


def _crop(axis: AxisResize, x: Floats) -> Floats:
    start, end, last = np.float32(axis.start), np.float32(axis.end), np.float32(axis.extent - 1)
    if axis.target == 1:
        return np.full_like(x, np.float32(0.5) * (start + end) * last)
    return start * last + x * (end - start) * last / np.float32(axis.target - 1)


_MODES: dict[str, Callable[[AxisResize, Floats], Floats]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": lambda axis, x: _half_pixel(axis, x) if axis.target > 1 else np.zeros_like(x),
    "tf_half_pixel_for_nn": lambda axis, x: (x + np.float32(0.5)) / axis.scale,
    "align_corners": _align_corners,
    "asymmetric": lambda axis, x: x / axis.scale,
    "tf_crop_and_resize": _crop,
}

TIE = 1e-6
"""Distance from half-way between two elements up to which ONNX Runtime treats a coordinate as a tie."""


def _rounded(x: Floats, more: float) -> Floats:
    below = np.floor(x)
    return np.where(x - below - np.float32(0.5) < np.float32(more), below, below + np.float32(1))


_ROUNDINGS: dict[str, Callable[[Floats], Floats]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x),
    "round_prefer_floor": lambda x: _rounded(x, TIE),
    "round_prefer_ceil": lambda x: _rounded(x, -TIE),
}


def nearest_taps(axis: AxisResize, rounding: str) -> Taps:
    """Return the nearest element of each; `rounding` is ONNX's name, or empty for TFLite's rule."""
    if not rounding:
        return Taps(_tflite_nearest(axis)[:, np.newaxis])
    if rounding not in _ROUNDINGS:
        raise TypeCheckError(
            f"the rounding method '{rounding}' is not known", next_step=f"Known: {', '.join(_ROUNDINGS)}"
        )
    coordinates = axis.coordinates()
    indices = np.clip(_ROUNDINGS[rounding](coordinates), 0, axis.extent - 1).astype(np.int32)
    return Taps(indices[:, np.newaxis], None, axis.outside(coordinates))


def _tflite_nearest(axis: AxisResize) -> Integers:
    x = np.arange(axis.target, dtype=np.float32)
    corners = axis.mode == "align_corners" and axis.target > 1
    if corners:
        inverse = np.float32(axis.extent - 1) / np.float32(axis.target - 1)
    else:
        inverse = np.float32(axis.extent) / np.float32(axis.target)
    offset = np.float32(0.5) if axis.mode in ("half_pixel", "tf_half_pixel_for_nn") else np.float32(0)
    scaled = (x + offset) * inverse
    rounded = _ROUNDINGS["round"](scaled) if axis.mode == "align_corners" else np.floor(scaled)
    return np.clip(rounded, 0, axis.extent - 1).astype(np.int32)


def linear_taps(axis: AxisResize) -> Taps:
    """Return the two neighbours of each element and their float32 weights."""
    coordinates = axis.coordinates()
    clamped = np.clip(coordinates, 0, axis.extent - 1).astype(np.float32)
    lower = np.floor(clamped).astype(np.int32)
    upper = np.minimum(lower + 1, axis.extent - 1).astype(np.int32)
    fraction = clamped - lower.astype(np.float32)
    weights = np.stack([np.float32(1) - fraction, fraction], axis=1)
    return Taps(np.stack([lower, upper], axis=1), weights, axis.outside(coordinates))


def cubic_taps(axis: AxisResize, alpha: float, *, exclude_outside: bool) -> Taps:
    """Return the four neighbours of each element and the weights of Keys' kernel with coefficient `alpha`."""
    coordinates = axis.coordinates()
    base = np.floor(coordinates)
    s = (coordinates - base)[:, np.newaxis].astype(np.float32)
    distances = np.concatenate([s + 1, s, 1 - s, 2 - s], axis=1)
    a = np.float32(alpha)
    far = ((a * distances - 5 * a) * distances + 8 * a) * distances - 4 * a
    near = ((a + 2) * distances - (a + 3)) * distances * distances + 1
    weights = np.where(distances < 1, near, far)
    # at a distance of exactly one both polynomials are zero, up to rounding
    weights = np.where(distances == 1, np.float32(0), weights).astype(np.float32)
    positions = base[:, np.newaxis].astype(np.int32) + np.arange(-1, 3, dtype=np.int32)
    if exclude_outside:
        inside = (positions >= 0) & (positions < axis.extent)
        weights = np.where(inside, weights, np.float32(0))
        weights = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    indices = np.clip(positions, 0, axis.extent - 1).astype(np.int32)
    return Taps(indices, weights, axis.outside(coordinates))
