"""Depthwise convolutions of integers in few bytes of code, for levels of processors that are served beside newer ones.

As in `mlfc.kernels.compact_tile`: all strips of a row have one size, and leave their sums in scratch, of which one loop
makes results. All blocks have as many channels, if a number of vectors is found for that.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from mlfc.kernels import tiling
from mlfc.kernels.depthwise_strip import Depthwise, Strip
from mlfc.kernels.geometry import Conv
from mlfc.kernels.templates import Weights
from mlfc.support import dtypes
from mlfc.support.dims import is_static
from mlfc.target.features import Features
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer

VECTORS = (2, 3, 4, 1)
"""Of channels of a block, the best first."""
_FITTING = 4  # pixels


def is_compact(features: Features, conv: Conv, data: Buffer) -> bool:
    """Tell whether a depthwise convolution is written in few bytes: of integers of known sizes."""
    is_known = is_static((*conv.spatial, conv.filters)) and prod(conv.output) > 0
    return features.compact and dtypes.is_integer(data.dtype) and is_known


class CompactDepthwise(Depthwise):
    """Writes the loops of one depthwise convolution of known sizes."""

    def __init__(self, ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
        super().__init__(ctx, conv, data, weights, out)
        width, filters = self.conv.output[1], self.conv.filters
        self.vectors = min(VECTORS, key=lambda vectors: len(tiling.channel_blocks(filters, vectors)))
        self.pixels = min(range(1, min(self.pixels, width) + 1), key=self._cost)

    def _cost(self, pixels: int) -> tuple[int, int]:
        """Return the relative time of a row in strips of so many pixels, and what to prefer of equals."""
        taps, width = self.conv.kernel[1], self.conv.output[1]
        loads = (pixels - 1) * self.conv.strides[1] + taps
        missing = max(0, pixels - _FITTING)  # registers, for weights of three taps beside the sums
        return -(-width // pixels) * (pixels * taps + loads + missing), -pixels

    def row(self, place: Strip, window: Any) -> None:
        """Write the strips of a row; the last one leaves alone what the one before has done."""
        width = self.conv.output[1]
        with tiling.covering_pieces(self.ctx, width, self.pixels, "strip") as piece:
            self.strip(replace(place, column=piece.start, size=piece.size, done=piece.done), window)
