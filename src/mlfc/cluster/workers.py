"""Jobs and who runs them. A job is a function of a module with plain data as arguments and result.

What takes long in a job is the work of other processes (compilers, emulators, `mlfc`), so local jobs are threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

from mlfc.errors import MlfcError

BUILD, MEASURE = "BUILD", "MEASURE"
"""Tags of workers: dask's abstract resources of these names. A measuring worker does one thing at a time."""


@dataclass(frozen=True)
class JobOutcome:
    """The end of a job: what its function returned, or the error that it raised."""

    index: int  # the job's place among the arguments
    value: Any = None
    error: MlfcError | None = None


class Workers(Protocol):
    """Who runs jobs."""

    def count(self, tag: str) -> int:
        """Return how many jobs of a tag run at once."""

    def run(self, tag: str, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[JobOutcome]:
        """Run a function for each tuple of arguments; yield how the jobs end, each once, as they end.

        Errors of mlfc are outcomes; whatever else a job raises is raised here.
        """


class LocalWorkers:
    """Runs jobs on this machine: some builds at once, one measurement."""

    def __init__(self, builders: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._builders = builders or cores or 2

    def count(self, tag: str) -> int:
        """Return how many jobs of a tag run at once."""
        return self._builders if tag == BUILD else 1

    def run(self, tag: str, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[JobOutcome]:
        """Run a function for each tuple of arguments; yield how the jobs end."""
        with ThreadPoolExecutor(self.count(tag)) as pool:
            waiting: dict[Future[Any], int] = {pool.submit(function, *job): index for index, job in enumerate(jobs)}
            try:
                while waiting:
                    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in sorted(done, key=waiting.__getitem__):
                        yield outcome_of(waiting.pop(future), future)
            finally:
                for future in waiting:
                    future.cancel()


def outcome_of(index: int, future: Any) -> JobOutcome:
    """Return how a finished job ended; raise what is no error of mlfc."""
    try:
        return JobOutcome(index, future.result())
    except MlfcError as error:
        return JobOutcome(index, error=error)
