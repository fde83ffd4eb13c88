"""Helper functions and vector types that printed code may use; a file gets only those that it uses.

A helper is named by a key such as ``min:float32`` or ``requantize_double``. Helpers avoid what C leaves
undefined (signed overflow, shifts of negative numbers) and avoid branches, so that compilers can
vectorize the loops around them.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlfc.codegen import vectors
from mlfc.codegen.c_types import GROUP, helper_name, scalar_type, short_name
from mlfc.codegen.intrinsic_functions import function_source
from mlfc.errors import InternalError
from mlfc.tir.forms import C_FORMS
from mlfc.tir.intrinsics import INTRINSICS

_INLINE = "static inline"
_GROUP = """\
/* four bytes in memory, as the bits of one number */
typedef int32_t mlf_group __attribute__((aligned(1), may_alias));"""

_BITS: dict[str, tuple[tuple[str, ...], str]] = {
    "bits_of_float": ((), """\
static inline uint32_t mlf_bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}"""),
    "float_of_bits": ((), """\
static inline float mlf_float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}"""),
}  # fmt: skip

# overflow wraps instead of being undefined
_WRAPPING = {"wrap_add": "+", "wrap_sub": "-", "wrap_mul": "*"}

_DIVISIONS = {
    "floordiv": "a / b - ((a % b != 0) & ((a % b < 0) != (b < 0)))",
    "floormod": "a % b + (((a % b != 0) & ((a % b < 0) != (b < 0))) ? b : 0)",
    "truncdiv": "a / b",
    "truncmod": "a % b",
}


def _scalar_helper(name: str, dtype: str) -> str:
    kind = scalar_type(dtype)
    head = f"{_INLINE} {kind} {helper_name(f'{name}:{dtype}')}({kind} a, {kind} b)"
    if name in ("min", "max"):
        return f"{head} {{\n  return a {'<' if name == 'min' else '>'} b ? a : b;\n}}"
    if name in _WRAPPING:
        return f"{head} {{\n  return ({kind})((u{kind})a {_WRAPPING[name]} (u{kind})b);\n}}"
    if name == "integer_power":
        return _integer_power(kind, signed=not dtype.startswith("u"))
    if name not in _DIVISIONS:
        raise InternalError(f"C has no helper {name}:{dtype}")
    guards = "  if (b == 0) {\n    return 0;\n  }\n"
    signed = not dtype.startswith("u")
    if signed:  # the one quotient that overflows is INT_MIN / -1
        minus = "0" if name.endswith("mod") else f"({kind})(0U - (u{kind})a)"
        guards += f"  if (b == -1) {{\n    return {minus};\n  }}\n"
    body = _DIVISIONS[name] if signed else _DIVISIONS[name.replace("floor", "trunc")]
    return f"{head} {{\n{guards}  return ({kind})({body});\n}}"


def _integer_power(kind: str, *, signed: bool) -> str:
    short = short_name(kind.removesuffix("_t"))
    unsigned = kind if signed is False else f"u{kind}"
    below_zero = """\
  if (exponent < 0) { /* 1 / power, towards zero */
    return base == 1 ? 1 : base == -1 ? (exponent % 2 != 0 ? -1 : 1) : 0;
  }
"""
    return f"""\
/* base**exponent, which wraps */
{_INLINE} {kind} mlf_integer_power_{short}({kind} base, {kind} exponent) {{
  {unsigned} power = 1, factor = ({unsigned})base, rest = ({unsigned})exponent;
{below_zero if signed else ""}\
  for (; rest != 0; rest >>= 1) {{
    power *= (rest & 1) != 0 ? factor : 1;
    factor *= factor;
  }}
  return ({kind})power;
}}"""


def helper_source(key: str) -> tuple[tuple[str, ...], str]:
    """Return the keys of the helpers that the helper `key` calls, and its text."""
    if key in _BITS:
        return _BITS[key]
    if key == GROUP:
        return (), _GROUP
    for form in map(C_FORMS.get, C_FORMS):
        found = form.helper(key)
        if found is not None:
            return found
    if vectors.is_key(key):
        return (), vectors.macro(key)
    name, _, dtype = key.partition(":")
    if name in INTRINSICS and (body := INTRINSICS.get(name).body(dtype)):
        own = next((form for form in map(C_FORMS.get, C_FORMS) if key in form.instructions), None)
        return function_source(body) if own is None else function_source(body, own.guard, own.instructions[key])
    if not dtype:
        raise InternalError(f"C has no helper {key}")
    return (), _scalar_helper(name, dtype)


def render(keys: Iterable[str], kinds: Iterable[str]) -> list[str]:
    """Return the lines that define the helpers `keys`, what they need, and the vector types.

    Parameters
    ----------
    keys : iterable of str
        Helpers, in any order; the result does not depend on it.
    kinds : iterable of str
        Vector dtypes.
    """
    ordered: list[str] = []

    def visit(key: str) -> None:
        if key not in ordered:
            for used in helper_source(key)[0]:
                visit(used)
            ordered.append(key)

    for key in sorted(set(keys)):
        visit(key)
    needed = set(kinds)
    for key in ordered:
        if vectors.is_key(key):
            needed |= vectors.dtypes_of(key)
    lines: list[str] = []
    for form in map(C_FORMS.get, C_FORMS):
        own = [key for key in ordered if key in form.instructions or form.helper(key) is not None]
        lines += form.includes if own else ()
        needed.update(*map(form.vectors, own))
    lines += vectors.declarations(needed)
    for key in ordered:
        lines += ["", helper_source(key)[1]]
    return lines
