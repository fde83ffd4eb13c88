"""Models in all forms of ONNX Runtime's quantizer compute exactly ONNX Runtime's unfused results."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

import mlfc
from tests.harness import compiled
from tests.onnx_models import small_network

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
SHAPE = (1, 2, 4, 4)


def _reference_saturates() -> bool:
    """Return whether ONNX Runtime saturates sums of two u8 x s8 products at 16 bits.

    It does so on x86 processors without an integer dot product; its quantizer offers 7-bit weights for them.
    """
    flags = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not flags.exists():
        return False
    return not {"avx512_vnni", "avx_vnni"} & {*flags.read_text().split()}


REFERENCE_SATURATES = _reference_saturates()


class _Samples(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
    def __init__(self) -> None:
        self._rest = iter(samples(0, 10))

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rest, None)


def samples(seed: int, count: int) -> list[dict[str, Any]]:
    """Return seeded inputs."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8])
def test_dynamically_quantized_network_is_bit_exact_up_to_its_floats(weights: Any, tmp_path: Path) -> None:
    onnx.save(small_network(), tmp_path / "float.onnx")
    path = tmp_path / "quantized.onnx"
    operators = ["Conv", "MatMul", "Gemm"]
    quantize_dynamic(tmp_path / "float.onnx", path, operators, weight_type=weights, reduce_range=REFERENCE_SATURATES)
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    assert {"DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"} <= kinds
    session = onnxruntime.InferenceSession(path, unoptimized(), providers=["CPUExecutionProvider"])
    module, params = mlfc.import_model(path)
    ours = compiled(module, params, tmp_path)
    for inputs in samples(1, 20):
        (expected,) = session.run(None, inputs)
        (result,) = ours.run(inputs).values()
        # floats between the layers round differently, which may change a quantized value by one step, 1/255 of its
        # range
        np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6)


def unoptimized() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


# pairwise combinations
@pytest.mark.parametrize(
    ("form", "per_channel", "activations"),
    [
        (QuantFormat.QDQ, False, QuantType.QInt8),
        (QuantFormat.QDQ, True, QuantType.QUInt8),
        (QuantFormat.QOperator, False, QuantType.QUInt8),
        (QuantFormat.QOperator, True, QuantType.QInt8),
    ],
)
def test_quantized_network_is_bit_exact(form: Any, per_channel: bool, activations: Any, tmp_path: Path) -> None:
    network = small_network()
    network.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3]))
    onnx.save(network, tmp_path / "float.onnx")
    path = tmp_path / "quantized.onnx"
    quantize_static(
        tmp_path / "float.onnx", path, _Samples(), form, per_channel=per_channel, activation_type=activations,
        reduce_range=REFERENCE_SATURATES and activations is QuantType.QUInt8,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(path, unoptimized(), providers=["CPUExecutionProvider"])
    module, params = mlfc.import_model(path)
    ours = compiled(module, params, tmp_path)
    results = []
    for inputs in samples(1, 20):
        (expected,) = session.run(None, inputs)
        (result,) = ours.run(inputs).values()
        np.testing.assert_array_equal(result, expected)
        results.append(result)
    assert np.ptp(np.stack(results)) > 0


@pytest.mark.parametrize("target", ["c -mcpu=native", "llvm -mcpu=native"])
@pytest.mark.parametrize("is_shown", [False, True], ids=["fused", "apart"])
def test_sums_of_dequantized_codes_round_as_defined(target: str, is_shown: bool) -> None:
    """Use codes halfway between two results, which a fused multiply-add with the constant would round to the other one.

    If the sum is also an output, it and its quantization may be in separate kernels.
    """
    step = np.float32(0.015686275)
    node = helper.make_node
    nodes = [
        node("DequantizeLinear", ["x", "step", "low"], ["real"]),
        node("Sub", ["real", "two"], ["sum"]),
        node("QuantizeLinear", ["sum", "step", "zero"], ["y"]),
    ]
    held = {"step": step, "two": np.float32(2), "low": np.int8(-128), "zero": np.int8(0)}
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT8, [256])]
    outputs += [helper.make_tensor_value_info("sum", TensorProto.FLOAT, [256])] * is_shown
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.INT8, [256])], outputs,
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    codes = np.arange(-128, 128).astype(np.int8)
    real = (codes.astype(np.float32) + np.float32(128)) * step
    expected = np.clip(np.rint((real - np.float32(2)) / step), -128, 127).astype(np.int8)
    session = onnxruntime.InferenceSession(made.SerializeToString(), unoptimized(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(["y"], {"x": codes})[0], expected)
    np.testing.assert_array_equal(mlfc.compile(made, target=target).run({"x": codes})["y"], expected)
