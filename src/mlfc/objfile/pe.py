"""What a library (PE) or an object (COFF) for Windows exports. The file is untrusted."""

from __future__ import annotations

import struct
from collections.abc import Iterator

# Windows loads no library of more sections; the places of names are numbers of 16 bits
_MAX_SECTIONS, _MAX_EXPORTS = 96, 1 << 16
_MAX_SYMBOLS = 1_000_000
_HEADER_AT = 0x3C
# behind the mark: machine, sections, time, symbols and their number, bytes of the optional header, traits
_HEADER = struct.Struct("<4sHHIIIHH")
# by the optional header's mark: where in it the data directories start, with that of exports first
_DIRECTORIES = {0x10B: 96, 0x20B: 112}
# name, bytes in memory, address, bytes in the file, place in the file, and what says whether it is code
_SECTION = struct.Struct("<8sIIII12xI")
_EXECUTE = 0x2000_0000
# numbers of functions and of names; tables of functions, of names, of the places of named functions
_EXPORTS = struct.Struct("<20xIIIII")
_MAX_NAME = 4096
# of an object: machine, sections, time, place and number of symbols
_OBJECT = struct.Struct("<HHIIIHH")
# name, value, section, type, storage class, entries that follow and belong to it
_SYMBOL = struct.Struct("<8sIhHBB")
_EXTERNAL = 2


def pe_exports(data: memoryview) -> Iterator[tuple[str, memoryview | None]]:
    """Yield the names that a library exports: None for a function, for a variable the rest of its section."""
    (at,) = struct.unpack_from("<I", data, _HEADER_AT)
    *_, optional, _ = header = _HEADER.unpack_from(data, at)
    start = at + _HEADER.size
    (mark,) = struct.unpack_from("<H", data, start)
    if mark not in _DIRECTORIES:
        raise ValueError(f"its optional header is of the unknown form {mark:#x}")
    if header[2] > _MAX_SECTIONS:
        raise ValueError(f"{header[2]:,} sections")
    sections = [_SECTION.unpack_from(data, start + optional + index * _SECTION.size) for index in range(int(header[2]))]
    table, nbytes = struct.unpack_from("<II", data, start + _DIRECTORIES[mark])
    if not table:
        return
    _, count, functions, names, places = _EXPORTS.unpack_from(_rest(data, sections, table)[0])
    if count > _MAX_EXPORTS:
        raise ValueError(f"more than {_MAX_EXPORTS:,} names")
    name_table, place_table = _rest(data, sections, names)[0], _rest(data, sections, places)[0]
    function_table = _rest(data, sections, functions)[0]
    for index in range(count):
        (name_at,) = struct.unpack_from("<I", name_table, 4 * index)
        (place,) = struct.unpack_from("<H", place_table, 2 * index)
        (address,) = struct.unpack_from("<I", function_table, 4 * place)
        text, end, _ = bytes(_rest(data, sections, name_at)[0][:_MAX_NAME]).partition(b"\0")
        if not end:
            raise ValueError("a name that does not end")
        if not table <= address < table + nbytes:  # else it names a symbol of another library
            content, traits = _rest(data, sections, address)
            yield text.decode("utf-8", "replace"), None if traits & _EXECUTE else content


def _rest(data: memoryview, sections: list[tuple[int, ...]], address: int) -> tuple[memoryview, int]:
    """Return the file from an address of the loaded library to the end of the section, and the section's traits."""
    for _, memory, start, nbytes, at, traits in sections:
        if start <= address < start + max(memory, nbytes):
            return data[min(at + address - start, at + nbytes) : at + nbytes], traits
    raise ValueError(f"the address {address:#x} is in no section")


def coff_exports(data: memoryview) -> Iterator[tuple[str, memoryview | None]]:
    """Yield the names that an object defines for others; as `pe_exports`."""
    _, sections, _, table, count, optional, _ = _OBJECT.unpack_from(data)
    if count > _MAX_SYMBOLS:
        raise ValueError(f"more than {_MAX_SYMBOLS:,} symbols")
    first, strings = _OBJECT.size + optional, table + count * _SYMBOL.size
    index = 0
    while index < count:
        name, value, section, _, storage, others = _SYMBOL.unpack_from(data, table + index * _SYMBOL.size)
        index += 1 + others
        if storage != _EXTERNAL or section <= 0:
            continue
        if section > sections:
            raise ValueError("a symbol is in no section")
        if name.startswith(bytes(4)):  # a longer name is in the string table
            start = strings + int.from_bytes(name[4:], "little")
            name, end, _ = bytes(data[start : start + _MAX_NAME]).partition(b"\0")
            if not end:
                raise ValueError("a name that does not end")
        *_, nbytes, at, traits = _SECTION.unpack_from(data, first + (section - 1) * _SECTION.size)
        content = data[min(at + value, at + nbytes) : at + nbytes]
        yield name.rstrip(b"\0").decode("utf-8", "replace"), None if traits & _EXECUTE else content
