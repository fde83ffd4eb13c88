"""``mlfc budget``, and the limits of ``mlfc diff``."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.cli.artifacts import archive_of, inputs_of
from mlfc.cli.memory import planned_memory
from mlfc.cli.options import BoardOptions, Inputs, size_option, target_option
from mlfc.cli.tables import Styled, print_json, print_table
from mlfc.errors import OptionError, ToolchainError
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.text import byte_count, printable
from mlfc.target.target import PORTABLE

if TYPE_CHECKING:
    from mlfc.micro.board.board import Board

EXAMPLES = (
    "mlfc budget kws.tflite --ram 64k --flash 256k",
    "mlfc budget *.tflite --target cortex-m4 --ram 64k",
    "mlfc budget kws.tflite --board nrf52840dk",
    "mlfc budget kws.tflite --max-growth ram=2% flash=5% --base origin/main",
    "mlfc budget kws.tar --flash 256k --json",
)
_LAST = "HEAD"
_GROWTH = re.compile(r"(ram|flash)=(?:([0-9]{1,4}(?:\.[0-9]{1,4})?)%|([0-9]{1,15}[kmg]?(?:i?b)?))", re.ASCII | re.I)


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that an artifact uses of a memory: of a region of a board, or RAM or constants in general."""

    key: str
    title: str
    kind: str
    nbytes: int | None
    limit: int | None = None  # the size of the region


@dataclass(frozen=True)
class Excess:
    """A memory of an artifact with a limit."""

    use: MemoryUse
    before: int | None
    limit: int

    @property
    def over(self) -> int:
        """Bytes beyond the limit."""
        return max(0, (self.use.nbytes or 0) - self.limit)


@dataclass(frozen=True)
class Budget:
    """Limits of RAM and flash."""

    ram: Annotated[
        int | None,
        size_option("Limit for workspace, inputs, outputs and state; with --board also for the stack of an inference."),
    ] = None
    flash: Annotated[int | None, size_option("Limit for constants; with --board also for code.")] = None
    max_growth: Annotated[
        list[str] | None,
        typer.Option(metavar="ram=2%", help="Limit for growth, in percent or bytes: ram=2% flash=4k; repeatable."),
    ] = None

    def limited(self, uses: Sequence[MemoryUse], before: Sequence[MemoryUse], place: Path) -> list[Excess]:
        """Return the memories that have a limit; raise OptionError for one whose use is unknown."""
        growth = dict(map(_parsed, self.max_growth or ()))
        known = {use.key: use.nbytes or 0 for use in before}
        found = []
        for use in uses:
            largest = [{"ram": self.ram, "flash": self.flash}[use.kind], use.limit]
            if before and use.kind in growth:
                largest.append(growth[use.kind](known.get(use.key, 0)))
            limits = [limit for limit in largest if limit is not None]
            if limits and use.nbytes is None:
                cause = f"the archive does not record its {use.key.removesuffix('_bytes')}"
                raise OptionError(cause, place=str(place), next_step="Compile the model again")
            if limits:
                found.append(Excess(use, known.get(use.key), min(limits)))
        return found


def _parsed(text: str) -> tuple[str, Any]:
    match = _GROWTH.fullmatch(text)
    if match is None:
        raise OptionError(f"expected ram=2%, flash=4k or the like, got '{text}'", place="--max-growth")
    if match[2] is None:
        nbytes = byte_count(match[3])
        return match[1], lambda before: before + nbytes
    return match[1], lambda before: before + int(before * float(match[2]) / 100)


def memory_use(archive: Path, board: Board | None) -> list[MemoryUse]:
    """Return the memory of an archive: with a board by region, with code and stack as its compiler makes them."""
    from mlfc.archive.compare.diff import memory_totals

    if board is None:
        totals = memory_totals(archive)
        kinds = (("ram_bytes", "RAM", "ram"), ("constants_bytes", "constants", "flash"))
        return [MemoryUse(*kind, totals[kind[0]]) for kind in kinds]
    table, _ = planned_memory(archive, board, None, Inputs())
    for reason in table.stack.untold if table.stack else ():
        typer.echo(printable(f"warning: code or stack are not counted: {reason}"), err=True)
    return [MemoryUse(item.name, item.name, item.kind, item.used, item.nbytes) for item in table.regions if item.used]


def print_budget(found: Mapping[str, Sequence[Excess]], board: Board | None) -> None:
    """Print a table of the limited memories of each artifact."""
    has_before = any(item.before is not None for items in found.values() for item in items)
    rows = []
    for name, items in found.items():
        for item in items:
            colour = "red" if item.over else "green"
            before = (item.before,) if has_before else ()
            size = Styled(f"{item.use.nbytes:,}", colour)
            rows.append((name, item.use.title, *before, size, item.limit, item.over or None))
    title = f"bytes on {board.name}, with code and stack" if board else "bytes"
    columns = ("", "memory", *(("before",) if has_before else ()), "bytes", "limit", "over")
    print_table(title, columns, rows, names=True, optional=("over",))


def budget_json(items: Sequence[Excess]) -> dict[str, list[int | None]]:
    """Return used and allowed bytes by memory."""
    return {item.use.key: [item.use.nbytes, item.limit] for item in items}


def budget(
    artifacts: Annotated[list[Path], typer.Argument(metavar="ARTIFACT...", help="Models, or archives.")],
    *,
    target: Annotated[str | None, target_option("Target of models. Default: c.")] = None,
    board: BoardOptions,
    inputs: Inputs,
    limits: Budget,
    base: Annotated[
        str, typer.Option(metavar="COMMIT", help="For --max-growth: the git commit with the files before.")
    ] = _LAST,
    as_json: bool = False,
) -> None:
    """Check that models stay within a budget.

    With --board, the limits are those of its memories, and code and stack count. Exit status 1: a model exceeds a
    limit. Unlike mlfc compile --ram, this does not change a model to meet the budget. The pre-commit hook mlfc-budget
    runs this command.
    """
    on_board = board.chosen(target)
    if (limits.ram, limits.flash, limits.max_growth, on_board) == (None,) * 4:
        raise OptionError(
            "expected a budget, got none", next_step="Add --ram BYTES, --flash BYTES, --max-growth or --board"
        )
    chosen = on_board.target if on_board else target or PORTABLE
    found: dict[str, list[Excess]] = {}
    for path in artifacts:

        def use(item: Path) -> list[MemoryUse]:
            with archive_of(item, inputs_of(item, inputs), chosen) as made:
                return memory_use(made, on_board)

        with at_commit(path, base) if limits.max_growth else nullcontext() as old:
            found[str(path)] = limits.limited(use(path), use(old) if old else (), path)
    exceeds = {name: any(item.over for item in items) for name, items in found.items()}
    if as_json:
        print_json({name: {**budget_json(items), "exceeds": exceeds[name]} for name, items in found.items()})
    else:
        print_budget(found, on_board)
    if any(exceeds.values()):
        raise typer.Exit(1)


@contextmanager
def at_commit(path: Path, commit: str) -> Iterator[Path | None]:
    """Yield a file as it was in a git commit, beside files whose names continue its name; None if it did not exist.

    Raises OptionError for a commit that does not exist.
    """
    program = shutil.which("git")
    if program is None:
        raise ToolchainError("git is not on the PATH", next_step="Install git, or use mlfc diff --max-growth")

    def git(*arguments: str) -> bytes | None:
        done = subprocess.run([str(program), *arguments], cwd=path.absolute().parent, capture_output=True, check=False)
        return done.stdout if done.returncode == 0 else None

    found = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if found is None and commit == _LAST and git("rev-parse", "--git-dir"):  # before the first commit
        yield None
        return
    if found is None:
        raise OptionError(f"unknown commit '{commit}' of the repository of {path}", place="--base")
    sha = found.decode().strip()
    listed = (git("ls-tree", "-z", "--name-only", sha, "./") or b"").decode().split("\0")
    # weights may be in files such as net.onnx.data
    names = [name for name in listed if name.startswith(path.name)]
    if path.name not in names:
        yield None
        return
    with TemporaryFolder() as folder:
        for name in names:
            Path(folder, name).write_bytes(git("show", f"{sha}:./{name}") or b"")
        yield Path(folder, path.name)
