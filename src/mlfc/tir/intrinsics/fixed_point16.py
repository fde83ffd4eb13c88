"""gemmlowp's functions on 16-bit fixed-point numbers: what TFLite's integer LSTM computes its gates by.

github.com/google/gemmlowp/blob/master/fixedpoint/fixedpoint.h. A number of m integer bits is an int16 in units of
2**(m - 15), here in an int32. Bodies avoid branches, so that compilers vectorize the loops around them.
"""

from __future__ import annotations

from mlfc.support.fixed_point import EXP_MINUS_EIGHTH, EXP_MINUS_POWERS, RECIPROCAL_SLOPE, RECIPROCAL_START, THIRD
from mlfc.tir import builder as tb
from mlfc.tir.intrinsics.fixed_point import rounding_divide_by_pot
from mlfc.tir.intrinsics.registry import BodySteps, defined, shl, shr
from mlfc.tir.ir import Expr

_LOWEST, _LARGEST = -(1 << 15), (1 << 15) - 1
_NUMBER = ("int32", _LOWEST, _LARGEST)
_BITS = ("int32", 0, 7)


def _narrow(constant: int) -> int:
    """Return a constant of 32 bits in 16, rounded."""
    return (constant + (1 << 15)) >> 16


def _times(a: Expr, b: Expr | int) -> Expr:
    """Return a * b for a factor without integer bits, ties up."""
    return shr(a * b + (1 << 14), 15)


def _saturated(x: Expr) -> Expr:
    return tb.clamp(x, _LOWEST, _LARGEST)


@defined(x=_NUMBER, bits=_BITS)
def exp_below_zero_q15(steps: BodySteps, x: Expr, bits: Expr) -> Expr:
    """Return exp of a number of so many integer bits that is not above zero, with none."""
    one = tb.const(1)
    quarter = steps.let("quarter", shl(one, 13 - bits), known=(1 << 6, 1 << 13))
    reduced = steps.let("reduced", (x & (quarter - 1)) - quarter, "from -1/4 to 0", known=(-(1 << 13), 0))
    # the Taylor expansion around -1/8
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
    return tb.select(tb.binary("eq", x, 0), tb.const(_LARGEST), limited)


@defined(x=("int32", 0, _LARGEST))
def twice_reciprocal_of_one_plus_q15(steps: BodySteps, x: Expr) -> Expr:
    """Return 2 / (1 + x), with two integer bits, of a number from 0 to 1 with none."""
    half = steps.let("halved", shr(x + _LARGEST + 1, 1), known=(1 << 14, _LARGEST))
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
    either = steps.let("either", tb.select(tb.binary("gt", x, 0), above, tb.const(_LARGEST) - above))
    return tb.select(tb.binary("eq", x, 0), tb.const(1 << 14), either)


@defined(x=_NUMBER, bits=("int32", 0, 6))
def tanh_q15(steps: BodySteps, x: Expr, bits: Expr) -> Expr:
    """Return tanh of a number of so many integer bits, with none."""
    below = steps.let("below", tb.minimum(x, tb.const(0) - x))
    # doubling the argument costs nothing: the same bits are read with one integer bit more
    reciprocal = twice_reciprocal_of_one_plus_q15(exp_below_zero_q15(below, bits + 1))
    above = steps.let("above", _saturated((reciprocal - (1 << 13)) * 4))
    either = steps.let("either", tb.select(tb.binary("gt", x, 0), above, tb.const(0) - above))
    return tb.select(tb.binary("eq", x, 0), tb.const(0), either)
