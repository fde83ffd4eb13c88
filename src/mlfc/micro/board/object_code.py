"""Compatibility of generated code with boards' cores: required compiler flags, and code compiled for another core."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlfc.errors import OptionError
from mlfc.micro.board.board import Board
from mlfc.objfile.elf import read_elf
from mlfc.support.content import Data, chunks_of
from mlfc.target.features import CPUS, INSTRUCTION_SETS
from mlfc.target.target import parse_target

SUFFIX = ".o"

_ATTRIBUTES = 0x7000_0003
_VENDOR = b"aeabi\0"
_WHOLE_FILE, _FLOAT_ARGUMENTS, _COMPATIBILITY = 1, 28, 32
_TEXTS = (4, 5, 67)  # tags below 32 have numbers except these; from 32 on, odd tags have strings
_HARD, _SOFT = "-mfloat-abi=hard", "-mfloat-abi=softfp"
_MACHINE = slice(18, 20)
# larger objects contain only constants, which have no attributes
_LARGEST = 64 << 20
# ELF machine numbers, and numbers of Arm's microcontroller architectures
_MACHINES = {"cortex-m": 40, "avr": 83, "xtensa": 94, "riscv": 243}
_NAMES = {3: "x86", 40: "Arm", 62: "x86-64", 83: "AVR", 94: "Xtensa", 183: "AArch64", 243: "RISC-V"}
_ARCHITECTURE = 6
# by number in objects: LLVM's name, display name
_ARCHITECTURES = {
    11: ("thumbv6m", "Armv6-M"), 12: ("thumbv6m", "Armv6S-M"), 10: ("thumbv7m", "Armv7-M"),
    13: ("thumbv7em", "Armv7E-M"), 16: ("thumbv8m.base", "Armv8-M Baseline"),
    17: ("thumbv8m.main", "Armv8-M Mainline"), 21: ("thumbv8.1m.main", "Armv8.1-M"),
}  # fmt: skip


def object_paths(code: Mapping[str, Data]) -> tuple[str, ...]:
    """Return the paths of a module's objects, sorted."""
    return tuple(sorted(path for path in code if path.endswith(SUFFIX)))


def core_flags(board: Board, code: Mapping[str, Data]) -> tuple[str, ...]:
    """Return the compiler flags for a board's core.

    If the objects of a module pass floats in integer registers, all code must do so, including libraries.
    """
    flags = board.toolchain.flags
    said = (attributes_of(code[path]) for path in object_paths(code))
    if _HARD in flags and any(tags and _FLOAT_ARGUMENTS not in tags for tags in said):
        return tuple(_SOFT if flag == _HARD else flag for flag in flags)
    return tuple(flags)


def machine_of(data: Data) -> int | None:
    """Return the ELF machine number of an object; None if it is not an ELF object."""
    image = _image(data)
    try:
        order = read_elf(image).order
    except ValueError:
        return None
    return int.from_bytes(image[_MACHINE], "little" if order == "<" else "big")


def attributes_of(data: Data) -> dict[int, int]:
    """Return the Arm build attributes of an object by tag; empty if it has none."""
    image = _image(data)
    try:
        sections = [section for section in read_elf(image).sections if section.kind == _ATTRIBUTES]
        tags = [dict(_attributes(image[item.offset : item.offset + item.nbytes])) for item in sections]
    except (ValueError, IndexError):
        return {}
    return tags[0] if tags else {}


def _image(data: Data) -> bytes:
    chunks = list(chunks_of(data))
    return b"".join(chunks) if sum(map(len, chunks)) <= _LARGEST else b""


def _attributes(section: bytes) -> Iterator[tuple[int, int]]:
    """Yield tags and numbers of an object's file-scope build attributes; raise IndexError if it is truncated."""
    place = section.find(_VENDOR)
    if place < 0:
        return
    place += len(_VENDOR)
    end = len(section)
    if section[place] != _WHOLE_FILE:
        return
    place += 5  # the tag and the size field
    while place < end:
        tag, place = _number(section, place)
        value = 0
        if (tag < _COMPATIBILITY and tag not in _TEXTS) or (tag > _COMPATIBILITY and tag % 2 == 0):
            value, place = _number(section, place)
        else:
            if tag == _COMPATIBILITY:
                _, place = _number(section, place)
            place = section.index(b"\0", place) + 1
        yield tag, value


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Return a ULEB128 number and the offset after it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        shift += 7
        place += 1
        if byte < 0x80:
            return value, place


@dataclass(frozen=True)
class Mismatch:
    """Mismatch between the target of code and a board's core, on which the code still runs."""

    # `target` is what the module was compiled for
    module: str
    target: str
    board: str
    reasons: tuple[str, ...]

    def text(self, artifact: str, board: str) -> str:
        """Return it as a line with the command that fixes it, for an archive and the user's name of the board."""
        return (
            f"module '{self.module}' was compiled for '{self.target}', and {self.board} has another core: "
            f"{' and '.join(self.reasons)}, so it runs slower than it could. "
            f"Compile it again: mlfc compile {artifact} --board {board} -o NEW.tar"
        )


def archive_mismatches(path: str | os.PathLike[str], board: Board, module: str | None = None) -> tuple[Mismatch, ...]:
    """Return the mismatches between a module of an archive and a board; empty for modules of other compilers.

    Raises the errors of reading archives.
    """
    from mlfc.archive.read.opening import open_archive
    from mlfc.runtime.modules.module import pick_module

    with open_archive(path) as archive:
        name = pick_module(archive.record.modules, module, archive.path)
        record = archive.record.modules[name]
        if record.details is None or board.arch == "host":
            return ()
        found = (mismatch(name, target, board) for target in record.targets)
        return tuple(item for item in found if item is not None)


def mismatch(module: str, target: str, board: Board) -> Mismatch | None:
    """Return the mismatch between a target and a board's core; None if it matches, or is unknown."""
    try:
        made = parse_target(target)
    except OptionError:
        return None
    wants, has = made.features, parse_target(board.target).features
    reasons = []
    for key in INSTRUCTION_SETS:
        name, used, there = INSTRUCTION_SETS.get(key).title, wants.has(key), has.has(key)
        if name and there and not used:
            reasons.append(f"its loops leave the core's {name} instructions unused")
        if name and used and not there:
            reasons.append(f"its loops are made for {name} instructions, which the core lacks")
    if wants.vector_bytes and not has.vector_bytes:
        reasons.append(f"its loops are made for vectors of {wants.vector_bytes} bytes, which the core lacks")
    return Mismatch(module, str(made), board.name, tuple(reasons)) if reasons and not made.device else None


def check_objects(code: Mapping[str, Data], board: Board) -> None:
    """Raise OptionError for objects for another machine, or with instructions that the board's core lacks."""
    for path in object_paths(code):
        reason = _cannot_run(code[path], board)
        if reason is not None:
            raise OptionError(
                f"the model's code cannot run on {board.name} ({board.core}): {reason}",
                place=path,
                next_step=f"Recompile it for the board: mlfc compile MODEL --board {board.name}",
            )


def _cannot_run(data: Data, board: Board) -> str | None:
    machine, wanted = machine_of(data), _MACHINES.get(board.arch)
    if machine is not None and wanted is not None and machine != wanted:
        return f"its objects are code of {_NAMES.get(machine, f'machine {machine}')}"
    cpu = CPUS.get(board.core) if board.core in CPUS else None
    if cpu is None or not cpu.architecture:
        return None
    said = attributes_of(data)
    word, name = _ARCHITECTURES.get(said.get(_ARCHITECTURE, 0), ("", ""))
    if word and word not in (cpu.architecture, *cpu.runs):
        return f"its objects are code for {name}"
    for entry in map(INSTRUCTION_SETS.get, INSTRUCTION_SETS):
        if entry.elf_attribute is not None and said.get(entry.elf_attribute) and entry.title not in board.features:
            return f"its objects use {entry.title} instructions"
    return None
