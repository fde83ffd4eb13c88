"""Whether LLVM's linker may be given an object: what would end the process there is found before.

What is code is not looked at: only that its tables say things of the file that are so. Objects of systems without ELF
files are left to the linker.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.library.elf import ElfObject, read_elf

_RELOCATABLE, _CURRENT = 1, 1
_NULL, _SYMTAB, _STRTAB, _RELA, _NOBITS, _REL, _MORE_SECTIONS = 0, 2, 3, 4, 8, 9, 18
_ALLOCATED = 2
_ABSOLUTE, _COMMON = 0xFFF1, 0xFFF2
_MAX_BINDING = 2  # local, global, weak
_MAX_ALIGNMENT = 4096
_MAX_NBYTES = 1 << 31  # instructions reach no further
# where the header says which section has the names of all
_NAMES_AT = {True: 62, False: 50}
_SECTION = [
    ("name", "u4"), ("kind", "u4"), ("flags", "w"), ("address", "w"), ("offset", "w"), ("nbytes", "w"),
    ("link", "u4"), ("info", "u4"), ("alignment", "w"), ("entry", "w"),
]  # fmt: skip
_SYMBOL = {
    True: [("name", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2"), ("value", "u8"), ("nbytes", "u8")],
    False: [("name", "u4"), ("value", "u4"), ("nbytes", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2")],
}
# by machine of ELF: kinds of relocations that write 8 bytes, 2 and 1; the others write 4
_WIDTHS: dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    62: ((1, 24, 25, 27, 28, 29, 30, 31), (12, 13), (0, 14, 15)),
    183: ((257, 260), (259, 262), (0, 256)),
    243: ((2, 18, 19, 36, 40), (34, 38, 44, 45, 55), (0, 33, 37, 43, 51, 52, 53, 54, 60, 61)),
}

Table = npt.NDArray[Any]


def check_object(data: bytes | memoryview) -> None:
    """Raise ValueError if an ELF object cannot be given to LLVM's linker; any other file passes.

    Parameters
    ----------
    data : bytes
        The whole file.
    """
    view = memoryview(data)
    if bytes(view[:4]) == b"\x7fELF":
        _Object(view).check()


class _Object:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._elf: ElfObject = read_elf(data)
        word = 8 if self._elf.is_64 else 4
        (table,) = struct.unpack_from(self._elf.order + "IQ"[self._elf.is_64], data, 0x28 if self._elf.is_64 else 0x20)
        layout = self._layout([(name, f"u{word}" if kind == "w" else kind) for name, kind in _SECTION])
        self._sections: Table = np.frombuffer(data, layout, len(self._elf.sections), table)
        self._word = word

    def check(self) -> None:
        order = self._elf.order
        kind, self._machine, version = struct.unpack_from(f"{order}HHI", self._data, 16)
        (names,) = struct.unpack_from(f"{order}H", self._data, _NAMES_AT[self._elf.is_64])
        if kind != _RELOCATABLE or version != _CURRENT:
            raise ValueError("its header is none of an object")
        if not len(self._sections):
            raise ValueError("it has no sections")
        self._check_sections(self._text(names))
        tables = np.flatnonzero(self._sections["kind"] == _SYMTAB).tolist()
        if len(tables) > 1 or _MORE_SECTIONS in self._sections["kind"]:
            raise ValueError("it has more tables of symbols than one")
        in_memory = self._check_symbols(tables[0]) if tables else np.zeros(0, np.bool_)
        for section in self._sections:
            if section["kind"] in (_RELA, _REL):
                if not tables or section["link"] != tables[0]:
                    raise ValueError("relocations are of no table of symbols")
                self._check_relocations(section, in_memory)

    def _content(self, section: Any) -> memoryview:
        if section["kind"] in (_NULL, _NOBITS):
            return memoryview(b"")
        start, nbytes = int(section["offset"]), int(section["nbytes"])
        if start + nbytes > len(self._data):
            raise ValueError(f"a section at byte {start:,} that the file does not hold")
        return self._data[start : start + nbytes]

    def _text(self, index: int) -> memoryview:
        """Return a section of names."""
        if index >= len(self._sections) or self._sections[index]["kind"] != _STRTAB:
            raise ValueError("a table of names is missing")
        text = self._content(self._sections[index])
        if not len(text) or text[-1]:
            raise ValueError("a name that does not end")
        return text

    def _check_sections(self, names: memoryview) -> None:
        sections = self._sections
        if sections["kind"][0] != _NULL:
            raise ValueError("its first section is none that is empty")
        if int(sections["name"].max()) >= len(names):
            raise ValueError("a section has no name")
        alignments = sections["alignment"]
        if (alignments & (alignments - np.minimum(alignments, 1))).any() or int(alignments.max()) > _MAX_ALIGNMENT:
            raise ValueError("a section lies at multiples of no power of two")
        if int(sections["nbytes"].max()) >= _MAX_NBYTES:
            raise ValueError("a section is larger than instructions reach")
        if (sections["flags"][sections["kind"] == _NOBITS] & _ALLOCATED == 0).any():
            raise ValueError("a section has neither bytes nor memory")
        if sections["address"].any():
            raise ValueError("a section has an address already")
        for section in sections:
            self._content(section)

    def _check_symbols(self, index: int) -> npt.NDArray[np.bool_]:
        """Check a table of symbols, and tell of each whether there is memory for it once the object is linked."""
        section = self._sections[index]
        symbols = self._table(section, _SYMBOL[self._elf.is_64], "symbols")
        names = self._text(int(section["link"]))
        if not len(symbols) or int(section["info"]) > len(symbols) or int(symbols["name"].max()) >= len(names):
            raise ValueError("its table of symbols is broken")
        local = symbols["info"] >> 4 == 0
        if not local[: int(section["info"])].all() or local[int(section["info"]) :].any():
            raise ValueError("its symbols are not in order")
        if int((symbols["info"] >> 4).max()) > _MAX_BINDING:
            raise ValueError("a symbol is known in no known way")
        common = symbols[symbols["section"] == _COMMON]
        alignments = common["value"]
        if (alignments & (alignments - np.minimum(alignments, 1))).any() or (alignments > _MAX_ALIGNMENT).any():
            raise ValueError("a variable lies at multiples of no power of two")
        if (common["nbytes"] >= _MAX_NBYTES).any():
            raise ValueError("a variable is larger than instructions reach")
        is_placed = ~np.isin(symbols["section"], (0, _ABSOLUTE, _COMMON))
        placed = symbols[is_placed]
        if int(placed["section"].max(initial=0)) >= len(self._sections):
            raise ValueError("a symbol is of a section that there is not")
        room = self._sections["nbytes"][placed["section"]]
        if ((placed["value"] > room) | (placed["nbytes"] > room - np.minimum(placed["value"], room))).any():
            raise ValueError("a symbol lies outside its section")
        in_memory = np.ones(len(symbols), np.bool_)
        in_memory[is_placed] = self._sections["flags"][placed["section"]] & _ALLOCATED != 0
        return in_memory

    def _check_relocations(self, section: Any, in_memory: npt.NDArray[np.bool_]) -> None:
        fields = ["place", "info", "addend"] if section["kind"] == _RELA else ["place", "info"]
        rows = self._table(section, [(field, f"u{self._word}") for field in fields], "relocations")
        target = int(section["info"])
        if target >= len(self._sections) or self._sections[target]["kind"] in (_NULL, _NOBITS):
            raise ValueError("relocations are of no section with bytes")
        bits = 32 if self._elf.is_64 else 8
        symbols = rows["info"] >> bits
        if int(symbols.max(initial=0)) >= len(in_memory):
            raise ValueError("a relocation is of a symbol that there is not")
        if self._sections[target]["flags"] & _ALLOCATED and not in_memory[symbols].all():
            raise ValueError("a relocation is of what is in no memory")
        widths = np.full(len(rows), 4, np.uint64)
        for width, kinds in zip((8, 2, 1), _WIDTHS.get(self._machine, ((), (), ())), strict=True):
            widths[np.isin(rows["info"] & ((1 << bits) - 1), kinds)] = width
        room = int(self._sections[target]["nbytes"])
        if (rows["place"] > room).any() or (rows["place"].astype(np.uint64) + widths > room).any():
            raise ValueError("a relocation writes outside its section")

    def _table(self, section: Any, fields: list[tuple[str, str]], what: str) -> Table:
        layout = self._layout(fields)
        content = self._content(section)
        if section["entry"] != layout.itemsize or len(content) % layout.itemsize:
            raise ValueError(f"its table of {what} is of another size")
        return np.frombuffer(content, layout)

    def _layout(self, fields: list[tuple[str, str]]) -> np.dtype[Any]:
        return np.dtype([(name, self._elf.order + kind) for name, kind in fields])
