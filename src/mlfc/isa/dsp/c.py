"""The C of arithmetic on pairs of 16-bit numbers in a word: one instruction each with ARM's DSP extension.

Other machines use their bodies (`mlfc.tir.intrinsics.words`) in plain C. Words are little-endian on every machine:
weights are packed into words at compile time, and data read from memory must match them.
"""

from __future__ import annotations

from string import Template

from mlfc.codegen.c_types import scalar_type, short_name
from mlfc.codegen.writer import pieces_beside
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.forms import C_FORMS, CForm, CPrinter, Helper

_PIECES = pieces_beside(__file__, "words.h")
_INCLUDES = tuple(_PIECES["includes"].splitlines())


_INSTRUCTIONS = {
    "even_bytes": "__sxtb16(word)",
    "dot2": "__smlad(a, b, sum)",
    "dot2_wide": "__smlald(a, b, sum)",
    "saturate_byte": "(int32_t)__builtin_arm_ssat(x, 8)",  # __ssat of gcc's header causes a sign conversion
    # without builtins, gcc hoists the extraction of halves out of loops
    **{f"mac_{letters}": f"__smla{letters}(a, b, sum)" for letters in ("bb", "bt", "tb", "tt")},
}


def _helper(key: str) -> Helper | None:
    """Return the function that reads four bytes, or two 16-bit numbers, as a word."""
    name, _, dtype = key.partition(":")
    if name != "word":
        return None
    kind, count = scalar_type(dtype), 32 // dtypes.bits(dtype)
    parts = [f"(uint32_t)(u{kind.removeprefix('u')})p[{index}]" for index in range(count)]
    shifted = [f"({part} << {32 // count * index})" if index else part for index, part in enumerate(parts)]
    values = {"count": str(count), "short": short_name(dtype), "kind": kind, "shifted": " | ".join(shifted)}
    return (), Template(_PIECES["word"]).substitute(values)


def _expression(printer: CPrinter, expr: ir.Expr) -> str | None:
    if not isinstance(expr, ir.Call) or expr.name != "word":
        return None
    (elements,) = expr.args
    if not isinstance(elements, ir.Load):
        raise InternalError("C requires a word to be loaded from memory")
    name = printer.need(f"word:{dtypes.element(elements.dtype)}")
    return f"{name}({printer.address(elements.buffer, elements.indices)})"


C_FORMS.add("dsp", CForm(_helper, _INCLUDES, expression=_expression, guard="MLF_DSP", instructions=_INSTRUCTIONS))
