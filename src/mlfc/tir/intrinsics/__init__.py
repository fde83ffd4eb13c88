"""Intrinsics: named scalar functions that loop-level code may call, one family per file.

Most are declared by a body in tir expressions (`registry`), those of `general` by a numpy function.
"""

from mlfc.tir.intrinsics import conversions, fixed_point, float32, general, words
from mlfc.tir.intrinsics.registry import INTRINSICS, Intrinsic, IntrinsicBody, Step

__all__ = [
    "INTRINSICS", "Intrinsic", "IntrinsicBody", "Step", "conversions", "fixed_point", "float32", "general",
    "words",
]  # fmt: skip
