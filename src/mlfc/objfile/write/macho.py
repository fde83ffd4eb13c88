"""Mach-O objects of data, for macOS."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from mlfc.objfile.write.blocks import ALIGNMENT, DataPiece, laid_out, string_table
from mlfc.support.content import Joined

_HEADER = struct.Struct("<IIIIIIII")
_SEGMENT = struct.Struct("<II16sQQQQIIII")
_SECTION = struct.Struct("<16s16sQQIIIIIIII")
_BUILD = struct.Struct("<IIIIII")
_SYMTAB = struct.Struct("<IIIIII")
_DYSYMTAB = struct.Struct("<20I")
_SYMBOL = struct.Struct("<IBBHQ")
_MAGIC, _OBJECT = 0xFEED_FACF, 1
_LC_SEGMENT_64, _LC_SYMTAB, _LC_DYSYMTAB, _LC_BUILD_VERSION = 0x19, 0x2, 0xB, 0x32
_MACOS, _MACOS_11 = 1, 11 << 16
_EXTERNAL_IN_SECTION, _PRIVATE_EXTERNAL = 0x0F, 0x10
_READ = 1


def macho_machine_of(head: bytes) -> tuple[int, int]:
    """Return CPU type and subtype in the first bytes of a Mach-O file, which are trusted."""
    kind, subtype = struct.unpack_from("<II", head, 4)
    return kind, subtype


def macho_object(pieces: Sequence[DataPiece], machine: tuple[int, int], *, hidden: bool) -> Joined:
    """Return a 64-bit Mach-O file of read-only data for a CPU type and subtype; `hidden` as in `elf_object`."""
    section = laid_out("__const", pieces)
    commands = _SEGMENT.size + _SECTION.size + _BUILD.size + _SYMTAB.size + _DYSYMTAB.size
    start = _HEADER.size + commands
    start += -start % ALIGNMENT
    nbytes, end = section.nbytes, start + section.nbytes
    gap = -end % 8
    # C names have an underscore before them, and tables of symbols are sorted by name
    blocks = sorted(section.blocks, key=lambda block: block.piece.symbol)
    strings, offsets = string_table([f"_{block.piece.symbol}" for block in blocks], b"\0")
    strings += bytes(-len(strings) % 8)
    kind = _EXTERNAL_IN_SECTION | (_PRIVATE_EXTERNAL if hidden else 0)
    symbols = b"".join(
        _SYMBOL.pack(name, kind, 1, 0, block.offset) for block, name in zip(blocks, offsets, strict=True)
    )
    symbols_at = end + gap
    head = b"".join(
        (
            _HEADER.pack(_MAGIC, *machine, _OBJECT, 4, commands, 0, 0),
            _SEGMENT.pack(
                _LC_SEGMENT_64, _SEGMENT.size + _SECTION.size, b"", 0, nbytes, start, nbytes, _READ, _READ, 1, 0
            ),
            _SECTION.pack(
                section.name.encode(), b"__TEXT", 0, nbytes, start, ALIGNMENT.bit_length() - 1, 0, 0, 0, 0, 0, 0
            ),
            _BUILD.pack(_LC_BUILD_VERSION, _BUILD.size, _MACOS, _MACOS_11, _MACOS_11, 0),
            _SYMTAB.pack(_LC_SYMTAB, _SYMTAB.size, symbols_at, len(blocks), symbols_at + len(symbols), len(strings)),
            _DYSYMTAB.pack(_LC_DYSYMTAB, _DYSYMTAB.size, 0, 0, 0, len(blocks), len(blocks), *[0] * 13),
        )
    )
    return Joined((head + bytes(start - len(head)), section.content, bytes(gap) + symbols + strings))
