"""Arithmetic on pairs of 16-bit numbers in a word: one instruction each with ARM's DSP extension."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlfc.codegen.llvm.context import Context
from mlfc.codegen.llvm.llvm_types import INT32, Value
from mlfc.tir.forms import LLVM_FORMS, LlvmForm


def _half(context: Context, word: Value, letter: str) -> Value:
    """Return the bottom (``b``) or the top (``t``) half of a word, as a number."""
    builder, sixteen = context.builder, context.number(16, word)
    return builder.ashr(builder.shl(word, sixteen) if letter == "b" else word, sixteen)


def _multiply_halves(letters: str) -> Callable[..., Value]:
    def emit(context: Context, total: Value, a: Value, b: Value) -> Value:
        if context.machine.instruction("dsp"):
            return _instruction(context, f"smla{letters}", [a, b, total])
        builder = context.builder
        return builder.add(total, builder.mul(_half(context, a, letters[0]), _half(context, b, letters[1])))

    return emit


def _dot2(context: Context, total: Value, a: Value, b: Value) -> Value:
    if context.machine.instruction("dsp"):
        return _instruction(context, "smlad", [a, b, total])
    bottom = _multiply_halves("bb")(context, total, a, b)
    return _multiply_halves("tt")(context, bottom, a, b)


def _even_bytes(context: Context, word: Value) -> Value:
    if context.machine.instruction("dsp"):
        return _instruction(context, "sxtb16", [word])
    builder = context.builder
    n = context.numbers(word)
    bottom = builder.and_(builder.ashr(builder.shl(word, n(24)), n(24)), n(0xFFFF))
    top = builder.ashr(builder.shl(word, n(8)), n(24))
    return builder.or_(bottom, builder.shl(top, n(16)))


def _odd_bytes(context: Context, word: Value) -> Value:
    eight = context.number(8, word)
    return _even_bytes(context, context.intrinsic("fshr", [word, word, eight]))


def _instruction(context: Context, name: str, args: Sequence[Value]) -> Value:
    function = context.declared(f"llvm.arm.{name}", INT32, [INT32] * len(args))
    return context.builder.call(function, list(args))


_CALLS: dict[str, Callable[..., Value]] = {
    "even_bytes": _even_bytes,
    "odd_bytes": _odd_bytes,
    "dot2": _dot2,
    **{f"mac_{letters}": _multiply_halves(letters) for letters in ("bb", "bt", "tb", "tt")},
}


def _call(context: Context, name: str, args: Sequence[Value]) -> Value | None:
    return _CALLS[name](context, *args) if name in _CALLS else None


LLVM_FORMS.add("dsp", LlvmForm(_call, fills_registers=frozenset({"dot2"})))
