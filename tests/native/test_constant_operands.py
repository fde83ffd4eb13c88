"""Operators with their own loops accept constants as data, even if the result is too large to fold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import helper, numpy_helper

import mlfc
from mlfc.archive.read.load import load_factory

# tests/native compiles the same operators with the flags of libraries
pytestmark = pytest.mark.usefixtures("quick_builds")

Array = npt.NDArray[Any]
# operator, attributes, shapes of the constant data and weights, shape of the result
CASES: dict[str, tuple[dict[str, Any], list[tuple[int, ...]], tuple[int, ...]]] = {
    "Gemm": ({}, [(1, 200), (200, 300)], (1, 300)),
    "MatMul": ({}, [(3, 20, 40), (3, 40, 30)], (3, 20, 30)),
    "Conv": ({"pads": [1, 1, 1, 1]}, [(1, 8, 20, 20), (16, 8, 3, 3)], (1, 16, 20, 20)),
    "ConvTranspose": ({}, [(1, 8, 12, 12), (8, 4, 3, 3)], (1, 4, 14, 14)),
    "MaxPool": ({"kernel_shape": [3, 3]}, [(1, 8, 40, 40)], (1, 8, 38, 38)),
}


DTYPES = {**dict.fromkeys(CASES, np.float32), "Gemm64": np.float64}


@pytest.mark.parametrize("target", ["c", "c -mcpu=cortex-m4", "llvm"])
def test_data_may_be_a_constant(target: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    nodes, inputs, outputs, weights, given = [], [], [], [], {}
    for name, dtype in DTYPES.items():
        attributes, shapes, shape = CASES[name.removesuffix("64")]
        constants = {f"{name}{index}": rng.standard_normal(one).astype(dtype) for index, one in enumerate(shapes)}
        nodes += [
            helper.make_node(name.removesuffix("64"), list(constants), [f"{name}_p"], **attributes),
            helper.make_node("Add", [f"{name}_x", f"{name}_p"], [f"{name}_y"]),
        ]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        inputs.append(helper.make_tensor_value_info(f"{name}_x", kind, shape))
        outputs.append(helper.make_tensor_value_info(f"{name}_y", kind, shape))
        weights += [numpy_helper.from_array(value, constant) for constant, value in constants.items()]
        given[f"{name}_x"] = rng.standard_normal(shape).astype(dtype)
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(model)
    module, params = mlfc.import_model(model)
    found = load_factory(mlfc.build(module, target, params)).run(given)
    for value, expected in zip(session.get_outputs(), session.run(None, given), strict=True):
        limit = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(found[value.name], expected, rtol=0, atol=limit, err_msg=value.name)
