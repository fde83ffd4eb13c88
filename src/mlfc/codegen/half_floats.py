"""C of conversions between halves, stored as their bits in a uint16_t, and float."""

from __future__ import annotations

from mlfc.codegen.c_types import BitCopy


def _float16_to_float(bits_of: BitCopy) -> str:
    return f"""\
static inline float mlf_float16_to_float(uint16_t stored) {{
  const uint32_t sign = (uint32_t)(stored & 0x8000U) << 16;
  const uint32_t magnitude = stored & 0x7fffU;
  uint32_t bits;
  float value;
  if (magnitude < 0x0400U) {{ /* zero and subnormals: exact in float */
    value = (float)magnitude * 0x1p-24f;
    {bits_of("uint32_t", "bits", "value")}
  }} else {{
    bits = (magnitude << 13) + (magnitude >= 0x7c00U ? 0x70000000U : 0x38000000U);
  }}
  bits |= sign;
  {bits_of("float", "value", "bits")}
  return value;
}}"""


def _float16_from_float(bits_of: BitCopy) -> str:
    return f"""\
static inline uint16_t mlf_float16_from_float(float value) {{
  uint32_t bits;
  {bits_of("uint32_t", "bits", "value")}
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {{
    return (uint16_t)(sign | 0x7e00U);
  }}
  if (magnitude >= 0x47800000U) {{ /* 65536 and above; what rounds up to it is carried below */
    return (uint16_t)(sign | 0x7c00U);
  }}
  if (magnitude < 0x38800000U) {{ /* subnormal: adding 0.5 leaves the rounded result in the low bits */
    float shifted;
    {bits_of("float", "shifted", "magnitude")}
    shifted += 0.5f;
    {bits_of("uint32_t", "bits", "shifted")}
    return (uint16_t)(sign | (bits - 0x3f000000U));
  }}
  return (uint16_t)(sign | ((magnitude - 0x38000000U + 0x0fffU + ((magnitude >> 13) & 1U)) >> 13));
}}"""


def _bfloat16_to_float(bits_of: BitCopy) -> str:
    return f"""\
static inline float mlf_bfloat16_to_float(uint16_t brain) {{
  const uint32_t bits = (uint32_t)brain << 16;
  float value;
  {bits_of("float", "value", "bits")}
  return value;
}}"""


def _bfloat16_from_float(bits_of: BitCopy) -> str:
    return f"""\
static inline uint16_t mlf_bfloat16_from_float(float value) {{
  uint32_t bits;
  {bits_of("uint32_t", "bits", "value")}
  if ((bits & 0x7fffffffU) > 0x7f800000U) {{
    return (uint16_t)((bits >> 16) | 0x0040U);
  }}
  return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}}"""


def helpers(bits_of: BitCopy) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return what the prelude of a language needs: name of a helper -> the helpers that it calls, and its text."""
    return {
        "float16_to_float": ((), _float16_to_float(bits_of)),
        "float16_from_float": ((), _float16_from_float(bits_of)),
        "bfloat16_to_float": ((), _bfloat16_to_float(bits_of)),
        "bfloat16_from_float": ((), _bfloat16_from_float(bits_of)),
    }
