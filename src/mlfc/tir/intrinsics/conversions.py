"""Conversions that C99 has no type for, or leaves undefined: half floats by their bits, and floats to integers."""

from __future__ import annotations

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.intrinsics.registry import Steps, bits_of_float, define, defined, float_of_bits, shl, shr
from mlfc.tir.ir import Expr


def _at_least(x: Expr, limit: float) -> Expr:
    return tb.binary("ge", x, limit)


@defined(stored="uint16")
def float16_to_float(steps: Steps, stored: Expr) -> Expr:
    """Return the value of a float16."""
    wide = steps.let("wide", tb.cast(stored, "uint32"))
    sign = steps.let("sign", shl(wide & 0x8000, 16))
    magnitude = steps.let("magnitude", wide & 0x7FFF)
    small = bits_of_float(tb.cast(magnitude, "float32") * 2.0**-24)
    bias = tb.select(_at_least(magnitude, 0x7C00), tb.const(0x70000000, "uint32"), 0x38000000)
    subnormal = tb.binary("lt", magnitude, 0x0400)
    note = "zero and subnormals are exact in float; the others keep their fraction"
    bits = steps.let("bits", tb.select(subnormal, small, shl(magnitude, 13) + bias), note)
    return float_of_bits(bits | sign)


@defined(value="float32")
def float16_from_float(steps: Steps, value: Expr) -> Expr:
    """Return the bits of the nearest float16, ties to even."""
    bits = steps.let("bits", bits_of_float(value))
    sign = steps.let("sign", shr(bits, 16) & 0x8000)
    magnitude = steps.let("magnitude", bits & 0x7FFFFFFF)
    normal = shr(magnitude - 0x38000000 + 0x0FFF + (shr(magnitude, 13) & 1), 13)
    subnormal = bits_of_float(float_of_bits(magnitude) + 0.5) - 0x3F000000
    rounded = tb.select(tb.binary("lt", magnitude, 0x38800000), subnormal, normal)
    rounded = tb.select(_at_least(magnitude, 0x47800000), 0x7C00, rounded)
    rounded = tb.select(tb.binary("gt", magnitude, 0x7F800000), 0x7E00, rounded)
    note = "NaN; from 65536 on infinity; subnormal: adding 0.5 leaves the rounded result in the low bits; normal"
    return tb.cast(steps.let("rounded", rounded, note) | sign, "uint16")


@defined(stored="uint16")
def bfloat16_to_float(_: Steps, stored: Expr) -> Expr:
    """Return the value of a bfloat16."""
    return float_of_bits(shl(tb.cast(stored, "uint32"), 16))


@defined(value="float32")
def bfloat16_from_float(steps: Steps, value: Expr) -> Expr:
    """Return the bits of the nearest bfloat16, ties to even."""
    bits = steps.let("bits", bits_of_float(value))
    high = steps.let("high", shr(bits, 16))
    is_nan = tb.binary("gt", bits & 0x7FFFFFFF, 0x7F800000)
    return tb.cast(tb.select(is_nan, high | 0x0040, shr(bits + 0x7FFF + (high & 1), 16)), "uint16")


def _truncated(target: str, _: Steps, x: Expr) -> Expr:
    low, high = dtypes.limits(target)
    outside = tb.select(tb.binary("lt", x, 0.0), tb.const(low, target), 0)
    inside = tb.select(_at_least(x, float(low)), tb.cast(x, target), outside)
    return tb.select(_at_least(x, float(high + 1)), tb.const(high, target), inside)


def _to_int32(steps: Steps, x: Expr) -> Expr:
    """Return x truncated, limited to what an int32 holds; 0 for NaN."""
    return _truncated("int32", steps, x)


def _to_int64(steps: Steps, x: Expr) -> Expr:
    """Return x truncated, limited to what an int64 holds; 0 for NaN."""
    return _truncated("int64", steps, x)


def _to_uint64(_: Steps, x: Expr) -> Expr:
    """Return x truncated, limited to what an int64 or a uint64 holds, modulo 2**64; 0 for NaN."""
    largest = tb.const(dtypes.limits("uint64")[1], "uint64")
    above = tb.select(_at_least(x, 2.0**64), largest, tb.cast(x, "uint64"))
    return tb.select(_at_least(x, 0.0), above, tb.cast(tb.intrinsic("to_int64", x, dtype="int64"), "uint64"))


for _dtype in ("float32", "float64"):
    for _name, _rule in (("to_int32", _to_int32), ("to_int64", _to_int64), ("to_uint64", _to_uint64)):
        define(_name, _rule, {"x": _dtype}, _dtype)
