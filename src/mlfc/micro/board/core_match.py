"""Whether code that was compiled for one core suits a board with another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlfc.errors import OptionError
from mlfc.micro.board.board import Board
from mlfc.micro.board.object_code import attributes_of, machine_of, object_paths
from mlfc.support.content import Data
from mlfc.target.features import CPUS, INSTRUCTION_SETS, Features
from mlfc.target.target import parse_target

# ELF's numbers of machines, and of Arm's architectures for microcontrollers
_MACHINES = {"cortex-m": 40, "avr": 83, "xtensa": 94, "riscv": 243}
_NAMES = {3: "x86", 40: "Arm", 62: "x86-64", 83: "AVR", 94: "Xtensa", 183: "AArch64", 243: "RISC-V"}
_ARCHITECTURE = 6
# by their number in objects: LLVM's word, the name
_ARCHITECTURES = {
    11: ("thumbv6m", "Armv6-M"), 12: ("thumbv6m", "Armv6S-M"), 10: ("thumbv7m", "Armv7-M"),
    13: ("thumbv7em", "Armv7E-M"), 16: ("thumbv8m.base", "Armv8-M Baseline"),
    17: ("thumbv8m.main", "Armv8-M Mainline"), 21: ("thumbv8.1m.main", "Armv8.1-M"),
}  # fmt: skip


@dataclass(frozen=True)
class Mismatch:
    """How code for one target does not suit the core of a board, on which it runs all the same."""

    # `target` is what the module was compiled for
    module: str
    target: str
    board: str
    reasons: tuple[str, ...]

    def text(self, artifact: str, board: str) -> str:
        """Return it as a line with what to do, for an archive and for what the user calls the board."""
        return (
            f"module '{self.module}' was compiled for '{self.target}', and {self.board} has another core: "
            f"{' and '.join(self.reasons)}, so it runs slower than it could. "
            f"Compile it again: mlfc compile {artifact} --board {board} -o NEW.tar"
        )


def archive_mismatches(path: str | os.PathLike[str], board: Board, module: str | None = None) -> tuple[Mismatch, ...]:
    """Return how a module of an archive does not suit a board; nothing for modules of other compilers.

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
    """Return how code for a target does not suit a board's core; None where it does, or nothing is known."""
    try:
        made = parse_target(target)
    except OptionError:
        return None
    reasons = tuple(_reasons(made.features, parse_target(board.target).features))
    return Mismatch(module, str(made), board.name, reasons) if reasons and not made.device else None


def _reasons(made: Features, has: Features) -> Iterator[str]:
    for key in INSTRUCTION_SETS:
        name, used, there = INSTRUCTION_SETS.get(key).title, made.has(key), has.has(key)
        if not name:
            continue
        if there and not used:
            yield f"its loops leave the core's {name} instructions unused"
        if used and not there:
            yield f"its loops are made for {name} instructions, which the core lacks"
    if made.vector_bytes and not has.vector_bytes:
        yield f"its loops are made for vectors of {made.vector_bytes} bytes, which the core lacks"


def check_objects(code: Mapping[str, Data], board: Board) -> None:
    """Raise OptionError for objects of another machine, or with instructions that the board's core lacks."""
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
