"""Loading a library of half a gigabyte: time, and memory besides the mapped file."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import mlfc
import mlfc.ops
from mlfc.factory import Factory
from mlfc.relay import ir

WIDTH, LAYERS = 5_632, 4
EXECUTORS = ("graph", "aot")
# memory is the system's account of the process: its own pages, and mapped files
PROGRAM = """
import json, sys, time
import numpy
import mlfc, mlfc.runtime.libraries.factory

def memory():
    lines = open("/proc/self/status").read().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.endswith(" kB")}
    return {"anonymous": sizes["RssAnon"], "mapped": sizes["RssFile"], "peak": sizes["VmHWM"]}

before, start = memory(), time.perf_counter()
executor = mlfc.load_module(sys.argv[1])["default"](mlfc.cpu(0))
loaded = time.perf_counter() - start
after, start = memory(), time.perf_counter()
executor.set_input(0, numpy.ones((1, int(sys.argv[2])), numpy.float32))
executor.run()
ran = time.perf_counter() - start
print(json.dumps({"load": loaded, "run": ran, "before": before, "loaded": after, "after": memory()}))
"""


def large_model(executor: str, width: int = WIDTH, layers: int = LAYERS) -> Factory:
    """Compile a chain of dense layers of `width` x `width` floats."""
    x = ir.Var("x", ir.TensorType((1, width), "float32"))
    body: ir.Expr = x
    random = np.random.default_rng(0)
    for _ in range(layers):
        weights = random.standard_normal((width, width), np.float32)
        body = ir.call("nn.relu", [ir.call("nn.dense", [body, ir.Constant(weights)], units=width)])
    module = ir.IRModule({"main": ir.Function((x,), body)}, ("y",), {}, {"format": "benchmark"})
    return mlfc.build(module, module_name="large", executor=executor)


def table(folder: Path) -> Table:
    """Return a row for each executor.

    Parameters
    ----------
    folder : Path
        For the libraries, which are removed afterwards.
    """
    result = Table(title=f"A library of {LAYERS} dense layers of {WIDTH} x {WIDTH} floats")
    result.add_column("executor")
    for name in ("file MB", "export s", "export adds MB", "load ms", "own MB more", "run ms", "peak MB", "peak / file"):
        result.add_column(name, justify="right")
    for executor in EXECUTORS:
        factory = large_model(executor)
        start, before = time.perf_counter(), _peak()
        path = factory.export_library(folder / f"{executor}.so")
        seconds = time.perf_counter() - start
        added = _peak() - before
        found = measured(path)
        size = path.stat().st_size
        path.unlink()
        own = found["loaded"]["anonymous"] - found["before"]["anonymous"]
        peak = found["after"]["peak"]
        megabytes = [f"{number / 1e6:,.0f}" for number in (size, added, own, peak)]
        result.add_row(
            executor,
            megabytes[0],
            f"{seconds:.1f}",
            megabytes[1],
            f"{found['load'] * 1e3:.0f}",
            megabytes[2],
            f"{found['run'] * 1e3:.0f}",
            megabytes[3],
            f"{peak / size:.2f}",
        )
    return result


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def measured(path: Path, width: int = WIDTH) -> dict[str, Any]:
    """Return seconds and bytes of a process that loads a library and runs it once."""
    command = [sys.executable, "-c", PROGRAM, str(path), str(width)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
