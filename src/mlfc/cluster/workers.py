"""Jobs and the workers that run them. A job is a module-level function with plain data as arguments and result.

The long work of a job happens in other processes (compilers, emulators, `mlfc`), so local jobs are threads.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mlfc.errors import MlfcError, OptionError, RunError
from mlfc.support.version import __version__

if TYPE_CHECKING:
    from distributed import Client

BUILD, MEASURE = "BUILD", "MEASURE"
"""Tags of workers: dask resources of these names. A measuring worker runs one job at a time."""
_SECONDS = 10.0  # timeout for connecting to a scheduler
_POLL = 0.5  # between checks for lost workers
_MOST_DEATHS = 3
_INSTALL = "Run in a checkout of mlfc: pip install '.[cluster]'"


@dataclass(frozen=True)
class JobOutcome:
    """Outcome of a job: the result of its function, or the error that it raised."""

    index: int  # index of the job's arguments
    value: Any = None
    error: MlfcError | None = None


Workers: TypeAlias = "LocalWorkers | DaskWorkers"
"""A set of workers."""


class LocalWorkers:
    """Workers on this machine: several concurrent builds, one measurement."""

    def __init__(self, builders: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._builders = builders or cores or 2

    def count(self, tag: str) -> int:
        """Return the maximum number of concurrent jobs with a tag."""
        return self._builders if tag == BUILD else 1

    def run(self, tag: str, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[JobOutcome]:
        """Run a function for each tuple of arguments; yield the outcome of each job on completion.

        Errors of mlfc are outcomes; any other exception is raised here.
        """
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
    """Return the outcome of a finished job; raise any exception that is not an error of mlfc."""
    try:
        return JobOutcome(index, future.result())
    except MlfcError as error:
        return JobOutcome(index, error=error)


def _refused(cause: str, next_step: str) -> OptionError:
    return OptionError(cause, place="--scheduler", next_step=next_step)


def version_here() -> str:
    """Return the version of mlfc in this process."""
    return __version__


@contextmanager
def dask_workers(address: str, tags: Sequence[str]) -> Iterator[DaskWorkers]:
    """Yield the workers of the cluster with this scheduler address; errors are those of `opened_workers`."""
    if not re.fullmatch(r"(tcp|tls|ucx|ws|wss)://[^\s/]+:[0-9]{1,5}", address):
        raise _refused(f"expected an address, got '{address[:100]}'", "Write tcp://HOST:8786")
    try:
        from distributed import Client
    except ImportError as error:
        raise _refused("the package distributed is not installed", _INSTALL) from error
    try:
        client = Client(address, timeout=_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise _refused(f"no scheduler answers at {address}", "Start one with: dask scheduler") from error
    with client:
        _check_versions(client)
        workers = DaskWorkers(client)
        for tag in tags:
            if not workers.count(tag):
                raise _refused(
                    f"no worker has the resource {tag}", f"Start one with: dask worker {address} --resources '{tag}=1'"
                )
        yield workers


def _check_versions(client: Client) -> None:
    """Raise OptionError if scheduler or workers have other versions of mlfc or of packages that transfer jobs."""
    try:
        client.get_versions(check=True)
        found = client.run(version_here)
    except ValueError as error:
        text = " ".join(str(error).split())
        raise _refused(f"versions differ: {text[:400]}", "Install the same packages on all machines") from error
    except Exception as error:  # any exception that a worker raises while unpickling
        raise _refused(
            f"a worker cannot run jobs of mlfc: {str(error)[:200]}", f"Install mlfc {__version__} on the workers"
        ) from error
    others = {address: version for address, version in found.items() if version != __version__}
    if others:
        listed = ", ".join(f"{address}: {version}" for address, version in sorted(others.items())[:4])
        raise _refused(
            f"versions of mlfc differ: {__version__} here, {listed}", f"Install mlfc {__version__} on the workers"
        )


class DaskWorkers:
    """The workers of a cluster.

    A worker gets the next job only after the result of its last one was fetched: a worker that dies loses only the job
    that it was running, which is repeated.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def count(self, tag: str) -> int:
        """Return the maximum number of concurrent jobs with a tag."""
        return sum(self._slots(tag).values())

    def _slots(self, tag: str) -> dict[str, int]:
        """Return the number of concurrent jobs with a tag that each worker runs, by address."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        found = {address: int(worker.get("resources", {}).get(tag, 0)) for address, worker in workers.items()}
        return {address: count for address, count in sorted(found.items()) if count}

    def run(self, tag: str, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[JobOutcome]:
        """Run a function for each tuple of arguments; yield the outcomes of the jobs."""
        from distributed import KilledWorker

        left = deque(range(len(jobs)))
        running: dict[Any, tuple[int, str]] = {}  # index of each job, and its worker
        deaths: Counter[int] = Counter()  # number of workers that died while running the job
        try:
            while left or running:
                slots = self._slots(tag)
                for future in [future for future, (_, address) in running.items() if address not in slots]:
                    index, address = running.pop(future)
                    self._client.cancel([future])
                    deaths[index] += 1
                    if deaths[index] < _MOST_DEATHS:
                        left.appendleft(index)
                    else:
                        reason = f"{_MOST_DEATHS} workers died while running it, the last one at {address}"
                        yield JobOutcome(index, error=RunError(reason))
                taken = Counter(address for _, address in running.values())
                # free slots, each as its worker's address
                for address in [name for name, count in slots.items() for _ in range(count - taken[name])]:
                    if left:
                        index = left.popleft()
                        # a unique key: dask would treat equal keys of other sessions as the same job
                        options = {"resources": {tag: 1}, "workers": [address], "pure": False}
                        running[self._client.submit(function, *jobs[index], **options)] = index, address
                for future in self._finished(running):
                    index, _ = running.pop(future)
                    try:
                        yield outcome_of(index, future)
                    except KilledWorker as error:  # from a worker that came back at its address each time
                        died = RunError("its worker died repeatedly", place=str(error)[:200])
                        yield JobOutcome(index, error=died)
        finally:
            self._client.cancel(list(running))

    def _finished(self, running: Mapping[Any, tuple[int, str]]) -> list[Any]:
        """Wait briefly for jobs and return the finished ones; if no job is running, wait for workers."""
        from distributed import wait

        if not running:
            time.sleep(_POLL)
            return []
        try:
            with self._client.as_current():
                done = wait(list(running), timeout=_POLL, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            return []
        return sorted(done, key=lambda future: running[future][0])


@contextmanager
def opened_workers(scheduler: str | None, *tags: str) -> Iterator[Workers]:
    """Yield the workers of a cluster, including all of `tags`, or those of this machine if `scheduler` is None.

    Raises OptionError if the scheduler is invalid or unreachable, its versions differ, or a tag has no worker.
    """
    if scheduler is None:
        yield LocalWorkers()
        return
    with dask_workers(scheduler, tags) as workers:
        yield workers
