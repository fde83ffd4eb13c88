"""Shared libraries in the ELF format as the system's loader will see them, read from their files.

Only as much as finding symbols by name takes, without a table of sections and without a library: loading a module must
not wait for an import. Nothing is trusted here; every fault is a ValueError that says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

LOAD, DYNAMIC = 1, 2
"""Kinds of segments."""
HASH, STRTAB, SYMTAB, STRSZ, GNU_HASH = 4, 5, 6, 10, 0x6FFF_FEF5
"""Tags of the dynamic table."""
_READ = 4
_NAMED_HERE = (1, 2, 10)  # global, weak, and one for all that load it
_SYMBOLS = "the table by which its symbols are found"


@dataclass(frozen=True)
class _Layout:
    """How one class of ELF files writes its tables: of 32 or of 64 bits."""

    word: int
    table: tuple[str, int, int]  # of the header: form and place of where the segments are, place of their entries' size
    segment: str
    segment_fields: tuple[int, ...]  # kind, flags, offset, address, bytes in the file, in memory
    entry: str
    symbol: str
    symbol_fields: tuple[int, ...]  # name, value, size, info, section


_LAYOUTS = {
    1: _Layout(4, ("I", 28, 42), "IIIIIIII", (0, 6, 1, 2, 4, 5), "iI", "IIIBBH", (0, 1, 2, 3, 5)),
    2: _Layout(8, ("Q", 32, 54), "IIQQQQQQ", (0, 1, 2, 3, 5, 6), "qQ", "IBBHQQ", (0, 4, 5, 1, 3)),
}


@dataclass(frozen=True)
class Segment:
    """A part of the file that means something to the loader, in ELF's numbers."""

    kind: int
    flags: int
    offset: int
    address: int
    nbytes: int
    memory: int


class ElfImage:
    """A shared library.

    Parameters
    ----------
    data : memoryview
        The whole file.

    Attributes
    ----------
    data : memoryview
        As given.
    headers : tuple of (int, int)
        Start and end of what says where all else is: the file's header and the table of segments.
    word : int
        Bytes of an address.
    order : str
        Byte order, as `struct` writes it.
    segments, loads : tuple of Segment
        All of them, and those that are placed in memory; what they have in the file is there.
    dynamic : dict of int to int
        The table of what the loader must know, by tag.
    """

    def __init__(self, data: memoryview) -> None:
        if len(data) < 64 or bytes(data[:4]) != b"\x7fELF" or data[4] not in _LAYOUTS or data[5] not in (1, 2):
            raise ValueError("it does not start as one")
        self.data = data
        self._layout = _LAYOUTS[data[4]]
        self.word = self._layout.word
        self.order = "<" if data[5] == 1 else ">"
        self.segments = tuple(self._read_segments())
        self.loads = tuple(segment for segment in self.segments if segment.kind == LOAD)
        self.dynamic = self._read_dynamic()

    def _read_segments(self) -> list[Segment]:
        form, place, sizes = self._layout.table
        (table,) = struct.unpack_from(self.order + form, self.data, place)
        size, count = struct.unpack_from(f"{self.order}HH", self.data, sizes)
        layout = struct.Struct(self.order + self._layout.segment)
        if size != layout.size or not count or table + size * count > len(self.data):
            raise ValueError("its table of segments is not in the file")
        self.headers = ((0, sizes + 10), (table, table + size * count))
        found = []
        for index in range(count):
            fields = layout.unpack_from(self.data, table + index * size)
            segment = Segment(*(fields[place] for place in self._layout.segment_fields))
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

    def offset(self, address: int, what: str) -> int:
        """Return where in the file an address is."""
        return self._load(address, what).offset + address - self._load(address, what).address

    def _load(self, address: int, what: str) -> Segment:
        for load in self.loads:
            if load.flags & _READ and load.address <= address < load.address + load.nbytes:
                return load
        raise ValueError(f"{what} is not in the file")

    def rest(self, address: int, what: str) -> memoryview:
        """Return the file from an address to the end of its segment, as it will lie in memory that can be read."""
        load = self._load(address, what)
        return self.data[load.offset + address - load.address : load.offset + load.nbytes]

    def content(self, address: int, nbytes: int, what: str) -> memoryview:
        """Return bytes of the file by their address in memory."""
        found = self.rest(address, what)[:nbytes]
        if len(found) != nbytes:
            raise ValueError(f"{what} is cut off")
        return found

    def find(self, name: str) -> tuple[int, int] | None:
        """Return address and size of a symbol that the library defines for others; None if there is none."""
        layout = struct.Struct(self.order + self._layout.symbol)
        symbols = self.rest(self.dynamic.get(SYMTAB, 0), "its table of symbols")
        names = self.content(self.dynamic.get(STRTAB, 0), self.dynamic.get(STRSZ, 0), "the text of its names")
        wanted = name.encode() + b"\0"
        for number in self._candidates(name.encode()):
            if (number + 1) * layout.size > len(symbols):
                raise ValueError("its table of symbols is cut off")
            fields = layout.unpack_from(symbols, number * layout.size)
            start, value, nbytes, info, section = (fields[place] for place in self._layout.symbol_fields)
            if names[start : start + len(wanted)] == wanted and section and info >> 4 in _NAMED_HERE:
                return value, nbytes
        return None

    def _candidates(self, name: bytes) -> Iterator[int]:
        """Yield the numbers of symbols that may have a name, as the loader looks for them."""
        if GNU_HASH in self.dynamic:
            return self._gnu_candidates(name)
        if HASH in self.dynamic:
            return self._classic_candidates(name)
        raise ValueError("it has no table by which its symbols are found")

    def _numbers(self, address: int, count: int) -> tuple[int, ...]:
        return struct.unpack(f"{self.order}{count}I", self.content(address, 4 * count, _SYMBOLS))

    def _gnu_candidates(self, name: bytes) -> Iterator[int]:
        key = 5381
        for byte in name:
            key = (33 * key + byte) & 0xFFFF_FFFF
        buckets, first, bloom, _ = self._numbers(self.dynamic[GNU_HASH], 4)
        if not buckets:
            raise ValueError(f"{_SYMBOLS} is broken")
        start = self.dynamic[GNU_HASH] + 16 + bloom * self.word
        (number,) = self._numbers(start + 4 * (key % buckets), 1)
        if not number:
            return
        if number < first:
            raise ValueError(f"{_SYMBOLS} is broken")
        while True:  # to the end of the file at most
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
        # s390x alone has entries of 64 bits, which are read as no buckets
        buckets, chains = self._numbers(start, 2)
        if not buckets:
            raise ValueError(f"{_SYMBOLS} is broken")
        (number,) = self._numbers(start + 8 + 4 * (key % buckets), 1)
        for _ in range(chains):
            if not number:
                return
            yield number
            (number,) = self._numbers(start + 8 + 4 * (buckets + number), 1)
