"""Dense layers, matrix products, convolutions of other ranks and transposed ones, against numpy and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlfc.relay import ir
from mlfc.target.features import Features
from tests.native.kernel_runner import Kernels, group_of

Array = npt.NDArray[Any]

TARGETS = {"wide": Features(vector_registers=32), "default": Features(), "plain": Features(vector_bytes=0, dot4=False)}


def check(body: ir.Expr, params: Sequence[ir.Var], inputs: Sequence[Array], expected: Array) -> None:
    """Fail unless the kernels of all targets compute what they must: floats nearly."""
    group = group_of(body, params)
    kernels = Kernels({name: (group, features) for name, features in TARGETS.items()})
    for name in TARGETS:
        result = kernels[name](*inputs)
        if result.dtype.kind == "f":
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(result, expected, err_msg=name)


def var(name: str, array: Array) -> ir.Var:
    return ir.Var(name, ir.TensorType(array.shape, str(array.dtype)))


def floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize("shape", [(1, 300), (5, 17), (3, 1, 4, 8), (2, 3, 33), (23,)])
@pytest.mark.parametrize("units", [1, 10, 130])
def test_dense_layer_with_bias(shape: tuple[int, ...], units: int) -> None:
    data, weights, bias = floats(1, *shape), floats(2, units, shape[-1]), floats(3, units)
    x = var("x", data)
    call = ir.call("nn.dense", [x, ir.const(weights)], units=units)
    body = ir.call("nn.bias_add", [call, ir.const(bias)], axis=len(shape) - 1)
    check(body, [x], [data], data.astype(np.float64) @ weights.T + bias)


@pytest.mark.parametrize(("rows", "reduction", "units"), [(1, 640, 128), (3, 7, 5), (9, 64, 48)])
def test_quantized_dense_layer_is_exact(rows: int, reduction: int, units: int) -> None:
    data, weights = integers(1, rows, reduction), integers(2, units, reduction)
    x = var("x", data)
    call = ir.call(
        "qnn.dense",
        [x, ir.const(weights), ir.const(-3), ir.const(2), ir.const(0.5), ir.const(0.5)],
        units=units, out_dtype="int32",
    )  # fmt: skip
    expected = (data.astype(np.int64) + 3) @ (weights.T.astype(np.int64) - 2)
    check(call, [x], [data], expected)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batches", [(3, 3), (4, 1), (1, 2)])
def test_product_of_two_computed_batches(batches: tuple[int, int], transpose_b: bool, transpose_a: bool) -> None:
    a, b = floats(1, batches[0], 13, 21), floats(2, batches[1], 21, 37)
    left = np.ascontiguousarray(a.swapaxes(1, 2)) if transpose_a else a
    right = np.ascontiguousarray(b.swapaxes(1, 2)) if transpose_b else b
    x, y = var("x", left), var("y", right)
    call = ir.call("nn.batch_matmul", [x, y], transpose_a=transpose_a, transpose_b=transpose_b)
    check(call, [x, y], [left, right], a.astype(np.float64) @ b)


@pytest.mark.parametrize("shape", [(9,), (1, 9), (6, 9), (2, 6, 9)])
def test_matmul_of_computed_weights(shape: tuple[int, ...]) -> None:
    a, b = floats(1, *shape), floats(2, 9, 20)
    x, y = var("x", a), var("y", b)
    call = ir.call("nn.matmul", [x, y], units=None)
    check(call, [x, y], [a, b], a.astype(np.float64) @ b)


def test_matmul_with_constant_right_side() -> None:
    a, b = floats(1, 2, 6, 9), floats(2, 9, 20)
    x = var("x", a)
    call = ir.call("nn.matmul", [x, ir.const(b)], units=None)
    check(call, [x], [a], a.astype(np.float64) @ b)


def test_quantized_product_of_two_computed_batches_is_exact() -> None:
    a, b = integers(1, 2, 5, 19), integers(2, 2, 18, 19)
    x, y = var("x", a), var("y", b)
    zeros = [ir.const(4), ir.const(-9), ir.const(0.5), ir.const(0.5)]
    call = ir.call("qnn.batch_matmul", [x, y, *zeros], transpose_b=True, out_dtype="int32")
    expected = (a.astype(np.int64) - 4) @ (b.astype(np.int64) + 9).swapaxes(1, 2)
    check(call, [x, y], [a, b], expected)


def onnx_runtime(operator: str, data: Array, weights: Array, **attributes: Any) -> Array:
    """Run one ONNX convolution in its own channels-first layout."""
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"], **attributes)], "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, data.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "c", *"dhw"[: data.ndim - 2]])],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": data})[0]


@pytest.mark.parametrize("groups", [1, 3])
def test_convolution_over_one_dimension(groups: int) -> None:
    data, weights = floats(1, 2, 6, 31), floats(2, 9, 6 // groups, 4)
    expected = onnx_runtime("Conv", data, weights, strides=[2], pads=[1, 2], dilations=[3], group=groups)
    last = np.ascontiguousarray(data.transpose(0, 2, 1))
    x = var("x", last)
    call = ir.call(
        "nn.conv1d", [x, ir.const(weights)], strides=(2,), padding=(1, 2), dilation=(3,), groups=groups,
        data_layout="NWC", kernel_layout="OIW",
    )  # fmt: skip
    check(call, [x], [last], expected.transpose(0, 2, 1))


def test_convolution_over_three_dimensions() -> None:
    data, weights = floats(1, 1, 4, 6, 7, 5), floats(2, 6, 2, 3, 2, 3)
    expected = onnx_runtime("Conv", data, weights, strides=[1, 2, 1], pads=[1, 0, 1, 0, 1, 1], group=2)
    last = np.ascontiguousarray(data.transpose(0, 2, 3, 4, 1))
    x = var("x", last)
    call = ir.call(
        "nn.conv3d", [x, ir.const(weights)], strides=(1, 2, 1), padding=(1, 0, 1, 0, 1, 1), groups=2,
        data_layout="NDHWC", kernel_layout="OIDHW",
    )  # fmt: skip
    check(call, [x], [last], expected.transpose(0, 2, 3, 4, 1))


TRANSPOSED = {
    "2x2_stride_2": ((1, 4, 5, 6), (4, 7, 2, 2), {"strides": [2, 2]}),
    "padding_and_output_padding": (
        (2, 3, 4, 4), (3, 5, 3, 3), {"strides": [2, 3], "pads": [1, 0, 1, 1], "output_padding": [1, 2]},
    ),
    "dilated_groups": ((1, 6, 4, 3), (6, 2, 3, 2), {"dilations": [2, 1], "group": 3}),
    "wide": ((1, 8, 5, 5), (8, 33, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution(name: str) -> None:
    shape, kernel, attributes = TRANSPOSED[name]
    data, weights = floats(1, *shape), floats(2, *kernel)
    expected = onnx_runtime("ConvTranspose", data, weights, **attributes)
    last = np.ascontiguousarray(data.transpose(0, 2, 3, 1))
    x = var("x", last)
    call = ir.call(
        "nn.conv2d_transpose", [x, ir.const(weights)], data_layout="NHWC", kernel_layout="IOHW",
        strides=attributes.get("strides", (1, 1)), padding=attributes.get("pads", (0, 0, 0, 0)),
        dilation=attributes.get("dilations", (1, 1)), groups=attributes.get("group", 1),
        output_padding=attributes.get("output_padding", (0, 0)),
    )  # fmt: skip
    assert call.op.macs([x.type, call.args[1].type], call.attrs, call.type) == data.size * weights[0].size
    check(call, [x], [last], expected.transpose(0, 2, 3, 1))


def test_quantized_transposed_convolution_is_exact() -> None:
    data, weights = integers(1, 1, 5, 4, 3), integers(2, 3, 6, 3, 3)
    centered = data.astype(np.int64) - 11
    expected = onnx_runtime(
        "ConvTranspose", centered.astype(np.float32).transpose(0, 3, 1, 2), weights.astype(np.float32), strides=[2, 2]
    )
    x = var("x", data)
    constants = [ir.const(weights), ir.const(11), ir.const(0), ir.const(0.5), ir.const(0.5)]
    call = ir.call(
        "qnn.conv2d_transpose", [x, *constants], strides=(2, 2), data_layout="NHWC", kernel_layout="IOHW",
        out_dtype="int32",
    )  # fmt: skip
    check(call, [x], [data], expected.transpose(0, 2, 3, 1).astype(np.int64))
