"""Tensors without elements: dynamic dimensions of size 0, static ones, and constants, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

import mlfc

Array = npt.NDArray[Any]
FLOAT, INT8, INT64 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT64
RNG = np.random.default_rng(31)

CONSTANTS: dict[str, Array] = {
    "zero": np.array([0]), "one": np.array([1]), "minus": np.array([-1]), "far": np.array([1 << 60]),
    "flat": np.array([-1, 3]), "pads": np.array([1, 0, 2, 0]), "twice": np.array([2, 1]), "row": np.array(0),
    "weight": RNG.normal(size=(3, 7)).astype(np.float32), "bias": RNG.normal(size=7).astype(np.float32),
    "scales": RNG.normal(size=3).astype(np.float32), "kernel": RNG.normal(size=(4, 3, 3, 3)).astype(np.float32),
    "table": RNG.normal(size=(5, 3)).astype(np.float32), "none": np.zeros((0, 3), np.float32),
    "nowhere": np.zeros(0, np.int64), "scale": np.float32(0.1), "code": np.int8(0), "depth": np.array(4),
    "off_on": np.array([0, 1], np.float32), "W": RNG.normal(size=(1, 16, 3)).astype(np.float32),
    "R": RNG.normal(size=(1, 16, 4)).astype(np.float32), "features": RNG.normal(size=(4, 2, 6, 6)).astype(np.float32),
    "image_size": np.array([4, 4]), "block": np.array([2, 2]), "kernel_row": np.ones((1, 3, 1), np.float32),
}  # fmt: skip
# Operator and index of its output (0 by default), inputs, attributes. `x` is (n, 3), `k` is (2, m), `l` is (m, 4), `i`
# is (n), `image` is (n, 3, 8, 8).
NODES: Sequence[tuple[str, Sequence[str], dict[str, Any]]] = [
    ("ReduceSum", ["x", "axis"], {}), ("Squeeze", ["kernel_row", "nowhere"], {}),
    ("Relu", ["x"], {}), ("Softmax", ["x"], {"axis": 0}), ("Softmax", ["k"], {}), ("LogSoftmax", ["k"], {}),
    ("Hardmax", ["k"], {}), ("ReduceSum", ["k", "one"], {}), ("ReduceMean", ["k", "one"], {}),
    ("ReduceProd", ["k", "one"], {}), ("ReduceMax", ["x", "one"], {}), ("ReduceL2", ["k", "one"], {"keepdims": 0}),
    ("MatMul", ["x", "weight"], {}), ("MatMul", ["k", "l"], {}), ("Gemm", ["x", "weight", "bias"], {}),
    ("Einsum", ["k", "l"], {"equation": "ab,bc->ac"}), ("Add", ["x", "scales"], {}),
    ("Conv", ["image", "kernel"], {"pads": [1, 1, 1, 1]}), ("MaxPool", ["image"], {"kernel_shape": [3, 3]}),
    ("AveragePool", ["image"], {"kernel_shape": [3, 3]}), ("GlobalAveragePool", ["image"], {}),
    ("Reshape", ["x", "flat"], {}), ("Flatten", ["image"], {}), ("Transpose", ["x"], {}),
    ("Concat", ["x", "table"], {"axis": 0}), ("Concat", ["x", "none"], {"axis": 0}),
    ("Gather", ["table", "i"], {}), ("Gather", ["table", "nowhere"], {}), ("Slice", ["x", "one", "far"], {}),
    ("Slice", ["x", "minus", "far"], {}), ("Pad", ["x", "pads"], {}), ("Tile", ["x", "twice"], {}),
    ("CumSum", ["k", "one"], {}), ("LayerNormalization", ["x", "scales"], {}), ("NonZero", ["x"], {}),
    ("OneHot", ["i", "depth", "off_on"], {}), ("QuantizeLinear", ["x", "scale", "code"], {}),
    ("ScatterElements", ["table", "places", "x"], {}), ("Trilu", ["k"], {}), ("Size", ["x"], {}),
    ("LSTM", ["steps", "W", "R"], {"hidden_size": 4}), ("LSTM:1", ["steps", "W", "R"], {"hidden_size": 4}),
    ("RoiAlign", ["features", "boxes", "i"], {"output_height": 2}), ("Unique", ["x"], {}),
    ("Unique", ["x"], {"sorted": 0}), ("Col2Im", ["columns", "image_size", "block"], {}),
]  # fmt: skip


def _model(shapes: Mapping[str, Sequence[Any]], values: Mapping[str, Array] | None = None) -> onnx.ModelProto:
    kinds = {"i": INT64, "places": INT64, "axis": INT64}
    nodes = []
    for index, (name, inputs, attrs) in enumerate(NODES):
        operator, _, place = name.partition(":")
        nodes.append(helper.make_node(operator, inputs, [*[""] * int(place or 0), f"y{index}"], **attrs))
    inputs = [helper.make_tensor_value_info(name, kinds.get(name, FLOAT), shape) for name, shape in shapes.items()]
    outputs = [onnx.ValueInfoProto(name=f"y{index}") for index in range(len(nodes))]
    constants = [numpy_helper.from_array(value, name) for name, value in {**CONSTANTS, **(values or {})}.items()]
    graph = helper.make_graph(nodes, "g", [] if values else inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    known = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.output}
    for output in graph.output:
        output.type.CopyFrom(known[output.name].type)
    model.graph.CopyFrom(graph)
    return model


def _inputs(n: int, m: int) -> dict[str, Array]:
    shapes = {
        "x": (n, 3), "k": (2, m), "l": (m, 4), "image": (n, 3, 8, 8), "steps": (m, 2, 3), "columns": (n, 8, 9),
    }  # fmt: skip
    floats = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {**floats, "i": np.arange(n) % 4, "places": np.tile(np.arange(n)[:, None] % 5, 3),
            "boxes": np.tile(np.float32([1, 0, 4, 5]), (n, 1)), "axis": np.zeros(1, np.int64)}  # fmt: skip


DYNAMIC = {"x": ["n", 3], "k": [2, "m"], "l": ["m", 4], "image": ["n", 3, 8, 8], "i": ["n"], "places": ["n", 3],
           "steps": ["m", 2, 3], "boxes": ["n", 4], "axis": [1], "columns": ["n", 8, 9]}  # fmt: skip


def _compare(found: Mapping[str, Array], wanted: Sequence[Array]) -> None:
    for index, (array, other) in enumerate(zip(found.values(), wanted, strict=True)):
        assert (array.shape, array.dtype) == (other.shape, other.dtype), NODES[index]
        if NODES[index][0] == "LSTM:1" and not wanted[index - 1].size:
            other = np.zeros_like(other)  # noqa: PLW2901  (without steps, ONNX Runtime does not write it)
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5, err_msg=str(NODES[index]))


def test_dimensions_of_size_0_are_those_of_onnx_runtime() -> None:
    model = _model(DYNAMIC)
    compiled, session = mlfc.compile(model, "llvm"), InferenceSession(model.SerializeToString())
    for n, m in ((0, 0), (2, 0), (0, 3), (2, 3)):
        inputs = _inputs(n, m)
        _compare(compiled.run(inputs), session.run(None, inputs))


@pytest.mark.parametrize("is_constant", [False, True])
def test_static_tensors_without_elements_are_those_of_onnx_runtime(is_constant: bool) -> None:
    inputs = _inputs(0, 0)
    model = _model({name: array.shape for name, array in inputs.items()}, inputs if is_constant else None)
    given = {} if is_constant else inputs
    _compare(mlfc.compile(model, "llvm").run(given), InferenceSession(model.SerializeToString()).run(None, given))
