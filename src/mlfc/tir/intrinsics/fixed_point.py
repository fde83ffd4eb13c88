"""Fixed-point arithmetic of quantized layers, by the rules of gemmlowp and TFLite.

github.com/google/gemmlowp/blob/master/fixedpoint/fixedpoint.h, tensorflow/lite/kernels/internal/common.h. Bodies avoid
branches, so that compilers vectorize the loops around them.
"""

from __future__ import annotations

from mlfc.support import dtypes
from mlfc.support.fixed_point import EXP_MINUS_EIGHTH, EXP_MINUS_POWERS, RECIPROCAL_SLOPE, RECIPROCAL_START, THIRD
from mlfc.tir import builder as tb
from mlfc.tir.intrinsics.registry import BodySteps, defined, shl, shr
from mlfc.tir.ir import Expr

_LOWEST, _LARGEST = dtypes.limits("int32")
_MULTIPLIER = ("int32", 0, _LARGEST)
_SHIFT = ("int32", -31, 30)
_EXPONENT = ("int32", 0, 31)
_UNSIGNED = "unsigned: few vector units shift signed 64-bit numbers, and the 32 bits that are kept are the same"
_TIES_AWAY = "one less below zero: then ties up are ties away from zero"


def _product(a: Expr, b: Expr) -> Expr:
    return tb.cast(a, "int64") * tb.cast(b, "int64")


def _low(wide: Expr) -> Expr:
    """Return the low 32 bits as an int32."""
    return tb.cast(tb.cast(wide, "uint32"), "int32")


@defined(a="int32", b="int32")
def rounding_doubling_high_mul(steps: BodySteps, a: Expr, b: Expr) -> Expr:
    """Return the high half of 2 * a * b, ties up as gemmlowp rounds; saturates where both are INT32_MIN."""
    high = steps.let("high", shr(_product(a, b) + (1 << 30), 31))
    return tb.select(tb.binary("gt", high, _LARGEST), tb.const(_LARGEST), tb.cast(high, "int32"))


@defined(x="int32", exponent=_EXPONENT)
def rounding_divide_by_pot(steps: BodySteps, x: Expr, exponent: Expr) -> Expr:
    """Return x / 2**exponent, rounded to nearest, ties away from zero."""
    one = tb.const(1, "uint32")
    mask = steps.let("mask", tb.cast(shl(one, exponent) - 1, "int32"), known=(0, _LARGEST))
    threshold = steps.let("threshold", shr(mask, 1) - shr(x, 31))
    above = tb.binary("gt", x & mask, threshold)
    return tb.cast(tb.cast(shr(x, exponent), "uint32") + tb.cast(above, "uint32"), "int32")


@defined(x="int32", multiplier=_MULTIPLIER, shift=_SHIFT)
def requantize_double(steps: BodySteps, x: Expr, multiplier: Expr, shift: Expr) -> Expr:
    """Return x * multiplier * 2**(shift - 31), rounded twice as TFLite does; multiplier >= 0."""
    left = steps.let("left", tb.select(tb.binary("gt", shift, 0), shift, 0))
    shifted = steps.let("shifted", shl(x, left))
    doubled = steps.let("doubled", tb.cast(_product(shifted, multiplier), "uint64") + (1 << 30), _UNSIGNED)
    return rounding_divide_by_pot(_low(shr(doubled, 31)), left - shift)


@defined(x="int32", multiplier=_MULTIPLIER, exponent=_EXPONENT)
def requantize_down(steps: BodySteps, x: Expr, multiplier: Expr, exponent: Expr) -> Expr:
    """Return x * multiplier * 2**(-32 - exponent), rounded twice as TFLite does; multiplier, exponent >= 0."""
    doubled = steps.let("doubled", tb.cast(_product(x, multiplier), "uint64") + (1 << 30), _UNSIGNED)
    high = steps.let("high", _low(shr(doubled, 31)), known=(_LOWEST + 1, _LARGEST - 1))
    shifted = steps.let("shifted", shr(high + shr(high, 31), exponent), f"{_TIES_AWAY}; high is never INT32_MIN")
    return shr(shifted + 1, 1)


@defined(x="int32", multiplier=_MULTIPLIER, exponent=_EXPONENT, zero_point=("int32", -(1 << 16), 1 << 16))
def requantize_narrow(steps: BodySteps, x: Expr, multiplier: Expr, exponent: Expr, zero_point: Expr) -> Expr:
    """Return requantize_down of an x below 2**30 in magnitude, plus a zero point below 2**16 in magnitude."""
    doubled = steps.let("doubled", _product(shl(x, 1), multiplier))
    top = tb.cast(shr(tb.cast(doubled, "uint32"), 31), "int32")
    note = "half of the last bit kept is the top bit of what is not: so rounding adds it"
    high = steps.let("high", tb.cast(shr(doubled, 32), "int32") + top, note)
    shifted = steps.let("shifted", shr(high + shr(high, 31), exponent), _TIES_AWAY)
    nudge = steps.let("nudge", zero_point * 2 + 1)
    return shr(shifted + nudge, 1)


def _rounded_once(product: Expr, total: Expr) -> Expr:
    """Return product / 2**total, ties up."""
    return tb.cast(shr(product + shl(tb.const(1, "int64"), total - 1), total), "int32")


@defined(x="int32", multiplier="int32", shift=_SHIFT)
def requantize_single(steps: BodySteps, x: Expr, multiplier: Expr, shift: Expr) -> Expr:
    """Return x * multiplier * 2**(shift - 31), rounded once, ties up."""
    total = steps.let("total", tb.const(31) - shift)
    return _rounded_once(_product(x, multiplier), total)


@defined(x="int64", multiplier=("int32", 0, 0x7FFF), total=("int32", 1, 62))
def requantize_reduced(_: BodySteps, x: Expr, multiplier: Expr, total: Expr) -> Expr:
    """Return x * multiplier / 2**total, rounded once, ties up: what TFLite does with sums of 64 bits."""
    product = x * tb.cast(multiplier, "int64")
    return _low(shr(product + shl(tb.const(1, "int64"), total - 1), total))


@defined(x="int32", multiplier="int32", shift=_SHIFT)
def requantize_away(steps: BodySteps, x: Expr, multiplier: Expr, shift: Expr) -> Expr:
    """Return x * multiplier * 2**(shift - 31), rounded once, ties away from zero."""
    total = steps.let("total", tb.const(31) - shift)
    product = steps.let("product", _product(x, multiplier))
    return _rounded_once(product - tb.cast(tb.binary("lt", product, 0), "int64"), total)


@defined(x="int32", multiplier="int32", exponent=("int32", 0, 29))
def requantize_single_down(_: BodySteps, x: Expr, multiplier: Expr, exponent: Expr) -> Expr:
    """Return requantize_single with the shift -2 - exponent."""
    return requantize_single(x, multiplier, tb.const(-2) - exponent)


@defined(x="int32", multiplier="int32", exponent=("int32", 0, 29))
def requantize_away_down(_: BodySteps, x: Expr, multiplier: Expr, exponent: Expr) -> Expr:
    """Return requantize_away with the shift -2 - exponent."""
    return requantize_away(x, multiplier, tb.const(-2) - exponent)


@defined(x="int32")
def saturate_byte(steps: BodySteps, x: Expr) -> Expr:
    """Return x limited to the range of int8."""
    above = steps.let("above", tb.select(tb.binary("lt", x, -128), tb.const(-128), x))
    return tb.select(tb.binary("gt", above, 127), tb.const(127), above)


@defined(x="uint32")
def clz32(steps: BodySteps, x: Expr) -> Expr:
    """Return the leading zeros, 32 for zero."""
    zeros = tb.cast(tb.binary("eq", x, 0), "int32")
    for step in (16, 8, 4, 2, 1):
        note = "a compiler's builtin counts those of an int, which may have 16 bits" if step == 16 else ""
        empty = tb.binary("eq", shr(x, 32 - step), 0)
        count = steps.let(f"by_{step}", tb.select(empty, tb.const(step), 0), note)
        zeros = zeros + count
        if step > 1:
            x = steps.let(f"rest_{step}", shl(x, count))
    return zeros


@defined(fraction=("int32", 0, _LARGEST))
def reciprocal_of_one_plus(steps: BodySteps, fraction: Expr) -> Expr:
    """Return 1 / (1 + x) of a number from 0 to 1 without integer bits, by three steps of Newton's method."""
    half = steps.let("half", shr(fraction, 1) + (1 << 30), "of the denominator")
    start = rounding_doubling_high_mul(half, tb.const(RECIPROCAL_SLOPE)) + RECIPROCAL_START
    x: Expr = steps.let("start", start)
    for step in range(3):
        error = steps.let(f"error_{step}", tb.const(1 << 29) - rounding_doubling_high_mul(half, x))
        x = steps.let(f"step_{step}", x + rounding_doubling_high_mul(x, error) * 4)
    return tb.select(tb.binary("ge", x, 1 << 30), tb.const(_LARGEST), x * 2)


_OPERAND = ("int32", -(1 << 17), 1 << 17)


@defined(a=_OPERAND, b=_OPERAND, multiplier=_MULTIPLIER, shift=("int32", -63, 63))
def requantize_quotient(steps: BodySteps, a: Expr, b: Expr, multiplier: Expr, shift: Expr) -> Expr:
    """Return a / b * multiplier * 2**(shift - 31), as TFLite divides codes; b is not 0."""
    below = steps.let("below", tb.binary("lt", b, 0))
    dividend = steps.let("dividend", tb.select(below, tb.const(0) - a, a), known=_OPERAND[1:])
    size = tb.maximum(tb.select(below, tb.const(0) - b, b), 1)
    divisor = steps.let("divisor", tb.cast(size, "uint32"), known=(1, 1 << 17))
    room = steps.let("room", tb.cast(clz32(divisor), "int32"), known=(14, 31))
    fraction = tb.cast(shl(divisor, tb.cast(room, "uint32")) - (1 << 31), "int32")
    inverse = steps.let("inverse", reciprocal_of_one_plus(steps.let("fraction", fraction, known=(0, _LARGEST))))
    magnitude = tb.cast(dividend ^ shr(dividend, 31), "uint32")
    headroom = steps.let("headroom", tb.cast(clz32(magnitude), "int32") - 1, known=(13, 31))
    full = steps.let("full", tb.cast(shl(tb.cast(dividend, "uint32"), tb.cast(headroom, "uint32")), "int32"))
    quotient = steps.let("quotient", rounding_doubling_high_mul(full, inverse))
    scaled = steps.let("scaled", rounding_doubling_high_mul(quotient, multiplier))
    # TFLite's shift amount is unbounded: x86-64 and AArch64 use it modulo 32, and that of the 64-bit mask modulo 64
    right = steps.let("right", tb.const(31) - room + headroom - shift)
    amount = steps.let("amount", right & 31, known=(0, 31))
    beyond = shr(scaled, amount) + tb.cast(tb.binary("ge", scaled, 0), "int32")
    return tb.select(tb.binary("eq", right & 32, 0), rounding_divide_by_pot(scaled, amount), beyond)


# 16-bit numbers: with m integer bits, an int16 in units of 2**(m - 15), stored here in an int32
_LOWEST16, _LARGEST16 = -(1 << 15), (1 << 15) - 1
_NUMBER = ("int32", _LOWEST16, _LARGEST16)
_BITS = ("int32", 0, 7)


def _narrow(constant: int) -> int:
    """Round a 32-bit constant to 16 bits."""
    return (constant + (1 << 15)) >> 16


def _times(a: Expr, b: Expr | int) -> Expr:
    """Return a * b for a factor without integer bits, ties up."""
    return shr(a * b + (1 << 14), 15)


def _saturated(x: Expr) -> Expr:
    return tb.clamp(x, _LOWEST16, _LARGEST16)


@defined(x=_NUMBER, bits=_BITS)
def exp_below_zero_q15(steps: BodySteps, x: Expr, bits: Expr) -> Expr:
    """Return exp of a number of so many integer bits that is not above zero, with none."""
    one = tb.const(1)
    quarter = steps.let("quarter", shl(one, 13 - bits), known=(1 << 6, 1 << 13))
    reduced = steps.let("reduced", (x & (quarter - 1)) - quarter, "from -1/4 to 0", known=(-(1 << 13), 0))
    # Taylor expansion around -1/8
    near = steps.let("moved", shl(reduced, bits) + (1 << 12), known=(-(1 << 12), 1 << 12))
    square = steps.let("square", _times(near, near))
    cube = steps.let("cube", _times(square, near))
    fourth = steps.let("fourth", rounding_divide_by_pot(_times(square, square), tb.const(2)))
    tail = steps.let("tail", rounding_divide_by_pot(_times(fourth + cube, _narrow(THIRD)) + square, tb.const(1)))
    start = _narrow(EXP_MINUS_EIGHTH)
    result: Expr = steps.let("start", _saturated(_times(near + tail, start) + start))
    rest = steps.let("rest", reduced - x, "in quarters", known=(-(1 << 13), 1 << 15))
    for exponent, factor in EXP_MINUS_POWERS:
        has_bit = tb.binary("ne", shr(rest, tb.const(15 + exponent) - bits) & 1, 0)
        scaled = _times(result, _narrow(factor))
        result = steps.let(f"with_{exponent + 2}", tb.select(has_bit, scaled, result))
    is_far = tb.land(tb.binary("gt", bits, 5), tb.binary("lt", x, tb.const(0) - shl(one, 20 - bits)))
    limited = steps.let("limited", tb.select(is_far, tb.const(0), result))
    return tb.select(tb.binary("eq", x, 0), tb.const(_LARGEST16), limited)


@defined(x=("int32", 0, _LARGEST16))
def twice_reciprocal_of_one_plus_q15(steps: BodySteps, x: Expr) -> Expr:
    """Return 2 / (1 + x), with two integer bits, of a number from 0 to 1 with none."""
    half = steps.let("halved", shr(x + _LARGEST16 + 1, 1), known=(1 << 14, _LARGEST16))
    guess: Expr = steps.let("guess", _times(half, _narrow(RECIPROCAL_SLOPE)) + _narrow(RECIPROCAL_START))
    for step in range(3):
        error = steps.let(f"error_{step}", tb.const(1 << 13) - _times(half, guess))
        guess = steps.let(f"guess_{step}", guess + _saturated(_times(guess, error) * 4))
    return guess


@defined(x=_NUMBER, bits=_BITS)
def logistic_q15(steps: BodySteps, x: Expr, bits: Expr) -> Expr:
    """Return 1 / (1 + exp(-x)) of a number of so many integer bits, with none."""
    below = steps.let("below", tb.minimum(x, tb.const(0) - x))
    above = steps.let("above", _saturated(twice_reciprocal_of_one_plus_q15(exp_below_zero_q15(below, bits)) * 2))
    either = steps.let("either", tb.select(tb.binary("gt", x, 0), above, tb.const(_LARGEST16) - above))
    return tb.select(tb.binary("eq", x, 0), tb.const(1 << 14), either)


@defined(x=_NUMBER, bits=("int32", 0, 6))
def tanh_q15(steps: BodySteps, x: Expr, bits: Expr) -> Expr:
    """Return tanh of a number of so many integer bits, with none."""
    below = steps.let("below", tb.minimum(x, tb.const(0) - x))
    # doubling the argument is free: the same bits are interpreted with one more integer bit
    reciprocal = twice_reciprocal_of_one_plus_q15(exp_below_zero_q15(below, bits + 1))
    above = steps.let("above", _saturated((reciprocal - (1 << 13)) * 4))
    either = steps.let("either", tb.select(tb.binary("gt", x, 0), above, tb.const(0) - above))
    return tb.select(tb.binary("eq", x, 0), tb.const(0), either)
