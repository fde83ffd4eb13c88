"""Which functions an ELF object file defines, read from its symbol table. Nothing of the file is trusted."""

from __future__ import annotations

import struct

from mlforge.errors import ArchiveError
from mlforge.library.elf import ElfObject, Section, read_elf

_SYMTAB = 2
_LOCAL = 0
_KINDS = (0, 2)  # an assembler may leave the type of a function open
_MAX_NAME = 4096
_MAX_TEXT = 32 << 20
MAX_SYMBOLS = 1_000_000


def defined_functions(data: bytes | memoryview, place: str) -> set[str]:
    """Return the names of the functions that an object file defines for others.

    Parameters
    ----------
    data : bytes
    place : str
        The file, for messages.

    Raises
    ------
    ArchiveError
        If it is not an ELF file, or its tables do not lie within it.
    """
    view = memoryview(data)
    try:
        elf = read_elf(view)
        tables = [section for section in elf.sections if section.kind == _SYMTAB]
        if len(tables) > 1:
            raise ValueError(f"{len(tables)} tables of symbols")
        return _functions_of(elf, tables[0], view) if tables else set()
    except (ValueError, IndexError) as error:
        raise ArchiveError(
            f"this is not a sound ELF object: {error}", place=place, next_step="Export the archive again"
        ) from None


def _functions_of(elf: ElfObject, table: Section, data: memoryview) -> set[str]:
    # the places of name, info and section index among a symbol's fields
    pattern, (name_at, info_at, section_at) = ("IBBHQQ", (0, 1, 3)) if elf.is_64 else ("IIIBBH", (0, 3, 5))
    layout = struct.Struct(elf.order + pattern)
    symbols = _content(table, data)
    count = len(symbols) // layout.size
    if count > MAX_SYMBOLS:
        raise ValueError(f"more than {MAX_SYMBOLS:,} symbols")
    text = bytes(_content(elf.sections[table.link], data))
    found: set[str] = set()
    room = _MAX_TEXT
    for fields in layout.iter_unpack(symbols[: count * layout.size]):
        binding, kind = fields[info_at] >> 4, fields[info_at] & 15
        if fields[section_at] == 0 or binding == _LOCAL or kind not in _KINDS:
            continue
        start = fields[name_at]
        end = text.find(b"\0", start, start + _MAX_NAME)
        if end < 0:
            raise ValueError("a name that does not end")
        # names may lie within each other, so a small table could ask for a lot of memory
        room -= end - start
        if room < 0:
            raise ValueError(f"names of more than {_MAX_TEXT:,} bytes")
        found.add(text[start:end].decode("utf-8", "replace"))
    return found


def _content(section: Section, data: memoryview) -> memoryview:
    if section.offset + section.nbytes > len(data):
        raise ValueError(f"a table at byte {section.offset} that the file does not hold")
    return data[section.offset : section.offset + section.nbytes]
