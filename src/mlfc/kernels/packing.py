"""Weights in the order in which the register tile reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.kernels.tiling import LANES

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PackedBlock:
    """Output channels that one piece of code serves.

    Attributes
    ----------
    first, count : int
        First channel of the first block, and the number of equal blocks that follow each other.
    width : int
        Channels of a block that exist; the rest up to ``vectors * LANES`` is padding.
    vectors : int
    """

    first: int
    count: int
    width: int
    vectors: int


def channel_blocks(filters: int, vectors: int) -> tuple[PackedBlock, ...]:
    """Cut output channels into full blocks of `vectors` vectors and one for the rest."""
    full, rest = divmod(filters, vectors * LANES)
    blocks = []
    if full:
        blocks.append(PackedBlock(0, full, vectors * LANES, vectors))
    if rest:
        blocks.append(PackedBlock(full * vectors * LANES, 1, rest, -(-rest // LANES)))
    return tuple(blocks)


def pack_rows(rows: Array, block: PackedBlock, step: int) -> Array:
    """Pack weights of one group for `block`.

    Parameters
    ----------
    rows : ndarray
        (runs, reduction, filters): each run of the reduction is padded with zeros to a multiple of `step`.
    step : int
        Reduction elements that one instruction takes (4 for dot4).

    Returns
    -------
    ndarray
        (count, runs * ceil(reduction / step), vectors * LANES * step), the `step` elements of a
        channel side by side.
    """
    runs, reduction, _ = rows.shape
    lanes = block.vectors * LANES
    steps = -(-reduction // step)
    padded = np.zeros((runs, steps * step, block.count * lanes), rows.dtype)
    chosen = rows[:, :, block.first : block.first + block.count * block.width]
    for index in range(block.count):
        padded[:, :reduction, index * lanes : index * lanes + block.width] = chosen[
            :, :, index * block.width : (index + 1) * block.width
        ]
    parts = padded.reshape(runs, steps, step, block.count, lanes).transpose(3, 0, 1, 4, 2)
    return np.ascontiguousarray(parts.reshape(block.count, runs * steps, lanes * step))


def pack_channels(values: Array, block: PackedBlock) -> Array:
    """Pack one value a channel for `block`: (count, vectors * LANES), zero where there is no channel."""
    padded = np.zeros((block.count, block.vectors * LANES), values.dtype)
    chosen = values[block.first : block.first + block.count * block.width]
    padded[:, : block.width] = chosen.reshape(block.count, block.width)
    return padded
