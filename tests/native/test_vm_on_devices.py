"""Models with dynamic dimensions and control flow on a device: the host's results for any device placement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.codegen.device import device_kernels, device_source
from mlfc.factory import Factory
from mlfc.runtime import VirtualMachine
from mlfc.runtime.tensor.ndarray import NDArray, array
from tests.conftest import need_opencl
from tests.native.cuda_on_host import assert_nvrtc_takes

pytestmark = pytest.mark.usefixtures("quick_builds")

Inputs = dict[str, np.ndarray]


def floats(seed: int, *shape: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


def model_of(nodes: list[Any], inputs: Inputs, opened: dict[str, list[Any]], outputs: list[str]) -> onnx.ModelProto:
    """Return a model with the constants `inputs` and the inputs `opened`; names of int64 inputs start with i."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name[0] == "i" else TensorProto.FLOAT, shape)
        for name, shape in opened.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    held = [numpy_helper.from_array(value, name) for name, value in inputs.items()]
    graph = helper.make_graph(nodes, "g", values, results, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def attention() -> tuple[onnx.ModelProto, list[Inputs]]:
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "wq"], ["q"]), node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
        node("MatMul", ["q", "k"], ["s"]), node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "x"], ["a"]), node("LayerNormalization", ["a", "one", "zero"], ["y"], axis=-1),
    ]  # fmt: skip
    held = {"wq": floats(1, 16, 16), "one": np.ones(16, np.float32), "zero": np.zeros(16, np.float32)}
    return model_of(nodes, held, {"x": ["b", "n", 16]}, ["y"]), [
        {"x": floats(number, *shape)} for number, shape in enumerate([(1, 1, 16), (2, 300, 16)])
    ]


def images() -> tuple[onnx.ModelProto, list[Inputs]]:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["m"], ["a"]), node("Flatten", ["a"], ["y"]),
    ]  # fmt: skip
    return model_of(nodes, {"w": floats(2, 8, 3, 3, 3)}, {"x": ["b", 3, 16, 16]}, ["y"]), [
        {"x": floats(batch, batch, 3, 16, 16)} for batch in (1, 5)
    ]


def loop() -> tuple[onnx.ModelProto, list[Inputs]]:
    node, info = helper.make_node, helper.make_tensor_value_info
    states = [info("go2", TensorProto.BOOL, []), *(info(name, TensorProto.FLOAT, ["n", 16]) for name in ("h2", "o"))]
    body = helper.make_graph(
        [node("MatMul", ["h", "w"], ["m"]), node("Tanh", ["m"], ["h2"]), node("Identity", ["h2"], ["o"]),
         node("Identity", ["go"], ["go2"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("h", TensorProto.FLOAT, ["n", 16])],
        states,
    )  # fmt: skip
    nodes = [node("Loop", ["i_turns", "", "x"], ["y", "all"], body=body)]
    return model_of(nodes, {"w": floats(3, 16, 16)}, {"i_turns": [], "x": ["n", 16]}, ["y", "all"]), [
        {"i_turns": np.array(turns, np.int64), "x": floats(turns, rows, 16)} for turns, rows in ((1, 3), (4, 300))
    ]


def places() -> tuple[onnx.ModelProto, list[Inputs]]:
    node = helper.make_node
    nodes = [
        node("Relu", ["x"], ["r"]), node("NonZero", ["r"], ["z"]), node("Transpose", ["z"], ["zt"]),
        node("GatherND", ["r", "zt"], ["g"]), node("Mul", ["g", "g"], ["y"]),
    ]  # fmt: skip
    return model_of(nodes, {}, {"x": ["n", "m"]}, ["y", "zt"]), [{"x": floats(rows, rows, 90)} for rows in (1, 100)] + [
        {"x": -np.ones((2, 3), np.float32)}
    ]


def built(model: onnx.ModelProto, path: Path, target: str) -> Factory:
    onnx.save(model, path)
    module, params = mlfc.import_model(path, dynamic=True)
    return mlfc.build(module, params=params, target=target)


@pytest.mark.parametrize("make", [attention, images, loop, places])
def test_models_compute_what_they_compute_on_the_host(make: Any, tmp_path: Path) -> None:
    device = need_opencl()
    proto, data = make()
    there, here = (built(proto, tmp_path / "model.onnx", target) for target in ("opencl", "c"))
    assert any(kernel.device for kernel in there.program.kernels)
    machine, host = VirtualMachine(there.runtime, device, device_outputs=True), here.runtime.model
    for inputs in data:
        wanted = list(host.run(inputs).values())
        for given in (inputs, {name: array(value, device=device) for name, value in inputs.items()}):
            machine.invoke_stateful("main", **given)
            outputs = machine.get_outputs()
            for want, found in zip(wanted, outputs, strict=True):
                got = found.numpy() if isinstance(found, NDArray) else found
                assert (got.shape, got.dtype) == (want.shape, want.dtype)
                np.testing.assert_allclose(got, want, rtol=0, atol=0 if want.dtype.kind == "i" else 1e-5)
        assert any(isinstance(found, NDArray) for found in outputs)
    source = built(proto, tmp_path / "model.onnx", "cuda") if make is attention else None
    if source is not None:
        kernels = [item for prim in source.program.kernels if prim.device for item in device_kernels(prim, prim.name)]
        assert any(item.symbols for item in kernels)
        assert_nvrtc_takes(device_source(kernels, "cuda"))
