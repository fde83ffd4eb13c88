"""32-bit ARM: vectors (NEON and MVE), and the count of leading zeros of ARMv5, Cortex-M3 and later.

LLVM finds instructions for the count by itself.
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
        instructions={"clz32": "x == 0U ? 32 : (int32_t)__builtin_clz(x)"},  # an int of these cores has 32 bits
    ),
)
