"""Whole models with dynamic dimensions: their time relative to the same model with static shapes, and to ONNX Runtime.

All use one thread and fixed arrays. Their runs alternate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from rich.table import Table

import mlfc
from benchmarks.models import find
from benchmarks.recurrent import interleaved


@dataclass(frozen=True)
class Case:
    """A model of one input, and the shapes at which it is timed, with its dynamic dimensions by name."""

    name: str
    make: Callable[[], bytes]
    shapes: Sequence[tuple[tuple[int, ...], Mapping[str, int]]]
    tokens: int = 0  # if not 0, inputs are integers below it


def _resnet() -> bytes:
    """Return ResNet-50 with a dynamic batch."""
    model = onnx.load(find(["resnet50"])[0].path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]
    targets = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for tensor in model.graph.initializer:
        if tensor.name in targets:
            values = onnx.numpy_helper.to_array(tensor).copy()
            values[0] = 0  # 0 copies the input's size
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    data: bytes = model.SerializeToString()
    return data


def _exported(net: Any, example: Any, dims: Mapping[int, str]) -> bytes:
    import torch

    torch.manual_seed(0)
    named = {axis: torch.export.Dim(name, min=1, max=512) for axis, name in dims.items()}
    program = torch.onnx.export(
        net().eval(), (example,), dynamic_shapes=(named,) if named else None, dynamo=True, verbose=False
    )
    model = program.model_proto
    # the exporter declares the example's length after an LSTM, and ONNX Runtime enforces it
    del model.graph.value_info[:]
    for axis, name in dims.items():
        model.graph.output[0].type.tensor_type.shape.dim[axis].dim_param = name
    data: bytes = model.SerializeToString()
    return data


def encoder(layers: int = 4, length: int | None = None) -> bytes:
    """Return a transformer encoder of tokens, with a dynamic length or the given one."""
    import torch
    from torch import nn

    class Encoder(nn.Module):  # type: ignore[misc]  # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(1000, 256)
            layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0)
            self.layers = nn.TransformerEncoder(layer, layers)
            self.scores = nn.Linear(256, 10)

        def forward(self, tokens: Any) -> Any:
            return self.scores(self.layers(self.embedding(tokens)))

    return _exported(Encoder, torch.randint(0, 1000, (1, length or 9)), {} if length else {1: "length"})


def _lstm() -> bytes:
    import torch
    from torch import nn

    class Lstm(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(32, 64, batch_first=True, bidirectional=True)
            self.scores = nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            return self.scores(self.layer(x)[0])

    return _exported(Lstm, torch.randn(1, 7, 32), {1: "length"})


LENGTHS = (16, 100, 128)
CASES = (
    Case("LSTM of both directions, 32-64", _lstm, [((1, n, 32), {"length": n}) for n in LENGTHS]),
    Case("encoder, 4 layers of 256", encoder, [((1, n), {"length": n}) for n in LENGTHS], tokens=1000),
    Case("ResNet-50", _resnet, [((n, 3, 224, 224), {"batch": n}) for n in (1, 8)]),
)


def _peer(data: bytes, value: Any) -> Callable[[], object]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input(session.get_inputs()[0].name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)


def times(case: Case, seconds: float) -> Iterator[tuple[tuple[int, ...], dict[str, float]]]:
    """Yield (shape, seconds of each runner) for a model; mlfc's outputs are compared with each other."""
    data, rng = case.make(), np.random.default_rng(0)
    model = onnx.load_from_string(data)
    name = model.graph.input[0].name
    general: Any = mlfc.compile(data, module_name="general").model
    for shape, extents in case.shapes:
        value = rng.integers(0, case.tokens, shape) if case.tokens else rng.standard_normal(shape).astype(np.float32)
        static: Any = mlfc.compile(data, module_name="static", shapes={name: shape}).model
        static_call = static.bind({name: value})
        room = {output: np.empty_like(array) for output, array in static_call.outputs.items()}
        open_call = general.bind({name: value}, room)
        open_call(), static_call()
        (got,), (expected,) = open_call.outputs.values(), static_call.outputs.values()
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4, err_msg=f"{case.name} {extents}")
        runners = {"open": open_call, "static": static_call, "onnxruntime": _peer(data, value)}
        yield shape, interleaved(runners, seconds)


def table(seconds: float, cases: Sequence[Case] = CASES) -> Table:
    """Return the table of all models."""
    result = Table(title="Models of open dimensions: median of the thread's time")
    for name in ("model", "shape", "open, us", "over static", "over ONNX Runtime"):
        result.add_column(name, justify="left" if name == "model" else "right")
    for case in cases:
        for shape, found in times(case, seconds):
            ratios = (f"{found['open'] / found[other]:.2f}" for other in ("static", "onnxruntime"))
            result.add_row(case.name, " x ".join(map(str, shape)), f"{found['open'] * 1e6:,.0f}", *ratios)
    return result
