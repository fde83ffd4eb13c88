"""Narrow dtypes as inputs, outputs and constants of whole models, in every executor and through an archive."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import mlfc
from mlfc.errors import InputError

pytestmark = pytest.mark.usefixtures("quick_builds")

X = np.asarray([[1, -2, 3.7], [7, -8, 0]], np.float32)
CODES = np.asarray([1, -2, 7], ml_dtypes.int4)


def model() -> bytes:
    def info(name: str, dtype: int, *shape: int) -> object:
        return helper.make_tensor_value_info(name, dtype, shape)

    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT4),
        helper.make_node("Transpose", ["whole"], ["turned"], perm=[1, 0]),
        helper.make_node("Cast", ["x"], ["small"], to=TensorProto.FLOAT8E5M2),
        helper.make_node("Identity", ["codes"], ["same"]),
        helper.make_node("Cast", ["given"], ["wide"], to=TensorProto.FLOAT),
    ]
    outputs = [
        info("turned", TensorProto.INT4, 3, 2), info("small", TensorProto.FLOAT8E5M2, 2, 3),
        info("same", TensorProto.INT4, 3), info("wide", TensorProto.FLOAT, 4),
    ]  # fmt: skip
    inputs = [info("x", TensorProto.FLOAT, 2, 3), info("given", TensorProto.FLOAT4E2M1, 4)]
    codes = helper.make_tensor("codes", TensorProto.INT4, [3], [1, -2, 7])
    graph = helper.make_graph(nodes, "narrow", inputs, outputs, [codes])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("executor", ["aot", "graph"])
def test_narrow_tensors_pass_through_a_model_and_its_archive(executor: str, tmp_path: Path) -> None:
    compiled = mlfc.compile(model(), target="llvm", executor=executor)
    compiled.export(tmp_path / "model.tar")
    given = np.asarray([0.5, -6, 3, -0.0], ml_dtypes.float4_e2m1fn)
    for runnable in (compiled, mlfc.load(tmp_path / "model.tar")):
        found = runnable.run({"x": X, "given": given})
        expected = {
            "turned": X.astype(np.int32).astype(ml_dtypes.int4).T, "small": X.astype(ml_dtypes.float8_e5m2),
            "same": CODES, "wide": given.astype(np.float32),
        }  # fmt: skip
        for name, value in expected.items():
            assert found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)
        with pytest.raises(InputError, match="its dtype is uint8, not float4_e2m1fn"):
            runnable.run({"x": X, "given": given.view(np.uint8)})
