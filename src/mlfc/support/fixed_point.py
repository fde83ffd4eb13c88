"""Fixed-point arithmetic at compile time: TFLite's multipliers and gemmlowp's functions.

A value in format ``Qm`` is an int32 whose unit is ``2**(m - 31)``. The rules are those of gemmlowp
(fixedpoint/fixedpoint.h) and tensorflow/lite/kernels/internal/quantization_util.cc.
"""

from __future__ import annotations

import math

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1

# exp(-1/8) and 1/3 in Q0: the Taylor expansion of exp around -1/8
EXP_MINUS_EIGHTH = 1895147668
THIRD = 715827883
# exp(-2**e) in Q0 for e = -2, -1, ..., 4
EXP_MINUS_POWERS = ((-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535),
                     (3, 720401), (4, 242))  # fmt: skip
# 48/17 and -32/17 in Q2: initial guess of Newton's reciprocal on [1/2, 1]
RECIPROCAL_START, RECIPROCAL_SLOPE = 1515870810, -1010580540


def quantize_multiplier(real: float) -> tuple[int, int]:
    """Return ``(multiplier, shift)`` with ``real ~ multiplier * 2**(shift - 31)`` for a finite real not below zero.

    The multiplier is in [2**30, 2**31), or 0 for a real below the range; the shift is in [-31, 30], positive to the
    left. The rule is QuantizeMultiplier of TFLite.
    """
    if real == 0.0:
        return 0, 0
    significand, shift = math.frexp(real)
    scaled = significand * (1 << 31)
    multiplier = math.floor(scaled + 0.5)  # round half away from zero; the value is positive
    if multiplier == 1 << 31:
        multiplier //= 2
        shift += 1
    if shift < -31:
        return 0, 0
    if shift > 30:
        return (1 << 31) - 1, 30
    return multiplier, shift


def saturated(value: int, bits: int = 32) -> int:
    """Return `value` saturated to `bits` bits in two's complement."""
    return max(-(1 << (bits - 1)), min(value, (1 << (bits - 1)) - 1))


def doubling_high_mul(a: int, b: int, bits: int = 32) -> int:
    """Return the upper half of ``2 * a * b``, rounded to nearest (ties up) and saturated."""
    product, half = a * b, 1 << (bits - 2)
    total = product + (half if product >= 0 else 1 - half)
    high = total >> (bits - 1) if total >= 0 else -(-total >> (bits - 1))
    return saturated(high, bits)


def divide_by_pot(value: int, exponent: int) -> int:
    """Return ``value / 2**exponent`` rounded to nearest, ties away from zero."""
    mask = (1 << exponent) - 1
    return (value >> exponent) + ((value & mask) > (mask >> 1) + (value < 0))


def multiply_by_quantized_multiplier(value: int, multiplier: int, shift: int) -> int:
    """Return ``value * multiplier * 2**(shift - 31)`` with TFLite's double rounding."""
    high = doubling_high_mul(value << max(shift, 0), multiplier)
    return divide_by_pot(high, max(-shift, 0))


def inverse_root(value: int) -> tuple[int, int]:
    """Return a factor and a shift (GetInvSqrtQuantizedMultiplierExp of TFLite) of ``1 / sqrt(value)``."""
    if value <= 1:
        return INT32_MAX, 0
    down = 11
    while value >= 1 << 29:
        value //= 4
        down += 1
    pairs = (32 - value.bit_length() - 1) // 2 - 1
    down -= pairs
    value <<= 2 * pairs
    given, x = value >> 1, 1 << 28
    half = divide_by_pot(given, 1)
    for _ in range(5):
        cube = saturated(doubling_high_mul(doubling_high_mul(x, x), x) << 6)
        x = saturated((doubling_high_mul((1 << 28) + (1 << 27), x) - doubling_high_mul(half, cube)) << 3)
    root = doubling_high_mul(x, 1518500250)
    return (root << -down, 0) if down < 0 else (root, -down)


def input_radius(integer_bits: int, left_shift: int, total_signed_bits: int = 31) -> int:
    """Return the largest input whose rescaled value fits the format (CalculateInputRadius of TFLite)."""
    largest = ((1 << integer_bits) - 1) * (1 << (total_signed_bits - integer_bits)) / (1 << left_shift)
    return math.floor(largest)


def exp_on_negative_values(value: int, integer_bits: int) -> int:
    """Return exp of a Q`integer_bits` number not above zero, in Q0."""
    if value == 0:
        return INT32_MAX
    fraction_bits = 31 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    reduced = (value & (quarter - 1)) - quarter
    result = _exp_from_minus_quarter(saturated(reduced << integer_bits))
    remainder = reduced - value
    for exponent, factor in EXP_MINUS_POWERS:
        if integer_bits > exponent and remainder & (1 << (fraction_bits + exponent)):
            result = doubling_high_mul(result, factor)
    if integer_bits > 5 and value < -(1 << (fraction_bits + 5)):
        return 0
    return result


def _exp_from_minus_quarter(value: int) -> int:
    """Return exp of a Q0 number in [-1/4, 0)."""
    x = value + (1 << 28)
    x2 = doubling_high_mul(x, x)
    x3 = doubling_high_mul(x2, x)
    x4 = doubling_high_mul(x2, x2)
    tail = doubling_high_mul(divide_by_pot(x4, 2) + x3, THIRD) + x2
    return EXP_MINUS_EIGHTH + doubling_high_mul(EXP_MINUS_EIGHTH, x + divide_by_pot(tail, 1))


def _twice_reciprocal_of_one_plus(value: int) -> int:
    """Return ``2 / (1 + x)`` in Q2 for a Q0 number x in [0, 1]."""
    half_denominator = (value + INT32_MAX + 1) // 2
    x = RECIPROCAL_START + doubling_high_mul(half_denominator, RECIPROCAL_SLOPE)
    for _ in range(3):
        error = (1 << 29) - doubling_high_mul(half_denominator, x)
        x += saturated(doubling_high_mul(x, error) << 2)
    return x


def logistic(value: int, integer_bits: int) -> int:
    """Return ``1 / (1 + exp(-x))`` of a Q`integer_bits` number, in Q0."""
    if value == 0:
        return 1 << 30
    reciprocal = _twice_reciprocal_of_one_plus(exp_on_negative_values(-abs(value), integer_bits))
    positive = saturated(reciprocal << 1)
    return positive if value > 0 else INT32_MAX - positive


def tanh(value: int, integer_bits: int) -> int:
    """Return tanh of a Q`integer_bits` number, in Q0."""
    if value == 0:
        return 0
    # doubling is free: the same bits are read with one more integer bit
    exponential = exp_on_negative_values(-abs(value), integer_bits + 1)
    positive = saturated((_twice_reciprocal_of_one_plus(exponential) - (1 << 29)) << 2)
    return positive if value > 0 else -positive
