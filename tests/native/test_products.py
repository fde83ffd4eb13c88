"""Dense layers, matrix products, convolutions of other ranks and transposed ones, against numpy and ONNX Runtime.

All kernels are built together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
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


@dataclass(frozen=True, eq=False)
class Product:
    """A product of variables and constants, its variables with their values, and the expected result."""

    body: ir.Expr
    params: Sequence[ir.Var]
    inputs: Sequence[Array]
    expected: Array


def var(name: str, array: Array) -> ir.Var:
    return ir.Var(name, ir.TensorType(array.shape, str(array.dtype)))


def floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def dense(shape: tuple[int, ...], units: int) -> Product:
    data, weights, bias = floats(1, *shape), floats(2, units, shape[-1]), floats(3, units)
    x = var("x", data)
    call = ir.call("nn.dense", [x, ir.const(weights)], units=units)
    body = ir.call("nn.bias_add", [call, ir.const(bias)], axis=len(shape) - 1)
    return Product(body, [x], [data], data.astype(np.float64) @ weights.T + bias)


def quantized_dense(rows: int, reduction: int, units: int) -> Product:
    data, weights = integers(1, rows, reduction), integers(2, units, reduction)
    x = var("x", data)
    call = ir.call(
        "qnn.dense",
        [x, ir.const(weights), ir.const(-3), ir.const(2), ir.const(0.5), ir.const(0.5)],
        units=units, out_dtype="int32",
    )  # fmt: skip
    expected = (data.astype(np.int64) + 3) @ (weights.T.astype(np.int64) - 2)
    return Product(call, [x], [data], expected)


def batch_product(batches: tuple[int, int], transpose_b: bool, transpose_a: bool) -> Product:
    a, b = floats(1, batches[0], 13, 21), floats(2, batches[1], 21, 37)
    left = np.ascontiguousarray(a.swapaxes(1, 2)) if transpose_a else a
    right = np.ascontiguousarray(b.swapaxes(1, 2)) if transpose_b else b
    x, y = var("x", left), var("y", right)
    call = ir.call("nn.batch_matmul", [x, y], transpose_a=transpose_a, transpose_b=transpose_b)
    return Product(call, [x, y], [left, right], a.astype(np.float64) @ b)


def computed_matmul(shape: tuple[int, ...]) -> Product:
    a, b = floats(1, *shape), floats(2, 9, 20)
    x, y = var("x", a), var("y", b)
    call = ir.call("nn.matmul", [x, y], units=None)
    return Product(call, [x, y], [a, b], a.astype(np.float64) @ b)


def constant_matmul() -> Product:
    a, b = floats(1, 2, 6, 9), floats(2, 9, 20)
    x = var("x", a)
    call = ir.call("nn.matmul", [x, ir.const(b)], units=None)
    return Product(call, [x], [a], a.astype(np.float64) @ b)


def quantized_batches() -> Product:
    a, b = integers(1, 2, 5, 19), integers(2, 2, 18, 19)
    x, y = var("x", a), var("y", b)
    zeros = [ir.const(4), ir.const(-9), ir.const(0.5), ir.const(0.5)]
    call = ir.call("qnn.batch_matmul", [x, y, *zeros], transpose_b=True, out_dtype="int32")
    expected = (a.astype(np.int64) - 4) @ (b.astype(np.int64) + 9).swapaxes(1, 2)
    return Product(call, [x, y], [a, b], expected)


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


def conv1d(groups: int) -> Product:
    data, weights = floats(1, 2, 6, 31), floats(2, 9, 6 // groups, 4)
    expected = onnx_runtime("Conv", data, weights, strides=[2], pads=[1, 2], dilations=[3], group=groups)
    last = np.ascontiguousarray(data.transpose(0, 2, 1))
    x = var("x", last)
    call = ir.call(
        "nn.conv1d", [x, ir.const(weights)], strides=(2,), padding=(1, 2), dilation=(3,), groups=groups,
        data_layout="NWC", kernel_layout="OIW",
    )  # fmt: skip
    return Product(call, [x], [last], expected.transpose(0, 2, 1))


def conv3d() -> Product:
    data, weights = floats(1, 1, 4, 6, 7, 5), floats(2, 6, 2, 3, 2, 3)
    expected = onnx_runtime("Conv", data, weights, strides=[1, 2, 1], pads=[1, 0, 1, 0, 1, 1], group=2)
    last = np.ascontiguousarray(data.transpose(0, 2, 3, 4, 1))
    x = var("x", last)
    call = ir.call(
        "nn.conv3d", [x, ir.const(weights)], strides=(1, 2, 1), padding=(1, 0, 1, 0, 1, 1), groups=2,
        data_layout="NDHWC", kernel_layout="OIDHW",
    )  # fmt: skip
    return Product(call, [x], [last], expected.transpose(0, 2, 3, 4, 1))


TRANSPOSED = {
    "2x2_stride_2": ((1, 4, 5, 6), (4, 7, 2, 2), {"strides": [2, 2]}),
    "padding_and_output_padding": (
        (2, 3, 4, 4), (3, 5, 3, 3), {"strides": [2, 3], "pads": [1, 0, 1, 1], "output_padding": [1, 2]},
    ),
    "dilated_groups": ((1, 6, 4, 3), (6, 2, 3, 2), {"dilations": [2, 1], "group": 3}),
    "wide": ((1, 8, 5, 5), (8, 33, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "few": ((2, 20, 9, 5), (20, 3, 3, 3), {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
    "few, kernel_is_stride": ((1, 24, 5, 4), (24, 1, 2, 2), {"strides": [2, 2]}),
    "few, borders_cut_off": ((1, 9, 7, 6), (9, 2, 5, 4), {"strides": [2, 3], "pads": [3, 4, 0, 2]}),
    "few, without_taps": ((1, 8, 4, 3), (8, 3, 2, 2), {"strides": [3, 3], "output_padding": [1, 0]}),
    "few, dilated": ((1, 10, 4, 6), (10, 3, 3, 2), {"strides": [2, 1], "dilations": [3, 2], "pads": [1, 0, 2, 1]}),
    "few, line": ((2, 12, 9), (12, 2, 5), {"strides": [3], "pads": [1, 2]}),
}  # fmt: skip


def transposed_convolution(shape: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, Any]) -> Product:
    data, weights = floats(1, *shape), floats(2, *kernel)
    expected = onnx_runtime("ConvTranspose", data, weights, **attributes)
    rank, last = len(shape) - 2, np.ascontiguousarray(np.moveaxis(data, 1, -1))
    letters, x = "DHW"[-rank:], var("x", last)
    call = ir.call(
        f"nn.conv{rank}d_transpose", [x, ir.const(weights)], data_layout=f"N{letters}C", kernel_layout=f"IO{letters}",
        strides=attributes.get("strides", (1,) * rank), padding=attributes.get("pads", (0,) * 2 * rank),
        dilation=attributes.get("dilations", (1,) * rank), groups=attributes.get("group", 1),
        output_padding=attributes.get("output_padding", (0,) * rank),
    )  # fmt: skip
    assert call.op.macs([x.type, call.args[1].type], call.attrs, call.type) == data.size * weights[0].size
    return Product(call, [x], [last], np.moveaxis(expected, 1, -1))


def quantized_transposed() -> Product:
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
    return Product(call, [x], [data], expected.transpose(0, 2, 3, 1).astype(np.int64))


MAKERS: dict[str, Callable[[], Product]] = {
    **{
        f"dense-{units}-{shape}": partial(dense, shape, units)
        for units, shape in product((1, 10, 130), [(1, 300), (5, 17), (3, 1, 4, 8), (2, 3, 33), (23,)])
    },
    **{
        f"quantized-dense-{sizes}": partial(quantized_dense, *sizes)
        for sizes in [(1, 640, 128), (3, 7, 5), (9, 64, 48)]
    },
    **{
        f"batches-{batches}-{transpose_b}-{transpose_a}": partial(batch_product, batches, transpose_b, transpose_a)
        for batches, transpose_b, transpose_a in product([(3, 3), (4, 1), (1, 2)], (False, True), (False, True))
    },
    **{f"matmul-{shape}": partial(computed_matmul, shape) for shape in [(9,), (1, 9), (6, 9), (2, 6, 9)]},
    "matmul-constant": constant_matmul,
    "quantized-batches": quantized_batches,
    **{f"conv1d-{groups}": partial(conv1d, groups) for groups in (1, 3)},
    "conv3d": conv3d,
    **{f"transposed-{name}": partial(transposed_convolution, *case) for name, case in TRANSPOSED.items()},
    "quantized-transposed": quantized_transposed,
}


@cache
def products() -> dict[str, Product]:
    return {name: make() for name, make in MAKERS.items()}


@cache
def kernels() -> Kernels[tuple[str, str]]:
    groups = {name: group_of(made.body, made.params) for name, made in products().items()}
    return Kernels({(name, key): (groups[name], TARGETS[key]) for name, key in PAIRS})


# more registers change the sizes of tiles: every other product has them
PAIRS = [(name, key) for place, name in enumerate(MAKERS) for key in TARGETS if key != "wide" or place % 2 == 0]


@pytest.mark.parametrize(("name", "target"), PAIRS)
def test_kernels_compute_what_they_must(name: str, target: str) -> None:
    made = products()[name]
    result = kernels()[name, target](*made.inputs)
    if result.dtype.kind == "f":
        np.testing.assert_allclose(result, made.expected, rtol=1e-5, atol=2e-5)
    else:
        np.testing.assert_array_equal(result, made.expected)
