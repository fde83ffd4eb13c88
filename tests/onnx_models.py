"""Small ONNX models for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Shape = Sequence[int | str]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Sequence[str],
    weights: Mapping[str, Array] | None = None,
    *,
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    **more: Any,
) -> onnx.ModelProto:
    """Return a model whose inputs all have one dtype and whose outputs have no declared types."""
    graph = helper.make_graph(
        list(nodes),
        "tested",
        [helper.make_tensor_value_info(name, dtype, list(shape)) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=[*domains, *more.pop("domains", ())], ir_version=8, **more)


def single(operator: str, shape: Shape, *, opset: int = 17, inputs: Sequence[Array] = (), **attributes: Any) -> bytes:
    """Return a serialized model of one node named ``n``, input ``x``, constants ``c0``..., output ``y``."""
    names = [f"c{index}" for index in range(len(inputs))]
    node = helper.make_node(operator, ["x", *names], ["y"], name="n", **attributes)
    return model([node], {"x": shape}, ["y"], dict(zip(names, inputs, strict=True)), opset=opset).SerializeToString()


def small_network() -> onnx.ModelProto:
    """Return a convolution, a pool and a dense layer with seeded weights."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 2, 3, 3)).astype(np.float32),
        "b": rng.standard_normal(4).astype(np.float32),
        "dense": rng.standard_normal((16, 3)).astype(np.float32),
        "shape": np.array([0, -1]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["conv"], name="first", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("MaxPool", ["relu"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["pool", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "dense"], ["product"]),
        helper.make_node("Softmax", ["product"], ["y"], axis=-1),
    ]
    return model(nodes, {"x": (1, 2, 4, 4)}, ["y"], weights)
