"""The overhead of calling a library's function from Python."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from rich.table import Table

import mlfc
from mlfc.relay import ir
from mlfc.runtime import LibraryModule
from mlfc.support.dims import Symbol

CALLS = 200
ROUNDS = 300
EMPTY = r"""
#include <stdint.h>
int empty(void *args, int *codes, int count, void *ret, int *ret_code, void *handle) {
  (void)args; (void)codes; (void)count; (void)ret; (void)ret_code; (void)handle;
  return 0;
}
int __tvm_ffi_empty(void *handle, const void *args, int32_t count, void *result) {
  (void)handle; (void)args; (void)count; (void)result;
  return 0;
}
"""


def table(folder: Path) -> Table:
    """Return the median CPU microseconds per call; the kinds of calls alternate, so that load affects all of them.

    Parameters
    ----------
    folder : Path
        Build folder.
    """
    ways = _ways(folder)
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            samples[name].append(_microseconds(call))
    result = Table(title="Calls from Python on two numpy arrays, microseconds")
    for name in ("way", "median", "best"):
        result.add_column(name, justify="left" if name == "way" else "right")
    for name, found in samples.items():
        result.add_row(name, f"{statistics.median(found):.2f}", f"{min(found):.2f}")
    return result


def _ways(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return calls of a model that adds two numbers, and of functions that do nothing."""
    library = mlfc.build(_increment(1), module_name="increment").export_library(folder / "increment.so")
    opened = mlfc.build(_increment(Symbol("n").dim), module_name="opened", executor="vm")
    general: Any = mlfc.load(opened.export_library(folder / "opened.so"))
    (folder / "empty.c").write_text(EMPTY)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", "empty.so", "empty.c"], cwd=folder, check=True)
    arrays = np.ones(1, np.float32), np.zeros(1, np.float32)
    tensors = tuple(map(tvm_ffi.from_dlpack, arrays))
    model = mlfc.load(library)
    code, empty = LibraryModule(library), LibraryModule(folder / "empty.so")
    ffi = {name: tvm_ffi.load_module(str(folder / f"{name}.so"))[name] for name in ("increment", "empty")}
    packed, nothing, bound = code["increment"], empty["empty"], model.bind([arrays[0]], [arrays[1]])
    return {
        "packed, empty": lambda: nothing(*arrays),
        "packed, model": lambda: packed(*arrays),
        "tvm_ffi, empty": lambda: ffi["empty"](*arrays),
        "tvm_ffi, model": lambda: ffi["increment"](*arrays),
        "tvm_ffi, model, its own tensors": lambda: ffi["increment"](*tensors),
        "tvm_ffi, model, returns a tensor": lambda: ffi["increment"](tensors[0]),
        "bound to the arrays": bound,
        "run": lambda: model.run(arrays[0]),
        "open length, bound to the arrays": general.bind([arrays[0]], [arrays[1]]),
        "open length, bound to the input": general.bind([arrays[0]]),
        "open length, run": lambda: general.run(arrays[0]),
    }


def _increment(extent: Any) -> ir.IRModule:
    data = ir.Var("data", ir.TensorType((extent,), "float32"))
    return ir.IRModule({"main": ir.Function((data,), ir.call("add", [data, ir.const(np.float32(1))]))})


def _microseconds(call: Callable[[], Any]) -> float:
    start = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - start) / CALLS * 1e6
