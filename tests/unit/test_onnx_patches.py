"""Image patches, products with an ellipsis, and training mode without randomness, against ONNX's evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mlfc
from mlfc.errors import MlfcError
from tests.relay_run import run_main

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(9)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    operator: str, inputs: dict[str, Array], fixed: dict[str, Array], outputs: int = 1, **attrs: Any
) -> ModelProto:
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(operator, [*inputs, *fixed], results, name="the_node", **attrs)
    constants = [numpy_helper.from_array(value, name) for name, value in fixed.items()]
    infos = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node], "g", given, infos, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def run(source: ModelProto, inputs: dict[str, Array]) -> list[Array]:
    module, params = mlfc.import_model(source.SerializeToString())
    return list(run_main(module, {**inputs, **params}))


def check(source: ModelProto, inputs: dict[str, Array]) -> None:
    expected = ReferenceEvaluator(source).run(None, inputs)
    for found, wanted in zip(run(source, inputs), expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def refused(source: ModelProto) -> str:
    with pytest.raises(MlfcError) as error:
        mlfc.import_model(source.SerializeToString())
    return str(error.value)


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((2, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
        ((2, 2, 6, 7), {"kernel_shape": [2, 3], "pads": [1, 0, 0, 2], "dilations": [2, 1]}),
        ((1, 2, 4, 5, 3), {"kernel_shape": [2, 2, 2], "strides": [2, 1, 1]}),
    ],
)
def test_places_of_maxima_lead_to_them(shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    x = normal(*shape)
    largest, places = run(model("MaxPool", {"x": x}, {}, 2, **attrs), {"x": x})
    assert places.dtype == np.int64
    np.testing.assert_array_equal(x.reshape(-1)[places], largest)


@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 2, 6, 7), (1, 2, 4, 5, 3)])
def test_places_are_counted_by_columns_as_onnx_runtime_does(shape: tuple[int, ...]) -> None:
    x, attrs = normal(*shape), {"kernel_shape": [2] * (len(shape) - 2), "pads": [1, 0] * (len(shape) - 2)}
    source = model("MaxPool", {"x": x}, {}, 2, storage_order=1, **attrs)
    source.opset_import[0].version = 12
    expected = onnxruntime.InferenceSession(source.SerializeToString()).run(None, {"x": x})
    for found, wanted in zip(run(source, {"x": x}), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_of_equal_elements_the_first_in_the_image_has_the_place() -> None:
    x = np.zeros((1, 1, 3, 3), np.float32)
    _, places = run(model("MaxPool", {"x": x}, {}, 2, kernel_shape=[2, 2], pads=[1, 1, 0, 0]), {"x": x})
    assert places.reshape(-1).tolist() == [0, 0, 1, 0, 0, 1, 3, 3, 4]


def test_places_outside_are_moved_inside() -> None:
    x, places = normal(1, 1, 1, 3), np.array([[[[-1, 99, 2]]]])
    (found,) = run(model("MaxUnpool", {"x": x, "places": places}, {}, kernel_shape=[1, 2], strides=[1, 2]),
                   {"x": x, "places": places})  # fmt: skip
    assert found.reshape(-1).tolist() == [0, 0, x[0, 0, 0, 2], 0, 0, x[0, 0, 0, 1]]


@pytest.mark.parametrize("attrs", [{}, {"strides": [2, 1]}, {"pads": [1, 0, 2, 1]}, {"dilations": [1, 2]}])
def test_columns_are_added_up(attrs: dict[str, Any]) -> None:
    image, block = np.array([6, 5]), np.array([2, 2])
    pads, strides, dilations = (attrs.get(name, default) for name, default in
                                (("pads", [0] * 4), ("strides", [1, 1]), ("dilations", [1, 1])))  # fmt: skip
    counts = [
        (image[k] + pads[k] + pads[k + 2] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1 for k in range(2)
    ]
    x = normal(2, 3 * 4, int(np.prod(counts)))
    check(model("Col2Im", {"x": x}, {"image": image, "block": block}, **attrs), {"x": x})


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("...ij,...jk->...ik", ((2, 1, 3, 4), (5, 4, 2))),
        ("i...,i...", ((3, 2, 1), (3, 1, 4))),
        ("...ii->i...", ((2, 3, 3),)),
        ("...,b->b...", ((1, 1), (3,))),
        ("iii,i->", ((3, 3, 3), (3,))),
        ("b...d,...->b...d", ((2, 3, 4), (3,))),
    ],
)
def test_an_ellipsis_broadcasts_and_a_repeated_label_is_a_diagonal(equation: str, shapes: Any) -> None:
    inputs = {f"x{index}": normal(*shape) for index, shape in enumerate(shapes)}
    (found,) = run(model("Einsum", inputs, {}, equation=equation), inputs)
    np.testing.assert_allclose(found, np.einsum(equation, *inputs.values()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("...ij->ij...", ((3,),), "does not fit tensors"),
        ("...i,...i->i", ((2, 3), (4, 3)), "stands for both 2 and 4"),
        ("ii->i", ((2, 3),), "stands for both 2 and 3"),
        ("..i->i", ((2, 3),), "does not fit a tensor"),
        ("i->i...", ((3,),), None),
        ("i->ij", ((3,),), "malformed"),
    ],
)
def test_equations_that_do_not_fit_are_refused(equation: str, shapes: Any, message: str | None) -> None:
    inputs = {f"x{index}": normal(*shape) for index, shape in enumerate(shapes)}
    source = model("Einsum", inputs, {}, equation=equation)
    if message is None:
        check(source, inputs)
    else:
        assert message in refused(source)


def test_statistics_of_the_batch_are_deterministic() -> None:
    inputs = {"x": normal(4, 3, 5), "s": normal(3), "b": normal(3), "m": normal(3), "v": np.abs(normal(3))}
    check(model("BatchNormalization", inputs, {}, 3, training_mode=1, momentum=0.75), inputs)
    inputs["x"] = normal(0, 3, 5)
    assert "no channels with statistics" in refused(model("BatchNormalization", inputs, {}, 3, training_mode=1))


def test_what_drops_nothing_is_no_dropout() -> None:
    x = {"x": normal(2, 3)}
    for ratio, training in ((0.0, True), (0.5, False)):
        fixed = {"ratio": np.float32(ratio), "training": np.bool_(training)}
        kept, mask = run(model("Dropout", x, {name: np.asarray(value) for name, value in fixed.items()}, 2), x)
        assert mask.all()
        np.testing.assert_array_equal(kept, x["x"])


def test_what_no_patches_are_is_refused() -> None:
    x, places = {"x": normal(1, 1, 2, 2)}, {"places": np.zeros((1, 1, 2, 2), np.int64)}
    neither = {"kernel_shape": [2, 2], "storage_order": 2}
    assert "expected storage_order 0 or 1, got 2" in refused(model("MaxPool", x, {}, 2, **neither))
    empty = {"kernel_shape": [1, 1], "strides": [1, 1], "pads": [0, 0, 0, 0]}
    assert "cannot become" in refused(model("MaxUnpool", x | places, {"shape": np.array([1, 1, 1, 1])}, **empty))
    assert "do not fit a tensor" in refused(model("MaxUnpool", x | places, {}, kernel_shape=[1]))
    columns = {"x": normal(1, 4, 5)}
    four = {"image": np.array([3, 3]), "block": np.array([2, 2])}
    assert "does not hold 4 columns" in refused(model("Col2Im", columns, four))
    assert "do not fit an image" in refused(model("Col2Im", columns, {**four, "block": np.array([2])}))
