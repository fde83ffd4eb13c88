"""The table of symbols of an ELF file. Nothing of the file is trusted."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from mlfc.objfile.elf import ElfObject, Section, read_elf

MAX_SYMBOLS = 1_000_000
_SYMTAB, _DYNSYM = 2, 11
_MAX_NAME = 4096
_MAX_TEXT = 32 << 20

NOTYPE, OBJECT, FUNCTION = 0, 1, 2
"""Kinds of symbols."""


@dataclass(frozen=True)
class Symbol:
    """A symbol that the file itself defines, in ELF's numbers: `section` says where, `is_local` for whom."""

    name: str
    value: int
    nbytes: int
    kind: int
    is_local: bool
    section: int


def read_symbols(data: bytes | memoryview, *, dynamic: bool = False) -> Iterator[Symbol]:
    """Yield the symbols that an ELF file defines.

    Parameters
    ----------
    data : bytes
    dynamic : bool
        Those of a library that programs find when they load it, instead of all.

    Raises
    ------
    ValueError
        If it is not an ELF file, or its tables do not lie within it.
    """
    view = memoryview(data)
    elf = read_elf(view)
    tables = [section for section in elf.sections if section.kind == (_DYNSYM if dynamic else _SYMTAB)]
    if len(tables) > 1:
        raise ValueError(f"{len(tables)} tables of symbols")
    for table in tables:
        yield from _symbols_of(elf, table, view)


def _symbols_of(elf: ElfObject, table: Section, data: memoryview) -> Iterator[Symbol]:
    # the places of name, value, size, info and section index among a symbol's fields
    pattern, places = ("IBBHQQ", (0, 4, 5, 1, 3)) if elf.is_64 else ("IIIBBH", (0, 1, 2, 3, 5))
    layout = struct.Struct(elf.order + pattern)
    symbols = _content(table, data)
    count = len(symbols) // layout.size
    if count > MAX_SYMBOLS:
        raise ValueError(f"more than {MAX_SYMBOLS:,} symbols")
    if table.link >= len(elf.sections):
        raise ValueError("symbols without a table of names")
    text = bytes(_content(elf.sections[table.link], data))
    room = _MAX_TEXT
    for fields in layout.iter_unpack(symbols[: count * layout.size]):
        start, value, nbytes, info, section = (fields[place] for place in places)
        if section == 0:
            continue
        end = text.find(b"\0", start, start + _MAX_NAME)
        if end < 0:
            raise ValueError("a name that does not end")
        # names may lie within each other, so a small table could ask for a lot of memory
        room -= end - start
        if room < 0:
            raise ValueError(f"names of more than {_MAX_TEXT:,} bytes")
        yield Symbol(text[start:end].decode("utf-8", "replace"), value, nbytes, info & 15, info >> 4 == 0, section)


def _content(section: Section, data: memoryview) -> memoryview:
    if section.offset + section.nbytes > len(data):
        raise ValueError(f"a table at byte {section.offset} that the file does not hold")
    return data[section.offset : section.offset + section.nbytes]
