"""COFF objects of data, for Windows."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from mlfc.errors import OptionError
from mlfc.objfile.write.blocks import DataPiece, DataSection, laid_out, string_table
from mlfc.support.content import Joined

_HEADER = struct.Struct("<HHIIIHH")
_SECTION = struct.Struct("<8sIIIIIIHHI")
_SYMBOL = struct.Struct("<8sIhHBB")
_SHORT_NAME = 8
_EXTERNAL = 2
_X86 = 0x14C
# initialized data that is read, at a multiple of 64 bytes
_RODATA = 0x0000_0040 | 0x4000_0000 | 0x0070_0000
# words for the linker, which are not part of what it makes
_DIRECTIVES = 0x0000_0200 | 0x0000_0800 | 0x0010_0000
_LIMIT = 1 << 31


def coff_machine_of(head: bytes) -> int:
    """Return the machine's number in the first bytes of a COFF file, which are trusted."""
    (number,) = struct.unpack_from("<H", head)
    return int(number)


def coff_object(pieces: Sequence[DataPiece], machine: int, *, hidden: bool) -> Joined:
    """Return a COFF file of read-only data; with `hidden`, the library does not export the symbols.

    Raises OptionError if the data exceeds the size of a library.
    """
    section = laid_out(".rdata", pieces)
    if section.nbytes > _LIMIT:
        raise OptionError(
            f"{section.nbytes:,} bytes do not fit a library for Windows, which has two gigabytes at most",
            next_step="Leave the parameters out of the library",
        )
    # C names have an underscore before them on x86 alone
    prefix = "_" if machine == _X86 else ""
    exports = "" if hidden else "".join(f" -export:{piece.symbol},data" for piece in pieces)
    directives = exports.encode("ascii")
    start = _HEADER.size + 2 * _SECTION.size
    end = start + section.nbytes
    symbols_at = end + len(directives)
    symbols, strings = _symbols(section, prefix)
    header = _HEADER.pack(machine, 2, 0, symbols_at, len(section.blocks), 0, 0)
    rows = _SECTION.pack(section.name.encode(), 0, 0, section.nbytes, start, 0, 0, 0, 0, _RODATA)
    rows += _SECTION.pack(b".drectve", 0, 0, len(directives), end, 0, 0, 0, 0, _DIRECTIVES)
    return Joined((header + rows, section.content, directives + symbols + strings))


def _symbols(section: DataSection, prefix: str) -> tuple[bytes, bytes]:
    """Return the table of symbols and that of their long names, which starts with its size."""
    names = [prefix + block.piece.symbol for block in section.blocks]
    long_names = [name for name in names if len(name) > _SHORT_NAME]
    table, offsets = string_table(long_names, bytes(4))
    place = dict(zip(long_names, offsets, strict=True))
    rows = []
    for name, block in zip(names, section.blocks, strict=True):
        field = struct.pack("<II", 0, place[name]) if name in place else name.encode("ascii").ljust(_SHORT_NAME, b"\0")
        rows.append(_SYMBOL.pack(field, block.offset, 1, 0, _EXTERNAL, 0))
    return b"".join(rows), struct.pack("<I", len(table)) + table[4:]
