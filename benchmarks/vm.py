"""The overhead of dynamic models: per call from Python, kernel, iteration, and tensor appended to a list."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.table import Table

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.relay import ir
from mlfc.relay.ir import Function, IRModule, Tuple, Var
from mlfc.support.dims import LARGEST, Symbol
from tests.vm_control import collecting, swapping

KERNELS = 64
ITERATIONS = 10_000
_RUNS = 5
_SECONDS = 0.05


def table() -> Table:
    """Return nanoseconds, in C and by LLVM."""
    result = Table(title="Dynamic models: nanoseconds")
    targets = {"C": "c", "LLVM": "llvm"}
    for name in ("", *targets):
        result.add_column(name, justify="right" if name else "left")
    for row, measure in _ROWS.items():
        result.add_row(row, *(f"{measure(target):,.0f}" for target in targets.values()))
    return result


def chain(length: int, high: int | None) -> IRModule:
    """Return a model with a chain of `length` tiny kernels; with static shapes if `high` is None."""
    rows = 1 if high is None else Symbol("rows", 1, high).dim
    x = Var("x", ir.TensorType((rows, 2), "float32"))
    value: ir.Expr = x
    for _ in range(length):
        value = ir.call("nn.softmax", [value], axis=-1)
    return IRModule({"main": Function((x,), Tuple((value,)))}, ("y",))


def _model(module: IRModule, target: str) -> Any:
    return load_factory(mlfc.build(module, target, {}))


def _nanoseconds(call: Callable[[], object]) -> float:
    """Return the best of several measurements in CPU time of the thread, which excludes other work."""
    best = float("inf")
    for _ in range(_RUNS):
        count, start, passed = 0, time.thread_time(), 0.0
        while passed < _SECONDS:
            call()
            count, passed = count + 1, time.thread_time() - start
        best = min(best, passed / count)
    return best * 1e9


def _of_call(target: str) -> float:
    model, x = _model(chain(1, 8), target), np.ones((1, 2), np.float32)
    return _nanoseconds(lambda: model.run(x))


def _of_bound_call(target: str) -> float:
    model = _model(chain(1, 8), target)
    return _nanoseconds(model.bind([np.ones((1, 2), np.float32)], [np.empty((1, 2), np.float32)]))


def _of_kernel(high: int | None) -> Callable[[str], float]:
    """Return a function that measures the additional time per kernel, including its computation."""

    def measured(target: str) -> float:
        x, y = np.ones((1, 2), np.float32), np.empty((1, 2), np.float32)
        short, long = (
            _nanoseconds(_model(chain(length, high), target).bind({"x": x}, {"y": y})) for length in (1, KERNELS + 1)
        )
        return (long - short) / KERNELS

    return measured


def _of_iteration(target: str) -> float:
    """Measure a loop of three kernels whose carried values are swapped."""
    call = _model(swapping(), target).bind([np.int64(ITERATIONS)])
    return _nanoseconds(call) / ITERATIONS


def _of_item(target: str) -> float:
    """Measure a loop that appends 2 x 2 tensors to a list, and the final copy of all."""
    call = _model(collecting(), target).bind([np.int64(1000), np.ones((2, 2), np.float32)])
    return _nanoseconds(call) / 1000


_ROWS: dict[str, Callable[[str], float]] = {
    "call of `run`, with one kernel": _of_call,
    "call that is bound, with one kernel": _of_bound_call,
    "kernel of a static model": _of_kernel(None),
    "kernel of a model with bounds": _of_kernel(8),
    "kernel of a model without bounds": _of_kernel(LARGEST),
    "iteration with three kernels": _of_iteration,
    "iteration that extends a list": _of_item,
}
