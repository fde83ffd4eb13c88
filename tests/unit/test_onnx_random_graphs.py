"""Random graphs of image operators: compiled C against ONNX Runtime."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

import mlfc
from tests.harness import assert_close, compiled
from tests.onnx_models import model

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

UNARY = ("Relu", "Sigmoid", "Tanh", "HardSwish", "Elu", "Softplus", "Mish", "Abs", "Neg", "Erf", "LeakyRelu")


@dataclass
class Graph:
    """A graph under construction: the shapes of all tensors so far."""

    draw: Any
    shapes: dict[str, Shape]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)

    def weight(self, *shape: int) -> str:
        """Add seeded weights, small enough that values stay close to one."""
        rng = np.random.default_rng(len(self.weights))
        name = f"w{len(self.weights)}"
        scale = 1.0 / np.sqrt(max(1, np.prod(shape[1:])))
        self.weights[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
        return name

    def numbers(self, *values: int) -> str:
        """Add a list of integers."""
        name = f"w{len(self.weights)}"
        self.weights[name] = np.array(values, np.int64)
        return name

    def add(self, operator: str, inputs: list[str], shape: Shape, **attributes: Any) -> None:
        """Add a node with the expected shape, which ONNX Runtime confirms."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        self.shapes[name] = shape

    def pick(self, low: int, high: int) -> int:
        """Draw an integer."""
        return int(self.draw(st.integers(low, high)))


def _unary(graph: Graph, name: str) -> None:
    graph.add(graph.draw(st.sampled_from(UNARY)), [name], graph.shapes[name])


def _binary(graph: Graph, name: str) -> None:
    shape = graph.shapes[name]
    same = [other for other, size in graph.shapes.items() if size == shape]
    other = graph.draw(st.sampled_from([*same, None])) or graph.weight(*shape[1:2], *(1,) * (len(shape) - 2))
    graph.add(graph.draw(st.sampled_from(("Add", "Mul", "Sub", "Max", "Min"))), [name, other], shape)


def _conv(graph: Graph, name: str) -> None:
    batch, channels, height, width = graph.shapes[name]
    kernel = [graph.pick(1, min(3, height)), graph.pick(1, min(3, width))]
    strides, pads = [graph.pick(1, 2), graph.pick(1, 2)], [graph.pick(0, size // 2) for size in kernel * 2]
    group = graph.draw(st.sampled_from([1, channels]))
    filters = group * graph.pick(1, 3)
    out = [
        (size + pads[axis] + pads[axis + 2] - kernel[axis]) // strides[axis] + 1
        for axis, size in enumerate((height, width))
    ]
    inputs = [name, graph.weight(filters, channels // group, *kernel)]
    if graph.draw(st.booleans()):
        inputs.append(graph.weight(filters))
    graph.add("Conv", inputs, (batch, filters, *out), group=group, kernel_shape=kernel, strides=strides, pads=pads)


def _pool(graph: Graph, name: str) -> None:
    batch, channels, height, width = graph.shapes[name]
    kernel = [graph.pick(1, min(3, height)), graph.pick(1, min(3, width))]
    strides, ceil = [graph.pick(1, 2), graph.pick(1, 2)], graph.pick(0, 1)
    out = [
        (size - taps + (stride - 1) * ceil) // stride + 1
        for size, taps, stride in zip((height, width), kernel, strides, strict=True)
    ]
    operator = graph.draw(st.sampled_from(("MaxPool", "AveragePool")))
    shape = (batch, channels, *out)
    graph.add(operator, [name], shape, kernel_shape=kernel, strides=strides, ceil_mode=ceil)


def _concat(graph: Graph, name: str) -> None:
    shape = graph.shapes[name]
    fitting = [other for other, size in graph.shapes.items() if (size[0], *size[2:]) == (shape[0], *shape[2:])]
    other = graph.draw(st.sampled_from(fitting))
    graph.add("Concat", [name, other], (shape[0], shape[1] + graph.shapes[other][1], *shape[2:]), axis=1)


def _transpose(graph: Graph, name: str) -> None:
    order = graph.draw(st.permutations(range(len(graph.shapes[name]))))
    graph.add("Transpose", [name], tuple(graph.shapes[name][axis] for axis in order), perm=list(order))


def _slice(graph: Graph, name: str) -> None:
    shape = graph.shapes[name]
    axis = graph.pick(0, len(shape) - 1)
    positions = range(shape[axis])
    step = graph.draw(st.sampled_from((1, 2, -1)))
    start, end = (graph.pick(0, shape[axis] - 1), shape[axis]) if step > 0 else (shape[axis] - 1, -shape[axis] - 1)
    count = len(positions[start:end:step])
    inputs = [name, *(graph.numbers(value) for value in (start, end, axis, step))]
    graph.add("Slice", inputs, (*shape[:axis], count, *shape[axis + 1 :]))


def _softmax(graph: Graph, name: str) -> None:
    axis = graph.pick(0, len(graph.shapes[name]) - 1)
    graph.add("Softmax", [name], graph.shapes[name], axis=axis)


def _reduce(graph: Graph, name: str) -> None:
    shape = graph.shapes[name]
    axis = graph.pick(0, len(shape) - 1)
    operator = graph.draw(st.sampled_from(("ReduceMean", "ReduceMax", "ReduceL2")))
    graph.add(operator, [name], (*shape[:axis], 1, *shape[axis + 1 :]), axes=[axis], keepdims=1)


def _matmul(graph: Graph, name: str) -> None:
    shape, columns = graph.shapes[name], graph.pick(1, 5)
    graph.add("MatMul", [name, graph.weight(shape[-1], columns)], (*shape[:-1], columns))


def _normalize(graph: Graph, name: str) -> None:
    shape = graph.shapes[name]
    graph.add("LayerNormalization", [name, graph.weight(shape[-1]), graph.weight(shape[-1])], shape, epsilon=0.1)


def _normalize_images(graph: Graph, name: str) -> None:
    channels = graph.shapes[name][1]
    inputs = [name, graph.weight(channels), graph.weight(channels)]
    graph.add("InstanceNormalization", inputs, graph.shapes[name], epsilon=0.1)


STEPS = (
    _unary, _binary, _conv, _pool, _concat, _transpose, _slice, _softmax, _reduce, _matmul, _normalize,
    _normalize_images,
)  # fmt: skip


@st.composite
def graphs(draw: Any) -> Graph:
    """Draw a graph of one to ten nodes over one image."""
    shape = tuple(draw(st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 7), st.integers(1, 7))))
    graph = Graph(draw, {"x": shape})
    for _ in range(draw(st.integers(1, 10))):
        # mostly the latest tensor, so that graphs are deep
        recent = list(graph.shapes)[-2:]
        draw(st.sampled_from(STEPS))(graph, draw(st.sampled_from(recent)))
    return graph


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graph=graphs())
def test_random_graphs_agree_with_onnx_runtime(graph: Graph) -> None:
    # unused tensors; others may be fused away
    read = {name for node in graph.nodes for name in node.input}
    outputs = [name for name in graph.shapes if name not in read]
    proto = model(graph.nodes, {"x": graph.shapes["x"]}, [], graph.weights)
    for name in outputs:
        proto.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, graph.shapes[name]))
    data = proto.SerializeToString()
    x = np.random.default_rng(3).standard_normal(graph.shapes["x"]).astype(np.float32)
    expected = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(outputs, {"x": x})
    module, params = mlfc.import_model(data)
    with tempfile.TemporaryDirectory() as folder:
        found = compiled(module, params, Path(folder)).run({"x": x})
    for name, reference in zip(outputs, expected, strict=True):
        assert_close(found[name], reference, 2e-5, name)
