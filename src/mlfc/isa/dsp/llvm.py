"""Arithmetic on pairs of 16-bit numbers in a word: one instruction each with ARM's DSP extension."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.codegen.llvm.context import INT32, INT64, FunctionContext, Value
from mlfc.tir.forms import LLVM_FORMS, LlvmForm

_INSTRUCTIONS = {
    "even_bytes": "sxtb16",
    "dot2": "smlad",
    "dot2_wide": "smlald",
    **{f"mac_{letters}": f"smla{letters}" for letters in ("bb", "bt", "tb", "tt")},
}


def _call(context: FunctionContext, name: str, args: Sequence[Value]) -> Value | None:
    if name not in _INSTRUCTIONS or not context.machine.instruction("dsp"):
        return None
    result = INT64 if name == "dot2_wide" else INT32
    kinds = [INT32, INT32, result] if len(args) > 1 else [INT32]
    function = context.declared(f"llvm.arm.{_INSTRUCTIONS[name]}", result, kinds)
    return context.builder.call(function, [*args[1:], args[0]])  # the sum is last


LLVM_FORMS.add("dsp", LlvmForm(_call, fills_registers=frozenset({"dot2", "dot2_wide"})))
