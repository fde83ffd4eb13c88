"""Quantized operators on one element: a table of 256 results made at compile time.

Each operator is a function on codes ``(code, scales) -> code`` in Python integers; the generated code
looks the result up. Where the kernel that it follows works in fixed point, so does the function. `qnn_unary16` has
those of 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mlfc.ops import qnn_in_tvm, qnn_unary16
from mlfc.ops.qnn import infer_of_bytes, infer_of_codes, number
from mlfc.ops.qnn_codes import Codes
from mlfc.ops.rules import Element, declare
from mlfc.relay.op import Attr, Kind
from mlfc.support import dtypes, fixed_point
from mlfc.support.fixed_point import multiply_by_quantized_multiplier, quantize_multiplier
from mlfc.tir import builder as tb
from mlfc.tir.context import Tensor
from mlfc.tir.ir import Expr

Rule = Callable[[int, Codes], int]


def _of_real(function: Callable[[float], float]) -> Rule:
    """Return the rule that takes the code to its number, applies `function` and takes the result back."""
    return lambda code, codes: codes.code(function(float(codes.real(code))))


def _fixed_point_input(code: int, codes: Codes) -> tuple[int, int]:
    """Return the centred input in Q4, and -1, 0 or 1: whether it lies below, in or above that format."""
    real = float(codes.in_scale) * (1 << (31 - 4))
    multiplier, shift = quantize_multiplier(real)
    centred = code - codes.in_zero
    radius = fixed_point.input_radius(4, shift)
    if abs(centred) >= radius:
        return 0, 1 if centred > 0 else -1
    return fixed_point.multiply_by_quantized_multiplier(centred, multiplier, shift), 0


def _sigmoid(code: int, codes: Codes) -> int:
    if not codes.fixed_point:
        # at half a code, which scales that are powers of two meet, the float32 steps decide
        with np.errstate(over="ignore"):
            one, decay = np.float32(1), np.exp(-np.float64(codes.real(code))).astype(np.float32)
        return codes.code(float(one / (one + decay)))
    low, high = dtypes.limits(codes.dtype)
    value, side = _fixed_point_input(code, codes)
    if side:
        return high if side > 0 else low
    return max(low, min(fixed_point.divide_by_pot(fixed_point.logistic(value, 4), 23) + low, high))


def _float_tanh(x: np.float32) -> np.float32:
    """Return tanh as C libraries compute it in float32, from expm1."""
    one, two, size = np.float32(1), np.float32(2), np.float32(abs(x))
    if size < 1:
        decay = np.float32(math.expm1(float(-two * size)))
        result = -decay / (decay + two)
    else:
        growth = np.float32(math.expm1(float(min(two * size, np.float32(88)))))
        result = one - two / (growth + two)
    return np.float32(math.copysign(result, x))


def _tanh(code: int, codes: Codes) -> int:
    if not codes.fixed_point:
        return codes.code(float(_float_tanh(codes.real(code))))
    low, high = dtypes.limits(codes.dtype)
    value, side = _fixed_point_input(code, codes)
    if side:
        return high if side > 0 else low
    middle = (low + high + 1) // 2
    return max(low, min(fixed_point.divide_by_pot(fixed_point.tanh(value, 4), 24) + middle, high))


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
    product = _truncating_doubling_high_mul(gate, unshifted)
    return codes.saturated(_divide_or_shift(product, -out_shift) + codes.out_zero)


def _int16_multiplier(real: float) -> tuple[int, int]:
    multiplier, shift = quantize_multiplier(real)
    return fixed_point.saturated((multiplier + (1 << 15)) >> 16, 16), shift


def _truncating_doubling_high_mul(a: int, b: int) -> int:
    product = a * b
    high = product >> 15 if product >= 0 else -(-product >> 15)
    return fixed_point.saturated(high, 16)


def _divide_or_shift(value: int, exponent: int) -> int:
    if exponent < 0:
        return fixed_point.saturated(value << -exponent, 16)
    return fixed_point.divide_by_pot(value, exponent)


def _leaky_relu(code: int, codes: Codes) -> int:
    centred = code - codes.in_zero
    factor = float(codes.in_scale / codes.out_scale)  # in float32, as the reference has it
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


_ROOT_BITS = 20  # of the reciprocal root, behind the point


def _rsqrt(code: int, codes: Codes) -> int:
    if not codes.fixed_point:
        return _of_real(lambda x: math.inf if x <= 0 else 1 / math.sqrt(x))(code, codes)
    centred = code - codes.in_zero
    if centred <= 0:
        return dtypes.limits(codes.dtype)[1]
    factor, shift = fixed_point.inverse_root(centred)
    root = multiply_by_quantized_multiplier(1, factor, shift + _ROOT_BITS)
    # the reference computes the root in float32, and divides in float64
    real = 1.0 / float(np.float32(np.sqrt(np.float32(codes.in_scale))) * np.float32(codes.out_scale))
    multiplier, exponent = quantize_multiplier(real)
    return codes.saturated(multiply_by_quantized_multiplier(root, multiplier, exponent - _ROOT_BITS) + codes.out_zero)


def _add(name: str, rule: Rule, doc: str, attrs: tuple[Attr, ...] = (), in_tvm: qnn_in_tvm.InTvm | None = None) -> None:
    def element(of: Element, data: Tensor, *pairs: Tensor) -> Expr:
        in_scale, in_zero, out_scale, out_zero = (number(name, tensor) for tensor in pairs)
        dtype = of.out.dtype
        codes = Codes(np.float32(in_scale), int(in_zero), np.float32(out_scale), int(out_zero), dtype, **of.attrs)
        if dtype == "int16":
            return qnn_unary16.RULES[name](of.ctx, tb.cast(data.read(of.at), "int32"), codes)
        low, high = dtypes.limits(dtype)
        results = [rule(code, codes) for code in range(low, high + 1)]
        table = of.ctx.constant("table", np.array(results, dtypes.to_numpy(dtype)))
        return tb.load(table, [tb.cast(data.read(of.at), "int32") - low])

    infer = infer_of_codes if name in qnn_unary16.RULES else infer_of_bytes
    declare(name, 5, infer, Kind.ELEMENTWISE, attrs, element, in_tvm=in_tvm, expensive=True,
            contract="bit-exact to TFLite's reference kernel where it has one", doc=doc)  # fmt: skip


_ALPHA, _APPROXIMATE = Attr("alpha", 0.25, is_float=True), Attr("approximate", False)
_FIXED_POINT = Attr("fixed_point", False, in_tvm={})
_add(
    "qnn.sigmoid", _sigmoid,
    "Logistic function; with `fixed_point` in gemmlowp's arithmetic, for scale 1/256 and the lowest zero point.",
    (_FIXED_POINT,),
)  # fmt: skip
_add(
    "qnn.tanh", _tanh,
    "Hyperbolic tangent; with `fixed_point` in gemmlowp's arithmetic, for scale 1/128 and the middle zero point.",
    (_FIXED_POINT,),
)  # fmt: skip
_add("qnn.hardswish", _hardswish, "x * relu6(x + 3) / 6.")
_add("qnn.leaky_relu", _leaky_relu, "x where it is not negative, else alpha * x.", (_ALPHA,))
_add("qnn.abs", _abs, "Magnitude.")
_add("qnn.exp", _of_real(lambda x: math.exp(min(x, 88.0))), "Exponential.")
_add("qnn.log", _of_real(lambda x: math.log(x) if x > 0 else -math.inf), "Natural logarithm.")
_add("qnn.sqrt", _of_real(lambda x: math.sqrt(x) if x >= 0 else math.nan), "Square root.")
_add("qnn.rsqrt", _rsqrt, "Reciprocal of the square root; with `fixed_point` in TFLite's arithmetic.", (_FIXED_POINT,))
_add("qnn.erf", _of_real(math.erf), "Error function.")
_add(
    "qnn.elu", _of_real(lambda x: math.expm1(x) if x < 0 else x), "x where it is not negative, else exp(x) - 1.",
    in_tvm=qnn_in_tvm.in_reals(qnn_in_tvm.elu),
)  # fmt: skip
_add(
    "qnn.gelu", _gelu, "x * (1 + erf(x / sqrt(2))) / 2, or with `approximate` the tanh form of it.", (_APPROXIMATE,),
    in_tvm=qnn_in_tvm.in_reals(qnn_in_tvm.gelu),
)  # fmt: skip
