"""The C of ``dot4_u8s8``: sums over groups of four products of uint8 and int8.

One instruction where the machine has VNNI, a loop elsewhere. The key of a form is ``dot4_u8s8x16`` or, with
the same group of four for all sums, ``dot4_u8s8x16_broadcast``; its C name is the key behind ``mlf_``.
"""

from __future__ import annotations

from mlforge.codegen.c_types import value_type

_PREFIX = "dot4_u8s8x"
_BROADCAST = "_broadcast"

INCLUDES = (
    "#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)",
    "#include <immintrin.h>",
    "#endif",
)

# number of sums: (condition of the preprocessor, instruction, register type), best first
_INSTRUCTIONS = {
    16: (("defined(__AVX512VNNI__)", "_mm512_dpbusd_epi32", "__m512i"),),
    8: (
        ("defined(__AVX512VNNI__) && defined(__AVX512VL__)", "_mm256_dpbusd_epi32", "__m256i"),
        ("defined(__AVXVNNI__)", "_mm256_dpbusd_avx_epi32", "__m256i"),
    ),
    4: (
        ("defined(__AVX512VNNI__) && defined(__AVX512VL__)", "_mm_dpbusd_epi32", "__m128i"),
        ("defined(__AVXVNNI__)", "_mm_dpbusd_avx_epi32", "__m128i"),
    ),
}


def key(sums: int, broadcast: bool) -> str:
    """Return the key of the form with that many sums."""
    return f"{_PREFIX}{sums}{_BROADCAST if broadcast else ''}"


def is_key(text: str) -> bool:
    """Tell whether a helper's key is one of this file's."""
    return text.startswith(_PREFIX)


def _parts(text: str) -> tuple[int, bool]:
    return int(text.removeprefix(_PREFIX).removesuffix(_BROADCAST)), text.endswith(_BROADCAST)


def vectors(text: str) -> tuple[str, str, str]:
    """Return the dtypes of the sums, of the unsigned and of the signed factors."""
    sums, broadcast = _parts(text)
    return f"int32x{sums}", "uint8x4" if broadcast else f"uint8x{4 * sums}", f"int8x{4 * sums}"


def source(text: str) -> str:
    """Return the macro of a key; a macro, because passing vectors to functions depends on the instruction set."""
    forms = _INSTRUCTIONS.get(_parts(text)[0], ())
    if not forms:
        return _macro(text, _portable(text))
    lines: list[str] = []
    for index, form in enumerate(forms):
        lines += [f"#{'elif' if index else 'if'} {form[0]}", _macro(text, _by_instruction(text, *form[1:]))]
    return "\n".join([*lines, "#else", _macro(text, _portable(text)), "#endif"])


def _macro(text: str, body: list[str]) -> str:
    total, unsigned, signed = map(value_type, vectors(text))
    lines = [
        f"#define mlf_{text}(sum, a, b) __extension__({{",
        f"  {total} mlf_sum = (sum);",
        f"  const {unsigned} mlf_a = (a);",
        f"  const {signed} mlf_b = (b);",
        *body,
        "  mlf_sum; })",
    ]
    return " \\\n".join(lines)


def _by_instruction(text: str, instruction: str, register: str) -> list[str]:
    total = value_type(vectors(text)[0])
    factor, body = f"({register})mlf_a", []
    if _parts(text)[1]:
        body = ["  int32_t mlf_group;", "  memcpy(&mlf_group, &mlf_a, sizeof mlf_group);"]
        factor = f"({register})(mlf_group - ({total}){{0}})"
    return [*body, f"  mlf_sum = ({total}){instruction}(({register})mlf_sum, {factor}, ({register})mlf_b);"]


def _portable(text: str) -> list[str]:
    sums, broadcast = _parts(text)
    products = []
    for position in range(4):
        own = f"4 * mlf_i + {position}" if position else "4 * mlf_i"
        products.append(f"mlf_a[{position if broadcast else own}] * mlf_b[{own}]")
    return [
        f"  for (int32_t mlf_i = 0; mlf_i < {sums}; ++mlf_i) {{",
        f"    mlf_sum[mlf_i] += {' + '.join(products)};",
        "  }",
    ]
