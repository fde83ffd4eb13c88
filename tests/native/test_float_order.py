"""Without fused multiply-adds, float sums are those of the references, bit for bit: from zero, in order, bias last."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlforge.library.toolchain import NATIVE
from mlforge.relay import ir
from mlforge.target.features import Features
from tests.native.kernel_runner import build, group_of

Array = npt.NDArray[Any]

FLAGS = (NATIVE, "-O1", "-ffp-contract=off")
TARGETS = {"vector": Features(), "wide": Features(vector_registers=32), "plain": Features(vector_bytes=0, dot4=False)}


def in_order(data: Array, weights: Array, bias: Array, pad: int, depthwise: bool) -> Array:
    """Return the convolution summed in float32: kernel row, kernel column, channel; taps outside are left out."""
    height, width = data.shape[1:3]
    out = np.zeros((height, width, weights.shape[-1]), np.float32)
    for y in range(height):
        for x in range(width):
            for ky in range(weights.shape[0]):
                for kx in range(weights.shape[1]):
                    row, column = y + ky - pad, x + kx - pad
                    if not (0 <= row < height and 0 <= column < width):
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
