"""Conversions of narrow formats: floats of 8 and 4 bits and integers of 4 and 2, by their bits in a byte."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.intrinsics.registry import BodySteps, bits_of_float, define, float_of_bits, shl, shr
from mlfc.tir.ir import Expr

ROUND_MODES = ("up", "down", "nearest")
"""How float8_e8m0fnu rounds, which has no fraction; `nearest` sends ties up, and those of subnormals down."""
_NAN, _INFINITY = 0x7FC00000, 0x7F800000
_POWERS = "float8_e8m0fnu"


@dataclass(frozen=True)
class _Format:
    """A narrow float with a sign: its layout, and the codes at the end of its range."""

    dtype: str
    exponent: int  # bits
    fraction: int
    bias: int
    largest: int  # code of the largest finite number
    above: int  # code of what is larger still and not to be saturated
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
        """Whether there is one zero only, and the code of the other is NaN."""
        return self.dtype.endswith("uz")


_FORMATS = {
    item.dtype: item
    for item in (
        _Format("float8_e4m3fn", 4, 3, 7, largest=0x7E, above=0x7F, nan=0x7F),
        _Format("float8_e4m3fnuz", 4, 3, 8, largest=0x7F, above=0x80, nan=0x80),
        _Format("float8_e5m2", 5, 2, 15, largest=0x7B, above=0x7C, nan=0x7E),
        _Format("float8_e5m2fnuz", 5, 2, 16, largest=0x7F, above=0x80, nan=0x80),
        # without NaN: it becomes the zero of the other sign
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
        # a float whose last bit is worth the smallest number of the format
        base = kind.unit * 2.0**23
        subnormal = bits_of_float(float_of_bits(magnitude) + base) - bits_of_float(tb.const(base, "float32"))
        rounded = tb.select(tb.binary("lt", magnitude, (128 - kind.bias) << 23), subnormal, normal)
        note = "ties to even; subnormal: adding leaves the rounded result in the low bits; normal"
        rounded = steps.let("rounded", rounded, note)
        code = tb.select(tb.binary("gt", rounded, kind.largest), kind.largest if saturate else kind.above, rounded)
        code = steps.let("code", tb.select(tb.binary("gt", magnitude, _INFINITY), kind.nan, code))
        if kind.unsigned_zero:  # neither zero nor NaN has a sign
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
        # infinity and NaN are NaN, and what saturates stays the largest number
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
    """Return the number of a narrow dtype that a byte holds: an int32 or a float32. Bits beyond it do not count."""
    if dtype in dtypes.NARROW_FLOATS:
        known = stored & 0x0F if dtypes.bits(dtype) == 4 else stored
        return tb.intrinsic(f"{dtype}_to_float", known, dtype="float32")
    low, high = dtypes.limits(dtype)
    wide = tb.cast(stored, "int32") & (high - low)
    return wide if low == 0 else (wide ^ -low) + low


def narrowed(value: Expr, dtype: str, *, saturate: bool = True, round_mode: str = "up") -> Expr:
    """Return the byte that holds a number as a narrow dtype: of an int32 its low bits, of a float32 the nearest."""
    if dtype in dtypes.NARROW_INTEGERS:
        low, high = dtypes.limits(dtype)
        return tb.cast(tb.cast(value, "int32") & (high - low), "uint8")
    if dtype not in dtypes.NARROW_FLOATS:
        raise InternalError(f"{dtype} is not narrow")
    open_ended = dtype == _POWERS or _FORMATS[dtype].above != _FORMATS[dtype].largest
    name = _from_float(dtype, saturate=saturate or not open_ended, round_mode=round_mode)
    return tb.intrinsic(name, value, dtype="uint8")
