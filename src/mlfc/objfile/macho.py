"""What a library for macOS (64-bit Mach-O) exports. The file is untrusted."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from mlfc.errors import UnsupportedError

MAX_SYMBOLS = 1_000_000
_MARK = b"\xcf\xfa\xed\xfe"
_HEADER_BYTES = 32
_COMMAND = struct.Struct("<II")
_SEGMENT, _SYMTAB = 0x19, 2
_SEGMENT_BYTES, _SECTIONS_AT = 72, 64
# address, bytes, place in the file, and what says whether it is code or only zeros
_SECTION = struct.Struct("<32xQQI12xI12x")
_CODE, _KIND, _ZEROS = 0x8000_0400, 0xFF, (1, 12)
# the tables of symbols and of names
_TABLES = struct.Struct("<8xIIII")
# name, kind, section, and address
_SYMBOL = struct.Struct("<IBB2xQ")
_EXTERNAL, _TYPE, _IN_SECTION, _DEBUG = 0x01, 0x0E, 0x0E, 0xE0
_MAX_NAME, _MAX_TEXT = 4096, 32 << 20


def macho_exports(data: memoryview) -> Iterator[tuple[str, memoryview | None]]:
    """Yield the names that a library defines for others: None for a function, for a variable the rest of its section.

    Raises ValueError or struct.error if a table is cut off, UnsupportedError for 32 bits or several processors.
    """
    if data[:4] != _MARK:
        raise UnsupportedError(
            "only code for macOS of 64 bits and one processor is read here",
            next_step="Give the library of one processor",
        )
    sections: list[tuple[int, ...]] = []
    tables: list[tuple[int, ...]] = []
    (count,) = struct.unpack_from("<I", data, 16)
    at = _HEADER_BYTES
    for _ in range(count):
        command, nbytes = _COMMAND.unpack_from(data, at)
        if nbytes < _COMMAND.size:
            raise ValueError(f"a load command of {nbytes} bytes")
        if command == _SEGMENT:
            (number,) = struct.unpack_from("<I", data, at + _SECTIONS_AT)
            if _SEGMENT_BYTES + number * _SECTION.size > nbytes:
                raise ValueError("the sections of a segment exceed its load command")
            first = at + _SEGMENT_BYTES
            sections += [_SECTION.unpack_from(data, first + index * _SECTION.size) for index in range(number)]
        elif command == _SYMTAB:
            tables.append(_TABLES.unpack_from(data, at))
        at += nbytes
    for start, number, texts, text_bytes in tables[:1]:
        yield from _symbols(data, sections, (start, number), bytes(data[texts : texts + min(text_bytes, _MAX_TEXT)]))


def _symbols(
    data: memoryview, sections: list[tuple[int, ...]], table: tuple[int, int], names: bytes
) -> Iterator[tuple[str, memoryview | None]]:
    start, number = table
    if number > MAX_SYMBOLS:
        raise ValueError(f"more than {MAX_SYMBOLS:,} symbols")
    for index in range(number):
        name_at, kind, place, value = _SYMBOL.unpack_from(data, start + index * _SYMBOL.size)
        if kind & _DEBUG or not kind & _EXTERNAL or kind & _TYPE != _IN_SECTION:
            continue
        if not 0 < place <= len(sections):
            raise ValueError("a symbol is in no section")
        end = names.find(b"\0", name_at, name_at + _MAX_NAME)
        if end < 0:
            raise ValueError("a name that does not end")
        address, nbytes, at, traits = sections[place - 1]
        offset = value - address
        if not 0 <= offset <= nbytes:
            raise ValueError("a symbol is outside its section")
        name = names[name_at:end].decode("utf-8", "replace").removeprefix("_")
        is_empty = traits & _KIND in _ZEROS
        content = data[:0] if is_empty else data[at + offset : at + nbytes]
        yield name, None if traits & _CODE else content
