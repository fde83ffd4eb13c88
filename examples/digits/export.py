"""Export the trained network as float32 ONNX and as int8 TFLite."""

from __future__ import annotations

from dataclasses import dataclass

import flatbuffers
import numpy as np
import numpy.typing as npt
import onnx
from ai_edge_litert import schema_py_generated as schema
from network import STRIDES, Activations, Array, Weights, same_padding
from onnx import TensorProto, helper, numpy_helper


def to_onnx(weights: Weights) -> bytes:
    """Return the network as ONNX (NCHW, one input ``image``, one output ``probabilities``)."""
    nodes, initializers, current, size = [], [], "image", 8
    for name, stride in STRIDES.items():
        before, after = same_padding(size, 3, stride)
        initializers.append(numpy_helper.from_array(np.ascontiguousarray(weights[name].transpose(3, 2, 0, 1)), name))
        initializers.append(numpy_helper.from_array(weights[f"{name}_bias"], f"{name}_bias"))
        nodes.append(
            helper.make_node(
                "Conv",
                [current, name, f"{name}_bias"],
                [f"{name}_sum"],
                name=name,
                kernel_shape=[3, 3],
                strides=[stride, stride],
                pads=[before, before, after, after],
            )
        )
        nodes.append(helper.make_node("Relu", [f"{name}_sum"], [f"{name}_out"], name=f"{name}_relu"))
        current, size = f"{name}_out", -(-size // stride)
    # Flatten iterates over C, H, W here, and over H, W, C in the network
    dense = weights["dense"].reshape(size, size, -1, 10).transpose(2, 0, 1, 3).reshape(-1, 10)
    initializers.append(numpy_helper.from_array(np.ascontiguousarray(dense), "dense"))
    initializers.append(numpy_helper.from_array(weights["dense_bias"], "dense_bias"))
    nodes.append(helper.make_node("Flatten", [current], ["features"], name="flatten"))
    nodes.append(helper.make_node("Gemm", ["features", "dense", "dense_bias"], ["logits"], name="dense"))
    nodes.append(helper.make_node("Softmax", ["logits"], ["probabilities"], name="softmax", axis=1))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 10])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.producer_name = "mlfc digits example"
    onnx.checker.check_model(model)
    return model.SerializeToString(deterministic=True)


@dataclass
class Scale:
    """``real = scale * (integer - zero_point)``."""

    scale: float
    zero_point: int


def activation_scale(values: Array) -> Scale:
    """Return the int8 scale that covers all calibrated values and zero."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scale = float(np.float32((high - low) / 255))
    return Scale(scale, round(-128 - low / scale))


class TfliteWriter:
    """Collector of the tensors and operators of one TFLite subgraph."""

    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version, self.model.description = 3, "mlfc digits example"
        self.model.buffers, self.model.operatorCodes = [schema.BufferT()], []
        self.graph = schema.SubGraphT()
        self.graph.name, self.graph.tensors, self.graph.operators = "main", [], []
        self.model.subgraphs = [self.graph]

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: int,
        scales: list[Scale],
        data: npt.NDArray[np.generic] | None = None,
        axis: int = 0,
    ) -> int:
        """Add a tensor, a constant if it has data; return its index."""
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.type, tensor.buffer = name, list(shape), dtype, 0
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale = [item.scale for item in scales]
        tensor.quantization.zeroPoint = [item.zero_point for item in scales]
        tensor.quantization.quantizedDimension = axis
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(data.tobytes(), np.uint8)
            tensor.buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def operator(self, code: int, version: int, kind: int, options: object, inputs: list[int], output: int) -> None:
        """Add an operator."""
        entry = schema.OperatorCodeT()
        entry.builtinCode = entry.deprecatedBuiltinCode = code
        entry.version = version
        operator = schema.OperatorT()
        operator.opcodeIndex = len(self.model.operatorCodes)
        operator.inputs, operator.outputs = inputs, [output]
        operator.builtinOptionsType, operator.builtinOptions = kind, options
        self.model.operatorCodes.append(entry)
        self.graph.operators.append(operator)

    def to_bytes(self, inputs: list[int], outputs: list[int]) -> bytes:
        """Return the file."""
        self.graph.inputs, self.graph.outputs = inputs, outputs
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _layer(writer: TfliteWriter, name: str, weights: Weights, source: Scale, *, per_channel: bool) -> tuple[int, int]:
    """Add the quantized weights (output channels first) and the bias of a layer; return both indices."""
    real = np.moveaxis(weights[name], -1, 0)
    limits = np.abs(real.reshape(len(real), -1)).max(axis=1) if per_channel else np.abs(real).max().reshape(1)
    steps = (limits / 127).astype(np.float32)
    shaped = steps.reshape(-1, *[1] * (real.ndim - 1))
    integers = np.clip(np.round(real / shaped), -127, 127).astype(np.int8)
    bias_steps = steps.astype(np.float64) * source.scale
    bias = np.round(weights[f"{name}_bias"] / bias_steps).astype(np.int32)
    weight = writer.tensor(
        name,
        integers.shape,
        schema.TensorType.INT8,
        [Scale(float(s), 0) for s in steps],
        np.ascontiguousarray(integers),
    )
    scales = [Scale(float(s), 0) for s in bias_steps]
    return weight, writer.tensor(f"{name}_bias", bias.shape, schema.TensorType.INT32, scales, bias)


def to_tflite(weights: Weights, x: Array, seen: Activations) -> bytes:
    """Return the network as int8 TFLite, quantized after training with the activation ranges in `seen`."""
    writer, int8 = TfliteWriter(), schema.TensorType.INT8
    scale = activation_scale(x)
    first = current = writer.tensor("image", (1, 8, 8, 1), int8, [scale])
    size = 8
    for name, stride in STRIDES.items():
        weight, bias = _layer(writer, name, weights, scale, per_channel=True)
        size, scale = -(-size // stride), activation_scale(seen.outputs[name])
        output = writer.tensor(f"{name}_out", (1, size, size, weights[name].shape[-1]), int8, [scale])
        options = schema.Conv2DOptionsT()
        options.padding, options.strideW, options.strideH = schema.Padding.SAME, stride, stride
        options.fusedActivationFunction = schema.ActivationFunctionType.RELU
        kind = schema.BuiltinOptions.Conv2DOptions
        writer.operator(schema.BuiltinOperator.CONV_2D, 3, kind, options, [current, weight, bias], output)
        current = output
    features = writer.tensor("features", (1, 256), int8, [scale])
    shape = writer.tensor("features_shape", (2,), schema.TensorType.INT32, [], np.array([1, 256], np.int32))
    options = schema.ReshapeOptionsT()
    options.newShape = [1, 256]
    kind = schema.BuiltinOptions.ReshapeOptions
    writer.operator(schema.BuiltinOperator.RESHAPE, 1, kind, options, [current, shape], features)
    weight, bias = _layer(writer, "dense", weights, scale, per_channel=False)
    logits = writer.tensor("logits", (1, 10), int8, [activation_scale(seen.logits)])
    kind = schema.BuiltinOptions.FullyConnectedOptions
    writer.operator(
        schema.BuiltinOperator.FULLY_CONNECTED,
        4,
        kind,
        schema.FullyConnectedOptionsT(),
        [features, weight, bias],
        logits,
    )
    output = writer.tensor("probabilities", (1, 10), int8, [Scale(1 / 256, -128)])
    options = schema.SoftmaxOptionsT()
    options.beta = 1.0
    writer.operator(schema.BuiltinOperator.SOFTMAX, 2, schema.BuiltinOptions.SoftmaxOptions, options, [logits], output)
    return writer.to_bytes([first], [output])
