"""Small ONNX graphs for tests of passes, by name, each a list of nodes with random constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
GRAPHS: dict[str, Callable[[GraphMaker], str]] = {}
CONTAINERS = (
    "test_if_opt", "test_if_seq", "test_loop11", "test_loop13_seq", "test_loop16_seq_none", "test_sequence",
    "test_optional", "test_split_to_sequence", "test_identity_sequence", "test_identity_opt",
)  # fmt: skip
"""Prefixes of the names of ONNX's node tests of sequences and optionals."""


class GraphMaker:
    """Collector of the nodes of a graph with one input ``x`` of shape (2, 4, 6, 5)."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, **attrs: Any) -> Any:
        """Add a node; return its output name, or a list of names."""
        names = [f"{op.lower()}_{len(self._nodes)}_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), names, **attrs))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def floats(self, *shape: int, positive: bool = False) -> str:
        value = self._rng.standard_normal(shape).astype(np.float32)
        return self.constant(np.abs(value) + np.float32(0.5) if positive else value)

    def conv(self, x: str, filters: int, channels: int = 4, kernel: int = 3, **attrs: Any) -> str:
        groups = attrs.get("group", 1)
        weight = self.floats(filters, channels // groups, kernel, kernel)
        return str(self.node("Conv", [x, weight], pads=attrs.pop("pads", [kernel // 2] * 4), **attrs))

    def norm(self, x: str, channels: int) -> str:
        args = [self.floats(channels), self.floats(channels), self.floats(channels)]
        return str(self.node("BatchNormalization", [x, *args, self.floats(channels, positive=True)]))

    def quantized(self, x: str, scale: float, zero: int, dtype: Any = np.uint8) -> str:
        params = [self.constant(np.float32(scale)), self.constant(dtype(zero))]
        return str(self.node("DequantizeLinear", [self.node("QuantizeLinear", [x, *params]), *params]))

    def weights(self, *shape: int, axis: int = 0, per_channel: bool = False) -> str:
        values = self._rng.integers(-127, 128, shape).astype(np.int8)
        count = shape[axis] if per_channel else 1
        scale = (self._rng.random(count) * 0.01 + 0.005).astype(np.float32)
        zero = np.zeros(count, np.int8)
        params = [self.constant(item if per_channel else item.reshape(())) for item in (scale, zero)]
        return str(self.node("DequantizeLinear", [self.constant(values), *params], axis=axis))

    def model(self, *outputs: str) -> bytes:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 6, 5])
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self._nodes, "g", [x], results, self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        return bytes(inferred.SerializeToString())


def graph(make: Callable[[GraphMaker], str]) -> Callable[[GraphMaker], str]:
    """Register a graph under its function's name."""
    GRAPHS[make.__name__] = make
    return make


@graph
def conv_norm_relu(g: GraphMaker) -> str:
    return str(g.node("Relu", [g.norm(g.conv("x", 6), 6)]))


@graph
def depthwise_conv_with_multiplier_norm(g: GraphMaker) -> str:
    return g.norm(g.conv("x", 8, group=4, strides=[2, 1]), 8)


@graph
def grouped_conv_norm_scale(g: GraphMaker) -> str:
    scaled = g.node("Mul", [g.norm(g.conv("x", 6, group=2, dilations=[2, 1], pads=[2, 1, 2, 1]), 6), g.floats(6, 1, 1)])
    return str(g.node("Add", [scaled, g.floats(6, 1, 1)]))


@graph
def transposed_conv_with_scale(g: GraphMaker) -> str:
    y = g.node("ConvTranspose", ["x", g.floats(4, 3, 3, 3), g.floats(3)], strides=[2, 2], pads=[1, 1, 1, 1])
    return str(g.node("Mul", [g.floats(1, 3, 1, 1), y]))


@graph
def scaled_value_that_others_read(g: GraphMaker) -> str:
    y = g.conv("x", 4)
    return str(g.node("Add", [g.node("Mul", [y, g.floats(4, 1, 1)]), y]))


@graph
def norm_scale_relu_before_conv(g: GraphMaker) -> str:
    y = g.node("Add", [g.node("Mul", [g.norm("x", 4), g.floats(4, 1, 1)]), g.floats(4, 1, 1)])
    return g.conv(str(g.node("Relu", [y])), 3)


@graph
def normalized_images_of_turned_axes(g: GraphMaker) -> str:
    """Normalize images that are counted by the first axis, although another axis comes first in memory."""
    turned = g.node("Transpose", ["x"], perm=[3, 1, 0, 2])
    return str(g.node("InstanceNormalization", [turned, g.floats(4), g.floats(4)]))


@graph
def residual_and_concat(g: GraphMaker) -> str:
    y = g.node("Relu", [g.conv("x", 4)])
    total = g.node("Add", [g.conv(y, 4), y])
    return g.conv(str(g.node("Concat", [total, "x", g.conv("x", 2, kernel=1)], axis=1)), 3, channels=10)


@graph
def split_slice_and_join(g: GraphMaker) -> str:
    y = g.conv("x", 6)
    a, b = g.node("Split", [y, g.constant(np.array([2, 4], np.int64))], 2, axis=1)
    part = g.node("Slice", [b, *(g.constant(np.array(v, np.int64)) for v in ([3, 5], [1, 0], [1, 3], [-1, -2]))])
    back = g.node("Slice", [a, *(g.constant(np.array(v, np.int64)) for v in ([0, 0], [6, 2], [2, 3]))])
    return str(g.node("Concat", [part, back], axis=1))


@graph
def padded_conv(g: GraphMaker) -> str:
    y = g.node("Pad", ["x", g.constant(np.array([0, 0, 1, 2, 0, 0, 0, 1], np.int64))])
    return g.conv(str(y), 3, pads=[0, 1, 0, 0])


@graph
def padded_with_ones_conv(g: GraphMaker) -> str:
    y = g.node("Pad", ["x", g.constant(np.array([0, 0, 1, 2, 0, 0, 0, 1], np.int64)), g.constant(np.float32(1))])
    return g.conv(str(y), 3, pads=[0, 1, 0, 0])


@graph
def padded_with_what_a_conv_gives(g: GraphMaker) -> str:
    y = g.conv("x", 2)
    largest = g.node("ReduceMax", [y], keepdims=0)
    return g.conv(g.node("Pad", [y, g.constant(np.array([0, 0, 1, 1, 0, 0, 1, 2])), largest]), 2, channels=2)


@graph
def padded_pools(g: GraphMaker) -> str:
    y = g.node("Pad", [g.conv("x", 4), g.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))])
    pooled = g.node("AveragePool", [y], kernel_shape=[3, 3], strides=[2, 2], count_include_pad=1)
    return str(g.node("Add", [pooled, g.node("MaxPool", [y], kernel_shape=[3, 3], strides=[2, 2])]))


@graph
def flatten_dense(g: GraphMaker) -> str:
    flat = g.node("Flatten", [g.node("Relu", [g.conv("x", 3)])])
    return str(g.node("Gemm", [flat, g.floats(5, 90), g.floats(5)], transB=1))


@graph
def flatten_relu_matmul(g: GraphMaker) -> str:
    flat = g.node("Relu", [g.node("Reshape", [g.conv("x", 3), g.constant(np.array([0, -1], np.int64))])])
    return str(g.node("Add", [g.node("MatMul", [flat, g.floats(90, 5)]), g.floats(5)]))


@graph
def pooled_dense_and_back(g: GraphMaker) -> str:
    y = g.conv("x", 4)
    squeezed = g.node("Reshape", [g.node("GlobalAveragePool", [y]), g.constant(np.array([2, 4], np.int64))])
    gate = g.node("Sigmoid", [g.node("Gemm", [squeezed, g.floats(4, 4)])])
    return str(g.node("Mul", [y, g.node("Reshape", [gate, g.constant(np.array([2, 4, 1, 1], np.int64))])]))


@graph
def channel_shuffle(g: GraphMaker) -> str:
    y = g.node("Reshape", [g.conv("x", 6), g.constant(np.array([2, 3, 2, 6, 5], np.int64))])
    y = g.node(
        "Reshape", [g.node("Transpose", [y], perm=[0, 2, 1, 3, 4]), g.constant(np.array([2, 6, 6, 5], np.int64))]
    )
    return g.conv(str(y), 6, channels=6, group=3)


@graph
def reductions_and_softmax(g: GraphMaker) -> str:
    y = g.node("Softmax", [g.conv("x", 4)], axis=1)
    kept = g.node("ReduceMean", [y], axes=[1, 3], keepdims=1)
    dropped = g.node("ReduceMax", [y], axes=[2], keepdims=0)
    wide = g.node("Unsqueeze", [dropped, g.constant(np.array([2], np.int64))])
    return str(g.node("Add", [kept, wide]))


@graph
def local_response_norm(g: GraphMaker) -> str:
    return g.conv(str(g.node("LRN", [g.conv("x", 5)], size=3, alpha=0.1)), 3, channels=5)


@graph
def patches_to_sequence(g: GraphMaker) -> str:
    y = g.node("Reshape", [g.conv("x", 4, kernel=1), g.constant(np.array([2, 4, 30], np.int64))])
    y = g.node("Transpose", [y], perm=[0, 2, 1])
    return str(g.node("Add", [g.node("MatMul", [y, g.floats(4, 4)]), g.floats(1, 30, 4)]))


@graph
def attention_products(g: GraphMaker) -> str:
    y = g.node("Reshape", ["x", g.constant(np.array([8, 6, 5], np.int64))])
    scores = g.node("MatMul", [y, g.node("Transpose", [y], perm=[0, 2, 1])])
    weights = g.node("Softmax", [g.node("Div", [scores, g.constant(np.float32(4))])], axis=-1)
    return str(g.node("MatMul", [weights, y]))


@graph
def rearranged_depth(g: GraphMaker) -> str:
    y = g.node("DepthToSpace", [g.conv("x", 8)], blocksize=2, mode="CRD")
    return g.conv(
        str(g.node("Resize", [y, "", g.constant(np.array([1, 1, 2, 2], np.float32))])), 2, channels=2, kernel=1
    )


@graph
def nothing_but_neutral_operators(g: GraphMaker) -> str:
    y = g.node("Mul", [g.node("Identity", ["x"]), g.constant(np.float32(1))])
    y = g.node("Add", [y, g.constant(np.full((4, 1, 1), -0.0, np.float32))])
    y = g.node("Transpose", [g.node("Transpose", [y], perm=[0, 3, 1, 2])], perm=[0, 2, 3, 1])
    return str(g.node("Dropout", [y]))


@graph
def quantized_conv_relu(g: GraphMaker) -> str:
    bias = g.node("DequantizeLinear", [g.constant(np.array([40, -300, 7], np.int32)), g.constant(np.float32(2e-4))])
    y = g.node("Conv", [g.quantized("x", 0.02, 100), g.weights(3, 4, 3, 3), bias], pads=[1, 1, 1, 1])
    return g.quantized(str(g.node("Relu", [y])), 0.05, 10)


@graph
def quantized_conv_per_channel(g: GraphMaker) -> str:
    weights = g.weights(3, 4, 3, 3, per_channel=True)
    y = g.node("Conv", [g.quantized("x", 0.02, 100), weights, g.floats(3)], pads=[1, 1, 1, 1])
    return g.quantized(str(g.node("Clip", [y, g.constant(np.float32(-1)), g.constant(np.float32(2))])), 0.05, 40)


@graph
def quantized_matmul(g: GraphMaker) -> str:
    x = g.quantized(str(g.node("Flatten", [g.quantized("x", 0.03, -3, np.int8)])), 0.03, -3, np.int8)
    y = g.node("MatMul", [x, g.weights(120, 6, axis=1, per_channel=True)])
    return g.quantized(str(y), 0.2, 5, np.int8)


@graph
def quantized_movement(g: GraphMaker) -> str:
    x = g.quantized("x", 0.03, 120)
    pooled = g.quantized(str(g.node("MaxPool", [x], kernel_shape=[2, 2])), 0.03, 120)
    turned = g.quantized(str(g.node("Transpose", [pooled], perm=[0, 1, 3, 2])), 0.03, 120)
    joined = g.node("Concat", [turned, g.node("Relu", [turned])], axis=1)
    return g.quantized(str(joined), 0.03, 120)


@graph
def quantized_residual(g: GraphMaker) -> str:
    x = g.quantized("x", 0.02, 100)
    y = g.quantized(str(g.node("Conv", [x, g.weights(4, 4, 1, 1)])), 0.05, 120)
    return g.quantized(str(g.node("Relu", [g.node("Add", [y, x])])), 0.04, 0)


@graph
def quantized_last_layer_in_floats(g: GraphMaker) -> str:
    x = g.quantized("x", 0.02, 100)
    return str(g.node("Conv", [x, g.weights(4, 4, 1, 1, per_channel=True)]))


@graph
def attention_block(g: GraphMaker) -> str:
    x = g.node("Reshape", [g.conv("x", 8, kernel=1), g.constant(np.array([2, 8, 30], np.int64))])
    x = g.node("Transpose", [x], perm=[0, 2, 1])
    hidden = g.node("LayerNormalization", [x, g.floats(8), g.floats(8)], axis=-1)
    queries, keys, values = (_head(g, hidden, perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    scores = g.node("Mul", [g.node("MatMul", [queries, keys]), g.constant(np.float32(0.5))])
    mixed = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), values])
    flat = g.node(
        "Reshape", [g.node("Transpose", [mixed], perm=[0, 2, 1, 3]), g.constant(np.array([2, 30, 8], np.int64))]
    )
    x = g.node("Add", [x, _linear(g, flat, 8, 8)])
    return str(g.node("Add", [x, _linear(g, _gelu(g, _linear(g, x, 8, 16)), 16, 8)]))


def _linear(g: GraphMaker, x: str, inner: int, units: int) -> str:
    return str(g.node("Add", [g.node("MatMul", [x, g.floats(inner, units)]), g.floats(units)]))


def _head(g: GraphMaker, x: str, perm: list[int]) -> str:
    parts = g.node("Reshape", [_linear(g, x, 8, 8), g.constant(np.array([2, 30, 2, 4], np.int64))])
    return str(g.node("Transpose", [parts], perm=perm))


def _gelu(g: GraphMaker, x: str) -> str:
    bent = g.node("Erf", [g.node("Div", [x, g.constant(np.float32(2**0.5))])])
    total = g.node("Add", [bent, g.constant(np.float32(1))])
    return str(g.node("Mul", [g.node("Mul", [x, total]), g.constant(np.float32(0.5))]))


@graph
def quantized_padded_conv(g: GraphMaker) -> str:
    pads = g.constant(np.array([0, 0, 1, 2, 0, 0, 0, 1], np.int64))
    padded = g.quantized(str(g.node("Pad", [g.quantized("x", 0.02, 100), pads])), 0.02, 100)
    return g.quantized(str(g.node("Conv", [padded, g.weights(3, 4, 3, 3)])), 0.05, 10)


def graph_model(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Any], outputs: Mapping[str, Any], weights: Any = ()
) -> onnx.ModelProto:
    """Return a model of opset 18; types are (dtype, shape)."""
    infos = [
        [helper.make_tensor_value_info(name, *kind) for name, kind in items.items()] for items in (inputs, outputs)
    ]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(weights).items()]
    graph = helper.make_graph(list(nodes), "tested", *infos, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
