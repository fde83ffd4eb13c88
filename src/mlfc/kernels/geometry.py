"""The sizes of convolutions and matrix products for templates: channels last, any number of spatial dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, TypeAlias

from mlfc.support.dims import Extent
from mlfc.tir import builder as tb
from mlfc.tir.ir import Expr


@dataclass(frozen=True)
class Conv:
    """Sizes of a convolution; spatial tuples have one entry per dimension, outermost first."""

    batch: Any
    spatial: tuple[Any, ...]
    channels: Any
    filters: Any
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # zeros before and after the input
    groups: int = 1

    @property
    def extents(self) -> tuple[int, ...]:
        """The number of input elements that one window spans, for each spatial dimension."""
        return tuple((taps - 1) * step + 1 for taps, step in zip(self.kernel, self.dilation, strict=True))

    @property
    def output(self) -> tuple[Any, ...]:
        """Spatial shape of the result."""
        return tuple(
            (size + sum(pads) - extent) // stride + 1
            for size, pads, extent, stride in zip(self.spatial, self.padding, self.extents, self.strides, strict=True)
        )

    @property
    def group_channels(self) -> Any:
        """The number of input channels of one group."""
        return self.channels // self.groups

    @property
    def group_filters(self) -> Any:
        """The number of output channels of one group."""
        return self.filters // self.groups

    @property
    def depthwise(self) -> bool:
        """True if every input channel is a separate group."""
        return self.groups == self.channels and self.groups > 1

    @property
    def padded(self) -> bool:
        """True if any window may read outside the input."""
        return any(map(is_padded, self.padding))

    @property
    def macs(self) -> Any:
        """The number of multiply-accumulates, including those on padding."""
        return self.batch * prod(self.output) * self.filters * prod(self.kernel) * self.group_channels

    def planar(self) -> Conv:
        """Return the same convolution over (height, width), with height 1 if it has one spatial dimension."""
        if len(self.spatial) != 1:
            return self
        one: tuple[int, ...] = (1,)
        return Conv(
            self.batch, one + self.spatial, self.channels, self.filters, one + self.kernel, one + self.strides,
            one + self.dilation, ((0, 0), *self.padding), self.groups,
        )  # fmt: skip


def is_padded(pads: Sequence[Extent]) -> bool:
    """Return whether any padding may differ from 0."""
    return any(pad != 0 for pad in pads)


@dataclass(frozen=True)
class Product:
    """Sizes of a batch of matrix products ``out[b] = a[b] @ weights[b]``."""

    rows: Any  # the first matrix is (rows, reduction), the result (rows, columns)
    reduction: Any
    columns: Any
    transpose_a: bool = False  # whether the stored matrix is (reduction, rows)
    transpose_b: bool = True  # whether the stored matrix is (columns, reduction)
    a_zero: int = 0  # zero points that are subtracted from the elements of quantized operands
    b_zero: int = 0


def strip_columns(conv: Conv, pixels: int) -> dict[int, list[tuple[int, int]]]:
    """Return the columns that a strip reads, relative to its first, each with the (pixel, tap) pairs that use it."""
    uses: dict[int, list[tuple[int, int]]] = {}
    for pixel, tap in product(range(pixels), range(conv.kernel[1])):
        uses.setdefault(pixel * conv.strides[1] + tap * conv.dilation[1], []).append((pixel, tap))
    return dict(sorted(uses.items()))


# (image, y, x, channel) -> indices into the tensor
Frame: TypeAlias = Callable[[Any, Any, Any, Any], Sequence[Expr]]


def planar(image: Any, y: Any, x: Any, channel: Any) -> Sequence[Expr]:
    """Index (batch, height, width, channels)."""
    return (image, y, x, channel)


def linear(image: Any, y: Any, x: Any, channel: Any) -> Sequence[Expr]:  # noqa: ARG001  (height is 1)
    """Index (batch, width, channels)."""
    return (image, x, channel)


def frame_of(spatial: int) -> Frame:
    """Return the frame of a convolution over one or two dimensions."""
    return planar if spatial == 2 else linear


def line(batch: Extent, pixels: Extent, channels: Extent, filters: Extent, groups: int = 1) -> Conv:
    """Return the convolution of one tap over a line of pixels, which is a matrix product."""
    return Conv(batch, (1, pixels), channels, filters, (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)), groups)


def rows_as_pixels(shape: Sequence[Extent], columns: int) -> tuple[Conv, Frame]:
    """Return a dense layer of data of `shape` as a convolution of one tap over a line of pixels, one per row."""
    *leading, reduction = shape

    def frame(_image: Any, _y: Any, row: Any, channel: Any) -> Sequence[Expr]:
        return [*unflattened(tb.as_expr(row), leading), channel]

    return line(1, prod(leading), reduction, columns), frame


def unflattened(index: Expr, shape: Sequence[Extent]) -> list[Expr]:
    """Return the indices of the element `index` of an array of `shape`, in row-major order."""
    found: list[Expr] = []
    for extent in reversed(shape[1:]):
        found.insert(0, index % extent)
        index = index // extent
    return [index, *found] if shape else []
