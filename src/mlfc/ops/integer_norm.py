"""Layer normalization of 16-bit numbers inside TFLite's integer LSTM, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.support import dtypes
from mlfc.support.fixed_point import INT32_MAX, quantize_multiplier
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Tensor
from mlfc.tir.intrinsics.fixed_point import clz32, requantize_double, rounding_doubling_high_mul
from mlfc.tir.ir import Buffer, Expr

_RESOLUTION = 10
"""The bits of a normalized number below one."""
_HALF_ROOT_OF_TWO = 1518500250
_THREE_HALVES = (1 << 28) + (1 << 27)  # of three integer bits


@dataclass(frozen=True)
class IntegerNorm:
    """The normalization of one gate: `row` of the weights and biases, and two numbers of the model."""

    weights: Tensor  # (gates, cells)
    bias: Tensor  # (gates, cells)
    row: int
    scale: float  # of the weights
    guard: int  # the variance that takes the place of one below 1

    def emit(self, ctx: Context, numbers: Buffer) -> None:
        """Normalize row `row` of `numbers`, (gates, cells) of int32 that hold int16."""
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
            # unsigned first: of what does not fit, C defines the low bits
            whole = tb.cast(tb.cast(tb.binary("truncdiv", scaled + half, 1 << _RESOLUTION), "uint32"), "int32")
            result = requantize_double(whole, tb.const(multiplier), tb.const(exponent + 12))
            stmts.store(numbers, [self.row, unit], tb.clamp(result, *dtypes.limits("int16")))


def inverse_root(ctx: Context, value: Expr) -> tuple[Expr, Expr]:
    """Return 1 / sqrt(value) of an int32 above 0, as a factor and a shift to the right that is not above 0."""
    stmts = ctx.stmts
    is_large = stmts.let("is_large", tb.cast(tb.binary("ge", value, 1 << 29), "int32"))
    small = stmts.let("small", tb.maximum(value >> (is_large * 2), 2))
    pairs = stmts.let("pairs", (clz32(tb.cast(small, "uint32")) - 1) // 2 - 1)
    shift = stmts.let("shift", is_large + 11 - pairs)
    # three integer bits, between 1/4 and 1
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
