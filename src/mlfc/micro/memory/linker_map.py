"""What lies where in linked firmware, as the map of GNU ld says; it writes one even where the program does not fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mlfc.errors import ToolchainError

MODEL, LIBRARIES, FIRMWARE = "model", "libraries", "start-up and main"
"""Whose a part of a program is."""

_START = "Linker script and memory map"
_NUMBER = r"0x[0-9a-f]+"
_OUTPUT = re.compile(rf"([.\w]\S*)(?:\s+({_NUMBER})\s+({_NUMBER})(?:\s+load address ({_NUMBER}))?)?")
_INPUT = re.compile(rf" ([.\w]\S*)(?:\s+({_NUMBER})\s+({_NUMBER})\s+(\S.*))?")
_NOT_LOADED = (".debug", ".comment", ".note", ".stab", ".gnu.", ".ARM.attributes", ".riscv.attributes")
_ZEROED = (".bss", ".sbss", ".noinit", ".scommon", "COMMON")
_LARGEST_MAP = 64 << 20


@dataclass(frozen=True)
class Piece:
    """A part of a program in memory."""

    # the section of the program, and that of the object file
    output: str
    section: str
    address: int
    nbytes: int
    file: str | None  # the object; None for what the linker puts between objects
    load: int | None = None  # where its initial bytes lie in flash, if they are copied from there

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.nbytes

    @property
    def is_zeroed(self) -> bool:
        """Whether it takes memory when the program runs, and no place in the file."""
        return self.section.startswith(_ZEROED)

    def owner(self, model_sources: Collection[str]) -> str:
        """Return whose it is: of one of `model_sources` or an object made from it, of a library, or of the firmware."""
        name = PurePosixPath((self.file or "").rpartition("(")[2].rstrip(")")).name
        if name in model_sources or any(name in (f"{source}.o", f"{source}.obj") for source in model_sources):
            return MODEL
        return LIBRARIES if (self.file or "").endswith(")") else FIRMWARE


def read_map(path: Path) -> tuple[Piece, ...]:
    """Return the parts of a program that memory holds, in the map's order.

    Raises ToolchainError if it is no map of GNU ld.
    """
    if path.stat().st_size > _LARGEST_MAP:
        raise ToolchainError("the linker map is too large", place=path.name)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if _START not in lines:
        raise ToolchainError(
            "expected a map file of GNU ld",
            place=path.name,
            next_step="Link with -Wl,-Map=<file> and a linker of binutils",
        )
    return tuple(_pieces(lines[lines.index(_START) + 1 :]))


@dataclass(frozen=True)
class _Output:
    """A section of the program: its name, where it lies, and where its initial bytes do if that is elsewhere."""

    name: str
    address: int
    nbytes: int
    load: int | None


def _pieces(lines: Sequence[str]) -> Iterator[Piece]:
    output, found = _Output("", 0, 0, None), list[Piece]()
    waiting: str | None = None
    for line in lines:
        # a long name stands alone on its line, and what belongs to it on the next
        whole = line if waiting is None else f"{waiting} {line.lstrip()}"
        opened, item = _OUTPUT.fullmatch(whole), _INPUT.fullmatch(whole)
        waiting = None
        if opened and opened[2]:
            yield from _with_rest(output, found)
            load = None if opened[4] is None else int(opened[4], 16)
            output, found = _Output(opened[1], int(opened[2], 16), int(opened[3], 16), load), []
        elif item and item[2]:
            address, nbytes = int(item[2], 16), int(item[3], 16)
            if nbytes:
                found.append(_piece(output, item[1], address, nbytes, item[4]))
        elif opened or item:
            waiting = whole
    yield from _with_rest(output, found)


def _piece(output: _Output, section: str, address: int, nbytes: int, file: str | None) -> Piece:
    load = None if output.load is None else output.load + address - output.address
    return Piece(output.name, section, address, nbytes, file, load)


def _with_rest(output: _Output, found: Sequence[Piece]) -> Iterator[Piece]:
    """Yield what a section of the program consists of, and as one piece what the linker put between."""
    if output.name.startswith(_NOT_LOADED):
        return
    yield from found
    rest = output.nbytes - sum(piece.nbytes for piece in found)
    if rest > 0:
        section = found[-1].section if found else output.name
        yield _piece(output, section, output.address, rest, None)
