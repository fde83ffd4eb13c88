"""Large archives and archives of many modules: time and memory of export and load, each step in its own process."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.table import Table

import mlfc
from benchmarks.models import find, random_inputs
from mlfc.compiler import build
from mlfc.factory import Factory
from mlfc.relay import ir

LAYERS = 4
MODULES = 100
Result = dict[str, float]


def dense_layers(mebibytes: int) -> Factory:
    """Return a compiled module of a few dense layers with this total size of weights."""
    rng = np.random.default_rng(0)
    side = int((mebibytes * 2**20 / 4 / LAYERS) ** 0.5)
    params = [ir.Var("x", ir.TensorType((1, side), "float32"))]
    body: ir.Expr = params[0]
    values = {}
    for index in range(LAYERS):
        weight = ir.Var(f"w{index}", ir.TensorType((side, side), "float32"))
        values[weight.name] = rng.standard_normal((side, side), np.float32)
        params.append(weight)
        body = ir.call("nn.dense", [body, weight], units=side)
    module = ir.IRModule({"main": ir.Function(tuple(params), body)})
    return build(module, params=values, executor="graph", module_name="large")


def peak_after(action: Callable[[], object]) -> tuple[float, int, int]:
    """Return the seconds of an action, the memory before it (0 except on Linux), and the peak memory."""
    status, before = Path("/proc/self/status"), 0
    if status.exists():
        # writing 5 resets the peak to the memory in use
        Path("/proc/self/clear_refs").write_text("5")
        before = _field(status, "VmRSS")
    start = time.perf_counter()
    action()
    seconds = time.perf_counter() - start
    peak = _field(status, "VmHWM") if before else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return seconds, before, peak


def _field(status: Path, name: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def export_large(folder: Path, mebibytes: int) -> Result:
    """Write the archive of a large model."""
    factory = dense_layers(mebibytes)
    path = folder / "large.tar"
    seconds, before, peak = peak_after(lambda: mlfc.export_model_library_format(factory, path))
    with tarfile.open(path) as tar:
        largest = max(info.size for info in tar)
    return {"seconds": seconds, "grown": peak - before, "largest": largest, "archive": path.stat().st_size}


def load_large(folder: Path, mebibytes: int) -> Result:  # noqa: ARG001  (all steps have one signature)
    """Load the archive of a large model whose compiled C is cached."""
    path = folder / "large.tar"
    mlfc.load(path)  # fills the cache
    seconds, before, peak = peak_after(lambda: mlfc.load(path))
    return {"seconds": seconds, "grown": peak - before}


def export_many(folder: Path, mebibytes: int) -> Result:  # noqa: ARG001
    """Write one archive of many modules."""
    (model,) = find(["digits_int8"])
    mod, params = mlfc.import_model(model.path)
    factories = [build(mod, params=params, module_name=f"m{index:03}") for index in range(MODULES)]
    path = folder / "many.tar"
    seconds, *_ = peak_after(lambda: mlfc.export_model_library_format(factories, path))
    return {"seconds": seconds, "archive": path.stat().st_size}


def load_many(folder: Path, mebibytes: int) -> Result:  # noqa: ARG001
    """Load one of many modules up to its first result, with its compiled C cached."""
    return _first_result(folder / "many.tar", "m050")


def export_kws(folder: Path, mebibytes: int) -> Result:  # noqa: ARG001
    """Write the keyword-spotting archive and compile its C."""
    path = folder / "kws.tar"
    (model,) = find(["kws_ref_model"])
    mod, params = mlfc.import_model(model.path)
    mlfc.export_model_library_format(build(mod, params=params, module_name="kws"), path)
    return _first_result(path, None)


def load_kws(folder: Path, mebibytes: int) -> Result:  # noqa: ARG001
    """Load the keyword-spotting archive up to its first result, in a fresh process."""
    return _first_result(folder / "kws.tar", None, times=1)


def _first_result(path: Path, module: str | None, times: int = 2) -> Result:
    random_inputs([])  # numpy loads its random generators on first use
    for _ in range(times):
        start = time.perf_counter()
        loaded = mlfc.load(path, module)
        loaded.run(random_inputs(loaded.inputs))
        seconds = time.perf_counter() - start
    return {"seconds": seconds}


STEPS: dict[str, Callable[[Path, int], Result]] = {
    step.__name__: step for step in (export_large, load_large, export_many, load_many, export_kws, load_kws)
}


def tar_seconds(archive: Path, folder: Path) -> float:
    """Return the seconds that ``tar`` needs for the files of an archive."""
    files, copy = folder / "files", folder / "copy.tar"
    with tarfile.open(archive) as tar:
        tar.extractall(files, filter="data")
    start = time.perf_counter()
    subprocess.run(["tar", "cf", copy, "-C", files, "."], check=True)
    seconds = time.perf_counter() - start
    copy.unlink()
    shutil.rmtree(files)
    return seconds


def step(name: str, folder: Path, mebibytes: int) -> Result:
    """Run a step in its own process."""
    command = [sys.executable, "-m", "benchmarks.archive_size", name, str(folder), str(mebibytes)]
    # an installed package has cached bytecode
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    result: Result = json.loads(done.stdout)
    return result


def table(folder: Path, mebibytes: int = 1024) -> Table:
    """Return the table of all steps."""
    result = Table(title=f"Archives: {mebibytes} MiB of weights, {MODULES} modules, cold start")
    for name in ("step", "s", "goal s", "extra memory MiB", "goal MiB"):
        result.add_column(name, justify="left" if name == "step" else "right")
    exported = step("export_large", folder, mebibytes)
    tar = tar_seconds(folder / "large.tar", folder)
    largest = exported["largest"]
    # the target is 1.3 times the file in total; the weights, in memory before the export, count as the file
    goal = 0.3 * largest
    loaded = step("load_large", folder, mebibytes)
    (folder / "large.tar").unlink()
    many = step("export_many", folder, mebibytes)
    rows = [
        (f"tar of {exported['archive'] / 2**20:,.0f} MiB", tar, None, None, None),
        ("export", exported["seconds"], 1.5 * tar, exported["grown"], goal),
        ("load, code cached", loaded["seconds"], 1.5 * tar, loaded["grown"], 1.3 * largest),
        (f"export of {MODULES} modules, {many['archive'] / 2**20:.1f} MiB", many["seconds"], None, None, None),
        ("load one of them to its first result", step("load_many", folder, mebibytes)["seconds"], None, None, None),
    ]
    step("export_kws", folder, mebibytes)
    step("load_kws", folder, mebibytes)
    rows.append(("load kws to its first result", step("load_kws", folder, mebibytes)["seconds"], 0.05, None, None))
    for title, seconds, limit, memory, memory_limit in rows:
        cells = [title, f"{seconds:.3f}", "" if limit is None else f"{limit:.2f}"]
        cells += ["" if size is None else f"{size / 2**20:,.0f}" for size in (memory, memory_limit)]
        result.add_row(*cells)
    return result


if __name__ == "__main__":
    sys.stdout.write(json.dumps(STEPS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))
