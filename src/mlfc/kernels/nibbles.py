"""Weights of four bits, stored as two per byte and unpacked where kernels multiply them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.kernels.templates import Weights
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Output
from mlfc.tir.ir import Expr

Array = npt.NDArray[Any]

LEAST_NIBBLES = 64  # minimum number of weights that justifies the unpacking instructions


def fit_nibbles(weights: Array) -> bool:
    """Return whether integers fit in signed four bits."""
    return bool(weights.size) and int(weights.min()) >= -8 and int(weights.max()) <= 7


def nibbles(low: Array, high: Array) -> npt.NDArray[np.int8]:
    """Return bytes that contain two arrays of four-bit numbers."""
    packed = (low.astype(np.int64) & 15) | (high.astype(np.int64) & 15) << 4
    return np.ascontiguousarray(packed.astype(np.uint8).view(np.int8))


def nibble(byte: Expr, which: int) -> Expr:
    """Return the low (0) or the high (1) nibble of an int8 as int32."""
    wide = tb.cast(byte, "int32")
    return wide >> 4 if which else tb.cast(tb.cast(wide << 4, "int8"), "int32") >> 4


def sixteenfold(weights: Weights, largest: int, out: Output) -> bool:
    """Return whether weights are stored in four bits, and 16 times each sum over data up to `largest` fits."""
    if (
        weights.runtime_tensor is not None
        or weights.values.dtype.kind not in "iu"
        or weights.values.size < LEAST_NIBBLES
    ):
        return False
    centered = weights.centered()
    if not fit_nibbles(centered):
        return False
    sums = np.abs(centered.astype(np.int64)).reshape(-1, centered.shape[-1]).sum(axis=0)
    return out.dtype == "int64" or 16 * largest * int(sums.max()) <= dtypes.limits("int32")[1]
