"""Integer arithmetic of quantized layers, on scalars and on vectors; `mlfc.codegen.prelude` has the same in C."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlfc.codegen.llvm.context import Context
from mlfc.codegen.llvm.llvm_types import INT32, INT64, Value, resized


def _wide(context: Context, value: Value) -> Value:
    return context.builder.sext(value, resized(value.type, INT64))


def _low(context: Context, value: Value) -> Value:
    return context.builder.trunc(value, resized(value.type, INT32))


def _product(context: Context, a: Value, b: Value) -> Value:
    return context.builder.mul(_wide(context, a), _wide(context, b), flags=["nsw"])


def _sign(context: Context, value: Value) -> Value:
    """Return -1 where a number is negative, else 0."""
    return context.builder.ashr(value, context.number(31, value))


def _high_of_doubled(context: Context, x: Value, multiplier: Value) -> Value:
    """Return the high half of 2 * x * multiplier, ties up."""
    builder, product = context.builder, _product(context, x, multiplier)
    # unsigned: few vector units shift signed 64-bit numbers, and the 32 bits that are kept are the same
    doubled = builder.add(product, context.number(1 << 30, product))
    return _low(context, builder.lshr(doubled, context.number(31, doubled)))


def _rounding_doubling_high_mul(context: Context, a: Value, b: Value) -> Value:
    builder, product = context.builder, _product(context, a, b)
    nudged = builder.add(product, context.number(1 << 30, product))
    high = builder.ashr(nudged, context.number(31, nudged))
    largest = context.number((1 << 31) - 1, high)
    return _low(context, builder.select(builder.icmp_signed(">", high, largest), largest, high))


def _rounding_divide_by_pot(context: Context, x: Value, exponent: Value) -> Value:
    builder = context.builder
    one = context.number(1, x)
    mask = builder.sub(builder.shl(one, exponent), one)
    threshold = builder.sub(builder.ashr(mask, one), _sign(context, x))
    above = builder.icmp_signed(">", builder.and_(x, mask), threshold)
    return builder.add(builder.ashr(x, exponent), builder.zext(above, x.type))


def _requantize_double(context: Context, x: Value, multiplier: Value, shift: Value) -> Value:
    builder, zero = context.builder, context.number(0, shift)
    left = builder.select(builder.icmp_signed(">", shift, zero), shift, zero)
    high = _high_of_doubled(context, builder.shl(x, left), multiplier)
    return _rounding_divide_by_pot(context, high, builder.sub(left, shift))


def _requantize_down(context: Context, x: Value, multiplier: Value, exponent: Value) -> Value:
    builder, high = context.builder, _high_of_doubled(context, x, multiplier)
    one = context.number(1, x)
    # one less below zero: then ties up are ties away from zero; high is never the lowest number
    shifted = builder.ashr(builder.add(high, _sign(context, high)), exponent)
    return builder.ashr(builder.add(shifted, one), one)


def _rounded_once(context: Context, product: Value, total: Value) -> Value:
    """Return product / 2**total, ties up; `total` is an int32."""
    builder = context.builder
    wide, one = _wide(context, total), context.number(1, product)
    half = builder.shl(one, builder.sub(wide, one))
    return _low(context, builder.ashr(builder.add(product, half), wide))


def _requantize_single(context: Context, x: Value, multiplier: Value, shift: Value) -> Value:
    total = context.builder.sub(context.number(31, shift), shift)
    return _rounded_once(context, _product(context, x, multiplier), total)


def _requantize_away(context: Context, x: Value, multiplier: Value, shift: Value) -> Value:
    builder, product = context.builder, _product(context, x, multiplier)
    negative = builder.lshr(product, context.number(63, product))
    total = builder.sub(context.number(31, shift), shift)
    return _rounded_once(context, builder.sub(product, negative), total)


def _single_down(context: Context, x: Value, multiplier: Value, exponent: Value) -> Value:
    shift = context.builder.sub(context.number(-2, exponent), exponent)
    return _requantize_single(context, x, multiplier, shift)


def _away_down(context: Context, x: Value, multiplier: Value, exponent: Value) -> Value:
    shift = context.builder.sub(context.number(-2, exponent), exponent)
    return _requantize_away(context, x, multiplier, shift)


def _requantize_narrow(context: Context, x: Value, multiplier: Value, exponent: Value, zero_point: Value) -> Value:
    builder, one = context.builder, context.number(1, x)
    doubled = _product(context, builder.shl(x, one), multiplier)
    thirty_two = context.number(32, doubled)
    # half of the last bit kept is the top bit of what is not: so rounding adds it
    top = builder.lshr(_low(context, doubled), context.number(31, x))
    high = builder.add(_low(context, builder.ashr(doubled, thirty_two)), top)
    shifted = builder.ashr(builder.add(high, _sign(context, high)), exponent)
    nudge = builder.add(builder.shl(zero_point, one), one)
    return builder.ashr(builder.add(shifted, nudge), one)


def _saturate_byte(context: Context, x: Value) -> Value:
    return context.intrinsic("smin", [context.intrinsic("smax", [x, context.number(-128, x)]), context.number(127, x)])


def _leading_zeros(context: Context, x: Value) -> Value:
    return context.intrinsic("ctlz", [x], flag=False)


FORMS: dict[str, Callable[..., Value]] = {
    "rounding_doubling_high_mul": _rounding_doubling_high_mul,
    "rounding_divide_by_pot": _rounding_divide_by_pot,
    "requantize_double": _requantize_double,
    "requantize_down": _requantize_down,
    "requantize_single": _requantize_single,
    "requantize_away": _requantize_away,
    "requantize_single_down": _single_down,
    "requantize_away_down": _away_down,
    "requantize_narrow": _requantize_narrow,
    "saturate_byte": _saturate_byte,
    "clz32": _leading_zeros,
}
"""What writes each intrinsic."""


def compute(context: Context, name: str, args: Sequence[Value]) -> Value:
    """Return the value of an intrinsic of FORMS."""
    return FORMS[name](context, *args)
