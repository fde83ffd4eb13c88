"""Reference gemmlowp functions on int16 in exact arithmetic, for `tir.intrinsics.fixed_point16`."""

from __future__ import annotations

from mlfc.support.fixed_point import (
    EXP_MINUS_EIGHTH,
    EXP_MINUS_POWERS,
    RECIPROCAL_SLOPE,
    RECIPROCAL_START,
    THIRD,
    divide_by_pot,
    doubling_high_mul,
    saturated,
)

LARGEST = (1 << 15) - 1


def _narrow(constant: int) -> int:
    return (constant + (1 << 15)) >> 16


def _wrapped(value: int) -> int:
    return (value + (1 << 15)) % (1 << 16) - (1 << 15)


def _times(a: int, b: int) -> int:
    return doubling_high_mul(a, b, 16)


def exp_below_zero(value: int, bits: int) -> int:
    if value == 0:
        return LARGEST
    fraction = 15 - bits
    quarter = 1 << (fraction - 2)
    reduced = _wrapped((value & (quarter - 1)) - quarter)
    x = _wrapped(saturated(reduced << bits, 16) + (1 << 12))
    square = _times(x, x)
    fourth = divide_by_pot(_times(square, square), 2)
    tail = _wrapped(_times(_wrapped(fourth + _times(square, x)), _narrow(THIRD)) + square)
    start = _narrow(EXP_MINUS_EIGHTH)
    result = saturated(start + _times(start, _wrapped(x + divide_by_pot(tail, 1))), 16)
    rest = _wrapped(reduced - value)
    for exponent, factor in EXP_MINUS_POWERS:
        if bits > exponent and rest & (1 << (fraction + exponent)):
            result = _times(result, _narrow(factor))
    return 0 if bits > 5 and value < -(1 << (20 - bits)) else result


def twice_reciprocal_of_one_plus(value: int) -> int:
    half = (value + LARGEST + 1) // 2
    x = _narrow(RECIPROCAL_START) + _times(half, _narrow(RECIPROCAL_SLOPE))
    for _ in range(3):
        error = _wrapped((1 << 13) - _times(half, x))
        x = _wrapped(x + saturated(_times(x, error) << 2, 16))
    return x


def logistic(value: int, bits: int) -> int:
    if value == 0:
        return 1 << 14
    positive = saturated(twice_reciprocal_of_one_plus(exp_below_zero(-abs(value), bits)) << 1, 16)
    return positive if value > 0 else LARGEST - positive


def tanh(value: int, bits: int) -> int:
    if value == 0:
        return 0
    reciprocal = twice_reciprocal_of_one_plus(exp_below_zero(-abs(value), bits + 1))
    positive = saturated((reciprocal - (1 << 13)) << 2, 16)
    return positive if value > 0 else -positive
