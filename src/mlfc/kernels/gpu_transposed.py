"""Transposed convolutions on devices: one tiled product for each phase of the strides."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from mlfc.kernels.geometry import Conv
from mlfc.kernels.gpu_groups import each_result, unraveled
from mlfc.kernels.gpu_product import finished, multiply, operands
from mlfc.kernels.gpu_sources import Patches
from mlfc.kernels.gpu_tile import ProductSizes
from mlfc.kernels.phases import Phase, phases, places, windows
from mlfc.kernels.plain import accumulator_dtype, bias_values
from mlfc.kernels.templates import Array, Weights, template
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

_MOST_PHASES = 16  # each is a launch
_FEWEST_COLUMNS = 4


def _takes(_ctx: Context, conv: Conv, data: Buffer, *_: object) -> bool:
    few = prod(conv.strides) <= _MOST_PHASES and conv.group_channels >= _FEWEST_COLUMNS
    return few and bool(prod(conv.spatial) * prod(data.shape))


@template("transposed", "gpu", _takes)
def transposed(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a transposed convolution over any number of dimensions."""
    values = weights.centered().reshape(*conv.kernel, conv.groups, conv.filters // conv.groups, -1)
    for phase in phases(conv):
        if all(axis.taps for axis in phase):
            _product(ctx, conv, phase, values, data, weights, out)
        else:
            _nothing(ctx, conv, phase, out)


def _product(
    ctx: Context, conv: Conv, phase: Sequence[Phase], values: Array, data: Buffer, weights: Weights, out: Output
) -> None:
    """Write the launches of a phase that some taps reach."""
    rank, size = len(phase), data.shape[1:-1]
    part = values[np.ix_(*(axis.taps for axis in phase))]
    groups, inner, made = part.shape[rank:]
    packed = np.moveaxis(part, rank, 0).reshape(groups, -1, made)
    found = operands(data, packed, weights, out, inner)
    convolution = windows(conv, phase, size)
    patches = Patches(ctx, convolution, found.elements)
    sizes = ProductSizes(groups, conv.batch * prod(convolution.output), made, patches.depth)

    def place(layer: Expr, row: Expr, column: Expr) -> list[Expr]:
        channel = layer * made + column
        image, *at = unraveled(row, (conv.batch, *convolution.output))
        return [image, *places(conv, phase, at), channel]

    multiply(ctx, sizes, patches, found, out, place)


def _nothing(ctx: Context, conv: Conv, phase: Sequence[Phase], out: Output) -> None:
    """Write the launch of a phase that no tap reaches."""
    shape = conv.batch, *(axis.count for axis in phase), conv.channels
    with each_result(ctx, shape) as (image, *at, channel):
        place = [image, *places(conv, phase, at), channel]
        zero = tb.const(0, accumulator_dtype(out))
        out.store(place, finished(ctx, zero, bias_values(out), channel, out))
