"""What a function's own integers may become: the intervals of its local and scratch buffers.

An accumulator starts with a value and grows by at most so much in each iteration of the loops around its store. Where
start and growth together fit into the dtype, sums cannot overflow, whatever the data; else the buffer is left out, and
printers take its elements to be anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.bounds import Interval, Ranges
from mlfc.tir.ir import Buffer, Stmt
from mlfc.tir.visitor import below, walk

_ROUNDS = 3
"""How far what is known of one buffer is followed into others."""


def held_intervals(body: Stmt) -> dict[int, Interval]:
    """Return what elements of buffers of wide integers may be, by the buffers' ids."""
    own = [stmt for stmt in walk(body) if isinstance(stmt, ir.Store) and _is_accumulator(stmt.buffer)]
    known: dict[int, Interval] = {}
    for _ in range(_ROUNDS if own else 0):
        survey = _Survey(known)
        survey.stmt(body)
        found = survey.intervals()
        if found == known:
            break
        known = found
    return known


def _is_accumulator(buffer: Buffer) -> bool:
    return buffer.scope != "param" and buffer.dtype in ("int32", "int64")


@dataclass(eq=False)
class _BufferContent:
    """What is stored in a buffer: values that do not depend on its own, and what is added to them in all."""

    dtype: str
    start: Interval | None = None
    low: int = 0
    high: int = 0

    def interval(self) -> Interval | None:
        """Return the interval of an element; None if it does not fit."""
        start = self.start or Interval(0, 0)
        found = Interval(start.low + self.low, start.high + self.high)
        return found if found.within(*dtypes.limits(self.dtype)) else None


@dataclass(eq=False)
class _Survey:
    """One walk over a function, with what the one before found."""

    known: dict[int, Interval]
    contents: dict[int, _BufferContent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ranges = Ranges(self.known)
        self._loops: list[tuple[ir.Var, int]] = []
        self._outside: dict[int, int] = {}

    def intervals(self) -> dict[int, Interval]:
        """Return the intervals of the buffers that have one narrower than their dtype."""
        found = {key: content.interval() for key, content in self.contents.items()}
        return {key: interval for key, interval in found.items() if interval is not None}

    def stmt(self, stmt: Stmt) -> None:
        """Walk over a statement."""
        if isinstance(stmt, ir.For):
            self._loop(stmt)
        elif isinstance(stmt, ir.If):
            self._branch(stmt)
        elif isinstance(stmt, ir.Store) and _is_accumulator(stmt.buffer):
            self._store(stmt)
        else:
            if isinstance(stmt, ir.Let):
                self._ranges.enter_let(stmt)
            elif isinstance(stmt, ir.Allocate):
                self._outside[id(stmt.buffer)] = len(self._loops)
            elif isinstance(stmt, ir.Launch):
                self._ranges.enter_launch(stmt)
            for item in below(stmt):
                self.stmt(item)

    def _loop(self, loop: ir.For) -> None:
        with self._ranges.scope():
            trips = -(-max(self._ranges.interval(loop.extent).high, 0) // loop.step)
            self._ranges.enter_loop(loop)
            self._loops.append((loop.var, trips))
            self.stmt(loop.body)
            self._loops.pop()

    def _branch(self, stmt: ir.If) -> None:
        for body, holds in ((stmt.then, True), (stmt.otherwise, False)):
            if body is not None:
                with self._ranges.scope():
                    self._ranges.assume(stmt.condition, holds)
                    self.stmt(body)

    def _store(self, stmt: ir.Store) -> None:
        content = self.contents.setdefault(id(stmt.buffer), _BufferContent(dtypes.element(stmt.buffer.dtype)))
        added = self._ranges.added(stmt)
        if added is None:
            value = self._ranges.interval(stmt.value)
            content.start = value if content.start is None else content.start.hull(value)
            return
        times = self._times(stmt)
        content.low += min(0, added.low) * times
        content.high += max(0, added.high) * times

    def _times(self, stmt: ir.Store) -> int:
        """Return how often at most a store adds to the same element while the buffer lives."""
        times = 1
        for var, trips in self._loops[self._outside.get(id(stmt.buffer), 0) :]:
            if not any(index is var for index in stmt.indices):  # else each iteration has its own element
                times *= trips
        return times
