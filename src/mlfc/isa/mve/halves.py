"""Convolutions and dense layers by ``dot8`` and ``dot32``, of two pixels with two filters at a time.

``dot8`` multiplies eight int16 by int8 weights, ``dot32`` 32 int8 by 4-bit weights, which are unpacked as 16 times
their values. A pixel's window is one run of numbers: in the input itself for 1x1 kernels with a multiple of eight
channels, otherwise in a copy. Sums have 32 bits if they fit, otherwise 64. Depthwise layers process four channels at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TypeAlias

import numpy as np

from mlfc.isa.mve.convolution import STACK_BYTES, blocks
from mlfc.kernels.nibbles import nibbles, sixteenfold
from mlfc.kernels.staging import choose, inside
from mlfc.kernels.templates import Array, Conv, Frame, Weights, frame_of, rows_as_pixels, template
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

PIXELS, FILTERS = 2, 2
CHANNELS_AT_ONCE = 32  # of a depthwise layer, whose sums are kept

# (pixel, first element) -> the address of eight neighbours in the pixel's window
Reader: TypeAlias = Callable[[int, Expr], Expr]


@dataclass(frozen=True)
class _ProductForm:
    """The accumulation of products: data elements per step, and weight bytes per step."""

    intrinsic: str
    dtype: str  # of the data
    step: int
    weight_bytes: int
    shift: int  # right shift of the final sum

    def packed(self, weights: Array) -> Array:
        """Return weights (..., step) as (..., weight_bytes)."""
        if self.weight_bytes == self.step:
            return weights
        return nibbles(weights[..., : self.weight_bytes], weights[..., self.weight_bytes :])


_OF_HALVES = _ProductForm("dot8", "int16", 8, 8, 0)
_OF_NIBBLES = _ProductForm("dot32", "int8", 32, 16, 4)


def _serves(data: Buffer, weights: Weights, out: Output) -> bool:
    halves = data.dtype == "int16" and out.dtype in ("int32", "int64") and weights.data_zero == 0
    return halves and weights.values.dtype.kind in "iu" and weights.centered().dtype == np.int8


def _form(data: Buffer, weights: Weights, out: Output) -> _ProductForm | None:
    """Return the form for operands and a result; None if there is none."""
    if data.dtype == "int8" and out.dtype == "int32" and sixteenfold(weights, 1 << 7, out):
        return _OF_NIBBLES
    return _OF_HALVES if _serves(data, weights, out) else None


def _accepts_conv(_: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    return len(conv.spatial) <= 2 and conv.groups == 1 and _form(data, weights, out) is not None


def _accepts_dense(_: Context, data: Buffer, weights: Weights, out: Output) -> bool:
    return data.shape[-1] > 0 and _form(data, weights, out) is not None


def _start(ctx: Context, out: Output, rows: Array, zero: int) -> Callable[[Expr], Expr]:
    """Return a function for the initial value of each filter's sum, for weights (reduction, filters)."""
    total = -zero * rows.sum(axis=0, dtype=np.int64)
    if out.bias is not None:
        total = total + out.bias
    if not total.any():
        return lambda _: tb.const(0, out.dtype)
    start = ctx.constant("start", total.astype(dtypes.to_numpy(out.dtype)))
    return lambda index: tb.load(start, [index])


class _WindowSums:
    """Sums of all filters for one or two windows."""

    def __init__(self, ctx: Context, weights: Weights, out: Output, form: _ProductForm) -> None:
        self.ctx, self.out, self.form = ctx, out, form
        rows = weights.centered().reshape(-1, weights.values.shape[-1])
        self.size, self.filters = -(-len(rows) // form.step) * form.step, rows.shape[1]
        padded = np.pad(rows, ((0, self.size - len(rows)), (0, 0)))
        # for two filters, the weights of a step alternate
        full = self.filters - self.filters % FILTERS
        self.blocks: list[tuple[Buffer, int, int]] = []
        for first, last, width in ((0, full, FILTERS), (full, self.filters, self.filters - full)):
            if last > first:
                own = padded[:, first:last].T.reshape(-1, width, self.size // form.step, form.step)
                packed = form.packed(own.transpose(0, 2, 1, 3)).reshape(len(own), -1)
                self.blocks.append((ctx.constant("weights", np.ascontiguousarray(packed)), first, width))
        self.start = _start(ctx, out, rows, weights.data_zero)

    def emit(self, places: Sequence[Sequence[Expr]], read: Reader) -> None:
        """Write the sums of the windows that `read` reads, and their stores at `places`."""
        stmts, form = self.ctx.stmts, self.form
        for weights, first, width in self.blocks:
            with stmts.loop(weights.shape[0], "block", "rolled") as block:
                sums = stmts.local("sums", (width, len(places)), self.out.dtype)
                for lane in range(width):
                    for pixel in range(len(places)):
                        start = tb.const(0) if form.shift else self.start(block * width + (first + lane))
                        stmts.store(sums, [lane, pixel], start)
                with stmts.loop(self.size // form.step, "k", "rolled") as k:
                    for lane in range(width):
                        place = [block, (k * width + lane) * form.weight_bytes]
                        factors = tb.load(weights, place, lanes=form.weight_bytes)
                        for pixel in range(len(places)):
                            total = tb.load(sums, [lane, pixel])
                            added = tb.intrinsic(form.intrinsic, total, read(pixel, k * form.step), factors)
                            stmts.store(sums, [lane, pixel], added)
                for lane in range(width):
                    index = block * width + (first + lane)
                    for pixel, at in enumerate(places):
                        total = tb.load(sums, [lane, pixel])
                        # sums of byte weights already include the start
                        total = (total >> form.shift) + self.start(index) if form.shift else total
                        self.out.store([*at, index], total)


class _MveWindows:
    """The windows of several pixels: in the data itself if they are runs of eights, otherwise copied."""

    def __init__(self, conv: Conv, source: tuple[Buffer, Frame], sums: _WindowSums, pixels: int, zero: int) -> None:
        self.ctx, self.conv, (self.data, self.seen) = sums.ctx, conv, source
        ctx, size, self.zero, self.step = sums.ctx, sums.size, zero, sums.form.step
        self.reduction = prod(conv.kernel) * conv.channels
        in_place = prod(conv.kernel) == 1 and not conv.padded and size == self.reduction
        make = ctx.stmts.local if dtypes.nbytes(self.data.dtype) * pixels * size <= STACK_BYTES else ctx.scratch
        self.copy = None if in_place else make("windows", (pixels, size), self.data.dtype)
        self.places: dict[int, tuple[Expr, Expr, Expr]] = {}
        if self.copy is not None:
            for pixel in range(pixels):
                with ctx.stmts.loop(size - self.reduction, "rest") as rest:
                    ctx.stmts.store(self.copy, [pixel, rest + self.reduction], 0)

    def fill(self, pixel: int, place: tuple[Expr, Expr, Expr]) -> None:
        """Write the code that makes the window of the output pixel at `place` available."""
        stmts, conv = self.ctx.stmts, self.conv
        image, y, x = place
        self.places[pixel] = (image, y * conv.strides[0], x * conv.strides[1])
        if self.copy is None:
            return
        with stmts.loop(conv.kernel[0], "ky", "rolled") as ky, stmts.loop(conv.kernel[1], "kx", "rolled") as kx:
            row = stmts.let("row", y * conv.strides[0] + ky * conv.dilation[0] - conv.padding[0][0])
            column = stmts.let("column", x * conv.strides[1] + kx * conv.dilation[1] - conv.padding[1][0])
            to = stmts.let("to", (ky * conv.kernel[1] + kx) * conv.channels)
            places = zip((row, column), conv.spatial, conv.padding, strict=True)
            valid = tb.land(*(check for each in places for check in inside(*each)))
            copy = partial(self._copy, pixel, to)
            choose(
                self.ctx, valid, lambda: copy(lambda c: tb.load(self.data, self.seen(image, row, column, c))),
                lambda: copy(lambda _: self.zero),
            )  # fmt: skip

    def _copy(self, pixel: int, to: Expr, read: Callable[[Expr], Expr | int]) -> None:
        assert self.copy is not None
        with self.ctx.stmts.loop(self.conv.channels, "c", "vectorized") as c:
            self.ctx.stmts.store(self.copy, [pixel, to + c], read(c))

    def read(self, pixel: int, first: Expr) -> Expr:
        """Return eight neighbours in the window of a pixel."""
        if self.copy is not None:
            return tb.load(self.copy, [pixel, first], lanes=self.step)
        return tb.load(self.data, self.seen(*self.places[pixel], first), lanes=self.step)


@template("convolution", "mve", _accepts_conv)
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over one or two dimensions."""
    _convolution(ctx, conv.planar(), (data, frame_of(len(conv.spatial))), weights, out)


@template("dense", "mve", _accepts_dense)
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns)."""
    conv, seen = rows_as_pixels(data.shape, out.shape[-1])
    _convolution(ctx, conv, (data, seen), weights, out)


def _convolution(ctx: Context, conv: Conv, source: tuple[Buffer, Frame], weights: Weights, out: Output) -> None:
    stmts, seen = ctx.stmts, source[1]
    height, width = conv.output
    size = min(PIXELS, width)
    form = _form(source[0], weights, out)
    assert form is not None  # guaranteed by `_accepts`
    sums = _WindowSums(ctx, weights, out, form)
    windows = _MveWindows(conv, source, sums, size, weights.data_zero)

    def pixels(image: Expr, y: Expr, columns: Sequence[Expr]) -> None:
        for pixel, x in enumerate(columns):
            windows.fill(pixel, (image, y, x))
        sums.emit([seen(image, y, x, tb.const(0))[:-1] for x in columns], windows.read)

    with stmts.loop(conv.batch, "image", "rolled") as image, stmts.loop(height, "oy", "rolled") as y:
        for x, count in blocks(ctx, width, size, "ox"):
            pixels(image, y, [x * size + offset for offset in range(count)])


def _accepts_depthwise(_: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    plain = conv.filters == conv.channels and len(conv.spatial) <= 2 and conv.channels >= 4
    return plain and _serves(data, weights, out) and out.dtype == "int32"


@template("depthwise", "mve", _accepts_depthwise)
def depthwise(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a depthwise convolution over one or two dimensions, one filter per channel."""
    stmts, seen, conv = ctx.stmts, frame_of(len(conv.spatial)), conv.planar()
    factors = ctx.constant("weights", np.ascontiguousarray(weights.centered().reshape(*conv.kernel, conv.channels)))
    rows = weights.centered().reshape(-1, conv.channels)
    start = _start(ctx, out, rows, 0)
    (height, width), channels = conv.output, conv.channels
    full = channels - channels % CHANNELS_AT_ONCE
    for first, last in ((0, full), (full, channels)):
        count = min(CHANNELS_AT_ONCE, last - first)
        if count == 0:
            continue
        sums = stmts.local("sums", (count,), "int32")
        with (
            stmts.loop(conv.batch, "image", "rolled") as image,
            stmts.loop(height, "oy", "rolled") as y,
            stmts.loop(width, "ox", "rolled") as x,
            stmts.loop((last - first) // count, "block", "rolled") as block,
        ):
            base = block * count + first
            with stmts.loop(count, "c", "vectorized") as c:
                stmts.store(sums, [c], start(base + c))
            with stmts.loop(conv.kernel[0], "ky", "rolled") as ky, stmts.loop(conv.kernel[1], "kx", "rolled") as kx:
                row = stmts.let("row", y * conv.strides[0] + ky * conv.dilation[0] - conv.padding[0][0])
                column = stmts.let("column", x * conv.strides[1] + kx * conv.dilation[1] - conv.padding[1][0])
                places = zip((row, column), conv.spatial, conv.padding, strict=True)
                with stmts.when(tb.land(*(check for each in places for check in inside(*each)))):
                    with stmts.loop(count, "c", "vectorized") as c:
                        value = tb.cast(tb.load(data, seen(image, row, column, base + c)), "int32")
                        product = value * tb.cast(tb.load(factors, [ky, kx, base + c]), "int32")
                        stmts.store(sums, [c], tb.load(sums, [c]) + product)
            with stmts.loop(count, "c", "vectorized") as c:
                out.store(seen(image, y, x, base + c), tb.load(sums, [c]))
