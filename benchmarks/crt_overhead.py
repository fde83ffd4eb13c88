"""The overhead of the C graph executor per operator call, compared with a bare loop of calls."""

from __future__ import annotations

import ctypes
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from mlfc.crt import crt_files

SOURCE = Path(__file__).with_suffix(".c")
CALLS = (10, 100, 1000)
STEPS = 1_000_000


def table(folder: Path) -> Table:
    """Return nanoseconds per call, for operator chains of several lengths.

    Parameters
    ----------
    folder : Path
        Build folder of the runtime.
    """
    library = build(folder)
    result = Table(title="C graph executor: nanoseconds per call of a trivial operator")
    for name in ("operators", "create (us)", "executor", "bare loop", "overhead"):
        result.add_column(name, justify="right")
    for calls in CALLS:
        text = chain(calls).encode()
        start = time.perf_counter()
        executor = ctypes.c_void_p(library.create(text))
        created = time.perf_counter() - start
        rounds = ctypes.c_int64(STEPS // calls)
        through = nanoseconds(lambda: library.run_executor(executor, rounds))  # noqa: B023  # called at once
        bare = nanoseconds(lambda: library.run_bare(rounds, calls))  # noqa: B023
        library.TVMGraphExecutor_Release(ctypes.byref(executor))
        result.add_row(str(calls), f"{created * 1e6:,.0f}", f"{through:.2f}", f"{bare:.2f}", f"{through - bare:.2f}")
    return result


def build(folder: Path) -> ctypes.CDLL:
    """Compile the runtime and the operator to a shared library."""
    for name, content in crt_files().items():
        path = folder / "runtime" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    runtime = folder / "runtime/src/runtime/crt"
    sources = [SOURCE, folder / "runtime/host/platform.c", *(runtime / "common").glob("*.c")]
    sources += (runtime / "graph_executor").glob("*.c")
    includes = ["-I", str(folder / "runtime/include"), "-I", str(folder / "runtime/host")]
    command = ["cc", "-std=c99", "-O2", "-shared", "-fPIC", *includes, "-o", str(folder / "overhead.so")]
    subprocess.run([*command, *map(str, sources)], check=True)
    library = ctypes.CDLL(str(folder / "overhead.so"))
    library.create.restype = ctypes.c_void_p
    return library


def chain(calls: int) -> str:
    """Return a chain of operators that alternates between two storages."""
    attrs = {"func_name": "add_one", "num_inputs": "1", "num_outputs": "1", "flatten_data": "0"}
    nodes: list[dict[str, object]] = [{"op": "null", "name": "x", "inputs": []}]
    nodes += [{"op": "tvm_op", "name": f"n{i}", "attrs": attrs, "inputs": [[i, 0, 0]]} for i in range(calls)]
    count = len(nodes)
    entries = {
        "dltype": ["list_str", ["float32"] * count],
        "shape": ["list_shape", [[1]] * count],
        "storage_id": ["list_int", [i % 2 for i in range(count)]],
    }
    return json.dumps(
        {
            "nodes": nodes,
            "arg_nodes": [0],
            "heads": [[calls, 0, 0]],
            "attrs": entries,
            "node_row_ptr": [*range(count + 1)],
        }
    )


def nanoseconds(run: Callable[[], int]) -> float:
    """Return the best time of several runs, per call."""
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        if run() != 0:
            raise RuntimeError("the graph did not run")
        best = min(best, time.perf_counter() - start)
    return best / STEPS * 1e9
