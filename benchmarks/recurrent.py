"""Recurrent layers compared with ONNX Runtime, one thread, interleaved: ``python -m benchmarks recurrent``.

Times are the thread's CPU time, which other work on the machine disturbs less.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from rich.table import Table

import mlfc
from tests.recurrent_models import layer

TARGETS = ("c -mcpu=native", "llvm -mcpu=native")


@dataclass(frozen=True)
class Size:
    """A layer: steps, batch, input size and units."""

    operator: str
    steps: int
    batch: int
    size: int
    units: int
    direction: str = "forward"

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[self.operator] * (1 + (self.direction == "bidirectional"))
        return self.steps * self.batch * gates * self.units * (self.size + self.units)


SIZES = [
    Size(operator, *numbers)
    for operator in ("LSTM", "GRU")
    for numbers in (
        (10, 1, 16, 16), (50, 1, 64, 64), (100, 1, 128, 128), (50, 1, 256, 256), (20, 1, 512, 512), (1, 1, 128, 128),
        (50, 8, 128, 128), (20, 32, 256, 256),
    )
] + [Size("LSTM", 50, 1, 128, 128, "bidirectional"), Size("GRU", 50, 1, 128, 128, "bidirectional")]  # fmt: skip


def interleaved(runners: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return the median CPU seconds of each runner; runs alternate."""
    times: dict[str, list[float]] = {name: [] for name in runners}
    start = time.thread_time()
    for run in runners.values():
        run()
    batch = max(1, int(200e-6 * len(runners) / max(time.thread_time() - start, 1e-6)))
    end = time.thread_time() + seconds
    while time.thread_time() < end or len(times[next(iter(times))]) < 15:
        for name, run in runners.items():
            start = time.thread_time()
            for _ in range(batch):
                run()
            times[name].append((time.thread_time() - start) / batch)
    return {name: statistics.median(values) for name, values in times.items()}


def runners(size: Size) -> dict[str, Callable[[], object]]:
    """Return runners for both printers and ONNX Runtime, bound to fixed arrays."""
    item = layer(
        size.operator, sizes=(size.steps, size.batch, size.size, size.units), direction=size.direction, bare=True,
        outputs=("all", "hidden"),
    )  # fmt: skip
    data = item.model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, value in item.inputs.items():
        binding.bind_cpu_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    found: dict[str, Callable[[], object]] = {"onnxruntime": lambda: session.run_with_iobinding(binding)}
    for target in TARGETS:
        model: Any = mlfc.compile(data, target, module_name="layer")
        outputs = {name: np.empty_like(value) for name, value in model.run(item.inputs).items()}
        found[target] = model.bind(item.inputs, outputs)
    return found


def table(seconds: float) -> Table:
    """Return the table of all layers."""
    result = Table(
        title="Recurrent layers, float32: median of the thread's microseconds, and the ratio to ONNX Runtime's"
    )
    for name in ("layer", "steps", "batch", "input", "units", "M MAC", "ONNX Runtime", "C", "ratio", "LLVM", "ratio "):
        result.add_column(name, justify="left" if name == "layer" else "right")
    for size in SIZES:
        times = interleaved(runners(size), seconds)
        peer = times["onnxruntime"]
        ours = [entry for target in TARGETS for entry in (f"{times[target] * 1e6:,.1f}", f"{times[target] / peer:.2f}")]
        name = size.operator + (", both directions" if size.direction == "bidirectional" else "")
        numbers = (size.steps, size.batch, size.size, size.units)
        result.add_row(name, *map(str, numbers), f"{size.macs / 1e6:,.2f}", f"{peer * 1e6:,.1f}", *ours)
    return result
