"""x86's matrix products of bytes (AMX): tiles of up to 16 rows of 64 bytes, 16,384 multiply-accumulates at once.

The operating system saves 8 KiB of tile data per thread, only for programs that request it (``permission.h``). So
kernels may have to run without tiles even on processors that have them, and have both forms.
"""

from __future__ import annotations

from dataclasses import replace

from mlfc.target.features import INSTRUCTION_SETS, Features, InstructionSet

# LLVM emits these instructions only for intrinsics that name them
_PROBE = "define void @nothing() {\n  ret void\n}\n"
INSTRUCTION_SETS.add("amx", InstructionSet("amx", "x86_64", _PROBE, r"\btdpbusd\b", before="vector", in_llvm=False))


def with_tiles(features: Features) -> Features:
    """Return the features of a processor that has tiles in addition to 64-byte vectors."""
    return replace(features, instruction_sets=("amx", *features.instruction_sets))
