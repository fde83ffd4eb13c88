"""Random dynamic graphs as C under the sanitizers: kernels, launchers and the interpreter, also at the bounds.

Each graph runs at its own sizes, where exact values must equal ONNX Runtime's. It is also compiled with bounds and runs
at the smallest sizes, the largest, and others; sizes beyond the bounds must be rejected.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mlfc
from fuzz.open_graphs import SIZES, Graph, random_graph
from fuzz.python_readers import Failure
from mlfc.errors import InternalError, MlfcError
from tests.native.sanitized_vm import Ran, VmJob, run_models

Array = npt.NDArray[Any]

NAME = "C of open extents"
COMPILERS = ("clang", "gcc")
TARGETS = ("c", "c -mcpu=x86-64-v4", "c -mcpu=cortex-m4")
"""The last has plain loops for kernels, and requires bounds."""
MOST = 12
"""The upper bound of each dynamic dimension."""
_BATCH = 12


def fuzz(seconds: float, seed: int, *, count: int = 1 << 60, batch: int = _BATCH) -> list[Failure]:
    """Run graphs until the time is over, or a number of them; return the failing ones.

    Parameters
    ----------
    seconds : float
    seed : int
        Of the first graph; later graphs count up.
    count : int
        Maximum number of graphs.
    batch : int
        Graphs per program, each in two forms.
    """
    end = time.monotonic() + seconds
    failures: list[Failure] = []
    for first in range(seed, seed + count, batch):
        numbers = range(first, min(first + batch, seed + count))
        failures += _batch(numbers, COMPILERS[first // batch % len(COMPILERS)])
        if time.monotonic() >= end:
            break
    return failures


def _batch(numbers: Sequence[int], compiler: str) -> Iterator[Failure]:
    graphs: list[Graph] = []
    jobs: list[VmJob] = []
    for number in numbers:
        graph = random_graph(number)
        if not graph.nodes:
            continue
        try:
            made = list(_jobs(graph, number))
        except Exception as error:  # the fuzzer looks for these
            yield Failure(NAME, graph.model(), f"graph {number}: {type(error).__name__}: {error}")
            continue
        jobs += made
        graphs += [graph] * len(made)
    if not jobs:
        return
    with tempfile.TemporaryDirectory() as folder:
        results, said = run_models(jobs, Path(folder), [compiler])
    if said:
        place = next((at for at, job in enumerate(jobs) if said.startswith(f"{job.label}:")), 0)
        yield Failure(NAME, graphs[place].model(), f"{compiler}: {said[:1500]}")
    for graph, job, found in zip(graphs, jobs, results, strict=True):
        cause = _wrong(graph, job, found)
        if cause:
            yield Failure(NAME, graph.model(), f"{job.label}: {cause}")


def _jobs(graph: Graph, number: int) -> Iterator[VmJob]:
    """Yield the graph unbounded with its own inputs, and with bounds, unless rejected."""
    target = TARGETS[number % 3]
    opened = None if "cortex" in target else _compiled(graph, target, f"open_{number}")
    if opened is not None:
        runs = [[graph.values[info.name].arrays[index] for info in opened.inputs] for index in range(SIZES)]
        yield VmJob(f"open graph {number}", opened.factory, runs)
    for low in (0, 1):
        bounded = _compiled(graph, target, f"bounded_{number}", low)
        if bounded is not None:
            some = {name: graph.number(low, MOST) for name in graph.sizes}
            mixed = {name: graph.pick((low, MOST)) for name in graph.sizes}
            every = [dict.fromkeys(graph.sizes, size) for size in (low, 1, MOST, MOST + 1)]
            runs = [_inputs(graph, bounded, sizes) for sizes in (some, mixed, *every)]
            yield VmJob(f"bounded graph {number}", bounded.factory, runs)
            return


def _compiled(graph: Graph, target: str, name: str, low: int | None = None) -> mlfc.CompiledModel | None:
    """Return a graph compiled with bounds if `low` is given; None if it is rejected or static."""
    symbols = {} if low is None else {name: mlfc.Dim(name, low, MOST) for name in graph.sizes}
    shapes: dict[str, tuple[Any, ...]] = {
        name: tuple(symbols.get(extent, extent) if isinstance(extent, str) else extent for extent in shape)
        for name, shape in graph.inputs.items()
    }
    try:
        made = mlfc.compile(graph.model(), target, module_name=name, shapes=None if low is None else shapes)
    except MlfcError as error:
        if isinstance(error, InternalError):
            raise
        return None
    return made if made.factory.executor == "vm" else None


def _inputs(graph: Graph, model: mlfc.CompiledModel, sizes: dict[str, int]) -> list[Array]:
    found = []
    for info in model.inputs:
        shape = [sizes[item] if isinstance(item, str) else item for item in graph.inputs[info.name]]
        found.append(graph.rng.integers(-4, 5, size=shape).astype(graph.values[info.name].dtype))
    return found


def _wrong(graph: Graph, job: VmJob, found: Sequence[Ran]) -> str:
    """Return how results differ from ONNX Runtime's, or that sizes beyond the bounds were accepted."""
    if job.label.startswith("bounded"):
        is_open = any(isinstance(extent, str) for shape in graph.inputs.values() for extent in shape)
        is_taken = len(found) == len(job.runs) and found[-1].status == 0
        return f"dimensions of size {MOST + 1} are accepted" if is_open and is_taken else ""
    names = [tensor.name for tensor in job.factory.interface().outputs]
    for index, ran in enumerate(found):
        if ran.status:
            continue
        for name, array in zip(names, ran.outputs, strict=True):
            value = graph.values[name]
            if value.is_exact and not np.array_equal(array, value.arrays[index]):
                return f"sizes {index}: {name} is {array.ravel()[:6]}, not {value.arrays[index].ravel()[:6]}"
    return ""
