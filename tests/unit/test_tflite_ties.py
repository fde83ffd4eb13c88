"""Quantized operators where results lie halfway between two codes: there the last bit of a multiplier decides.

Random scales hardly ever meet such a place. Scales of round decimals and powers of two, as real models have them, do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.verify.litert import Reference
from tests.tflite_builder import Op, T, build

Array = npt.NDArray[np.integer]
_WINDOW = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1}


def _both(data: bytes, codes: Array, **options: str) -> tuple[Array, Array]:
    """Return what mlfc and LiteRT compute from the codes of input ``x``."""
    module, params = mlfc.import_model(data, **options)
    ours = load_factory(mlfc.build(module, params=params)).run({"x": codes})["y"]
    return np.asarray(ours), Reference(data).run({"x": codes})["y"]


def _linear(kind: str, dtype: str, scales: tuple[float, float, float]) -> tuple[bytes, Array]:
    """Return a model whose sums are its bias, at and beside ties, and its input."""
    in_scale, weight_scale, out_scale = (float(np.float32(scale)) for scale in scales)
    ties = np.rint((np.arange(-60, 60) + 0.5) * out_scale / (in_scale * weight_scale))
    sums = np.unique(np.concatenate([ties - 1, ties, ties + 1])).astype(np.int32)
    count, middle = len(sums), 128 if dtype == "uint8" else 0
    shapes = {
        "FULLY_CONNECTED": ((1, 2), (count, 2), (1, count)),
        "CONV_2D": ((1, 1, 1, 2), (count, 1, 1, 2), (1, 1, 1, count)),
        "DEPTHWISE_CONV_2D": ((1, 1, 1, count), (1, 1, 1, count), (1, 1, 1, count)),
    }[kind]
    options = {
        "FULLY_CONNECTED": ("FullyConnectedOptions", {}),
        "CONV_2D": ("Conv2DOptions", _WINDOW),
        "DEPTHWISE_CONV_2D": ("DepthwiseConv2DOptions", {**_WINDOW, "DepthMultiplier": 1}),
    }[kind]
    tensors = [
        T("x", shapes[0], dtype, scale=in_scale, zero=middle),
        T("w", shapes[1], dtype, np.full(shapes[1], middle), weight_scale, middle),
        T("b", (count,), "int32", sums, float(np.float32(in_scale) * np.float32(weight_scale))),
        T("y", shapes[2], dtype, scale=out_scale, zero=middle),
    ]
    return build(tensors, [Op(kind, ["x", "w", "b"], ["y"], *options)], ["x"], ["y"]), np.full(shapes[0], middle, dtype)


@pytest.mark.parametrize("scales", [(0.1, 0.02, 0.1), (0.05, 0.02, 0.4), (0.5, 0.25, 0.5)])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("kind", ["FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D"])
def test_sums_at_ties_round_as_the_reference(kind: str, dtype: str, scales: tuple[float, float, float]) -> None:
    data, codes = _linear(kind, dtype, scales)
    ours, theirs = _both(data, codes)
    np.testing.assert_array_equal(ours, theirs)


def test_tflm_multiplies_the_scales_of_fully_connected_in_float32() -> None:
    scales = (0.1, 0.02, 0.1)
    data, codes = _linear("FULLY_CONNECTED", "int8", scales)
    ours, theirs = _both(data, codes, numerics="tflm")
    # the float32 product lies above 0.02, the float64 product below: sums at ties go to different sides
    product = np.float32(scales[0]) * np.float32(scales[1])
    assert float(product) / float(np.float32(scales[2])) > 0.02
    assert set(np.abs(ours.astype(int) - theirs).flat) == {0, 1}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("scale", [2.0**-8, 2.0**-7, 2.0**-5, 0.1])
@pytest.mark.parametrize(("operator", "out_scale", "lowest"), [("LOGISTIC", 2.0**-8, True), ("TANH", 2.0**-7, False)])
def test_squashing_functions_are_exact_on_every_code(
    operator: str, out_scale: float, lowest: bool, scale: float, dtype: str
) -> None:
    codes = np.arange(256).astype(np.uint8).view(dtype)[None]
    middle = 0 if dtype == "int8" else 128
    tensors = [
        T("x", (1, 256), dtype, scale=scale, zero=middle),
        T("y", (1, 256), dtype, scale=out_scale, zero=middle - 128 * lowest),
    ]
    ours, theirs = _both(build(tensors, [Op(operator, ["x"], ["y"])], ["x"], ["y"]), codes)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("operator", ["RELU", "QUANTIZE"])
def test_rescaling_alone_is_exact_on_every_code(operator: str) -> None:
    tensors = [T("x", (1, 256), "int8", scale=0.1, zero=3), T("y", (1, 256), "int8", scale=0.2, zero=-7)]
    codes = np.arange(-128, 128).astype(np.int8)[None]
    ours, theirs = _both(build(tensors, [Op(operator, ["x"], ["y"])], ["x"], ["y"]), codes)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("corners", [{}, {"AlignCorners": True}, {"HalfPixelCenters": True}])
def test_resized_images_follow_the_arithmetic_of_their_type(corners: dict[str, bool], dtype: str) -> None:
    codes = np.random.default_rng(3).integers(0, 256, (1, 5, 7, 4)).astype(np.uint8).view(dtype)
    tensors = [
        T("x", codes.shape, dtype, scale=0.1),
        T("size", (2,), "int32", np.array([10, 14])),
        T("y", (1, 10, 14, 4), dtype, scale=0.1),
    ]
    op = Op("RESIZE_BILINEAR", ["x", "size"], ["y"], "ResizeBilinearOptions", corners, version=3)
    ours, theirs = _both(build(tensors, [op], ["x"], ["y"]), codes)
    np.testing.assert_array_equal(ours, theirs)
