"""Powers of integers: a loop of squarings; `mlfc.codegen.prelude` has the same in C."""

from __future__ import annotations

from mlfc.codegen.llvm.context import Context
from mlfc.codegen.llvm.llvm_types import Value


def integer_power(context: Context, base: Value, exponent: Value, *, signed: bool) -> Value:
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
