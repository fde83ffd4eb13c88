"""Operators with loops of their own take constants as data, though the result is too much to fold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import helper, numpy_helper

import mlfc
from mlfc.archive.read.load import load_factory

Array = npt.NDArray[Any]
# operator, attributes, shapes of the constant data and weights, shape of the result
CASES: dict[str, tuple[dict[str, Any], list[tuple[int, ...]], tuple[int, ...]]] = {
    "Gemm": ({}, [(1, 200), (200, 300)], (1, 300)),
    "MatMul": ({}, [(3, 20, 40), (3, 40, 30)], (3, 20, 30)),
    "Conv": ({"pads": [1, 1, 1, 1]}, [(1, 8, 20, 20), (16, 8, 3, 3)], (1, 16, 20, 20)),
    "ConvTranspose": ({}, [(1, 8, 12, 12), (8, 4, 3, 3)], (1, 4, 14, 14)),
    "MaxPool": ({"kernel_shape": [3, 3]}, [(1, 8, 40, 40)], (1, 8, 38, 38)),
}


@pytest.mark.parametrize("target", ["c", "c -mcpu=cortex-m4", "llvm"])
@pytest.mark.parametrize(("operator", "dtype"), [*((name, np.float32) for name in CASES), ("Gemm", np.float64)])
def test_data_may_be_a_constant(operator: str, dtype: Any, target: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    attributes, shapes, shape = CASES[operator]
    rng = np.random.default_rng(0)
    constants = {f"c{index}": rng.standard_normal(one).astype(dtype) for index, one in enumerate(shapes)}
    nodes = [
        helper.make_node(operator, list(constants), ["p"], **attributes),
        helper.make_node("Add", ["x", "p"], ["y"]),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    x = rng.standard_normal(shape).astype(dtype)
    expected = onnxruntime.InferenceSession(model).run(None, {"x": x})[0]
    module, params = mlfc.import_model(model)
    outputs = load_factory(mlfc.build(module, target, params)).run({"x": x})
    np.testing.assert_allclose(outputs["y"], expected, rtol=0, atol=1e-5 * np.abs(expected).max())
