"""What metadata say of an executable of the virtual machine."""

from __future__ import annotations

from mlfc.support.bytecode import OPEN, Executable, work_bytes
from mlfc.support.module_info import SymbolInfo, VmInfo


def vm_info(executable: Executable, nbytes: int) -> VmInfo:
    """Return what the virtual machine needs for an executable; `nbytes` are those of its bytecode."""
    symbols = tuple(
        SymbolInfo(symbol.name, symbol.low, symbol.high if symbol.high < OPEN else None)
        for symbol in executable.symbols
    )
    arena = executable.arena_bytes if executable.is_bounded else None
    return VmInfo(nbytes, arena, work_bytes(executable), symbols)
