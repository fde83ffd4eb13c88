"""Runtime weights and biases of TFLite's linear operators, against LiteRT."""

from __future__ import annotations

import numpy as np
import pytest

import mlfc
from mlfc.errors import MlfcError, UnsupportedError
from tests.tflite_builder import Op, T, build
from tests.tflite_sweep import computed, difference, late_forms, litert_of

_LINEAR = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")


def test_late_weights_give_what_litert_gives() -> None:
    forms = late_forms()
    run = [(form, found) for form, found in zip(forms, litert_of(forms), strict=True) if found is not None]
    differing = {
        form.title: wrong
        for (form, expected), found in zip(run, computed([form for form, _ in run]), strict=True)
        if (wrong := difference(found, expected))
    }
    assert differing == {}
    assert {form.code for form, _ in run} >= {*_LINEAR}


def test_channels_with_scales_of_their_own_take_late_weights() -> None:
    scales = np.linspace(0.01, 0.03, 5)
    tensors = [
        T("x", (2, 6), "int8", scale=0.1, zero=3), T("w", (5, 6), "int8", scale=scales),
        T("y", (2, 5), "int8", scale=0.9, zero=-4),
    ]  # fmt: skip
    data = build(tensors, [Op("FULLY_CONNECTED", ["x", "w"], ["y"], "FullyConnectedOptions")], ["x", "w"], ["y"])
    rng = np.random.default_rng(0)
    fed = {name: rng.integers(-127, 128, shape).astype(np.int8) for name, shape in (("x", (2, 6)), ("w", (5, 6)))}
    sums = (fed["x"].astype(np.int64) - 3) @ fed["w"].astype(np.int64).T
    exact = sums * (np.float64(np.float32(0.1)) * scales.astype(np.float32)) / np.float64(np.float32(0.9))
    expected = np.clip(np.copysign(np.floor(np.abs(exact) + 0.5), exact) - 4, -128, 127)
    np.testing.assert_array_equal(mlfc.compile(data, target="llvm").run(fed)["y"], expected)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (T("w", (5, 7), "int8", scale=0.1), "weights for 7 inputs"),
        (T("w", (5, 6), "int4", scale=0.1), "of 4 or 2 bits"),
    ],
)
def test_weights_that_do_not_fit_are_one_error(weights: T, message: str) -> None:
    tensors = [T("x", (2, 6), "int8", scale=0.1), weights, T("y", (2, 5), "int8", scale=0.9)]
    op = Op("FULLY_CONNECTED", ["x", "w"], ["y"], "FullyConnectedOptions")
    with pytest.raises(MlfcError, match=message):
        mlfc.import_model(build(tensors, [op], ["x", "w"], ["y"]))


@pytest.mark.parametrize("code", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_kernels_of_dynamic_size_are_refused_by_name(code: str) -> None:
    shape = (4, 3, 3, 3) if code == "CONV_2D" else (1, 3, 3, 3)
    tensors = [T("x", (1, 8, 8, 3)), T("w", shape), T("y", (1, 6, 6, shape[0 if code == "CONV_2D" else 3]))]
    options = "Conv2DOptions" if code == "CONV_2D" else "DepthwiseConv2DOptions"
    fields = {"StrideH": 1, "StrideW": 1, "Padding": 1}
    data = build(tensors, [Op(code, ["x", "w"], ["y"], options, fields)], ["x", "w"], ["y"])
    with pytest.raises(UnsupportedError, match="a kernel of dynamic size k x 3"):
        mlfc.import_model(data, dynamic=True, shapes={"w": (shape[0], mlfc.Dim("k", 1, 5), 3, shape[3])})
