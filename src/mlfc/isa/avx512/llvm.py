"""Lines in float32 and lanes of bytes as LLVM code; LLVM has good code of its own for all else that C has forms for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import llvmlite.ir as ll

from mlfc.codegen.llvm.context import Context, words
from mlfc.codegen.llvm.llvm_types import FLOAT, INT16, INT32, INT64, Value
from mlfc.tir.forms import LLVM_FORMS, LlvmForm

_LANES = 16
_DOWN = ll.Constant(INT32, 9)  # rounds towards minus infinity and raises nothing


def _line(context: Context, *args: Value) -> Value:
    x = args[0]
    is_wide = context.machine.architecture == "x86_64" and context.machine.vector_bytes == 64
    if not is_wide or not isinstance(x.type, ll.VectorType) or x.type.count != _LANES:
        return _rounded_twice(context, *args[:3])
    builder, (slope, rest, above, below) = context.builder, args[3:]
    floats = ll.VectorType(FLOAT, _LANES)
    begin = builder.select(builder.icmp_signed("<", x, context.number(0, x)), below, above)
    data = builder.sitofp(x, floats)
    start = context.intrinsic("fma", [data, rest, begin])
    types = [floats, floats, floats, INT32]
    multiply_add = context.declared("llvm.x86.avx512.vfmadd.ps.512", floats, types)
    total = builder.call(multiply_add, [data, slope, start, _DOWN])
    convert = context.declared("llvm.x86.avx512.mask.cvtps2dq.512", x.type, [floats, x.type, INT16, INT32])
    return builder.call(convert, [total, context.number(0, x), ll.Constant(INT16, -1), _DOWN])


def _rounded_twice(context: Context, x: Value, multiplier: Value, exponent: Value) -> Value:
    """Return `requantize_down`, which the line is."""
    builder = context.builder
    wide = ll.VectorType(INT64, x.type.count) if isinstance(x.type, ll.VectorType) else INT64
    product = builder.mul(builder.sext(x, wide), builder.sext(multiplier, wide))
    doubled = builder.add(product, context.number(1 << 30, product))
    high = builder.trunc(builder.ashr(doubled, context.number(31, doubled)), x.type)
    shifted = builder.ashr(builder.add(high, builder.ashr(high, context.number(31, high))), exponent)
    return builder.ashr(builder.add(shifted, context.number(1, shifted)), context.number(1, shifted))


def _push(context: Context, lanes: Value, value: Value) -> Value:
    builder = context.builder
    before = builder.bitcast(lanes, words(value.type.count))
    down = builder.lshr(before, context.number(8, before))
    return builder.bitcast(builder.or_(down, builder.shl(value, context.number(24, value))), lanes.type)


def _push_flipped(context: Context, lanes: Value, value: Value) -> Value:
    return _push(context, lanes, context.builder.xor(value, context.number(128, value)))


_CALLS: dict[str, Callable[..., Value]] = {
    "requantize_line": _line,
    "push_byte": _push,
    "push_flipped": _push_flipped,
}


def _call(context: Context, name: str, args: Sequence[Value]) -> Value | None:
    return _CALLS[name](context, *args) if name in _CALLS else None


LLVM_FORMS.add("avx512", LlvmForm(_call))
