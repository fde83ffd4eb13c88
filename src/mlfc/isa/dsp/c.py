"""The C of arithmetic on pairs of 16-bit numbers in a word: one instruction each with ARM's DSP extension.

Elsewhere the same in plain C. Words are little-endian whatever the machine is: weights are packed into words at
compile time, and what is read from memory must match them.
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


# widened again, so that the product is no int of 16 bits
_HALVES = {"b": "(int32_t)(int16_t){name}", "t": "({name} >> 16)"}


def _mac(letters: str) -> str:
    """Return the helper that multiplies two halves; left to find the instruction, gcc takes halves out of loops."""
    a, b = (_HALVES[letter].format(name=name) for letter, name in zip(letters, "ab", strict=True))
    return f"""\
static inline int32_t mlf_mac_{letters}(int32_t sum, int32_t a, int32_t b) {{
#if MLF_DSP
  return __smla{letters}(a, b, sum);
#else
  return (int32_t)((uint32_t)sum + (uint32_t)({a} * {b}));
#endif
}}"""


_HELPERS: dict[str, Helper] = {
    "word:int8": ((), _word("i8", "int8_t", "uint8_t", 4)),
    "word:uint8": ((), _word("u8", "uint8_t", "uint8_t", 4)),
    "word:int16": ((), _word("i16", "int16_t", "uint16_t", 2)),
    "even_bytes": ((), """\
/* bytes 0 and 2 of a word, widened to 16 bits */
static inline int32_t mlf_even_bytes(int32_t word) {
#if MLF_DSP
  return __sxtb16(word);
#else
  const uint32_t bottom = (uint32_t)(int8_t)word & 0xffffU;
  return (int32_t)(bottom | (uint32_t)(int8_t)(word >> 16) << 16);
#endif
}"""),
    "odd_bytes": (("even_bytes",), """\
/* bytes 1 and 3 of a word, widened to 16 bits */
static inline int32_t mlf_odd_bytes(int32_t word) {
  return mlf_even_bytes((int32_t)((uint32_t)word >> 8 | (uint32_t)word << 24));
}"""),
    "dot2": ((), """\
/* sum + the products of the 16-bit halves of two words */
static inline int32_t mlf_dot2(int32_t sum, int32_t a, int32_t b) {
#if MLF_DSP
  return __smlad(a, b, sum);
#else
  return (int32_t)((uint32_t)sum + (uint32_t)((int32_t)(int16_t)a * (int16_t)b) + (uint32_t)((a >> 16) * (b >> 16)));
#endif
}"""),
    "saturate_byte": ((), """\
static inline int32_t mlf_saturate_byte(int32_t x) {
#if MLF_DSP
  return (int32_t)__builtin_arm_ssat(x, 8); /* __ssat of gcc's header converts a sign silently */
#else
  return x < -128 ? -128 : x > 127 ? 127 : x;
#endif
}"""),
    **{f"mac_{letters}": ((), _mac(letters)) for letters in ("bb", "bt", "tb", "tt")},
}  # fmt: skip
"""Text of each helper by its key, and the keys of those that it calls."""


def _expression(printer: CPrinter, expr: ir.Expr) -> str | None:
    if not isinstance(expr, ir.Call):
        return None
    if expr.name in _HELPERS:
        return f"{printer.need(expr.name)}({', '.join(map(printer.expr, expr.args))})"
    if expr.name != "word":
        return None
    (elements,) = expr.args
    if not isinstance(elements, ir.Load):
        raise InternalError("C takes a word from memory only")
    name = printer.need(f"word:{dtypes.element(elements.dtype)}")
    return f"{name}({printer.address(elements.buffer, elements.indices)})"


C_FORMS.add("dsp", CForm(_HELPERS.get, _INCLUDES, expression=_expression))
