"""Whole models: specialized code, compiled ahead or in the background, computes the bits of the dynamic code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import mlfc
from mlfc.specializing import SpecializingModel
from mlfc.target.target import llvm_here, parse_target


@dataclass
class Net:
    """A builder of models with one input: a chain of nodes."""

    shape: Sequence[int | str]
    seed: int = 7
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    last: str = "x"

    def weight(self, *shape: int) -> str:
        rng = np.random.default_rng((self.seed, len(self.weights)))
        name = f"w{len(self.weights)}"
        values = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def constant(self, value: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def add(self, operator: str, *others: str, first: str | None = None, outputs: int = 1, **attrs: Any) -> str:
        names = [f"t{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(operator, [first or self.last, *others], names, **attrs))
        self.last = names[0]
        return self.last

    def conv(self, channels: int, filters: int, kernel: int, stride: int = 1, group: int = 1) -> None:
        weights = self.weight(filters, channels // group, kernel, kernel)
        self.add("Conv", weights, self.weight(filters), pads=[kernel // 2] * 4, strides=[stride] * 2, group=group)

    def finish(self) -> bytes:
        x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, self.shape)
        y = onnx.ValueInfoProto(name=self.last)
        graph = helper.make_graph(self.nodes, "net", [x], [y], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        return bytes(model.SerializeToString())


def residual() -> bytes:
    """Return 3x3 convolutions, which use Winograd transforms if the processor and the image are large enough."""
    net = Net(["batch", 16, "h", "w"])
    net.conv(16, 16, 3)
    net.add("Relu")
    net.add("Add", "x")
    net.add("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    net.add("GlobalAveragePool")
    return net.finish()


def separable() -> bytes:
    net = Net(["batch", 3, 20, 20])
    net.conv(3, 24, 3, 2)
    net.add("HardSwish")
    net.conv(24, 24, 3, 1, 24)
    net.add("Relu")
    net.conv(24, 40, 1)
    net.add("GlobalAveragePool")
    net.add("Flatten")
    net.add("Gemm", net.weight(10, 40), net.weight(10), transB=1)
    net.add("Softmax")
    return net.finish()


def transformer() -> bytes:
    net = Net(["batch", "length", 32])
    parts = []
    for axes in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        net.add("MatMul", net.weight(32, 32), first="x")
        net.add("Reshape", net.constant([0, 0, 4, 8]))
        parts.append(net.add("Transpose", perm=axes))
    net.add("MatMul", parts[1], first=parts[0])
    net.add("Mul", net.constant(np.float32(8**-0.5)))
    net.add("Softmax")
    net.add("MatMul", parts[2])
    net.add("Transpose", perm=[0, 2, 1, 3])
    net.add("Reshape", net.constant([0, 0, 32]))
    net.add("Add", "x")
    net.add("LayerNormalization", net.weight(32), net.weight(32))
    net.add("MatMul", net.weight(32, 64))
    net.add("Gelu")
    net.add("MatMul", net.weight(64, 5))
    return net.finish()


def recurrent() -> bytes:
    net = Net(["length", "batch", 12])
    weights = (net.weight(2, 64, 12), net.weight(2, 64, 16), net.weight(2, 128))
    net.add("LSTM", *weights, outputs=3, hidden_size=16, direction="bidirectional")
    net.add("ReduceMean", net.constant([1]), keepdims=0)
    net.add("MatMul", net.weight(16, 5))
    return net.finish()


def quantized() -> bytes:
    net = Net(["batch", 8, 12, 12])

    def through(scale: float) -> None:
        scales = net.constant(np.float32(scale)), net.constant(np.int8(3))
        net.add("QuantizeLinear", *scales)
        net.add("DequantizeLinear", *scales)

    for channels, filters in ((8, 16), (16, 16)):
        through(0.05)
        codes = np.random.default_rng(filters).integers(-127, 128, (filters, channels, 3, 3)).astype(np.int8)
        kept, scales = net.last, (net.constant(np.float32(0.01)), net.constant(np.int8(0)))
        weights = net.add("DequantizeLinear", *scales, first=net.constant(codes))
        net.add("Conv", weights, first=kept, pads=[1] * 4)
        net.add("Relu")
    through(0.2)
    net.add("AveragePool", kernel_shape=[3, 3], pads=[1] * 4)
    return net.finish()


MODELS: dict[str, tuple[Callable[[], bytes], tuple[int, ...], Mapping[str, int]]] = {
    "residual": (residual, (2, 16, 14, 9), {"batch": 2, "h": 14, "w": 9}),
    "separable": (separable, (3, 3, 20, 20), {"batch": 3}),
    "transformer": (transformer, (2, 13, 32), {"batch": 2, "length": 13}),
    "recurrent": (recurrent, (9, 2, 12), {"length": 9, "batch": 2}),
    "quantized": (quantized, (2, 8, 12, 12), {"batch": 2}),
}


def results(model: Any, x: Any) -> list[bytes]:
    return [array.tobytes() for array in model.run({"x": x}).values()]


def in_background(data: bytes, x: Any, extents: Mapping[str, int]) -> list[bytes]:
    compiled = mlfc.compile(data, specialize="auto")
    model: Any = compiled.model
    assert isinstance(model, SpecializingModel)
    for _ in range(2):
        compiled.run({"x": x})
    model.wait()
    assert model.special == [{symbol: extents[symbol] for symbol in model.special[0]}]
    return results(compiled, x)


@pytest.mark.usefixtures("quick_build")  # optimization does not change the bits of floats
@pytest.mark.parametrize("name", MODELS)
def test_special_code_gives_the_bits_of_open_code(name: str) -> None:
    make, shape, extents = MODELS[name]
    data, x = make(), np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    target = "llvm -mcpu=native" if name == "residual" else "llvm"  # with Winograd transforms if the processor has them
    general = results(mlfc.compile(data, target), x)
    assert results(mlfc.compile(data, target, specialize=[extents]), x) == general


@pytest.mark.usefixtures("quick_build")
def test_so_does_code_by_llvm_beside_that_of_the_default_target() -> None:
    """Compile for any processor, without transforms, whereas the dynamic code may have them."""
    make, shape, extents = MODELS["residual"]
    data, x = make(), np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    general = results(mlfc.compile(data), x)
    assert in_background(data, x, extents) == general
    assert results(mlfc.compile(data, shapes={"x": shape}), x) == general


def test_llvm_has_the_kernels_of_this_machine() -> None:
    for text in ("c -mcpu=auto", "c -mcpu=auto -winograd=off", "c", "c -mcpu=x86-64-v3 -winograd=off"):
        wanted = parse_target(text)
        found = parse_target(llvm_here(wanted))
        assert found.kind == "llvm"
        if wanted.mcpu != "auto":
            assert found.features.winograd == wanted.features.winograd
            assert found.features.vector_registers == wanted.features.vector_registers
        else:
            levels = [wanted.features, *(features for _, features in wanted.features.levels)]
            assert found.features.winograd in {features.winograd for features in levels}
    assert "-mcpu=" not in llvm_here(parse_target("c"))
    assert llvm_here(parse_target("llvm -mcpu=x86-64-v3")) == str(parse_target("llvm -mcpu=x86-64-v3"))
