"""Exported symbols of machine code files of any format. The files are untrusted.

Source of WebAssembly's format: its core specification, chapter "Binary Format".
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from mlfc.errors import UnsupportedError
from mlfc.objfile.elf import FUNCTION, NO_BITS, read_elf, read_symbols
from mlfc.objfile.head import HEAD, LIBRARY, OBJECT, read_head
from mlfc.support.text import with_article

_MAX_SYMBOLS, _MAX_NAME, _MAX_TEXT = 1_000_000, 4096, 32 << 20
_NOTHING = memoryview(b"")
_Found: TypeAlias = Iterator[tuple[str, memoryview | None]]
"""Names, with the rest of the section for a variable, and None for a function."""


@dataclass(frozen=True)
class Export:
    """An exported function or variable."""

    name: str  # as in C
    is_function: bool
    content: memoryview  # from the variable to the end of the file or of its section; empty for functions


def exports(code: memoryview) -> Iterator[Export]:
    """Yield the exports of a file; raise ValueError if it is invalid, UnsupportedError for other formats."""
    head = read_head(code[:HEAD])
    if head is None:
        raise ValueError("it is not known machine code")
    reader = _READERS.get((head.system, head.kind), _elf_exports if head.system == "linux" else None)
    if reader is None:
        raise UnsupportedError(
            f"{with_article(head.kind)} for {head.system} is not supported",
            next_step="Inspect the archive of the model",
        )
    room = _MAX_TEXT
    try:
        for name, content in reader(code):
            # names may overlap, so a small table could require a lot of memory
            room -= len(name)
            if room < 0:
                raise ValueError(f"names of more than {_MAX_TEXT:,} letters")
            yield Export(name, content is None, _NOTHING if content is None else content)
    except struct.error:
        raise ValueError("its tables are cut off") from None


def _require_count(count: int, most: int = _MAX_SYMBOLS, what: str = "symbols") -> None:
    if count > most:
        raise ValueError(f"more than {most:,} {what}")


def _name_at(data: memoryview | bytes, start: int = 0) -> str:
    text, end, _ = bytes(data[start : start + _MAX_NAME]).partition(b"\0")
    if not end:
        raise ValueError("a name that does not end")
    return text.decode("utf-8", "replace")


def _elf_exports(code: memoryview) -> _Found:
    """Yield the exports of a library, or all global symbols of objects and other files."""
    elf = read_elf(code)
    head = read_head(code[:HEAD])
    for symbol in read_symbols(code, dynamic=head is not None and head.kind == LIBRARY):
        section = elf.sections[symbol.section] if symbol.section < len(elf.sections) else None
        if symbol.is_local:
            continue
        if symbol.kind == FUNCTION:
            yield symbol.name, None  # only the names of functions are needed
        elif section is None or section.kind == NO_BITS:
            yield symbol.name, _NOTHING
        else:
            start = symbol.value - section.address
            if not 0 <= start <= section.nbytes - symbol.nbytes or section.offset + section.nbytes > len(code):
                raise ValueError(f"{symbol.name} is outside its section")
            yield symbol.name, code[section.offset + start : section.offset + start + symbol.nbytes]


# Windows does not load libraries with more sections; indices of names are 16-bit numbers
_MAX_SECTIONS, _MAX_EXPORTS = 96, 1 << 16
_PE_HEADER_AT = 0x3C
# after the signature: machine, sections, time, symbol table and count, bytes of the optional header, characteristics
_PE_HEADER = struct.Struct("<4sHHIIIHH")
# by the optional header's magic number: offset of the data directories, the first of which is that of exports
_DIRECTORIES = {0x10B: 96, 0x20B: 112}
# name, bytes in memory, address, bytes in the file, offset in the file, and characteristics, such as code
_PE_SECTION = struct.Struct("<8sIIII12xI")
_EXECUTE = 0x2000_0000
# counts of functions and of names; tables of functions, of names, of the indices of named functions
_PE_EXPORTS = struct.Struct("<20xIIIII")
# of an object: machine, sections, time, offset and count of symbols
_COFF_HEADER = struct.Struct("<HHIIIHH")
# name, value, section, type, storage class, number of auxiliary entries
_COFF_SYMBOL = struct.Struct("<8sIhHBB")
_COFF_EXTERNAL = 2


def _pe_exports(data: memoryview) -> _Found:
    (at,) = struct.unpack_from("<I", data, _PE_HEADER_AT)
    _, _, count, _, _, _, optional, _ = _PE_HEADER.unpack_from(data, at)
    start = at + _PE_HEADER.size
    (mark,) = struct.unpack_from("<H", data, start)
    if mark not in _DIRECTORIES:
        raise ValueError(f"its optional header is of the unknown form {mark:#x}")
    if count > _MAX_SECTIONS:
        raise ValueError(f"{count:,} sections")
    sections = [_PE_SECTION.unpack_from(data, start + optional + index * _PE_SECTION.size) for index in range(count)]

    def rest(address: int) -> tuple[memoryview, int]:
        """Return the file from an address of the loaded library to the end of the section, and its characteristics."""
        for _, memory, start, nbytes, at, traits in sections:
            if start <= address < start + max(memory, nbytes):
                return data[min(at + address - start, at + nbytes) : at + nbytes], traits
        raise ValueError(f"the address {address:#x} is in no section")

    table, nbytes = struct.unpack_from("<II", data, start + _DIRECTORIES[mark])
    if not table:
        return
    _, count, *addresses = _PE_EXPORTS.unpack_from(rest(table)[0])
    _require_count(count, _MAX_EXPORTS, "names")
    functions, names, places = (rest(address)[0] for address in addresses)
    for index in range(count):
        (name_at,) = struct.unpack_from("<I", names, 4 * index)
        (place,) = struct.unpack_from("<H", places, 2 * index)
        (address,) = struct.unpack_from("<I", functions, 4 * place)
        name = _name_at(rest(name_at)[0])
        if not table <= address < table + nbytes:  # otherwise it forwards to a symbol of another library
            content, traits = rest(address)
            yield name, None if traits & _EXECUTE else content


def _coff_exports(data: memoryview) -> _Found:
    _, sections, _, table, count, optional, _ = _COFF_HEADER.unpack_from(data)
    _require_count(count)
    first, strings = _COFF_HEADER.size + optional, table + count * _COFF_SYMBOL.size
    index = 0
    while index < count:
        name, value, section, _, storage, others = _COFF_SYMBOL.unpack_from(data, table + index * _COFF_SYMBOL.size)
        index += 1 + others
        if storage != _COFF_EXTERNAL or section <= 0:
            continue
        if section > sections:
            raise ValueError("a symbol is in no section")
        # longer names are in the string table
        is_long = name.startswith(bytes(4))
        text = _name_at(data, strings + int.from_bytes(name[4:], "little")) if is_long else _name_at(name + b"\0")
        *_, nbytes, at, traits = _PE_SECTION.unpack_from(data, first + (section - 1) * _PE_SECTION.size)
        yield text, None if traits & _EXECUTE else data[min(at + value, at + nbytes) : at + nbytes]


_MACHO = b"\xcf\xfa\xed\xfe"
_MACHO_HEADER_BYTES = 32
_COMMAND = struct.Struct("<II")
_SEGMENT, _SYMTAB = 0x19, 2
_SEGMENT_BYTES, _SECTIONS_AT = 72, 64
# address, bytes, offset in the file, and flags for code or zeros only
_MACHO_SECTION = struct.Struct("<32xQQI12xI12x")
_CODE, _KIND, _ZEROS = 0x8000_0400, 0xFF, (1, 12)
# symbol table and string table
_MACHO_TABLES = struct.Struct("<8xIIII")
# name, type, section, and address
_MACHO_SYMBOL = struct.Struct("<IBB2xQ")
_MACHO_EXTERNAL, _TYPE, _IN_SECTION, _DEBUG = 0x01, 0x0E, 0x0E, 0xE0


def _macho_exports(data: memoryview) -> _Found:
    if data[:4] != _MACHO:
        raise UnsupportedError(
            "only 64-bit code for one macOS processor is supported",
            next_step="Extract the library of one processor",
        )
    sections: list[tuple[int, ...]] = []
    tables: list[tuple[int, ...]] = []
    (count,) = struct.unpack_from("<I", data, 16)
    at = _MACHO_HEADER_BYTES
    for _ in range(count):
        command, nbytes = _COMMAND.unpack_from(data, at)
        if nbytes < _COMMAND.size:
            raise ValueError(f"a load command of {nbytes} bytes")
        if command == _SEGMENT:
            (number,) = struct.unpack_from("<I", data, at + _SECTIONS_AT)
            if _SEGMENT_BYTES + number * _MACHO_SECTION.size > nbytes:
                raise ValueError("the sections of a segment exceed its load command")
            first = at + _SEGMENT_BYTES
            sections += [_MACHO_SECTION.unpack_from(data, first + i * _MACHO_SECTION.size) for i in range(number)]
        elif command == _SYMTAB:
            tables.append(_MACHO_TABLES.unpack_from(data, at))
        at += nbytes
    for start, number, names_at, names_bytes in tables[:1]:
        _require_count(number)
        names = bytes(data[names_at : names_at + min(names_bytes, _MAX_TEXT)])
        for index in range(number):
            name_at, kind, place, value = _MACHO_SYMBOL.unpack_from(data, start + index * _MACHO_SYMBOL.size)
            if kind & _DEBUG or not kind & _MACHO_EXTERNAL or kind & _TYPE != _IN_SECTION:
                continue
            if not 0 < place <= len(sections):
                raise ValueError("a symbol is in no section")
            name = _name_at(names, name_at)
            address, nbytes, at, traits = sections[place - 1]
            offset = value - address
            if not 0 <= offset <= nbytes:
                raise ValueError("a symbol is outside its section")
            content = _NOTHING if traits & _KIND in _ZEROS else data[at + offset : at + nbytes]
            yield name.removeprefix("_"), None if traits & _CODE else content


_WASM_HEADER_BYTES = 8
_IMPORTS, _GLOBALS, _EXPORTS, _DATA = 2, 6, 7, 11
_FUNCTION, _TABLE, _MEMORY, _GLOBAL, _TAG = range(5)
_I32_CONST, _END = 0x41, 0x0B
_ACTIVE, _PASSIVE, _ACTIVE_IN = range(3)
_WORD_BYTES = 5


def _wasm_exports(data: memoryview) -> _Found:
    reader = _WasmReader(data, _WASM_HEADER_BYTES)
    sections: dict[int, _WasmReader] = {}
    while reader.at < len(data):
        kind = reader.byte()
        sections[kind] = _WasmReader(reader.take(reader.number()))
    if _EXPORTS not in sections:
        raise UnsupportedError("WebAssembly objects are not supported", next_step="Pass the linked .wasm")
    imports, variables, contents = (
        sections.get(kind) or _WasmReader(memoryview(b"\0")) for kind in (_IMPORTS, _GLOBALS, _DATA)
    )
    imported = _imported_globals(imports)
    addresses = []
    for _ in range(variables.count()):
        variables.take(2)  # its type and mutability
        addresses.append(variables.address())
    segments = sorted(_segments(contents), key=lambda segment: segment[0])
    starts = [start for start, _ in segments]
    reader = sections[_EXPORTS]
    for _ in range(reader.count()):
        name, kind, index = reader.name(), reader.byte(), reader.number()
        if kind == _FUNCTION:
            yield name, None
        elif kind == _GLOBAL and imported <= index < imported + len(addresses):
            address = addresses[index - imported]
            before = bisect_right(starts, address)
            start, part = segments[before - 1] if before else (0, _NOTHING)
            yield name, part[address - start :]


@dataclass(eq=False)
class _WasmReader:
    data: memoryview
    at: int = 0

    def take(self, nbytes: int) -> memoryview:
        if nbytes > len(self.data) - self.at:
            raise ValueError("a section is cut off")
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self, *, signed: bool = False) -> int:
        """Return a LEB128 number of 32 bits: seven bits per byte, the lowest first."""
        value = 0
        for index in range(_WORD_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                negative = signed and byte & 0x40
                return (value - (1 << 7 * (index + 1)) if negative else value) & 0xFFFF_FFFF
        raise ValueError("a number of more than 32 bits")

    def count(self) -> int:
        found = self.number()
        if found > _MAX_SYMBOLS:
            raise ValueError(f"a section of {found:,} entries")
        return found

    def name(self) -> str:
        nbytes = self.number()
        if nbytes > _MAX_NAME:
            raise ValueError(f"a name of {nbytes:,} bytes")
        return bytes(self.take(nbytes)).decode("utf-8", "replace")

    def address(self) -> int:
        """Return the value of a constant expression; raise ValueError unless it is an ``i32.const``."""
        value = self.number(signed=True) if self.byte() == _I32_CONST else None
        if value is None or self.byte() != _END:
            raise ValueError("an address that is not constant")
        return value

    def limits(self) -> None:
        has_most = self.number() & 1
        for _ in range(1 + has_most):
            self.number()


def _imported_globals(reader: _WasmReader) -> int:
    found = 0
    for _ in range(reader.count()):
        reader.name()
        reader.name()
        kind = reader.byte()
        if kind > _TAG:
            raise ValueError(f"an import of an unknown kind before byte {reader.at} of its section")
        found += kind == _GLOBAL
        reader.take({_TABLE: 1, _GLOBAL: 2, _TAG: 1}.get(kind, 0))
        if kind in (_TABLE, _MEMORY):
            reader.limits()
        elif kind in (_FUNCTION, _TAG):
            reader.number()
    return found


def _segments(reader: _WasmReader) -> Iterator[tuple[int, memoryview]]:
    for _ in range(reader.count()):
        kind = reader.number()
        if kind > _ACTIVE_IN:
            raise ValueError(f"unknown kind {kind} of data")
        if kind == _ACTIVE_IN:
            reader.number()
        start = None if kind == _PASSIVE else reader.address()
        content = reader.take(reader.number())
        if start is not None:
            yield start, content


_READERS: dict[tuple[str, str], Callable[[memoryview], _Found]] = {
    ("windows", LIBRARY): _pe_exports,
    ("windows", OBJECT): _coff_exports,
    ("macos", LIBRARY): _macho_exports,
    ("macos", OBJECT): _macho_exports,
    ("wasi", LIBRARY): _wasm_exports,
}
