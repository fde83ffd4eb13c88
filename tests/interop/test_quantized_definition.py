"""Quantized convolutions and dense layers compared bit for bit with ONNX's definition of QLinearConv, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import mlfc
from tests.harness import compiled
from tests.onnx_models import Array, model

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
X_SCALE, Y_SCALE = np.float32(0.021), np.float32(0.037)


@dataclass(frozen=True)
class Case:
    """A convolution: dtypes of activations and weights, groups, stride, and whether scales are per channel."""

    activations: type[np.generic]
    weights: type[np.generic]
    groups: int = 1
    stride: int = 1
    per_channel: bool = False


CASES = [
    Case(np.uint8, np.uint8),
    Case(np.uint8, np.int8, per_channel=True),
    Case(np.int8, np.int8, stride=2),
    Case(np.int8, np.int8, groups=4, per_channel=True),
    Case(np.uint8, np.int8, groups=2, stride=2),
]


@dataclass(frozen=True)
class Layer:
    """The numbers of a case: input, weights, bias, scales and zero points."""

    x: Array
    w: Array
    bias: Array
    x_zero: Array
    w_scale: Array
    w_zero: Array
    y_zero: Array


def layer(case: Case) -> Layer:
    rng = np.random.default_rng(CASES.index(case))

    def integers(dtype: type[np.generic], shape: tuple[int, ...]) -> Array:
        limits = np.iinfo(dtype)  # type: ignore[type-var]  # always an integer type
        return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)

    channels = (8,) if case.per_channel else ()
    signed = case.weights is np.int8
    return Layer(
        x=integers(case.activations, (1, 4, 9, 8)),
        w=integers(case.weights, (8, 4 // case.groups, 3, 3)),
        bias=rng.integers(-3000, 3000, 8).astype(np.int32),
        x_zero=integers(case.activations, ()),
        w_scale=rng.uniform(0.001, 0.004, channels).astype(np.float32),
        w_zero=np.zeros(channels, case.weights) if signed else integers(case.weights, channels),
        y_zero=integers(case.activations, ()),
    )


def defined(case: Case, it: Layer) -> Array:
    """Return the result by definition: int32 sums, one float32 multiplication, ties to even, saturation."""
    x = np.pad(it.x.astype(np.int32) - it.x_zero, ((0, 0), (0, 0), (1, 1), (1, 1)))
    w = it.w.astype(np.int32) - it.w_zero.astype(np.int32).reshape(-1, 1, 1, 1)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, :: case.stride, :: case.stride]
    each = 4 // case.groups
    sums = np.stack(
        [
            np.einsum("nchwij,cij->nhw", windows[:, (first := o * case.groups // 8 * each) : first + each], w[o])
            for o in range(8)
        ],
        axis=1,
    ) + it.bias.reshape(-1, 1, 1)
    multiplier = (X_SCALE * it.w_scale / Y_SCALE).reshape(-1, 1, 1)
    limits = np.iinfo(case.activations)  # type: ignore[type-var]  # always an integer type
    rounded = np.rint(sums.astype(np.float32) * multiplier) + it.y_zero
    result: Array = np.clip(rounded, limits.min, limits.max).astype(case.activations)
    return result


def network(case: Case, it: Layer, *, qdq: bool) -> ModelProto:
    weights = {
        "xs": X_SCALE, "xz": it.x_zero, "w": it.w, "ws": it.w_scale, "wz": it.w_zero, "ys": Y_SCALE,
        "yz": it.y_zero, "b": it.bias, "bs": X_SCALE * it.w_scale, "bz": np.zeros(it.w_scale.shape, np.int32),
    }  # fmt: skip
    attrs = {"pads": [1] * 4, "strides": [case.stride] * 2, "group": case.groups, "kernel_shape": [3, 3]}
    if qdq:
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
            helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
            helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bf"], axis=0),
            helper.make_node("Conv", ["xf", "wf", "bf"], ["yf"], **attrs),
            helper.make_node("QuantizeLinear", ["yf", "ys", "yz"], ["y"]),
        ]
    else:
        names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
        nodes = [helper.make_node("QLinearConv", names, ["y"], **attrs)]
        weights = {name: weights[name] for name in names[1:]}
    dtype = TensorProto.UINT8 if case.activations is np.uint8 else TensorProto.INT8
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    return model(nodes, {"x": it.x.shape}, ["y"], arrays, dtype=dtype)


@pytest.mark.parametrize("qdq", [True, False], ids=["QDQ", "QLinearConv"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.activations.__name__}-{case.weights.__name__}")
def test_convolution_is_the_definition(case: Case, qdq: bool, tmp_path: Path) -> None:
    it = layer(case)
    module, params = mlfc.import_model(network(case, it, qdq=qdq).SerializeToString())
    (found,) = compiled(module, params, tmp_path).run({"x": it.x}).values()
    expected = defined(case, it)
    assert len(np.unique(expected)) > 50
    np.testing.assert_array_equal(found, expected)
