"""Quantized operators over rows in fixed point: ``qnn.log_softmax``, ``qnn.l2_normalize``, and the norm in an LSTM.

Each matches TFLite's reference kernel bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlfc.errors import UnsupportedError
from mlfc.kernels.folding import serial_loops
from mlfc.ops import qnn_in_tvm
from mlfc.ops.qnn import infer_of_bytes, saturate, scales_and_zeros
from mlfc.ops.qnn_reduce import exponentials
from mlfc.ops.rules import declare
from mlfc.relay.ir import Attrs, call
from mlfc.relay.op import Kind
from mlfc.support import dtypes
from mlfc.support.dims import bounds
from mlfc.support.fixed_point import INT32_MAX, INT32_MIN, doubling_high_mul, input_radius, quantize_multiplier
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.intrinsics import fixed_point
from mlfc.tir.intrinsics.fixed_point import clz32, requantize_double, rounding_divide_by_pot, rounding_doubling_high_mul
from mlfc.tir.ir import Buffer, Expr

# integer bits of differences from the largest input, the sum of their exponentials, its logarithm, and results
_DIFFERENCE_BITS, _SUM_BITS, _LOG_BITS, _RESULT_BITS = 5, 12, 6, 4
# fractions without integer bits: log(2), roots of 1/2, and the coefficients of the logarithm
_LOG_2, _ROOT, _ROOT_OF_ROOT = 1488522236, 1518500250, 1805811301
_ALPHA_N, _ALPHA_D, _ALPHA_I, _ALPHA_F = 117049297, 127690142, 1057819769, 638450708
_QUARTER = 1 << (29 - _LOG_BITS)
_RESOLUTION = 10  # fraction bits of a number that an LSTM normalizes
_HALF_ROOT_OF_TWO = 1518500250
_THREE_HALVES = (1 << 28) + (1 << 27)  # with three integer bits


def _twice(x: Expr) -> Expr:
    """Return 2 * x, saturated."""
    most = INT32_MAX >> 1
    above = tb.select(tb.binary("gt", x, most), tb.const(INT32_MAX), tb.clamp(x, -most - 1, most) * 2)
    return tb.select(tb.binary("lt", x, -most), tb.const(INT32_MIN), above)


def _logarithm(ctx: Context, total: Expr) -> Expr:
    """Return the natural logarithm of a sum of exponentials, at least 1, with `_DIFFERENCE_BITS` integer bits."""
    let, mul = ctx.stmts.let, rounding_doubling_high_mul
    zeros = let("zeros", clz32(tb.cast(total, "uint32")))
    first = let("first", _twice(mul(total << tb.maximum(zeros - 1, 0), tb.const(_ROOT))))
    first_power = (tb.const(_SUM_BITS) - zeros) * (1 << (31 - _LOG_BITS)) + _QUARTER
    rest = let("rest", clz32(tb.cast(mul(total, tb.const(_ROOT)), "uint32")) - 1)
    fits = tb.binary("le", total, tb.const(INT32_MAX) >> rest)
    second = let("second", tb.select(fits, total << rest, tb.const(INT32_MAX)))
    second_power = (tb.const(_SUM_BITS) - rest) * (1 << (31 - _LOG_BITS)) - _QUARTER
    r, power = let("r", tb.minimum(first, second)), let("power", tb.maximum(first_power, second_power))
    p = let("p", (r >> tb.const(1)) + ((_ROOT_OF_ROOT + 1) >> 1))  # the mean, rounded up, as the root is odd
    q = let("q", (r - _ROOT_OF_ROOT) * 2)
    square = let("square", mul(q, q))
    numerator = let("numerator", mul(q, r) + mul(mul(q, square), tb.const(_ALPHA_N)))
    inner = let("inner", tb.const(_ALPHA_I) + q + mul(tb.const(_ALPHA_D), square))
    denominator = let("denominator", mul(p, inner) + mul(tb.const(_ALPHA_F), q))
    inverse = fixed_point.reciprocal_of_one_plus(tb.maximum(denominator, 0))
    fraction = mul(rounding_divide_by_pot(numerator, tb.const(_LOG_BITS)), inverse)
    return let("log", _twice(mul(power, tb.const(_LOG_2)) + fraction))


@dataclass(frozen=True)
class IntegerNorm:
    """Normalization of a gate of TFLite's LSTM: `row` of weights and biases, and two numbers from the model."""

    weights: Tensor  # (gates, cells)
    bias: Tensor  # (gates, cells)
    row: int
    scale: float  # of the weights
    guard: int  # replaces a variance below 1

    def emit(self, ctx: Context, numbers: Buffer) -> None:
        """Normalize row `row` of `numbers`, (gates, cells) of int32 that contain int16 values."""
        stmts, count = ctx.stmts, numbers.shape[1]
        total, squares = (stmts.local(name, (1,), "int64") for name in ("total", "squares"))
        for buffer in (total, squares):
            stmts.store(buffer, [0], 0)
        with stmts.loop(count, "unit") as unit:
            value = stmts.let("value", tb.cast(tb.load(numbers, [self.row, unit]), "int64"))
            stmts.store(total, [0], tb.load(total, [0]) + value)
            stmts.store(squares, [0], tb.load(squares, [0]) + value * value)
        unit_sum = tb.load(total, [0]) * (1 << _RESOLUTION)
        mean = stmts.let("mean", tb.cast(tb.binary("truncdiv", unit_sum, count), "int32"))
        wide_mean = tb.cast(mean, "int64")
        spread = tb.load(squares, [0]) * ((1 << 2 * _RESOLUTION) // count) - wide_mean * wide_mean
        variance = tb.cast(tb.binary("truncdiv", spread, 1 << 2 * _RESOLUTION), "int32")
        limited = stmts.let("variance", tb.select(tb.binary("lt", variance, 1), tb.const(self.guard), variance))
        factor, shift = inverse_root(ctx, limited)
        multiplier, exponent = quantize_multiplier(self.scale)
        with stmts.loop(count, "unit", "vectorized") as unit:
            apart = tb.load(numbers, [self.row, unit]) * (1 << _RESOLUTION) - mean
            normal = tb.cast(requantize_double(apart, factor, shift), "int64")
            product = normal * tb.cast(self.weights(self.row, unit), "int64")
            scaled = stmts.let("scaled", product + tb.cast(self.bias(self.row, unit), "int64"))
            half = tb.select(tb.binary("gt", scaled, 0), tb.const(512, "int64"), tb.const(-512, "int64"))
            # via uint32: C defines the low bits of a value that does not fit only for unsigned conversions
            whole = tb.cast(tb.cast(tb.binary("truncdiv", scaled + half, 1 << _RESOLUTION), "uint32"), "int32")
            result = requantize_double(whole, tb.const(multiplier), tb.const(exponent + 12))
            stmts.store(numbers, [self.row, unit], tb.clamp(result, *dtypes.limits("int16")))


def inverse_root(ctx: Context, value: Expr) -> tuple[Expr, Expr]:
    """Return 1 / sqrt(value) of an int32 above 0, as a factor and a right shift that is not above 0."""
    stmts = ctx.stmts
    is_large = stmts.let("is_large", tb.cast(tb.binary("ge", value, 1 << 29), "int32"))
    small = stmts.let("small", tb.maximum(value >> (is_large * 2), 2))
    pairs = stmts.let("pairs", (clz32(tb.cast(small, "uint32")) - 1) // 2 - 1)
    shift = stmts.let("shift", is_large + 11 - pairs)
    # three integer bits, value between 1/4 and 1
    given = stmts.let("given", (small << (pairs * 2)) >> 1)
    half = stmts.let("half_of_it", (given + 1) >> 1)
    x = tb.const(1 << 28)
    for _ in range(5):
        square = rounding_doubling_high_mul(x, x)
        cube = stmts.let("cube", _raised(rounding_doubling_high_mul(square, x), 6))
        first = rounding_doubling_high_mul(tb.const(_THREE_HALVES), x)
        x = stmts.let("x", _raised(first - rounding_doubling_high_mul(half, cube), 3))
    root = stmts.let("root", rounding_doubling_high_mul(x, tb.const(_HALF_ROOT_OF_TWO)))
    left = stmts.let("left", tb.maximum(tb.const(0) - shift, 0))
    is_one = tb.binary("le", value, 1)
    factor = stmts.let("factor", tb.select(is_one, tb.const(INT32_MAX), root << left))
    return factor, stmts.let("down", tb.select(is_one, tb.const(0), tb.minimum(tb.const(0) - shift, 0)))


def _raised(x: Expr, bits: int) -> Expr:
    """Return x * 2**bits, saturated."""
    most = INT32_MAX >> bits
    wide = tb.clamp(x, -most - 1, most) << bits
    return tb.select(tb.binary("gt", x, most), tb.const(INT32_MAX), wide)


def _emit_log_softmax(ctx: Context, inputs: Sequence[Tensor], _attrs: Attrs, out: Output) -> None:
    data, stmts = inputs[0], ctx.stmts
    in_scale, _, out_scale, out_zero = scales_and_zeros("qnn.log_softmax", inputs)
    low, high = dtypes.limits(out.dtype)
    count = out.shape[-1]
    if out_scale != 16 / 256 or out_zero != high:
        raise UnsupportedError(f"qnn.log_softmax needs the output scale 1/16 and zero point {high}")
    if bounds(count)[1] >= 1 << _SUM_BITS:
        raise UnsupportedError(f"qnn.log_softmax takes rows of at most {(1 << _SUM_BITS) - 1} numbers, got {count}")
    multiplier, shift = quantize_multiplier(min(in_scale * (1 << (31 - _DIFFERENCE_BITS)), float(INT32_MAX)))
    smallest = -input_radius(_DIFFERENCE_BITS, shift)
    back, back_shift = quantize_multiplier(2.0 ** (31 - shift) / multiplier)
    powers = ctx.constant("exponentials", exponentials(in_scale))
    # the differences -255 ... 0 with `_DIFFERENCE_BITS` integer bits, 0 where they do not fit
    differences = [doubling_high_mul(d << max(shift, 0), multiplier) if d >= smallest else 0 for d in range(-255, 1)]
    fine = ctx.constant("differences", np.array(differences, np.int32))
    with serial_loops(ctx, out.shape[:-1], "i") as row:

        def place(k: Expr) -> Expr:
            # the largest input bounds the index, which the verifier cannot see: the clamp does not change the value
            return tb.clamp(tb.cast(data.read([*row, k]), "int32") + offset, 0, 255)

        largest, total = (stmts.local(name, (1,), "int32") for name in ("largest", "total"))
        stmts.store(largest, [0], low)
        with stmts.loop(count, "k") as k:
            found = tb.cast(data.read([*row, k]), "int32")
            stmts.store(largest, [0], tb.maximum(tb.load(largest, [0]), found))
        offset = stmts.let("offset", tb.const(255) - tb.load(largest, [0]))
        stmts.store(total, [0], 0)
        with stmts.loop(count, "k") as k:
            term = stmts.let("term", tb.load(powers, [place(k)]))
            rounded = (term >> tb.const(_SUM_BITS)) + ((term >> tb.const(_SUM_BITS - 1)) & 1)
            stmts.store(total, [0], tb.load(total, [0]) + rounded)
        log = _logarithm(ctx, stmts.let("sum", tb.maximum(tb.load(total, [0]), 1)))
        bound = requantize_double(tb.maximum(log, 0) + INT32_MIN, tb.const(back), tb.const(back_shift))
        least = stmts.let("least", tb.maximum(tb.const(smallest - 1), bound))
        with stmts.loop(count, "k") as k:
            at = stmts.let("at", place(k))
            apart = rounding_divide_by_pot(tb.load(fine, [at]) - log, tb.const(31 - _DIFFERENCE_BITS - _RESULT_BITS))
            code = tb.select(tb.binary("gt", at - 255, least), tb.clamp(apart + high, low, high), tb.const(low))
            out.store([*row, k], tb.cast(code, out.dtype))


def _emit_l2_normalize(ctx: Context, inputs: Sequence[Tensor], _attrs: Attrs, out: Output) -> None:
    data, stmts, count = inputs[0], ctx.stmts, out.shape[-1]
    _, in_zero, out_scale, out_zero = scales_and_zeros("qnn.l2_normalize", inputs)
    middle = sum(dtypes.limits(out.dtype), 1) // 2
    if out_scale != 1 / 128 or out_zero != middle:
        raise UnsupportedError(f"qnn.l2_normalize needs the output scale 1/128 and zero point {middle}")
    if bounds(count)[1] * 255**2 > INT32_MAX:
        raise UnsupportedError(f"qnn.l2_normalize takes rows of at most {INT32_MAX // 255**2} numbers, got {count}")
    with serial_loops(ctx, out.shape[:-1], "i") as row:

        def centred(k: Expr) -> Expr:
            return tb.cast(data.read([*row, k]), "int32") - in_zero

        total = stmts.filled("total", 1, "int32")
        with stmts.loop(count, "k") as k:
            value = stmts.let("value", tb.clamp(centred(k), -255, 255))
            stmts.store(total, [0], tb.load(total, [0]) + value * value)
        factor, shift = inverse_root(ctx, stmts.let("square", tb.maximum(tb.load(total, [0]), 0)))
        with stmts.loop(count, "k") as k:
            if out.dtype == "int8":
                code = requantize_double(centred(k), factor, shift + 7)
            else:
                code = requantize_double(centred(k) * 128, factor, shift)
            out.store([*row, k], saturate(code + out_zero, out.dtype))


_CONTRACT = "bit-exact to TFLite's reference kernel"
declare("qnn.log_softmax", 5, infer_of_bytes, Kind.REDUCE, emit=_emit_log_softmax, contract=_CONTRACT,
        in_tvm=qnn_in_tvm.in_reals(lambda data, _: call("nn.log_softmax", [data], {"axis": -1})),
        doc="Logarithm of softmax along the last axis in fixed point; result of scale 1/16 and the highest zero point.",
        )  # fmt: skip
declare("qnn.l2_normalize", 5, infer_of_bytes, Kind.REDUCE, emit=_emit_l2_normalize, contract=_CONTRACT,
        in_tvm=qnn_in_tvm.in_reals(qnn_in_tvm.l2_normalize),
        doc="Rows along the last axis divided by their magnitude; result of scale 1/128 and the middle zero point.",
        )  # fmt: skip
