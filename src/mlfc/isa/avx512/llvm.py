"""LLVM forms of lines in float32 and of lanes of bytes; for all other C forms, LLVM's own code is good."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import llvmlite.ir as ll

from mlfc.codegen.llvm.context import FLOAT, INT16, INT32, INT64, FunctionContext, Value, words
from mlfc.tir.forms import LLVM_FORMS, LlvmForm

_LANES = 16
_DOWN = ll.Constant(INT32, 9)  # rounds towards minus infinity without exceptions


def _line(context: FunctionContext, *args: Value) -> Value:
    x = args[0]
    if not _is_wide(context, x):
        return _rounded_twice(context, *args[:3])
    builder, (slope, rest, above, below) = context.builder, args[3:]
    begin = builder.select(builder.icmp_signed("<", x, context.number(0, x)), below, above)
    data = builder.sitofp(x, ll.VectorType(FLOAT, x.type.count))
    return _rounded_down(context, data, slope, context.intrinsic("fma", [data, rest, begin]))


def _plane(context: FunctionContext, exact: Value, *args: Value) -> Value:
    if not _is_wide(context, exact):
        return exact
    (a, b), (first, second, start) = args[:2], args[2:]
    floats = ll.VectorType(FLOAT, exact.type.count)
    begin = context.intrinsic("fma", [context.builder.sitofp(b, floats), second, start])
    return _rounded_down(context, context.builder.sitofp(a, floats), first, begin)


def _is_wide(context: FunctionContext, x: Value) -> bool:
    """Return whether the processor has registers for this number of lanes with static rounding modes."""
    has = context.machine.architecture == "x86_64" and context.machine.vector_bytes == 64
    return has and isinstance(x.type, ll.VectorType) and x.type.count in (_LANES, _LANES // 2)


def _rounded_down(context: FunctionContext, data: Value, slope: Value, start: Value) -> Value:
    """Return ``data * slope + start`` rounded down."""
    builder, count = context.builder, data.type.count
    floats, lanes = ll.VectorType(FLOAT, _LANES), words(_LANES)
    args = [data, slope, start]
    if count < _LANES:  # sixteen lanes, the upper ones zero
        mask = ll.Constant(ll.VectorType(INT32, _LANES), list(range(_LANES)))
        args = [builder.shuffle_vector(value, context.number(0.0, value), mask) for value in args]
    multiply_add = context.declared("llvm.x86.avx512.vfmadd.ps.512", floats, [floats, floats, floats, INT32])
    total = builder.call(multiply_add, [*args, _DOWN])
    convert = context.declared("llvm.x86.avx512.mask.cvtps2dq.512", lanes, [floats, lanes, INT16, INT32])
    zero = ll.Constant(lanes, [ll.Constant(INT32, 0)] * _LANES)
    whole = builder.call(convert, [total, zero, ll.Constant(INT16, -1), _DOWN])
    return whole if count == _LANES else context.lanes(whole, range(count))


def _rounded_twice(context: FunctionContext, x: Value, multiplier: Value, exponent: Value) -> Value:
    """Return `requantize_down`, computed as a line."""
    builder = context.builder
    wide = ll.VectorType(INT64, x.type.count) if isinstance(x.type, ll.VectorType) else INT64
    product = builder.mul(builder.sext(x, wide), builder.sext(multiplier, wide))
    doubled = builder.add(product, context.number(1 << 30, product))
    high = builder.trunc(builder.ashr(doubled, context.number(31, doubled)), x.type)
    shifted = builder.ashr(builder.add(high, builder.ashr(high, context.number(31, high))), exponent)
    return builder.ashr(builder.add(shifted, context.number(1, shifted)), context.number(1, shifted))


def _push(context: FunctionContext, lanes: Value, value: Value) -> Value:
    builder = context.builder
    before = builder.bitcast(lanes, words(value.type.count))
    down = builder.lshr(before, context.number(8, before))
    return builder.bitcast(builder.or_(down, builder.shl(value, context.number(24, value))), lanes.type)


_CALLS: dict[str, Callable[..., Value]] = {
    "requantize_line": _line,
    "whole_of_plane": _plane,
    "push_byte": _push,
    "push_flipped": lambda context, lanes, value: _push(
        context, lanes, context.builder.xor(value, context.number(128, value))
    ),
}


def _call(context: FunctionContext, name: str, args: Sequence[Value]) -> Value | None:
    return _CALLS[name](context, *args) if name in _CALLS else None


LLVM_FORMS.add("avx512", LlvmForm(_call))
