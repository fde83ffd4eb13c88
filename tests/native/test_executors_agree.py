"""The graph executor and AOT code compute the same bits, in the corner cases of both.

ONNX Runtime is the reference. One archive contains all models, once per executor, so the C compiler runs only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import mlfc
from mlfc.factory import Factory
from tests.native.extracted import WARNINGS, extracted, make

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

Array = npt.NDArray[Any]
EXECUTORS = ("aot", "graph")
MANY = 40
ALL = " ".join(f"x{index}" for index in range(MANY))


@dataclass(frozen=True)
class Case:
    """A small graph: its nodes, its outputs in order, and inputs to run it on."""

    nodes: Sequence[onnx.NodeProto]
    outputs: str
    inputs: Mapping[str, Array]
    constants: Mapping[str, Array] = field(default_factory=dict)

    def model(self) -> bytes:
        def value_info(name: str, value: Array) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)

        graph = helper.make_graph(
            list(self.nodes),
            "agree",
            [value_info(name, value) for name, value in self.inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in self.outputs.split()],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        data: bytes = onnx.shape_inference.infer_shapes(model).SerializeToString()
        return data


def values(dtype: str, *shape: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind == "f":
        return np.asarray(rng.standard_normal(shape), dtype)
    limits = np.iinfo(dtype)
    return np.asarray(rng.integers(limits.min, limits.max, shape, dtype, endpoint=True))


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


X, Y = values("float32", 3, 4), values("float32", 3, 4, seed=1)
CASES = {
    "bool": Case(
        [node("Greater", "x y", "g"), node("Not", "b", "n"), node("And", "g n", "o"), node("Xor", "g b", "p")],
        "o p",
        {"x": X, "y": Y, "b": values("bool", 4)},
    ),
    "int64": Case(
        [node("Mul", "x y", "m"), node("Add", "m x", "o")],
        "o",
        {"x": values("int64", 5), "y": values("int64", 2, 5, seed=1)},
    ),
    "float16": Case(
        [node("Add", "x y", "s"), node("Mul", "s x", "o")],
        "s o",
        {"x": values("float16", 7), "y": values("float16", 7, seed=1)},
    ),
    "float64": Case([node("Sub", "x y", "o")], "o", {"x": values("float64", 9), "y": values("float64", 9, seed=1)}),
    "narrow": Case(
        [node("Max", "x y", "o"), node("Cast", "o", "w", to=onnx.TensorProto.INT32)],
        "o w",
        {"x": values("uint8", 33), "y": values("uint8", 33, seed=1)},
    ),
    "scalars": Case(
        [node("Add", "x y", "s"), node("Mul", "s s", "o")],
        "o s",
        {"x": np.array(0.5, np.float32), "y": np.array(-3, np.float32)},
    ),
    "empty": Case(
        [node("Relu", "x", "r"), node("Add", "r r", "o")], "o y", {"x": np.zeros((0, 3), np.float32), "y": X}
    ),
    "views": Case(
        [node("Relu", "x", "r"), node("Reshape", "r s", "v"), node("Reshape", "x s", "w"), node("Neg", "v", "o")],
        "v w r o",
        {"x": X},
        {"s": np.array([2, -1])},
    ),
    "twice": Case([node("Neg", "x", "n"), node("Identity", "n", "o"), node("Identity", "n", "p")], "o p n", {"x": X}),
    "constants": Case([node("Identity", "c", "k"), node("Add", "x c", "o")], "k o c", {"x": X}, {"c": Y}),
    "inputs": Case([node("Identity", "x", "o"), node("Abs", "x", "p")], "o p", {"x": X, "unused": Y}),
    "many": Case(
        [node("Sum", ALL, "o"), node("Concat", ALL, "c", axis=1)],
        "o c",
        {f"x{i}": values("float32", 2, 3, seed=i) for i in range(MANY)},
    ),
    "inner": Case(
        [node("Exp", "x", "e"), node("Softmax", "e", "s"), node("MatMul", "s w", "m"), node("Add", "m e", "o")],
        "e m o",
        {"x": X},
        {"w": values("float32", 4, 4, seed=2)},
    ),
}


def alone(name: str, executor: str) -> Factory:
    case = CASES[name]
    module, params = mlfc.import_model(case.model(), name=name)
    return mlfc.build(module, params=params, executor=executor, module_name=f"{name}_{executor}")


@pytest.fixture(scope="module")
def factories() -> dict[str, Factory]:
    return {f"{name}_{executor}": alone(name, executor) for name in CASES for executor in EXECUTORS}


@pytest.fixture(scope="module")
def folder(factories: dict[str, Factory], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extracted([*factories.values()], tmp_path_factory.mktemp("agree"), test_vectors=1)


@pytest.mark.parametrize("name", CASES)
def test_both_give_the_same_bits_and_the_right_ones(name: str, factories: dict[str, Factory]) -> None:
    case = CASES[name]
    session = onnxruntime.InferenceSession(case.model(), providers=["CPUExecutionProvider"])
    expected = dict(zip(case.outputs.split(), session.run(None, dict(case.inputs)), strict=True))
    aot, graph = (factories[f"{name}_{executor}"].runtime.run(dict(case.inputs)) for executor in EXECUTORS)
    assert list(aot) == list(graph) == list(expected)
    for output, right in expected.items():
        assert aot[output].dtype == graph[output].dtype == right.dtype
        assert aot[output].shape == graph[output].shape == right.shape
        assert aot[output].tobytes() == graph[output].tobytes()
        if right.dtype.kind == "f":
            np.testing.assert_allclose(aot[output], right, rtol=1e-5 if right.itemsize > 2 else 2e-3, atol=1e-6)
        else:
            np.testing.assert_array_equal(aot[output], right)


def test_the_runtime_in_c_agrees_too(folder: Path) -> None:
    printed = make(folder, "test", f"CFLAGS={WARNINGS}")
    for name in CASES:
        for executor in EXECUTORS:
            assert f"{name}_{executor}" in printed
