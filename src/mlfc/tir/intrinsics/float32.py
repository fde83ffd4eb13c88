"""exp, tanh and erf of float32 in a few additions and multiplications, without calls that prevent vectorization.

The coefficients are minimax fits by reweighted least squares. Bounds are valid with and without fused multiply-add, for
all floats including NaN and infinities; results below 2**-126 are rounded like any other.
"""

from __future__ import annotations

from mlfc.tir import builder as tb
from mlfc.tir.intrinsics.registry import BodySteps, bits_of_float, defined, float_of_bits, shl, shr
from mlfc.tir.ir import Expr

EXP_ULP = 1.1
TANH_ULP = 2.5
ERF_ULP = 2.0
"""Largest errors in units of the last place of the result."""

_LOG2_E = 1.44269502
# The first part has so few bits that its product with any exponent is exact; the second part is the remainder.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
# Adding 3 * 2**22 leaves a float's nearest integer in its low bits.
_ROUNDER = 12582912.0
_ROUNDER_BITS = 0x4B400000
_EXP_LOWEST, _EXP_HIGHEST = -104.0, 89.0
_EXP_LOWEST_NORMAL = -87.336
_EXPM1_TAIL = (0.5, 0.16666518, 0.041666206, 0.008368954, 0.00139506)
"""(expm1(r) - r) / r**2 for abs(r) <= ln(2) / 2, by rising powers of r; within 4e-9 / r**2."""

_TANH_HIGHEST = 10.0
_ERF_CUT, _ERF_HIGHEST = 1.0, 4.0
_ERF_NEAR = (
    0.12837910652, -0.3761262595653534, 0.11283600330352783, -0.026854444295167923, 0.005189535208046436,
    -0.000802083988673985, 7.889115659054369e-05,
)  # fmt: skip
"""erf(x) / x - 1 by rising powers of x**2, up to the cut; within 2e-9."""
_ERF_FAR = (
    -0.00017748723621480167, -1.1277495622634888, -0.6370596885681152, -0.10403741896152496, 0.022277116775512695,
    -0.0030556158162653446, 0.00019718262774404138,
)  # fmt: skip
"""log(erfc(x)) by rising powers of x, from the cut to the highest; within 2e-9 / erfc(x)."""


def _polynomial(coefficients: tuple[float, ...], x: Expr) -> Expr:
    value = tb.const(coefficients[-1], "float32")
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value


def _limited(x: Expr, op: str, limit: float) -> Expr:
    """Return the limit if it compares with x by `op`, else x, also if x is NaN."""
    return tb.select(tb.binary(op, x, limit), limit, x)


def _magnitude(x: Expr) -> Expr:
    return float_of_bits(bits_of_float(x) & 0x7FFFFFFF)


@defined(exponent="int32")
def power_of_two(_: BodySteps, exponent: Expr) -> Expr:
    """Return 2**exponent, for exponents of normal floats."""
    return float_of_bits(shl(tb.cast(exponent, "uint32") + 127, 23))


@defined(x="float32")
def nearest_exponent(steps: BodySteps, x: Expr) -> Expr:
    """Return the integer nearest to x / ln(2)."""
    rounded = steps.let("rounded", x * _LOG2_E + _ROUNDER, "its low bits hold the integer")
    return tb.cast(bits_of_float(rounded) - _ROUNDER_BITS, "int32")


@defined(x="float32", n="int32")
def expm1_rest(steps: BodySteps, x: Expr, n: Expr) -> Expr:
    """Return expm1(x - n * ln(2)), where n is the nearest exponent of x."""
    count = steps.let("count", tb.cast(n, "float32"))
    r = steps.let("r", x - count * _LN2_HIGH - count * _LN2_LOW)
    return r + r * r * _polynomial(_EXPM1_TAIL, r)


@defined(size="float32", x="float32")
def with_sign(steps: BodySteps, size: Expr, x: Expr) -> Expr:
    """Return a size, which is not negative, with the sign of x."""
    sign = steps.let("sign", bits_of_float(x) & 0x80000000)
    return float_of_bits((bits_of_float(size) & 0x7FFFFFFF) | sign)


@defined(x="float32")
def exp_f32(steps: BodySteps, x: Expr) -> Expr:
    """Return e**x within 1.1 ULP."""
    above = steps.let("above", _limited(x, "lt", _EXP_LOWEST))
    limited = steps.let("limited", _limited(above, "gt", _EXP_HIGHEST))
    n = steps.let("n", nearest_exponent(limited))
    rest = steps.let("rest", expm1_rest(limited, n))
    first = steps.let("first", shr(n, 1), "in two steps: neither factor leaves the normal floats, where the power may")
    second = steps.let("second", tb.cast(tb.cast(n, "uint32") - tb.cast(first, "uint32"), "int32"))
    power = steps.let("power", power_of_two(first))
    return (power * rest + power) * power_of_two(second)


@defined(x="float32")
def exp_normal_f32(steps: BodySteps, x: Expr) -> Expr:
    """Return e**x within 1.1 ULP, of what gives a normal float."""
    n = steps.let("n", nearest_exponent(x))
    rest = steps.let("rest", expm1_rest(x, n))
    power = steps.let("power", power_of_two(n))
    return power * rest + power


@defined(x="float32")
def exp_below_f32(steps: BodySteps, x: Expr) -> Expr:
    """Return e**x of what is not above zero, within 1.1 ULP; 0 where that is less than 2**-126."""
    limited = steps.let("limited", _limited(x, "lt", _EXP_LOWEST_NORMAL))
    power = steps.let("power", exp_normal_f32(limited))
    return tb.select(tb.binary("lt", x, _EXP_LOWEST_NORMAL), tb.const(0.0, "float32"), power)


@defined(x="float32")
def tanh_f32(steps: BodySteps, x: Expr) -> Expr:
    """Return the hyperbolic tangent within 2.5 ULP."""
    size = steps.let("size", _magnitude(x))
    limited = steps.let("limited", _limited(size, "gt", _TANH_HIGHEST))
    twice = steps.let("twice", limited + limited)
    n = steps.let("n", nearest_exponent(twice))
    power = steps.let("power", power_of_two(n))
    above = steps.let("above", power * expm1_rest(twice, n) + (power - 1.0), "expm1(2 * size)")
    return with_sign(above / (above + 2.0), x)


@defined(x="float32")
def erf_f32(steps: BodySteps, x: Expr) -> Expr:
    """Return the Gauss error function within 2.0 ULP."""
    size = steps.let("size", _magnitude(x))
    limited = steps.let("limited", _limited(size, "gt", _ERF_HIGHEST))
    square = steps.let("square", limited * limited)
    inner = steps.let("inner", limited + limited * _polynomial(_ERF_NEAR, square))
    outer = steps.let("outer", tb.const(1.0, "float32") - exp_normal_f32(_polynomial(_ERF_FAR, limited)))
    return with_sign(tb.select(tb.binary("lt", limited, _ERF_CUT), inner, outer), x)
