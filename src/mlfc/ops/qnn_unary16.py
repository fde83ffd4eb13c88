"""Quantized operators on one element of 16 bits: arithmetic, and tables with linear interpolation.

Each computes what TFLite's reference kernel of the operator computes. A table has a value for each 128th code, moved by
half of the error that interpolation makes between it and the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import UnsupportedError
from mlfc.ops.qnn import rescaled, saturate
from mlfc.ops.qnn_codes import Codes
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Expr

Rule = Callable[[Context, Expr, Codes], Expr]

_LOW, _HIGH = dtypes.limits("int16")
_STEPS, _STEP_BITS = 512, 7
_SIGMOID_STEPS, _PER_UNIT = 256, 24  # the logistic function is tabulated at multiples of 1/24


def _nearest(x: Any) -> Any:
    """Round to nearest, ties away from zero, in the type of the argument."""
    return np.copysign(np.floor(np.abs(x) + type(x)(0.5)), x)


def interpolation_table(
    function: Callable[[Any], Any], kind: type[np.floating[Any]], codes: tuple[float, int, float, int]
) -> npt.NDArray[np.int16]:
    """Return the 513 values between which codes of 16 bits are interpolated.

    `kind`: the type in which the reference computes them; `codes`: scale and zero point of input and result.
    """
    scale, zero, out_scale, out_zero = kind(codes[0]), codes[1], kind(codes[2]), codes[3]
    first, last = scale * kind(_LOW - zero), scale * kind(_HIGH - zero)
    low, high = out_scale * kind(_LOW - out_zero), out_scale * kind(_HIGH - out_zero)
    step = (last - first) / kind(_STEPS)
    to_code = kind(_HIGH - _LOW + 1) / (high - low)
    table = np.zeros(_STEPS + 1, np.int16)
    with np.errstate(all="ignore"):
        for index in range(_STEPS):
            place = first + kind(index) * step
            here = _nearest(function(place) * to_code)
            middle = _nearest(function(place + step / kind(2)) * to_code)
            there = function(first + kind(index + 1) * step) * to_code
            error = _nearest((there + here) / kind(2)) - middle
            table[index] = _limited(here - _nearest(error / kind(2)))
        table[_STEPS] = _limited(_nearest(function(last) * to_code))
    return table


def _limited(value: Any) -> int:
    # infinities meet in steep functions; the reference makes zeros of what is not a number
    return 0 if np.isnan(value) else int(np.clip(value, _LOW, _HIGH))


def interpolated(ctx: Context, code: Expr, table: npt.NDArray[np.int16], label: str = "table") -> Expr:
    """Return what a table says of an int32 that is a code of 16 bits, as an int32."""
    values = ctx.constant(label, table)
    index = (code >> _STEP_BITS) + _STEPS // 2
    here, there = (tb.cast(tb.load(values, [index + more]), "int32") for more in (0, 1))
    slope = tb.cast(tb.cast(there - here, "int16"), "int32")
    half = 1 << (_STEP_BITS - 1)
    moved = here + ((slope * (code & ((1 << _STEP_BITS) - 1)) + half) >> _STEP_BITS)
    return tb.cast(tb.cast(moved, "int16"), "int32")


def _tabulated(function: Callable[[Any, Codes], Any], ctx: Context, code: Expr, codes: Codes) -> Expr:
    facts = (float(codes.in_scale), codes.in_zero, float(codes.out_scale), codes.out_zero)
    table = interpolation_table(lambda x: np.float32(function(x, codes)), np.float32, facts)
    return tb.cast(interpolated(ctx, code, table), "int16")


def _exp(x: Any, _: Codes) -> Any:
    return np.float32(np.exp(np.float64(x)))


def _log(x: Any, codes: Codes) -> Any:
    return np.log(np.float64(x)) if x > 0 else np.float32(_LOW - codes.out_zero) * codes.out_scale


def _rsqrt(x: Any, codes: Codes) -> Any:
    return np.float32(1) / np.sqrt(x) if x > 0 else np.float32(_HIGH) * codes.out_scale


def _gelu(x: Any, codes: Codes) -> Any:
    half, one = np.float32(0.5) * x, np.float32(1)
    if not codes.approximate:
        return half * np.float32(math.erfc(float(x * np.float32(-math.sqrt(0.5)))))
    cube = np.float32(0.044715) * x * x * x
    curve = np.tanh(np.float64(np.float32(math.sqrt(2 / math.pi)) * (x + cube)))
    return half * (one + np.float32(curve))


def sigmoid_table() -> npt.NDArray[np.uint16]:
    """Return the logistic function of multiples of 1/24 in 1/65536, moved by half the error of interpolation."""
    places = np.arange(_SIGMOID_STEPS)

    def real(place: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        return 65536 / (1 + np.exp(-place / _PER_UNIT))

    error = real(places + 0.5) - (real(places) + real(places + 1)) / 2
    table = np.floor(real(places) + error / 2 + 0.5)
    table[-1] = 65535  # where the function has ended
    return table.astype(np.uint16)


def _to_table(code: Expr, codes: Codes, shifts: tuple[int, ...], name: str) -> Expr:
    """Return a code in the unit of the table, 1/(3 * 4096); powers of two above 2**-12 by `shifts` need no rounding."""
    if codes.in_zero or codes.out_zero or float(codes.out_scale) != 2.0**-15:
        raise UnsupportedError(f"{name} of int16 needs zero points of 0 and the output scale 1/32768")
    logarithm = math.log2(float(codes.in_scale))
    exponent = round(logarithm) + 12
    if abs(logarithm - round(logarithm)) < 1e-3 and exponent in shifts:
        return code * (3 << exponent)
    factor, shift = float(codes.in_scale) * 4096.0 * 3.0, 0
    while factor <= _HIGH / 2 and shift <= 30:
        factor, shift = factor * 2, shift + 1
    if factor >= 1 << 16:
        raise UnsupportedError(f"{name} of int16 with the scale {codes.in_scale:g} exceeds 32 bits",
                               next_step="Quantize with a smaller scale")  # fmt: skip
    product = code * int(factor)
    return (product + (1 << (shift - 1))) >> shift if shift else product


def _between(ctx: Context, size: Expr, bits: int) -> Expr:
    """Return the logistic function of a magnitude, times 65536 and 2**bits; only below the end of the table."""
    table = ctx.constant("sigmoid", sigmoid_table())
    place = tb.minimum(size >> bits, _SIGMOID_STEPS - 2)
    here, there = (tb.cast(tb.load(table, [place + more]), "int32") for more in (0, 1))
    return here * (1 << bits) + (size & ((1 << bits) - 1)) * (there - here)


def _sigmoid(ctx: Context, code: Expr, codes: Codes) -> Expr:
    return tb.cast(tabulated_sigmoid(ctx, _to_table(code, codes, (0,), "qnn.sigmoid")), "int16")


def tabulated_sigmoid(ctx: Context, number: Expr) -> Expr:
    """Return the logistic function of a number in units of 1/(3 * 4096), in units of 2**-15."""
    x = ctx.stmts.let("x", number)
    size = ctx.stmts.let("size", tb.maximum(tb.select(tb.binary("lt", x, 0), 0 - x, x), 0))
    is_far = tb.binary("ge", size >> 9, _SIGMOID_STEPS - 1)
    positive = ctx.stmts.let("positive", tb.select(is_far, tb.const(0x7FFF << 10), _between(ctx, size, 9)))
    mirrored = tb.const((1 << 25) + (1 << 9) - 1) - positive
    return tb.select(tb.binary("ge", x, 0), positive + (1 << 9), mirrored) >> 10


def _tanh(ctx: Context, code: Expr, codes: Codes) -> Expr:
    return tb.cast(tabulated_tanh(ctx, _to_table(code, codes, (0, 1), "qnn.tanh")), "int16")


def tabulated_tanh(ctx: Context, number: Expr) -> Expr:
    """Return the hyperbolic tangent of a number in units of 1/(3 * 4096), in units of 2**-15."""
    x = ctx.stmts.let("x", number)
    size = ctx.stmts.let("size", tb.maximum(tb.select(tb.binary("lt", x, 0), 0 - x, x), 0))
    is_far = tb.binary("ge", size >> 8, _SIGMOID_STEPS - 1)
    doubled = ctx.stmts.let("doubled", tb.select(is_far, tb.const(0xFFFF << 8), _between(ctx, size, 8)))
    middle, half = 1 << 23, 1 << 7
    mirrored = tb.const(middle + half - 1) - doubled
    return tb.select(tb.binary("ge", x, 0), doubled - (middle - half), mirrored) >> 8


def _leaky_relu(_: Context, code: Expr, codes: Codes) -> Expr:
    centred = code - codes.in_zero
    # the reference multiplies and divides the scales in float32
    above = rescaled(centred, float(codes.in_scale / codes.out_scale))
    factor = float(codes.in_scale * np.float32(codes.alpha) / codes.out_scale)
    below = rescaled(centred, abs(factor))
    below = below if factor >= 0 else 0 - below
    return saturate(tb.select(tb.binary("ge", centred, 0), above, below) + codes.out_zero, "int16")


def _abs(_: Context, code: Expr, codes: Codes) -> Expr:
    centred = code - codes.in_zero
    size = tb.select(tb.binary("lt", centred, 0), 0 - centred, centred)
    ratio = float(np.float32(codes.in_scale / codes.out_scale))
    return saturate((size if codes.in_scale == codes.out_scale else rescaled(size, ratio)) + codes.out_zero, "int16")


RULES: dict[str, Rule] = {
    "qnn.sigmoid": _sigmoid, "qnn.tanh": _tanh, "qnn.leaky_relu": _leaky_relu, "qnn.abs": _abs,
    **{f"qnn.{name}": partial(_tabulated, function)
       for name, function in (("exp", _exp), ("log", _log), ("rsqrt", _rsqrt), ("gelu", _gelu))},
}  # fmt: skip
"""By operator, ``(context, code as an int32, codes) -> result as an int16``."""
