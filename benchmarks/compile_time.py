"""Time and memory of `mlfc compile` and of the compilation of its C, each in its own process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from rich.table import Table

from benchmarks.models import Model

GOALS = {"kws_ref_model": 3, "mobilenet_v2_quantized_1x3x224x224": 20, "resnet50": 60}


def run(command: list[str], cwd: Path | None = None) -> tuple[float, int]:
    """Run a command; return its seconds and its peak memory in bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with status {process.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss * 1024


def measure(model: Model, folder: Path) -> tuple[str, ...]:
    """Return the table row of one model."""
    archive = folder / f"{model.name}-compile.tar"
    seconds, memory = run([sys.executable, "-m", "mlfc", "compile", str(model.path), "-o", str(archive)])
    sources = folder / model.name
    with tarfile.open(archive) as tar:
        tar.extractall(sources, filter="data")
    code = sources / "codegen/host/src"
    files = sorted(path.name for path in code.iterdir() if path.suffix in (".c", ".S"))
    flags = ["-std=c99", "-O2", "-c", "-I", "../include", "-I", "."]
    build_seconds, build_memory = run(["gcc", *flags, *files], cwd=code)
    objects = sum(path.stat().st_size for path in code.glob("*.o"))
    goal = GOALS.get(model.name)
    return (
        model.name,
        f"{seconds:.1f}",
        f"{goal}" if goal else "",
        f"{memory / 2**20:,.0f}",
        f"{archive.stat().st_size / 2**20:,.1f}",
        f"{build_seconds:.1f}",
        f"{build_memory / 2**20:,.0f}",
        f"{objects / 2**20:,.1f}",
    )


def import_seconds() -> float:
    """Return the median seconds that ``import mlfc.runtime`` adds to an empty Python process."""

    def process(code: str) -> float:
        return statistics.median(run([sys.executable, "-c", code])[0] for _ in range(9))

    return process("import mlfc.runtime") - process("pass")


def table(models: list[Model], folder: Path) -> Table:
    """Return the table of all models."""
    result = Table(title="Compiling: mlfc compile (whole process), then gcc -O2 on its C")
    for name in ("model", "compile s", "goal s", "MiB", "archive MiB", "gcc s", "gcc MiB", "objects MiB"):
        result.add_column(name, justify="left" if name == "model" else "right")
    for model in models:
        result.add_row(*measure(model, folder))
    result.caption = f"import mlfc.runtime: {import_seconds():.3f} s (goal 0.15)"
    return result
