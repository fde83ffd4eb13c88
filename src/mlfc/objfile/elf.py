"""ELF files: sections and symbols, and shared libraries as the system's loader sees them.

No package is used: loading a module must not wait for an import. Files are untrusted; faults are ValueErrors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAX_SYMBOLS = 1_000_000
_MAX_NAME = 4096
_MAX_TEXT = 32 << 20
NOTYPE, OBJECT, FUNCTION = 0, 1, 2
"""Types of symbols."""
_SYMBOL_SECTIONS, _DYNAMIC_SYMBOL_SECTIONS = 2, 11
NO_BITS = 8
"""Type of a section without bytes in the file."""
WRITABLE, ALLOCATED, EXECUTABLE = 1, 2, 4
"""Flags of sections: allocated ones are in memory."""
LOAD, DYNAMIC = 1, 2
"""Types of segments."""
HASH, STRTAB, SYMTAB, STRSZ, GNU_HASH = 4, 5, 6, 10, 0x6FFF_FEF5
"""Tags of the dynamic table."""
_READ = 4
_EXPORTED = (1, 2, 10)  # global, weak, unique in the process
_HASH_TABLE = "the hash table of its symbols"
_ORDERS = {1: "<", 2: ">"}
_LONGEST_NAME = 64


@dataclass(frozen=True)
class _TableFormat:
    """Table layout of an ELF class, 32 or 64 bits."""

    word: int  # bytes of an address
    segments: tuple[
        str, int, int
    ]  # in the header: format and position of the table's offset, position of entry size and count
    sections: tuple[str, int, int]
    section: str
    segment: str
    segment_fields: tuple[int, ...]  # type, flags, offset, address, bytes in the file, in memory
    entry: str
    symbol: str
    symbol_fields: tuple[int, ...]  # name, value, size, info, section


_LAYOUTS = {
    1: _TableFormat(
        4, ("I", 28, 42), ("I", 32, 46), "IIIIIIIIII", "IIIIIIII", (0, 6, 1, 2, 4, 5), "iI", "IIIBBH", (0, 1, 2, 3, 5)
    ),
    2: _TableFormat(
        8, ("Q", 32, 54), ("Q", 40, 58), "IIQQQQIIQQ", "IIQQQQQQ", (0, 1, 2, 3, 5, 6), "qQ", "IBBHQQ", (0, 4, 5, 1, 3)
    ),
}


def _layout_of(data: bytes | memoryview, least: int) -> tuple[_TableFormat, str]:
    """Return layout and byte order of a file of at least `least` bytes; raise ValueError without an ELF header."""
    if len(data) < least or data[:4] != b"\x7fELF" or data[4] not in _LAYOUTS or data[5] not in _ORDERS:
        raise ValueError("it does not start with an ELF header")
    return _LAYOUTS[data[4]], _ORDERS[data[5]]


@dataclass(frozen=True)
class Section:
    """A section header with ELF's field values."""

    name: int  # offset in the string table of section names
    kind: int
    flags: int
    address: int
    offset: int
    nbytes: int
    link: int


@dataclass(frozen=True)
class ElfObject:
    """An ELF file."""

    layout: _TableFormat
    order: str  # byte order in `struct` notation
    sections: tuple[Section, ...]


def read_elf(data: bytes | memoryview) -> ElfObject:
    """Return the sections of an ELF file; raise ValueError if it is not one, or its section table is truncated."""
    form, order = _layout_of(data, 6)
    pattern, place, sizes = form.sections
    layout = struct.Struct(order + form.section)
    try:
        (table,) = struct.unpack_from(order + pattern, data, place)
        size, count = struct.unpack_from(f"{order}HH", data, sizes)
        if count and size != layout.size:
            raise ValueError(f"section headers of {size} bytes")
        headers = [layout.unpack_from(data, table + index * size) for index in range(count)]
    except (struct.error, OverflowError):
        raise ValueError("its table of sections is cut off") from None
    return ElfObject(form, order, tuple(Section(*item[:7]) for item in headers))


def section_sizes(data: bytes | memoryview) -> dict[str, int]:
    """Return the total bytes of an ELF file's sections by name; raise ValueError for other files."""
    read = read_elf(data)
    try:
        (names,) = struct.unpack_from(f"{read.order}H", data, read.layout.sections[2] + 4)
    except struct.error:
        raise ValueError("its header is cut off") from None
    if names >= len(read.sections):
        return {}
    start = read.sections[names].offset
    texts = memoryview(data)[start : start + read.sections[names].nbytes]
    found: dict[str, int] = {}
    for section in read.sections:
        name = bytes(texts[section.name : section.name + _LONGEST_NAME]).partition(b"\0")[0].decode("ascii", "replace")
        found[name] = found.get(name, 0) + section.nbytes
    return found


def read_bytes(data: bytes | memoryview, address: int, nbytes: int) -> bytes:
    """Return initial bytes of a linked program's memory; raise ValueError if the file lacks them."""
    view = memoryview(data)
    for section in read_elf(view).sections:
        start = address - section.address
        if section.flags & ALLOCATED and section.kind != NO_BITS and 0 <= start <= section.nbytes - nbytes:
            found = bytes(view[section.offset + start : section.offset + start + nbytes])
            if len(found) == nbytes:
                return found
    raise ValueError(f"no {nbytes} bytes at address {address:#x}")


@dataclass(frozen=True)
class ElfSymbol:
    """A symbol that the file defines, with ELF's field values; `section` is its section's index."""

    name: str
    value: int
    nbytes: int
    kind: int
    is_local: bool
    section: int


def read_symbols(data: bytes | memoryview, *, dynamic: bool = False) -> Iterator[ElfSymbol]:
    """Yield the symbols that an ELF file defines; with `dynamic`, only those found in the loaded library."""
    view = memoryview(data)
    elf = read_elf(view)
    wanted = _DYNAMIC_SYMBOL_SECTIONS if dynamic else _SYMBOL_SECTIONS
    tables = [section for section in elf.sections if section.kind == wanted]
    if len(tables) > 1:
        raise ValueError(f"{len(tables)} tables of symbols")
    if not tables:
        return
    (table,) = tables
    layout = struct.Struct(elf.order + elf.layout.symbol)
    symbols = _content(table, view)
    count = len(symbols) // layout.size
    if count > MAX_SYMBOLS:
        raise ValueError(f"more than {MAX_SYMBOLS:,} symbols")
    if table.link >= len(elf.sections):
        raise ValueError("symbols without a table of names")
    text = bytes(_content(elf.sections[table.link], view))
    room = _MAX_TEXT
    for fields in layout.iter_unpack(symbols[: count * layout.size]):
        start, value, nbytes, info, section = (fields[place] for place in elf.layout.symbol_fields)
        if section == 0:
            continue
        end = text.find(b"\0", start, start + _MAX_NAME)
        if end < 0:
            raise ValueError("a name that does not end")
        # names may overlap, so a small table could require a lot of memory
        room -= end - start
        if room < 0:
            raise ValueError(f"names of more than {_MAX_TEXT:,} bytes")
        yield ElfSymbol(text[start:end].decode("utf-8", "replace"), value, nbytes, info & 15, info >> 4 == 0, section)


def _content(section: Section, data: memoryview) -> memoryview:
    if section.offset + section.nbytes > len(data):
        raise ValueError(f"a table at byte {section.offset} that is not in the file")
    return data[section.offset : section.offset + section.nbytes]


@dataclass(frozen=True)
class ElfSegment:
    """A segment with ELF's field values."""

    kind: int
    flags: int
    offset: int
    address: int
    nbytes: int
    memory: int


class ElfImage:
    """A shared library, from the bytes of its whole file.

    `segments` are all segments, `loads` those placed in memory, whose bytes are in the file. `headers`: the ranges of
    the ELF header and the segment table, `word` is the bytes of an address, `dynamic` the dynamic table by tag.
    """

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._layout, self.order = _layout_of(data, 64)
        self.word = self._layout.word
        self.segments = tuple(self._read_segments())
        self.loads = tuple(segment for segment in self.segments if segment.kind == LOAD)
        self.dynamic = self._read_dynamic()

    def _read_segments(self) -> list[ElfSegment]:
        form, place, sizes = self._layout.segments
        (table,) = struct.unpack_from(self.order + form, self.data, place)
        size, count = struct.unpack_from(f"{self.order}HH", self.data, sizes)
        layout = struct.Struct(self.order + self._layout.segment)
        if size != layout.size or not count or table + size * count > len(self.data):
            raise ValueError("its table of segments is not in the file")
        self.headers = ((0, sizes + 10), (table, table + size * count))
        found = []
        for index in range(count):
            fields = layout.unpack_from(self.data, table + index * size)
            segment = ElfSegment(*(fields[place] for place in self._layout.segment_fields))
            if segment.offset + segment.nbytes > len(self.data) and segment.memory:
                raise ValueError(f"segment {index} is not in the file")
            found.append(segment)
        return found

    def _read_dynamic(self) -> dict[int, int]:
        layout = struct.Struct(self.order + self._layout.entry)
        found: dict[int, int] = {}
        for segment in self.segments:
            if segment.kind == DYNAMIC:
                content = self.content(segment.address, segment.memory, "its dynamic table")
                for tag, value in layout.iter_unpack(content[: len(content) - len(content) % layout.size]):
                    if tag == 0:
                        return found
                    found[tag] = value
        raise ValueError("its dynamic table does not end")

    def _span(self, address: int, what: str) -> tuple[int, int]:
        for load in self.loads:
            if load.flags & _READ and load.address <= address < load.address + load.nbytes:
                return load.offset + address - load.address, load.offset + load.nbytes
        raise ValueError(f"{what} is not in the file")

    def offset(self, address: int, what: str) -> int:
        """Return the offset in the file of an address."""
        return self._span(address, what)[0]

    def rest(self, address: int, what: str) -> memoryview:
        """Return the file from an address to the end of its readable segment."""
        return self.data[slice(*self._span(address, what))]

    def content(self, address: int, nbytes: int, what: str) -> memoryview:
        """Return bytes of the file by their address in memory."""
        found = self.rest(address, what)[:nbytes]
        if len(found) != nbytes:
            raise ValueError(f"{what} is cut off")
        return found

    def find(self, name: str) -> tuple[int, int] | None:
        """Return address and size of a symbol that the library exports, or None."""
        layout = struct.Struct(self.order + self._layout.symbol)
        symbols = self.rest(self.dynamic.get(SYMTAB, 0), "its table of symbols")
        names = self.content(self.dynamic.get(STRTAB, 0), self.dynamic.get(STRSZ, 0), "the text of its names")
        wanted = name.encode() + b"\0"
        if GNU_HASH in self.dynamic:
            candidates = self._gnu_candidates(name.encode())
        elif HASH in self.dynamic:
            candidates = self._classic_candidates(name.encode())
        else:
            raise ValueError("it has no hash table of its symbols")
        for number in candidates:  # same order as the loader
            if (number + 1) * layout.size > len(symbols):
                raise ValueError("its table of symbols is cut off")
            fields = layout.unpack_from(symbols, number * layout.size)
            start, value, nbytes, info, section = (fields[place] for place in self._layout.symbol_fields)
            if names[start : start + len(wanted)] == wanted and section and info >> 4 in _EXPORTED:
                return value, nbytes
        return None

    def _numbers(self, address: int, count: int) -> tuple[int, ...]:
        return struct.unpack(f"{self.order}{count}I", self.content(address, 4 * count, _HASH_TABLE))

    def _gnu_candidates(self, name: bytes) -> Iterator[int]:
        key = 5381
        for byte in name:
            key = (33 * key + byte) & 0xFFFF_FFFF
        buckets, first, bloom, _ = self._numbers(self.dynamic[GNU_HASH], 4)
        if not buckets:
            raise ValueError(f"{_HASH_TABLE} is broken")
        start = self.dynamic[GNU_HASH] + 16 + bloom * self.word
        (number,) = self._numbers(start + 4 * (key % buckets), 1)
        if not number:
            return
        if number < first:
            raise ValueError(f"{_HASH_TABLE} is broken")
        while True:  # bounded by the end of the file
            (found,) = self._numbers(start + 4 * (buckets + number - first), 1)
            if found | 1 == key | 1:
                yield number
            if found & 1:
                return
            number += 1

    def _classic_candidates(self, name: bytes) -> Iterator[int]:
        key = 0
        for byte in name:
            key = (key << 4) + byte
            key = (key ^ (key >> 24 & 0xF0)) & 0xFFF_FFFF
        start = self.dynamic[HASH]
        # s390x alone has 64-bit entries, which are read as an empty table
        buckets, chains = self._numbers(start, 2)
        if not buckets:
            raise ValueError(f"{_HASH_TABLE} is broken")
        (number,) = self._numbers(start + 8 + 4 * (key % buckets), 1)
        for _ in range(chains):
            if not number:
                return
            yield number
            (number,) = self._numbers(start + 8 + 4 * (buckets + number), 1)
