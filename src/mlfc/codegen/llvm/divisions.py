"""Integer division: what C leaves undefined is zero, and the quotient that overflows wraps."""

from __future__ import annotations

from mlfc.codegen.llvm.context import Context
from mlfc.codegen.llvm.llvm_types import Value, is_signed
from mlfc.tir import ir
from mlfc.tir.bounds import Interval


def divide(context: Context, expr: ir.Binary, a: Value, b: Value, dividend: Interval, divisor: Interval) -> Value:
    """Return quotient or remainder, rounded down or towards zero as the operator says.

    Parameters
    ----------
    context : Context
    expr : Binary
    a, b : value
    dividend, divisor : Interval
        What is known of them.
    """
    builder = context.builder
    is_quotient = expr.op.endswith("div")
    if not is_signed(expr.dtype) or (dividend.low >= 0 and divisor.low > 0):
        if divisor.low <= 0:
            return _unless_zero(context, b, is_quotient=is_quotient, a=a)
        return builder.udiv(a, b) if is_quotient else builder.urem(a, b)
    rounds_down = expr.op.startswith("floor")
    if divisor.low > 0 or divisor.high < -1:
        return _signed(context, a, b, is_quotient=is_quotient, rounds_down=rounds_down)
    zero, minus_one = context.number(0, b), context.number(-1, b)
    is_zero, is_minus_one = builder.icmp_signed("==", b, zero), builder.icmp_signed("==", b, minus_one)
    safe = builder.select(builder.or_(is_zero, is_minus_one), context.number(1, b), b)
    result = _signed(context, a, safe, is_quotient=is_quotient, rounds_down=rounds_down)
    result = builder.select(is_minus_one, builder.sub(zero, a) if is_quotient else zero, result)
    return builder.select(is_zero, zero, result)


def _unless_zero(context: Context, b: Value, *, is_quotient: bool, a: Value) -> Value:
    builder, zero = context.builder, context.number(0, b)
    is_zero = builder.icmp_unsigned("==", b, zero)
    safe = builder.select(is_zero, context.number(1, b), b)
    return builder.select(is_zero, zero, builder.udiv(a, safe) if is_quotient else builder.urem(a, safe))


def _signed(context: Context, a: Value, b: Value, *, is_quotient: bool, rounds_down: bool) -> Value:
    """Divide by what is neither 0 nor -1."""
    builder = context.builder
    rest = builder.srem(a, b)
    if not rounds_down:
        return builder.sdiv(a, b) if is_quotient else rest
    zero = context.number(0, b)
    differ = builder.icmp_signed("<", builder.xor(rest, b), zero)
    down = builder.and_(builder.icmp_signed("!=", rest, zero), differ)
    if is_quotient:
        return builder.sub(builder.sdiv(a, b), builder.zext(down, b.type))
    return builder.add(rest, builder.select(down, b, zero))
