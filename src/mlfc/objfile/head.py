"""Recognition of objects and libraries by their first bytes, and reading of static libraries. Bytes are untrusted."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from mlfc.support.platforms import Platform, this_platform
from mlfc.support.text import with_article

HEAD = 4096
"""Number of first bytes of a file that identify it."""

STATIC_MARK = b"!<arch>\n"
"""The start of static libraries (``.a``): Unix ar(1) archives, a format that all systems share."""
_MEMBER_HEADER = 60
_NAME, _SIZE, _END = slice(0, 16), slice(48, 58), slice(58, 60)
# symbol tables and tables of long names of GNU, BSD and Microsoft
_MEMBER_TABLES = ("/", "//", "/SYM64/", "__.SYMDEF", "__.SYMDEF SORTED")
_BSD_NAME = "#1/"

LIBRARY, OBJECT, PROGRAM, ARCHIVE = "library", "object", "program", "archive of objects"
_TITLES = {LIBRARY: "library of machine code", OBJECT: "object of machine code", ARCHIVE: "static library"}
_ELF_KINDS = {1: OBJECT, 2: PROGRAM, 3: LIBRARY}


@dataclass(frozen=True)
class ElfMachine:
    """The machine in an ELF header; `order` is in `struct` notation."""

    number: int
    bits: int
    order: str = "<"
    flags: int = 0


ELF_MACHINES = {
    "x86_64": ElfMachine(62, 64),
    "x86": ElfMachine(3, 32),
    "aarch64": ElfMachine(183, 64),
    "aarch64_be": ElfMachine(183, 64, ">"),
    # version of Arm's procedure call standard
    "arm": ElfMachine(40, 32, "<", 0x0500_0000),
    "armeb": ElfMachine(40, 32, ">", 0x0500_0000),
    # compressed instructions, doubles passed in registers
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
COFF_MACHINES = {"x86_64": 0x8664, "x86": 0x14C, "aarch64": 0xAA64, "arm": 0x1C4}
MACHO_MACHINES = {"x86_64": (0x0100_0007, 3), "aarch64": (0x0100_000C, 0)}
"""CPU types and subtypes."""
_BIG_ENDIAN = ("powerpc", "powerpc64", "s390x")
_ELF_ARCHES = {(83, 32): "avr", (8, 32): "mips"} | {
    (machine.number, machine.bits): arch
    for arch, machine in ELF_MACHINES.items()
    if machine.order == "<" or arch in _BIG_ENDIAN
}
_COFF_ARCHES = {number: arch for arch, number in COFF_MACHINES.items()}
_MACHO_ARCHES = {7: "x86", 12: "arm"} | {number: arch for arch, (number, _) in MACHO_MACHINES.items()}
_MACHO_KINDS = {1: OBJECT, 2: PROGRAM, 6: LIBRARY, 8: LIBRARY}
_MACHO, _MACHO_32, _FAT = b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe"
_DLL = 0x2000
# of a COFF object: machine, sections, time, offset and count of symbols, bytes of an optional header
_COFF_HEAD = struct.Struct("<HHIIIH")
# with more it is a Java class file, which starts with the same four bytes
_MAX_FAT = 16


@dataclass(frozen=True)
class BinaryHead:
    """Kind and platform of a machine code file."""

    kind: str  # a WebAssembly object counts as a library
    system: str  # a name of `Platform`; ``linux`` for every system with ELF
    arches: tuple[str, ...]  # names of `Platform`; several for a universal binary, none for an archive


def read_head(data: bytes | memoryview) -> BinaryHead | None:
    """Return the kind of a file from its first `HEAD` bytes, or all of it; None if it is not known machine code."""
    try:
        return _read(bytes(data[:HEAD]))
    except struct.error:  # too short
        return None


def _read(head: bytes) -> BinaryHead | None:
    if head.startswith(b"\x7fELF"):
        return _elf(head)
    if head.startswith(STATIC_MARK):
        return BinaryHead(ARCHIVE, "linux", ())
    if head.startswith(b"\0asm"):
        return BinaryHead(LIBRARY, "wasi", ("wasm32",))
    if head.startswith(b"MZ"):
        return _pe(head)
    if head[:4] in (_MACHO, _MACHO_32) and len(head) >= 16:
        arch, kind = struct.unpack_from("<I4xI", head, 4)
        return BinaryHead(_MACHO_KINDS.get(kind, PROGRAM), "macos", (_MACHO_ARCHES.get(arch, f"machine {arch}"),))
    if head.startswith(_FAT):
        return _universal(head)
    return _coff(head)


def machine_code(data: bytes | memoryview) -> str | None:
    """Return the kind of machine code in a file, for messages; None if it is not known machine code."""
    head = read_head(data)
    return None if head is None else with_article(_TITLES.get(head.kind, head.kind))


def _elf(head: bytes) -> BinaryHead | None:
    form, order = struct.unpack_from("BB", head, 4)
    if form not in (1, 2) or order not in (1, 2):
        return None
    bits, order = 32 * form, "<" if order == 1 else ">"
    kind, machine = struct.unpack_from(f"{order}HH", head, 16)
    if machine == ELF_MACHINES["powerpc64"].number:
        arch = "powerpc64le" if order == "<" else "powerpc64"
    else:
        arch = _ELF_ARCHES.get((machine, bits), f"machine {machine}, {bits} bits")
        if order == ">" and arch != "s390x":
            arch += ", big endian"
    return BinaryHead(_ELF_KINDS.get(kind, PROGRAM), "linux", (arch,))


def _pe(head: bytes) -> BinaryHead | None:
    (place,) = struct.unpack_from("<I", head, 0x3C)
    mark, machine = struct.unpack_from("<4sH", head, place)
    (traits,) = struct.unpack_from("<H", head, place + 22)
    if mark != b"PE\0\0":
        return None
    arch = _COFF_ARCHES.get(machine, f"machine {machine}")
    return BinaryHead(LIBRARY if traits & _DLL else PROGRAM, "windows", (arch,))


def _universal(head: bytes) -> BinaryHead | None:
    (count,) = struct.unpack_from(">I", head, 4)
    if not 0 < count <= _MAX_FAT:
        return None
    numbers = [struct.unpack_from(">I", head, 8 + 20 * index)[0] for index in range(count)]
    return BinaryHead(LIBRARY, "macos", tuple(_MACHO_ARCHES.get(item, f"machine {item}") for item in numbers))


def _coff(head: bytes) -> BinaryHead | None:
    """Read a Windows object, which has no magic number: the rest of its header must be plausible."""
    machine, sections, _, symbols, _, optional = _COFF_HEAD.unpack_from(head)
    if machine not in _COFF_ARCHES or not 0 < sections < 0x8000 or optional or not symbols:
        return None
    return BinaryHead(OBJECT, "windows", (_COFF_ARCHES[machine],))


def misfit(data: bytes | memoryview, kind: str, machine: Platform | None = None) -> str | None:
    """Return the reason why a file is not the required ``library`` or ``object``, or None.

    `data` is the file's first `HEAD` bytes, or all of it; `machine` is this one by default.
    """
    head = read_head(data)
    wanted = machine or this_platform()
    if head is None:
        return f"it is not {with_article(kind)}"
    # WebAssembly objects start like modules: they differ only after the code
    if head.kind != kind and (head.system != "wasi" or kind not in (LIBRARY, OBJECT)):
        return f"it is {with_article(head.kind)}, not {with_article(kind)}"
    if head.system != wanted.system or wanted.arch not in head.arches:
        found = ", ".join(str(Platform(arch, head.system)) for arch in head.arches)
        return f"it is for {found}; {'this machine' if machine is None else 'what is built'} is {wanted}"
    return None


def static_members(data: memoryview) -> Iterator[memoryview]:
    """Yield the files of a static library without its tables; raise ValueError if it is damaged."""
    at = len(STATIC_MARK)
    while at < len(data):
        header = bytes(data[at : at + _MEMBER_HEADER])
        size = header[_SIZE].strip()
        if header[_END] != b"`\n" or not size.isdigit():
            raise ValueError(f"no header of a file at byte {at}")
        start, end = at + _MEMBER_HEADER, at + _MEMBER_HEADER + int(size)
        if end > len(data):
            raise ValueError(f"the file at byte {at} is cut off")
        at = end + end % 2
        name = header[_NAME].decode("latin-1").rstrip()
        if name.startswith(_BSD_NAME):  # the first bytes of the file are the name
            length = name.removeprefix(_BSD_NAME)
            if not length.isdigit() or int(length) > end - start:
                raise ValueError(f"the file at byte {start - _MEMBER_HEADER} has a name that is cut off")
            name = bytes(data[start : start + int(length)]).rstrip(b"\0").decode("latin-1")
            start += int(length)
        if name not in _MEMBER_TABLES:
            yield data[start:end]
