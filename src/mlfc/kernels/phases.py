"""A transposed convolution as plain ones: the same taps reach all results whose places are equal modulo the strides.

So each such phase is a convolution of the input by its own part of the weights, without the products by zero of a
spread input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from typing import Any

from mlfc.kernels.geometry import Conv
from mlfc.support.dims import Extent, bounds
from mlfc.tir.ir import Expr

MOST_PHASES = 16  # each is code of its own


@dataclass(frozen=True)
class Phase:
    """Results of one axis at places that are equal modulo the stride."""

    first: int  # the first place
    count: Any  # how many there are
    taps: tuple[int, ...]  # those that reach them, in the order of the input elements that they read
    start: int  # which element the first tap reads for the first place; may be outside
    dilation: int  # elements from one tap's to the next one's

    def padding(self, size: Extent) -> tuple[int, Any]:
        """Return the padding of an input of `size` before and behind; negative where windows leave some of it out."""
        last = self.start + self.count - 1 + (len(self.taps) - 1) * self.dilation
        return -self.start, last - (size - 1)


def phases(conv: Conv) -> list[tuple[Phase, ...]]:
    """Return the phases of the transpose of `conv`: one for each axis, in all combinations."""
    return list(product(*(_of_axis(conv, axis) for axis in range(len(conv.spatial)))))


def _of_axis(conv: Conv, axis: int) -> list[Phase]:
    stride, dilation, pad = conv.strides[axis], conv.dilation[axis], conv.padding[axis][0]
    found = []
    for first in range(min(stride, bounds(conv.spatial[axis])[1])):
        taps = [tap for tap in range(conv.kernel[axis]) if (first + pad - tap * dilation) % stride == 0][::-1]
        start = (first + pad - taps[0] * dilation) // stride if taps else 0
        count = -(-(conv.spatial[axis] - first) // stride)
        found.append(Phase(first, count, tuple(taps), start, dilation // gcd(stride, dilation)))
    return found


def windows(conv: Conv, phase: Sequence[Phase], size: Sequence[int]) -> Conv:
    """Return the convolution of an input of `size` that gives the results of a phase; its padding may be negative."""
    return replace(
        conv,
        spatial=tuple(size),
        channels=conv.filters,
        filters=conv.channels,
        kernel=tuple(len(axis.taps) for axis in phase),
        strides=(1,) * len(phase),
        dilation=tuple(axis.dilation for axis in phase),
        padding=tuple(axis.padding(extent) for axis, extent in zip(phase, size, strict=True)),
    )


def places(conv: Conv, phase: Sequence[Phase], at: Sequence[Expr]) -> list[Expr]:
    """Return the places of a phase's results among all."""
    return [index * stride + axis.first for index, stride, axis in zip(at, conv.strides, phase, strict=True)]
