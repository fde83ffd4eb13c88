"""Single float32 and float16 operators compared with ONNX Runtime: softmax, norms, reductions, pools and more.

One thread, interleaved.

Inputs are NCHW as in ONNX, so windowed operators include two layout changes, which whole models need only at their
ends. The column without them is the operator's own time relative to all of ONNX Runtime's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper
from rich.table import Table

import mlfc
from benchmarks.llvm import paired
from mlfc.archive.describe.profile import profiled_factory

TARGET = "c -mcpu=native"
_OPSET = 18
_LAYOUT = re.compile(r"_fused_transpose(_\d+)?$")


@dataclass(frozen=True)
class _Case:
    """An operator on an input `x`, with its attributes and the shapes or values of its other inputs."""

    name: str
    shape: tuple[int, ...]
    attributes: Mapping[str, Any]
    weights: Sequence[tuple[int, ...]] = ()
    axes: tuple[int, ...] | None = None


def _pool(name: str, shape: tuple[int, ...], kernel: int, stride: int, pad: int) -> _Case:
    return _Case(name, shape, {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4})


def _turned(shape: tuple[int, ...], filters: int, kernel: int, stride: int, pad: int, more: int = 0) -> _Case:
    attributes = {"strides": [stride] * 2, "pads": [pad] * 4, "output_padding": [more] * 2}
    return _Case("ConvTranspose", shape, attributes, [(shape[1], filters, kernel, kernel)])


CASES = (
    _Case("Exp", (64, 1000), {}),
    _Case("Erf", (64, 1000), {}),
    _Case("Softmax", (512, 1000), {"axis": -1}),
    _Case("Softmax", (4096, 7), {"axis": -1}),
    _Case("Softmax", (8, 128, 64), {"axis": 1}),
    _Case("Softmax", (1, 64, 56, 56), {"axis": 1}),
    _Case("LogSoftmax", (1, 21, 64, 64), {"axis": 1}),
    _Case("LayerNormalization", (128, 768), {"axis": -1}, [(768,), (768,)]),
    _Case("InstanceNormalization", (1, 32, 56, 56), {}, [(32,), (32,)]),
    _Case("ReduceMax", (1000, 1000), {"keepdims": 0}, axes=(1,)),
    _Case("ReduceMax", (1, 256, 32, 32), {"keepdims": 0}, axes=(1,)),
    _Case("ReduceSum", (64, 4096), {"keepdims": 0}, axes=(1,)),
    _Case("ReduceSum", (4096, 64), {"keepdims": 0}, axes=(0,)),
    _Case("ReduceMean", (1000, 1000), {"keepdims": 0}, axes=(0, 1)),
    _pool("MaxPool", (1, 64, 112, 112), 3, 2, 1),
    _pool("MaxPool", (1, 128, 56, 56), 2, 2, 0),
    _pool("AveragePool", (1, 128, 28, 28), 3, 1, 1),
    _Case("GlobalAveragePool", (1, 512, 7, 7), {}),
    _turned((1, 64, 16, 16), 32, 4, 2, 1),
    _turned((1, 64, 32, 32), 64, 3, 1, 1),
    _turned((1, 128, 28, 28), 64, 2, 2, 0),
    _turned((1, 32, 32, 32), 3, 3, 2, 1, 1),
)


HALF_CASES = (
    _Case("Conv", (1, 32, 28, 28), {"pads": [1] * 4}, [(32, 32, 3, 3)]),
    _Case("Conv", (1, 64, 56, 56), {}, [(64, 64, 1, 1)]),
    _Case("Conv", (1, 64, 56, 56), {"pads": [1] * 4, "group": 64}, [(64, 1, 3, 3)]),
    _turned((1, 16, 32, 32), 16, 4, 2, 1),
    _Case("MatMul", (1, 64), {}, [(64, 1000)]),
    _Case("MatMul", (1, 512), {}, [(512, 4096)]),
    _Case("MatMul", (16, 512), {}, [(512, 512)]),
    _Case("LayerNormalization", (64, 256), {"axis": -1}, [(256,), (256,)]),
    _pool("MaxPool", (1, 32, 56, 56), 3, 2, 1),
)


def table(seconds: float, cases: Sequence[_Case] = CASES, dtype: str = "float32") -> Table:
    """Return the table of all operators; times in microseconds."""
    result = Table(title=f"{dtype} operators, {TARGET}, one thread, beside ONNX Runtime (median, us)")
    for name in ("operator", "input", "attributes", "mlfc", "ONNX Runtime", "ratio", "without layouts"):
        result.add_column(name, justify="left" if name in ("operator", "input", "attributes") else "right")
    for case in cases:
        ours, theirs, ratio, own = _measured(case, seconds, np.dtype(dtype))
        shown = " ".join(f"{name}={_shown(value)}" for name, value in case.attributes.items() if np.any(value))
        shown += f" axes={list(case.axes)}" if case.axes else ""
        shown += f" weights={'x'.join(map(str, case.weights[0]))}" if case.weights else ""
        figures = (f"{ours:,.1f}", f"{theirs:,.1f}", f"{ratio:.2f}", f"{own:.2f}")
        result.add_row(case.name, "x".join(map(str, case.shape)), shown.strip(), *figures)
    return result


def _shown(value: Any) -> str:
    return str(value[0]) if isinstance(value, list) else str(value)


def _measured(case: _Case, seconds: float, dtype: Any) -> tuple[float, float, float, float]:
    """Return both times in microseconds, the median ratio, and the ratio of mlfc's kernel without layout changes."""
    model = _model(case, dtype)
    x = np.random.default_rng(1).standard_normal(case.shape).astype(dtype)
    compiled = mlfc.compile(model, TARGET, parallel=False)
    outputs = {info.name: np.empty(info.shape, info.dtype) for info in compiled.outputs}
    (ours, theirs), ratio = paired([compiled.bind({"x": x}, outputs), _theirs(model, x)], seconds)
    return ours * 1e6, theirs * 1e6, ratio, ratio * _own_share(compiled, x)


def _own_share(compiled: mlfc.CompiledModel, x: Any) -> float:
    """Return the operator's share of the time, without layout changes."""
    operators = profiled_factory(compiled.factory).profile({"x": x}, 30).operators
    return sum(item.share for item in operators if not _LAYOUT.search(item.function))


def _theirs(model: Any, x: Any) -> Callable[[], object]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    return lambda: session.run_with_iobinding(binding)


def _model(case: _Case, dtype: Any) -> Any:
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(dtype), f"w{index}")
        for index, shape in enumerate(case.weights)
    ]
    if case.axes is not None:
        weights.append(numpy_helper.from_array(np.array(case.axes), "axes"))
    node = helper.make_node(case.name, ["x", *(item.name for item in weights)], ["y"], **case.attributes)
    code = helper.np_dtype_to_tensor_dtype(dtype)
    given = helper.make_tensor_value_info("x", code, case.shape)
    made = helper.make_tensor_value_info("y", code, None)
    graph = helper.make_graph([node], case.name, [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)
