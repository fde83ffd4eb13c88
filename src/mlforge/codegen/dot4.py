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
    """Return the function of a key."""
    sums, broadcast = _parts(text)
    total, unsigned, signed = map(value_type, vectors(text))
    lines = [
        f"static inline __attribute__((always_inline)) {total} mlf_{text}({total} sum, {unsigned} a, {signed} b) {{"
    ]
    forms = _INSTRUCTIONS.get(sums, ())
    for index, (condition, instruction, register) in enumerate(forms):
        lines.append(f"#{'elif' if index else 'if'} {condition}")
        factor = f"({register})a"
        if broadcast:
            lines += ["  int32_t group;", "  memcpy(&group, &a, sizeof group);"]
            factor = f"({register})(group - ({total}){{0}})"
        lines.append(f"  return ({total}){instruction}(({register})sum, {factor}, ({register})b);")
    lines += ["#else", *_portable(sums, broadcast), "#endif"] if forms else _portable(sums, broadcast)
    return "\n".join([*lines, "}"])


def _portable(sums: int, broadcast: bool) -> list[str]:
    products = []
    for position in range(4):
        own = f"4 * i + {position}" if position else "4 * i"
        products.append(f"a[{position if broadcast else own}] * b[{own}]")
    return [
        f"  for (int32_t i = 0; i < {sums}; ++i) {{",
        f"    sum[i] += {' + '.join(products)};",
        "  }",
        "  return sum;",
    ]
