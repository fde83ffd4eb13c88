"""Dense layers with packed weights compared with MatMulNBits, one thread: ``python -m benchmarks packed``.

ONNX Runtime computes in float32 (accuracy_level 0). Times are the thread's CPU time, interleaved in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from rich.table import Table

import mlfc
from benchmarks.recurrent import TARGETS, interleaved


@dataclass(frozen=True)
class Layer:
    """Rows of data, and weights of `bits` with a scale for each block of 32 of a unit's `inner` weights."""

    bits: int
    rows: int
    inner: int
    units: int

    def model(self) -> bytes:
        """Return the layer as an ONNX model."""
        rng = np.random.default_rng(self.bits)
        blocks = self.inner // 32
        weights = rng.integers(0, 256, (self.units, blocks, 4 * self.bits), dtype=np.uint8)
        scales = rng.uniform(0.01, 0.1, self.units * blocks).astype(np.float32)
        node = helper.make_node(
            "MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", K=self.inner, N=self.units, bits=self.bits,
            block_size=32,
        )  # fmt: skip
        values = (("x", self.inner), ("y", self.units))
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [self.rows, last]) for name, last in values)
        constants = [numpy_helper.from_array(weights, "b"), numpy_helper.from_array(scales, "s")]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph([node], "layer", [x], [y], constants)
        made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return bytes(made.SerializeToString())


LAYERS = [
    Layer(bits, rows, inner, units)
    for bits in (4, 8, 2)
    for rows in (1, 32)
    for inner, units in ((1024, 1024), (2048, 8192))
]


def _runners(layer: Layer) -> tuple[dict[str, Callable[[], object]], int]:
    """Return runners for both printers and ONNX Runtime, bound to fixed arrays, and the bytes of the constants."""
    data = layer.model()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    inputs = {"x": np.random.default_rng(1).standard_normal((layer.rows, layer.inner)).astype(np.float32)}
    binding = session.io_binding()
    binding.bind_cpu_input("x", inputs["x"])
    binding.bind_output("y")
    found: dict[str, Callable[[], object]] = {"onnxruntime": lambda: session.run_with_iobinding(binding)}
    for target in TARGETS:
        model = mlfc.compile(data, target, module_name="layer")
        outputs = {name: np.empty_like(value) for name, value in model.run(inputs).items()}
        found[target] = model.bind(inputs, outputs)
        constants = sum(value.nbytes for value in model.factory.unit.program.constants)
    return found, constants


def table(seconds: float) -> Table:
    """Return the table of all layers."""
    result = Table(
        title="Packed weights, a scale for 32: median of the thread's microseconds, and the ratio to ONNX Runtime's"
    )
    columns = ("bits", "rows", "inner", "units", "constants", "of float32", "ONNX Runtime", "C", "ratio", "LLVM")
    for name in (*columns, "ratio "):
        result.add_column(name, justify="right")
    for layer in LAYERS:
        found, constants = _runners(layer)
        times = interleaved(found, seconds)
        peer = times["onnxruntime"]
        ours = [entry for target in TARGETS for entry in (f"{times[target] * 1e6:,.0f}", f"{times[target] / peer:.2f}")]
        share = constants / (4 * layer.inner * layer.units)
        sizes = (str(layer.bits), str(layer.rows), str(layer.inner), str(layer.units))
        result.add_row(*sizes, f"{constants:,}", f"{share:.0%}", f"{peer * 1e6:,.0f}", *ours)
    return result
