"""Conversions, integer division, powers and intrinsics of loop-level code as LLVM IR, with the results that C has."""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ll

from mlfc.codegen.llvm.context import FunctionContext
from mlfc.codegen.llvm.llvm_types import (
    FLOAT,
    INT32,
    Value,
    is_signed,
    resized,
    value_type,
)
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.bounds import Interval
from mlfc.tir.forms import LLVM_FORMS

# exact, so whether the processor has an instruction or a library is called makes no difference
_EXACT = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "fabs": "fabs", "round_even": "rint",
    "round_away": "round",
}  # fmt: skip

_LIBRARY = frozenset(
    {
        "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "erf", "pow", "fmod",
    }
)  # fmt: skip
_BITCASTS = {"bits_of_float": INT32, "float_of_bits": FLOAT}

OF_BITS = frozenset({"run"})
"""Intrinsics that take numbers of any dtype as their bits."""


def convert(context: FunctionContext, value: Value, source: str, target: str) -> Value:
    """Return a value of dtype `source` as `target`, which has as many lanes; neither is a half float."""
    if source == target:
        return value
    before = dtypes.element(source)
    if dtypes.is_float(before):
        return _from_float(context, value, before, target)
    return _from_integer(context, value, before, target)


def _from_float(context: FunctionContext, value: Value, before: str, target: str) -> Value:
    builder, kind = context.builder, value_type(target)
    after = dtypes.element(target)
    if after == "bool":
        return builder.fcmp_unordered("!=", value, context.number(0.0, value))
    if dtypes.is_float(after):
        return builder.fpext(value, kind) if before == "float32" else builder.fptrunc(value, kind)
    return builder.fptosi(value, kind) if is_signed(after) else builder.fptoui(value, kind)


def _from_integer(context: FunctionContext, value: Value, before: str, target: str) -> Value:
    builder, kind = context.builder, value_type(target)
    after = dtypes.element(target)
    if after == "bool":
        return builder.icmp_unsigned("!=", value, context.number(0, value))
    if dtypes.is_float(after):
        return builder.sitofp(value, kind) if is_signed(before) else builder.uitofp(value, kind)
    if before == "bool" or dtypes.bits(after) > dtypes.bits(before):
        return builder.sext(value, kind) if is_signed(before) else builder.zext(value, kind)
    return builder.trunc(value, kind) if dtypes.bits(after) < dtypes.bits(before) else value


def divide(
    context: FunctionContext, expr: ir.Binary, a: Value, b: Value, dividend: Interval, divisor: Interval
) -> Value:
    """Return quotient or remainder, rounded down or towards zero, depending on the operator.

    What C leaves undefined is zero, and the quotient that overflows wraps. `dividend` and `divisor` are known of a and
    b.
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


def _unless_zero(context: FunctionContext, b: Value, *, is_quotient: bool, a: Value) -> Value:
    builder, zero = context.builder, context.number(0, b)
    is_zero = builder.icmp_unsigned("==", b, zero)
    safe = builder.select(is_zero, context.number(1, b), b)
    return builder.select(is_zero, zero, builder.udiv(a, safe) if is_quotient else builder.urem(a, safe))


def _signed(context: FunctionContext, a: Value, b: Value, *, is_quotient: bool, rounds_down: bool) -> Value:
    """Divide by a number other than 0 and -1."""
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


def integer_power(context: FunctionContext, base: Value, exponent: Value, *, signed: bool) -> Value:
    """Return the power of two integers, which wraps; of a negative exponent 1 / power, towards zero."""
    builder, zero, one = context.builder, context.number(0, base), context.number(1, base)
    before = builder.block
    head, body, after = (builder.append_basic_block() for _ in range(3))
    builder.branch(head)
    builder.position_at_end(head)
    power, factor, rest = (builder.phi(base.type) for _ in range(3))
    for phi, start in ((power, one), (factor, base), (rest, exponent)):
        phi.add_incoming(start, before)
    builder.cbranch(builder.icmp_unsigned("!=", rest, zero), body, after)
    builder.position_at_end(body)
    odd = builder.icmp_unsigned("!=", builder.and_(rest, one), zero)
    power.add_incoming(builder.mul(power, builder.select(odd, factor, one)), body)
    factor.add_incoming(builder.mul(factor, factor), body)
    rest.add_incoming(builder.lshr(rest, one), body)
    builder.branch(head)
    builder.position_at_end(after)
    if not signed:
        return power
    minus_one = context.number(-1, base)
    is_odd = builder.icmp_signed("!=", builder.and_(exponent, one), zero)
    of_minus_one = builder.select(is_odd, minus_one, one)
    of_one = builder.select(builder.icmp_signed("==", base, minus_one), of_minus_one, zero)
    of_one = builder.select(builder.icmp_signed("==", base, one), one, of_one)
    return builder.select(builder.icmp_signed("<", exponent, zero), of_one, power)


def instruction(context: FunctionContext, name: str, args: Sequence[Value]) -> Value | None:
    """Return the value of an intrinsic by instructions of the machine's own, where it has them."""
    for form in map(LLVM_FORMS.get, LLVM_FORMS):
        value = form.call(context, name, args)
        if value is not None:
            return value
    if name == "clz32":
        return context.intrinsic("ctlz", args, flag=False)
    return None


def call(context: FunctionContext, name: str, args: Sequence[Value], dtype: str) -> Value:
    """Return the value of an intrinsic without a body, whose result has this dtype."""
    value = instruction(context, name, args)
    if value is not None:
        return value
    if name == "integer_power":
        return integer_power(context, args[0], args[1], signed=not dtype.startswith("u"))
    if name in _BITCASTS:
        return context.builder.bitcast(args[0], resized(args[0].type, _BITCASTS[name]))
    if name in ("isnan", "isinf"):
        return _classified(context, name, args[0])
    if name in _EXACT:
        return context.intrinsic(_EXACT[name], args)
    if name in _LIBRARY and not isinstance(args[0].type, ll.VectorType):
        kind = args[0].type
        symbol = f"{name}f" if isinstance(kind, ll.FloatType) else name
        return context.builder.call(context.declared(symbol, kind, [kind] * len(args), pure=True), list(args))
    raise InternalError(f"LLVM code has no intrinsic '{name}' of {dtype}")


def _classified(context: FunctionContext, name: str, value: Value) -> Value:
    builder = context.builder
    if name == "isnan":
        return builder.fcmp_unordered("uno", value, value)
    size = context.intrinsic("fabs", [value])
    return builder.fcmp_ordered("==", size, context.number(float("inf"), value))
