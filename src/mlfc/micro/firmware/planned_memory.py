"""The memory that a model will take on a board, before any project is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlfc.errors import MlfcError
from mlfc.micro.board.board import Board
from mlfc.micro.firmware.linker_script import has_linker_script
from mlfc.micro.firmware.makefile import optimization_level
from mlfc.micro.firmware.trial_build import trial_build
from mlfc.micro.memory.linked_memory import LinkedProgram
from mlfc.micro.memory.memory_table import (
    CODE,
    CONSTANTS,
    INITIAL,
    INTERRUPT,
    IO,
    REST,
    STACK,
    STATE,
    WORKSPACE,
    MemoryTable,
    Row,
    by_region,
    region_name,
)  # fmt: skip
from mlfc.micro.memory.stack_bound import THROUGH_POINTERS, StackBound, interrupt_bytes, stack_bound
from mlfc.support.content import Data
from mlfc.support.module_info import ModuleInterface

_MEASURED = "compiled alone"
_LATER = "known after the build"
_UNKNOWN = "unknown"
# whose compiler reads constants from RAM alone, where start-up code copies them
_CONSTANTS_IN_RAM = ("avr",)


def plan_table(details: ModuleInterface, board: Board) -> MemoryTable:
    """Return what the plan of a module says, which takes no compiler."""
    return MemoryTable(board.name, False, by_region([*_planned_rows(details, board)], board), board.memories)


def planned_table(
    name: str,
    code: Mapping[str, Data],
    details: ModuleInterface,
    board: Board,
    cflags: Sequence[str] | None = None,
) -> MemoryTable:
    """Return what a module will take of a board, before a project is made.

    The plan says workspace, inputs, outputs and constants. Where the board's compiler is there, the model is
    compiled and linked alone, which says its code and its stack; where it is not, the rows say what to install.

    `code`: ``src/...`` and ``include/...``.
    `details`, `board`: as for `plan_table`.
    `cflags`: for the compiler; by default those of a project.
    """
    rows = [*_planned_rows(details, board)]
    flash, ram = region_name(board, "flash"), region_name(board, "ram")
    measured = _Measured({}, StackBound(None, untold=(THROUGH_POINTERS,)))
    if details.executor == "aot":
        measured = _measured(name, code, board, (optimization_level(details),) if cflags is None else cflags)
    # the entry and the main function are in every path
    path = [item.function for item in measured.stack.path[2:] or measured.stack.path]
    deepest = " > ".join(function.removeprefix(f"tvmgen_{name}_") for function in path)
    rows.append(Row(STACK, ram, measured.stack.nbytes, deepest or _UNKNOWN))
    frame = interrupt_bytes(board)
    rows.append(Row(INTERRUPT, ram, frame, "the core's own" if frame is not None else "what its handler saves"))
    for what in CODE.values():
        rows.append(Row(what, flash, measured.code.get(what), _MEASURED if measured.code else _UNKNOWN))
    rows += [Row(REST, region, None, _LATER) for region in dict.fromkeys((flash, ram))]
    reserve = board.stack_bytes if has_linker_script(board) else None
    return MemoryTable(board.name, False, by_region(rows, board), board.memories, measured.stack, reserve=reserve)


def _planned_rows(details: ModuleInterface, board: Board) -> Iterator[Row]:
    memory = details.memory
    ram, flash = region_name(board, "ram"), region_name(board, "flash")
    pools: list[tuple[str | None, int]] = [(pool.name, pool.nbytes) for pool in details.pools]
    for name, nbytes in pools or [(None, memory.workspace_bytes)]:
        region = region_name(board, "ram", name)
        is_elsewhere = None not in (region, name) and name != region
        note = f"the pool {name}, after which no memory is named" if is_elsewhere else ""
        yield Row(WORKSPACE, region, nbytes, note)
    if details.workspace_io:
        yield Row(IO, ram, 0, "in the workspace")
    else:
        yield Row(IO, ram, memory.io_bytes)
    yield Row(STATE, ram, 0, "modules keep nothing between inferences")
    home = ram if board.arch in _CONSTANTS_IN_RAM else flash
    placed = Counter({home: memory.constants_bytes})
    for pool in details.constant_pools:
        placed[region_name(board, "flash", pool.name)] += pool.nbytes
        placed[home] -= pool.nbytes
    for region, nbytes in placed.items():
        yield Row(CONSTANTS, region, nbytes)
        if any(item.name == region and item.kind == "ram" for item in board.memories):
            yield Row(INITIAL, flash, nbytes, f"of constants in {region}")


@dataclass(frozen=True)
class _Measured:
    code: Mapping[str, int]
    stack: StackBound


def _in_one_line(error: MlfcError) -> str:
    """Return what is wrong and, where a compiler or linker said it, the first of its lines that tells why."""
    first, *others = str(error).splitlines()
    telling = (line for line in others if "error:" in line or "undefined" in line)
    return " ".join(filter(None, (first, next(telling, "").strip())))


def _measured(name: str, code: Mapping[str, Data], board: Board, cflags: Sequence[str]) -> _Measured:
    """Return code and stack of a model as the board's compiler makes them, or why they are not known."""
    entry = f"tvmgen_{name}_run"
    sources = {path.rpartition("/")[2] for path in code}
    try:
        with trial_build(code, entry, board, cflags) as build:
            sizes = Counter[str]()
            program = LinkedProgram(build.elf, build.map, sources)
            for piece in program.pieces:
                sizes.update(dict(program.parts(piece)))
            stack = stack_bound(build.elf, entry, board, program.is_library, build.folder)
            return _Measured({what: sizes[what] for what in CODE.values()}, stack)
    except MlfcError as error:
        return _Measured({}, StackBound(None, untold=(_in_one_line(error),)))
