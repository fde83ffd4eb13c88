"""Attention compared with ONNX Runtime, one thread, interleaved in one process: ``python -m benchmarks attention``.

Times are the thread's CPU time, which other work on the machine disturbs less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from rich.table import Table

import mlfc
from benchmarks.recurrent import interleaved
from mlfc.library.peaks import machine_peaks

TARGETS = ("c -mcpu=native", "llvm -mcpu=native")


@dataclass(frozen=True)
class Size:
    """An attention: its name, numbers of query and key heads, lengths of queries and keys, and head size."""

    name: str
    heads: int
    groups: int
    queries: int
    keys: int
    size: int
    causal: bool = False

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all scores that are not masked."""
        scores = self.queries * self.keys if not self.causal else self.queries * (self.queries + 1) // 2
        return 2 * self.heads * scores * self.size

    def model(self) -> onnx.ModelProto:
        """Return the model: ONNX's operator on tensors that are separated by head."""
        shapes = {
            "q": (1, self.heads, self.queries, self.size),
            "k": (1, self.groups, self.keys, self.size),
            "v": (1, self.groups, self.keys, self.size),
        }
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes["q"])
        node = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="n", is_causal=int(self.causal))
        graph = helper.make_graph([node], "attention", inputs, [output])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


SIZES = [
    Size("prompt", 12, 12, 128, 128, 64),
    Size("prompt", 12, 12, 512, 512, 64),
    Size("prompt", 12, 12, 1024, 1024, 64),
    Size("prompt, causal", 12, 12, 512, 512, 64, causal=True),
    Size("prompt, groups", 12, 4, 512, 512, 64),
    Size("image", 12, 12, 197, 197, 64),
    Size("next token", 12, 12, 1, 512, 64),
    Size("next token", 12, 12, 1, 2048, 64),
    Size("next token, groups", 12, 4, 1, 2048, 64),
    Size("small", 4, 4, 64, 64, 16),
]


def runners(size: Size) -> tuple[dict[str, Callable[[], object]], dict[str, int]]:
    """Return runners for both printers and ONNX Runtime, bound to fixed arrays, and the bytes of mlfc's workspace."""
    model = size.model()
    rng = np.random.default_rng(0)
    inputs = {
        item.name: rng.standard_normal([dim.dim_value for dim in item.type.tensor_type.shape.dim]).astype(np.float32)
        for item in model.graph.input
    }
    data = model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("y")
    found: dict[str, Callable[[], object]] = {"onnxruntime": lambda: session.run_with_iobinding(binding)}
    memory = {}
    wanted = session.run(None, inputs)[0]
    for target in TARGETS:
        model_of: Any = mlfc.compile(data, target, module_name="attention")
        result = model_of.run(inputs)
        np.testing.assert_allclose(*result.values(), wanted, rtol=1e-4, atol=1e-5)
        outputs = {name: np.empty_like(value) for name, value in result.items()}
        found[target] = model_of.bind(inputs, outputs)
        memory[target] = model_of.factory.plan.size
    return found, memory


def table(seconds: float) -> Table:
    """Return the table of all sizes."""
    result = Table(title="Attention, float32: median of the thread's microseconds, and the ratio to ONNX Runtime's")
    columns = (
        "",
        "heads",
        "queries",
        "keys",
        "size",
        "M MAC",
        "ONNX Runtime",
        "C",
        "ratio",
        "LLVM",
        "ratio ",
        "of peak",
        "KiB",
        "scores, KiB",
    )
    for name in columns:
        result.add_column(name, justify="right" if name else "left")
    peak = machine_peaks().float32
    for size in SIZES:
        found, memory = runners(size)
        times = interleaved(found, seconds)
        peer = times["onnxruntime"]
        ours = [entry for target in TARGETS for entry in (f"{times[target] * 1e6:,.1f}", f"{times[target] / peer:.2f}")]
        best = min(times[target] for target in TARGETS)
        heads = f"{size.heads}/{size.groups}" if size.groups != size.heads else str(size.heads)
        result.add_row(
            size.name, heads, *map(str, (size.queries, size.keys, size.size)), f"{size.macs / 1e6:,.1f}",
            f"{peer * 1e6:,.1f}", *ours, f"{size.macs / best / peak:.2f}", f"{max(memory.values()) / 1024:,.0f}",
            f"{4 * size.heads * size.queries * size.keys / 1024:,.0f}",
        )  # fmt: skip
    return result
