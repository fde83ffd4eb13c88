"""Pooled regions and counted n-grams, against ONNX's evaluator and ONNX Runtime; and invalid ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

import mlfc
from mlfc.errors import MlfcError
from tests.relay_run import run_main

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(31)
TERMS: dict[str, Any] = {
    "mode": "TF", "min_gram_length": 1, "max_gram_length": 3, "max_skip_count": 2, "ngram_counts": [0, 3, 9],
    "pool_int64s": [5, 6, 8, 5, 6, 6, 6, 8, 5, 5, 5, 5, 6, 8, 6], "ngram_indexes": [3, 0, 7, 1, 2, 4, 5, 6],
}  # fmt: skip


def model(operator: str, inputs: dict[str, Array], opset: int = 16, **attrs: Any) -> ModelProto:
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    node = helper.make_node(operator, list(inputs), ["y"], name="the_node", **attrs)
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(source: ModelProto, inputs: dict[str, Array]) -> Array:
    module, params = mlfc.import_model(source.SerializeToString())
    (found,) = run_main(module, {**inputs, **params})
    return found


def regions() -> dict[str, Array]:
    """Return images, and regions inside, across the edges, outside, empty and reversed."""
    edges = [[0, 0, 7, 5], [-4, -3, 3, 2], [5, 4, 20, 18], [30, 30, 40, 40], [2, 2, 2, 2], [6, 5, 1, 1], [1, 0, 1.5, 4]]
    x = RNG.standard_normal((2, 2, 6, 7)).astype(np.float32)
    return {"x": x, "rois": np.array(edges, np.float32), "images": np.array([0, 1, 1, 0, 1, 0, 1])}


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("samples", [0, 2])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_regions_are_pooled_as_onnx_defines(mode: str, samples: int, coordinates: str) -> None:
    inputs = regions()
    attrs = {"mode": mode, "sampling_ratio": samples, "output_height": 2, "output_width": 3, "spatial_scale": 0.75}
    source = model("RoiAlign", inputs, coordinate_transformation_mode=coordinates, **attrs)
    (expected,) = ReferenceEvaluator(source).run(None, inputs)
    np.testing.assert_allclose(run(source, inputs), expected, rtol=1e-5, atol=1e-6)
    if coordinates == "output_half_pixel":  # the behaviour before the attribute existed
        np.testing.assert_array_equal(run(model("RoiAlign", inputs, 10, **attrs), inputs), run(source, inputs))


def test_regions_that_are_nowhere_and_images_that_are_none_are_survived() -> None:
    inputs = regions()
    inputs["rois"][:6] = [
        [np.nan] * 4, [-np.inf, 0, np.inf, 3], [0, 0, 3e38, 3e38], [-3e38, -3e38, 3e38, 3e38], [1e9, 0, 0, 1], [0] * 4,
    ]  # fmt: skip
    inputs["images"] = np.array([0, 1 << 40, -5, 2, 1, 0, 9])
    compiled = mlfc.compile(model("RoiAlign", inputs, output_height=2, output_width=2), "llvm")
    found = compiled.run(inputs)["y"]
    assert not found[0].any()
    inputs["images"] = np.clip(inputs["images"], 0, 1)
    np.testing.assert_array_equal(found, compiled.run(inputs)["y"])


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_bins_larger_than_the_image_count_the_samples_outside(mode: str) -> None:
    inputs = regions()
    inputs["rois"] = np.float32([[-9, -30, 80, 12], [-1e3, -2e3, 3e3, 1e3], [2, 3, 400, 5], *inputs["rois"][3:]])
    source = model("RoiAlign", inputs, mode=mode, sampling_ratio=0, output_height=2, output_width=3)
    expected = onnxruntime.InferenceSession(source.SerializeToString()).run(None, inputs)[0]
    np.testing.assert_allclose(mlfc.compile(source, "llvm").run(inputs)["y"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "attrs", "message"),
    [
        ({"rois": np.zeros((7, 5), np.float32)}, {}, "do not fit"),
        ({"images": np.zeros(6, np.int64)}, {}, "do not fit"),
        ({"x": np.zeros((1, 2, 3), np.float32)}, {}, "do not fit"),
        ({"x": np.zeros((1, 2, 0, 3), np.float32)}, {}, "cannot be pooled"),
        ({}, {"mode": "median"}, "expected mode"),
        ({}, {"output_height": 0}, "cannot be pooled to"),
        ({}, {"output_height": 1 << 40}, "too large"),
        ({}, {"sampling_ratio": 1 << 30}, "expected a sample_ratio"),
        ({}, {"coordinate_transformation_mode": "asymmetric"}, "expected coordinate_transformation_mode"),
    ],
)
def test_what_is_no_region_is_refused(change: dict[str, Array], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(MlfcError, match=message):
        mlfc.import_model(model("RoiAlign", {**regions(), **change}, **attrs).SerializeToString())


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("shape", [(9,), (2, 12), (2, 1)])
def test_terms_are_counted_and_weighted_as_onnx_runtime_does(mode: str, shape: tuple[int, ...]) -> None:
    """Compare with ONNX Runtime; ONNX's evaluator indexes weights by column, the definition by n-gram of the pool."""
    inputs = {"x": RNG.choice(np.array([5, 6, 8, 9]), shape).astype(np.int32 if len(shape) == 1 else np.int64)}
    for sizes in ((1, 3), (2, 2), (1, 1)):
        for weights in ({}, {"weights": RNG.uniform(0.5, 2, 8).tolist()}):
            lengths = {"min_gram_length": sizes[0], "max_gram_length": sizes[1]}
            source = model("TfIdfVectorizer", inputs, 13, **{**TERMS, **lengths, **weights, "mode": mode})
            (expected,) = onnxruntime.InferenceSession(source.SerializeToString()).run(None, inputs)
            np.testing.assert_allclose(run(source, inputs), expected, rtol=1e-6)


def test_rows_without_tokens_count_nothing() -> None:
    inputs = {"x": np.zeros((2, 0), np.int64)}
    np.testing.assert_array_equal(run(model("TfIdfVectorizer", inputs, **TERMS), inputs), np.zeros((2, 8), np.float32))


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"mode": "BM25"}, "expected mode TF, IDF, TFIDF"),
        ({"ngram_counts": [0, 9, 3]}, "do not divide a pool"),
        ({"ngram_counts": [0, 3, 10]}, "do not divide into runs of"),
        ({"ngram_counts": list(range(99))}, "do not divide a pool"),
        ({"ngram_indexes": [0, 1]}, "are fewer than the runs"),
        ({"ngram_indexes": [-1] * 8}, "expected ngram_indexes from 0"),
        ({"ngram_indexes": [1 << 62] * 8}, "expected ngram_indexes from 0"),
        ({"ngram_indexes": [0] * 8, "weights": [1.0, 2.0] * 4}, "different weights in one column"),
        ({"weights": [1.0]}, "1 weights do not fit 8"),
        ({"pool_int64s": [5, 5, *TERMS["pool_int64s"][2:]]}, r"the run \(5,\) twice"),
        ({"max_skip_count": -1}, "expected max_skip_count"),
        ({"max_skip_count": 1 << 40}, "expected max_skip_count"),
        ({"min_gram_length": 0}, "expected 1 <= min_gram_length"),
        ({"max_gram_length": 0}, "expected 1 <= min_gram_length"),
        ({"pool_strings": ["a"]}, "terms that are strings"),
    ],
)
def test_terms_that_contradict_themselves_are_refused(attrs: dict[str, Any], message: str) -> None:
    inputs = {"x": np.zeros((2, 4), np.int64)}
    with pytest.raises(MlfcError, match=message):
        mlfc.import_model(model("TfIdfVectorizer", inputs, **{**TERMS, "mode": "IDF", **attrs}).SerializeToString())
