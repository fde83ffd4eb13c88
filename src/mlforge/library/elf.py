"""Reading ELF objects: whether one can be linked into this process, and its table of sections. Nothing is trusted."""

from __future__ import annotations

import platform
import struct
import sys
from dataclasses import dataclass

_MAGIC = b"\x7fELF"
# class (1: 32 bits, 2: 64 bits), byte order (1: little), machine, by what Python calls this machine
_MACHINES = {
    "x86_64": 62,
    "amd64": 62,
    "i386": 3,
    "i686": 3,
    "aarch64": 183,
    "arm64": 183,
    "armv6l": 40,
    "armv7l": 40,
    "armv8l": 40,
    "riscv64": 243,
    "ppc64le": 21,
    "ppc64": 21,
    "s390x": 22,
    "loongarch64": 258,
}
_NAMES = {3: "x86", 8: "MIPS", 20: "PowerPC", 40: "Arm", 62: "x86-64", 183: "AArch64", 94: "Xtensa", 243: "RISC-V"}
_RELOCATABLE = 1
_TYPE_OFFSET = 16
# by class: place and pattern of the section table's offset, place of its counts, pattern of a section header
_TABLES = {1: (0x20, "I", 0x2E, "IIIIIIIIII"), 2: (0x28, "Q", 0x3A, "IIQQQQIIQQ")}
_ORDERS = {1: "<", 2: ">"}


@dataclass(frozen=True)
class Section:
    """A section header: its type and flags in ELF's numbers, where its bytes lie, and the section that it refers to."""

    kind: int
    flags: int
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
    return ElfObject(data[4] == 2, order, tuple(Section(item[1], item[2], *item[4:7]) for item in headers))


def misfit(data: bytes | memoryview) -> str | None:
    """Say why an object cannot be linked for this process; None if it can.

    Parameters
    ----------
    data : bytes
        At least the first 20 bytes of the file.
    """
    head = bytes(data[:20])
    if len(head) < 20 or head[:4] != _MAGIC:
        return "it is not an ELF object"
    bits, order = {1: 32, 2: 64}.get(head[4]), {1: "little", 2: "big"}.get(head[5])
    if bits is None or order is None:
        return "its ELF header is damaged"
    kind, machine = struct.unpack_from("<HH" if order == "little" else ">HH", head, _TYPE_OFFSET)
    if kind != _RELOCATABLE:
        return "it is not a relocatable object"
    ours = 64 if sys.maxsize > 1 << 32 else 32
    wanted = _MACHINES.get(platform.machine().lower())
    # a 32-bit Python on a 64-bit kernel
    if ours == 32:
        wanted = {62: 3, 183: 40}.get(wanted or 0, wanted)
    if (bits, order, machine) != (ours, sys.byteorder, wanted):
        return f"it is for {_NAMES.get(machine, f'machine {machine}')}, {bits} bits, {order} endian"
    return None
