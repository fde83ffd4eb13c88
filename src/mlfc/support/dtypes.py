"""Data types: their names, sizes, value ranges, and numpy's and DLPack's counterparts.

A dtype is a string as in TVM: ``int8``, ``float32``, ``bool``; a vector of loop-level code has its lanes after an
``x``: ``float32x16``.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import numpy.typing as npt

from mlfc.errors import UnsupportedError

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64", "bfloat16")
SCALARS = (*INTEGERS, *FLOATS, "bool")
_DLPACK_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
_DLPACK_KINDS = {code: kind for kind, code in _DLPACK_CODES.items()}
# TVM stores bool as a one-bit unsigned integer, one byte an element; newer DLPack has a code for it
_DLPACK_BOOLS = ((1, 1, 1), (6, 8, 1))


@cache
def lanes(dtype: str) -> int:
    """Return the number of vector lanes, 1 for a scalar."""
    _, _, tail = dtype.partition("x")
    return int(tail) if tail else 1


@cache
def element(dtype: str) -> str:
    """Return the scalar dtype of a vector dtype, or the dtype itself."""
    return dtype.partition("x")[0]


def vector(dtype: str, count: int) -> str:
    """Return the dtype of `count` lanes of scalar `dtype`; one lane is the scalar itself."""
    return dtype if count == 1 else f"{dtype}x{count}"


@cache
def is_float(dtype: str) -> bool:
    """Tell whether the element is a floating-point number."""
    return element(dtype) in FLOATS


@cache
def is_integer(dtype: str) -> bool:
    """Tell whether the element is a signed or unsigned integer (bool is neither)."""
    return element(dtype) in INTEGERS


@cache
def bits(dtype: str) -> int:
    """Return the bits of one element; a bool counts 8, as it is stored."""
    scalar = element(dtype)
    if scalar == "bool":
        return 8
    match = re.search(r"\d+$", scalar)
    if scalar not in SCALARS or match is None:
        raise UnsupportedError(f"dtype '{dtype}' is not known", next_step=f"Known: {', '.join(SCALARS)}")
    return int(match.group())


def nbytes(dtype: str) -> int:
    """Return the bytes of one value, all lanes included."""
    return bits(dtype) // 8 * lanes(dtype)


@cache
def limits(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer dtype (bool: 0 and 1)."""
    scalar = element(dtype)
    if scalar == "bool":
        return 0, 1
    width = bits(scalar)
    return (0, (1 << width) - 1) if scalar.startswith("u") else (-(1 << (width - 1)), (1 << (width - 1)) - 1)


@cache
def to_numpy(dtype: str) -> np.dtype[np.generic]:
    """Return numpy's dtype of the same element."""
    scalar = element(dtype)
    bits(scalar)
    if scalar == "bfloat16":
        # numpy has no bfloat16 of its own, and importing this one takes a while
        import ml_dtypes

        bfloat16: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(scalar)


def to_dlpack(dtype: str) -> tuple[int, int, int]:
    """Return code, bits and lanes of a dtype in DLPack's numbers, which need not be one of `SCALARS`."""
    if dtype == "bool":
        return _DLPACK_BOOLS[0]
    scalar = element(dtype)
    kind = scalar.rstrip("0123456789")
    return _DLPACK_CODES[kind], int(scalar[len(kind) :]), lanes(dtype)


def from_dlpack(code: int, width: int, count: int) -> str | None:
    """Return the dtype of DLPack's code, bits and lanes; None if the code is unknown."""
    if (code, width, count) in _DLPACK_BOOLS:
        return "bool"
    return vector(f"{_DLPACK_KINDS[code]}{width}", count) if code in _DLPACK_KINDS else None


def from_numpy(dtype: npt.DTypeLike) -> str:
    """Return the name of numpy's dtype; raise UnsupportedError if tensors cannot hold it."""
    name = np.dtype(dtype).name
    bits(name)
    return name
