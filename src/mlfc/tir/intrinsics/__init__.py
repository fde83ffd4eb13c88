"""Intrinsics: named scalar functions that loop-level code may call, one family a file.

Most are declared by a body in tir expressions (`registry`), those of `general` by their meaning in numpy.
"""

from mlfc.tir.intrinsics import conversions, fixed_point, float32, general, philox, words
from mlfc.tir.intrinsics.registry import INTRINSICS, Intrinsic, IntrinsicBody, Step

__all__ = [
    "INTRINSICS", "Intrinsic", "IntrinsicBody", "Step", "conversions", "fixed_point", "float32", "general",
    "philox", "words",
]  # fmt: skip
