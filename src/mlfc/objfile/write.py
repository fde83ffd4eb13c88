"""Data as object files, written without a compiler, or as C; the data are never copied into one buffer."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from mlfc.errors import OptionError
from mlfc.objfile.head import COFF_MACHINES, ELF_MACHINES, MACHO_MACHINES, ElfMachine
from mlfc.support.content import Content, Data, Joined, chunks_of, nbytes_of
from mlfc.support.platforms import arch_named

ALIGNMENT = 64
"""Alignment of each piece in bytes, in the file's section and in memory."""
RODATA = ".rodata"
"""ELF's section for read-only data; other formats have their own."""
_SMALLER = "Leave the parameters out of the library"


_X32 = ElfMachine(62, 32)
# architectures of bare-metal triples, in addition to those that libraries are built for
_OTHER_ARCHES = (
    (r"(aarch64|arm64)_?be", "aarch64_be"),
    (r"(arm|thumb)(eb.*|.*eb)", "armeb"),
    (r"(arm|thumb).*", "arm"),
    (r"riscv64.*", "riscv64"),
    (r"riscv32.*", "riscv32"),
    (r"ppc", "powerpc"),
)
_WINDOWS = ("windows", "win32", "mingw", "cygwin", "w64", "uefi")
_APPLE = ("apple", "darwin", "macos")
_UNIX = ("linux", "gnu", "musl", "android", "freebsd", "netbsd", "openbsd")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,4095}")


@dataclass(frozen=True, eq=False)
class DataPiece:
    """Bytes under a C symbol."""

    symbol: str
    data: Data
    section: str = RODATA  # of ELF files; other formats have one section for all


@dataclass(frozen=True, eq=False)
class _DataSection:
    """Consecutive pieces, with zeros between them."""

    name: str
    blocks: Sequence[tuple[DataPiece, int]]  # with offsets
    content: Joined


def _laid_out(name: str, pieces: Iterable[DataPiece]) -> _DataSection:
    blocks, end = [], 0
    parts: list[Data] = []
    for piece in pieces:
        start = end + -end % ALIGNMENT
        blocks.append((piece, start))
        parts += [bytes(start - end), piece.data]
        end = start + nbytes_of(piece.data)
    return _DataSection(name, blocks, Joined(tuple(parts)))


def _string_table(names: Sequence[str], start: bytes) -> tuple[bytes, list[int]]:
    """Return a table of NUL-terminated strings after `start`, and the offset of each in it."""
    table, offsets = bytearray(start), []
    for name in names:
        offsets.append(len(table))
        table += name.encode("ascii") + b"\0"
    return bytes(table), offsets


def object_with_data(contents: Mapping[str, Data], triple: str, *, hidden: bool = False) -> Content:
    """Return an object file with read-only data under C symbols, each aligned to 64 bytes.

    `triple` is the machine in the notation of LLVM, Debian or zig: COFF for Windows, Mach-O for Apple, else ELF.
    With `hidden`, symbols are visible only within the library that the object is linked into.
    Raises OptionError if a symbol is not a C name, or objects for the machine are not supported.
    """
    for symbol in contents:
        _check(symbol)
    words = triple.strip().lower().split("-")
    others = (arch for pattern, arch in _OTHER_ARCHES if re.fullmatch(pattern, words[0]))
    arch = arch_named(words[0]) or next(others, words[0])
    is_windows, is_apple, is_unix = (
        any(word.startswith(system) for word in words[1:]) for system in (_WINDOWS, _APPLE, _UNIX)
    )
    pieces = [DataPiece(symbol, data) for symbol, data in contents.items()]
    if is_windows and arch in COFF_MACHINES:
        return coff_object(pieces, COFF_MACHINES[arch], hidden=hidden)
    if is_apple and arch in MACHO_MACHINES:
        return macho_object(pieces, MACHO_MACHINES[arch], hidden=hidden)
    if arch not in ELF_MACHINES or is_windows or is_apple:
        raise OptionError(
            f"unsupported machine for objects: '{triple[:80]}'",
            next_step=f"Compile the data as C, or use one of these: {', '.join(ELF_MACHINES)}",
        )
    machine = _X32 if arch == "x86_64" and words[-1] == "gnux32" else ELF_MACHINES[arch]
    return elf_object(pieces, machine, hidden=hidden, stack_note=is_unix)


def object_like(head: bytes, form: str, pieces: Sequence[DataPiece]) -> Joined | None:
    """Return an object with hidden data for the machine of another object, given by its first bytes, which are trusted.

    `form` is LLVM's name of the format; None for other formats than ``ELF``, ``COFF`` and ``MachO``.
    """
    if form == "ELF":
        return elf_object(pieces, elf_machine_of(head), hidden=True, stack_note=True)
    if form == "COFF":
        return coff_object(pieces, *struct.unpack_from("<H", head), hidden=True)
    return macho_object(pieces, struct.unpack_from("<II", head, 4), hidden=True) if form == "MachO" else None


_COFF_HEADER, _COFF_SECTION, _COFF_SYMBOL = map(struct.Struct, ("<HHIIIHH", "<8sIIIIIIHHI", "<8sIhHBB"))
_SHORT_NAME = 8
_EXTERNAL = 2
# initialized data, readable, aligned to 64 bytes
_COFF_RODATA = 0x0000_0040 | 0x4000_0000 | 0x0070_0000
# linker directives, which are removed from the linked image
_DIRECTIVES = 0x0000_0200 | 0x0000_0800 | 0x0010_0000
_LIMIT = 1 << 31


def coff_object(pieces: Sequence[DataPiece], machine: int, *, hidden: bool) -> Joined:
    """Return a COFF file of data, exported unless `hidden`; raise OptionError if the data are too large."""
    section = _laid_out(".rdata", pieces)
    nbytes = section.content.nbytes
    if nbytes > _LIMIT:
        raise OptionError(f"{nbytes:,} bytes exceed the maximum of 2 GiB of a library for Windows", next_step=_SMALLER)
    directives = b"" if hidden else "".join(f" -export:{piece.symbol},data" for piece in pieces).encode("ascii")
    start = _COFF_HEADER.size + 2 * _COFF_SECTION.size
    end = start + nbytes
    # C names have an underscore prefix on x86 only
    prefix = "_" if machine == COFF_MACHINES["x86"] else ""
    names = [prefix + piece.symbol for piece in pieces]
    long_names = [name for name in names if len(name) > _SHORT_NAME]
    table, offsets = _string_table(long_names, bytes(4))  # room for its size
    place = dict(zip(long_names, offsets, strict=True))
    symbols = bytearray()
    for name, (_, offset) in zip(names, section.blocks, strict=True):
        field = struct.pack("<II", 0, place[name]) if name in place else name.encode("ascii").ljust(_SHORT_NAME, b"\0")
        symbols += _COFF_SYMBOL.pack(field, offset, 1, 0, _EXTERNAL, 0)
    header = _COFF_HEADER.pack(machine, 2, 0, end + len(directives), len(pieces), 0, 0)
    rows = _COFF_SECTION.pack(section.name.encode(), 0, 0, nbytes, start, 0, 0, 0, 0, _COFF_RODATA)
    rows += _COFF_SECTION.pack(b".drectve", 0, 0, len(directives), end, 0, 0, 0, 0, _DIRECTIVES)
    strings = struct.pack("<I", len(table)) + table[4:]
    return Joined((header + rows, section.content, directives + symbols + strings))


_RELOCATABLE = 1
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_ALLOCATED, _X86_64_LARGE = 2, 0x1000_0000
_GLOBAL_OBJECT, _HIDDEN = 0x11, 2
# code addresses reach two gigabytes; large data that only loaders look up is placed beyond that
_LARGE = 16 << 20
_LARGE_RODATA = ".lrodata"
# linkers assume that code without this section needs an executable stack; bare-metal code lacks it, and linkers warn if
# only some objects have it
_STACK_NOTE = ".note.GNU-stack"


@dataclass(frozen=True)
class _SectionRow:
    """A section of an ELF file."""

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
    """Return a relocatable ELF file with read-only data; adjacent pieces of one section share it.

    With `hidden`, only code linked with the object sees the symbols; otherwise only loaders look them up. `stack_note`
    marks the stack as not executable. Raises OptionError if the data exceed a 32-bit file.
    """
    sections = [_laid_out(name, group) for name, group in groupby(pieces, key=lambda piece: piece.section)]
    total = sum(section.content.nbytes for section in sections)
    if machine.bits == 32 and total > _LIMIT:
        raise OptionError(f"{total:,} bytes exceed the size of an object for a 32-bit machine", next_step=_SMALLER)
    rows = []
    for section in sections:
        name, flags = section.name, _ALLOCATED
        if machine == ELF_MACHINES["x86_64"] and not hidden and section.content.nbytes > _LARGE and name == RODATA:
            name, flags = _LARGE_RODATA, _ALLOCATED | _X86_64_LARGE
        rows.append(_SectionRow(name, _PROGBITS, section.content, flags, ALIGNMENT))
    if stack_note:
        rows.append(_SectionRow(_STACK_NOTE, _PROGBITS, b""))
    strings, offsets = _string_table([piece.symbol for piece in pieces], b"\0")
    wide = machine.bits == 64
    layout = struct.Struct(machine.order + ("IBBHQQ" if wide else "IIIBBH"))
    symbols = bytearray(layout.size)
    placed = [(*block, number) for number, section in enumerate(sections, 1) for block in section.blocks]
    for (piece, offset, number), name_at in zip(placed, offsets, strict=True):
        kind, place = (_GLOBAL_OBJECT, _HIDDEN if hidden else 0, number), (offset, nbytes_of(piece.data))
        symbols += layout.pack(name_at, *kind, *place) if wide else layout.pack(name_at, *place, *kind)
    # the string table is next; rows count from one, and the first symbol is null
    rows.append(_SectionRow(".symtab", _SYMTAB, bytes(symbols), 0, machine.bits // 8, len(rows) + 2, 1, layout.size))
    rows.append(_SectionRow(".strtab", _STRTAB, strings))
    return _elf_file(rows, machine)


def _elf_file(rows: Sequence[_SectionRow], machine: ElfMachine) -> Joined:
    """Return the header, the sections, and the section table."""
    wide = machine.bits == 64
    names, offsets = _string_table([*(row.name for row in rows), ".shstrtab"], b"\0")
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


_MACHO_HEADER, _MACHO_SEGMENT, _MACHO_SECTION = map(struct.Struct, ("<IIIIIIII", "<II16sQQQQIIII", "<16s16sQQIIIIIIII"))
_BUILD, _MACHO_SYMTAB, _DYSYMTAB, _MACHO_SYMBOL = map(struct.Struct, ("<IIIIII", "<IIIIII", "<20I", "<IBBHQ"))
_MAGIC, _OBJECT = 0xFEED_FACF, 1
_LC_SEGMENT_64, _LC_SYMTAB, _LC_DYSYMTAB, _LC_BUILD_VERSION = 0x19, 0x2, 0xB, 0x32
_MACOS, _MACOS_11 = 1, 11 << 16
_EXTERNAL_IN_SECTION, _PRIVATE_EXTERNAL = 0x0F, 0x10
_READ = 1


def macho_object(pieces: Sequence[DataPiece], machine: tuple[int, ...], *, hidden: bool) -> Joined:
    """Return a 64-bit Mach-O file of read-only data for a CPU type and subtype; `hidden` as in `elf_object`."""
    section = _laid_out("__const", pieces)
    segment_bytes = _MACHO_SEGMENT.size + _MACHO_SECTION.size
    commands = segment_bytes + _BUILD.size + _MACHO_SYMTAB.size + _DYSYMTAB.size
    start = _MACHO_HEADER.size + commands
    start += -start % ALIGNMENT
    nbytes = section.content.nbytes
    gap = -(start + nbytes) % 8
    # C names have an underscore prefix, and symbol tables are sorted by name
    blocks = sorted(section.blocks, key=lambda block: block[0].symbol)
    strings, offsets = _string_table([f"_{piece.symbol}" for piece, _ in blocks], b"\0")
    strings += bytes(-len(strings) % 8)
    kind = _EXTERNAL_IN_SECTION | (_PRIVATE_EXTERNAL if hidden else 0)
    symbols = b"".join(
        _MACHO_SYMBOL.pack(name, kind, 1, 0, offset) for (_, offset), name in zip(blocks, offsets, strict=True)
    )
    at, count, shift = start + nbytes + gap, len(blocks), ALIGNMENT.bit_length() - 1
    head = b"".join(
        (
            _MACHO_HEADER.pack(_MAGIC, *machine, _OBJECT, 4, commands, 0, 0),
            _MACHO_SEGMENT.pack(_LC_SEGMENT_64, segment_bytes, b"", 0, nbytes, start, nbytes, _READ, _READ, 1, 0),
            _MACHO_SECTION.pack(section.name.encode(), b"__TEXT", 0, nbytes, start, shift, 0, 0, 0, 0, 0, 0),
            _BUILD.pack(_LC_BUILD_VERSION, _BUILD.size, _MACOS, _MACOS_11, _MACOS_11, 0),
            _MACHO_SYMTAB.pack(_LC_SYMTAB, _MACHO_SYMTAB.size, at, count, at + len(symbols), len(strings)),
            _DYSYMTAB.pack(_LC_DYSYMTAB, _DYSYMTAB.size, 0, 0, 0, count, count, *[0] * 13),
        )
    )
    return Joined((head + bytes(start - len(head)), section.content, bytes(gap) + symbols + strings))


_PER_LINE = 16
_PIECE = 1 << 16
_NUMBERS = [f"{value:3d}," for value in range(256)]


def blob_source(content: Data, symbol: str) -> Content:
    """Return C, also valid as C++, that defines data under a symbol, for machines without object support."""
    _check(symbol)
    return _BlobSource(content, symbol)


@dataclass(frozen=True, eq=False)
class _BlobSource:
    """The C of some data; every byte has four characters, so that its size is known in advance."""

    content: Data
    symbol: str

    @property
    def nbytes(self) -> int:
        """Characters of the text."""
        count = nbytes_of(self.content)
        return sum(map(len, self._texts)) + 4 * count + -(-count // _PER_LINE)

    @cached_property
    def _texts(self) -> list[bytes]:
        """Text before and after the data."""
        text = Path(__file__).with_name("blob_source.c.in").read_text(encoding="ascii")
        values = {"SYMBOL": self.symbol, "NBYTES": nbytes_of(self.content), "ALIGNMENT": ALIGNMENT}
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        return text.encode("ascii").split(b"@DATA@\n")

    def chunks(self) -> Iterator[bytes]:
        """Yield the text in pieces."""
        head, tail = self._texts
        yield head
        rest = b""
        for chunk in chunks_of(self.content):
            data = rest + bytes(chunk)
            whole = len(data) - len(data) % _PER_LINE
            rest = data[whole:]
            for start in range(0, whole, _PIECE):
                yield _lines(data[start : min(start + _PIECE, whole)])
        yield _lines(rest) + tail


def _lines(data: bytes) -> bytes:
    lines = (data[start : start + _PER_LINE] for start in range(0, len(data), _PER_LINE))
    return "".join("".join(_NUMBERS[byte] for byte in line) + "\n" for line in lines).encode("ascii")


def _check(symbol: str) -> None:
    if not _NAME.fullmatch(symbol):
        raise OptionError(f"'{symbol[:80]}' is not a symbol: expected a C name")
