"""One-thread latency interleaved with the peers in one process, and the fraction of the machine's peak."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.table import Table

import mlfc
from benchmarks.models import Model, peers, random_inputs
from benchmarks.peak import Peak


def interleaved(runners: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return the median time in seconds of each runner, timed in turn."""
    for run in runners.values():
        run()
    start = time.perf_counter()
    for run in runners.values():
        run()
    once = max((time.perf_counter() - start) / len(runners), 1e-7)
    batch = max(1, int(200e-6 / once))
    rounds = max(7, min(2000, int(seconds / (once * len(runners) * batch))))
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, run in runners.items():
            start = time.perf_counter()
            for _ in range(batch):
                run()
            times[name].append((time.perf_counter() - start) / batch)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(model: Model, folder: Path, peak: Peak, seconds: float) -> tuple[str, ...]:
    """Return the table row of one model."""
    archive = folder / f"{model.name}.tar"
    mod, params = mlfc.import_model(model.path)
    factory = mlfc.build(mod, target="c -mcpu=native", params=params, module_name=model.name)
    mlfc.export_model_library_format(factory, archive)
    loaded = mlfc.load(archive)
    inputs = random_inputs(loaded.inputs)
    outputs = {info.name: np.empty(info.shape, info.dtype) for info in loaded.outputs}
    ours = loaded.bind(inputs, outputs)
    times = interleaved({"mlfc": ours, **peers(model, inputs)}, seconds)
    mine = times.pop("mlfc")
    peer, best = min(times.items(), key=lambda item: item[1])
    macs = sum(call.kernel.macs for call in factory.program.calls)
    limit = peak.int8 if model.integer else peak.float32
    return (
        model.name,
        "int8" if model.integer else "float32",
        f"{macs / 1e6:,.1f}",
        f"{mine * 1e6:,.1f}",
        f"{best * 1e6:,.1f}",
        peer,
        f"{mine / best:.2f}",
        f"{macs / mine / limit:.0%}",
    )


def table(models: list[Model], folder: Path, seconds: float) -> Table:
    """Return the table of all models."""
    peak = Peak.measured()
    result = Table(
        title=f"One-thread latency (median, us); measured peak {peak.float32 / 1e9:.0f} G float32 MAC/s, "
        f"{peak.int8 / 1e9:.0f} G int8 MAC/s"
    )
    for name in ("model", "dtype", "M MAC", "mlfc", "peer's", "peer", "ratio", "of peak"):
        result.add_column(name, justify="left" if name in ("model", "dtype", "peer") else "right")
    for model in models:
        result.add_row(*measure(model, folder, peak, seconds))
    return result
