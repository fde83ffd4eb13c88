"""Memory and time of a model on each board, with the options that make it fit: `board_budgets`."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from mlfc.archive.details import full_module_info
from mlfc.archive.write.budget import largest_text, peak_text
from mlfc.compiler import build_module
from mlfc.errors import MlfcError, OptionError
from mlfc.factory import Factory
from mlfc.memory import Pool
from mlfc.micro.board.board import Board, board_pools, boards
from mlfc.micro.board.object_code import core_flags
from mlfc.micro.board.programs import need
from mlfc.micro.firmware.bare_metal import has_linker_script, optimization_level
from mlfc.micro.firmware.planned_memory import (
    emulator_identity,
    find_trial,
    keep_trial,
    plan_table,
    planned_table,
    trial_key,
    tried,
)
from mlfc.micro.memory.memory_table import CODE, MemoryTable, RegionUse
from mlfc.micro.memory.stack_bound import CodeTrial
from mlfc.micro.run.emulator import emulated_factory
from mlfc.micro.run.firmware_run import run_command
from mlfc.options import BuildOptions
from mlfc.relay.ir import IRModule
from mlfc.runtime.tensor.arrays import fill
from mlfc.support.module_info import ModuleInfo
from mlfc.support.records import Record
from mlfc.support.tensor_info import Array
from mlfc.target.features import CPUS
from mlfc.target.target import Target, parse_target

_MOST_THREADS = 4
Result = TypeVar("Result")
_REGION_KEYS = ("name", "kind", "used", "bytes", "percent", "over")
_OF_MAIN = 256  # bytes of stack for the caller of the model
_MOST_LIMITS = 4  # limits of RAM to tile for, and sets of memories, per kind of code
_FLOAT, _PART = "float32", 0.75  # saved by int8, which keeps one of four bytes
_SECONDS = 120.0


@dataclass(frozen=True)
class Setting:
    """Options of ``mlfc compile`` that affect the memory of a model."""

    optimize: str = "speed"
    workspace_io: bool = False  # inputs and outputs are in the workspace
    ram: int | None = None  # tile layers by rows to keep workspace, inputs and outputs within this many bytes
    pools: tuple[Pool, ...] = ()  # the memories of a board over which the workspace is distributed

    @property
    def options(self) -> str:
        """Command-line options of the setting; empty for the defaults."""
        words = ["--optimize size"] if self.optimize == "size" else []
        words += ["--workspace-io"] if self.workspace_io else []
        if self.ram is not None:
            words.append(f"--ram {self.ram}" if not self.ram or self.ram % 1024 else f"--ram {self.ram >> 10}k")
        words += ["--board-pools"] if self.pools else []
        return " ".join(words)


CodeKind: TypeAlias = tuple[object, ...]
Say: TypeAlias = Callable[[int, int, str], None]
"""Progress callback: done, total, and a note."""


@dataclass(frozen=True)
class Built:
    """A compiled model and its details."""

    factory: Factory
    details: ModuleInfo


class Builds:
    """Cache of a model's builds, one for each combination of boards and settings that makes a difference.

    Parameters
    ----------
    module : IRModule
    params : mapping of str to ndarray
        Result of `import_model` for a microcontroller.
    name : str
        The module's name in messages and symbols.
    options : BuildOptions
        Options that boards and settings do not determine.
    say : callable
        Progress callback: compilations done, compilations known to be wanted, and the current one.
    """

    def __init__(
        self, module: IRModule, params: Mapping[str, Array], name: str, *, options: BuildOptions, say: Say
    ) -> None:
        self._model, self._name, self._say = (module, params), name, say
        self._options = replace(options, module_name=name)
        self._built: dict[tuple[CodeKind, Setting], Built | MlfcError] = {}
        self._trials: dict[tuple[object, ...], CodeTrial] = {}
        self._done = self._wanted = 0

    def want(self, count: int) -> None:
        """Add a number of expected compilations to the progress."""
        self._wanted += count

    def get(self, board: Board, setting: Setting) -> Built:
        """Return the model compiled for a board; raise MlfcError if that fails, on each call."""
        target = parse_target(board.target)
        key = (code_kind(target), setting)
        if key not in self._built:
            self._tell(f"{target} {setting.options}")
            try:
                factory = build_module(*self._model, replace(self._options, target=str(target), **vars(setting)))
                self._built[key] = Built(factory, full_module_info(factory))
            except MlfcError as error:
                self._built[key] = error
            self._done += 1
        found = self._built[key]
        if isinstance(found, MlfcError):
            raise found
        return found

    def trial(self, board: Board, setting: Setting) -> CodeTrial:
        """Return code and stack measured with the board's compiler, for a board and setting of `try_all`."""
        return self._trials[trial_kind(board, setting)]

    def try_all(self, wanted: Iterable[tuple[Board, Setting]]) -> None:
        """Compile for boards in parallel: their compilers use one processor each."""
        todo = {trial_kind(board, setting): (board, setting) for board, setting in wanted}
        todo = {key: item for key, item in todo.items() if key not in self._trials}
        self.want(len(todo))
        with ThreadPoolExecutor(max(1, min(_MOST_THREADS, os.cpu_count() or 1))) as pool:
            started = {key: pool.submit(self._try, *item) for key, item in todo.items()}
            for key, future in started.items():
                self._tell(f"{todo[key][0].toolchain.prefix}gcc for {todo[key][0].core}")
                self._trials[key] = future.result()
                self._done += 1

    def step(self, what: str, work: Callable[[], Result]) -> Result:
        """Run other work as a step of the progress and return its result."""
        self._tell(what)
        result = work()
        self._done += 1
        return result

    def _try(self, board: Board, setting: Setting) -> CodeTrial:
        built = self.get(board, setting)
        return tried(self._name, built.factory.code.built_files, built.details, board)

    def _tell(self, what: str) -> None:
        self._wanted = max(self._wanted, self._done + 1)
        self._say(self._done, self._wanted, what)


def code_kind(target: Target) -> CodeKind:
    """Return the key of the generated code: C is the same for cores with equal features."""
    own = () if target.kind == "c" else (target.mcpu,)
    return (target.kind, target.features, tuple(sorted(target.options.items())), *own)


def trial_kind(board: Board, setting: Setting) -> tuple[object, ...]:
    """Return the key of a model's machine code on a board."""
    tools = board.toolchain
    kind = code_kind(parse_target(board.target))
    return (kind, setting, board.arch, tools.prefix, core_flags(board, {}), tools.link_flags)


@dataclass(frozen=True)
class Count(Record):
    """Cost of an inference, or the reason why it is unknown."""

    instructions: int | None = None
    cycles: int | None = None  # if the emulator models the duration of each instruction
    unknown: str = ""

    def milliseconds(self, clock_hz: int | None) -> float | None:
        """Return the time at a clock from cycles, or from instructions at one cycle each."""
        taken = self.instructions if self.cycles is None else self.cycles
        return None if taken is None or not clock_hz else 1000 * taken / clock_hz


_USUAL = Setting()


@dataclass(frozen=True)
class BoardBudget:
    """Memory and time of a model on a board."""

    board: Board
    setting: Setting
    table: MemoryTable | None  # None if the model does not compile for the board
    count: Count
    problem: str = ""  # why the model does not fit, or why that is unknown

    @property
    def fits(self) -> bool | None:
        """True if the board has enough memory for the model; None if only a part is known."""
        if self.table is None or any(region.over for region in self.table.regions):
            return False
        has_code = all(row.nbytes is not None for row in self.table.rows if row.what in CODE.values())
        return True if has_code and self.table.rows else None

    def used(self, kind: str) -> int | None:
        """Return the used bytes of a kind of memory, ``ram`` or ``flash``."""
        return sum(item.used for item in self.regions(kind)) if self.table else None

    def percent(self, kind: str) -> float | None:
        """Return the used percentage of the fullest memory of a kind."""
        return max((item.percent for item in self.regions(kind)), default=None)

    @property
    def stack_bytes(self) -> int | None:
        """Maximum stack of an inference in bytes; None if unknown."""
        return self.table.stack.nbytes if self.table and self.table.stack else None

    @property
    def milliseconds(self) -> float | None:
        """Time of an inference at the highest clock; see `Count.milliseconds`."""
        return self.count.milliseconds(self.board.fastest_clock_hz)

    def short(self, kind: str) -> int:
        """Return the missing bytes of a kind of memory; RAM includes the stack that projects reserve."""
        if self.table is None:
            return 0
        over = sum(item.over for item in self.regions(kind))
        if kind != "ram" or not has_linker_script(self.board):
            return over
        ram = next(item for item in self.regions(kind) if item.name == self.board.ram.name)
        return max(over, ram.used - (self.stack_bytes or 0) + self.board.stack_bytes - ram.nbytes)

    @property
    def fullness(self) -> float:
        """Used fraction of the fullest memory, from 0 to 1."""
        return max((item.percent / 100 for item in self.table.regions), default=0.0) if self.table else float("inf")

    def as_json(self) -> dict[str, Any]:
        """Return the budget as a JSON object."""
        regions = [item.as_json() for item in self.table.regions] if self.table else []
        percents = {kind: self.percent(kind) for kind in ("ram", "flash")}
        rounded = {kind: None if percent is None else round(percent, 2) for kind, percent in percents.items()}
        return {
            "board": self.board.name,
            "chip": self.board.chip,
            "core": self.board.core,
            "fits": self.fits,
            "problem": self.problem or None,
            "options": self.setting.options,
            "ram_bytes": self.used("ram"),
            "ram_percent": rounded["ram"],
            "flash_bytes": self.used("flash"),
            "flash_percent": rounded["flash"],
            "regions": [{key: facts[key] for key in _REGION_KEYS} for facts in regions],
            "stack_bytes": self.stack_bytes,
            "instructions": self.count.instructions,
            "cycles": self.count.cycles,
            "clock_hz": self.board.fastest_clock_hz,
            "milliseconds": self.milliseconds,
            "not_counted": self.count.unknown or None,
        }

    def regions(self, kind: str) -> list[RegionUse]:
        """Return the memories of a kind."""
        return [item for item in self.table.regions if item.kind == kind] if self.table else []


@dataclass(frozen=True)
class BudgetTable:
    """Memory and time of a model on boards: those that it fits first, by free memory, and advice for others."""

    rows: tuple[BoardBudget, ...]
    advice: tuple[Advice, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the table as a JSON object."""
        return {"boards": [row.as_json() for row in self.rows], "advice": [item.to_json() for item in self.advice]}


def board_budgets(
    module: IRModule,
    params: Mapping[str, Array],
    chosen: Sequence[Board] | None = None,
    *,
    name: str = "default",
    emulate: bool = False,
    options: BuildOptions | None = None,
    progress: Say = lambda _done, _total, _note: None,
) -> BudgetTable:
    """Return memory and time of a model on each board, with the first options of `mlfc compile` with which it fits.

    If flash is short, code is optimized for size. If RAM is short, inputs and outputs move into the workspace, then
    layers are tiled by rows, or the workspace is distributed over all RAM. A model is compiled once for each kind of
    code and options, not for each board.

    Parameters
    ----------
    module : IRModule
    params : mapping of str to ndarray
        Result of `import_model` for a microcontroller.
    chosen : sequence of Board, optional
        Default: all boards of mlfc that list their memories.
    name : str
        The module's name.
    emulate : bool
        Count the instructions of an inference under the emulator of a board with the same core.
    options : BuildOptions, optional
        Options that boards and settings do not determine.
    progress : callable
        Called with the steps done, the total, and a note, as that of `mlfc.support.progress.bar`.

    Returns
    -------
    BudgetTable

    Raises
    ------
    OptionError
        If two different boards have one name.
    """
    known = [board for board in map(boards().get, boards()) if board.memories] if chosen is None else list(chosen)
    named = {board.name: board for board in known}
    for board in known:
        if named[board.name] != board:
            raise OptionError(
                f"two boards have the name '{board.name}'", next_step="Rename one of them: the key name of its file"
            )
    builds = Builds(module, params, name, options=options or BuildOptions(), say=progress)
    kinds: defaultdict[CodeKind, list[Board]] = defaultdict(list)
    for board in named.values():
        kinds[code_kind(parse_target(board.target))].append(board)
    builds.want(len(kinds))
    found = _BoardSearch(name, builds).fitted(kinds)
    if emulate:
        found = _counted(found, builds)
    rows = sorted(found, key=lambda row: ((True, None, False).index(row.fits), row.fullness, row.board.name))
    return BudgetTable(tuple(rows), advice(rows, builds) if any(row.fits is False for row in rows) else ())


@dataclass(frozen=True)
class _BoardSearch:
    """Search for the first setting with which a model fits each board."""

    name: str
    builds: Builds

    def fitted(self, kinds: Mapping[CodeKind, list[Board]]) -> list[BoardBudget]:
        """Return the budgets of the boards of each kind of code, in any order."""
        self._try_all((board, _USUAL) for group in kinds.values() for board in group)
        found: list[BoardBudget] = []
        for group in kinds.values():
            best = {board.name: self._budget(board, _USUAL) for board in group}
            self._improve(best, "flash", partial(replace, optimize="size"))
            # if even small code exceeds flash, RAM does not matter
            rest = {name: row for name, row in best.items() if not row.short("flash")}
            self._tiled(rest)
            self._spread(rest)
            self._improve(rest, "flash", partial(replace, optimize="size"))
            found += {**best, **rest}.values()
        return found

    def _tiled(self, best: dict[str, BoardBudget]) -> None:
        """Use the workspace for inputs on boards whose RAM is short, then tile layers."""
        self._improve(best, "ram", lambda setting: replace(setting, workspace_io=True))
        short = [row for row in best.values() if row.short("ram")]
        # the limits of RAM to tile layers for, in descending order, capped in number, but always with the smallest
        limits = sorted({_limit(row.board) for row in short}, reverse=True)
        if len(limits) > _MOST_LIMITS:
            limits = [*limits[: _MOST_LIMITS - 1], limits[-1]]
        for limit in limits:
            change = partial(replace, workspace_io=True, ram=limit)
            least_bytes = None
            with suppress(MlfcError):
                least_bytes = self.builds.get(short[0].board, change(short[0].setting)).details.memory.workspace_bytes
            # the setting with the smallest limit, or with one that tiling cannot meet, serves all smaller boards
            is_last = limit == limits[-1] or least_bytes is None or least_bytes > limit
            self._improve(best, "ram", change, 0 if is_last else limit)
            if is_last:
                break

    def _spread(self, best: dict[str, BoardBudget]) -> None:
        """Distribute the workspace over the memories of boards with several, if one is too small."""
        tried: set[tuple[Pool, ...]] = set()
        for row in [row for row in best.values() if row.short("ram")]:
            pools = board_pools(row.board)
            free = sum(item.free for item in row.regions("ram"))  # tensors may move there from the default memory
            if len(pools) > 1 and len(tried | {pools}) <= _MOST_LIMITS and row.short("ram") <= free:
                tried.add(pools)
                one = {row.board.name: row}
                self._improve(one, "ram", partial(replace, workspace_io=True, ram=None, pools=pools))
                best |= one

    def _improve(
        self, best: dict[str, BoardBudget], kind: str, change: Callable[[Setting], Setting], least: int = 0
    ) -> None:
        """Change the setting of boards that are short of a kind of memory, if the model then uses less of it.

        `least`: minimum RAM besides the stack of the boards to change.
        """
        short = [row for row in best.values() if row.short(kind) and _limit(row.board) >= least]
        wanted = [(row.board, change(row.setting)) for row in short]
        self._try_all(wanted)
        for row, (board, setting) in zip(short, wanted, strict=True):
            found = self._budget(board, setting)
            if found.table is not None and found.short(kind) < row.short(kind):
                best[board.name] = found

    def _try_all(self, wanted: Iterable[tuple[Board, Setting]]) -> None:
        """Compile for the boards whose plan fits; the others are known to be too small without compiling."""
        todo = []
        for board, setting in wanted:
            with suppress(MlfcError):
                built = self.builds.get(board, setting)
                if not any(region.over for region in plan_table(built.details, board).regions):
                    todo.append((board, setting))
        self.builds.try_all(todo)

    def _budget(self, board: Board, setting: Setting) -> BoardBudget:
        try:
            built = self.builds.get(board, setting)
            table = plan_table(built.details, board)
            if not any(region.over for region in table.regions):
                code, trial = built.factory.code.built_files, self.builds.trial(board, setting)
                table = planned_table(self.name, code, built.details, board, trial=trial)
        except MlfcError as error:
            return BoardBudget(board, setting, None, Count(), str(error))
        problem = ", ".join(f"{item.name} exceeded by {item.over:,} bytes" for item in table.regions if item.over)
        stack_bytes = table.stack.nbytes if table.stack else 0
        if problem:
            return BoardBudget(board, setting, table, Count(), problem)
        if table.stack is not None and stack_bytes is None:
            return BoardBudget(board, setting, table, Count(), "; ".join(table.stack.untold))
        needed = stack_bytes or 0
        ram = next(item for item in table.regions if item.name == board.ram.name)
        if has_linker_script(board) and not needed <= board.stack_bytes <= ram.free + needed:
            enough = -(-needed // 8) * 8 + min(_OF_MAIN, ram.free // 8 * 8)
            problem = f"needs a different stack size: mlfc project build --option stack_bytes={enough}"
        return BoardBudget(board, setting, table, Count(), problem)


def _limit(board: Board) -> int:
    """Return the RAM of a board without its stack, as ``mlfc compile --board`` computes it."""
    return max(1, board.ram.nbytes - board.stack_bytes)


def _counted(rows: Sequence[BoardBudget], builds: Builds) -> list[BoardBudget]:
    """Return budgets with instruction counts, measured once for boards with the same machine code."""
    counts: dict[tuple[object, ...], Count] = {}
    kinds = {trial_kind(row.board, row.setting) for row in rows if row.fits}
    builds.want(len(kinds))
    found = []
    for row in rows:
        kind = trial_kind(row.board, row.setting)
        if row.fits and kind not in counts:
            built = builds.get(row.board, row.setting)
            counts[kind] = builds.step(f"an inference on {row.board.core}", partial(count, built, row.board))
        found.append(replace(row, count=counts.get(kind, Count()) if row.fits else Count()))
    return found


@dataclass(frozen=True)
class Advice(Record):
    """Recommended action, and the bytes that it saves, if computed."""

    text: str
    ram_bytes: int | None = None
    flash_bytes: int | None = None

    def __str__(self) -> str:
        saved = {"RAM": self.ram_bytes, "flash": self.flash_bytes}
        texts = [f"{nbytes:,} bytes of {kind}" for kind, nbytes in saved.items() if nbytes]
        return f"{self.text}: saves about {' and '.join(texts)}" if texts else self.text


def advice(rows: Sequence[BoardBudget], builds: Builds) -> tuple[Advice, ...]:
    """Return advice for boards that are too small, ordered by savings."""
    compiled: ModuleInfo | None = None
    for row in rows:
        with suppress(MlfcError):
            compiled = builds.get(row.board, Setting()).details
            break
    if compiled is None:
        return ()
    found = [*_quantizing(compiled), *_tiling(rows, builds, compiled)]
    if compiled.peak is not None and compiled.peak.tensors:
        found.append(Advice(f"Smaller inputs or layers for RAM: {peak_text(compiled.peak)}"))
    if compiled.constants:
        found.append(Advice(f"Smaller layers for flash: of the constants, {largest_text(compiled.constants)}"))
    return tuple(found)


def _quantizing(details: ModuleInfo) -> list[Advice]:
    """Advise to quantize a model whose weights are floats, as its intermediates then are too."""
    constants = details.constants or ()
    floats = sum(item.nbytes for item in constants if item.dtype == _FLOAT)
    if 2 * floats <= sum(item.nbytes for item in constants) or not floats:
        return []
    workspace = round(_PART * details.memory.workspace_bytes)
    text = "Quantize the model to int8 (mlfc quantize MODEL --calibrate DATA)"
    return [Advice(text, workspace, round(_PART * floats))]


def _tiling(rows: Sequence[BoardBudget], builds: Builds, details: ModuleInfo) -> list[Advice]:
    """Report the maximum saving by tiling, if boards were too small without it."""
    tried = [row for row in rows if row.setting.ram is not None]
    found = [(builds.get(row.board, row.setting).details, row.setting) for row in tried]
    if not found:
        return []
    tiled, setting = min(found, key=lambda item: item[0].memory.workspace_bytes)
    if tiled.tiling is None:
        return []
    saved = details.memory.workspace_bytes + details.memory.io_bytes - tiled.memory.workspace_bytes
    layers = f"{len(tiled.tiling.nodes)} layers tiled by rows" if len(tiled.tiling.nodes) > 1 else "a tiled layer"
    return [Advice(f"With {setting.options} ({layers}, inputs in the workspace), as was tried", saved)]


def counting_board(board: Board) -> Board | None:
    """Return the emulated board with the most RAM that runs the code of a board's core, configured for that core."""
    found = [other for other in map(boards().get, boards()) if other.emulator and _runs(other, board)]
    if not found:
        return None
    best = max(found, key=lambda other: (other.ram.nbytes, other.core == board.core))
    return replace(best, target=board.target, core=board.core, toolchain=board.toolchain)


def count(built: Built, board: Board) -> Count:
    """Count the cost of an inference of a compiled model on random inputs on a board's core.

    Inputs have the maximum size within the bounds of their dynamic dimensions.
    """
    emulated = counting_board(board)
    if emulated is None:
        return Count(unknown=f"no emulator of mlfc runs the instructions of {board.core}")
    try:
        # identity of the firmware's toolchain and of the emulator
        code, tools = built.factory.code.built_files, emulated.toolchain
        emulator = emulator_identity(need(run_command(emulated)[0], tools.packages))
        said = (*tools.link_flags, optimization_level(built.details), *run_command(emulated), *emulator)
        core = core_flags(emulated, code)
        key = trial_key(need(f"{tools.prefix}gcc", tools.packages), core, said, code)
        kept = find_trial(Count, key)
        if kept is not None:
            return kept
        firmware = emulated_factory(built.factory, emulated, timeout=_SECONDS)
        largest = {name: high for name, (_, high) in firmware.extents.items()}
        inputs = [info.at(largest) for info in firmware.inputs]
        if not all(info.is_static for info in inputs):
            return Count(unknown="dimension sizes of the inputs depend on one another")
        run = firmware.measure(fill(inputs))
    except MlfcError as error:
        return Count(unknown=str(error).partition("\n")[0])
    found = Count(run.instructions, run.cycles)
    keep_trial(key, found)
    return found


def _runs(emulated: Board, board: Board) -> bool:
    """Return whether a core runs another's code; both have a floating-point unit if the code uses one."""
    if emulated.core == board.core:
        return True
    own, other = CPUS.get(emulated.core), CPUS.get(board.core)
    if emulated.arch != board.arch or not other.architecture:
        return False
    runs = other.architecture == own.architecture or other.architecture in own.runs
    return runs and set(board.features) <= set(emulated.features)
