"""Quantized operators with results halfway between two codes, where the last bit of a multiplier decides.

Random scales hardly ever produce such results. Scales that are short decimals or powers of two, as in real models, do.
All operators of a family are in one model, which is compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.frontend.tflite.rounding import as_fixed_point
from mlfc.relay.ir import Call
from mlfc.relay.visitor import post_order
from mlfc.verify.litert import LiteRtReference
from tests.tflite_builder import Op, T, build

Array = npt.NDArray[np.integer]
_WINDOW = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1}


@dataclass(frozen=True)
class Case:
    """An operator: its name, tensors ``x`` and ``y`` and optional constants, and the codes of ``x``."""

    name: str
    tensors: Sequence[T]
    op: Op
    codes: Array


def _differences(cases: Sequence[Case], **options: str) -> dict[str, Array]:
    """Return the differences between mlfc's codes and LiteRT's by case name; all cases are operators of one model."""

    def own(number: int, names: Sequence[str]) -> list[str]:
        return [f"{name}_{number}" for name in names]

    tensors, ops, inputs = [], [], {}
    for number, case in enumerate(cases):
        tensors += [replace(tensor, name=f"{tensor.name}_{number}") for tensor in case.tensors]
        ops.append(replace(case.op, inputs=own(number, case.op.inputs), outputs=own(number, case.op.outputs)))
        inputs[f"x_{number}"] = case.codes
    outputs = [f"y_{number}" for number in range(len(cases))]
    data = build(tensors, ops, list(inputs), outputs)
    module, params = mlfc.import_model(data, **options)
    ours, theirs = load_factory(mlfc.build(module, params=params)).run(inputs), LiteRtReference(data).run(inputs)
    assert all(ours[name].shape == theirs[name].shape and ours[name].dtype == theirs[name].dtype for name in outputs)
    return {case.name: np.abs(ours[name].astype(int) - theirs[name]) for case, name in zip(cases, outputs, strict=True)}


def _differing(cases: Sequence[Case]) -> list[str]:
    return [f"{name}: {np.count_nonzero(found)} codes" for name, found in _differences(cases).items() if found.any()]


def _linear(kind: str, dtype: str, scales: tuple[float, float, float]) -> Case:
    """Return an operator whose sums equal its bias, at and next to ties."""
    in_scale, weight_scale, out_scale = (float(np.float32(scale)) for scale in scales)
    ties = np.rint((np.arange(-126, 126) + 0.5) * out_scale / (in_scale * weight_scale))
    sums = np.unique(np.concatenate([ties - 1, ties, ties + 1]).clip(-(2**30), 2**30)).astype(np.int32)
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
    op = Op(kind, ["x", "w", "b"], ["y"], *options)
    return Case(f"{kind} of {dtype}, scales {scales}", tensors, op, np.full(shapes[0], middle, dtype))


def test_sums_at_ties_round_as_the_reference() -> None:
    kinds = ("FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D")
    scales = ((0.1, 0.02, 0.1), (0.05, 0.02, 0.4), (0.5, 0.25, 0.5))
    cases = [_linear(*case) for case in product(kinds, ("int8", "uint8"), scales)]
    assert len(cases) == 18
    assert _differing(cases) == []


@pytest.mark.parametrize(
    ("scales", "roundings"),
    [((0.0159, 0.002, 0.9), {"SINGLE"}), ((0.0001, 0.0003, 0.9), {"FLOAT64"}), ((0.1, 0.02, 0.1), {"SINGLE"})],
)
def test_large_sums_of_fully_connected_round_as_in_float64(
    scales: tuple[float, float, float], roundings: set[str]
) -> None:
    # for the first two scales, the nearest 31-bit multiplier moves sums to the other side of ties
    cases = [_linear("FULLY_CONNECTED", dtype, scales) for dtype in ("int8", "uint8")]
    assert _differing(cases) == []
    kept = build(cases[0].tensors, [cases[0].op], ["x"], ["y"])
    calls = [item for item in post_order(mlfc.import_model(kept)[0].main.body) if isinstance(item, Call)]
    assert {item.attrs["rounding"] for item in calls if item.op.name == "qnn.requantize"} == roundings


def test_int16_weights_multiply_the_scales_in_float32() -> None:
    # with the product in float64, the 16-bit multipliers would differ
    x, w, y = (0.07301037013530731, 0.15797628462314606, 0.527657687664032)
    sums = np.rint(np.linspace(-32000, 32000, 64) * y / (x * w)).astype(np.int64)
    tensors = [T("x", (1, 2), "int16", scale=x), T("w", (64, 2), "int16", np.zeros((64, 2)), w),
               T("b", (64,), "int64", sums, x * w), T("y", (1, 64), "int16", scale=y)]  # fmt: skip
    op = Op("FULLY_CONNECTED", ["x", "w", "b"], ["y"], "FullyConnectedOptions", {"QuantizedBiasType": 4})
    assert _differing([Case("int16 weights", tensors, op, np.zeros((1, 2), np.int16))]) == []


def test_other_multipliers_stand_in_for_the_nearest_one() -> None:
    ratio = np.prod(np.array([0.0159, 0.002], np.float32), dtype=np.float64) / np.float64(np.float32(0.9))
    (found,) = as_fixed_point(np.array([ratio]), 1 << 30, 128)  # type: ignore[misc]
    assert found != ratio
    assert abs(found / ratio - 1) < 2**-29
    assert as_fixed_point(np.array([2.0**-40]), 1, 128) is None
    assert as_fixed_point(np.array([4.0]), 1 << 30, 128) is None


def test_tflm_multiplies_the_scales_of_fully_connected_in_float32() -> None:
    scales = (0.1, 0.02, 0.1)
    (found,) = _differences([_linear("FULLY_CONNECTED", "int8", scales)], numerics="tflm").values()
    # the float32 product is above 0.02, the float64 product below it, so sums at ties round differently
    product_ = np.float32(scales[0]) * np.float32(scales[1])
    assert float(product_) / float(np.float32(scales[2])) > 0.02
    assert set(found.flat) == {0, 1}


def _squashing(operator: str, scale: float, dtype: str) -> Case:
    codes = np.arange(256).astype(np.uint8).view(dtype)[None]
    middle = 0 if dtype == "int8" else 128
    out_scale, zero = (2.0**-8, middle - 128) if operator == "LOGISTIC" else (2.0**-7, middle)
    tensors = [T("x", (1, 256), dtype, scale=scale, zero=middle), T("y", (1, 256), dtype, scale=out_scale, zero=zero)]
    return Case(f"{operator} of {dtype}, scale {scale}", tensors, Op(operator, ["x"], ["y"]), codes)


def test_squashing_functions_are_exact_on_every_code() -> None:
    scales = (2.0**-8, 2.0**-7, 2.0**-5, 0.1)
    cases = [_squashing(*case) for case in product(("LOGISTIC", "TANH"), scales, ("int8", "uint8"))]
    assert len(cases) == 16
    assert _differing(cases) == []


def test_rescaling_alone_is_exact_on_every_code() -> None:
    tensors = [T("x", (1, 256), "int8", scale=0.1, zero=3), T("y", (1, 256), "int8", scale=0.2, zero=-7)]
    codes = np.arange(-128, 128).astype(np.int8)[None]
    cases = [Case(operator, tensors, Op(operator, ["x"], ["y"]), codes) for operator in ("RELU", "QUANTIZE")]
    assert _differing(cases) == []


def _resized(corners: dict[str, bool], dtype: str) -> Case:
    codes = np.random.default_rng(3).integers(0, 256, (1, 5, 7, 4)).astype(np.uint8).view(dtype)
    tensors = [
        T("x", codes.shape, dtype, scale=0.1),
        T("size", (2,), "int32", np.array([10, 14])),
        T("y", (1, 10, 14, 4), dtype, scale=0.1),
    ]
    op = Op("RESIZE_BILINEAR", ["x", "size"], ["y"], "ResizeBilinearOptions", corners, version=3)
    return Case(f"{dtype}, {corners}", tensors, op, codes)


def test_resized_images_follow_the_arithmetic_of_their_type() -> None:
    corners: tuple[dict[str, bool], ...] = ({}, {"AlignCorners": True}, {"HalfPixelCenters": True})
    assert _differing([_resized(*case) for case in product(corners, ("int8", "uint8"))]) == []
