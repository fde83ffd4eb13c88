"""Float sums without fused multiply-adds are bit-identical to the references': from zero, in order, bias last."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlfc.library.toolchain import NATIVE
from mlfc.relay import ir
from mlfc.target.features import Features
from tests.native.kernel_runner import build, group_of

Array = npt.NDArray[Any]

FLAGS = (NATIVE, "-O1", "-ffp-contract=off")
TARGETS = {"vector": Features(), "wide": Features(vector_registers=32), "plain": Features(vector_bytes=0, dot4=False)}


def in_order(data: Array, weights: Array, bias: Array, pad: int, depthwise: bool) -> Array:
    """Return the convolution summed in float32 by kernel row, kernel column and channel, without taps outside."""
    height, width = (size + 2 * pad + 1 - kernel for size, kernel in zip(data.shape[1:3], weights.shape, strict=False))
    out = np.zeros((height, width, weights.shape[-1]), np.float32)
    for y in range(height):
        for x in range(width):
            for ky in range(weights.shape[0]):
                for kx in range(weights.shape[1]):
                    row, column = y + ky - pad, x + kx - pad
                    if not (0 <= row < data.shape[1] and 0 <= column < data.shape[2]):
                        continue
                    seen = data[0, row, column]
                    if depthwise:
                        out[y, x] += seen * weights[ky, kx, 0]
                        continue
                    for c, value in enumerate(seen):
                        out[y, x] += value * weights[ky, kx, c]
    return (out + bias)[None]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("channels", "filters", "kernel"), [(5, 20, 3), (18, 33, 1), (40, 40, 3)])
def test_sums_are_the_references_bit_for_bit(target: str, channels: int, filters: int, kernel: int) -> None:
    depthwise = channels == filters
    rng = np.random.default_rng(8)
    data = rng.standard_normal((1, 5, 9, channels)).astype(np.float32)
    weights = rng.standard_normal((kernel, kernel, 1 if depthwise else channels, filters)).astype(np.float32)
    bias = rng.standard_normal(filters).astype(np.float32)
    x = ir.Var("x", ir.TensorType(data.shape, "float32"))
    call = ir.call(
        "nn.conv2d", [x, ir.const(weights)], padding=(kernel // 2,) * 4, groups=channels if depthwise else 1,
        data_layout="NHWC", kernel_layout="HWIO",
    )  # fmt: skip
    body = ir.call("nn.bias_add", [call, ir.const(bias)], axis=3)
    result = build(group_of(body, [x]), TARGETS[target], FLAGS)(data)
    np.testing.assert_array_equal(result, in_order(data, weights, bias, kernel // 2, depthwise))


@pytest.mark.parametrize("target", TARGETS)
def test_dense_sums_are_the_references_bit_for_bit(target: str) -> None:
    rng = np.random.default_rng(9)
    data = rng.standard_normal((3, 50)).astype(np.float32)
    weights = rng.standard_normal((37, 50)).astype(np.float32)
    bias = rng.standard_normal(37).astype(np.float32)
    x = ir.Var("x", ir.TensorType(data.shape, "float32"))
    body = ir.call("nn.bias_add", [ir.call("nn.dense", [x, ir.const(weights)], units=37), ir.const(bias)])
    expected = np.zeros((3, 37), np.float32)
    for k in range(50):
        expected += data[:, k : k + 1] * weights[:, k]
    result = build(group_of(body, [x]), TARGETS[target], FLAGS)(data)
    np.testing.assert_array_equal(result, expected + bias)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("kernel", "channels"), [(1, 2048), (1, 1301), (3, 160), (3, 600), (17, 5)])
def test_long_sums_are_closer_to_the_truth_than_the_order_of_the_references(
    target: str, kernel: int, channels: int
) -> None:
    """Sum in pieces: by row, by tap, and by runs of channels with and without a divisor; padded planes use runs."""
    rng = np.random.default_rng(11)
    pad = min(kernel - 1, 1)
    data = rng.random((1, kernel, kernel + 1, channels), np.float32)
    weights = rng.random((kernel, kernel, channels, 20), np.float32)
    x = ir.Var("x", ir.TensorType(data.shape, "float32"))
    call = ir.call("nn.conv2d", [x, ir.const(weights)], padding=(pad,) * 4, data_layout="NHWC", kernel_layout="HWIO")
    result = build(group_of(call, [x]), TARGETS[target], FLAGS)(data)
    truth = exact(data, weights, pad)
    in_turn = in_order(data, weights, np.zeros(20, np.float32), pad, depthwise=False)
    assert distance(result, truth) < 0.75 * distance(in_turn, truth)


@pytest.mark.parametrize("target", TARGETS)
def test_long_products_are_closer_to_the_truth_than_the_order_of_the_references(target: str) -> None:
    rng = np.random.default_rng(12)
    a, b = rng.random((1, 3, 1500), np.float32), rng.random((1, 20, 1500), np.float32)
    first, second = (ir.Var(name, ir.TensorType(array.shape, "float32")) for name, array in (("a", a), ("b", b)))
    body = ir.call("nn.batch_matmul", [first, second], transpose_b=True)
    result = build(group_of(body, [first, second]), TARGETS[target], FLAGS)(a, b)
    in_turn = np.zeros((1, 3, 20), np.float32)
    for k in range(1500):
        in_turn += a[:, :, k, None] * b[:, None, :, k]
    truth = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)
    assert distance(result, truth) < 0.75 * distance(in_turn, truth)


def exact(data: Array, weights: Array, pad: int) -> Array:
    """Return the convolution in float64."""
    wide = np.pad(data[0].astype(np.float64), ((pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, weights.shape[:2], axis=(0, 1))
    return np.einsum("yxckl,klcf->yxf", windows, weights.astype(np.float64))[None]


def distance(values: Array, truth: Array) -> float:
    """Return the largest error relative to the truth."""
    return float(np.max(np.abs(values - truth) / np.abs(truth)))
