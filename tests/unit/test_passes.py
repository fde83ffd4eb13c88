"""Every pass preserves the results of a graph: small ONNX graphs against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from mlfc.errors import InputError
from mlfc.frontend.onnx import import_onnx
from mlfc.relay import ir
from mlfc.transform import PASSES, pipeline
from mlfc.transform.bind_params import BindParams
from mlfc.transform.fuse import FuseOps
from tests.onnx_graphs import GRAPHS, GraphMaker
from tests.relay_run import Array, operators, run_main

# one step of the graph's last quantization; 0 if the result is a plain float
QUANTA = {
    "quantized_conv_relu": 0.05, "quantized_conv_per_channel": 0.05, "quantized_matmul": 0.2,
    "quantized_movement": 0, "quantized_residual": 0.04, "quantized_padded_conv": 0.05,
}  # fmt: skip


def model(name: str) -> bytes:
    maker = GraphMaker()
    return maker.model(GRAPHS[name](maker))


def reference(data: bytes, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def image() -> Array:
    return np.random.default_rng(1).standard_normal((2, 4, 6, 5)).astype(np.float32)


def transformed(name: str) -> tuple[bytes, ir.IRModule]:
    data = model(name)
    module, params = import_onnx(data, name)
    result = module.main.type.result

    def after_each(step: str, changed: ir.IRModule) -> None:
        assert changed.main.type.result == result, f"{step} changed the type of the result"

    return data, pipeline.run(module, params, after_each=after_each)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_passes_together_compute_what_onnx_runtime_computes(name: str) -> None:
    data, module = transformed(name)
    x = image()
    expected = reference(data, x)
    (found,) = run_main(module, {"x": x})
    quantum = QUANTA.get(name, 0)
    assert found.shape == expected.shape
    difference = np.abs(found.astype(np.float64) - expected)
    assert difference.max() <= quantum * 1.001 + 1e-5 * np.abs(expected).max()
    assert np.count_nonzero(difference > quantum / 2 + 1e-5 * np.abs(expected).max()) <= expected.size // 50


@pytest.mark.parametrize("name", GRAPHS)
def test_a_second_run_changes_nothing(name: str) -> None:
    module, params = import_onnx(model(name), name)
    module = BindParams(params)(module)
    for step in PASSES[:-1]:
        module = step(module)
    once = operators(module)
    for step in PASSES[:-1]:
        module = step(module)
    assert operators(module) == once


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("conv_norm_relu", ["transpose", "nn.conv2d+nn.bias_add+nn.relu", "transpose"]),
        ("depthwise_conv_with_multiplier_norm", ["transpose", "nn.conv2d+nn.bias_add", "transpose"]),
        ("grouped_conv_norm_scale", ["transpose", "nn.conv2d+nn.bias_add", "transpose"]),
        ("transposed_conv_with_scale", ["transpose", "nn.conv2d_transpose+nn.bias_add", "transpose"]),
        ("padded_conv", ["transpose", "nn.conv2d", "transpose"]),
        ("flatten_dense", ["transpose", "nn.conv2d+nn.relu", "reshape", "nn.dense+nn.bias_add"]),
        ("flatten_relu_matmul", ["transpose", "nn.conv2d+nn.relu", "reshape", "nn.dense+nn.bias_add"]),
        (
            "channel_shuffle",
            ["transpose", "nn.conv2d", "reshape", "transpose", "reshape", "nn.conv2d", "transpose"],
        ),
        ("patches_to_sequence", ["transpose", "nn.conv2d", "reshape", "nn.dense+add"]),
        ("nothing_but_neutral_operators", ["copy"]),
        (
            "quantized_conv_relu",
            ["qnn.quantize+transpose", "qnn.conv2d+nn.bias_add+qnn.requantize+clip", "transpose+qnn.dequantize"],
        ),
        ("quantized_padded_conv", ["qnn.quantize+transpose", "qnn.conv2d+qnn.requantize", "transpose+qnn.dequantize"]),
        ("quantized_matmul", ["qnn.quantize", "reshape", "qnn.dense+qnn.requantize+qnn.dequantize"]),
    ],
)
def test_groups(name: str, groups: list[str]) -> None:
    _, module = transformed(name)
    assert operators(module) == groups


def test_data_movement_is_on_integers() -> None:
    _, module = transformed("quantized_movement")
    names = "+".join(operators(module)).split("+")
    assert names.count("qnn.quantize") == 1
    assert names.count("qnn.dequantize") == 1
    assert names[-1] == "qnn.dequantize"


def test_weights_are_hwio_and_depthwise_weights_hwoi() -> None:
    for name, layout, shape in (
        ("conv_norm_relu", "HWIO", (3, 3, 4, 6)),
        ("depthwise_conv_with_multiplier_norm", "HWOI", (3, 3, 4, 2)),
        ("grouped_conv_norm_scale", "HWIO", (3, 3, 2, 6)),
    ):
        _, module = transformed(name)
        (conv,) = [node for node in inner_calls(module) if ir.op_name(node) == "nn.conv2d"]
        assert conv.attrs["kernel_layout"] == layout
        assert ir.tensor_type(conv.args[1]).shape == shape


def inner_calls(module: ir.IRModule) -> list[ir.Call]:
    from mlfc.relay.visitor import post_order

    groups = [node.op for node in post_order(module.main.body) if isinstance(node, ir.Call)]
    bodies = [group.body for group in groups if isinstance(group, ir.Function)]
    return [node for body in bodies for node in post_order(body) if isinstance(node, ir.Call)]


def test_names_of_the_result_survive() -> None:
    data = model("conv_norm_relu")
    module, params = import_onnx(data, "m")
    name = module.output_names[0]
    assert pipeline.run(module, params).main.body.span.tensor == name
    assert isinstance(PASSES[-1], FuseOps)


def test_values_of_another_model_are_refused() -> None:
    x = ir.Var("x", ir.TensorType((2,), "float32"))
    module = ir.IRModule({"main": ir.Function((x,), ir.call("nn.relu", [x]))})
    with pytest.raises(InputError, match=r"no parameter 'p0'.*import_model"):
        BindParams({"p0": np.ones(2, np.float32)})(module)
