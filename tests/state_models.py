"""Small models that keep state between runs, and their results step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tflite
from onnx import TensorProto, helper, numpy_helper

from mlfc.support.tensor_info import Array
from tests.tflite_builder import Graph, Op, T, build_graphs

WIDTH, FEATURES = 8, 4
GRU_STATES = {"h_in": "h_out"}


def gru() -> onnx.ModelProto:
    """Return a gated cell: ``h_out = h_in + z * (tanh(c) - h_in)``, and the sum of ``h_out``."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(FEATURES + WIDTH, WIDTH)).astype(np.float32) for name in ("gate", "candidate")}
    nodes = [
        helper.make_node("Concat", ["x", "h_in"], ["both"], axis=1),
        helper.make_node("MatMul", ["both", "gate"], ["z0"]),
        helper.make_node("Sigmoid", ["z0"], ["z"]),
        helper.make_node("MatMul", ["both", "candidate"], ["c0"]),
        helper.make_node("Tanh", ["c0"], ["c"]),
        helper.make_node("Sub", ["c", "h_in"], ["difference"]),
        helper.make_node("Mul", ["z", "difference"], ["change"]),
        helper.make_node("Add", ["h_in", "change"], ["h_out"]),
        helper.make_node("ReduceSum", ["h_out"], ["y"], keepdims=0),
    ]
    return _model(nodes, {"x": (1, FEATURES), "h_in": (1, WIDTH)}, {"y": (), "h_out": (1, WIDTH)}, weights)


def delay_line(size: int = 3) -> onnx.ModelProto:
    """Return ``y = x + 2 * d1 + 4 * d2``, where ``d1`` is the input of the previous step and ``d2`` the one before it.

    The next value of ``d2`` is ``d1``, and the next value of ``d1`` is the input: neither is computed.
    """
    nodes = [
        helper.make_node("Mul", ["d1", "two"], ["twice"]),
        helper.make_node("Mul", ["d2", "four"], ["quadruple"]),
        helper.make_node("Add", ["x", "twice"], ["sum"]),
        helper.make_node("Add", ["sum", "quadruple"], ["y"]),
        helper.make_node("Identity", ["x"], ["d1_next"]),
        helper.make_node("Identity", ["d1"], ["d2_next"]),
    ]
    shape = (1, size)
    names = {"x": shape, "d1": shape, "d2": shape}
    constants = {"two": np.float32(2), "four": np.float32(4)}
    return _model(nodes, names, {"y": shape, "d1_next": shape, "d2_next": shape}, constants)


DELAYS = {"d1": "d1_next", "d2": "d2_next"}


def window(length: int = 5, size: int = 3) -> onnx.ModelProto:
    """Return the mean of a sliding window of frames, shifted by one per step."""
    nodes = [
        helper.make_node("Slice", ["frames", "first", "end", "axis"], ["kept"]),
        helper.make_node("Concat", ["kept", "x"], ["frames_next"], axis=1),
        helper.make_node("ReduceMean", ["frames_next"], ["y"], axes=[1], keepdims=0),
    ]
    bounds = {"first": np.array([1]), "end": np.array([length]), "axis": np.array([1])}
    shape = (1, length, size)
    return _model(nodes, {"x": (1, 1, size), "frames": shape}, {"y": (1, size), "frames_next": shape}, bounds)


WINDOW = {"frames": "frames_next"}


def open_frames() -> onnx.ModelProto:
    """Return ``h' = h / 2 + sum(x)`` and ``x + h' + before`` for any number of rows; ``before`` is the last ``h``."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=1),
        helper.make_node("Mul", ["h", "half"], ["faded"]),
        helper.make_node("Add", ["faded", "sum"], ["h_next"]),
        helper.make_node("Identity", ["h"], ["before_next"]),
        helper.make_node("Add", ["x", "h_next"], ["rows"]),
        helper.make_node("Add", ["rows", "before"], ["y"]),
    ]
    names = {"h": (1, 3), "x": ("n", 3), "before": (1, 3)}
    results = {"h_next": (1, 3), "y": ("n", 3), "before_next": (1, 3)}
    return _model(nodes, names, results, {"axis": np.array([0]), "half": np.float32(0.5)})


OPEN_FRAMES = {"h": "h_next", "before": "before_next"}


def moving_average() -> onnx.ModelProto:
    """Return ``y = held' = (x + held) / 2`` on tensors large enough for a device; also keep the last two inputs."""
    nodes = [
        helper.make_node("Add", ["x", "held"], ["sum"]),
        helper.make_node("Mul", ["sum", "half"], ["held_next"]),
        helper.make_node("Identity", ["x"], ["last_next"]),
        helper.make_node("Identity", ["last"], ["seen_next"]),
        helper.make_node("Mul", ["seen", "none"], ["nothing"]),
        helper.make_node("Add", ["held_next", "nothing"], ["y"]),
    ]
    names = ("x", "held", "last", "seen")
    shape = (64, 1024)
    outputs = dict.fromkeys(("y", *AVERAGES.values()), shape)
    return _model(nodes, dict.fromkeys(names, shape), outputs, {"half": np.float32(0.5), "none": np.float32(0)})


AVERAGES = {"held": "held_next", "last": "last_next", "seen": "seen_next"}


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    weights: Mapping[str, Any],
) -> onnx.ModelProto:
    def infos(named: Mapping[str, Sequence[int]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in named.items()]

    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "stateful", infos(inputs), infos(outputs), tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def streaming_convolution() -> bytes:
    """Return a convolution over the last three frames; a variable keeps two of them and starts at the zero point."""
    rng = np.random.default_rng(3)
    scales: dict[str, Any] = {"scale": 0.05, "zero": -3}
    begin, end, step = ([0, 1, 0, 0], [1, 3, 1, 4], [1, 1, 1, 1])
    weights = rng.integers(-127, 128, (2, 3, 1, 4)).astype(np.int8)
    per_channel = [0.002, 0.004]
    tensors = [
        T("frame", [1, 1, 1, 4], "int8", **scales), T("handle", [], "resource"),
        T("window", [1, 2, 1, 4], "int8", **scales), T("frames", [1, 3, 1, 4], "int8", **scales),
        *(T(name, [4], "int32", value) for name, value in (("begin", begin), ("end", end), ("step", step))),
        T("next", [1, 2, 1, 4], "int8", **scales),
        T("weights", [2, 3, 1, 4], "int8", weights, scale=per_channel, zero=[0, 0]),
        T("bias", [2], "int32", [100, -200], scale=[0.05 * scale for scale in per_channel], zero=[0, 0]),
        T("y", [1, 1, 1, 2], "int8", scale=0.03, zero=5),
    ]  # fmt: skip
    ops = [
        Op("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": 1}),
        Op("VAR_HANDLE", [], ["handle"], "VarHandleOptions", {"SharedName": "window"}),
        Op("READ_VARIABLE", ["handle"], ["window"]),
        Op("CONCATENATION", ["window", "frame"], ["frames"], "ConcatenationOptions", {"Axis": 1}, version=2),
        Op("STRIDED_SLICE", ["frames", "begin", "end", "step"], ["next"], "StridedSliceOptions", version=2),
        Op("ASSIGN_VARIABLE", ["handle", "next"], []),
        Op("CONV_2D", ["frames", "weights", "bias"], ["y"], "Conv2DOptions",
           {"Padding": tflite.Padding.VALID, "StrideW": 1, "StrideH": 1}, version=3),
    ]  # fmt: skip
    zeros = T("zeros", [1, 2, 1, 4], "int8", np.full((1, 2, 1, 4), -3), **scales)
    once = [
        Op("VAR_HANDLE", [], ["handle"], "VarHandleOptions", {"SharedName": "window"}),
        Op("ASSIGN_VARIABLE", ["handle", "zeros"], []),
    ]
    return build_graphs(Graph(tensors, ops, ["frame"], ["y"]), Graph([T("handle", [], "resource"), zeros], once))


def frames(count: int, size: int = FEATURES) -> list[Array]:
    """Return inputs for `count` steps."""
    rng = np.random.default_rng(1)
    return [rng.normal(size=(1, size)).astype(np.float32) for _ in range(count)]


def gru_steps(inputs: Sequence[Array], begin: Array) -> tuple[list[Array], Array]:
    """Return the outputs of `gru` by ONNX Runtime, step by step, and the last state."""
    import onnxruntime

    session = onnxruntime.InferenceSession(gru().SerializeToString(), providers=["CPUExecutionProvider"])
    held, found = begin, []
    for frame in inputs:
        output, held = session.run(["y", "h_out"], {"x": frame, "h_in": held})
        found.append(output)
    return found, held
