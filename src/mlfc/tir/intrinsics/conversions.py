"""Conversions that C99 has no type for or leaves undefined: narrow floats and integers, and floats to integers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.intrinsics.registry import BodySteps, bits_of_float, define, defined, float_of_bits, shl, shr
from mlfc.tir.ir import Expr


def _at_least(x: Expr, limit: float) -> Expr:
    return tb.binary("ge", x, limit)


def _where(condition: Expr, bits: int | Expr) -> Expr:
    """Return the bits if the condition is true, else 0: compilers vectorize masks but keep branches."""
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
    """Return the bits of a rounding unit and of its sum with a magnitude, which end in the fraction, and a NaN test."""
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


ROUND_MODES = ("up", "down", "nearest")
"""Rounding modes of float8_e8m0fnu, which has no fraction; `nearest` rounds ties up, and those of subnormals down."""
_NAN, _INFINITY = 0x7FC00000, 0x7F800000
_POWERS = "float8_e8m0fnu"


@dataclass(frozen=True)
class _Format:
    """Format of a narrow float with a sign: its layout, and the codes at the end of its range."""

    dtype: str
    exponent: int  # bits
    fraction: int
    bias: int
    largest: int  # code of the largest finite number
    above: int  # code of larger numbers that are not saturated
    nan: int

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return 1 << (self.exponent + self.fraction)

    @property
    def unit(self) -> float:
        """The smallest positive number."""
        return 2.0 ** (1 - self.bias - self.fraction)

    @property
    def unsigned_zero(self) -> bool:
        """True if the only zero is positive, and the code of the negative zero is NaN."""
        return self.dtype.endswith("uz")


_FORMATS = {
    item.dtype: item
    for item in (
        _Format("float8_e4m3fn", 4, 3, 7, largest=0x7E, above=0x7F, nan=0x7F),
        _Format("float8_e4m3fnuz", 4, 3, 8, largest=0x7F, above=0x80, nan=0x80),
        _Format("float8_e5m2", 5, 2, 15, largest=0x7B, above=0x7C, nan=0x7E),
        _Format("float8_e5m2fnuz", 5, 2, 16, largest=0x7F, above=0x80, nan=0x80),
        # the format lacks NaN, which becomes the zero of the other sign
        _Format("float4_e2m1fn", 2, 1, 1, largest=0x07, above=0x07, nan=0x08),
    )
}


def _define_to_float(kind: _Format) -> None:
    def rule(steps: BodySteps, stored: Expr) -> Expr:
        wide = steps.let("wide", tb.cast(stored, "uint32"))
        sign = steps.let("sign", shl(wide & kind.sign, 31 - kind.exponent - kind.fraction))
        magnitude = steps.let("magnitude", wide & (kind.sign - 1))
        small = bits_of_float(tb.cast(magnitude, "float32") * kind.unit)
        normal = shl(magnitude, 23 - kind.fraction) + ((127 - kind.bias) << 23)
        subnormal = tb.binary("lt", magnitude, 1 << kind.fraction)
        note = "zero and subnormals are exact in float"
        bits: Expr = steps.let("bits", tb.select(subnormal, small, normal), note)
        if kind.dtype == "float8_e5m2":
            bits = tb.select(tb.binary("eq", magnitude, kind.above), tb.const(_INFINITY, "uint32"), bits)
            bits = tb.select(tb.binary("gt", magnitude, kind.above), tb.const(_NAN, "uint32"), bits)
        elif kind.unsigned_zero:
            return float_of_bits(tb.select(tb.binary("eq", wide, kind.nan), tb.const(_NAN, "uint32"), bits | sign))
        elif kind.nan < kind.sign:
            bits = tb.select(tb.binary("eq", magnitude, kind.nan), tb.const(_NAN, "uint32"), bits)
        return float_of_bits(bits | sign)

    rule.__doc__ = f"Return the value of a {kind.dtype}."
    define(f"{kind.dtype}_to_float", rule, {"stored": "uint8"})


def _define_from_float(kind: _Format, *, saturate: bool) -> None:
    def rule(steps: BodySteps, value: Expr) -> Expr:
        bits = steps.let("bits", bits_of_float(value))
        sign = steps.let("sign", shr(bits, 31 - kind.exponent - kind.fraction) & kind.sign)
        magnitude = steps.let("magnitude", bits & 0x7FFFFFFF)
        dropped = 23 - kind.fraction
        odd = shr(magnitude, dropped) & 1
        normal = shr(magnitude - ((127 - kind.bias) << 23) + ((1 << (dropped - 1)) - 1) + odd, dropped)
        # a float whose last bit has the value of the smallest number of the format
        base = kind.unit * 2.0**23
        subnormal = bits_of_float(float_of_bits(magnitude) + base) - bits_of_float(tb.const(base, "float32"))
        rounded = tb.select(tb.binary("lt", magnitude, (128 - kind.bias) << 23), subnormal, normal)
        note = "ties to even; subnormal: adding leaves the rounded result in the low bits; normal"
        rounded = steps.let("rounded", rounded, note)
        code = tb.select(tb.binary("gt", rounded, kind.largest), kind.largest if saturate else kind.above, rounded)
        code = steps.let("code", tb.select(tb.binary("gt", magnitude, _INFINITY), kind.nan, code))
        if kind.unsigned_zero:  # zero and NaN have no sign
            bare = tb.binary("eq", code & (kind.sign - 1), 0)
            return tb.cast(tb.select(bare, code, code | sign), "uint8")
        return tb.cast(code ^ sign, "uint8")

    rest = "saturated" if saturate else "with infinity or NaN for larger ones"
    rule.__doc__ = f"Return the bits of the nearest {kind.dtype}, {rest}."
    define(_from_float(kind.dtype, saturate=saturate), rule, {"value": "float32"})


def _power_to_float(steps: BodySteps, stored: Expr) -> Expr:
    """Return the value of a float8_e8m0fnu, a power of two."""
    wide = steps.let("wide", tb.cast(stored, "uint32"))
    bits = tb.select(tb.binary("eq", wide, 0), tb.const(0x00400000, "uint32"), shl(wide, 23))
    return float_of_bits(tb.select(tb.binary("eq", wide, 0xFF), tb.const(_NAN, "uint32"), bits))


def _define_power_from_float(mode: str, *, saturate: bool) -> None:
    def rule(steps: BodySteps, value: Expr) -> Expr:
        bits = steps.let("bits", bits_of_float(value))
        exponent = steps.let("exponent", shr(bits, 23) & 0xFF)
        if mode == "down":
            return tb.cast(exponent, "uint8")
        fraction = steps.let("fraction", bits & 0x007FFFFF)
        half = tb.select(tb.binary("eq", exponent, 0), tb.const(0x00400001, "uint32"), 0x00400000)
        up = tb.binary("ge", fraction, half if mode == "nearest" else tb.const(1, "uint32"))
        # infinity and NaN become NaN, and saturated values the largest number
        last = tb.binary("ge", exponent, 0xFE if saturate else 0xFF)
        return tb.cast(tb.select(last, exponent, tb.select(up, exponent + 1, exponent)), "uint8")

    rest = "saturated" if saturate else "with NaN for larger ones"
    rule.__doc__ = f"Return the bits of the power of two that a magnitude rounds to ({mode}), {rest}."
    define(_from_float(_POWERS, saturate=saturate, round_mode=mode), rule, {"value": "float32"})


def _from_float(dtype: str, *, saturate: bool, round_mode: str = "up") -> str:
    mode = f"_{round_mode}" if dtype == _POWERS else ""
    return f"{dtype}_from_float{mode}{'' if saturate else '_open'}"


for _format in _FORMATS.values():
    _define_to_float(_format)
    _define_from_float(_format, saturate=True)
    if _format.above != _format.largest:
        _define_from_float(_format, saturate=False)
define(f"{_POWERS}_to_float", _power_to_float, {"stored": "uint8"})
for _mode, _saturate in itertools.product(ROUND_MODES, (True, False)):
    _define_power_from_float(_mode, saturate=_saturate)


def widened(stored: Expr, dtype: str) -> Expr:
    """Decode a byte of a narrow dtype to an int32 or a float32; bits beyond its width are ignored."""
    if dtype in dtypes.NARROW_FLOATS:
        known = stored & 0x0F if dtypes.bits(dtype) == 4 else stored
        return tb.intrinsic(f"{dtype}_to_float", known, dtype="float32")
    low, high = dtypes.limits(dtype)
    wide = tb.cast(stored, "int32") & (high - low)
    return wide if low == 0 else (wide ^ -low) + low


def narrowed(value: Expr, dtype: str, *, saturate: bool = True, round_mode: str = "up") -> Expr:
    """Encode a number as a byte of a narrow dtype: the low bits of an int32, or the nearest value to a float32."""
    if dtype in dtypes.NARROW_INTEGERS:
        low, high = dtypes.limits(dtype)
        return tb.cast(tb.cast(value, "int32") & (high - low), "uint8")
    if dtype not in dtypes.NARROW_FLOATS:
        raise InternalError(f"{dtype} is not narrow")
    open_ended = dtype == _POWERS or _FORMATS[dtype].above != _FORMATS[dtype].largest
    name = _from_float(dtype, saturate=saturate or not open_ended, round_mode=round_mode)
    return tb.intrinsic(name, value, dtype="uint8")
