"""The memory that a model takes on a board, as one table by region of the board.

`planned_memory` fills it before a build, `linked_memory` after it; `differences` compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlfc.micro.board.board import Board, MemoryRegion
from mlfc.micro.memory.stack_bound import StackBound
from mlfc.support.text import Displayed, html_table

MODEL, LIBRARIES, FIRMWARE = "model", "libraries", "start-up and main"
"""Whose a part of a program is."""

WORKSPACE, IO, CONSTANTS = "workspace", "inputs and outputs", "constants"
PROMISED = (WORKSPACE, IO, CONSTANTS)
"""What a build must have to the byte."""

STATE, STACK, INTERRUPT = "state", "stack of an inference", "frame of an interrupt"
INITIAL, RESERVE, PADDING = "initial data", "stack reserve", "padding"
CODE = {MODEL: "code of the model", LIBRARIES: "code of libraries"}
REST = "start-up and main"


@dataclass(frozen=True)
class MemoryRow:
    """A line of the table."""

    what: str
    region: str | None  # the board's memory; None on a board whose memories are not listed
    nbytes: int | None  # None where it is not known
    note: str = ""  # how it is known, or why it is not


@dataclass(frozen=True)
class RegionUse:
    """A memory of the board: its name, kind and size, what the known rows take of it, and what is left."""

    name: str
    kind: str
    nbytes: int
    used: int

    @property
    def free(self) -> int:
        """Bytes that are left."""
        return max(0, self.nbytes - self.used)

    @property
    def percent(self) -> float:
        """How much of it is used, 100 for all."""
        return 100 * self.used / self.nbytes

    @property
    def over(self) -> int:
        """Bytes that do not fit."""
        return max(0, self.used - self.nbytes)


@dataclass(frozen=True, repr=False)
class MemoryTable(Displayed):
    """What a model takes of a board's memory."""

    board: str
    is_built: bool  # whether the numbers come from the linker, not the plan
    rows: tuple[MemoryRow, ...]
    memories: tuple[MemoryRegion, ...]  # the board's
    stack: StackBound | None = None  # of an inference; None where nobody asked
    folded: tuple[tuple[str, int], ...] = ()  # constants, with their bytes, that the compiler has made part of the code
    reserve: int | None = None  # bytes that firmware sets aside for its stack; None where that is what is left

    def _facts(self) -> Mapping[str, object]:
        used = [f"{item.name} {item.used:,} of {item.nbytes:,}" for item in self.regions if item.used]
        return {"board": self.board, "is_built": self.is_built, "used": used}

    def _repr_html_(self) -> str:
        rows = [(row.region or "", row.what, "?" if row.nbytes is None else f"{row.nbytes:,}", row.note)
                for row in self.rows if row.nbytes != 0 or row.note]  # fmt: skip
        left = [(item.name, "over" if item.over else "free", f"{item.over or item.free:,}", f"of {item.nbytes:,}")
                for item in self.regions if item.used]  # fmt: skip
        return html_table(f"Memory of {self.board}", ("region", "what", "bytes", "note"), [*rows, *left])

    def total(self, what: str, region: str | None = None) -> int:
        """Return the known bytes of the rows of a name, in all regions or in one."""
        return sum(row.nbytes or 0 for row in self.rows if row.what == what and region in (None, row.region))

    @property
    def regions(self) -> tuple[RegionUse, ...]:
        """Every region of the board with what is used of it."""
        return tuple(
            RegionUse(item.name, item.kind, item.nbytes, sum(row.nbytes or 0 for row in self.rows_of(item.name)))
            for item in self.memories
        )

    def rows_of(self, region: str | None) -> Iterator[MemoryRow]:
        """Yield the rows of a region."""
        return (row for row in self.rows if row.region == region)

    def as_json(self) -> dict[str, Any]:
        """Return it as an object of JSON."""
        stack = self.stack and {
            "bytes": self.stack.nbytes,
            "path": [{"function": item.function, "bytes": item.nbytes} for item in self.stack.path],
            "untold": list(self.stack.untold),
        }
        return {
            "board": self.board,
            "built": self.is_built,
            "rows": [
                {"region": row.region, "what": row.what, "bytes": row.nbytes, "note": row.note} for row in self.rows
            ],
            "regions": [
                {
                    "name": item.name,
                    "kind": item.kind,
                    "bytes": item.nbytes,
                    "used": item.used,
                    "percent": round(item.percent, 2),
                    "free": item.free,
                    "over": item.over,
                }
                for item in self.regions
            ],
            "stack": stack,
            "folded": [{"name": name, "bytes": nbytes} for name, nbytes in self.folded],
        }


@dataclass(frozen=True)
class MemoryDifference:
    """A promise that a build does not keep."""

    what: str
    region: str | None
    promised: int
    found: int

    def __str__(self) -> str:
        where = f" in {self.region}" if self.region else ""
        return f"{self.what}{where}: {self.promised:,} bytes were promised, {self.found:,} are linked"


def differences(before: MemoryTable, after: MemoryTable) -> tuple[MemoryDifference, ...]:
    """Return what a build has otherwise than promised: workspace, inputs and outputs in every region, and constants.

    Constants that the compiler has made part of the code are no difference.
    """
    places = {(row.what, row.region): None for row in (*before.rows, *after.rows) if row.what in (WORKSPACE, IO)}
    found = [MemoryDifference(*place, before.total(*place), after.total(*place)) for place in places]
    linked = after.total(CONSTANTS) + sum(nbytes for _, nbytes in after.folded)
    found.append(MemoryDifference(CONSTANTS, None, before.total(CONSTANTS), linked))
    return tuple(item for item in found if item.promised != item.found)


def region_name(board: Board, kind: str, name: str | None = None) -> str | None:
    """Return the board's region of a name, else its default one of a kind; None where it lists none."""
    for item in board.memories:
        if item.name == name:
            return item.name
    if not board.memories:
        return None
    return (board.flash if kind == "flash" else board.ram).name


def by_region(rows: Sequence[MemoryRow], board: Board) -> tuple[MemoryRow, ...]:
    """Return rows in the order of the board's regions."""
    order = {item.name: place for place, item in enumerate(board.memories)}
    return tuple(sorted(rows, key=lambda row: order.get(row.region or "", len(order))))
