"""Operators that select, move or resize elements where ONNX leaves a choice to runtimes, compared with ONNX Runtime.

All cases are in one model of static and one of dynamic dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnxruntime import InferenceSession

import mlfc
from mlfc.support.dims import Symbol, substituted
from mlfc.tir.extents import as_index, variable
from mlfc.tir.numpy_expr import evaluate_expr
from tests.relay_dynamic import run_dynamic

Array = npt.NDArray[Any]
Case = tuple[str, Array, dict[str, Array], dict[str, Any]]  # operator, input, constant inputs, attributes
RNG = np.random.default_rng(5)
FLOAT = np.float32
LAST = (1 << 63) - 1


def _row(count: int) -> Array:
    return np.arange(1, count + 1, dtype=FLOAT)


def _normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(FLOAT)


def _slices() -> Iterator[Case]:
    for start, end, step in (
        (1, 1 << 62, (1 << 31) - 1), (3, 1 << 62, 1 << 40), (-LAST - 1, LAST, (1 << 31) - 2), (6, 0, -2),
        (-10, -20, -1), (7, -LAST - 1, -LAST - 1), (5, LAST, -2), (5, (1 << 31) - 1, -1),
    ):  # fmt: skip
        places = {name: np.asarray([value]) for name, value in zip("seat", (start, end, 0, step), strict=True)}
        yield "Slice", _row(8), places, {}


def _pads() -> Iterator[Case]:
    for pads in ([-5, 4], [4, -5], [-3, 2], [-4, 5], [-1, 3], [-2, 0]):
        yield "Pad", _row(3), {"p": np.asarray(pads)}, {}


def _transposed() -> Iterator[Case]:
    weights = {"w": _normal(2, 2, 3, 2)}
    for shape in ([7, 7], [6, 6], [8, 7], [1, 3]):
        yield "ConvTranspose", _normal(1, 2, 3, 3), weights, {"strides": [2, 2], "output_shape": shape}
    for pad in ("SAME_UPPER", "SAME_LOWER"):
        yield "ConvTranspose", _normal(1, 2, 3, 3), weights, {"strides": [4, 3], "auto_pad": pad}
        yield (
            "ConvTranspose", _normal(1, 2, 3, 3), weights,
            {"strides": [3, 2], "auto_pad": pad, "output_padding": [1, 1], "output_shape": [8, 6]},
        )  # fmt: skip
        yield "AveragePool", _row(7).reshape(1, 1, 7), {}, {"kernel_shape": [2], "strides": [5], "auto_pad": pad}
        weight = {"w": np.ones((1, 1, 1), FLOAT)}
        yield "Conv", _row(6).reshape(1, 1, 6), weight, {"strides": [6], "auto_pad": pad}
    same = {"strides": [3], "kernel_shape": [3], "auto_pad": "SAME_LOWER", "ceil_mode": 1, "count_include_pad": 1}
    yield "AveragePool", _row(4).reshape(1, 1, 4), {}, same


def _resized() -> Iterator[Case]:
    for scale, size in ((0.7, 10), (0.7, 17), (1.1, 9), (1.3, 23), (0.3, 37), (1 / 3, 9)):
        scales = {"r": np.zeros(0, FLOAT), "s": np.asarray([scale], FLOAT)}
        for mode in ("half_pixel", "asymmetric"):
            for nearest in ("round_prefer_floor", "round_prefer_ceil"):
                yield (
                    "Resize", _row(size), scales,
                    {"mode": "nearest", "nearest_mode": nearest, "coordinate_transformation_mode": mode},
                )  # fmt: skip
    scales = {"r": np.zeros(0, FLOAT), "s": np.asarray([1, 1, 0.7, 1.3], FLOAT)}
    for mode in ("linear", "cubic"):
        yield "Resize", _normal(1, 1, 10, 7), scales, {"mode": mode, "coordinate_transformation_mode": "half_pixel"}
    crop = {"r": np.asarray([0, 0, 0.1, -0.2, 1, 1, 0.9, 0.8], FLOAT), "s": np.asarray([1, 1, 0.5, 2], FLOAT)}
    for mode in ("linear", "nearest"):
        attributes = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
        yield "Resize", _normal(1, 1, 8, 3), crop, attributes
    # axes that keep their size, and a last coordinate that exceeds the end only if every product is rounded
    regions = (
        ((1, 1, 2, 1), [0, 0, 0.1, 0.25, 1, 1, 1.2, 1], [1, 1, 2, 2]),
        ((1, 1, 4, 7), [0, 0, -0.1, -0.1, 1, 1, 0.6, 1], [1, 1, 4, 2]),
    )
    for shape, region, sizes in regions:
        crop = {"r": np.asarray(region, FLOAT), "s": np.zeros(0, FLOAT), "n": np.asarray(sizes, np.int64)}
        for mode in ("linear", "cubic", "nearest"):
            yield (
                "Resize", _normal(*shape), crop, {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize"},
            )  # fmt: skip
    scales = {"r": np.zeros(0, FLOAT), "s": np.asarray([1, 1, 0.7, 1.1], FLOAT)}
    for mode in ("linear", "cubic"):
        yield "Resize", _normal(1, 1, 8, 3), scales, {"mode": mode, "antialias": 1}


CASES = [*_slices(), *_pads(), *_transposed(), *_resized()]


def _models(cases: list[Case], opset: int) -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, Array]]:
    nodes: list[NodeProto] = []
    constants: list[TensorProto] = []
    feeds: dict[str, Array] = {}
    infos: tuple[list[ValueInfoProto], ...] = ([], [])
    for number, (operator, x, known, attributes) in enumerate(cases):
        name = f"x{number}"
        feeds[name] = x
        nodes.append(
            helper.make_node(operator, [name, *(f"{name}{key}" for key in known)], [f"y{number}"], **attributes)
        )
        constants += [numpy_helper.from_array(value, f"{name}{key}") for key, value in known.items()]
        spatial = 2 if operator in ("Conv", "ConvTranspose", "AveragePool") else 0
        dynamic = [size if axis < spatial else f"{name}d{axis}" for axis, size in enumerate(x.shape)]
        for info, shape in zip(infos, (x.shape, dynamic), strict=True):
            info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    outputs = [helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, None) for number in range(len(cases))]
    static, dynamic_model = (
        helper.make_model(helper.make_graph(nodes, "places", info, outputs, constants),
                          opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
        for info in infos
    )  # fmt: skip
    return static, dynamic_model, feeds


@pytest.mark.parametrize("form", [0, 1], ids=["static", "dynamic"])
def test_places_are_those_of_onnx_runtime(form: int) -> None:
    _compare(CASES, form, 18)


@pytest.mark.parametrize("form", [0, 1], ids=["static", "dynamic"])
def test_resize_of_opset_10_rounds_up_where_an_axis_gets_smaller(form: int) -> None:
    sizes = ((0.6, 10), (0.4, 10), (0.75, 8), (1.5, 4))
    _compare([("Resize", _row(size), {"s": np.asarray([scale], FLOAT)}, {}) for scale, size in sizes], form, 10)


def test_axes_of_scale_1_keep_their_elements_where_scales_are_inputs() -> None:
    attributes = {"mode": "linear", "coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    node = helper.make_node("Resize", ["x", "r", "s"], ["y"], **attributes)
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b", "c", "d"])]
    infos.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [4]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    region = numpy_helper.from_array(np.zeros(0, FLOAT), "r")
    graph = helper.make_graph([node], "scales", infos, outputs, [region])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8).SerializeToString()
    feeds = {"x": _normal(2, 3, 2, 4), "s": np.asarray([1, 1, 1, 2], FLOAT)}
    module, params = mlfc.import_model(model, dynamic=True)
    (found,) = run_dynamic(module, params, feeds)
    np.testing.assert_allclose(found, InferenceSession(model).run(None, feeds)[0], rtol=1e-6)


def _compare(cases: list[Case], form: int, opset: int) -> None:
    *models, feeds = _models(cases, opset)
    model = models[form].SerializeToString()
    expected = InferenceSession(model).run(None, feeds)
    module, params = mlfc.import_model(model, dynamic=bool(form))
    found = run_dynamic(module, params, feeds)
    for number, (ours, wanted) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5, err_msg=f"{cases[number]}", strict=True)


def test_divisions_by_large_constants_are_exact() -> None:
    n = Symbol("n").dim
    for extent in (104 * n // (1 << 31), (n + (1 << 31) - 3) // ((1 << 31) - 2), 7158279 * n % (1 << 31)):
        for value in (1, 30_000_000, (1 << 31) - 1):
            (symbol,) = extent.symbols
            found = evaluate_expr(as_index(extent), {variable(symbol): np.int32(value)}, {})
            assert found == substituted(extent, {symbol: value})
