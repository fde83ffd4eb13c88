"""The C of arithmetic on pairs of 16-bit numbers in a word: one instruction each with ARM's DSP extension.

Elsewhere their bodies (`mlfc.tir.intrinsics.words`) in plain C. Words are little-endian whatever the machine is:
weights are packed into words at compile time, and what is read from memory must match them.
"""

from __future__ import annotations

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.forms import C_FORMS, CForm, CPrinter, Helper

_INCLUDES = (
    "#if defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_SIMD32)",
    "#include <arm_acle.h>",
    "#define MLF_DSP 1",
    "#else",
    "#define MLF_DSP 0",
    "#endif",
    "#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__",
    "#define MLF_LITTLE_ENDIAN 1",
    "#else",
    "#define MLF_LITTLE_ENDIAN 0",
    "#endif",
)

_WORD = """\
/* {count} elements in memory as one number, the first one lowest */
static inline int32_t mlf_word_{short}(const {kind} *p) {{
#if MLF_LITTLE_ENDIAN
  int32_t word;
  memcpy(&word, p, sizeof word);
  return word;
#else
  return (int32_t)({shifted});
#endif
}}"""


def _word(short: str, kind: str, unsigned: str, count: int) -> str:
    parts = [f"(uint32_t)({unsigned})p[{index}]" for index in range(count)]
    shifted = [part if index == 0 else f"({part} << {32 // count * index})" for index, part in enumerate(parts)]
    return _WORD.format(count=count, short=short, kind=kind, shifted=" | ".join(shifted))


_HELPERS: dict[str, Helper] = {
    "word:int8": ((), _word("i8", "int8_t", "uint8_t", 4)),
    "word:uint8": ((), _word("u8", "uint8_t", "uint8_t", 4)),
    "word:int16": ((), _word("i16", "int16_t", "uint16_t", 2)),
}
"""Text of each helper by its key, and the keys of those that it calls."""

_INSTRUCTIONS = {
    "even_bytes": "__sxtb16(word)",
    "dot2": "__smlad(a, b, sum)",
    "saturate_byte": "(int32_t)__builtin_arm_ssat(x, 8)",  # __ssat of gcc's header converts a sign silently
    # left to find the instruction, gcc takes halves out of loops
    **{f"mac_{letters}": f"__smla{letters}(a, b, sum)" for letters in ("bb", "bt", "tb", "tt")},
}


def _expression(printer: CPrinter, expr: ir.Expr) -> str | None:
    if not isinstance(expr, ir.Call) or expr.name != "word":
        return None
    (elements,) = expr.args
    if not isinstance(elements, ir.Load):
        raise InternalError("C takes a word from memory only")
    name = printer.need(f"word:{dtypes.element(elements.dtype)}")
    return f"{name}({printer.address(elements.buffer, elements.indices)})"


C_FORMS.add("dsp", CForm(_HELPERS.get, _INCLUDES, expression=_expression, guard="MLF_DSP", instructions=_INSTRUCTIONS))
