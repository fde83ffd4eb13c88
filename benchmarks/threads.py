"""One and two threads, compared with the single-threaded code of an archive and the fastest other runtime."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import mlfc
from benchmarks.dynamic_models import encoder
from benchmarks.models import find, random_inputs
from benchmarks.peers import runners as peers

NAMES = ("resnet50", "mobilenet_v2_quantized_1x3x224x224")
TARGET = "c -mcpu=native"
THREADS = 2
_LENGTH = 128
_WARM_SECONDS = 0.05  # until each thread has a core, and other runtimes' threads sleep
_RUNS = 5


@dataclass(frozen=True)
class _Case:
    """A model file and its input shapes."""

    name: str
    path: Path
    shapes: dict[str, tuple[int, ...]] | None = None


def _cases(names: Sequence[str], folder: Path) -> list[_Case]:
    cases = [_Case(model.name, model.path) for model in find(list(names or NAMES))]
    if not names:
        path = folder / "encoder.onnx"
        path.write_bytes(encoder(layers=6, length=_LENGTH))
        cases.append(_Case("encoder, 6 layers of 256, 128 positions", path))
    return cases


def table(names: Sequence[str], seconds: float) -> Table:
    """Return the table of medians in milliseconds; the runs of all runners of a model alternate."""
    caption = (
        "scaling: of one thread to two; ratio: ours over the best peer's, both with two; round trip: of a cache line to"
        " the other core, in nanoseconds"
    )
    result = Table(title=f"threads, {TARGET}: milliseconds", caption=caption)
    columns = (
        "without threads",
        "1 thread",
        "2 threads",
        "scaling",
        "peer",
        "peer, 1",
        "peer, 2",
        "ratio",
        "round trip",
    )
    result.add_column("model")
    for column in columns:
        result.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        for case in _cases(names, Path(folder)):
            before = _round_trip(Path(folder))
            row = _row(case, Path(folder), seconds)
            result.add_row(case.name, *row, f"{before} to {_round_trip(Path(folder))}")
    return result


def _round_trip(folder: Path) -> int:
    """Return the round-trip time between two cores, which a virtual machine may change at any time."""
    program = folder / "round_trip"
    if not program.exists():
        source = Path(__file__).with_name("round_trip.c")
        subprocess.run(["cc", "-O2", "-pthread", source, "-o", program], check=True)
    return int(subprocess.run([program], check=True, capture_output=True, text=True).stdout)


def _row(case: _Case, folder: Path, seconds: float) -> list[str]:
    compiled = mlfc.compile(str(case.path), target=TARGET, shapes=case.shapes)
    archive = folder / "model.tar"
    compiled.export(archive)
    inputs = random_inputs(compiled.inputs)
    # tokens
    inputs = {name: value % 1000 if value.dtype == np.int64 else value for name, value in inputs.items()}
    runners: dict[str, tuple[int, Callable[[], Any]]] = {
        "without": (1, bound(mlfc.load(archive), inputs)),
        "one": (1, bound(compiled, inputs)),
        "two": (THREADS, bound(compiled, inputs)),
    }
    times = medians(runners, seconds)
    # last, because their threads spin for a while after a run and occupy a core
    others = {
        f"{name} {threads}": (1, run)
        for threads in (1, THREADS)
        for name, run in peers(case.path, inputs, threads).items()
    }
    times |= medians(others, seconds)
    peer = min(
        (name.removesuffix(f" {THREADS}") for name in others if name.endswith(f" {THREADS}")),
        key=lambda name: times[f"{name} {THREADS}"],
    )
    return [
        *(f"{times[name]:.2f}" for name in ("without", "one", "two")),
        f"{times['one'] / times['two']:.2f}",
        peer,
        *(f"{times[f'{peer} {threads}']:.2f}" for threads in (1, THREADS)),
        f"{times['two'] / times[f'{peer} {THREADS}']:.2f}",
    ]


def bound(model: Any, inputs: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a call of a model on fixed inputs and outputs."""
    outputs = {info.name: np.empty(info.shape, info.dtype) for info in model.outputs}
    bound: Callable[[], Any] = model.bind(inputs, outputs)
    return bound


def medians(runners: Mapping[str, tuple[int, Callable[[], Any]]], seconds: float) -> dict[str, float]:
    """Return the milliseconds of runners, each with its number of threads; each warms up before it is timed."""
    found: dict[str, list[float]] = {name: [] for name in runners}
    end = time.perf_counter() + seconds * len(runners)
    while time.perf_counter() < end or not all(found.values()):
        for name, (threads, run) in runners.items():
            mlfc.set_num_threads(threads)
            warm = time.perf_counter() + _WARM_SECONDS
            while time.perf_counter() < warm:
                run()
            for _ in range(_RUNS):
                start = time.perf_counter()
                run()
                found[name].append((time.perf_counter() - start) * 1e3)
    mlfc.set_num_threads(1)
    return {name: float(np.median(times)) for name, times in found.items()}
