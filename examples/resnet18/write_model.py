"""Write a ResNet-18 with seeded weights as an ONNX model: ``python write_model.py [resnet18.onnx]``.

The network is that of He et al., Deep Residual Learning for Image Recognition (2015), for images of 224 by 224 pixels
and 1000 classes. Its weights are random, scaled so that values keep their magnitude from layer to layer: it recognizes
nothing, but has the computational cost of a trained network.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 1000
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
BLOCKS = 2


class Network:
    """A graph under construction: each method adds operators and returns the name of their result."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def _add(self, operator: str, inputs: Sequence[str], **attributes: object) -> str:
        name = f"{operator.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def _weight(self, values: np.ndarray) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def conv(self, x: str, channels: int, filters: int, kernel: int, stride: int, gain: float = 1) -> str:
        """Add a convolution and its batch normalization."""
        deviation = np.sqrt(2 / (channels * kernel * kernel))
        weight = self._weight(self._random.normal(0, deviation, (filters, channels, kernel, kernel)))
        pad = kernel // 2
        y = self._add("Conv", [x, weight], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)
        scale = self._weight(gain * self._random.uniform(0.8, 1.2, filters))
        bias, mean = (self._weight(self._random.normal(0, 0.1, filters)) for _ in range(2))
        variance = self._weight(self._random.uniform(0.8, 1.2, filters))
        return self._add("BatchNormalization", [y, scale, bias, mean, variance])

    def pool(self, x: str) -> str:
        """Add a 3 x 3 max pool of stride 2."""
        return self._add("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])

    def relu(self, x: str) -> str:
        """Add a ReLU."""
        return self._add("Relu", [x])

    def block(self, x: str, channels: int, filters: int, stride: int) -> str:
        """Add two convolutions and their shortcut."""
        y = self.relu(self.conv(x, channels, filters, 3, stride))
        y = self.conv(y, filters, filters, 3, 1, gain=0.3)
        if stride != 1 or channels != filters:
            x = self.conv(x, channels, filters, 1, stride)
        return self.relu(self._add("Add", [y, x]))

    def classify(self, x: str, channels: int) -> str:
        """Add global average pooling, a dense layer and a softmax."""
        flat = self._add("Flatten", [self._add("GlobalAveragePool", [x])])
        weight = self._weight(self._random.normal(0, np.sqrt(1 / channels), (CLASSES, channels)))
        dense = self._add("Gemm", [flat, weight, self._weight(np.zeros(CLASSES))], transB=1)
        return self._add("Softmax", [dense], axis=1)

    def model(self, output: str, size: int) -> onnx.ModelProto:
        """Return the model whose output is `output`."""
        image = helper.make_tensor_value_info("data", TensorProto.FLOAT, [1, 3, size, size])
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, [1, CLASSES])
        graph = helper.make_graph(self._nodes, "resnet18", [image], [result], self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def resnet18(size: int = 224, seed: int = 0) -> onnx.ModelProto:
    """Return the model.

    Parameters
    ----------
    size : int
        Rows and columns of the image.
    seed : int
        Of the weights.
    """
    network = Network(seed)
    x = network.relu(network.conv("data", 3, 64, 7, 2))
    x = network.pool(x)
    channels = 64
    for filters, stride in STAGES:
        for index in range(BLOCKS):
            x = network.block(x, channels, filters, stride if index == 0 else 1)
            channels = filters
    model = network.model(network.classify(x, channels), size)
    onnx.checker.check_model(model)
    return model


if __name__ == "__main__":
    onnx.save(resnet18(), sys.argv[1] if len(sys.argv) > 1 else "resnet18.onnx")
