"""Reading the table of sections of ELF files. Nothing is trusted."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_MAGIC = b"\x7fELF"
# by class: place and pattern of the section table's offset, place of its counts, pattern of a section header
_TABLES = {1: (0x20, "I", 0x2E, "IIIIIIIIII"), 2: (0x28, "Q", 0x3A, "IIQQQQIIQQ")}
_ORDERS = {1: "<", 2: ">"}


@dataclass(frozen=True)
class Section:
    """A section header: kind and flags in ELF's numbers, address once loaded, place in the file, other section."""

    kind: int
    flags: int
    address: int
    offset: int
    nbytes: int
    link: int


@dataclass(frozen=True)
class ElfObject:
    """An ELF file.

    Attributes
    ----------
    is_64 : bool
        Whether it is for 64 bits, else for 32.
    order : str
        Its byte order as `struct` writes it.
    sections : tuple of Section
    """

    is_64: bool
    order: str
    sections: tuple[Section, ...]


def read_elf(data: bytes | memoryview) -> ElfObject:
    """Return the sections of an ELF file; raise ValueError if it is none, or its table does not lie within it."""
    if len(data) < 6 or data[:4] != _MAGIC or data[4] not in _TABLES or data[5] not in _ORDERS:
        raise ValueError("it does not start as one")
    order = _ORDERS[data[5]]
    place, pattern, counts, fields = _TABLES[data[4]]
    layout = struct.Struct(order + fields)
    try:
        (table,) = struct.unpack_from(order + pattern, data, place)
        size, count = struct.unpack_from(f"{order}HH", data, counts)
        if count and size != layout.size:
            raise ValueError(f"section headers of {size} bytes")
        headers = [layout.unpack_from(data, table + index * size) for index in range(count)]
    except (struct.error, OverflowError):
        raise ValueError("its table of sections is cut off") from None
    return ElfObject(data[4] == 2, order, tuple(Section(*item[1:7]) for item in headers))
