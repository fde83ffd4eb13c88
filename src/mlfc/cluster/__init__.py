"""Execution of builds and measurements on this machine or on the workers of a dask cluster."""

from __future__ import annotations

from mlfc.cluster.workers import BUILD as BUILD
from mlfc.cluster.workers import MEASURE as MEASURE
from mlfc.cluster.workers import JobOutcome as JobOutcome
from mlfc.cluster.workers import LocalWorkers as LocalWorkers
from mlfc.cluster.workers import Workers as Workers
from mlfc.cluster.workers import opened_workers as opened_workers
