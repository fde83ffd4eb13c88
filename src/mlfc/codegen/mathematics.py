"""C of the vectorizable float functions; `mlfc.tir.mathematics` says what they compute and how exactly."""

from __future__ import annotations

from mlfc.codegen.c_types import BitCopy, literal
from mlfc.tir import mathematics as meaning


def _f(value: float) -> str:
    return literal(value, "float32")


def _polynomial(coefficients: tuple[float, ...], x: str) -> str:
    text = _f(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        text = f"({text} * {x} + {_f(coefficient)})"
    return text


def _power(bits_of: BitCopy) -> str:
    return f"""\
/* 2**exponent, for exponents of normal floats */
static inline float mlf_power_of_two(int32_t exponent) {{
  const uint32_t bits = ((uint32_t)exponent + 127U) << 23;
  float power;
  {bits_of("float", "power", "bits")}
  return power;
}}"""


def _nearest(bits_of: BitCopy) -> str:
    return f"""\
/* the integer nearest to x / ln(2) */
static inline int32_t mlf_nearest_exponent(float x) {{
  const float rounded = x * {_f(meaning.LOG2_E)} + {_f(meaning.ROUNDER)}; /* its low bits hold the integer */
  uint32_t bits;
  {bits_of("uint32_t", "bits", "rounded")}
  return (int32_t)(bits - 0x{meaning.ROUNDER_BITS:x}U);
}}"""


_REST = f"""\
/* expm1(x - n * ln(2)), where n is the nearest exponent of x */
static inline float mlf_expm1_rest(float x, int32_t n) {{
  const float count = (float)n;
  const float r = (x - count * {_f(meaning.LN2_HIGH)}) - count * {_f(meaning.LN2_LOW)};
  return r + r * r * {_polynomial(meaning.EXPM1_TAIL, "r")};
}}"""

_EXP = f"""\
/* e**x within {meaning.EXP_ULP} ULP */
static inline float mlf_exp_f32(float x) {{
  const float above = x < {_f(meaning.EXP_LOWEST)} ? {_f(meaning.EXP_LOWEST)} : x;
  const float limited = above > {_f(meaning.EXP_HIGHEST)} ? {_f(meaning.EXP_HIGHEST)} : above;
  const int32_t n = mlf_nearest_exponent(limited);
  const int32_t first = n >> 1;
  return (1.0f + mlf_expm1_rest(limited, n)) * mlf_power_of_two(first) * mlf_power_of_two(n - first);
}}"""


def _signed(bits_of: BitCopy) -> str:
    return f"""\
/* size with the sign of x; size is not negative */
static inline float mlf_signed(float size, float x) {{
  uint32_t bits, sign;
  float value;
  {bits_of("uint32_t", "bits", "size")}
  {bits_of("uint32_t", "sign", "x")}
  bits = (bits & 0x7fffffffU) | (sign & 0x80000000U);
  {bits_of("float", "value", "bits")}
  return value;
}}"""


_TANH = f"""\
/* the hyperbolic tangent within {meaning.TANH_ULP} ULP */
static inline float mlf_tanh_f32(float x) {{
  const float size = mlf_signed(x, 0.0f);
  const float limited = size > {_f(meaning.TANH_HIGHEST)} ? {_f(meaning.TANH_HIGHEST)} : size;
  const float twice = limited + limited;
  const int32_t n = mlf_nearest_exponent(twice);
  const float power = mlf_power_of_two(n);
  const float above = power * mlf_expm1_rest(twice, n) + (power - 1.0f);
  return mlf_signed(above / (above + 2.0f), x);
}}"""

_ERF = f"""\
/* the Gauss error function within {meaning.ERF_ULP} ULP */
static inline float mlf_erf_f32(float x) {{
  const float size = mlf_signed(x, 0.0f);
  const float limited = size > {_f(meaning.ERF_HIGHEST)} ? {_f(meaning.ERF_HIGHEST)} : size;
  const float square = limited * limited;
  const float inner = limited + limited * {_polynomial(meaning.ERF_NEAR, "square")};
  const float outer = 1.0f - mlf_exp_f32(-{_polynomial(meaning.ERF_FAR, "limited")});
  return mlf_signed(limited < {_f(meaning.ERF_CUT)} ? inner : outer, x);
}}"""


def helpers(bits_of: BitCopy) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return what the prelude of a language needs: name of a helper -> the helpers that it calls, and its text."""
    return {
        "power_of_two": ((), _power(bits_of)),
        "nearest_exponent": ((), _nearest(bits_of)),
        "expm1_rest": ((), _REST),
        "signed": ((), _signed(bits_of)),
        "exp_f32": (("power_of_two", "nearest_exponent", "expm1_rest"), _EXP),
        "tanh_f32": (("power_of_two", "nearest_exponent", "expm1_rest", "signed"), _TANH),
        "erf_f32": (("exp_f32", "signed"), _ERF),
    }


INTRINSICS = frozenset({"exp_f32", "tanh_f32", "erf_f32"})
