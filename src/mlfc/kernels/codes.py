"""Weights of 2, 4 or 8 bits that stand for real numbers: how they lie in constants, and how kernels unpack them.

Of each code its zero point is subtracted, and the difference times a scale is the weight. As both are the same for a
block of the reduction, kernels sum up products of the data with the differences, which are exact, and multiply each
block's sum by the scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.ir import Const, Expr

Array = npt.NDArray[Any]

LONGEST_BLOCK = 512  # steps of the reduction whose products are added up one after another


@dataclass(frozen=True, eq=False)
class WeightCodes:
    """What the codes of weights stand for."""

    bits: int  # 2, 4 or 8
    scale: Array  # float32, (blocks, filters)
    zero: Array  # what is subtracted from the unsigned codes: (blocks, filters), int32 or float32
    block: int  # steps of the reduction that share a scale; the last block may be shorter

    @property
    def per_byte(self) -> int:
        """Codes of a byte."""
        return 8 // self.bits

    @property
    def per_word(self) -> int:
        """Codes of 32 bits."""
        return 32 // self.bits

    @property
    def blocks(self) -> int:
        """Scales of a filter."""
        return int(self.scale.shape[0])

    @property
    def zero_literal(self) -> float | None:
        """The zero point of all codes, None where they have several."""
        first = self.zero.flat[0]
        return float(first) if np.all(self.zero == first) else None

    @property
    def signed(self) -> bool:
        """Whether all zero points are half of the range, so that what is stored may be the differences."""
        return self.zero_literal == 1 << (self.bits - 1)

    def zero_table(self) -> Array:
        """Return the zero points in the narrowest dtype that holds them."""
        is_byte = self.zero.dtype != np.float32 and self.zero.min() >= 0 and self.zero.max() <= 255
        return self.zero.astype(np.uint8) if is_byte else self.zero


def unsigned_codes(values: Array, dtype: str) -> npt.NDArray[np.uint8]:
    """Return integers of `dtype`, of 8 bits or less, as what they are above the lowest one."""
    return (values.astype(np.int16) - dtypes.limits(dtype)[0]).astype(np.uint8)


def pack_codes(codes: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Return bytes that hold the codes of the last axis, from the lowest bits on; its last byte may be part empty."""
    per_byte = 8 // bits
    padded = np.zeros((*codes.shape[:-1], -(-codes.shape[-1] // per_byte) * per_byte), np.uint8)
    padded[..., : codes.shape[-1]] = codes
    packed = padded[..., ::per_byte].copy()
    for index in range(1, per_byte):
        packed |= padded[..., index::per_byte] << (bits * index)
    return packed


def unpack_codes(packed: Array, bits: int, extent: int) -> npt.NDArray[np.uint8]:
    """Return the first `extent` codes of each row of bytes."""
    fields = np.stack([packed >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)], axis=-1)
    return fields.reshape(*packed.shape[:-1], -1)[..., :extent].astype(np.uint8)


def code_at(byte: Expr, which: Expr | int, bits: int) -> Expr:
    """Return a code of a byte, of one lane or several, as int32; `which` counts from the lowest bits."""
    wide, index = tb.cast(byte, "int32"), tb.as_expr(which)
    if bits == 8:
        return wide
    is_last = isinstance(index, Const) and index.value == 8 // bits - 1
    shifted = wide >> (index * bits)
    return shifted if is_last else shifted & ((1 << bits) - 1)


def pack_words(codes: Array, bits: int, *, signed: bool) -> npt.NDArray[np.int32]:
    """Return words that hold the codes of the last axis, from the lowest bits on; the last one may be part empty.

    If `signed`, what is held is the code less half of the range.
    """
    half = 1 << (bits - 1) if signed else 0
    per_word = 32 // bits
    padded = np.zeros((*codes.shape[:-1], -(-codes.shape[-1] // per_word) * per_word), np.uint8)
    padded[..., : codes.shape[-1]] = codes ^ half
    return np.ascontiguousarray(pack_codes(padded, bits)).view("<i4").astype(np.int32)


def code_of_word(word: Expr, which: int, bits: int, *, signed: bool) -> Expr:
    """Return a code of int32 words, of one lane or several; `which` counts from the lowest bits."""
    if signed:
        return word << (32 - bits * (which + 1)) >> (32 - bits)
    return word >> (which * bits) & ((1 << bits) - 1) if which else word & ((1 << bits) - 1)
