"""Data under symbols, laid out for an object file of any format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from mlfc.support.content import Data, Joined, nbytes_of

ALIGNMENT = 64
"""Bytes; each piece starts at a multiple of it, in the file's section and so in memory."""

RODATA = ".rodata"
"""ELF's section of what is only read; other formats have their own for it."""


@dataclass(frozen=True, eq=False)
class DataPiece:
    """Bytes under a C symbol."""

    symbol: str
    data: Data
    section: str = RODATA  # of ELF files; other formats have one section for all


@dataclass(frozen=True, eq=False)
class CodeBlock:
    """A piece in its section, `offset` bytes behind the start."""

    piece: DataPiece
    offset: int

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""
        return nbytes_of(self.piece.data)


@dataclass(frozen=True, eq=False)
class DataSection:
    """Pieces one behind the other."""

    name: str
    blocks: tuple[CodeBlock, ...]

    @property
    def nbytes(self) -> int:
        """Up to the end of the last block."""
        return self.blocks[-1].offset + self.blocks[-1].nbytes

    @property
    def content(self) -> Joined:
        """The pieces with zeros between them."""
        parts: list[Data] = []
        end = 0
        for block in self.blocks:
            parts += [bytes(block.offset - end), block.piece.data]
            end = block.offset + block.nbytes
        return Joined(tuple(parts))


def laid_out(name: str, pieces: Iterable[DataPiece]) -> DataSection:
    """Return a section of one piece or more."""
    blocks = []
    end = 0
    for piece in pieces:
        blocks.append(CodeBlock(piece, end + -end % ALIGNMENT))
        end = blocks[-1].offset + blocks[-1].nbytes
    return DataSection(name, tuple(blocks))


def sections_of(pieces: Sequence[DataPiece]) -> list[DataSection]:
    """Return the sections that the pieces name; neighbours of one section share it."""
    return [laid_out(name, group) for name, group in groupby(pieces, key=lambda piece: piece.section)]


def string_table(names: Sequence[str], start: bytes) -> tuple[bytes, list[int]]:
    """Return a table of strings that end with NUL, behind `start`, and the offset of each in it."""
    table, offsets = bytearray(start), []
    for name in names:
        offsets.append(len(table))
        table += name.encode("ascii") + b"\0"
    return bytes(table), offsets
