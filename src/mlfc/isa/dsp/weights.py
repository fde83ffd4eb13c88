"""Weights of two filters in each 16-bit half of a word, for targets that multiply pairs of 16-bit numbers.

A half is ``p + 256 * q``, which is the two bytes p and q except for a carry: p is a weight of one filter, q of the
next. Multiplied by x as it is, it adds ``x * p + 256 * x * q`` to one sum, and its low byte, widened, adds ``x * p`` to
another one. Their difference is 256 times the second filter's sum. So four bytes of weights serve four
multiply-accumulates for each pixel, with only one widening instruction.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mlfc.kernels.templates import Array, Weights

# maximum of 256 times one filter's sum plus another one's
_LARGEST_SUM = (2**31 - 1) // 257
BYTES = ("int8", "uint8")
LARGEST_INPUT = 128
NARROW = 2**30 - 1  # the limit of `isa.dsp.templates`


def fits(weights: Weights) -> bool:
    """Return whether pairs of filters can share halves: weights and sums are small enough."""
    if weights.values.dtype.kind not in "iu":
        return False
    centered = weights.centered()
    if centered.dtype != np.int8 or int(_reach(centered).max(initial=0)) > _LARGEST_SUM:
        return False
    rows = _paired(centered.reshape(-1, centered.shape[-1]))
    return bool(np.all(rows[..., 0] + 256 * rows[..., 1] >= -(2**15)))


def for_signed(dtype: str, weights: Weights) -> Weights:
    """Return the weights for data that is widened as signed bytes: unsigned data and its zero point lose 128."""
    return replace(weights, data_zero=weights.data_zero - 128) if dtype == "uint8" else weights


def _reach(centered: Array, largest: int = LARGEST_INPUT) -> Array:
    """Return the largest magnitude of each filter's sum over inputs whose zero point is not subtracted."""
    rows = np.abs(centered.astype(np.int64)).reshape(-1, centered.shape[-1])
    return np.asarray(largest * rows.sum(axis=0))


def _paired(rows: Array) -> Array:
    """Return (reduction, filters) as (reduction, pairs, 2); an odd last filter is paired with zeros."""
    padded = np.pad(rows.astype(np.int32), ((0, 0), (0, rows.shape[1] % 2)))
    return padded.reshape(rows.shape[0], -1, 2)


def pack(rows: Array, order: Array, pairs: int) -> Array:
    """Return the words of blocks of filters, (blocks, steps, pairs) int32.

    Parameters
    ----------
    rows : ndarray
        (reduction, filters) int8; the filters are whole blocks of ``2 * pairs``, or one smaller block.
    order : ndarray
        (steps, 2): the element of the reduction that each half multiplies; -1 for none.
    pairs : int
        Pairs of filters in a block.
    """
    paired = _paired(rows)
    halves = np.where(order[..., None] < 0, 0, (paired[..., 0] + 256 * paired[..., 1])[order]) & 0xFFFF
    words = (halves[:, 0] | halves[:, 1] << 16).astype(np.uint32).view(np.int32)
    return np.ascontiguousarray(words.reshape(len(order), -1, pairs).transpose(1, 0, 2))


def start(weights: Weights, bias: Array | None, largest: int = LARGEST_INPUT) -> tuple[Array, bool]:
    """Return the initial value of each filter's sum, and whether all results are at most NARROW in magnitude."""
    centered = weights.centered()
    sums = centered.astype(np.int64).reshape(-1, centered.shape[-1]).sum(axis=0)
    total = (0 if bias is None else bias.astype(np.int64)) - weights.data_zero * sums
    limit = int((np.abs(total) + _reach(centered, largest)).max(initial=0))
    return total.astype(np.int32), limit <= NARROW
