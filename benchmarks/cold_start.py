"""The time from loading an archive to its first result, with the built library in the cache."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from rich.table import Table

import mlfc
from benchmarks.models import find

MODEL = "kws_ref_model"
PROCESSES = 15
# a program with inputs has already imported numpy; the imports of mlfc count
PROGRAM = """
import json, sys, time
import numpy
import mlfc

start = time.perf_counter()
import mlfc.archive.read.load
imported = time.perf_counter()
model = mlfc.load(sys.argv[1])
inputs = {info.name: numpy.zeros(info.shape, info.dtype) for info in model.inputs}
loaded = time.perf_counter()
model.run(inputs)
print(json.dumps([imported - start, loaded - imported, time.perf_counter() - loaded]))
"""


def table(folder: Path) -> Table:
    """Return medians over fresh processes.

    Parameters
    ----------
    folder : Path
        For the archives.
    """
    result = Table(title=f"Cold start of {MODEL}, cached: milliseconds")
    for name in ("executor", "import", "load", "first run", "total"):
        result.add_column(name, justify="left" if name == "executor" else "right")
    (model,) = find([MODEL])
    module, params = mlfc.import_model(model.path)
    for executor in ("aot", "graph"):
        factory = mlfc.build(module, params=params, module_name="kws", executor=executor)
        archive = mlfc.export_model_library_format(factory, folder / f"{executor}.tar")
        times = [measured(archive) for _ in range(PROCESSES + 1)][1:]  # the first run builds
        parts = [statistics.median(column) * 1e3 for column in zip(*times, strict=True)]
        together = statistics.median(map(sum, times)) * 1e3
        result.add_row(executor, *(f"{part:.1f}" for part in (*parts, together)))
    return result


def measured(archive: Path) -> list[float]:
    """Return the seconds of each step in a fresh process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(archive)], capture_output=True, text=True, check=True)
    times: list[float] = json.loads(done.stdout)
    return times
