"""The C of ``dot4_u8s8``: sums over groups of four products of uint8 and int8, exact on every machine.

One instruction where the machine has VNNI or the int8 dot products of ARM; elsewhere bytes are widened to
16 bits and multiplied in pairs: the instruction that multiplies bytes itself saturates.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.codegen.c_types import part_type
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.forms import C_FORMS, CForm, CPrinter, Helper
from mlfc.tir.visitor import own_exprs, walk, walk_expr

_PREFIX = "dot4_u8s8x"

_INCLUDES = (
    "#if defined(__AVX2__)",
    "#include <immintrin.h>",
    "#elif defined(__SSE2__)",
    "#include <emmintrin.h>",
    "#elif defined(__ARM_NEON)",
    "#include <arm_neon.h>",
    "#endif",
)


@dataclass(frozen=True)
class _Form:
    """A way to compute the sums of one part."""

    condition: str  # of the preprocessor
    width: int  # bytes of the part
    # statements that add to ``mlf_sum``; ``mlf_a`` and ``mlf_b`` are the factors, all of them of the type ``{part}``
    lines: tuple[str, ...]


def _by_pairs(prefix: str, bits: int) -> tuple[str, ...]:
    """Return the form of x86 without VNNI: even and odd bytes as 16-bit lanes, whose products are added in pairs."""
    register = f"__m{bits}i"
    return (
        f"  const {register} mlf_low = {prefix}_set1_epi16(255);",
        f"  const {register} mlf_a_even = {prefix}_and_si{bits}(({register})mlf_a, mlf_low);",
        f"  const {register} mlf_a_odd = {prefix}_srli_epi16(({register})mlf_a, 8);",
        f"  const {register} mlf_b_even = {prefix}_srai_epi16({prefix}_slli_epi16(({register})mlf_b, 8), 8);",
        f"  const {register} mlf_b_odd = {prefix}_srai_epi16(({register})mlf_b, 8);",
        f"  mlf_sum += ({{part}}){prefix}_madd_epi16(mlf_a_even, mlf_b_even);",
        f"  mlf_sum += ({{part}}){prefix}_madd_epi16(mlf_a_odd, mlf_b_odd);",
    )


def _by_instruction(name: str, register: str) -> tuple[str, ...]:
    factors = f"({register})mlf_sum, ({register})mlf_a, ({register})mlf_b"
    return (f"  mlf_sum = ({{part}}){name}({factors});",)


_FORMS = (
    _Form("defined(__AVX512VNNI__)", 64, _by_instruction("_mm512_dpbusd_epi32", "__m512i")),
    _Form("defined(__AVX512BW__)", 64, _by_pairs("_mm512", 512)),
    _Form("defined(__AVXVNNI__)", 32, _by_instruction("_mm256_dpbusd_avx_epi32", "__m256i")),
    _Form("defined(__AVX2__)", 32, _by_pairs("_mm256", 256)),
    _Form("defined(__SSE2__)", 16, _by_pairs("_mm", 128)),
    _Form(
        "defined(__ARM_FEATURE_MATMUL_INT8)", 16,
        ("  mlf_sum = ({part})vusdotq_s32((int32x4_t)mlf_sum, (uint8x16_t)mlf_a, (int8x16_t)mlf_b);",),
    ),
    _Form(
        "defined(__ARM_FEATURE_DOTPROD)", 16,
        (  # a - 128 is signed; 128 times the sum of b, in two steps of 64, makes up for it
            "  const int8x16_t mlf_half = vdupq_n_s8(64), mlf_signed = (int8x16_t)(mlf_a ^ (int32_t)0x80808080);",
            "  int32x4_t mlf_rest = vdotq_s32(vdupq_n_s32(0), mlf_half, (int8x16_t)mlf_b);",
            "  mlf_rest = vdotq_s32(mlf_rest, mlf_half, (int8x16_t)mlf_b);",
            "  mlf_sum = ({part})vdotq_s32((int32x4_t)mlf_sum + mlf_rest, mlf_signed, (int8x16_t)mlf_b);",
        ),
    ),
    _Form(
        "defined(__ARM_NEON)", 16,
        (  # a product of uint8 and int8 fits into 16 bits
            "  const int16x8_t mlf_even = (int16x8_t)(mlf_a & 0x00ff00ff);",
            "  const int16x8_t mlf_odd = (int16x8_t)vshrq_n_u16((uint16x8_t)mlf_a, 8);",
            "  const int16x8_t mlf_b_even = vshrq_n_s16(vshlq_n_s16((int16x8_t)mlf_b, 8), 8);",
            "  const int16x8_t mlf_b_odd = vshrq_n_s16((int16x8_t)mlf_b, 8);",
            "  int32x4_t mlf_total = vpadalq_s16((int32x4_t)mlf_sum, vmulq_s16(mlf_even, mlf_b_even));",
            "  mlf_total = vpadalq_s16(mlf_total, vmulq_s16(mlf_odd, mlf_b_odd));",
            "  mlf_sum = ({part})mlf_total;",
        ),
    ),
)  # fmt: skip

_ANYWHERE = (
    "  mlf_sum += (mlf_a & 255) * ((mlf_b << 24) >> 24) + ((mlf_a >> 8) & 255) * ((mlf_b << 16) >> 24);",
    "  mlf_sum += ((mlf_a >> 16) & 255) * ((mlf_b << 8) >> 24) + ((mlf_a >> 24) & 255) * (mlf_b >> 24);",
)


def _takes_group(call: ir.Call) -> bool:
    """Tell whether a call multiplies one group of four bytes, the same for all sums."""
    return call.name == "dot4_u8s8" and dtypes.lanes(call.args[1].dtype) == 4 < 4 * dtypes.lanes(call.dtype)


def _words(body: ir.Stmt) -> set[int]:
    """Return the ids of variables that hold such a group: not vectors in C, but the bits of an int32."""
    return {
        id(node.args[1])
        for stmt in walk(body)
        for expr in own_exprs(stmt)
        for node in walk_expr(expr)
        if isinstance(node, ir.Call) and _takes_group(node) and isinstance(node.args[1], ir.Var)
    }


def _sums_dtype(text: str) -> str:
    """Return the dtype of the sums; the factors are taken as lanes of it."""
    return f"int32x{text.removeprefix(_PREFIX)}"


def _helper(text: str) -> Helper | None:
    """Return the macro of a key: ``dot4_u8s8x16`` makes 16 sums, over all parts."""
    if not text.startswith(_PREFIX):
        return None
    size = 4 * int(text.removeprefix(_PREFIX))
    lines: list[str] = []
    for form in _FORMS:
        parts, uneven = divmod(size, form.width)
        if uneven or not parts:
            continue
        condition = f"{form.condition} && MLF_PARTS == {parts}"
        lines += [f"#{'elif' if lines else 'if'} {condition}", _macro(text, form.lines)]
    return (), "\n".join([*lines, "#else", _macro(text, _ANYWHERE), "#endif"])


def _macro(text: str, body: tuple[str, ...]) -> str:
    part = part_type(_sums_dtype(text))
    lines = [
        f"#define mlf_{text}(sum, a, b) __extension__({{",
        f"  {part} mlf_sum = (sum);",
        f"  const {part} mlf_a = ({part})(a), mlf_b = ({part})(b);",
        *(line.format(part=part) for line in body),
        "  mlf_sum; })",
    ]
    return " \\\n".join(lines)


def _expression(printer: CPrinter, expr: ir.Expr) -> str | None:
    if not isinstance(expr, ir.Call) or expr.name != "dot4_u8s8":
        return None
    total, unsigned, signed = expr.args
    lanes = dtypes.lanes(expr.dtype)
    if lanes == 1:
        raise InternalError("C has no 'dot4_u8s8' of one sum")
    name = printer.need(f"{_PREFIX}{lanes}")
    if _takes_group(expr):
        factor = f"{printer.need(f'splat:{expr.dtype}')}({printer.group(unsigned)})"
    else:
        factor = printer.expr(unsigned)
    return f"{name}({printer.expr(total)}, {factor}, {printer.expr(signed)})"


C_FORMS.add("dot4", CForm(_helper, _INCLUDES, lambda key: {_sums_dtype(key)}, expression=_expression, words=_words))
