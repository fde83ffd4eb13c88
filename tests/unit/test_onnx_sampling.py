"""Images sampled at positions from a tensor, against ONNX's own evaluator; and invalid coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

import mlfc
from mlfc.errors import MlfcError
from tests.harness import loaded_by_llvm
from tests.relay_run import run_main

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)


def model(
    operator: str, inputs: dict[str, Array], fixed: dict[str, Array], shape: Any = None, **attrs: Any
) -> ModelProto:
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    node = helper.make_node(operator, [*inputs, *fixed], ["y"], name="the_node", **attrs)
    constants = [numpy_helper.from_array(value, name) for name, value in fixed.items()]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "g", given, [out], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def run(source: ModelProto, inputs: dict[str, Array]) -> Array:
    module, params = mlfc.import_model(source.SerializeToString())
    (found,) = run_main(module, {**inputs, **params})
    return found


def compiled(source: ModelProto) -> Any:
    module, params = mlfc.import_model(source.SerializeToString())
    return loaded_by_llvm(module, params)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("corners", [0, 1])
def test_far_and_near_places_are_sampled_as_onnx_defines(mode: str, padding: str, corners: int) -> None:
    for extents in ((7,), (4, 5), (3, 1, 4)) if mode != "cubic" else ((4, 5),):
        if padding == "reflection" and corners and 1 in extents:
            continue  # ONNX's evaluator divides by zero
        inputs = {
            "x": RNG.standard_normal((2, 3, *extents)).astype(np.float32),
            "grid": RNG.uniform(-3, 3, (2, *(5, 3, 2)[: len(extents)], len(extents))).astype(np.float32),
        }
        source = model("GridSample", inputs, {}, mode=mode, padding_mode=padding, align_corners=corners)
        # the evaluator clamps the position; ONNX Runtime and PyTorch clamp each of its 16 neighbours
        peer: Any = InferenceSession(source.SerializeToString()) if (mode, padding) == ("cubic", "border") else None
        (expected,) = (peer or ReferenceEvaluator(source)).run(None, inputs)
        np.testing.assert_allclose(run(source, inputs), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_coordinates_that_lie_nowhere_read_the_edge_or_nothing(padding: str, corners: int) -> None:
    """Treat NaN and minus infinity as before the image; with one element, all coordinates reflect into it."""
    grid = np.array([np.nan, -np.inf, np.inf, 1e30, -1e30], np.float32).reshape(1, 5, 1)
    for extent in (1, 4):
        x = np.arange(1, extent + 1, dtype=np.float32).reshape(1, 1, extent)
        source = model("GridSample", {"x": x, "grid": grid}, {}, padding_mode=padding, align_corners=corners)
        found = run(source, {"x": x, "grid": grid}).reshape(-1)
        if padding == "zeros":
            # with aligned corners, all positions except NaN map to the only element
            assert (corners and extent == 1) or not found.any()
        else:
            assert np.isin(found, x).all()
            assert found[0] == found[1] == 1.0


def test_integers_are_sampled_where_nothing_is_weighted() -> None:
    inputs = {"x": np.arange(6, dtype=np.int32).reshape(1, 1, 6), "grid": np.zeros((1, 1, 1), np.float32)}
    assert run(model("GridSample", inputs, {}, mode="nearest", align_corners=1), inputs).tolist() == [[[2]]]
    with pytest.raises(MlfcError, match="takes float tensors, not int32"):
        run(model("GridSample", inputs, {}), inputs)


@pytest.mark.parametrize(
    ("x", "grid", "attrs", "message"),
    [
        ((1, 2, 3, 3), (1, 2, 2, 3), {}, "a grid of shape"),
        ((1, 2, 3, 3), (2, 2, 2, 2), {}, "a grid of shape"),
        ((1, 2, 3, 3), (1, 2, 2), {}, "a grid of shape"),
        ((1, 2, 0, 3), (1, 2, 2, 2), {}, "cannot be sampled"),
        ((1, 2, 3, 3), (1, 2, 2, 2), {"mode": "gaussian"}, "expected method"),
        ((1, 2, 3, 3), (1, 2, 2, 2), {"padding_mode": "wrap"}, "expected padding_mode"),
        ((1, 2), (1, 2), {}, "of a tensor of 2 dimensions"),
    ],
)
def test_what_cannot_be_sampled_is_refused(x: Any, grid: Any, attrs: Any, message: str) -> None:
    inputs = {"x": np.zeros(x, np.float32), "grid": np.zeros(grid, np.float32)}
    with pytest.raises(MlfcError, match=message):
        mlfc.import_model(model("GridSample", inputs, {}, **attrs).SerializeToString())


def test_the_stated_shape_of_a_grid_stands_for_its_size() -> None:
    theta = RNG.standard_normal((2, 2, 3)).astype(np.float32)
    size = np.array([2, 3, 4, 5])
    inputs = {"theta": theta, "size": size}
    source = model("AffineGrid", inputs, {}, (2, 4, 5, 2))
    (expected,) = ReferenceEvaluator(source).run(None, inputs)
    np.testing.assert_allclose(run(source, inputs), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(MlfcError, match="do not fit the size"):
        mlfc.import_model(model("AffineGrid", {"theta": theta}, {"size": size[:2]}).SerializeToString())


@pytest.mark.parametrize(
    ("groups", "parts", "attrs"),
    [
        (2, 1, {"strides": [2, 1], "pads": [1, 0, 2, 1]}),
        (1, 2, {"strides": [2, 2], "dilations": [2, 1], "pads": [2, 1, 2, 0]}),
        (2, 4, {"strides": [1, 2]}),
    ],
)
def test_deformed_convolutions_are_what_onnx_defines(groups: int, parts: int, attrs: dict[str, Any]) -> None:
    x = RNG.standard_normal((2, 4, 6, 5)).astype(np.float32)
    weight = RNG.standard_normal((6, 4 // groups, 3, 2)).astype(np.float32)
    plain = model("Conv", {"x": x}, {"w": weight}, group=groups, **attrs)
    out = ReferenceEvaluator(plain).run(None, {"x": x})[0].shape[2:]
    inputs = {
        "x": x,
        "w": weight,
        # some are outside of the image on either side
        "offset": RNG.uniform(-4, 4, (2, parts * 6 * 2, *out)).astype(np.float32),
        "b": RNG.standard_normal(6).astype(np.float32),
        "mask": RNG.random((2, parts * 6, *out)).astype(np.float32),
    }
    source = model("DeformConv", inputs, {}, group=groups, offset_group=parts, **attrs)
    (expected,) = ReferenceEvaluator(source).run(None, inputs)
    np.testing.assert_allclose(compiled(source).run(inputs)["y"], expected, rtol=2e-4, atol=2e-5)
    with pytest.raises(MlfcError, match="offsets of shape"):
        compiled(model("DeformConv", inputs, {}, group=groups, offset_group=3, **attrs))
