"""Models of float16 and bfloat16 from end to end: in C and by LLVM, by both executors and through an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mlfc

X_SHAPE = (1, 3, 16, 16)
KINDS: dict[str, tuple[Any, int, float]] = {
    "float16": (np.float16, TensorProto.FLOAT16, 2**-10),
    "bfloat16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16, 2**-7),
}


def model(kind: str) -> onnx.ModelProto:
    """Return a small network with weights, inputs and outputs of one dtype."""
    dtype, code, _ = KINDS[kind]
    rng = np.random.default_rng(8)
    shapes = {"w": (8, 3, 3, 3), "b": (8,), "v": (16, 8, 3, 3), "m": (64, 10), "scale": (10,), "shift": (10,)}
    weights = {name: (rng.standard_normal(shape) * 0.3).astype(dtype) for name, shape in shapes.items()}
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    constants.append(numpy_helper.from_array(np.array([1, -1]), "flat"))
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "v"], ["d"], pads=[1] * 4),
        helper.make_node("Sigmoid", ["d"], ["s"]),
        helper.make_node("Mul", ["d", "s"], ["swish"]),
        helper.make_node("AveragePool", ["swish"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["a", "flat"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["g"]),
        helper.make_node("LayerNormalization", ["g", "scale", "shift"], ["l"], epsilon=1e-3),
        helper.make_node("Softmax", ["l"], ["y"]),
        helper.make_node("Tanh", ["l"], ["z"]),
    ]
    outputs = [helper.make_tensor_value_info(name, code, [1, 10]) for name in "yz"]
    graph = helper.make_graph(
        nodes, "half", [helper.make_tensor_value_info("x", code, X_SHAPE)], outputs, constants
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def expected(made: onnx.ModelProto, x: npt.NDArray[Any], kind: str) -> list[Any]:
    if kind == "float16":
        session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        return list(session.run(None, {"x": x}))
    return list(ReferenceEvaluator(made).run(None, {"x": x}))  # ONNX Runtime has no such convolution


@pytest.mark.usefixtures("quick_builds")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("target", "executor"), [("llvm", "aot"), ("c", "aot"), ("llvm", "graph"), ("c -mcpu=sapphirerapids", "aot")]
)
def test_models_of_halves_run_from_end_to_end(kind: str, target: str, executor: str, tmp_path: Path) -> None:
    dtype, _, unit = KINDS[kind]
    made = model(kind)
    x = np.random.default_rng(9).standard_normal(X_SHAPE).astype(dtype)
    compiled = mlfc.compile(made.SerializeToString(), target=target, executor=executor)
    compiled.export(tmp_path / "model.tar")
    runs = [compiled.run({"x": x})]
    if target == "llvm":
        runs.append(mlfc.load(tmp_path / "model.tar").run({"x": x}))
    for found in runs:
        for (name, ours), theirs in zip(found.items(), expected(made, x, kind), strict=True):
            assert ours.dtype == dtype, name
            difference = np.abs(ours.astype(np.float64) - np.asarray(theirs).astype(np.float64)).max()
            # some four roundings of intermediate tensors, which the references place elsewhere
            assert difference <= 4 * unit, f"{name}: {difference}"
