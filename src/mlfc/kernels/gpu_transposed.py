"""Transposed convolutions on devices: one tiled product for each phase of the strides.

Results whose places are equal modulo the strides are reached by the same taps. So each such phase is a plain
convolution of the input by its own part of the weights, without the products by zero of a spread input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, prod

import numpy as np

from mlfc.kernels.geometry import Conv
from mlfc.kernels.gpu_groups import each_result, unraveled
from mlfc.kernels.gpu_product import finished, multiply, operands
from mlfc.kernels.gpu_sources import Patches
from mlfc.kernels.gpu_tile import Sizes
from mlfc.kernels.plain import accumulator_dtype, bias_values
from mlfc.kernels.templates import Array, Weights, template
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

_MOST_PHASES = 16  # each is a launch
_FEWEST_COLUMNS = 4


@dataclass(frozen=True)
class _Phase:
    """Results of one axis at places that are equal modulo the stride."""

    first: int  # the first place
    count: int  # how many there are
    taps: tuple[int, ...]  # those that reach them, in the order of the input elements that they read
    start: int  # which element the first tap reads for the first place; may be outside
    dilation: int  # elements from one tap's to the next one's

    def padding(self, size: int) -> tuple[int, int]:
        """Return the padding of an input of `size` before and behind; negative where windows leave some of it out."""
        last = self.start + self.count - 1 + (len(self.taps) - 1) * self.dilation
        return -self.start, last - (size - 1)


def _phases(conv: Conv, axis: int) -> list[_Phase]:
    stride, dilation, pad = conv.strides[axis], conv.dilation[axis], conv.padding[axis][0]
    found = []
    for first in range(min(stride, conv.spatial[axis])):
        taps = [tap for tap in range(conv.kernel[axis]) if (first + pad - tap * dilation) % stride == 0][::-1]
        start = (first + pad - taps[0] * dilation) // stride if taps else 0
        count = -(-(conv.spatial[axis] - first) // stride)
        found.append(_Phase(first, count, tuple(taps), start, dilation // gcd(stride, dilation)))
    return found


def _takes(_ctx: Context, conv: Conv, data: Buffer, *_: object) -> bool:
    few = prod(conv.strides) <= _MOST_PHASES and conv.group_channels >= _FEWEST_COLUMNS
    return few and bool(prod(conv.spatial) * prod(data.shape))


@template("transposed", "gpu", _takes)
def transposed(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a transposed convolution over any number of dimensions."""
    values = weights.centered().reshape(*conv.kernel, conv.groups, conv.filters // conv.groups, -1)
    for phases in product(*(_phases(conv, axis) for axis in range(len(conv.spatial)))):
        if all(phase.taps for phase in phases):
            _product(ctx, conv, phases, values, data, weights, out)
        else:
            _nothing(ctx, conv, phases, out)


def _product(
    ctx: Context, conv: Conv, phases: Sequence[_Phase], values: Array, data: Buffer, weights: Weights, out: Output
) -> None:
    """Write the launches of a phase that some taps reach."""
    rank, size = len(phases), data.shape[1:-1]
    part = values[np.ix_(*(phase.taps for phase in phases))]
    groups, inner, made = part.shape[rank:]
    packed = np.moveaxis(part, rank, 0).reshape(groups, -1, made)
    found = operands(data, packed, weights, out, inner)
    windows = replace(
        conv,
        spatial=size,
        channels=conv.filters,
        filters=conv.channels,
        kernel=tuple(len(phase.taps) for phase in phases),
        strides=(1,) * rank,
        dilation=tuple(phase.dilation for phase in phases),
        padding=tuple(phase.padding(extent) for phase, extent in zip(phases, size, strict=True)),
    )
    patches = Patches(ctx, windows, found.elements)
    sizes = Sizes(groups, windows.batch * prod(windows.output), made, patches.depth)

    def place(layer: Expr, row: Expr, column: Expr) -> list[Expr]:
        channel = layer * made + column
        image, *at = unraveled(row, (windows.batch, *windows.output))
        return [image, *_spread(conv, phases, at), channel]

    multiply(ctx, sizes, patches, found, out, place)


def _nothing(ctx: Context, conv: Conv, phases: Sequence[_Phase], out: Output) -> None:
    """Write the launch of a phase that no tap reaches."""
    shape = conv.batch, *(phase.count for phase in phases), conv.channels
    with each_result(ctx, shape) as (image, *at, channel):
        place = [image, *_spread(conv, phases, at), channel]
        zero = tb.const(0, accumulator_dtype(out))
        out.store(place, finished(ctx, zero, bias_values(out), channel, out))


def _spread(conv: Conv, phases: Sequence[_Phase], at: Sequence[Expr]) -> list[Expr]:
    """Return the places of a phase's results among all."""
    return [index * stride + phase.first for index, stride, phase in zip(at, conv.strides, phases, strict=True)]
