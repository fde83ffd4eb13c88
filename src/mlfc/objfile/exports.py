"""What a file of machine code defines for others, in any format. The file is untrusted."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from mlfc.errors import UnsupportedError
from mlfc.objfile.elf import FUNCTION, NO_BITS, ElfObject, ElfSymbol, read_elf, read_symbols
from mlfc.objfile.head import HEAD, LIBRARY, OBJECT, read_head
from mlfc.objfile.macho import macho_exports
from mlfc.objfile.pe import coff_exports, pe_exports
from mlfc.objfile.wasm import wasm_exports
from mlfc.support.text import with_article

_MAX_TEXT = 32 << 20
_NOTHING = memoryview(b"")


@dataclass(frozen=True)
class Export:
    """A function or variable."""

    name: str  # as in C
    is_function: bool
    content: memoryview  # the file from the variable to its end, or that of its section; empty for functions


def exports(code: memoryview) -> Iterator[Export]:
    """Yield what a library or an object defines for others.

    Raises ValueError if the file breaks its format, UnsupportedError if the format is not read here.
    """
    head = read_head(code[:HEAD])
    if head is None:
        raise ValueError("it is not known machine code")
    if head.system == "linux":
        elf = read_elf(code)
        # the names of functions are all that is wanted of them
        symbols = (item for item in read_symbols(code, dynamic=head.kind == LIBRARY) if not item.is_local)
        yield from map(partial(_of_elf, elf, code), symbols)
        return
    found = _READERS.get((head.system, head.kind))
    if found is None:
        raise UnsupportedError(
            f"{with_article(head.kind)} for {head.system} is not read here",
            next_step="Inspect the archive of the model",
        )
    room = _MAX_TEXT
    try:
        for name, content in found(code):
            # names may overlap, so a small table could ask for a lot of memory
            room -= len(name)
            if room < 0:
                raise ValueError(f"names of more than {_MAX_TEXT:,} letters")
            yield Export(name, content is None, _NOTHING if content is None else content)
    except struct.error:
        raise ValueError("its tables are cut off") from None


_READERS: dict[tuple[str, str], Callable[[memoryview], Iterator[tuple[str, memoryview | None]]]] = {
    ("windows", LIBRARY): pe_exports,
    ("windows", OBJECT): coff_exports,
    ("macos", LIBRARY): macho_exports,
    ("macos", OBJECT): macho_exports,
    ("wasi", LIBRARY): wasm_exports,
}


def _of_elf(elf: ElfObject, code: memoryview, symbol: ElfSymbol) -> Export:
    if symbol.kind == FUNCTION:
        return Export(symbol.name, True, _NOTHING)
    section = elf.sections[symbol.section] if symbol.section < len(elf.sections) else None
    if section is None or section.kind == NO_BITS:
        return Export(symbol.name, False, _NOTHING)
    start = symbol.value - section.address
    if not 0 <= start <= section.nbytes - symbol.nbytes or section.offset + section.nbytes > len(code):
        raise ValueError(f"{symbol.name} is outside its section")
    at = section.offset + start
    return Export(symbol.name, False, code[at : at + symbol.nbytes])
