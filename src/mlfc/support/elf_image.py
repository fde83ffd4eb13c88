"""Shared libraries in the ELF format as the system's loader will see them, read from their files.

A loader believes what it loads: it needs no table of sections, and what its own tables say of memory that is not there
ends the process. Nothing is trusted here; every fault is a ValueError that says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

LOAD, DYNAMIC, TLS, RELRO = 1, 2, 7, 0x6474_E552
"""Kinds of segments."""
EXECUTE, WRITE, READ = 1, 2, 4
"""Rights of segments."""
NEEDED, HASH, STRTAB, SYMTAB, STRSZ, SYMENT, GNU_HASH = 1, 4, 5, 6, 10, 11, 0x6FFF_FEF5
"""Tags of the dynamic table."""
ABSOLUTE = 0xFFF1
"""The section of symbols that are numbers, not places."""
FUNCTION, TLS_SYMBOL, INDIRECT = 2, 6, 10
"""Kinds of symbols."""

_NAMED_HERE = (1, 2, 10)  # global, weak, and one for all that load it
_LARGEST_ADDRESS = 1 << 47


@dataclass(frozen=True)
class _Layout:
    """How one class of ELF files writes its tables: of 32 or of 64 bits."""

    word: int
    segments: tuple[str, int, int]  # of the header: form and place of where the table is, place of its entries' size
    segment: str
    segment_fields: tuple[int, ...]  # kind, flags, offset, address, bytes in the file, in memory, alignment
    symbol: list[tuple[str, str]]


_LAYOUTS = {
    1: _Layout(
        4,
        ("I", 28, 42),
        "IIIIIIII",
        (0, 6, 1, 2, 4, 5, 7),
        [("name", "u4"), ("value", "u4"), ("nbytes", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2")],
    ),
    2: _Layout(
        8,
        ("Q", 32, 54),
        "IIQQQQQQ",
        (0, 1, 2, 3, 5, 6, 7),
        [("name", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2"), ("value", "u8"), ("nbytes", "u8")],
    ),
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
    alignment: int

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.memory

    def holds(self, address: int, nbytes: int) -> bool:
        """Tell whether it has these addresses in memory."""
        return self.address <= address and address + nbytes <= self.end


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
        All of them, and those that are placed in memory.
    dynamic : dict of int to int
        The table of what the loader must know, by tag; of `NEEDED`, which stands there more than once, see `needed`.
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
        self.needed: list[int] = []
        self.dynamic = self._read_dynamic()

    def _read_segments(self) -> list[Segment]:
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
            segment = Segment(*(fields[place] for place in self._layout.segment_fields))
            if segment.offset + segment.nbytes > len(self.data) and segment.memory:
                raise ValueError(f"segment {index} is not in the file")
            if segment.address + max(segment.memory, segment.nbytes) > _LARGEST_ADDRESS:
                raise ValueError(f"segment {index} is larger than any memory")
            found.append(segment)
        return found

    def _read_dynamic(self) -> dict[int, int]:
        tables = [segment for segment in self.segments if segment.kind == DYNAMIC]
        if len(tables) != 1:
            raise ValueError(f"it has {len(tables)} tables of what its loader must know")
        entries = self.table(tables[0].address, tables[0].memory, [("tag", "i"), ("value", "u")], "its dynamic table")
        (ends,) = np.nonzero(entries["tag"] == 0)
        if not len(ends):
            raise ValueError("its dynamic table does not end")
        pairs = list(zip(*(entries[name][: ends[0]].tolist() for name in ("tag", "value")), strict=True))
        self.needed = [value for tag, value in pairs if tag == NEEDED]
        return dict(pairs)

    def has(self, address: int, nbytes: int, rights: int = READ) -> bool:
        """Tell whether memory of the library is there with these rights."""
        return any(load.holds(address, nbytes) and load.flags & rights == rights for load in self.loads)

    def is_code(self, address: int) -> bool:
        """Tell whether what lies at an address may be run."""
        return self.has(address, 1, EXECUTE)

    def rest(self, address: int, what: str) -> memoryview:
        """Return the file from an address to the end of its segment, as it will lie in memory that can be read."""
        for load in self.loads:
            if load.flags & READ and load.address <= address < load.address + load.nbytes:
                return self.data[load.offset + address - load.address : load.offset + load.nbytes]
        raise ValueError(f"{what} is not in the file")

    def offset(self, address: int, what: str) -> int:
        """Return where in the file an address is."""
        for load in self.loads:
            if load.flags & READ and load.address <= address < load.address + load.nbytes:
                return load.offset + address - load.address
        raise ValueError(f"{what} is not in the file")

    def content(self, address: int, nbytes: int, what: str) -> memoryview:
        """Return bytes of the file by their address in memory."""
        if nbytes == 0:
            return self.data[:0]
        found = self.rest(address, what)[:nbytes]
        if len(found) != nbytes:
            raise ValueError(f"{what} is cut off")
        return found

    def table(self, address: int, nbytes: int, fields: Sequence[tuple[str, str]], what: str) -> npt.NDArray[Any]:
        """Return a table of numbers; a type without a size (``i``, ``u``) is of an address."""
        names = [(name, self.order + (kind if len(kind) > 1 else f"{kind}{self.word}")) for name, kind in fields]
        dtype = np.dtype(names)
        found = self.content(address, nbytes - nbytes % dtype.itemsize, what)
        return np.frombuffer(found, dtype)

    @cached_property
    def names(self) -> bytes:
        """The text of all names."""
        text = bytes(self.content(self.dynamic.get(STRTAB, 0), self.dynamic.get(STRSZ, 0), "the text of its names"))
        if not text.endswith(b"\0"):
            raise ValueError("the text of its names does not end")
        return text

    def name(self, start: int, what: str) -> bytes:
        """Return one name."""
        if not 0 <= start < len(self.names):
            raise ValueError(f"{what} is not among its names")
        return self.names[start : self.names.index(b"\0", start)]

    @cached_property
    def symbols(self) -> npt.NDArray[Any]:
        """The table of symbols: ``name``, ``value``, ``nbytes``, ``info``, ``other``, ``section``.

        Those behind the last one that others may find need not be among them.
        """
        return self._symbols(self._symbol_count())

    def require_symbol(self, number: int) -> None:
        """Raise ValueError if there is no such symbol."""
        if number >= len(self.symbols):
            self._symbols(number + 1)

    def _symbols(self, count: int) -> npt.NDArray[Any]:
        size = np.dtype(self._layout.symbol).itemsize
        if self.dynamic.get(SYMENT) != size:
            raise ValueError("its symbols are of another size")
        found = self.table(self.dynamic.get(SYMTAB, 0), count * size, self._layout.symbol, "its table of symbols")
        if count and int(found["name"].max()) >= len(self.names):
            raise ValueError("the name of a symbol is not among its names")
        return found

    def _symbol_count(self) -> int:
        """Return the number of symbols, which only the tables say by which the loader finds them."""
        counts = []
        if HASH in self.dynamic:
            counts.append(self._classic_count(self.dynamic[HASH]))
        if GNU_HASH in self.dynamic:
            counts.append(self._gnu_count(self.dynamic[GNU_HASH]))
        if not counts:
            raise ValueError("it has no table by which its symbols are found")
        return max(counts)

    def _classic_count(self, address: int) -> int:
        what = "the table by which its symbols are found"
        # s390x alone has entries of 64 bits, where this is read as too large a table
        buckets, chains = self.table(address, 8, [("n", "u4")], what)["n"].tolist()
        rest = self.table(address + 8, 4 * (buckets + chains), [("n", "u4")], what)["n"]
        if buckets == 0 or (rest >= chains).any():
            raise ValueError(f"{what} is broken")
        # a chain that comes back to itself is walked for ever by whoever looks for what is not there
        following = rest[buckets:]
        targets = following[following != 0]
        if len(np.unique(targets)) != len(targets) or np.isin(rest[:buckets][rest[:buckets] != 0], targets).any():
            raise ValueError(f"{what} has chains that run into each other")
        return int(chains)

    def _gnu_count(self, address: int) -> int:
        what = "the table by which its symbols are found"
        buckets, first, bloom, shift = self.table(address, 16, [("n", "u4")], what)["n"].tolist()
        if buckets == 0 or bloom == 0 or bloom & (bloom - 1) or shift > 63:
            raise ValueError(f"{what} is broken")
        self.content(address + 16, bloom * self.word, what)
        starts = self.table(address + 16 + bloom * self.word, 4 * buckets, [("n", "u4")], what)["n"]
        used = starts[starts != 0]
        if not len(used):
            return int(first)
        if int(used.min()) < first:
            raise ValueError(f"{what} is broken")
        chains = address + 16 + bloom * self.word + 4 * buckets
        last = int(used.max())
        rest = self.rest(chains, what)[4 * (last - first) :]
        links = np.frombuffer(rest[: len(rest) - len(rest) % 4], f"{self.order}u4")
        (ends,) = np.nonzero(links & 1)
        if not len(ends):
            raise ValueError(f"{what} does not end")
        return last + int(ends[0]) + 1

    def find(self, name: str) -> tuple[int, int] | None:
        """Return address and size of a symbol that the library defines for others; None if there is none."""
        text, wanted, starts, at = self.names, name.encode() + b"\0", [], -1
        # the end of a longer name may serve as this one
        while (at := text.find(wanted, at + 1)) >= 0:
            starts.append(at)
        if not starts:
            return None
        rows = self.symbols
        chosen = rows[np.isin(rows["name"], starts) & (rows["section"] != 0) & np.isin(rows["info"] >> 4, _NAMED_HERE)]
        if not len(chosen):
            return None
        return int(chosen["value"][0]), int(chosen["nbytes"][0])
