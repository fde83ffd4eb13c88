"""32-bit ARM: vectors (NEON and MVE), and the instruction of ARMv5, Cortex-M3 and later that counts leading zeros.

LLVM selects that instruction by itself.
"""

from __future__ import annotations

from mlfc.target.features import VECTORS, Vectors, VectorWidth
from mlfc.tir.forms import C_FORMS, CForm

VECTORS.add("arm", Vectors("arm|thumb", (VectorWidth(16, r"\bvmul\.i16\s+q"),)))

C_FORMS.add(
    "clz",
    CForm(
        lambda _: None,
        guard="defined(__ARM_FEATURE_CLZ)",
        instructions={"clz32": "x == 0U ? 32 : (int32_t)__builtin_clz(x)"},  # int has 32 bits on these cores
    ),
)
