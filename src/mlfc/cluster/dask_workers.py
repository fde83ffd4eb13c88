"""Workers of an existing dask cluster. Dask repeats the jobs of workers that die, and hands every result out once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mlfc.cluster.workers import Outcome, outcome_of
from mlfc.errors import OptionError, RunError
from mlfc.support.version import __version__

if TYPE_CHECKING:
    from distributed import Client

_SECONDS = 10.0  # to reach a scheduler
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
    """The workers of a cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def count(self, tag: str) -> int:
        """Return how many jobs of a tag run at once."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        return int(sum(worker.get("resources", {}).get(tag, 0) for worker in workers))

    def run(self, tag: str, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[Outcome]:
        """Run a function for each tuple of arguments; yield how the jobs end."""
        from distributed import KilledWorker, as_completed

        numbers: dict[Any, int] = {}
        left = iter(enumerate(jobs))
        running = as_completed(loop=self._client.loop)

        def submit() -> None:
            """Hand out as many jobs as there are workers: results that nobody has fetched would die with theirs."""
            for index, job in itertools.islice(left, max(1, self.count(tag)) - len(numbers)):
                # a key of its own: dask would take equal keys of other sessions for the same job
                future = self._client.submit(function, *job, resources={tag: 1}, pure=False)
                numbers[future] = index
                running.add(future)

        try:
            submit()
            for future in running:
                try:
                    outcome = outcome_of(numbers[future], future)
                except KilledWorker as error:
                    reason = "workers died again and again while they ran it"
                    outcome = Outcome(numbers[future], error=RunError(reason, place=str(error)[:200]))
                del numbers[future]
                submit()
                yield outcome
        finally:
            self._client.cancel(list(numbers))
