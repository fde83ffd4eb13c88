"""Choosing who runs jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlfc.cluster.workers import LocalWorkers, Workers


@contextmanager
def opened_workers(scheduler: str | None, *tags: str) -> Iterator[Workers]:
    """Yield the workers of a cluster, all of `tags` among them, or those of this machine if `scheduler` is None.

    Raises OptionError if the scheduler is no address, is not reached, runs other versions, or has no worker of a tag.
    """
    if scheduler is None:
        yield LocalWorkers()
        return
    from mlfc.cluster.dask_workers import dask_workers

    with dask_workers(scheduler, tags) as workers:
        yield workers
