"""Which functions an ELF object file defines, read from its symbol table. Nothing of the file is trusted."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mlforge.errors import ArchiveError

_MAGIC = b"\x7fELF"
_SYMTAB = 2
_LOCAL = 0
_KINDS = (0, 2)  # an assembler may leave the type of a function open
MAX_SYMBOLS = 1_000_000


@dataclass(frozen=True)
class _Form:
    """Where things lie in files of 32 or 64 bits, as `struct` patterns and offsets."""

    section_table: tuple[int, str]
    section_counts: int
    section: str
    symbol: str
    symbol_fields: tuple[int, int, int]  # places of name, info and section index among the fields


_FORMS = {
    1: _Form((0x20, "I"), 0x2E, "IIIIIIIIII", "IIIBBH", (0, 3, 5)),
    2: _Form((0x28, "Q"), 0x3A, "IIQQQQIIQQ", "IBBHQQ", (0, 1, 3)),
}


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
    try:
        return _defined_functions(memoryview(data))
    except (struct.error, ValueError, KeyError, IndexError) as error:
        raise ArchiveError(f"this is not a sound ELF object ({error})", place=place) from None


def _defined_functions(data: memoryview) -> set[str]:
    if bytes(data[:4]) != _MAGIC:
        raise ValueError("it does not start as one")
    form = _FORMS[data[4]]
    order = {1: "<", 2: ">"}[data[5]]
    offset, pattern = form.section_table
    (table,) = struct.unpack_from(f"{order}{pattern}", data, offset)
    size, count = struct.unpack_from(f"{order}HH", data, form.section_counts)
    layout = struct.Struct(f"{order}{form.section}")
    if size != layout.size:
        raise ValueError(f"section headers of {size} bytes")
    sections = [layout.unpack_from(_part(data, table + index * size, size)) for index in range(count)]
    names: set[str] = set()
    for section in sections:
        if section[1] == _SYMTAB:
            strings = sections[section[6]]
            names |= _functions_of(_part(data, *section[4:6]), _part(data, *strings[4:6]), form, order)
    return names


def _functions_of(symbols: memoryview, strings: memoryview, form: _Form, order: str) -> set[str]:
    layout = struct.Struct(f"{order}{form.symbol}")
    if len(symbols) // layout.size > MAX_SYMBOLS:
        raise ValueError(f"more than {MAX_SYMBOLS:,} symbols")
    text = bytes(strings)
    name_at, info_at, section_at = form.symbol_fields
    found = set()
    for fields in layout.iter_unpack(symbols[: len(symbols) // layout.size * layout.size]):
        binding, kind = fields[info_at] >> 4, fields[info_at] & 15
        if fields[section_at] == 0 or binding == _LOCAL or kind not in _KINDS:
            continue
        start = fields[name_at]
        end = text.find(b"\0", start, start + 4096)
        if end < 0:
            raise ValueError("a name that does not end")
        found.add(text[start:end].decode("utf-8", "replace"))
    return found


def _part(data: memoryview, offset: int, size: int) -> memoryview:
    if offset + size > len(data):
        raise ValueError(f"a table at byte {offset} that the file does not hold")
    return data[offset : offset + size]
