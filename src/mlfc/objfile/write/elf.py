"""ELF objects of data."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from mlfc.errors import OptionError
from mlfc.objfile.write.blocks import ALIGNMENT, RODATA, DataPiece, DataSection, sections_of, string_table
from mlfc.support.content import Data, Joined, nbytes_of

_RELOCATABLE = 1
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_ALLOCATED, _X86_64_LARGE = 2, 0x1000_0000
_GLOBAL_OBJECT, _HIDDEN = 0x11, 2
_X86_64 = 62
# code reaches two gigabytes around itself; large data that only loaders look for is placed beyond that
_LARGE = 16 << 20
_LARGE_RODATA = ".lrodata"
# linkers take it that code without this section wants to run what lies on the stack; where there is no system to forbid
# that, code does not have it, and linkers warn where only some of it does
_STACK_NOTE = ".note.GNU-stack"


@dataclass(frozen=True)
class ElfMachine:
    """The machine in an ELF header; `order` as in `struct` formats."""

    number: int
    bits: int
    order: str = "<"
    flags: int = 0


@dataclass(frozen=True)
class _SectionRow:
    """A section of the file."""

    name: str
    kind: int
    data: Data
    flags: int = 0
    alignment: int = 1
    link: int = 0
    info: int = 0
    entry: int = 0


def elf_machine_of(head: bytes) -> ElfMachine:
    """Return the machine in the first bytes of an ELF file, which are trusted."""
    bits, order = 32 * head[4], "<" if head[5] == 1 else ">"
    (number,) = struct.unpack_from(f"{order}H", head, 18)
    (flags,) = struct.unpack_from(f"{order}I", head, 48 if bits == 64 else 36)
    return ElfMachine(number, bits, order, flags)


def elf_object(pieces: Sequence[DataPiece], machine: ElfMachine, *, hidden: bool, stack_note: bool) -> Joined:
    """Return a relocatable ELF file with read-only data.

    With `hidden`, only code linked with the object sees the symbols; without, only loaders look for them. `stack_note`
    marks the stack as not executable. Raises OptionError if the data exceeds a 32-bit file.
    """
    sections = sections_of(pieces)
    total = sum(section.nbytes for section in sections)
    if machine.bits == 32 and total > 1 << 31:
        raise OptionError(
            f"{total:,} bytes do not fit an object for a machine of 32 bits",
            next_step="Leave the parameters out of the library",
        )
    rows = [_data_row(section, machine, hidden=hidden) for section in sections]
    if stack_note:
        rows.append(_SectionRow(_STACK_NOTE, _PROGBITS, b""))
    symbols, strings = _symbols(sections, machine, hidden=hidden)
    word = machine.bits // 8
    # the table of names comes next; rows count from one, and of the symbols the first is none
    rows.append(_SectionRow(".symtab", _SYMTAB, symbols, 0, word, len(rows) + 2, 1, 24 if word == 8 else 16))
    rows.append(_SectionRow(".strtab", _STRTAB, strings))
    return _file(rows, machine)


def _data_row(section: DataSection, machine: ElfMachine, *, hidden: bool) -> _SectionRow:
    far = machine == ElfMachine(_X86_64, 64) and not hidden and section.nbytes > _LARGE
    name, flags = section.name, _ALLOCATED
    if far and name == RODATA:
        name, flags = _LARGE_RODATA, _ALLOCATED | _X86_64_LARGE
    return _SectionRow(name, _PROGBITS, section.content, flags, ALIGNMENT)


def _symbols(sections: Sequence[DataSection], machine: ElfMachine, *, hidden: bool) -> tuple[bytes, bytes]:
    """Return the table of symbols and that of their names."""
    placed = [(block, number) for number, section in enumerate(sections, 1) for block in section.blocks]
    strings, offsets = string_table([block.piece.symbol for block, _ in placed], b"\0")
    wide = machine.bits == 64
    layout = struct.Struct(machine.order + ("IBBHQQ" if wide else "IIIBBH"))
    rows = [bytes(layout.size)]
    for (block, number), name in zip(placed, offsets, strict=True):
        kind, place = (_GLOBAL_OBJECT, _HIDDEN if hidden else 0, number), (block.offset, block.nbytes)
        rows.append(layout.pack(name, *kind, *place) if wide else layout.pack(name, *place, *kind))
    return b"".join(rows), strings


def _file(rows: Sequence[_SectionRow], machine: ElfMachine) -> Joined:
    """Return the header, the sections, and the table of them."""
    wide = machine.bits == 64
    names, offsets = string_table([*(row.name for row in rows), ".shstrtab"], b"\0")
    layout = struct.Struct(machine.order + ("IIQQQQIIQQ" if wide else "IIIIIIIIII"))
    table = bytearray(layout.size)
    parts: list[Data] = []
    end = header_bytes = 64 if wide else 52
    for row, name in zip((*rows, _SectionRow("", _STRTAB, names)), offsets, strict=True):
        gap, nbytes = -end % row.alignment, nbytes_of(row.data)
        parts += [bytes(gap), row.data]
        place = (0, end + gap, nbytes)
        table += layout.pack(name, row.kind, row.flags, *place, row.link, row.info, row.alignment, row.entry)
        end += gap + nbytes
    gap = -end % (machine.bits // 8)
    identity = b"\x7fELF" + bytes((2 if wide else 1, 1 if machine.order == "<" else 2, 1)) + bytes(9)
    count = len(rows) + 2
    fields = (_RELOCATABLE, machine.number, 1, 0, 0, end + gap, machine.flags, header_bytes, 0, 0)
    pattern = machine.order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH")
    header = identity + struct.pack(pattern, *fields, layout.size, count, count - 1)
    return Joined((header, *parts, bytes(gap), bytes(table)))
