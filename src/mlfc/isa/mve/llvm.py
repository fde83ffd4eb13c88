"""What ARM's vector extension for microcontrollers (MVE, Helium) has instructions for: arithmetic on four int32."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import llvmlite.ir as ll

from mlfc.codegen.llvm.context import Context, words
from mlfc.codegen.llvm.llvm_types import INT32, Value
from mlfc.isa.mve.llvm_block_intrinsics import writer
from mlfc.tir import block_intrinsics
from mlfc.tir.forms import LLVM_FORMS, LlvmForm

_LANES = words(4)


def _call(context: Context, name: str, args: Sequence[Value]) -> Value | None:
    """Write an intrinsic on four int32, if the machine has instructions for it."""
    if not context.machine.instruction("mve") or name not in _CALLS or args[0].type != _LANES:
        return None
    return _CALLS[name](context, *args)


def _products(context: Context, total: Value, a: Value, b: Value) -> Value:
    """Add the products of all lanes."""
    name = f"llvm.arm.mve.vmldava.v{a.type.count}i{a.type.element.width}"
    zero = ll.Constant(INT32, 0)  # with signs, no subtraction, no exchange
    function = context.declared(name, INT32, [INT32] * 4 + [a.type] * 2)
    return context.builder.call(function, [zero, zero, zero, total, a, b])


def _crowded(_: Context, sums: int) -> bool:
    """Products are summed in even registers, of which two rows need all; loops of LLVM's count in one of them."""
    return sums > block_intrinsics.FILTERS


def _instruction(context: Context, name: str, args: Sequence[Value], *flags: int) -> Value:
    """Call an instruction; the flags are numbers behind its operands."""
    types = [arg.type for arg in args] + [INT32] * len(flags)
    function = context.declared(f"llvm.arm.mve.{name}", _LANES, types)
    return context.builder.call(function, [*args, *(ll.Constant(INT32, flag) for flag in flags)])


def _high_of_doubled(context: Context, x: Value, multiplier: Value) -> Value:
    return _instruction(context, "vqrdmulh.v4i32", [x, multiplier])


def _high(context: Context, x: Value, multiplier: Value) -> Value:
    return _instruction(context, "vmulh.v4i32", [x, multiplier], 0)


def _shifted(context: Context, value: Value, amounts: Value, *, rounds: bool) -> Value:
    """Return values shifted to the left, or to the right by negative amounts, which may round ties up."""
    return _instruction(context, "vshl.vector.v4i32.v4i32", [value, amounts], 0, int(rounds), 0)


def _sign(context: Context, value: Value) -> Value:
    return context.builder.ashr(value, context.number(31, value))


def _rounded_down(context: Context, value: Value, exponent: Value) -> Value:
    """Return value / 2**(1 + exponent), ties up."""
    return _shifted(context, value, context.builder.not_(exponent), rounds=True)


def _requantize_down(context: Context, x: Value, multiplier: Value, exponent: Value) -> Value:
    high = _high_of_doubled(context, x, multiplier)
    # the instruction rounds ties up: one less below zero makes that away from zero
    return _rounded_down(context, context.builder.add(high, _sign(context, high)), exponent)


def _requantize_double(context: Context, x: Value, multiplier: Value, shift: Value) -> Value:
    builder, zero = context.builder, context.number(0, shift)
    right, left = context.intrinsic("smin", [shift, zero]), context.intrinsic("smax", [shift, zero])
    high = _high_of_doubled(context, _shifted(context, x, left, rounds=False), multiplier)
    less = _sign(context, builder.and_(high, right))  # only where it shifts to the right
    return _shifted(context, builder.add(high, less), right, rounds=True)


def _single_down(context: Context, x: Value, multiplier: Value, exponent: Value) -> Value:
    return _rounded_down(context, _high(context, x, multiplier), exponent)


def _away_down(context: Context, x: Value, multiplier: Value, exponent: Value) -> Value:
    builder, high = context.builder, _high(context, x, multiplier)
    # below zero ties go down: one less in the high half where the low is zero
    low = builder.mul(x, multiplier)
    is_exact = builder.sext(builder.icmp_signed("==", low, context.number(0, low)), _LANES)
    less = builder.and_(_sign(context, high), is_exact)
    return _rounded_down(context, builder.add(high, less), exponent)


_CALLS: dict[str, Callable[..., Value]] = {
    "requantize_down": _requantize_down,
    "requantize_double": _requantize_double,
    "requantize_single_down": _single_down,
    "requantize_away_down": _away_down,
}
LLVM_FORMS.add("mve", LlvmForm(_call, writer, _products, _crowded))
