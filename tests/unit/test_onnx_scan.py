"""Scan of ONNX, unrolled into operators for each iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mlfc
from mlfc.errors import MlfcError
from tests.ml_models import compare

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
STATE, ROWS, COLUMNS = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3,), (4, 3), (3, 4)))


def scan(attrs: dict[str, Any] | None = None, rows: tuple[int, ...] = ROWS.shape, body: Any = None) -> onnx.ModelProto:
    """Return a model that carries a sum of rows and columns, and lists its squares and previous states."""
    names = ["state", "row", "column"]
    parts = [
        helper.make_node("Add", ["state", "row"], ["sum"]),
        helper.make_node("Sub", ["sum", "column"], ["next"]),
        helper.make_node("Mul", ["next", "next"], ["square"]),
        helper.make_node("Identity", ["state"], ["was"]),
    ]
    own = body or helper.make_graph(
        parts, "turn", [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in names],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("next", "square", "was")],
    )  # fmt: skip
    given = {"num_scan_inputs": 2, "scan_input_axes": [0, 1], **(attrs or {})}
    node = helper.make_node("Scan", ["s", "r", "c"], ["last", "squares", "states"], name="scan", body=own, **given)
    shapes = {"s": (3,), "r": rows, "c": COLUMNS.shape}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"scan_input_directions": [1, 0], "scan_output_directions": [0, 1]},
        {"scan_input_axes": [-2, -1], "scan_output_axes": [1, -1]},
    ],
)
def test_turns_equal_onnx_runtime(attrs: dict[str, Any]) -> None:
    compare(scan(attrs), {"s": STATE, "r": ROWS, "c": COLUMNS})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (scan(rows=(5, 3)), r"the scanned inputs differ in length: \[4, 5\]"),
        (scan({"num_scan_inputs": 4}), "4 of them scanned"),
        (scan({"scan_input_axes": [0]}), "scan_input_axes has 1 entries, expected 2"),
        (scan({"scan_input_axes": [0, 2]}), "axis 2 is outside"),
        (scan({"scan_output_axes": [0, 3]}), "axis 3 is outside"),
        (scan(body=helper.make_graph([], "turn", [], [])), "does not fit 1 states"),
    ],
)
def test_scans_that_contradict_themselves_are_refused(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(MlfcError, match=message):
        mlfc.import_model(model)


def test_declared_turns_cost_nothing() -> None:
    turns = 1 << 28
    model = scan(rows=(turns, 3))
    model.graph.input[2].type.tensor_type.shape.dim[1].dim_value = turns
    with pytest.raises(MlfcError, match="operators"):
        mlfc.import_model(model)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances_between_rows_equal_onnx_runtime(metric: str) -> None:
    node = helper.make_node("CDist", ["a", "b"], ["y"], domain="com.microsoft", metric=metric)
    inputs = {"a": ROWS, "b": RNG.standard_normal((6, 3)).astype(np.float32)}
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, data.shape) for name, data in inputs.items()]
    graph = helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    compare(helper.make_model(graph, opset_imports=opsets, ir_version=8), inputs, rtol=1e-4)
