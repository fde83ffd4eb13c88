"""Small ONNX models of three kinds with dynamic dimensions: a detector, a recurrent layer, a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_Value = tuple[str, int, Sequence[int | str]]


def _values(values: Sequence[_Value]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, kind, list(shape)) for name, kind, shape in values]


def _model(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[_Value], outputs: Sequence[_Value], weights: Mapping[str, Any]
) -> bytes:
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "graph", _values(inputs), _values(outputs), held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def _weights(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def detector() -> bytes:
    """Return a detector: two convolutions on an image of dynamic sides ``h`` and ``w``, then NonMaxSuppression."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "kb"], ["b0"], name="boxes"),
        node("Reshape", ["b0", "box_shape"], ["b1"]),
        node("Transpose", ["b1"], ["all"], perm=[0, 2, 1]),
        node("Conv", ["x", "ks"], ["s0"], name="scores"),
        node("Reshape", ["s0", "score_shape"], ["s1"]),
        node("Sigmoid", ["s1"], ["sure"]),
        node("NonMaxSuppression", ["all", "sure", "most", "iou", "least"], ["selected"], name="nms"),
        node("Gather", ["selected", "two"], ["at"], axis=1),
        node("Squeeze", ["all", "zero"], ["each"]),
        node("Gather", ["each", "at"], ["y"], axis=0),
    ]
    weights = {
        "kb": _weights(4, 3, 1, 1),
        "ks": _weights(2, 3, 1, 1),
        "box_shape": np.array([1, 4, -1]),
        "score_shape": np.array([1, 2, -1]),
        "most": np.array([5]),
        "iou": np.array([0.5], np.float32),
        "least": np.array([0.3], np.float32),
        "two": np.array(2),
        "zero": np.array([0]),
    }
    outputs = [("y", FLOAT, ["k", 4]), ("selected", INT64, ["k", 3])]
    return _model(nodes, [("x", FLOAT, [1, 3, "h", "w"])], outputs, weights)


def convolutions() -> bytes:
    """Return two convolutions on an image of dynamic height ``h`` and width ``w``, the first one strided."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "k1"], ["a"], name="conv1", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"], name="relu1"),
        node("Conv", ["b", "k2"], ["c"], name="conv2"),
        node("GlobalAveragePool", ["c"], ["d"], name="pool"),
        node("Flatten", ["d"], ["y"], name="flatten"),
    ]
    weights = {"k1": _weights(8, 3, 3, 3), "k2": _weights(4, 8, 3, 3)}
    return _model(nodes, [("x", FLOAT, [1, 3, "h", "w"])], [("y", FLOAT, [1, 4])], weights)


def recurrent() -> bytes:
    """Return an LSTM over a dynamic ``length``, followed by a dense layer."""
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "b"], ["all"], name="lstm", hidden_size=8),
        helper.make_node("Squeeze", ["all", "one"], ["steps"]),
        helper.make_node("MatMul", ["steps", "p"], ["y"], name="proj"),
    ]
    weights = {
        "w": _weights(1, 32, 6),
        "r": _weights(1, 32, 8),
        "b": _weights(1, 64),
        "p": _weights(8, 3),
        "one": np.array([1]),
    }
    return _model(nodes, [("x", FLOAT, ["length", 1, 6])], [("y", FLOAT, ["length", 1, 3])], weights)


def looping() -> bytes:
    """Return a loop of ``n`` iterations, or until a sum exceeds a limit, on a tensor with a dynamic ``batch``."""
    node = helper.make_node
    turn = [
        node("Mul", ["old", "half"], ["less"], name="mul"),
        node("Add", ["less", "x"], ["new"], name="add"),
        node("ReduceSum", ["new"], ["sum"], keepdims=0),
        node("Less", ["sum", "limit"], ["again"]),
    ]
    body = helper.make_graph(
        turn,
        "body",
        _values([("turn", INT64, []), ("go", BOOL, []), ("old", FLOAT, ["batch", 4])]),
        _values([("again", BOOL, []), ("new", FLOAT, ["batch", 4])]),
        [numpy_helper.from_array(np.float32(value), name) for name, value in (("half", 0.5), ("limit", 30))],
    )
    inputs = [("n", INT64, []), ("x", FLOAT, ["batch", 4])]
    return _model(
        [node("Loop", ["n", "", "x"], ["y"], name="loop", body=body)], inputs, [("y", FLOAT, ["batch", 4])], {}
    )
