"""x86's products of matrices of bytes (AMX): tiles of up to 16 rows of 64 bytes, 16,384 multiply-accumulates at once.

What the operating system keeps of a tile for each thread is 8 KiB, which it gives only to programs that ask for it
(``permission.h``). So a processor that has tiles may still run without them: every kernel has a form without.
"""

from __future__ import annotations

from dataclasses import replace

from mlfc.target.features import INSTRUCTION_SETS, Features, InstructionSet

# LLVM writes such instructions where it is asked for them by name alone
_PROBE = "define void @nothing() {\n  ret void\n}\n"
INSTRUCTION_SETS.add("amx", InstructionSet("amx", "x86_64", _PROBE, r"\btdpbusd\b", before="vector", in_llvm=False))


def with_tiles(features: Features) -> Features:
    """Return the abilities of a processor that has tiles beside its vectors of 64 bytes."""
    return replace(features, instruction_sets=("amx", *features.instruction_sets))
