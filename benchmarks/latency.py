"""Latency compared with other runtimes in one process, with the same number of threads, and the fraction of the peak.

With one thread the runs of all runtimes alternate. With more, mlfc runs first, because the threads of other runtimes
spin for a while after a run.

``--save`` writes the figures with a description of the machine to ``benchmarks/results/``, from which ``python -m
benchmarks --page NAME`` makes the documentation's table.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

import mlfc
from benchmarks.models import ROOT, Model, random_inputs
from benchmarks.peers import PEERS, runners
from benchmarks.threads import bound, medians
from mlfc.library.peaks import Peaks, machine_peaks

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "reference" / "measurements.md"
TARGET = "c -mcpu=native"
_TABLE = re.compile(r"(?<=<!-- latency -->\n).*?(?=<!-- end of latency -->)", re.DOTALL)
_COLUMNS = ("model", "dtype", "M MAC", "mlfc", "best peer's", "best peer", "ratio", "of peak")


@dataclass(frozen=True)
class Row:
    """The median times of one model, in seconds by runner, and the achieved share of the machine's peak."""

    model: str
    dtype: str
    macs: int
    ours: float
    peers: Mapping[str, float]
    share_of_peak: float

    @property
    def best(self) -> str:
        """The fastest other runtime."""
        return min(self.peers, key=self.peers.__getitem__)

    @property
    def ratio(self) -> float:
        """Time of mlfc relative to that of the fastest other runtime."""
        return self.ours / self.peers[self.best]

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table's row; times in microseconds."""
        return (
            self.model,
            self.dtype,
            f"{self.macs / 1e6:,.1f}",
            f"{self.ours * 1e6:,.1f}",
            f"{self.peers[self.best] * 1e6:,.1f}",
            self.best,
            f"{self.ratio:.2f}",
            f"{self.share_of_peak:.0%}",
        )


def interleaved(runners: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return the median time in seconds of each runner; runs alternate."""
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
            times[name].append(_batch(run, batch) / batch)
    return {name: statistics.median(values) for name, values in times.items()}


def _batch(run: Callable[[], object], count: int) -> float:
    """Return the seconds of `count` runs; a runner in another process measures them itself."""
    timed = getattr(run, "timed", None)
    if timed is not None:
        return float(timed(count))
    start = time.perf_counter()
    for _ in range(count):
        run()
    return time.perf_counter() - start


def measure(model: Model, folder: Path, peak: Peaks, seconds: float, threads: int = 1) -> Row:
    """Return the times of one model with a number of threads."""
    archive = folder / f"{model.name}.tar"
    mod, params = mlfc.import_model(model.path)
    factory = mlfc.build(mod, target=TARGET, params=params, module_name=model.name)
    mlfc.export_model_library_format(factory, archive)
    loaded: Any = mlfc.load(archive) if threads == 1 else mlfc.compile(model.path, TARGET)
    inputs = random_inputs(loaded.inputs)
    own, others = bound(loaded, inputs), runners(model.path, inputs, threads)
    if threads == 1:
        times = interleaved({"mlfc": own, **others}, seconds)
    else:
        found = medians({"mlfc": (threads, own)}, seconds)
        found |= medians({name: (1, run) for name, run in others.items()}, seconds)
        times = {name: time / 1e3 for name, time in found.items()}
    ours = times.pop("mlfc")
    macs = sum(call.kernel.macs for call in factory.program.calls)
    limit = peak.int8 if model.integer else peak.float32
    return Row(model.name, "int8" if model.integer else "float32", macs, ours, times, macs / ours / (limit * threads))


def table(models: list[Model], folder: Path, seconds: float, save: str | None = None, threads: int = 1) -> Table:
    """Return the table of all models; write its figures to ``results/latency-NAME.json`` if `save` is a name.

    With more than one thread, the file name contains the number: ``latency-NAME-2-threads.json``.
    """
    peak = machine_peaks()
    rows = [measure(model, folder, peak, seconds, threads) for model in models]
    if save is not None:
        RESULTS.mkdir(exist_ok=True)
        document = {
            "machine": _machine(peak),
            "threads": threads,
            "target": TARGET,
            "rows": [asdict(row) for row in rows],
        }
        name = save if threads == 1 else f"{save}-{threads}-threads"
        (RESULTS / f"latency-{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    result = Table(title=f"Latency, threads: {threads} (median, us); of the core: {_peak(asdict(peak))}")
    for name in _COLUMNS:
        result.add_column(name, justify="left" if name in ("model", "dtype", "best peer") else "right")
    for row in rows:
        result.add_row(*row.cells)
    return result


def write_page(name: str) -> None:
    """Write the table of the measurements from ``results/latency-NAME.json``."""
    document = json.loads((RESULTS / f"latency-{name}.json").read_text())
    machine, rows = document["machine"], [Row(**row) for row in document["rows"]]
    versions = ", ".join(f"{peer} {version}" for peer, version in machine["peers"].items())
    said = (
        f"{machine['processor']}, {machine['compiler']}, target `{document['target']}`; {versions}. "
        f"Measured peak of the core: {_peak(machine['peak'])}. Geometric means of the ratios: "
        f"{_mean(rows, 'int8'):.2f} for int8, {_mean(rows, 'float32'):.2f} for float32."
    )
    lines = textwrap.wrap(said, 100, break_on_hyphens=False, break_long_words=False)
    cells = [_COLUMNS, tuple("---" for _ in _COLUMNS), *(row.cells for row in rows)]
    text = "\n".join([*lines, "", *(f"| {' | '.join(row)} |" for row in cells)]) + "\n\n"
    page = PAGE.read_text()
    if not _TABLE.search(page):
        raise SystemExit(f"{PAGE}: expected the lines <!-- latency --> and <!-- end of latency -->")
    PAGE.write_text(_TABLE.sub(lambda _: "\n" + text, page))


def _mean(rows: Iterable[Row], dtype: str) -> float:
    return statistics.geometric_mean(row.ratio for row in rows if row.dtype == dtype)


def _peak(peak: Mapping[str, float]) -> str:
    return f"{peak['float32'] / 1e9:.0f} G float32 and {peak['int8'] / 1e9:.0f} G int8 multiply-accumulates a second"


def _machine(peak: Peaks) -> dict[str, Any]:
    """Describe this machine, its compiler and the other runtimes."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True).stdout
    vectors = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "amx_int8") if found and flag in info.read_text()]
    return {
        "processor": f"{found[1] if found else platform.processor()} ({', '.join(vectors)})",
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "compiler": compiler.splitlines()[0],
        "peers": {peer.name: peer.version for peer in PEERS if peer.version is not None},
        "peak": asdict(peak),
    }
