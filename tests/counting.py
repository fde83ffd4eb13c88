"""Counts what a piece of work costs, instead of timing it: a count is the same on a busy machine."""

from __future__ import annotations

import cProfile
from collections.abc import Iterator
from contextlib import contextmanager


class Calls:
    """How many functions were called, those of C included.

    Attributes
    ----------
    number : int
        Set when the work has ended.
    """

    number = 0


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Count the calls that this thread makes within a `with` block.

    Work without calls (one long regular expression, one large copy) does not show: limits of memory and the time at
    which a test is killed are for that.
    """
    calls, profiler = Calls(), cProfile.Profile()
    profiler.enable()
    try:
        yield calls
    finally:
        profiler.disable()
        calls.number = sum(entry.callcount for entry in profiler.getstats())
