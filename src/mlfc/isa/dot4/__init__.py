"""Sums of four products of bytes: VNNI of x86, the dot products of AArch64.

All loops with vectors use ``dot4_u8s8``, so this package contains only its printed forms.
"""

from __future__ import annotations

from mlfc.target.features import INSTRUCTION_SETS, InstructionSet

_FUNCTION = """
define i32 @{kind}(ptr %p, ptr %q) {{
  %a = load <64 x i8>, ptr %p, align 1
  %b = load <64 x i8>, ptr %q, align 1
  %wide_a = {kind} <64 x i8> %a to <64 x i32>
  %wide_b = sext <64 x i8> %b to <64 x i32>
  %products = mul <64 x i32> %wide_a, %wide_b
  %r = call i32 @llvm.vector.reduce.add.v64i32(<64 x i32> %products)
  ret i32 %r
}}
"""
# instructions for unsigned bytes come first, so they are found first
_PROBE = "".join(_FUNCTION.format(kind=kind) for kind in ("zext", "sext"))
INSTRUCTION_SETS.add("dot4", InstructionSet("dot4", "x86_64|i386|i686|aarch64", _PROBE, "vpdpbusd|usdot|sdot"))
