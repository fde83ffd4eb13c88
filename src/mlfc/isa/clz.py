"""ARM's count of leading zeros, on cores from ARMv5 and Cortex-M3 on; LLVM finds such instructions by itself."""

from __future__ import annotations

from mlfc.tir.forms import C_FORMS, CForm

C_FORMS.add(
    "clz",
    CForm(
        lambda _: None,
        guard="defined(__ARM_FEATURE_CLZ)",
        instructions={"clz32": "x == 0U ? 32 : (int32_t)__builtin_clz(x)"},  # an int of these cores has 32 bits
    ),
)
