"""What a model takes of each board, with the options that make it fit: `board_budgets`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mlfc.errors import MlfcError, OptionError
from mlfc.memory import Pool
from mlfc.micro.board.board import Board, board_pools, boards
from mlfc.micro.firmware.linker_script import has_linker_script
from mlfc.micro.firmware.planned_memory import plan_table, planned_table
from mlfc.micro.fit.advice import Advice, advice
from mlfc.micro.fit.builds import Builds, Built, CodeKind, Say, code_kind, trial_kind
from mlfc.micro.fit.count import count
from mlfc.micro.fit.setting import Setting
from mlfc.micro.memory.memory_table import CODE, MemoryTable, RegionUse
from mlfc.micro.run.count import Count
from mlfc.options import BuildOptions
from mlfc.relay.ir import IRModule
from mlfc.support.arrays import Array
from mlfc.target.target import parse_target

_USUAL = Setting()
_OF_MAIN = 256  # bytes of stack for what calls the model
_MOST_LIMITS = 4  # of RAM that layers are tiled for, and sets of memories, for each kind of code


@dataclass(frozen=True)
class BoardBudget:
    """What a model takes of a board."""

    board: Board
    setting: Setting
    table: MemoryTable | None  # None where the model does not compile for the board
    count: Count
    problem: str = ""  # why the model does not fit, or that is not known

    @property
    def fits(self) -> bool | None:
        """Whether the board has what the model takes; None where only a part of that is known."""
        if self.table is None or any(region.over for region in self.table.regions):
            return False
        return True if self.has_code else None

    @property
    def has_code(self) -> bool:
        """Whether the code's size is known."""
        rows = self.table.rows if self.table else ()
        return bool(rows) and all(row.nbytes is not None for row in rows if row.what in CODE.values())

    def used(self, kind: str) -> int | None:
        """Return the bytes that are taken of a kind of memory, ``ram`` or ``flash``."""
        return sum(item.used for item in self._regions(kind)) if self.table else None

    def percent(self, kind: str) -> float | None:
        """Return how much is taken of the fullest memory of a kind, 100 for all of it."""
        return max((item.percent for item in self._regions(kind)), default=None)

    @property
    def stack_bytes(self) -> int | None:
        """What the stack of an inference takes at most; None where it is not known."""
        return self.table.stack.nbytes if self.table and self.table.stack else None

    @property
    def milliseconds(self) -> float | None:
        """The time of an inference at the highest clock; see `Count.milliseconds`."""
        return self.count.milliseconds(self.board.fastest_clock_hz)

    def short(self, kind: str) -> int:
        """Return how many bytes of a kind of memory are missing, of RAM also for the stack that projects reserve."""
        if self.table is None:
            return 0
        over = sum(item.over for item in self._regions(kind))
        if kind != "ram" or not has_linker_script(self.board):
            return over
        ram = next(item for item in self._regions(kind) if item.name == self.board.ram.name)
        return max(over, ram.used - (self.stack_bytes or 0) + self.board.stack_bytes - ram.nbytes)

    @property
    def fullness(self) -> float:
        """The larger part of a memory that is taken, 1 for all of it."""
        return max((item.percent / 100 for item in self.table.regions), default=0.0) if self.table else float("inf")

    def as_json(self) -> dict[str, Any]:
        """Return it as an object of JSON."""
        return {
            "board": self.board.name,
            "chip": self.board.chip,
            "core": self.board.core,
            "fits": self.fits,
            "problem": self.problem or None,
            "options": self.setting.options,
            **{f"{kind}_{name}": of(kind) for kind in ("ram", "flash") for name, of in self._sums().items()},
            "regions": [_region_json(item) for item in self.table.regions] if self.table else [],
            "stack_bytes": self.stack_bytes,
            "instructions": self.count.instructions,
            "cycles": self.count.cycles,
            "clock_hz": self.board.fastest_clock_hz,
            "milliseconds": self.milliseconds,
            "not_counted": self.count.unknown or None,
        }

    def _sums(self) -> dict[str, Callable[[str], float | None]]:
        return {"bytes": self.used, "percent": lambda kind: _rounded(self.percent(kind))}

    def _regions(self, kind: str) -> list[RegionUse]:
        return [item for item in self.table.regions if item.kind == kind] if self.table else []


@dataclass(frozen=True)
class BudgetTable:
    """What a model takes of boards, those that it fits first and of these the emptiest, and what would help others."""

    rows: tuple[BoardBudget, ...]
    advice: tuple[Advice, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as an object of JSON."""
        return {
            "boards": [row.as_json() for row in self.rows],
            "advice": [item.as_json() for item in self.advice],
        }


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
    """Return what a model takes of each board, with the first options of `mlfc compile` with which it fits.

    Code is made smaller where flash is short; where RAM is, inputs and outputs move into the workspace, then layers
    are tiled by rows, or the workspace is spread over all RAM. A model is compiled once for each kind of code and
    options, not for each board.

    Parameters
    ----------
    module : IRModule
    params : mapping of str to ndarray
        What `import_model` returned, for a microcontroller.
    chosen : sequence of Board, optional
        Default: all that come with mlfc and list their memories.
    name : str
        The module's name.
    emulate : bool
        Count the instructions of an inference under the emulator of a board with the same core.
    options : BuildOptions, optional
        Those that boards and settings do not determine.
    progress : callable
        Is called with what is done, the whole, and a note, as that of `mlfc.support.progress.bar`.

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
    """Looks for the first setting with which a model fits each board."""

    name: str
    builds: Builds

    def fitted(self, kinds: Mapping[CodeKind, list[Board]]) -> list[BoardBudget]:
        """Return the budgets of the boards of each kind of code, in no order."""
        self._try_all((board, _USUAL) for group in kinds.values() for board in group)
        found: list[BoardBudget] = []
        for group in kinds.values():
            best = {board.name: self._budget(board, _USUAL) for board in group}
            self._improve(best, "flash", _smaller)
            # where not even small code fits flash, RAM does not matter
            rest = {name: row for name, row in best.items() if not row.short("flash")}
            self._tiled(rest)
            self._spread(rest)
            self._improve(rest, "flash", _smaller)
            found += {**best, **rest}.values()
        return found

    def _tiled(self, best: dict[str, BoardBudget]) -> None:
        """Give boards whose RAM is short inputs in the workspace, then tiled layers."""
        self._improve(best, "ram", lambda setting: replace(setting, workspace_io=True))
        short = [row for row in best.values() if row.short("ram")]
        limits = _limits([row.board for row in short])
        for limit in limits:
            change = partial(replace, workspace_io=True, ram=limit)
            least_bytes = self._workspace(short[0].board, change(short[0].setting))
            # what has the smallest limit, or what tiling cannot bring below it, is for all that are smaller
            is_last = limit == limits[-1] or least_bytes is None or least_bytes > limit
            self._improve(best, "ram", change, 0 if is_last else limit)
            if is_last:
                break

    def _spread(self, best: dict[str, BoardBudget]) -> None:
        """Spread the workspace over the memories of boards that have several, where one is too small."""
        tried: set[tuple[Pool, ...]] = set()
        for row in [row for row in best.values() if row.short("ram")]:
            pools = board_pools(row.board)
            if len(pools) > 1 and len(tried | {pools}) <= _MOST_LIMITS and row.short("ram") <= _elsewhere(row):
                tried.add(pools)
                one = {row.board.name: row}
                self._improve(one, "ram", partial(replace, workspace_io=True, ram=None, pools=pools))
                best |= one

    def _improve(
        self, best: dict[str, BoardBudget], kind: str, change: Callable[[Setting], Setting], least: int = 0
    ) -> None:
        """Change the setting of boards that are short of a kind of memory, where the model takes less of it then.

        `least`: the RAM beside the stack that a board has to have for that.
        """
        short = [row for row in best.values() if row.short(kind) and _limit(row.board) >= least]
        wanted = [(row.board, change(row.setting)) for row in short]
        self._try_all(wanted)
        for row, (board, setting) in zip(short, wanted, strict=True):
            found = self._budget(board, setting)
            if found.table is not None and found.short(kind) < row.short(kind):
                best[board.name] = found

    def _workspace(self, board: Board, setting: Setting) -> int | None:
        try:
            return self.builds.get(board, setting).details.memory.workspace_bytes
        except MlfcError:
            return None

    def _try_all(self, wanted: Iterable[tuple[Board, Setting]]) -> None:
        """Compile for the boards whose plan fits; the others need no compiler to tell that they are too small."""
        todo = []
        for board, setting in wanted:
            try:
                built = self.builds.get(board, setting)
                if not any(region.over for region in plan_table(built.details, board).regions):
                    todo.append((board, setting))
            except MlfcError:
                continue
        self.builds.try_all(todo)

    def _budget(self, board: Board, setting: Setting) -> BoardBudget:
        try:
            built = self.builds.get(board, setting)
            table = self._table(built, board, setting)
        except MlfcError as error:
            return BoardBudget(board, setting, None, Count(), str(error))
        return BoardBudget(board, setting, table, Count(), _problem(table, board))

    def _table(self, built: Built, board: Board, setting: Setting) -> MemoryTable:
        plan = plan_table(built.details, board)
        if any(region.over for region in plan.regions):
            return plan
        trial = self.builds.trial(board, setting)
        return planned_table(self.name, built.factory.code.built_files, built.details, board, trial=trial)


def _elsewhere(row: BoardBudget) -> int:
    """Return the free bytes of all RAM, to which tensors may move from the default one."""
    return sum(item.free for item in row.table.regions if item.kind == "ram") if row.table else 0


def _smaller(setting: Setting) -> Setting:
    return replace(setting, optimize="size")


def _limit(board: Board) -> int:
    """Return the RAM that a board has beside its stack, as ``mlfc compile --board`` does."""
    return max(1, board.ram.nbytes - board.stack_bytes)


def _limits(short: Sequence[Board]) -> list[int]:
    """Return the limits of RAM to tile layers for, the largest first and not too many; the smallest is among them."""
    every = sorted({_limit(board) for board in short}, reverse=True)
    return every if len(every) <= _MOST_LIMITS else [*every[: _MOST_LIMITS - 1], every[-1]]


def _problem(table: MemoryTable, board: Board) -> str:
    """Return why a model does not fit, or what to set up for it to fit."""
    over = [f"{item.name} exceeded by {item.over:,} bytes" for item in table.regions if item.over]
    if over:
        return ", ".join(over)
    if table.stack is not None and table.stack.nbytes is None:
        return "; ".join(table.stack.untold)
    needed = table.stack.nbytes or 0 if table.stack else 0
    ram = next(item for item in table.regions if item.name == board.ram.name)
    if has_linker_script(board) and not needed <= board.stack_bytes <= ram.free + needed:
        enough = -(-needed // 8) * 8 + min(_OF_MAIN, ram.free // 8 * 8)
        return f"needs another stack than usual: mlfc project build --option stack_bytes={enough}"
    return ""


def _rounded(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 2)


def _region_json(region: RegionUse) -> dict[str, Any]:
    used = {"used": region.used, "bytes": region.nbytes, "percent": _rounded(region.percent)}
    return {"name": region.name, "kind": region.kind, **used, "over": region.over}


def _counted(rows: Sequence[BoardBudget], builds: Builds) -> list[BoardBudget]:
    """Return budgets with instructions, counted once for boards with the same machine code."""
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
