"""Quantized unary operators: 8-bit codes use a table of 256 results, 16-bit codes arithmetic or interpolation.

Each computes the same result as TFLite's reference kernel; in 8 bits it is a function on codes in Python integers,
whose results are tabulated at compile time. In 16 bits a table has a value for each 128th code, moved by half of the
error of the interpolation between it and the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import UnsupportedError
from mlfc.ops import qnn_in_tvm
from mlfc.ops.qnn import infer_of_bytes, infer_of_codes, rescaled, saturate, scales_and_zeros
from mlfc.ops.rules import Element, declare
from mlfc.relay.op import Attr, Kind
from mlfc.support import dtypes, fixed_point
from mlfc.support.fixed_point import multiply_by_quantized_multiplier, quantize_multiplier
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Tensor
from mlfc.tir.ir import Expr

_LOW, _HIGH = dtypes.limits("int16")
_STEPS, _STEP_BITS = 512, 7
_SIGMOID_STEPS, _PER_UNIT = 256, 24  # the logistic function is tabulated at multiples of 1/24
_ROOT_BITS = 20  # fraction bits of the reciprocal root


@dataclass(frozen=True)
class Codes:
    """Quantization of input and output; scales are float32 values."""

    in_scale: np.float32
    in_zero: int
    out_scale: np.float32
    out_zero: int
    dtype: str
    alpha: float = 0.0
    approximate: bool = False
    fixed_point: bool = False

    def real(self, code: int) -> np.float32:
        """Dequantize an input code."""
        return np.float32(self.in_scale * np.float32(code - self.in_zero))

    def code(self, real: float) -> int:
        """Return the output code nearest to a real number, ties away from zero."""
        with np.errstate(over="ignore"):
            scaled = np.float32(real) * (np.float32(1) / self.out_scale)
        if math.isnan(scaled):
            return self.saturated(self.out_zero)
        low, high = dtypes.limits(self.dtype)
        nearest = math.copysign(math.floor(abs(float(np.clip(scaled, -1e6, 1e6))) + 0.5), scaled)
        return max(low, min(int(nearest) + self.out_zero, high))

    def saturated(self, value: int) -> int:
        """Clamp a code to the range of the dtype."""
        low, high = dtypes.limits(self.dtype)
        return max(low, min(value, high))


Rule = Callable[[int, Codes], int]
Rule16 = Callable[[Context, Expr, Codes], Expr]


def _of_real(function: Callable[[float], float]) -> Rule:
    """Return the rule that dequantizes a code, applies `function` and quantizes the result."""
    return lambda code, codes: codes.code(function(float(codes.real(code))))


def _in_fixed_point(code: int, codes: Codes, function: Callable[[int, int], int], shift: int, offset: int) -> int:
    """Return the result of a function of Q4 numbers; beyond that format it is the lowest or highest code."""
    multiplier, exponent = quantize_multiplier(float(codes.in_scale) * (1 << (31 - 4)))
    centred = code - codes.in_zero
    if abs(centred) >= fixed_point.input_radius(4, exponent):
        return dtypes.limits(codes.dtype)[centred > 0]
    value = multiply_by_quantized_multiplier(centred, multiplier, exponent)
    return codes.saturated(fixed_point.divide_by_pot(function(value, 4), shift) + offset)


def _sigmoid(code: int, codes: Codes) -> int:
    if codes.fixed_point:
        return _in_fixed_point(code, codes, fixed_point.logistic, 23, dtypes.limits(codes.dtype)[0])
    # at half codes, which occur with scales that are powers of two, float32 rounding determines the result
    with np.errstate(over="ignore"):
        one, decay = np.float32(1), np.exp(-np.float64(codes.real(code))).astype(np.float32)
    return codes.code(float(one / (one + decay)))


def _tanh(code: int, codes: Codes) -> int:
    if codes.fixed_point:
        return _in_fixed_point(code, codes, fixed_point.tanh, 24, sum(dtypes.limits(codes.dtype), 1) // 2)
    # C libraries compute it in float32, from expm1
    x = codes.real(code)
    one, two, size = np.float32(1), np.float32(2), np.float32(abs(x))
    if size < 1:
        decay = np.float32(math.expm1(float(-two * size)))
        result = -decay / (decay + two)
    else:
        growth = np.float32(math.expm1(float(min(two * size, np.float32(88)))))
        result = one - two / (growth + two)
    return codes.code(math.copysign(result, x))


def _hardswish(code: int, codes: Codes) -> int:
    """Follow TFLite's HardSwish in int16: ``x * relu6(x + 3) / 6`` with the inner factor as a Q0 number."""
    fine_scale = np.float32(1.0 / 128.0) * codes.in_scale
    to_out, out_shift = _int16_multiplier(float(np.float32(fine_scale / codes.out_scale)))
    to_relu, relu_shift = _int16_multiplier(float(np.float32(fine_scale / np.float32(3.0 / 32768.0))))
    fine = (code - codes.in_zero) << 7
    unshifted = fixed_point.doubling_high_mul(fine, to_out, 16)
    gate = fine
    if relu_shift > 0:
        gate = fixed_point.saturated(gate << (relu_shift - 1), 16)
    gate = fixed_point.doubling_high_mul(gate, to_relu, 16)
    if relu_shift > 0:
        gate = fixed_point.saturated(gate << 1, 16)
    elif relu_shift < 0:
        gate = fixed_point.divide_by_pot(gate, -relu_shift)
    gate = (gate + (1 << 15)) >> 1
    product = gate * unshifted
    high = fixed_point.saturated(product >> 15 if product >= 0 else -(-product >> 15), 16)  # truncated
    if out_shift > 0:
        return codes.saturated(fixed_point.saturated(high << out_shift, 16) + codes.out_zero)
    return codes.saturated(fixed_point.divide_by_pot(high, -out_shift) + codes.out_zero)


def _int16_multiplier(real: float) -> tuple[int, int]:
    multiplier, shift = quantize_multiplier(real)
    return fixed_point.saturated((multiplier + (1 << 15)) >> 16, 16), shift


def _leaky_relu(code: int, codes: Codes) -> int:
    centred = code - codes.in_zero
    factor = float(codes.in_scale / codes.out_scale)  # in float32, as in the reference
    if centred < 0:
        factor = float(codes.in_scale * np.float32(codes.alpha) / codes.out_scale)
    magnitude = quantize_multiplier(abs(factor))
    scaled = multiply_by_quantized_multiplier(centred if factor >= 0 else -centred, *magnitude)
    return codes.saturated(scaled + codes.out_zero)


def _abs(code: int, codes: Codes) -> int:
    magnitude = abs(code - codes.in_zero)
    if codes.in_scale != codes.out_scale:
        multiplier, shift = quantize_multiplier(float(np.float32(codes.in_scale / codes.out_scale)))
        magnitude = multiply_by_quantized_multiplier(magnitude, multiplier, shift)
    return codes.saturated(magnitude + codes.out_zero)


def _gelu(code: int, codes: Codes) -> int:
    x = float(codes.real(code))
    if codes.approximate:
        curve = math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    else:
        curve = math.erf(x * math.sqrt(0.5))
    return codes.code(0.5 * x * (1 + curve))


def _rsqrt(code: int, codes: Codes) -> int:
    if not codes.fixed_point:
        return _of_real(lambda x: math.inf if x <= 0 else 1 / math.sqrt(x))(code, codes)
    centred = code - codes.in_zero
    if centred <= 0:
        return dtypes.limits(codes.dtype)[1]
    factor, shift = fixed_point.inverse_root(centred)
    root = multiply_by_quantized_multiplier(1, factor, shift + _ROOT_BITS)
    # the reference computes the root in float32 and divides in float64
    real = 1.0 / float(np.float32(np.sqrt(np.float32(codes.in_scale))) * np.float32(codes.out_scale))
    multiplier, exponent = quantize_multiplier(real)
    return codes.saturated(multiply_by_quantized_multiplier(root, multiplier, exponent - _ROOT_BITS) + codes.out_zero)


def _nearest(x: Any) -> Any:
    """Round to nearest, ties away from zero, in the dtype of the argument."""
    return np.copysign(np.floor(np.abs(x) + type(x)(0.5)), x)


def interpolation_table(
    function: Callable[[Any], Any], kind: type[np.floating[Any]], codes: tuple[float, int, float, int]
) -> npt.NDArray[np.int16]:
    """Return the 513 table values for the interpolation of 16-bit codes.

    `kind`: the type in which the reference computes them; `codes`: scale and zero point of input and result.
    """
    scale, zero, out_scale, out_zero = kind(codes[0]), codes[1], kind(codes[2]), codes[3]
    first, last = scale * kind(_LOW - zero), scale * kind(_HIGH - zero)
    low, high = out_scale * kind(_LOW - out_zero), out_scale * kind(_HIGH - out_zero)
    step = (last - first) / kind(_STEPS)
    to_code = kind(_HIGH - _LOW + 1) / (high - low)
    table = np.zeros(_STEPS + 1, kind)
    with np.errstate(all="ignore"):
        for index in range(_STEPS):
            place = first + kind(index) * step
            here = _nearest(function(place) * to_code)
            middle = _nearest(function(place + step / kind(2)) * to_code)
            there = function(first + kind(index + 1) * step) * to_code
            error = _nearest((there + here) / kind(2)) - middle
            table[index] = here - _nearest(error / kind(2))
        table[_STEPS] = _nearest(function(last) * to_code)
    # steep functions can yield inf - inf; the reference replaces NaN by zero
    return np.asarray(np.nan_to_num(table.clip(_LOW, _HIGH)), np.int16)


def interpolated(ctx: Context, code: Expr, table: npt.NDArray[np.int16], label: str = "table") -> Expr:
    """Interpolate the table at a 16-bit code in an int32, as an int32."""
    values = ctx.constant(label, table)
    index = (code >> _STEP_BITS) + _STEPS // 2
    here, there = (tb.cast(tb.load(values, [index + more]), "int32") for more in (0, 1))
    slope = tb.cast(tb.cast(there - here, "int16"), "int32")
    half = 1 << (_STEP_BITS - 1)
    moved = here + ((slope * (code & ((1 << _STEP_BITS) - 1)) + half) >> _STEP_BITS)
    return tb.cast(tb.cast(moved, "int16"), "int32")


def _gelu16(x: Any, codes: Codes) -> Any:
    half, one = np.float32(0.5) * x, np.float32(1)
    if not codes.approximate:
        return half * np.float32(math.erfc(float(x * np.float32(-math.sqrt(0.5)))))
    cube = np.float32(0.044715) * x * x * x
    curve = np.tanh(np.float64(np.float32(math.sqrt(2 / math.pi)) * (x + cube)))
    return half * (one + np.float32(curve))


def sigmoid_table() -> npt.NDArray[np.uint16]:
    """Return the logistic function of multiples of 1/24 in 1/65536, moved by half the interpolation error."""
    places = np.arange(_SIGMOID_STEPS)

    def real(place: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        return 65536 / (1 + np.exp(-place / _PER_UNIT))

    error = real(places + 0.5) - (real(places) + real(places + 1)) / 2
    table = np.floor(real(places) + error / 2 + 0.5)
    table[-1] = 65535  # where the function saturates
    return table.astype(np.uint16)


def _to_table(code: Expr, codes: Codes, shifts: tuple[int, ...], name: str) -> Expr:
    """Convert a code to units of 1/(3 * 4096), as in the table; scales 2**(e - 12), e in `shifts`, are exact."""
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


def _tabulated_size(ctx: Context, number: Expr, name: str, bits: int, end: int) -> tuple[Expr, Expr]:
    """Return the sign test of a number, and the logistic function of its magnitude times 65536 and 2**bits."""
    x = ctx.stmts.let("x", number)
    size = ctx.stmts.let("size", tb.maximum(tb.select(tb.binary("lt", x, 0), 0 - x, x), 0))
    is_far = tb.binary("ge", size >> bits, _SIGMOID_STEPS - 1)
    table = ctx.constant("sigmoid", sigmoid_table())
    place = tb.minimum(size >> bits, _SIGMOID_STEPS - 2)
    here, there = (tb.cast(tb.load(table, [place + more]), "int32") for more in (0, 1))
    between = here * (1 << bits) + (size & ((1 << bits) - 1)) * (there - here)
    value = ctx.stmts.let(name, tb.select(is_far, tb.const(end), between))
    return tb.binary("ge", x, 0), value


def tabulated_sigmoid(ctx: Context, number: Expr) -> Expr:
    """Return the logistic function as a multiple of 2**-15; `number` is a multiple of 1 / (3 * 4096)."""
    is_positive, positive = _tabulated_size(ctx, number, "positive", 9, 0x7FFF << 10)
    mirrored = tb.const((1 << 25) + (1 << 9) - 1) - positive
    return tb.select(is_positive, positive + (1 << 9), mirrored) >> 10


def tabulated_tanh(ctx: Context, number: Expr) -> Expr:
    """Return the hyperbolic tangent of a number in units of 1/(3 * 4096), in units of 2**-15."""
    is_positive, doubled = _tabulated_size(ctx, number, "doubled", 8, 0xFFFF << 8)
    middle, half = 1 << 23, 1 << 7
    return tb.select(is_positive, doubled - (middle - half), tb.const(middle + half - 1) - doubled) >> 8


def _leaky_relu16(_: Context, code: Expr, codes: Codes) -> Expr:
    centred = code - codes.in_zero
    # the reference multiplies and divides the scales in float32
    above = rescaled(centred, float(codes.in_scale / codes.out_scale))
    factor = float(codes.in_scale * np.float32(codes.alpha) / codes.out_scale)
    below = rescaled(centred, abs(factor))
    below = below if factor >= 0 else 0 - below
    return saturate(tb.select(tb.binary("ge", centred, 0), above, below) + codes.out_zero, "int16")


def _abs16(_: Context, code: Expr, codes: Codes) -> Expr:
    centred = code - codes.in_zero
    size = tb.select(tb.binary("lt", centred, 0), 0 - centred, centred)
    ratio = float(np.float32(codes.in_scale / codes.out_scale))
    return saturate((size if codes.in_scale == codes.out_scale else rescaled(size, ratio)) + codes.out_zero, "int16")


def _add(
    name: str, rule: Rule, doc: str, attrs: tuple[Attr, ...] = (), rule16: Rule16 | None = None, **rest: Any
) -> None:
    def element(of: Element, data: Tensor, *pairs: Tensor) -> Expr:
        in_scale, in_zero, out_scale, out_zero = scales_and_zeros(name, (data, *pairs))
        dtype = of.out.dtype
        codes = Codes(np.float32(in_scale), in_zero, np.float32(out_scale), out_zero, dtype, **of.attrs)
        code = tb.cast(data.read(of.at), "int32")
        if rule16 is not None and dtype == "int16":
            return rule16(of.ctx, code, codes)
        low, high = dtypes.limits(dtype)
        results = [rule(code, codes) for code in range(low, high + 1)]
        return tb.load(of.ctx.constant("table", np.array(results, dtypes.to_numpy(dtype))), [code - low])

    infer = infer_of_codes if rule16 is not None else infer_of_bytes
    declare(name, 5, infer, Kind.ELEMENTWISE, attrs, element, expensive=True, doc=doc,
            contract="bit-exact to TFLite's reference kernel where it has one", **rest)  # fmt: skip


def _interpolated_rule(function: Callable[[Any, Codes], Any]) -> Rule16:
    def rule(ctx: Context, code: Expr, codes: Codes) -> Expr:
        facts = (float(codes.in_scale), codes.in_zero, float(codes.out_scale), codes.out_zero)
        table = interpolation_table(lambda x: np.float32(function(x, codes)), np.float32, facts)
        return tb.cast(interpolated(ctx, code, table), "int16")

    return rule


def _by_sigmoid(function: Callable[[Context, Expr], Expr], shifts: tuple[int, ...], name: str) -> Rule16:
    return lambda ctx, code, codes: tb.cast(function(ctx, _to_table(code, codes, shifts, name)), "int16")


_FIXED_POINT = (Attr("fixed_point", False, in_tvm={}),)
_add("qnn.sigmoid", _sigmoid,
     "Logistic function; with `fixed_point` in gemmlowp's arithmetic, for scale 1/256 and the lowest zero point.",
     _FIXED_POINT, _by_sigmoid(tabulated_sigmoid, (0,), "qnn.sigmoid"))  # fmt: skip
_add("qnn.tanh", _tanh,
     "Hyperbolic tangent; with `fixed_point` in gemmlowp's arithmetic, for scale 1/128 and the middle zero point.",
     _FIXED_POINT, _by_sigmoid(tabulated_tanh, (0, 1), "qnn.tanh"))  # fmt: skip
_add("qnn.hardswish", _hardswish, "x * relu6(x + 3) / 6.")
_add("qnn.leaky_relu", _leaky_relu, "x where it is not negative, else alpha * x.",
     (Attr("alpha", 0.25, is_float=True),), _leaky_relu16)  # fmt: skip
_add("qnn.abs", _abs, "Magnitude.", (), _abs16)
_add("qnn.exp", _of_real(lambda x: math.exp(min(x, 88.0))), "Exponential.", (),
     _interpolated_rule(lambda x, _: np.exp(np.float64(x))))  # fmt: skip
_add("qnn.log", _of_real(lambda x: math.log(x) if x > 0 else -math.inf), "Natural logarithm.", (),
     _interpolated_rule(lambda x, codes: np.log(np.float64(x)) if x > 0
                        else np.float32(_LOW - codes.out_zero) * codes.out_scale))  # fmt: skip
_add("qnn.sqrt", _of_real(lambda x: math.sqrt(x) if x >= 0 else math.nan), "Square root.")
_add("qnn.rsqrt", _rsqrt, "Reciprocal of the square root; with `fixed_point` in TFLite's arithmetic.", _FIXED_POINT,
     _interpolated_rule(lambda x, codes: np.float32(1) / np.sqrt(x) if x > 0
                        else np.float32(_HIGH) * codes.out_scale))  # fmt: skip
_add("qnn.erf", _of_real(math.erf), "Error function.")
_add("qnn.elu", _of_real(lambda x: math.expm1(x) if x < 0 else x), "x where it is not negative, else exp(x) - 1.",
     in_tvm=qnn_in_tvm.in_reals(qnn_in_tvm.elu))  # fmt: skip
_add("qnn.gelu", _gelu, "x * (1 + erf(x / sqrt(2))) / 2, or with `approximate` the tanh form of it.",
     (Attr("approximate", False),), _interpolated_rule(_gelu16),
     in_tvm=qnn_in_tvm.in_reals(qnn_in_tvm.gelu))  # fmt: skip
