"""The vectorizable float functions; `mlfc.tir.mathematics` says what they compute and how exactly.

A product that C writes into a sum is fused with it here, too, where the machine fuses.
"""

from __future__ import annotations

from collections.abc import Callable

from mlfc.codegen.llvm.context import Context
from mlfc.codegen.llvm.conversions import bits_of, float_of
from mlfc.codegen.llvm.llvm_types import FLOAT, Value, resized
from mlfc.tir import mathematics as meaning


class _Floats:
    """Arithmetic on float32 in a kernel."""

    def __init__(self, context: Context, x: Value) -> None:
        self._context = context
        self._builder = context.builder
        self._like = x
        self._fuses = context.contracts and context.machine.fuses("float32")

    def number(self, value: float) -> Value:
        return self._context.number(value, self._like)

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c."""
        if self._fuses:
            return self._context.intrinsic("fma", [a, b, c])
        return self._builder.fadd(self._builder.fmul(a, b), c)

    def minus_product(self, c: Value, a: Value, b: Value) -> Value:
        """Return c - a * b."""
        if self._fuses:
            return self._context.intrinsic("fma", [self._builder.fneg(a), b, c])
        return self._builder.fsub(c, self._builder.fmul(a, b))

    def polynomial(self, coefficients: tuple[float, ...], x: Value) -> Value:
        value = self.number(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            value = self.multiply_add(value, x, self.number(coefficient))
        return value

    def at_most(self, x: Value, limit: float) -> Value:
        bound = self.number(limit)
        return self._builder.select(self._builder.fcmp_ordered(">", x, bound), bound, x)

    def at_least(self, x: Value, limit: float) -> Value:
        bound = self.number(limit)
        return self._builder.select(self._builder.fcmp_ordered("<", x, bound), bound, x)

    def power_of_two(self, exponent: Value) -> Value:
        builder, context = self._builder, self._context
        biased = builder.add(exponent, context.number(127, exponent))
        return float_of(context, builder.shl(biased, context.number(23, exponent)))

    def nearest_exponent(self, x: Value) -> Value:
        rounded = self.multiply_add(x, self.number(meaning.LOG2_E), self.number(meaning.ROUNDER))
        bits = bits_of(self._context, rounded)
        return self._builder.sub(bits, self._context.number(meaning.ROUNDER_BITS, bits))

    def expm1_rest(self, x: Value, n: Value) -> Value:
        builder = self._builder
        count = builder.sitofp(n, resized(n.type, FLOAT))
        high = self.minus_product(x, count, self.number(meaning.LN2_HIGH))
        r = self.minus_product(high, count, self.number(meaning.LN2_LOW))
        tail = self.polynomial(meaning.EXPM1_TAIL, r)
        return self.multiply_add(builder.fmul(r, r), tail, r)

    def size(self, x: Value) -> Value:
        bits = bits_of(self._context, x)
        return float_of(self._context, self._builder.and_(bits, self._context.number(0x7FFFFFFF, bits)))

    def signed(self, size: Value, x: Value) -> Value:
        """Return `size` with the sign of `x`."""
        bits, sign = self.size(size), bits_of(self._context, x)
        mask = self._context.number(0x80000000, sign)
        joined = self._builder.or_(bits_of(self._context, bits), self._builder.and_(sign, mask))
        return float_of(self._context, joined)


def _exp(context: Context, x: Value) -> Value:
    floats, builder = _Floats(context, x), context.builder
    limited = floats.at_most(floats.at_least(x, meaning.EXP_LOWEST), meaning.EXP_HIGHEST)
    n = floats.nearest_exponent(limited)
    half = builder.ashr(n, context.number(1, n))
    whole = builder.fadd(floats.number(1.0), floats.expm1_rest(limited, n))
    first = builder.fmul(whole, floats.power_of_two(half))
    return builder.fmul(first, floats.power_of_two(builder.sub(n, half)))


def _tanh(context: Context, x: Value) -> Value:
    floats, builder = _Floats(context, x), context.builder
    limited = floats.at_most(floats.size(x), meaning.TANH_HIGHEST)
    twice = builder.fadd(limited, limited)
    n = floats.nearest_exponent(twice)
    power = floats.power_of_two(n)
    above = floats.multiply_add(power, floats.expm1_rest(twice, n), builder.fsub(power, floats.number(1.0)))
    return floats.signed(builder.fdiv(above, builder.fadd(above, floats.number(2.0))), x)


def _erf(context: Context, x: Value) -> Value:
    floats, builder = _Floats(context, x), context.builder
    limited = floats.at_most(floats.size(x), meaning.ERF_HIGHEST)
    square = builder.fmul(limited, limited)
    inner = floats.multiply_add(limited, floats.polynomial(meaning.ERF_NEAR, square), limited)
    far = _exp(context, builder.fneg(floats.polynomial(meaning.ERF_FAR, limited)))
    outer = builder.fsub(floats.number(1.0), far)
    is_near = builder.fcmp_ordered("<", limited, floats.number(meaning.ERF_CUT))
    return floats.signed(builder.select(is_near, inner, outer), x)


FORMS: dict[str, Callable[[Context, Value], Value]] = {"exp_f32": _exp, "tanh_f32": _tanh, "erf_f32": _erf}
"""What writes each function."""
