"""When each operator of each run ran, and on which thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlfc.support.arrays import Array

MOST_EVENTS = 1_000_000
"""Of one profile; later ones are only counted."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """Calls of operators by columns, those of each thread in the order of their ends.

    Times are in nanoseconds from the first start.

    Attributes
    ----------
    run, operator, thread : array of int32
        Numbers from 0; thread 0 is the caller's.
    start, duration : array of int64
    left_out : int
        Calls beyond `MOST_EVENTS`.
    """

    run: Array
    operator: Array
    thread: Array
    start: Array
    duration: Array
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.run)

    @classmethod
    def of_rows(cls, starts: Any, durations: Any) -> Timeline:
        """Return the timeline of operators that run once each; a row for each run, a column for each operator."""
        begun, passed = (np.asarray(rows).astype(np.int64) for rows in (starts, durations))
        runs, operators = begun.shape
        run, operator = (places.ravel() for places in np.mgrid[:runs, :operators])
        kept = slice(0, MOST_EVENTS)
        return cls._placed(
            run[kept], operator[kept], np.zeros(run.size)[kept], begun.ravel()[kept], passed.ravel()[kept], run.size
        )

    def with_threads(self, worked: Sequence[Sequence[float]]) -> Timeline:
        """Add calls of the threads beside the caller's.

        `worked` has the nanoseconds of each thread for each operator, none for those of one thread. How long threads
        work is known, not when: they begin with their operator, and take no longer than it.
        """
        added = [self]
        for thread in range(1, max(map(len, worked), default=0)):
            spent = np.array([times[thread] if len(times) > thread else 0.0 for times in worked])
            shared = spent[self.operator] > 0
            durations = np.minimum(spent[self.operator], self.duration)[shared].astype(np.int64)
            others = np.full(durations.shape, thread, np.int32)
            added.append(Timeline(self.run[shared], self.operator[shared], others, self.start[shared], durations))
        columns = (
            [getattr(item, name) for item in added] for name in ("run", "operator", "thread", "start", "duration")
        )
        run, operator, thread_column, start, duration = map(np.concatenate, columns)
        return Timeline(run, operator, thread_column, start, duration, self.left_out)

    @classmethod
    def _placed(cls, run: Any, operator: Any, thread: Any, start: Any, duration: Any, total: int) -> Timeline:
        begin = np.asarray(start, np.int64)
        begin = begin - (begin.min() if begin.size else 0)
        runs, operators, threads = (np.asarray(column, np.int32) for column in (run, operator, thread))
        return cls(runs, operators, threads, begin, np.asarray(duration, np.int64), total - begin.size)


@dataclass
class Recorder:
    """Takes calls one by one."""

    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    total: int = 0

    def add(self, run: int, operator: int, thread: int, start: int, duration: int) -> None:
        """Take a call."""
        self.total += 1
        if len(self.rows) < MOST_EVENTS:
            self.rows.append((run, operator, thread, start, duration))

    def timeline(self) -> Timeline:
        """Return all that was taken."""
        run, operator, thread, start, duration = np.asarray(self.rows, np.int64).reshape(-1, 5).T
        return Timeline._placed(run, operator, thread, start, duration, self.total)
