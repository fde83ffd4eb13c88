"""C types of dtypes, and literals that read back bit for bit."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.support.text import shortest_digits

HALF_FLOATS = ("float16", "bfloat16")
"""Stored as bits in 16-bit integers and computed as float: C99 lacks types for them, many processors instructions."""

GROUP = "group"
"""The key of the helper type for four bytes in memory."""

_SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "b8"}


@cache
def scalar_type(dtype: str) -> str:
    """Return the C type that holds one element of `dtype`; lanes are ignored."""
    element = dtypes.element(dtype)
    if element in dtypes.INTEGERS:
        return f"{element}_t"
    known = {"float32": "float", "float64": "double", "bool": "uint8_t"}
    known.update(dict.fromkeys(HALF_FLOATS, "uint16_t"))
    known.update(dict.fromkeys(dtypes.NARROW, "uint8_t"))  # only in interfaces: kernels access bytes
    if element not in known:
        raise InternalError(f"C has no type for {dtype}")
    return known[element]


@cache
def short_name(dtype: str) -> str:
    """Return a short form for names of helper functions and vector types: ``i8``, ``f32x16``."""
    element, lanes = dtypes.element(dtype), dtypes.lanes(dtype)
    short = _SHORT.get(element) or element.replace("uint", "u").replace("int", "i")
    return short if lanes == 1 else f"{short}x{lanes}"


@cache
def value_type(dtype: str) -> str:
    """Return the C type of a variable of `dtype`, scalar or vector."""
    return scalar_type(dtype) if dtypes.lanes(dtype) == 1 else f"mlf_{short_name(dtype)}"


@cache
def part_type(dtype: str) -> str:
    """Return the C type of a value in an expression; for a vector, the type of one of its parts."""
    return scalar_type(dtype) if dtypes.lanes(dtype) == 1 else f"mlf_{short_name(dtype)}_part"


def helper_name(key: str) -> str:
    """Return the C name of a helper function, such as ``mlf_min_f32`` for the key ``min:float32``."""
    name, _, dtype = key.partition(":")
    return f"mlf_{name}_{short_name(dtype)}" if dtype else f"mlf_{name}"


def mask_dtype(dtype: str) -> str:
    """Return the dtype of a vector comparison of `dtype` in GNU C: signed integers of the same width."""
    return dtypes.vector(f"int{dtypes.bits(dtype)}", dtypes.lanes(dtype))


def literal(value: float, dtype: str) -> str:
    """Return a C expression of scalar `dtype` whose value is exactly `value`."""
    if dtype == "bool":
        return "1" if value else "0"
    if dtypes.is_narrow(dtype):
        return str(int(np.asarray(value, dtypes.to_numpy(dtype)).view(np.uint8)))
    if dtype in HALF_FLOATS:
        bits = np.asarray(value, dtypes.to_numpy(dtype)).view(np.uint16)
        return f"0x{int(bits):04x}"
    if dtypes.is_float(dtype):
        is_single = dtype == "float32"
        if not math.isfinite(value):
            name = "NAN" if math.isnan(value) else "INFINITY"
            text = name if is_single else f"(double){name}"
            return f"(-{text})" if value < 0 else text
        text = shortest_digits(np.float32(value) if is_single else float(value))
        text = f"{text}{'' if any(mark in text for mark in '.e') else '.0'}{'f' if is_single else ''}"
        return f"({text})" if text.startswith("-") else text
    value, (low, high) = int(value), dtypes.limits(dtype)
    if not low <= value <= high:
        raise InternalError(f"{value} is not a value of {dtype}")
    if value == low and dtype in ("int32", "int64"):
        return f"{dtype.upper()}_MIN"
    if dtype == "int64":
        return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"
    if dtype in ("uint64", "uint32"):
        return f"UINT64_C({value})" if dtype == "uint64" else f"{value}U"
    return str(value) if value >= 0 else f"({value})"
