"""exp, tanh and erf of float32 in a few additions and multiplications, without branches.

Calls of a C library's functions keep compilers from vectorizing the loops around them. These functions are
what compiled code computes instead, operation by operation; the coefficients were fitted by reweighted least
squares to the smallest largest error. Bounds hold with and without fused multiply-add, over all floats, NaN and
infinities included; results below 2**-126 are rounded as any other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

EXP_ULP = 1.1
TANH_ULP = 2.5
ERF_ULP = 2.0
"""Largest errors in units of the last place of the result."""

LOG2_E = 1.44269502
# The first part has so few bits that its product with any exponent is exact; the second part is the rest.
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
# Adding 3 * 2**22 leaves a float's nearest integer in its low bits.
ROUNDER = 12582912.0
ROUNDER_BITS = 0x4B400000
EXP_LOWEST, EXP_HIGHEST = -104.0, 89.0
EXPM1_TAIL = (0.5, 0.16666518, 0.041666206, 0.008368954, 0.00139506)
"""(expm1(r) - r) / r**2 for abs(r) <= ln(2) / 2, by rising powers of r; within 4e-9 / r**2."""

TANH_HIGHEST = 10.0
ERF_CUT, ERF_HIGHEST = 1.0, 4.0
ERF_NEAR = (
    0.12837910652, -0.3761262595653534, 0.11283600330352783, -0.026854444295167923, 0.005189535208046436,
    -0.000802083988673985, 7.889115659054369e-05,
)  # fmt: skip
"""erf(x) / x - 1 by rising powers of x**2, up to ERF_CUT; within 2e-9."""
ERF_FAR = (
    0.00017748723621480167, 1.1277495622634888, 0.6370596885681152, 0.10403741896152496, -0.022277116775512695,
    0.0030556158162653446, -0.00019718262774404138,
)  # fmt: skip
"""-log(erfc(x)) by rising powers of x, from ERF_CUT to ERF_HIGHEST; within 2e-9 / erfc(x)."""


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    value: Array = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + np.float32(coefficient)
    return value


def _reduced(x: Array) -> tuple[Array, Array]:
    """Return ``n`` (int32) and ``expm1(r)``, where ``x = n * ln(2) + r``."""
    rounded = x * np.float32(LOG2_E) + np.float32(ROUNDER)
    count = (rounded.view(np.uint32) - np.uint32(ROUNDER_BITS)).view(np.int32)
    number = count.astype(np.float32)
    rest = (x - number * np.float32(LN2_HIGH)) - number * np.float32(LN2_LOW)
    return count, rest + rest * rest * _polynomial(EXPM1_TAIL, rest)


def _power_of_two(exponent: Array) -> Array:
    return ((exponent.view(np.uint32) + np.uint32(127)) << np.uint32(23)).view(np.float32)


def _as_floats(x: Array) -> Array:
    return np.atleast_1d(np.ascontiguousarray(x, np.float32))


def exp(x: Array) -> Array:
    """Return e**x, of float32, within EXP_ULP."""
    limited = _as_floats(x)
    limited = np.where(limited < np.float32(EXP_LOWEST), np.float32(EXP_LOWEST), limited)
    limited = np.where(limited > np.float32(EXP_HIGHEST), np.float32(EXP_HIGHEST), limited)
    count, part = _reduced(limited)
    # in two steps: neither factor leaves the range of normal floats, where the power itself may
    half = count >> 1
    result = (np.float32(1) + part) * _power_of_two(half) * _power_of_two(count - half)
    return result.reshape(np.shape(x))


def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent of float32 within TANH_ULP, from ``expm1(2 * abs(x))``."""
    values = _as_floats(x)
    size = np.abs(values)
    size = np.where(size > np.float32(TANH_HIGHEST), np.float32(TANH_HIGHEST), size)
    count, part = _reduced(size + size)
    power = _power_of_two(count)
    above = power * part + (power - np.float32(1))
    return np.copysign(above / (above + np.float32(2)), values).reshape(np.shape(x))


def erf(x: Array) -> Array:
    """Return the Gauss error function of float32 within ERF_ULP."""
    values = _as_floats(x)
    size = np.abs(values)
    size = np.where(size > np.float32(ERF_HIGHEST), np.float32(ERF_HIGHEST), size)
    near = size + size * _polynomial(ERF_NEAR, size * size)
    far = np.float32(1) - exp(-_polynomial(ERF_FAR, size))
    result = np.where(size < np.float32(ERF_CUT), near, far)
    return np.copysign(result, values).reshape(np.shape(x))
