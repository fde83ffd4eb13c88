"""ONNX graphs as PyTorch's exporters write them: shapes computed in the graph, constants as nodes, dynamic batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.onnx_models import Array


class Exporter:
    """Builder of one graph, with the operator forms of an opset.

    Parameters
    ----------
    opset : int
    seed : int
        Of the weights.
    """

    def __init__(self, opset: int, seed: int = 0) -> None:
        self.opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(seed)

    def op(self, kind: str, *args: str, outputs: int = 1, **attrs: Any) -> Any:
        """Add a node and return the name of its result, or a list of names."""
        number = len(self._nodes)
        names = [f"/{kind}_{number}_output_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(kind, args, names, name=f"/{kind}_{number}", **attrs))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add a Constant node."""
        return str(self.op("Constant", value=numpy_helper.from_array(np.asarray(value, dtype))))

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Add an initializer of random numbers, scaled so that a product keeps the magnitude of its input."""
        spread = 1 / math.sqrt(max(1, math.prod(shape[1:]))) if scale is None else scale
        return self.initializer((self._rng.standard_normal(shape) * spread).astype(np.float32))

    def initializer(self, value: Array) -> str:
        """Add an initializer."""
        name = f"model.{len(self._weights)}.weight"
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def unsqueeze(self, x: str, *axes: int) -> str:
        """Add an Unsqueeze; its axes are an input since opset 13."""
        if self.opset < 13:
            return str(self.op("Unsqueeze", x, axes=axes))
        return str(self.op("Unsqueeze", x, self.constant(axes, np.int64)))

    def mean(self, x: str, *axes: int, keepdims: int = 1) -> str:
        """Add a ReduceMean; its axes are an input since opset 18."""
        if self.opset < 18:
            return str(self.op("ReduceMean", x, axes=axes, keepdims=keepdims))
        return str(self.op("ReduceMean", x, self.constant(axes, np.int64), keepdims=keepdims))

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Add a Split; its sizes are an input since opset 13."""
        if self.opset < 13:
            return list(self.op("Split", x, outputs=len(sizes), split=sizes, axis=axis))
        return list(self.op("Split", x, self.constant(sizes, np.int64), outputs=len(sizes), axis=axis))

    def size(self, x: str, axis: int) -> str:
        """Return ``x.size(axis)``, computed in the graph."""
        return str(self.op("Gather", self.op("Shape", x), self.constant(axis, np.int64), axis=0))

    def view(self, x: str, *sizes: int | str) -> str:
        """Return ``x.view(...)``; sizes are numbers or scalars of the graph."""
        parts = [
            self.unsqueeze(item, 0) if isinstance(item, str) else self.constant([item], np.int64) for item in sizes
        ]
        return str(self.op("Reshape", x, self.op("Concat", *parts, axis=0)))

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """Return ``nn.Linear`` on a tensor of more than two dimensions."""
        return str(self.op("Add", self.weight(outputs, scale=0.1), self.op("MatMul", x, self.weight(inputs, outputs))))

    def gemm(self, x: str, inputs: int, outputs: int) -> str:
        """Return ``nn.Linear`` on a matrix."""
        weights, bias = self.weight(outputs, inputs), self.weight(outputs, scale=0.1)
        return str(self.op("Gemm", x, weights, bias, alpha=1.0, beta=1.0, transB=1))

    def conv(self, x: str, inputs: int, outputs: int, kernel: int, *, stride: int = 1, group: int = 1) -> str:
        """Return ``nn.Conv2d`` with padding that keeps the image size, divided by the stride."""
        weights, bias = self.weight(outputs, inputs // group, kernel, kernel), self.weight(outputs, scale=0.1)
        return str(
            self.op(
                "Conv", x, weights, bias, dilations=[1, 1], group=group, kernel_shape=[kernel, kernel],
                pads=[kernel // 2] * 4, strides=[stride, stride],
            )
        )  # fmt: skip

    def batch_norm(self, x: str, channels: int) -> str:
        """Return ``nn.BatchNorm``."""
        names = [self.initializer(value) for value in self._rng.uniform(0.5, 1.5, (4, channels)).astype(np.float32)]
        return str(self.op("BatchNormalization", x, *names, epsilon=1e-5, momentum=0.9))

    def layer_norm(self, x: str, size: int) -> str:
        """Return ``nn.LayerNorm``: one operator since opset 17, elementary operators before."""
        gamma = self.initializer(self._rng.uniform(0.5, 1.5, size).astype(np.float32))
        beta = self.weight(size, scale=0.1)
        if self.opset >= 17:
            return str(self.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-5))
        distance = self.op("Sub", x, self.mean(x, -1))
        variance = self.mean(self.op("Pow", distance, self.constant(2.0)), -1)
        root = self.op("Sqrt", self.op("Add", variance, self.constant(1e-5)))
        return str(self.op("Add", self.op("Mul", self.op("Div", distance, root), gamma), beta))

    def gelu(self, x: str) -> str:
        """Return ``F.gelu`` by the error function."""
        curve = self.op("Erf", self.op("Div", x, self.constant(math.sqrt(2))))
        return str(self.op("Mul", self.op("Mul", x, self.op("Add", curve, self.constant(1.0))), self.constant(0.5)))

    def model(self, inputs: Mapping[str, tuple[Sequence[int | str], int]], output: str) -> bytes:
        """Return the serialized model; `inputs` maps a name to its shape and ONNX dtype."""
        self._nodes.append(helper.make_node("Identity", [output], ["output"]))
        values = [helper.make_tensor_value_info(name, dtype, list(shape)) for name, (shape, dtype) in inputs.items()]
        graph = helper.make_graph(
            self._nodes, "main_graph", values, [onnx.ValueInfoProto(name="output")], self._weights
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def attention(e: Exporter, x: str, mask: str, width: int, heads: int) -> str:
    """Return multi-head self-attention with one matrix product for queries, keys and values."""
    batch, length = e.size(x, 0), e.size(x, 1)
    parts = e.split(e.linear(x, width, 3 * width), [width] * 3, 2)
    split = [e.view(part, batch, length, heads, width // heads) for part in parts]
    queries, keys, values = (
        e.op("Transpose", part, perm=perm)
        for part, perm in zip(split, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    scores = e.op("Div", e.op("MatMul", queries, keys), e.constant(math.sqrt(width // heads)))
    blocked = e.op("Equal", e.unsqueeze(mask, 1, 2), e.constant(0, np.int64))
    weights = e.op("Softmax", e.op("Where", blocked, e.constant(-1e9), scores), axis=-1)
    mixed = e.op("Transpose", e.op("MatMul", weights, values), perm=[0, 2, 1, 3])
    return e.linear(e.view(mixed, batch, length, width), width, width)


def transformer(opset: int) -> bytes:
    """Return an encoder of two layers before a classifier; inputs ``ids`` and ``mask`` of (N, 12)."""
    e, width, length, words = Exporter(opset), 32, 12, 50
    x = e.op("Gather", e.weight(words, width, scale=1.0), "ids")
    x = e.op("Add", x, e.weight(1, length, width, scale=0.1))
    for _ in range(2):
        x = e.op("Add", x, attention(e, e.layer_norm(x, width), "mask", width, 4))
        hidden = e.gelu(e.linear(e.layer_norm(x, width), width, 4 * width))
        x = e.op("Add", x, e.linear(hidden, 4 * width, width))
    pooled = e.mean(e.layer_norm(x, width), 1, keepdims=0)
    inputs = dict.fromkeys(("ids", "mask"), (("N", length), TensorProto.INT64))
    return e.model(inputs, e.gemm(pooled, width, 5))


def cnn(opset: int) -> bytes:
    """Return residual and squeeze-and-excite blocks before a classifier; input ``x`` of (N, 3, 16, 16)."""
    e = Exporter(opset)
    x = e.op("Relu", e.batch_norm(e.conv("x", 3, 16, 3, stride=2), 16))
    low, high = e.constant(0.0), e.constant(6.0)
    deep = e.op("Clip", e.conv(x, 16, 16, 3, group=16), low, high)
    gate = e.op("Relu", e.conv(e.op("GlobalAveragePool", deep), 16, 4, 1))
    gate = e.op("HardSigmoid", e.conv(gate, 4, 16, 1), alpha=1 / 6)
    x = e.op("Add", x, e.op("Identity", e.conv(e.op("Mul", deep, gate), 16, 16, 1)))
    x = e.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0], ceil_mode=0)
    silu = e.conv(x, 16, 8, 3)
    x = e.op("Mul", silu, e.op("Sigmoid", silu))
    return e.model({"x": (("N", 3, 16, 16), TensorProto.FLOAT)}, e.gemm(e.view(x, e.size(x, 0), -1), 128, 10))


def mlp(opset: int) -> bytes:
    """Return linear layers with normalization and several activations; input ``x`` of (N, 20)."""
    e = Exporter(opset)
    x = e.op("Tanh", e.batch_norm(e.gemm("x", 20, 32), 32))
    x = e.op("Elu", e.gemm(x, 32, 32), alpha=1.0)
    x = e.op("Mul", x, e.op("Tanh", e.op("Softplus", x)))
    return e.model({"x": (("N", 20), TensorProto.FLOAT)}, e.op("LogSoftmax", e.gemm(x, 32, 7), axis=1))


def unet(opset: int) -> bytes:
    """Return a U-Net with a transposed convolution and a bilinear resize; input ``x`` of (N, 3, 16, 16)."""
    e = Exporter(opset)
    top = e.op("Relu", e.conv("x", 3, 8, 3))
    middle = e.op("Relu", e.conv(e.op("MaxPool", top, kernel_shape=[2, 2], strides=[2, 2]), 8, 16, 3))
    deep = e.op("LeakyRelu", e.conv(middle, 16, 32, 3, stride=2), alpha=0.1)
    up = e.op("ConvTranspose", deep, e.weight(32, 16, 2, 2), e.weight(16), kernel_shape=[2, 2], strides=[2, 2], group=1)
    x = e.op("Relu", e.conv(e.op("Concat", up, middle, axis=1), 32, 8, 3))
    scales = e.constant([1, 1, 2, 2])
    mode: dict[str, Any] = {"coordinate_transformation_mode": "half_pixel", "mode": "linear", "nearest_mode": "floor"}
    x = e.op("Resize", x, e.constant([]), scales, cubic_coeff_a=-0.75, **mode)
    x = e.conv(e.op("Concat", x, top, axis=1), 16, 2, 1)
    return e.model({"x": (("N", 3, 16, 16), TensorProto.FLOAT)}, x)


def super_resolution(opset: int) -> bytes:
    """Return ``nn.PixelShuffle`` and a nearest-neighbour shortcut; input ``x`` of (N, 3, 12, 10)."""
    e = Exporter(opset)
    x = e.op("PRelu", e.conv("x", 3, 16, 5), e.weight(16, 1, 1, scale=0.2))
    x = e.op("Tanh", e.conv(x, 16, 16, 3))
    x = e.op("DepthToSpace", e.conv(x, 16, 12, 3), blocksize=2, mode="CRD")
    mode: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
    shortcut = e.op("Resize", "x", e.constant([]), e.constant([1, 1, 2, 2]), **mode)
    return e.model({"x": (("N", 3, 12, 10), TensorProto.FLOAT)}, e.conv(e.op("Add", x, shortcut), 3, 3, 3))
