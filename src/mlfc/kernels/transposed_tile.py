"""Transposed convolutions on vectors: one register-tile convolution for each phase of the strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from mlfc.kernels import arithmetic
from mlfc.kernels.conv_tile import TiledConv
from mlfc.kernels.geometry import Conv, Frame, frame_of
from mlfc.kernels.phases import MOST_PHASES, Phase, phases, places, windows
from mlfc.kernels.plain import bias_values
from mlfc.kernels.templates import Array, Weights, template
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr


def _accepts(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    how = arithmetic.choose(data.dtype, weights, ctx.features)
    few = len(conv.spatial) <= 2 and prod(conv.strides) <= MOST_PHASES and not ctx.small
    return few and how is not None and how.accumulator == out.dtype


@template("transposed", "vector", _accepts)
def transposed(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a transposed convolution over one or two dimensions."""
    made = conv.channels // conv.groups
    values = weights.values.reshape(*conv.kernel, conv.groups, conv.filters // conv.groups, made)
    # (kernel..., channels of a group, filters), as convolutions have them
    values = np.moveaxis(values, -3, -2).reshape(*conv.kernel, conv.filters // conv.groups, conv.channels)
    for phase in phases(conv):
        if all(axis.taps for axis in phase):
            part = np.ascontiguousarray(values[np.ix_(*(axis.taps for axis in phase))])
            _convolution(ctx, conv, phase, data, replace(weights, values=part), out)
        else:
            _nothing(ctx, conv, phase, out)


def _convolution(ctx: Context, conv: Conv, phase: Sequence[Phase], data: Buffer, weights: Weights, out: Output) -> None:
    how = arithmetic.choose(data.dtype, weights, ctx.features)
    assert how is not None  # _accepts has seen to it
    seen = frame_of(len(phase))
    inner, offset = _without_negative_padding(windows(conv, phase, data.shape[1:-1]))

    def store(indices: Sequence[Expr], value: Expr) -> None:
        image, *seen_at, channel = indices
        at = [index - before for index, before in zip(seen_at, offset, strict=True)]
        out.store([image, *places(conv, phase, at), channel], value)

    shape = (conv.batch, *inner.output, conv.channels)
    target = Output(shape, out.dtype, store, out.bias)
    TiledConv(ctx, inner.planar(), how, (data, _moved(seen, offset)), target).emit()


def _without_negative_padding(conv: Conv) -> tuple[Conv, tuple[int, ...]]:
    """Return the convolution on the part of the input that its windows see, and where that part begins."""
    offset = tuple(max(0, -before) for before, _ in conv.padding)
    spatial = tuple(
        size - max(0, -before) - max(0, -after)
        for size, (before, after) in zip(conv.spatial, conv.padding, strict=True)
    )
    padding = tuple((max(0, before), max(0, after)) for before, after in conv.padding)
    return replace(conv, spatial=spatial, padding=padding), offset


def _moved(seen: Frame, offset: Sequence[int]) -> Frame:
    """Return the frame of a part of the input that begins at `offset`."""
    rows, columns = offset if len(offset) == 2 else (0, *offset)

    def moved(image: Any, y: Any, x: Any, channel: Any) -> Sequence[Expr]:
        return seen(image, y + rows, x + columns, channel)

    return moved


def _nothing(ctx: Context, conv: Conv, phase: Sequence[Phase], out: Output) -> None:
    """Write the results of a phase that no tap reaches: the bias alone."""
    bias: Array | None = bias_values(out)
    table = None if bias is None else ctx.constant("bias", bias)
    shape = (conv.batch, *(axis.count for axis in phase), conv.channels)
    with ctx.loops(shape, "o") as (image, *at, channel):
        value = tb.const(0, out.dtype) if table is None else tb.load(table, [channel])
        out.store([image, *places(conv, phase, at), channel], value)
