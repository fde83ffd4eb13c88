"""Conversions between dtypes, as C does them."""

from __future__ import annotations

import llvmlite.ir as ll

from mlfc.codegen.llvm.context import Context
from mlfc.codegen.llvm.llvm_types import (
    FLOAT,
    HALF_FLOATS,
    INT16,
    INT32,
    Value,
    is_signed,
    resized,
    value_type,
)
from mlfc.support import dtypes


def convert(context: Context, value: Value, source: str, target: str) -> Value:
    """Return a value of dtype `source` as `target`, which has as many lanes."""
    if source == target:
        return value
    before, after = dtypes.element(source), dtypes.element(target)
    if before in HALF_FLOATS:
        wide = _WIDEN[before](context, value)
        return convert(context, wide, dtypes.vector("float32", dtypes.lanes(source)), target)
    if after in HALF_FLOATS:
        single = dtypes.vector("float32", dtypes.lanes(target))
        return _NARROW[after](context, convert(context, value, source, single))
    if dtypes.is_float(before):
        return _from_float(context, value, before, target)
    return _from_integer(context, value, before, target)


def _from_float(context: Context, value: Value, before: str, target: str) -> Value:
    builder, kind = context.builder, value_type(target)
    after = dtypes.element(target)
    if after == "bool":
        return builder.fcmp_unordered("!=", value, context.number(0.0, value))
    if dtypes.is_float(after):
        return builder.fpext(value, kind) if before == "float32" else builder.fptrunc(value, kind)
    return builder.fptosi(value, kind) if is_signed(after) else builder.fptoui(value, kind)


def truncated(context: Context, value: Value, target: str) -> Value:
    """Return floats as int32, int64 or uint64, limited to what these hold (a uint64 down to -2**63); 0 for NaN."""
    builder, kind = context.builder, value_type(target)
    if target == "uint64":
        below = truncated(context, value, "int64")
        top, largest = context.number(2.0**64, value), ll.Constant(kind, (1 << 64) - 1)
        above = builder.select(builder.fcmp_ordered(">=", value, top), largest, builder.fptoui(value, kind))
        return builder.select(builder.fcmp_ordered(">=", value, context.number(0.0, value)), above, below)
    low, high = dtypes.limits(target)
    # what does not fit is poison, which no select takes
    inside = builder.fptosi(value, kind)
    is_negative = builder.fcmp_ordered("<", value, context.number(0.0, value))
    outside = builder.select(is_negative, ll.Constant(kind, low), ll.Constant(kind, 0))
    result = builder.select(builder.fcmp_ordered(">=", value, context.number(float(low), value)), inside, outside)
    top = context.number(float(high + 1), value)
    return builder.select(builder.fcmp_ordered(">=", value, top), ll.Constant(kind, high), result)


def _from_integer(context: Context, value: Value, before: str, target: str) -> Value:
    builder, kind = context.builder, value_type(target)
    after = dtypes.element(target)
    if after == "bool":
        return builder.icmp_unsigned("!=", value, context.number(0, value))
    if dtypes.is_float(after):
        return builder.sitofp(value, kind) if is_signed(before) else builder.uitofp(value, kind)
    if before == "bool" or dtypes.bits(after) > dtypes.bits(before):
        return builder.sext(value, kind) if is_signed(before) else builder.zext(value, kind)
    return builder.trunc(value, kind) if dtypes.bits(after) < dtypes.bits(before) else value


def bits_of(context: Context, value: Value) -> Value:
    """Return the bits of float32 values."""
    return context.builder.bitcast(value, resized(value.type, INT32))


def float_of(context: Context, bits: Value) -> Value:
    """Return the float32 values of bits."""
    return context.builder.bitcast(bits, resized(bits.type, FLOAT))


def _float16_to_float(context: Context, half: Value) -> Value:
    builder = context.builder
    wide = builder.zext(half, resized(half.type, INT32))
    n = context.numbers(wide)
    sign = builder.shl(builder.and_(wide, n(0x8000)), n(16))
    magnitude = builder.and_(wide, n(0x7FFF))
    # zero and subnormals: exact in float
    small = builder.uitofp(magnitude, resized(wide.type, FLOAT))
    small = bits_of(context, builder.fmul(small, context.number(2.0**-24, small)))
    bias = builder.select(builder.icmp_unsigned(">=", magnitude, n(0x7C00)), n(0x70000000), n(0x38000000))
    normal = builder.add(builder.shl(magnitude, n(13)), bias)
    bits = builder.select(builder.icmp_unsigned("<", magnitude, n(0x0400)), small, normal)
    return float_of(context, builder.or_(bits, sign))


def _float16_from_float(context: Context, value: Value) -> Value:
    builder, bits = context.builder, bits_of(context, value)
    n = context.numbers(bits)
    sign = builder.and_(builder.lshr(bits, n(16)), n(0x8000))
    magnitude = builder.and_(bits, n(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, n(13)), n(1))
    rounded = builder.add(builder.add(builder.sub(magnitude, n(0x38000000)), n(0x0FFF)), odd)
    result = builder.lshr(rounded, n(13))
    # subnormal: adding 0.5 leaves the rounded result in the low bits
    shifted = float_of(context, magnitude)
    small = bits_of(context, builder.fadd(shifted, context.number(0.5, shifted)))
    small = builder.sub(small, n(0x3F000000))
    result = builder.select(builder.icmp_unsigned("<", magnitude, n(0x38800000)), small, result)
    # 65536 and above; what rounds up to it is carried by the addition
    result = builder.select(builder.icmp_unsigned(">=", magnitude, n(0x47800000)), n(0x7C00), result)
    result = builder.select(builder.icmp_unsigned(">", magnitude, n(0x7F800000)), n(0x7E00), result)
    return builder.trunc(builder.or_(result, sign), resized(bits.type, INT16))


def _bfloat16_to_float(context: Context, brain: Value) -> Value:
    wide = context.builder.zext(brain, resized(brain.type, INT32))
    return float_of(context, context.builder.shl(wide, context.number(16, wide)))


def _bfloat16_from_float(context: Context, value: Value) -> Value:
    builder, bits = context.builder, bits_of(context, value)
    n = context.numbers(bits)
    high = builder.lshr(bits, n(16))
    rounded = builder.add(builder.add(bits, n(0x7FFF)), builder.and_(high, n(1)))
    rounded = builder.lshr(rounded, n(16))
    is_nan = builder.icmp_unsigned(">", builder.and_(bits, n(0x7FFFFFFF)), n(0x7F800000))
    result = builder.select(is_nan, builder.or_(high, n(0x0040)), rounded)
    return builder.trunc(result, resized(bits.type, INT16))


_WIDEN = {"float16": _float16_to_float, "bfloat16": _bfloat16_to_float}
_NARROW = {"float16": _float16_from_float, "bfloat16": _bfloat16_from_float}
