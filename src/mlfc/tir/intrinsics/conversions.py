"""Conversions that C99 has no type for, or leaves undefined: half floats by their bits, and floats to integers."""

from __future__ import annotations

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.intrinsics.registry import BodySteps, bits_of_float, define, defined, float_of_bits, shl, shr
from mlfc.tir.ir import Expr


def _at_least(x: Expr, limit: float) -> Expr:
    return tb.binary("ge", x, limit)


def _where(condition: Expr, bits: int | Expr) -> Expr:
    """Return the bits where the condition is true, else 0: compilers put masks in vectors where they keep branches."""
    return (tb.const(0, "uint32") - tb.cast(condition, "uint32")) & bits


@defined(stored="uint16")
def float16_to_float(steps: BodySteps, stored: Expr) -> Expr:
    """Return the value of a float16."""
    wide = steps.let("wide", tb.cast(stored, "uint32"))
    sign = steps.let("sign", shl(wide & 0x8000, 16))
    magnitude = steps.let("magnitude", wide & 0x7FFF)
    subnormal = tb.binary("lt", magnitude, 0x0400)
    note = "subnormals get the leading digit that they lack, whose value is subtracted; infinity and NaN the exponent"
    extra = steps.let("extra", _where(subnormal, 0x38800000), note)
    infinite = _where(_at_least(magnitude, 0x7C00), 0x38000000)
    bias = steps.let("bias", tb.maximum(extra, 0x38000000) + infinite)
    value = float_of_bits(shl(magnitude, 13) + bias) - float_of_bits(extra)
    return float_of_bits(bits_of_float(value) | sign)


def _rounded(steps: BodySteps, magnitude: Expr) -> tuple[Expr, Expr, Expr]:
    """Return the bits of a unit and of the sum with a magnitude, whose low bits are its fraction, and NaN's bit."""
    limited = steps.let("limited", tb.minimum(magnitude, 0x47800000), "from 65536 on infinity")
    power = steps.let("power", tb.maximum(limited & 0x7F800000, 0x38800000))
    unit = steps.let("unit", power + 0x06800000, "added, it leaves the rounded fraction in the low bits")
    total = bits_of_float(float_of_bits(limited) + float_of_bits(unit))
    return unit, total, tb.binary("gt", magnitude, 0x7F800000)


@defined(value="float32")
def float16_from_float(steps: BodySteps, value: Expr) -> Expr:
    """Return the bits of the nearest float16, ties to even."""
    bits = steps.let("bits", bits_of_float(value))
    sign = steps.let("sign", shr(bits, 16) & 0x8000)
    unit, total, is_nan = _rounded(steps, steps.let("magnitude", bits & 0x7FFFFFFF))
    rounded = steps.let("rounded", total - unit + shr(unit - 0x3F000000, 13))
    return tb.cast(rounded | _where(is_nan, (shr(bits, 13) & 0x01FF) | 0x0200) | sign, "uint16")


@defined(value="float32")
def round_float16(steps: BodySteps, value: Expr) -> Expr:
    """Return the nearest number that is a float16, ties to even."""
    bits = steps.let("bits", bits_of_float(value))
    sign = steps.let("sign", bits & 0x80000000)
    unit, total, is_nan = _rounded(steps, steps.let("magnitude", bits & 0x7FFFFFFF))
    rounded = steps.let("rounded", bits_of_float(float_of_bits(total) - float_of_bits(unit)))
    infinite = _where(_at_least(rounded, 0x47800000), 0x38000000)
    return float_of_bits((rounded + infinite) | _where(is_nan, (bits & 0x003FE000) | 0x7FC00000) | sign)


@defined(stored="uint16")
def bfloat16_to_float(_: BodySteps, stored: Expr) -> Expr:
    """Return the value of a bfloat16."""
    return float_of_bits(shl(tb.cast(stored, "uint32"), 16))


def _rounded_bfloat16(steps: BodySteps, value: Expr) -> Expr:
    bits = steps.let("bits", bits_of_float(value))
    magnitude = steps.let("magnitude", bits & 0x7FFFFFFF)
    number, quiet = tb.binary("le", magnitude, 0x7F800000), _where(tb.binary("gt", magnitude, 0x7F800000), 0x00400000)
    return (bits + _where(number, (shr(bits, 16) & 1) + 0x7FFF)) | quiet


@defined(value="float32")
def bfloat16_from_float(steps: BodySteps, value: Expr) -> Expr:
    """Return the bits of the nearest bfloat16, ties to even."""
    return tb.cast(shr(_rounded_bfloat16(steps, value), 16), "uint16")


@defined(value="float32")
def round_bfloat16(steps: BodySteps, value: Expr) -> Expr:
    """Return the nearest number that is a bfloat16, ties to even."""
    return float_of_bits(_rounded_bfloat16(steps, value) & 0xFFFF0000)


@defined(value="float64")
def float32_of_odd(steps: BodySteps, value: Expr) -> Expr:
    """Return value as a float32; inexact results are truncated and end in a 1, so rounding them again rounds once."""
    near = steps.let("near", tb.cast(value, "float32"))
    back = steps.let("back", tb.cast(near, "float64"))
    bits = steps.let("bits", bits_of_float(near))
    away = tb.select(tb.binary("lt", value, 0.0), tb.binary("lt", back, value), tb.binary("gt", back, value))
    truncated = tb.select(away, bits - 1, bits)
    return float_of_bits(tb.select(tb.binary("eq", back, value), bits, truncated | 1))


def _float64_of_odd(steps: BodySteps, x: Expr) -> Expr:
    """Return x as a float64; bits that do not fit become a 1 above them, so rounding the result again rounds once."""
    low = steps.let("low", x & 0xFFF)
    inexact = tb.binary("land", tb.binary("ne", low, 0), tb.binary("ge", x, 1 << 52))
    if x.dtype == "int64":
        inexact = tb.select(tb.binary("lt", x, -(1 << 52)), tb.binary("ne", low, 0), inexact)
    return tb.cast(tb.select(inexact, (x - low) | 0x800, x), "float64")


for _dtype in ("int64", "uint64"):
    define("float64_of_odd", _float64_of_odd, {"x": _dtype}, _dtype)


def _fitting(target: str, x: Expr) -> Expr:
    low, high = dtypes.limits(target)
    below = tb.select(tb.binary("lt", x, float(high + 1)), tb.cast(x, target), tb.const(low, target))
    return tb.select(_at_least(x, float(low)), below, tb.const(low, target))


def _to_int32(_: BodySteps, x: Expr) -> Expr:
    """Return x truncated, limited to what an int32 holds; 0 for NaN."""
    low, high = dtypes.limits("int32")
    outside = tb.select(tb.binary("lt", x, 0.0), tb.const(low), 0)
    inside = tb.select(_at_least(x, float(low)), tb.cast(x, "int32"), outside)
    return tb.select(_at_least(x, float(high + 1)), tb.const(high), inside)


def _as_int32(_: BodySteps, x: Expr) -> Expr:
    """Return x truncated; -2**31 for NaN and for what an int32 cannot hold."""
    return _fitting("int32", x)


def _as_int64(_: BodySteps, x: Expr) -> Expr:
    """Return x truncated; -2**63 for NaN and for what an int64 cannot hold."""
    return _fitting("int64", x)


def _as_uint64(_: BodySteps, x: Expr) -> Expr:
    """Return x truncated if it is from 2**63 to 2**64, 0 if it is larger, otherwise the bits of x as an int64."""
    large = tb.select(tb.binary("lt", x, 2.0**64), tb.cast(x, "uint64"), tb.const(0, "uint64"))
    return tb.select(_at_least(x, 2.0**63), large, tb.cast(_fitting("int64", x), "uint64"))


_RULES = {"to_int32": _to_int32, "as_int32": _as_int32, "as_int64": _as_int64, "as_uint64": _as_uint64}
for _dtype in ("float32", "float64"):
    for _name, _rule in _RULES.items():
        define(_name, _rule, {"x": _dtype}, _dtype)
