"""Data types in TVM's notation (``int8``, ``float32``, ``bool``, ``float32x16``), with NumPy's and DLPack's."""

from __future__ import annotations

import math
import re
from functools import cache

import numpy as np
import numpy.typing as npt

from mlfc.errors import UnsupportedError, required_for

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64", "bfloat16")
HALVES = ("float16", "bfloat16")
"""16-bit floats; arithmetic is in float32."""
NARROW_INTEGERS = ("int4", "uint4", "int2", "uint2")
NARROW_FLOATS = (
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
)  # fmt: skip
"""Named by exponent and mantissa bits. fn: no infinities; uz: unsigned zero, whose -0 encodes NaN; u: no sign."""
NARROW = (*NARROW_INTEGERS, *NARROW_FLOATS)
"""Only stored and converted: an element is a byte with the number in its low bits; the other bits are 0."""
SCALARS = (*INTEGERS, *FLOATS, "bool", *NARROW)
_DLPACK_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
_DLPACK_NARROW = {
    "float8_e4m3fn": (10, 8, 1), "float8_e4m3fnuz": (11, 8, 1), "float8_e5m2": (12, 8, 1),
    "float8_e5m2fnuz": (13, 8, 1), "float8_e8m0fnu": (14, 8, 1), "float4_e2m1fn": (17, 4, 1),
}  # fmt: skip
_NARROW_OF_DLPACK = {code: dtype for dtype, code in _DLPACK_NARROW.items()}
_DLPACK_KINDS = {code: kind for kind, code in _DLPACK_CODES.items()}
# TVM encodes bool as a 1-bit unsigned integer, stored in a byte; newer DLPack has a code for it
_DLPACK_BOOLS = ((1, 1, 1), (6, 8, 1))


@cache
def lanes(dtype: str) -> int:
    """Return the number of vector lanes; 1 for a scalar."""
    _, _, tail = dtype.partition("x")
    return int(tail) if tail else 1


@cache
def element(dtype: str) -> str:
    """Return the scalar dtype of a vector dtype, or the dtype itself."""
    return dtype.partition("x")[0]


def vector(dtype: str, count: int) -> str:
    """Return the vector dtype of `count` lanes of `dtype`; the scalar itself for one lane."""
    return dtype if count == 1 else f"{dtype}x{count}"


@cache
def is_float(dtype: str) -> bool:
    """Return whether the element is a floating-point number."""
    return element(dtype) in FLOATS


@cache
def is_integer(dtype: str) -> bool:
    """Return whether the element is a signed or unsigned integer (bool is neither)."""
    return element(dtype) in INTEGERS


@cache
def stored(dtype: str) -> str:
    """Return the dtype of an element in memory and in loop-level code; narrow types are bytes."""
    return "uint8" if dtype in NARROW else dtype


def is_narrow(dtype: str) -> bool:
    """Return whether elements are only stored and converted; see `NARROW`."""
    return dtype in NARROW


@cache
def bits(dtype: str) -> int:
    """Return the number of significant bits of one element; 8 for a bool, as stored."""
    scalar = element(dtype)
    if scalar == "bool":
        return 8
    match = re.search(r"\d+$", scalar.partition("_")[0])
    if scalar not in SCALARS or match is None:
        raise UnsupportedError(f"unknown dtype '{dtype}'", next_step=f"Known: {', '.join(SCALARS)}")
    return int(match.group())


def nbytes(dtype: str) -> int:
    """Return the bytes of one value in memory, including all lanes."""
    return bits(stored(dtype)) // 8 * lanes(dtype)


@cache
def limits(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer dtype (bool: 0 and 1)."""
    scalar = element(dtype)
    if scalar == "bool":
        return 0, 1
    width = bits(scalar)
    return (0, (1 << width) - 1) if scalar.startswith("u") else (-(1 << (width - 1)), (1 << (width - 1)) - 1)


@cache
def float_range(dtype: str) -> tuple[float, float]:
    """Return the smallest normal and the largest finite number of a float dtype."""
    digits, exponent = {"float16": (11, 16), "bfloat16": (8, 128), "float32": (24, 128), "float64": (53, 1024)}[dtype]
    return math.ldexp(1.0, 2 - exponent), math.ldexp(1 - 2.0**-digits, exponent)


def is_numpys_own(scalar: str) -> bool:
    """Return whether NumPy has a dtype of this name; the others are in the package ml_dtypes."""
    return scalar != "bfloat16" and scalar not in NARROW


@cache
def to_numpy(dtype: str) -> np.dtype[np.generic]:
    """Return the NumPy dtype of an element."""
    scalar = element(dtype)
    bits(scalar)
    if not is_numpys_own(scalar):
        # imported here, because the import is slow
        with required_for(f"the dtype {scalar}"):
            import ml_dtypes

        found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, scalar))
        return found
    return np.dtype(scalar)


def unpacked(packed: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: str) -> npt.NDArray[np.generic]:
    """Return a tensor of a dtype below 8 bits from packed bytes, whose first element is in the lowest bits."""
    width = bits(dtype)
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    elements = (packed.reshape(-1, 1) >> shifts & ((1 << width) - 1)).reshape(-1)
    return elements[: math.prod(shape)].reshape(shape).view(to_numpy(dtype))


def to_dlpack(dtype: str, abi: str = "classic") -> tuple[int, int, int]:
    """Return DLPack's code, bits and lanes of a dtype, which may be one beyond `SCALARS`.

    A bool has those of TVM up to 0.19 (``classic``), or those of DLPack 1 and tvm-ffi (``ffi``).
    """
    if dtype == "bool":
        return _DLPACK_BOOLS[abi == "ffi"]
    if dtype in _DLPACK_NARROW:
        return _DLPACK_NARROW[dtype]
    scalar = element(dtype)
    kind = scalar.rstrip("0123456789")
    return _DLPACK_CODES[kind], int(scalar[len(kind) :]), lanes(dtype)


def from_dlpack(code: int, width: int, count: int) -> str | None:
    """Return the dtype for DLPack's code, bits and lanes; None if the code is unknown."""
    if (code, width, count) in _DLPACK_BOOLS:
        return "bool"
    if (code, width, count) in _NARROW_OF_DLPACK:
        return _NARROW_OF_DLPACK[code, width, count]
    return vector(f"{_DLPACK_KINDS[code]}{width}", count) if code in _DLPACK_KINDS else None


def from_numpy(dtype: npt.DTypeLike) -> str:
    """Return the name of a NumPy dtype; raise UnsupportedError if tensors do not support it."""
    name = np.dtype(dtype).name
    bits(name)
    return name
