"""Block intrinsics: products and sums in registers over runs of bytes, each read by one load of many lanes.

A run argument is a `Load` whose dtype has as many lanes as the run has elements, so the bounds proof and the
interpreter need no special rules; printers pass its address. Such a call is only valid as the value of a `Store`.

===============  ============================================================================================
``run``          a run as it is (a load: a copy; a broadcast: a fill)
``dots1``        start, row, weights: int32 sums of the products of a row of int8 with the weights of each filter
``dots2``        start, row, row, weights: the same for two rows, which share the loads of the weights
``taps``         start, taps, weights: sums over taps of `CHANNELS` int8, channel by channel
``paired_taps``  the same in fewer instructions, where no weight is -128
===============  ============================================================================================

If lengths are not literals, the name of a call has the prefix ``counted_``; its run arguments are the first elements
of the runs, followed by the numbers of `counts`.

The layout of the sums of ``dots`` is [four filters][row][filter], that of weights is the result of `pack_weights`. The
sums must not overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FILTERS = 4
"""Filters that ``dots1`` and ``dots2`` compute at once; weights and start have a multiple of this number."""

CHUNK, HALF_CHUNK = 16, 8
"""Rows are processed in chunks; the remainder may be half a chunk."""

CHANNELS = 16
"""Channels processed by ``taps``."""

NAMES = ("run", "dots1", "dots2", "taps", "paired_taps")

_MATVEC_COUNTS = ("chunks", "fours", "half")
COUNTS: dict[str, tuple[str, ...]] = {
    "run": ("size",), "dots1": _MATVEC_COUNTS, "dots2": _MATVEC_COUNTS, "taps": ("taps",), "paired_taps": ("taps",),
}  # fmt: skip
"""Names of the numbers returned by `counts`."""

COUNTED_FILL = "counted_fill"
"""A run of one repeated value; arguments: value, size."""


def counted(name: str) -> str:
    """Return the name of the variant of a call whose lengths are arguments."""
    return f"counted_{name}"


def uncounted(name: str) -> str | None:
    """Return the name without the prefix of `counted`, or None if it has no such prefix."""
    plain = name.removeprefix(counted(""))
    return plain if plain != name and plain in NAMES else None


def counts(name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the length arguments of the counted variant for runs of `sizes` elements."""
    if name.startswith("dots"):
        start, row = sizes[0], sizes[1]
        return row // CHUNK, start // FILTERS, row % CHUNK // HALF_CHUNK
    return (sizes[0],) if name == "run" else (sizes[1] // CHANNELS,)


def sizes(name: str, numbers: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the sizes of the runs and of the result from the `numbers` of `counts`."""
    if name.startswith("dots"):
        chunks, fours, half = numbers
        rows = (chunks * CHUNK + half * HALF_CHUNK,) * int(name[-1])
        start = fours * FILTERS
        return (start, *rows, start * rows[0]), start * len(rows)
    if name == "run":
        return (numbers[0],), numbers[0]
    return (CHANNELS, numbers[0] * CHANNELS, numbers[0] * CHANNELS), CHANNELS


def pack_weights(weights: Array) -> Array:
    """Return weights (filters, reduction) in the order that `matvec_s8` reads, as (groups of four filters, bytes).

    The reduction must be a multiple of `HALF_CHUNK`; filters are padded with zeros to a multiple of `FILTERS`.
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
