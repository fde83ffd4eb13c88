"""The memory that a model will take on a board, before any project is made."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from mlfc.codegen.constants import ALIGNMENT
from mlfc.errors import MlfcError, ToolchainError
from mlfc.micro.board.board import Board
from mlfc.micro.board.object_code import core_flags, object_paths
from mlfc.micro.board.programs import first_lines, need, run
from mlfc.micro.firmware import kept_trials
from mlfc.micro.firmware.bare_metal import write_files
from mlfc.micro.firmware.interpreted import runtime_headers, unbounded
from mlfc.micro.firmware.linker_script import has_linker_script, lays_out
from mlfc.micro.firmware.makefile import COMPILE_FLAGS, optimization_level
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
    MemoryRow,
    MemoryTable,
    by_region,
    region_name,
)  # fmt: skip
from mlfc.micro.memory.stack_bound import THROUGH_POINTERS, StackBound, interrupt_bytes, stack_bound
from mlfc.micro.memory.trial import CodeTrial
from mlfc.micro.render import render
from mlfc.support.content import Data
from mlfc.support.executable import run_symbol
from mlfc.support.module_info import ModuleInterface
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.text import shortened
from mlfc.support.vm_info import most_input_bytes

_MEASURED = "compiled alone"
_LATER = "known after the build"
_UNKNOWN = "unknown"
# whose compiler reads constants from RAM alone, where start-up code copies them
_CONSTANTS_IN_RAM = ("avr",)
# whose assembler fills each section up to its alignment, here that of pools
_FILLED_SECTIONS = {"avr": ALIGNMENT}
_SECONDS = 300
_SOURCES = (".c", ".S")
TRIAL_ELF, _MAP, _SCRIPT = "trial.elf", "trial.map", "trial.ld"


def plan_table(details: ModuleInterface, board: Board) -> MemoryTable:
    """Return what the plan of a module says, which takes no compiler."""
    return MemoryTable(board.name, False, by_region([*_planned_rows(details, board)], board), board.memories)


def planned_table(
    name: str,
    code: Mapping[str, Data],
    details: ModuleInterface,
    board: Board,
    cflags: Sequence[str] | None = None,
    *,
    trial: CodeTrial | None = None,
) -> MemoryTable:
    """Return what a module will take of a board, before a project is made.

    The plan says workspace, inputs, outputs and constants. Where the board's compiler is there, the model is
    compiled and linked alone, which says its code and its stack; where it is not, the rows say what to install.

    `code`: ``src/...`` and ``include/...``.
    `cflags`: for the compiler; default: a project's.
    `trial`: what `tried` returned of the same code for this board, or for one with the same compiler and flags.
    """
    rows = [*_planned_rows(details, board)]
    flash, ram = region_name(board, "flash"), region_name(board, "ram")
    known = tried(name, code, details, board, cflags) if trial is None else trial
    sizes, stack = known.sizes, known.stack
    # the main function is in every path; those of static models have an entry, too
    shared = 2 if details.vm is None else 1
    path = [item.function for item in stack.path[shared:] or stack.path]
    deepest = " > ".join(function.removeprefix(f"tvmgen_{name}_") for function in path)
    rows.append(MemoryRow(STACK, ram, stack.nbytes, deepest or _UNKNOWN))
    frame = interrupt_bytes(board)
    rows.append(MemoryRow(INTERRUPT, ram, frame, "the core's own" if frame is not None else "what its handler saves"))
    for what in CODE.values():
        rows.append(MemoryRow(what, flash, sizes.get(what), _MEASURED if sizes else _UNKNOWN))
    rows += [MemoryRow(REST, region, None, _LATER) for region in dict.fromkeys((flash, ram))]
    reserve = board.stack_bytes if has_linker_script(board) else None
    return MemoryTable(board.name, False, by_region(rows, board), board.memories, stack, reserve=reserve)


def _planned_rows(details: ModuleInterface, board: Board) -> Iterator[MemoryRow]:
    memory = details.memory
    if details.vm is not None and details.vm.work_bytes is None:
        raise unbounded(details)
    workspace = memory.workspace_bytes if details.vm is None else details.vm.work_bytes or 0
    ram, flash = region_name(board, "ram"), region_name(board, "flash")
    pools: list[tuple[str | None, int]] = [(pool.name, pool.nbytes) for pool in details.pools]
    for name, nbytes in pools or [(None, workspace)]:
        region = region_name(board, "ram", name)
        is_elsewhere = None not in (region, name) and name != region
        note = f"the pool {name}, after which no memory is named" if is_elsewhere else ""
        yield MemoryRow(WORKSPACE, region, nbytes + -nbytes % _FILLED_SECTIONS.get(board.arch, 1), note)
    if details.workspace_io:
        yield MemoryRow(IO, ram, 0, "in the workspace")
    elif details.vm is not None:
        yield MemoryRow(IO, ram, most_input_bytes(details.inputs, details.vm), "inputs; outputs are in the workspace")
    else:
        yield MemoryRow(IO, ram, memory.io_bytes)
    names = ", ".join(state.name for state in details.states)
    yield MemoryRow(STATE, ram, memory.state_bytes, shortened(names) or "modules keep nothing between inferences")
    home = ram if board.arch in _CONSTANTS_IN_RAM else flash
    placed = Counter({home: memory.constants_bytes})
    for pool in details.constant_pools:
        placed[region_name(board, "flash", pool.name)] += pool.nbytes
        placed[home] -= pool.nbytes
    for region, nbytes in placed.items():
        yield MemoryRow(CONSTANTS, region, nbytes)
        if any(item.name == region and item.kind == "ram" for item in board.memories):
            yield MemoryRow(INITIAL, flash, nbytes, f"of constants in {region}")


def _in_one_line(error: MlfcError) -> str:
    """Return what is wrong and, where a compiler or linker said it, the first of its lines that tells why."""
    first, *others = str(error).splitlines()
    telling = (line for line in others if "error:" in line or "undefined" in line)
    return " ".join(filter(None, (first, next(telling, "").strip())))


def tried(
    name: str,
    code: Mapping[str, Data],
    details: ModuleInterface,
    board: Board,
    cflags: Sequence[str] | None = None,
) -> CodeTrial:
    """Return code and stack of a model as the board's compiler makes them, or why they are not known.

    The arguments are those of `planned_table`. What was tried before, with all that may change it, is not tried again.
    """
    if details.executor == "graph":
        return CodeTrial({}, StackBound(None, untold=(THROUGH_POINTERS,)))
    flags = (optimization_level(details),) if cflags is None else tuple(cflags)
    entries: tuple[str, ...] = (f"tvmgen_{name}_run",)
    if details.vm:
        code, entries = {**code, **runtime_headers()}, (run_symbol(name),)
    try:
        compiler = need(f"{board.toolchain.prefix}gcc", board.toolchain.packages)
        said = (name, board.arch, *core_flags(board, code), *board.toolchain.link_flags, *COMPILE_FLAGS, *flags)
        key = kept_trials.key_of(compiler, core_flags(board, code), [*said, *_libraries()], code)
        kept = kept_trials.find(key)
        if kept is not None:
            return CodeTrial.of_json(kept)
        found = _measured(entries, code, board, flags)
        kept_trials.keep(key, found.as_json())
        return found
    except MlfcError as error:
        return CodeTrial({}, StackBound(None, untold=(_in_one_line(error),)))


def _measured(entries: Sequence[str], code: Mapping[str, Data], board: Board, cflags: Sequence[str]) -> CodeTrial:
    sources = {path.rpartition("/")[2] for path in code}
    with trial_build(code, entries, board, cflags) as folder:
        sizes = Counter[str]()
        program = LinkedProgram(folder / TRIAL_ELF, folder / _MAP, sources)
        for piece in program.pieces:
            sizes.update(dict(program.parts(piece)))
        stack = stack_bound(program.elf, entries, board, program.is_library, folder, program.is_data)
        return CodeTrial({what: sizes[what] for what in CODE.values()}, stack)


@contextmanager
def trial_build(
    code: Mapping[str, Data], entries: Sequence[str], board: Board, cflags: Sequence[str]
) -> Iterator[Path]:
    """Compile and link a model with nothing but the libraries that it calls, in a folder of its own.

    The folder lives as long as the context. It has ``TRIAL_ELF``, the linker's map, and ``.o`` and ``.su`` files beside
    the sources.

    `code`: the generated code of a module: ``src/...``, ``include/...`` and ``lib/...``; and, of a dynamic model,
        `runtime_headers`.
    `entries`: the functions and tables that the program is for, a function first.
    `cflags`: flags beside the board's.

    Raises ToolchainError if the compiler is missing, or refuses the code.
    """
    compiler = f"{board.toolchain.prefix}gcc"
    need(compiler, board.toolchain.packages)
    command = [compiler, *core_flags(board, code)]
    with TemporaryFolder() as name:
        folder = Path(name)
        write_files(folder, code)
        flags = [*COMPILE_FLAGS, "-fstack-usage", "-Iinclude", *cflags]
        objects = []
        for path in sorted(path for path in code if PurePosixPath(path).suffix in _SOURCES):
            objects.append(f"./{path}.o")
            _run([*command, *flags, "-c", f"./{path}", "-o", objects[-1]], folder)
        objects += [f"./{path}" for path in object_paths(code)]
        wanted = ["-nostartfiles", "-Wl,--gc-sections", f"-Wl,-e,{entries[0]}", f"-Wl,-Map={_MAP}"]
        wanted += [f"-Wl,-u,{entry}" for entry in entries[1:]]
        if lays_out(board):
            (folder / _SCRIPT).write_bytes(render("linker/trial.ld"))  # without regions, so that everything fits
            wanted += ["-T", _SCRIPT]
        _run([*command, *board.toolchain.link_flags, *wanted, "-o", TRIAL_ELF, *objects, *_libraries(), "-lm"], folder)
        yield folder


def _libraries() -> list[str]:
    """Return the libraries that the code of external generators calls, as the Makefiles of projects take them."""
    try:
        return shlex.split(os.environ.get("LIBS", ""))
    except ValueError as error:
        raise ToolchainError(f"cannot split the environment variable LIBS: {error}") from error


def _run(command: Sequence[str], folder: Path) -> None:
    result = run(command, folder, _SECONDS)
    if result.returncode != 0:
        raise ToolchainError(
            f"the model's code does not build for the board:{first_lines(result.stderr)}",
            place=PurePosixPath(command[0]).name,
        )
