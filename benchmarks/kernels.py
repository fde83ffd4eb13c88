"""Speed of single layers compared with ONNX Runtime on one thread: ``python -m benchmarks.kernels [--registers N]``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from benchmarks.latency import interleaved
from mlfc.library.toolchain import NATIVE
from mlfc.relay import ir
from mlfc.target.features import CPUS, Features
from tests.native.kernel_runner import aligned, build, group_of

FLAGS = (NATIVE,)


@dataclass(frozen=True)
class Layer:
    """A square convolution or transposed convolution: image and kernel size, channels, filters, stride, groups.

    The result of a transposed one is `stride` times as large.
    """

    side: int
    channels: int
    filters: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    transposed: bool = False

    @property
    def pad(self) -> int:
        """Zeros on every side; for a transposed convolution, elements cut off."""
        return (self.kernel - self.stride) // 2 if self.transposed else self.kernel // 2

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        if self.transposed:
            return self.side**2 * self.filters * self.kernel**2 * self.channels // self.groups
        out = (self.side + 2 * self.pad - self.kernel) // self.stride + 1
        return out * out * self.filters * self.kernel**2 * self.channels // self.groups


LAYERS = {
    "ResNet-50 first 7x7": Layer(224, 3, 64, 7, 2),
    "ResNet-50 56 1x1 64-64": Layer(56, 64, 64),
    "ResNet-50 56 3x3 64-64": Layer(56, 64, 64, 3),
    "ResNet-50 56 1x1 64-256": Layer(56, 64, 256),
    "ResNet-50 28 3x3 128": Layer(28, 128, 128, 3),
    "ResNet-50 28 1x1 512-128": Layer(28, 512, 128),
    "ResNet-50 14 3x3 256": Layer(14, 256, 256, 3),
    "ResNet-50 14 1x1 1024-256": Layer(14, 1024, 256),
    "ResNet-50 7 3x3 512": Layer(7, 512, 512, 3),
    "ResNet-50 7 1x1 2048-512": Layer(7, 2048, 512),
    "ResNet-50 56/2 1x1 256-512": Layer(56, 256, 512, 1, 2),
    "SqueezeNet 55 3x3 16-64": Layer(55, 16, 64, 3),
    "SqueezeNet 13 1x1 512-1000": Layer(13, 512, 1000),
    "MobileNet 112 first 3x3": Layer(224, 3, 32, 3, 2),
    "MobileNet 112 depthwise 32": Layer(112, 32, 32, 3, 1, 32),
    "MobileNet 56/2 depthwise 144": Layer(56, 144, 144, 3, 2, 144),
    "MobileNet 14 depthwise 384": Layer(14, 384, 384, 3, 1, 384),
    "MobileNet 56 1x1 24-144": Layer(56, 24, 144),
    "MobileNet 14 1x1 384-64": Layer(14, 384, 64),
    "AlexNet 27 5x5 groups 2": Layer(27, 96, 256, 5, 1, 2),
    "AlexNet dense 9216-4096": Layer(1, 9216, 4096),
    "DCGAN 16 transposed 4x4 256-128": Layer(16, 256, 128, 4, 2, transposed=True),
    "U-Net 28 transposed 2x2 128-64": Layer(28, 128, 64, 2, 2, transposed=True),
    "segmentation 56 transposed 4x4 32-16": Layer(56, 32, 16, 4, 2, transposed=True),
}


def attributes(layer: Layer) -> dict[str, Any]:
    """Return Relay's attributes of the layer; the weights are ordered HWIO."""
    return {
        "strides": (layer.stride,) * 2, "padding": (layer.pad,) * 4, "groups": layer.groups,
        "data_layout": "NHWC", "kernel_layout": "HWIO",
    }  # fmt: skip


def _operator(layer: Layer) -> str:
    return "conv2d_transpose" if layer.transposed else "conv2d"


def _relay_shape(layer: Layer) -> tuple[int, ...]:
    """Return the shape of the weights in Relay."""
    apart = (layer.channels, layer.filters // layer.groups)
    return (
        layer.kernel,
        layer.kernel,
        *(apart if layer.transposed else (layer.channels // layer.groups, layer.filters)),
    )


def _onnx_shape(layer: Layer) -> tuple[int, ...]:
    """Return the shape of the weights in ONNX."""
    apart = (layer.filters, layer.channels // layer.groups)
    return (
        *((layer.channels, layer.filters // layer.groups) if layer.transposed else apart),
        layer.kernel,
        layer.kernel,
    )


def float_runner(layer: Layer, features: Features, rng: np.random.Generator) -> Callable[[], object]:
    """Return mlfc's kernel with bias and relu, bound to its arrays."""
    x = ir.Var("x", ir.TensorType((1, layer.side, layer.side, layer.channels), "float32"))
    weights = ir.const(rng.standard_normal(_relay_shape(layer)).astype(np.float32))
    call = ir.call(f"nn.{_operator(layer)}", [x, weights], **attributes(layer))
    biased = ir.call("nn.bias_add", [call, ir.const(np.ones(layer.filters, np.float32))], axis=3)
    kernel = build(group_of(ir.call("nn.relu", [biased]), [x]), features, FLAGS)
    data = aligned(x.type.shape, np.float32)
    data[...] = rng.standard_normal(data.shape)
    return kernel.bound([data])


def integer_runner(layer: Layer, features: Features, rng: np.random.Generator) -> Callable[[], object]:
    """Return mlfc's int8 kernel with requantization, bound to its arrays."""
    x = ir.Var("x", ir.TensorType((1, layer.side, layer.side, layer.channels), "int8"))
    shape = _relay_shape(layer)
    weights = rng.integers(-127, 128, shape).astype(np.int8)
    scales = (rng.random(layer.filters) + 0.5).astype(np.float32) * 1e-4
    call = ir.call(
        "qnn.conv2d", [x, ir.const(weights), ir.const(3), ir.const(0), ir.const(1.0), ir.const(scales)],
        **attributes(layer), out_dtype="int32",
    )  # fmt: skip
    biased = ir.call("nn.bias_add", [call, ir.const(np.ones(layer.filters, np.int32))], axis=3)
    scaled = ir.call(
        "qnn.requantize", [biased, ir.const(scales), ir.const(0), ir.const(1.0), ir.const(-5)],
        axis=3, rounding="DOUBLE", out_dtype="int8",
    )  # fmt: skip
    kernel = build(group_of(scaled, [x]), features, FLAGS)
    data = aligned(x.type.shape, np.int8)
    data[...] = rng.integers(-128, 128, data.shape)
    return kernel.bound([data])


def _session(nodes: list[Any], constants: dict[str, Any], layer: Layer, kind: int) -> Callable[[], object]:
    shape = [1, layer.channels, layer.side, layer.side]
    graph = helper.make_graph(
        nodes, "layer", [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, ["n", "c", "h", "w"])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    data = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    binding = session.io_binding()
    binding.bind_cpu_input("x", data)
    binding.bind_output("y")
    return lambda: session.run_with_iobinding(binding)


def _onnx_attributes(layer: Layer) -> dict[str, Any]:
    return {"strides": [layer.stride] * 2, "pads": [layer.pad] * 4, "group": layer.groups}


def peer_float(layer: Layer, rng: np.random.Generator) -> Callable[[], object]:
    """Return a call of ONNX Runtime on the layer."""
    shape = _onnx_shape(layer)
    constants = {"w": rng.standard_normal(shape).astype(np.float32), "b": np.ones(layer.filters, np.float32)}
    nodes = [
        helper.make_node(
            "ConvTranspose" if layer.transposed else "Conv", ["x", "w", "b"], ["t"], **_onnx_attributes(layer)
        ),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    return _session(nodes, constants, layer, TensorProto.FLOAT)


def peer_integer(layer: Layer, rng: np.random.Generator) -> Callable[[], object]:
    """Return a call of ONNX Runtime's QLinearConv with uint8 data and int8 weights."""
    shape = _onnx_shape(layer)
    constants = {
        "xs": np.float32(1), "xz": np.uint8(3), "w": rng.integers(-127, 128, shape).astype(np.int8),
        "ws": np.full(layer.filters, 1e-4, np.float32), "wz": np.zeros(layer.filters, np.int8),
        "ys": np.float32(1), "yz": np.uint8(5), "b": np.ones(layer.filters, np.int32),
    }  # fmt: skip
    inputs = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    node = helper.make_node("QLinearConv", inputs, ["y"], **_onnx_attributes(layer))
    return _session([node], constants, layer, TensorProto.UINT8)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registers", type=int, default=32)
    parser.add_argument("--cpu", help="a processor whose features templates use, in place of --registers")
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--only", default="", help="part of the layer's name")
    parser.add_argument("--kinds", nargs="+", default=["float32", "int8"])
    options = parser.parse_args()
    features = CPUS.get(options.cpu).features if options.cpu else Features(vector_registers=options.registers)
    makers = {"float32": (float_runner, peer_float), "int8": (integer_runner, peer_integer)}
    for kind in options.kinds:
        table = Table(title=f"{kind}, one thread, {options.cpu or f'{options.registers} registers'}")
        for column in ("layer", "MMAC", "us", "GMAC/s", "ONNX Runtime us", "ratio"):
            table.add_column(column, justify="left" if column == "layer" else "right")
        for name, layer in LAYERS.items():
            # ONNX Runtime does not support integer transposed convolutions
            if options.only not in name or (layer.transposed and kind == "int8"):
                continue
            ours, peer = makers[kind]
            rng = np.random.default_rng(0)
            runners = {"ours": ours(layer, features, rng), "peer": peer(layer, rng)}
            times = interleaved(runners, options.seconds)
            table.add_row(
                name, f"{layer.macs / 1e6:.1f}", f"{times['ours'] * 1e6:.1f}",
                f"{layer.macs / times['ours'] / 1e9:.1f}", f"{times['peer'] * 1e6:.1f}",
                f"{times['ours'] / times['peer']:.2f}",
            )  # fmt: skip
        Console(width=120).print(table)


if __name__ == "__main__":
    main()
