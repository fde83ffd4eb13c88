"""Block intrinsics: runs of bytes that one load of many lanes reads, multiplied and summed in registers.

An argument that is a run is a `Load` whose dtype has as many lanes as the run has elements, so the bounds proof and the
interpreter need no rules for it; printers hand on its address. Such a call stands only as the value of a `Store`.

===============  ============================================================================================
``run``          a run as it is (a load: a copy; a broadcast: a fill)
``dots1``        start, row, weights: int32 sums of the products of a row of int8 with the weights of each filter
``dots2``        start, row, row, weights: the same for two rows, which share the loads of the weights
``taps``         start, taps, weights: sums over taps of `CHANNELS` int8, channel by channel
``paired_taps``  the same in fewer instructions, where no weight is -128
===============  ============================================================================================

Where lengths are not literals, a call has ``counted_`` before its name, single elements for its runs, which start
there, and behind them the numbers of `counts`.

Sums of ``dots`` lie as [four filters][row][filter]. Weights lie as `pack_weights` packs them. The sums must fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FILTERS = 4
"""Filters that ``dots1`` and ``dots2`` compute at once; weights and start hold a multiple of so many."""

CHUNK, HALF_CHUNK = 16, 8
"""Elements of a row are taken by chunks; what is left may be half a chunk."""

CHANNELS = 16
"""Channels of ``taps``."""

NAMES = ("run", "dots1", "dots2", "taps", "paired_taps")

_MATVEC_COUNTS = ("chunks", "fours", "half")
COUNTS: dict[str, tuple[str, ...]] = {
    "run": ("size",), "dots1": _MATVEC_COUNTS, "dots2": _MATVEC_COUNTS, "taps": ("taps",), "paired_taps": ("taps",),
}  # fmt: skip
"""What the numbers of `counts` are called."""

COUNTED_FILL = "counted_fill"
"""A run of one value: the value, the size."""


def counted(name: str) -> str:
    """Return the name of the call whose lengths are arguments."""
    return f"counted_{name}"


def uncounted(name: str) -> str | None:
    """Return the name without the mark of `counted`; None if it has none."""
    plain = name.removeprefix(counted(""))
    return plain if plain != name and plain in NAMES else None


def counts(name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers that stand for the elements of the runs."""
    if name.startswith("dots"):
        start, row = sizes[0], sizes[1]
        return row // CHUNK, start // FILTERS, row % CHUNK // HALF_CHUNK
    return (sizes[0],) if name == "run" else (sizes[1] // CHANNELS,)


def sizes(name: str, numbers: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the elements of the runs, and those of the result, for which `counts` gives `numbers`."""
    if name.startswith("dots"):
        chunks, fours, half = numbers
        rows = (chunks * CHUNK + half * HALF_CHUNK,) * int(name[-1])
        start = fours * FILTERS
        return (start, *rows, start * rows[0]), start * len(rows)
    if name == "run":
        return (numbers[0],), numbers[0]
    return (CHANNELS, numbers[0] * CHANNELS, numbers[0] * CHANNELS), CHANNELS


def pack_weights(weights: Array) -> Array:
    """Return weights (filters, reduction) in the order in which `matvec_s8` reads them, as (fours of filters, bytes).

    The reduction must be a multiple of `HALF_CHUNK`; filters are filled up to a multiple of `FILTERS` with zeros.
    """
    filters, size = weights.shape
    fours = np.zeros((-(-filters // FILTERS) * FILTERS, size), weights.dtype)
    fours[:filters] = weights
    fours = fours.reshape(-1, FILTERS, size)
    whole = size // CHUNK * CHUNK
    chunks = fours[:, :, :whole].reshape(len(fours), FILTERS, -1, CHUNK).swapaxes(1, 2)
    halves = fours[:, :, whole:]
    return np.concatenate([chunks.reshape(len(fours), -1), halves.reshape(len(fours), -1)], axis=1)


def _unpack_weights(packed: Array, filters: int, size: int) -> Array:
    """Return packed weights as (filters, reduction)."""
    fours = packed.reshape(filters // FILTERS, FILTERS * size)
    whole = size // CHUNK * CHUNK
    chunks = fours[:, : FILTERS * whole].reshape(len(fours), -1, FILTERS, CHUNK).swapaxes(1, 2)
    halves = fours[:, FILTERS * whole :].reshape(len(fours), FILTERS, -1)
    return np.concatenate([chunks.reshape(len(fours), FILTERS, -1), halves], axis=2).reshape(filters, size)


def matvec_s8(start: Array, *operands: Array) -> Array:
    """Return the sums of ``dots1`` and ``dots2``."""
    *rows, packed = operands
    wide = _unpack_weights(packed, start.size, rows[0].size).astype(np.int64)
    sums = np.stack([start.astype(np.int64) + wide @ row.astype(np.int64) for row in rows])
    return sums.reshape(len(rows), -1, FILTERS).swapaxes(0, 1).reshape(-1).astype(np.int32)


def depthwise_mac(start: Array, values: Array, weights: Array) -> Array:
    """Return the sums of ``taps`` and ``paired_taps``."""
    products = values.astype(np.int64).reshape(-1, CHANNELS) * weights.reshape(-1, CHANNELS)
    sums: Array = start.astype(np.int64) + products.sum(axis=0)
    return sums.astype(np.int32)
