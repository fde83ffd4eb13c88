"""Data as part of a library: as an object file, which needs no compiler, or as C.

The data is read in pieces, so hundreds of megabytes of parameters are never joined in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mlfc.errors import OptionError
from mlfc.objfile.write.blocks import ALIGNMENT, DataPiece
from mlfc.objfile.write.coff import coff_object
from mlfc.objfile.write.elf import ElfMachine, elf_object
from mlfc.objfile.write.macho import macho_object
from mlfc.support.content import Content, Data, chunks_of, nbytes_of
from mlfc.support.platforms import arch_named

_ELF = {
    "x86_64": ElfMachine(62, 64),
    "x86": ElfMachine(3, 32),
    "aarch64": ElfMachine(183, 64),
    "aarch64_be": ElfMachine(183, 64, ">"),
    # the version of Arm's procedure call standard
    "arm": ElfMachine(40, 32, "<", 0x0500_0000),
    "armeb": ElfMachine(40, 32, ">", 0x0500_0000),
    # compressed instructions, and doubles passed in registers
    "riscv64": ElfMachine(243, 64, "<", 5),
    "riscv32": ElfMachine(243, 32, "<", 1),
    "powerpc64le": ElfMachine(21, 64, "<", 2),
    "powerpc64": ElfMachine(21, 64, ">"),
    "powerpc": ElfMachine(20, 32, ">"),
    "s390x": ElfMachine(22, 64, ">"),
    # doubles passed in registers, second version of the object format
    "loongarch64": ElfMachine(258, 64, "<", 0x43),
    "xtensa": ElfMachine(94, 32, "<", 0x300),
}
_COFF = {"x86_64": 0x8664, "x86": 0x14C, "aarch64": 0xAA64, "arm": 0x1C4}
_MACHO = {"x86_64": (0x0100_0007, 3), "aarch64": (0x0100_000C, 0)}
# what only triples of bare machines say, beside the names that libraries are made for
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
_X32 = ElfMachine(62, 32)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,4095}")

_PER_LINE = 16
_PIECE = 1 << 16
_NUMBERS = [f"{value:3d}," for value in range(256)]


def object_with_blob(content: Data, symbol: str, triple: str) -> Content:
    """Return an object file with data under a symbol that users of the library see; as `object_with_data`."""
    return object_with_data({symbol: content}, triple)


def object_with_data(contents: Mapping[str, Data], triple: str, *, hidden: bool = False) -> Content:
    """Return an object file with read-only data under C symbols, each at a multiple of 64 bytes.

    The machine is `triple`, as LLVM, Debian or zig name it: COFF for Windows, Mach-O for Apple's systems, else ELF.
    With `hidden`, only the library that the object becomes part of sees the symbols.
    Raises OptionError if a symbol is not a C name, or objects for the machine are not supported.
    """
    for symbol in contents:
        _check(symbol)
    words = triple.strip().lower().split("-")
    arch = _arch(words[0])
    pieces = [DataPiece(symbol, data) for symbol, data in contents.items()]
    if any(word.startswith(_WINDOWS) for word in words[1:]) and arch in _COFF:
        return coff_object(pieces, _COFF[arch], hidden=hidden)
    if any(word.startswith(_APPLE) for word in words[1:]) and arch in _MACHO:
        return macho_object(pieces, _MACHO[arch], hidden=hidden)
    if arch not in _ELF or any(word.startswith((*_WINDOWS, *_APPLE)) for word in words[1:]):
        raise OptionError(
            f"objects for the machine '{triple[:80]}' are not written here",
            next_step=f"Compile the data as C, or use one of these: {', '.join(_ELF)}",
        )
    machine = _X32 if arch == "x86_64" and words[-1] == "gnux32" else _ELF[arch]
    has_system = any(word.startswith(_UNIX) for word in words[1:])
    return elf_object(pieces, machine, hidden=hidden, stack_note=has_system)


def blob_source(content: Data, symbol: str) -> Content:
    """Return C, valid as C++, that defines data under a symbol, for machines without objects here."""
    _check(symbol)
    return _BlobSource(content, symbol)


@dataclass(frozen=True, eq=False)
class _BlobSource:
    """The C of some data; every byte takes four characters, so that its size is known before it is made."""

    content: Data
    symbol: str

    @property
    def nbytes(self) -> int:
        """Characters of the text."""
        count = nbytes_of(self.content)
        return sum(map(len, self._texts)) + 4 * count + -(-count // _PER_LINE)

    @cached_property
    def _texts(self) -> list[bytes]:
        """The text before the data and after it."""
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


def _arch(word: str) -> str:
    found = (arch for pattern, arch in _OTHER_ARCHES if re.fullmatch(pattern, word))
    return arch_named(word) or next(found, word)


def _check(symbol: str) -> None:
    if not _NAME.fullmatch(symbol):
        raise OptionError(f"'{symbol[:80]}' is not a symbol: expected a C name")
