"""Whom the C interpreter of the virtual machine calls through pointers, as a linked program says it.

The interpreter calls kernels by the table that a module exports, and functions of `mlfc_vm_host`. Firmware with a
static work area has none of the latter: its storages lie in the arena, so nothing is allocated.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from mlfc.objfile.elf import read_bytes

ENTRIES = ("mlfc_vm_load", "mlfc_vm_run")
"""What firmware calls of the interpreter."""
FOLDER = "runtime/crt/vm/"
"""Where its sources lie."""
LAUNCHES = "execute.c"
"""The source of those that calls kernels."""

_TABLE = re.compile(r"tvmgen_\w+_vm_code")
_MOST_KERNELS = 65_536
# tables of a core with addresses of four bytes
_CODE, _ENTRY = struct.Struct("<IIII"), struct.Struct("<IIII")


@dataclass(frozen=True)
class InterpreterCalls:
    """What the interpreter's functions call through pointers."""

    launchers: frozenset[int]  # addresses of functions that launch kernels
    file_at: Callable[[int], str | None]  # the object file that code at an address comes from

    def called_by(self, address: int) -> frozenset[int] | None:
        """Return the addresses of what a function calls through pointers; None if it is none of the interpreter's."""
        file = self.file_at(address) or ""
        if FOLDER not in file:
            return None
        return self.launchers if PurePosixPath(file).name.startswith(LAUNCHES) else frozenset()


def interpreter_calls(
    elf: bytes, named: Mapping[str, int], file_at: Callable[[int], str | None]
) -> InterpreterCalls | None:
    """Return whom the interpreter in a linked program calls; None unless the program has one table of kernels.

    `named`: addresses of symbols.
    """
    tables = [address for name, address in named.items() if _TABLE.fullmatch(name)]
    if len(tables) != 1:
        return None
    try:
        count, kernels, _, _ = _CODE.unpack(read_bytes(elf, tables[0], _CODE.size))
        if count > _MOST_KERNELS:
            return None
        entries = _ENTRY.iter_unpack(read_bytes(elf, kernels, count * _ENTRY.size) if count else b"")
    except (ValueError, struct.error):
        return None
    # the lowest bit says that code is Thumb's
    return InterpreterCalls(frozenset(launch & ~1 for launch, *_ in entries), file_at)
