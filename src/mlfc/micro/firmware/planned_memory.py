"""Memory that a model will use on a board, determined before a project is generated."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path, PurePosixPath

from mlfc.archive.write.budget import largest_text, peak_text
from mlfc.codegen.constants import ALIGNMENT
from mlfc.errors import BudgetError, MlfcError, ToolchainError
from mlfc.library.cache import find_entry, store_entry
from mlfc.micro.board.board import Board
from mlfc.micro.board.object_code import core_flags, object_paths
from mlfc.micro.board.programs import first_lines, need, run
from mlfc.micro.firmware import bare_metal
from mlfc.micro.memory import memory_table
from mlfc.micro.memory.memory_table import MemoryRow, MemoryTable
from mlfc.micro.memory.stack_bound import THROUGH_POINTERS, CodeTrial, StackBound, interrupt_bytes, stack_bound
from mlfc.micro.render import render
from mlfc.support.content import Data, sha256_of
from mlfc.support.executable import most_input_bytes, run_symbol
from mlfc.support.module_info import ModuleInfo, ModuleInterface, NamedBytes
from mlfc.support.records import R, Record
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.text import shortened

_MEASURED, _LATER, _UNKNOWN = "compiled alone", "known after the build", "unknown"
# architectures whose compilers read constants only from RAM, where start-up code copies them
_CONSTANTS_IN_RAM = ("avr",)
# architectures whose assembler pads each section to its alignment, here that of pools
_FILLED_SECTIONS = {"avr": ALIGNMENT}
_SECONDS = 300
_SOURCES = (".c", ".S")
TRIAL_ELF, _MAP, _SCRIPT = "trial.elf", "trial.map", "trial.ld"
_OVERFLOW = re.compile(r"region [`'](\w+)' overflowed by (\d+) bytes?")
_NO_STACK = re.compile(r"data and stack do not fit into (\w+)")
_CONSTANT = re.compile(r"\.rodata\.(?:tvmgen_\w+?_)?constant_(\w+)")
_SMALLER = "Compile with --optimize size, for smaller code. "
_NEXT = "Make these smaller, quantize the model, or choose a larger board: mlfc fit MODEL"
_SUFFIX = ".json"
_VERSION_SECONDS = 20
_MEASURES = ("micro", "crt")  # packages of the code that builds and measures trials


def plan_table(details: ModuleInterface, board: Board) -> MemoryTable:
    """Return the memory of a module's plan, without compiling it."""
    return MemoryTable(
        board.name, False, memory_table.by_region([*_planned_rows(details, board)], board), board.memories
    )


def planned_table(
    name: str,
    code: Mapping[str, Data],
    details: ModuleInterface,
    board: Board,
    cflags: Sequence[str] | None = None,
    *,
    trial: CodeTrial | None = None,
) -> MemoryTable:
    """Return the memory that a module will use on a board, before a project is generated.

    The plan determines workspace, inputs, outputs and constants. If the board's compiler is installed, the model is
    compiled and linked alone to measure its code and stack; otherwise the rows name the packages to install.

    `code`: ``src/...`` and ``include/...``.
    `cflags`: compiler flags; default: those of a project.
    `trial`: result of `tried` for the same code and this board, or for one with the same compiler and flags.
    """
    rows = [*_planned_rows(details, board)]
    flash, ram = memory_table.region_name(board, "flash"), memory_table.region_name(board, "ram")
    known = tried(name, code, details, board, cflags) if trial is None else trial
    sizes, stack = known.sizes, known.stack
    # every path contains the main function; paths of static models also contain an entry
    shared = 2 if details.vm is None else 1
    path = [item.function for item in stack.path[shared:] or stack.path]
    deepest = " > ".join(function.removeprefix(f"tvmgen_{name}_") for function in path)
    rows.append(MemoryRow(memory_table.STACK, ram, stack.nbytes, deepest or _UNKNOWN))
    frame = interrupt_bytes(board)
    rows.append(
        MemoryRow(
            memory_table.INTERRUPT, ram, frame, "the core's own" if frame is not None else "what its handler saves"
        )
    )
    for what in memory_table.CODE.values():
        rows.append(MemoryRow(what, flash, sizes.get(what), _MEASURED if sizes else _UNKNOWN))
    rows += [MemoryRow(memory_table.REST, region, None, _LATER) for region in dict.fromkeys((flash, ram))]
    reserve = board.stack_bytes if bare_metal.has_linker_script(board) else None
    return MemoryTable(board.name, False, memory_table.by_region(rows, board), board.memories, stack, reserve=reserve)


def _planned_rows(details: ModuleInterface, board: Board) -> Iterator[MemoryRow]:
    memory = details.memory
    if details.vm is not None and details.vm.work_bytes is None:
        raise bare_metal.unbounded(details)
    workspace = memory.workspace_bytes if details.vm is None else details.vm.work_bytes or 0
    ram, flash = memory_table.region_name(board, "ram"), memory_table.region_name(board, "flash")
    pools: list[tuple[str | None, int]] = [(pool.name, pool.nbytes) for pool in details.pools]
    for name, nbytes in pools or [(None, workspace)]:
        region = memory_table.region_name(board, "ram", name)
        is_elsewhere = None not in (region, name) and name != region
        note = f"the pool {name}, which is not a memory of the board" if is_elsewhere else ""
        yield MemoryRow(memory_table.WORKSPACE, region, nbytes + -nbytes % _FILLED_SECTIONS.get(board.arch, 1), note)
    if details.workspace_io:
        yield MemoryRow(memory_table.IO, ram, 0, "in the workspace")
    elif details.vm is not None:
        given = most_input_bytes(details.inputs, details.vm)
        yield MemoryRow(memory_table.IO, ram, given, "inputs; outputs are in the workspace")
    else:
        yield MemoryRow(memory_table.IO, ram, memory.io_bytes)
    names = shortened(", ".join(state.name for state in details.states)) or "modules keep nothing between inferences"
    yield MemoryRow(memory_table.STATE, ram, memory.state_bytes, names)
    home = ram if board.arch in _CONSTANTS_IN_RAM else flash
    placed = Counter({home: memory.constants_bytes})
    for pool in details.constant_pools:
        placed[memory_table.region_name(board, "flash", pool.name)] += pool.nbytes
        placed[home] -= pool.nbytes
    for region, nbytes in placed.items():
        yield MemoryRow(memory_table.CONSTANTS, region, nbytes)
        if any(item.name == region and item.kind == "ram" for item in board.memories):
            yield MemoryRow(memory_table.INITIAL, flash, nbytes, f"of constants in {region}")


def tried(
    name: str, code: Mapping[str, Data], details: ModuleInterface, board: Board, cflags: Sequence[str] | None = None
) -> CodeTrial:
    """Measure code and stack of a model with the board's compiler; return them, or why they are unknown.

    The arguments are those of `planned_table`. Results are cached by everything that may change them.
    """
    if details.executor == "graph":
        return CodeTrial({}, StackBound(None, untold=(THROUGH_POINTERS,)))
    flags = (bare_metal.optimization_level(details),) if cflags is None else tuple(cflags)
    entries: tuple[str, ...] = (f"tvmgen_{name}_run",)
    if details.vm:
        code, entries = {**code, **bare_metal.runtime_headers()}, (run_symbol(name),)
    try:
        compiler = need(f"{board.toolchain.prefix}gcc", board.toolchain.packages)
        core = core_flags(board, code)
        said = (name, board.arch, *core, *board.toolchain.link_flags, *bare_metal.COMPILE_FLAGS, *flags)
        key = trial_key(compiler, core, [*said, *_libraries()], code)
        kept = find_trial(CodeTrial, key)
        if kept is not None:
            return kept
        with trial_build(code, entries, board, flags) as folder:
            sizes, sources = Counter[str](), {path.rpartition("/")[2] for path in code}
            program = memory_table.LinkedProgram(folder / TRIAL_ELF, folder / _MAP, sources)
            for piece in program.pieces:
                sizes.update(dict(program.parts(piece)))
            stack = stack_bound(program.elf, entries, board, program.is_library, folder, program.is_data)
        found = CodeTrial({what: sizes[what] for what in memory_table.CODE.values()}, stack)
        keep_trial(key, found)
        return found
    except MlfcError as error:
        # the error and, if it is from a compiler or linker, its first line with the reason
        first, *others = str(error).splitlines()
        telling = (line for line in others if "error:" in line or "undefined" in line)
        text = " ".join(filter(None, (first, next(telling, "").strip())))
        return CodeTrial({}, StackBound(None, untold=(text,)))


@contextmanager
def trial_build(
    code: Mapping[str, Data], entries: Sequence[str], board: Board, cflags: Sequence[str]
) -> Iterator[Path]:
    """Compile and link a model with only the libraries that it calls, in a temporary folder.

    The folder exists during the context. It contains ``TRIAL_ELF``, the linker's map, and ``.o`` and ``.su`` files
    beside the sources.

    `code`: the generated code of a module: ``src/...``, ``include/...`` and ``lib/...``; and, of a dynamic model,
        `runtime_headers`.
    `entries`: the functions and tables to keep in the program, a function first.
    `cflags`: flags besides the board's.

    Raises ToolchainError if the compiler is missing, or rejects the code.
    """
    compiler = f"{board.toolchain.prefix}gcc"
    need(compiler, board.toolchain.packages)
    command = [compiler, *core_flags(board, code)]
    with TemporaryFolder() as name:
        folder = Path(name)
        bare_metal.write_files(folder, code)
        flags = [*bare_metal.COMPILE_FLAGS, "-fstack-usage", "-Iinclude", *cflags]
        objects = []
        for path in sorted(path for path in code if PurePosixPath(path).suffix in _SOURCES):
            objects.append(f"./{path}.o")
            _run([*command, *flags, "-c", f"./{path}", "-o", objects[-1]], folder)
        objects += [f"./{path}" for path in object_paths(code)]
        wanted = ["-nostartfiles", "-Wl,--gc-sections", f"-Wl,-e,{entries[0]}", f"-Wl,-Map={_MAP}"]
        wanted += [f"-Wl,-u,{entry}" for entry in entries[1:]]
        if bare_metal.lays_out(board):
            (folder / _SCRIPT).write_bytes(render("linker/trial.ld"))  # without memory regions, so that everything fits
            wanted += ["-T", _SCRIPT]
        _run([*command, *board.toolchain.link_flags, *wanted, "-o", TRIAL_ELF, *objects, *_libraries(), "-lm"], folder)
        yield folder


def _libraries() -> list[str]:
    """Return the libraries called by the code of external generators, as used in the Makefiles of projects."""
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


def check_fit(table: MemoryTable, details: ModuleInterface | None, limits: Mapping[str, int] | None = None) -> None:
    """Raise BudgetError if the known rows of a region exceed its size.

    `details`: with a `ModuleInfo` the message names constants, the peak and the goal.
    `limits`: bytes by region, instead of the region's size.
    """
    for region in table.regions:
        limit = (limits or {}).get(region.name, region.nbytes)
        if region.used <= limit:
            continue
        over = f"{region.used:,} bytes exceed the {limit:,} of '{region.name}' by {region.used - limit:,} bytes"
        rows = sorted((row for row in table.rows_of(region.name) if row.nbytes), key=lambda row: -(row.nbytes or 0))
        cause = f"{over}: {', '.join(f'{row.what} {row.nbytes:,}' for row in rows)}"
        constants = table.total(memory_table.CONSTANTS, region.name)
        info = details if isinstance(details, ModuleInfo) else None
        if constants > region.used // 2 and info and info.constants:
            cause += f"; {largest_text(info.constants)}"
        elif constants <= region.used // 2 and info and info.peak:
            cause += f"; {peak_text(info.peak)}"
        is_code_too_much = region.kind == "flash" and constants <= limit
        can_shrink = is_code_too_much and info is not None and info.optimize == "speed"
        raise BudgetError(cause, place=table.board, next_step=(_SMALLER if can_shrink else "") + _NEXT)
    needed = table.stack.nbytes if table.stack else None
    if table.reserve is not None and needed is not None and needed > table.reserve:
        raise BudgetError(
            f"the stack of an inference, {needed:,} bytes, exceeds the reserve by {needed - table.reserve:,} bytes",
            place=table.board,
            next_step="Reserve more: stack_bytes of the board, or mlfc project build --option stack_bytes=BYTES",
        )


def overflow_error(said: str, map: Path, board: Board) -> BudgetError | None:  # noqa: A002  (the linker's word)
    """Return the error for a program that did not fit into its memory regions; None if linking failed otherwise.

    `map`: the linker's map, which is written even on failure.
    """
    overflow, no_stack = _OVERFLOW.search(said), _NO_STACK.search(said)
    name = overflow[1] if overflow else no_stack[1] if no_stack else None
    region = next((item for item in board.memories if item.name == name), None)
    if region is None:
        return None
    if overflow:
        cause = f"the firmware exceeds the {region.nbytes:,} bytes of '{region.name}' by {int(overflow[2]):,} bytes"
    else:
        cause = (
            f"the firmware does not fit into '{region.name}' of {region.nbytes:,} bytes, with what the project "
            "reserves for its stack"
        )
    found: Counter[str] = Counter()
    with suppress(OSError, ToolchainError):
        pieces = memory_table.read_map(map)
        # sections that overflow the region are after its end and before the next region
        outputs = {piece.output for piece in pieces if region.origin <= piece.address < region.end}
        for piece in pieces:
            if piece.output in outputs and piece.file is not None:
                constant = _CONSTANT.fullmatch(piece.section)
                found[constant[1] if constant else Path(piece.file).name] += piece.nbytes
    if found:
        cause += f"; {largest_text([NamedBytes(name, nbytes) for name, nbytes in found.items()])}"
    return BudgetError(cause, place=board.name, next_step=_NEXT)


def trial_key(compiler: str, core: Sequence[str], said: Sequence[str], code: Mapping[str, Data]) -> str:
    """Return the cache key of a compiler's output for code, or of an emulator's run of it.

    `compiler`: its path; `core`: its flags for the core, by which it chooses libraries.
    `said`: all other arguments, and the identity of the emulator.
    """
    files = [f"{path} {sha256_of(code[path])}" for path in sorted(code)]
    parts = [_program_hash(), *_identity(compiler, tuple(core)), *said, *files]
    return sha256("\0".join(parts).encode()).hexdigest()


def find_trial(kind: type[R], key: str) -> R | None:
    """Return the cached record of a key; None if it does not exist."""
    path = find_entry(key, _SUFFIX)
    with suppress(OSError, ValueError):  # another process may have removed it
        return None if path is None else kind.from_json(json.loads(path.read_bytes()))
    return None


def keep_trial(key: str, record: Record) -> None:
    """Cache a record; without a writable folder, do nothing."""
    with suppress(MlfcError):
        store_entry(key, _SUFFIX, json.dumps(record.to_json()).encode())


@cache
def _identity(compiler: str, core: tuple[str, ...]) -> tuple[str, ...]:
    """Return the identity of a compiler and a core's libraries: versions, and sizes and times of files."""
    folder = Path(compiler).parent
    said = [
        run([compiler, *core, option], folder, _VERSION_SECONDS).stdout
        for option in ("--version", "-print-file-name=libc.a", "-print-libgcc-file-name", "-print-prog-name=as")
    ]
    places = [Path(compiler), *(Path(text.strip()) for text in said[1:])]
    return (*said, *map(_stamp, places))


@cache
def emulator_identity(program: str) -> tuple[str, ...]:
    """Return the identity of an emulator: its version, and size and time of the file."""
    return (run([program, "--version"], Path(program).parent, _VERSION_SECONDS).stdout, _stamp(Path(program)))


def _stamp(path: Path) -> str:
    try:
        state = path.stat()
    except OSError:  # the compiler returns unknown names unchanged
        return "none"
    return f"{state.st_size} {state.st_mtime_ns}"


@cache
def _program_hash() -> str:
    """Return the hash of the source code that builds and measures trials."""
    package = Path(__file__).parents[2]
    paths = (path for name in _MEASURES for path in sorted((package / name).rglob("*")))
    texts = (path.read_bytes() for path in paths if path.is_file() and path.suffix != ".pyc")
    return sha256(b"".join(sha256(text).digest() for text in texts)).hexdigest()
