"""Workers of an existing dask cluster. Dask repeats the jobs of workers that die, and hands every result out once."""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mlfc.cluster.workers import JobOutcome, outcome_of
from mlfc.errors import OptionError, RunError
from mlfc.support.version import __version__

if TYPE_CHECKING:
    from distributed import Client

_SECONDS = 10.0  # to reach a scheduler
_POLL = 0.5  # between looks for workers that are gone
_MOST_DEATHS = 3
_PLACE = "--scheduler"
_INSTALL = "Run: pip install 'mlfc[cluster]'"


def version_here() -> str:
    """Return the version of mlfc where this runs."""
    return __version__


@contextmanager
def dask_workers(address: str, tags: Sequence[str]) -> Iterator[DaskWorkers]:
    """Yield the workers of the cluster whose scheduler has an address; errors are those of `opened_workers`."""
    if not re.fullmatch(r"(tcp|tls|ucx|ws|wss)://[^\s/]+:[0-9]{1,5}", address):
        raise OptionError(
            f"expected an address, got '{address[:100]}'", place=_PLACE, next_step="Write tcp://HOST:8786"
        )
    try:
        from distributed import Client
    except ImportError as error:
        raise OptionError("the package distributed is not installed", place=_PLACE, next_step=_INSTALL) from error
    try:
        client = Client(address, timeout=_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise OptionError(
            f"no scheduler answers at {address}", place=_PLACE, next_step="Start one with: dask scheduler"
        ) from error
    with client:
        _check_versions(client)
        workers = DaskWorkers(client)
        for tag in tags:
            if not workers.count(tag):
                raise OptionError(
                    f"no worker has the resource {tag}",
                    place=_PLACE,
                    next_step=f"Start one with: dask worker {address} --resources '{tag}=1'",
                )
        yield workers


def _check_versions(client: Client) -> None:
    """Raise OptionError where scheduler or workers have other versions of what jobs are sent with, or of mlfc."""
    try:
        client.get_versions(check=True)
        found = client.run(version_here)
    except ValueError as error:
        text = " ".join(str(error).split())
        raise OptionError(
            f"versions differ: {text[:400]}", place=_PLACE, next_step="Install the same packages on all machines"
        ) from error
    except Exception as error:  # what a worker raises on unpickling is its own
        raise OptionError(
            f"a worker cannot run jobs of mlfc: {str(error)[:200]}",
            place=_PLACE,
            next_step=f"Install mlfc {__version__} on the workers",
        ) from error
    others = {address: version for address, version in found.items() if version != __version__}
    if others:
        listed = ", ".join(f"{address}: {version}" for address, version in sorted(others.items())[:4])
        raise OptionError(
            f"versions of mlfc differ: {__version__} here, {listed}",
            place=_PLACE,
            next_step=f"Install mlfc {__version__} on the workers",
        )


class DaskWorkers:
    """The workers of a cluster.

    Each job is given to one worker, which gets the next one when its result has been fetched: so a worker that dies
    takes no result with it, and only what it was doing is done again.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def count(self, tag: str) -> int:
        """Return how many jobs of a tag run at once."""
        return sum(self._slots(tag).values())

    def _slots(self, tag: str) -> dict[str, int]:
        """Return how many jobs of a tag each worker takes, by address."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        found = {address: int(worker.get("resources", {}).get(tag, 0)) for address, worker in workers.items()}
        return {address: count for address, count in sorted(found.items()) if count}

    def run(self, tag: str, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[JobOutcome]:
        """Run a function for each tuple of arguments; yield how the jobs end."""
        left = deque(range(len(jobs)))
        running: dict[Any, tuple[int, str]] = {}  # the number of each job, and its worker
        deaths: Counter[int] = Counter()  # of workers that had the job
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
                        reason = f"{_MOST_DEATHS} workers died while they ran it, the last one at {address}"
                        yield JobOutcome(index, error=RunError(reason))
                for address in self._free(slots, running):
                    if left:
                        index = left.popleft()
                        # a key of its own: dask would take equal keys of other sessions for the same job
                        options = {"resources": {tag: 1}, "workers": [address], "pure": False}
                        running[self._client.submit(function, *jobs[index], **options)] = index, address
                for future in self._finished(running):
                    yield self._outcome(running.pop(future)[0], future)
        finally:
            self._client.cancel(list(running))

    @staticmethod
    def _free(slots: Mapping[str, int], running: Mapping[Any, tuple[int, str]]) -> list[str]:
        """Return the workers that can take another job, each as often as it can."""
        taken = Counter(address for _, address in running.values())
        return [address for address, count in slots.items() for _ in range(count - taken[address])]

    def _finished(self, running: Mapping[Any, tuple[int, str]]) -> list[Any]:
        """Wait a little for jobs to end and return those that have; without any, wait for workers."""
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

    @staticmethod
    def _outcome(index: int, future: Any) -> JobOutcome:
        from distributed import KilledWorker

        try:
            return outcome_of(index, future)
        except KilledWorker as error:  # of a worker that came back at its address each time
            return JobOutcome(index, error=RunError("its worker died again and again", place=str(error)[:200]))
