"""ONNX's backend interface under ONNX's own test runner: a tenth of its node tests, and its models."""

from __future__ import annotations

import importlib
import unittest
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend import base
from onnx.reference import ReferenceEvaluator

import mlfc
from mlfc.errors import DeviceError, InputError, OptionError, UnsupportedError
from tests.node_tests import quick_collection
from tests.onnx_models import model, small_network

BACKEND = mlfc.onnx_backend
# modules of ONNX's node tests for these operators, one model per test; test_onnx_nodes.py covers all operators
MODULES = {
    "ArgMax": "argmax", "Binarizer": "ai_onnx_ml.binarizer", "Col2Im": "col2im", "Expand": "expand",
    "Identity": "identity", "If": "if_", "OptionalGetElement": "optionalgetelement",
    "OptionalHasElement": "optionalhaselement", "Scan": "scan", "SequenceInsert": "sequenceinsert",
    "NonZero": "nonzero", "Pad": "pad", "Range": "rangeop", "Resize": "resize", "STFT": "stft", "TopK": "topk",
    "Unique": "unique", "Upsample": "upsample",
}  # fmt: skip
KINDS = ("node", "simple")
REFUSED = "strnorm|gradient"
# Each mode of Resize once; with aligned corners mlfc uses the size after rounding, as PyTorch and ONNX Runtime do. Of
# ArgMax only ties. Input dimensions are at least 1, but one of sequence_model8 is 0.
LEFT_OUT = (
    "resize.*(cubic|antialias|crop|align_corners|sizes|symmetric)|maxpool_3d|pad_(wrap|constant_pad)|sequence_model8|"
    "argmax.*random|argmax_(negative|no_keep)|col2im_(5d|strides|pads)|expand_shape_model[34]|top_k_same_values_2d|"
    "unique_sorted_with_negative_axis|range_(bfloat16|float16)"
)


def runner() -> Any:
    """Return ONNX's test runner with some of its tests, because listing all takes ten seconds."""
    from onnx.backend.test import BackendTest, loader
    from onnx.backend.test import runner as module

    def load(kind: str) -> Any:
        if kind == "node":
            return node_tests()
        return loader.load_model_tests(kind=kind) if kind in KINDS else []

    with mock.patch.object(module, "load_model_tests", load):
        return BackendTest(BACKEND, __name__)


def node_tests() -> list[Any]:
    with quick_collection():
        from onnx.backend.test.case import node

        for name in MODULES.values():
            importlib.import_module(f"onnx.backend.test.case.node.{name}")
    return [test for test in node._NodeTestCases if {item.op_type for item in test.model.graph.node} <= {*MODULES}]


def test_onnx_tests_pass() -> None:
    tests = runner()
    tests.exclude(f"_cuda$|{REFUSED}|{LEFT_OUT}")
    result = unittest.TestResult()
    tests.test_suite.run(result)
    faults = [f"{test}: {text[-300:]}" for test, text in (*result.failures, *result.errors)]
    assert not faults, "\n".join(faults)
    assert result.testsRun - len(result.skipped) > 50


def test_what_is_known_late_is_taken_from_the_inputs_of_a_run() -> None:
    # with weights that are computed at compile time
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear", antialias=1)
    data = model([node], {"x": (1, 1, "h", "w"), "scales": (4,)}, ["y"], opset=18)
    prepared = BACKEND.prepare(data)
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    for factor in (1, 2, 1):
        scales = np.array([1, 1, 1, factor], np.float32)
        (result,) = prepared.run([x, scales])
        (wanted,) = ReferenceEvaluator(data).run(None, {"x": x, "scales": scales})
        np.testing.assert_allclose(result, wanted, rtol=1e-6)
    (result,) = prepared.run({"scales": np.ones(4, np.float32), "x": x[..., :1]})
    assert result.shape == (1, 1, 2, 1)
    assert len(prepared._versions) == 3


def test_results_have_names_and_one_input_needs_no_list() -> None:
    network = small_network()
    prepared = BACKEND.prepare(network)
    assert isinstance(prepared, base.BackendRep)
    assert (prepared.input_names, prepared.output_names) == (("x",), ("y",))
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)
    result = prepared.run(x)
    assert result.y is result["y"] is result[0]
    np.testing.assert_array_equal(BACKEND.run_model(network, [x]).y, result.y)
    assert "PreparedModel" in repr(prepared)


def test_a_node_alone_runs() -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    (result,) = BACKEND.run_node(node, [np.arange(3, dtype=np.float32)], outputs_info=[(np.dtype(np.float32), (3,))])
    np.testing.assert_array_equal(result, [0, 2, 4])
    late = helper.make_node("Reshape", ["x", "shape"], ["y"])
    (result,) = BACKEND.run_node(late, [np.arange(6), np.array([2, -1])], opset_version=14)
    np.testing.assert_array_equal(result, np.arange(6).reshape(2, 3))
    other = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])
    (result,) = BACKEND.run_node(other, [np.ones((1, 2), np.float32)], opset_version=1)
    np.testing.assert_array_equal(result, np.zeros((1, 2)))


def test_what_nothing_helps_is_refused_when_it_is_prepared() -> None:
    pool = helper.make_node("MaxRoiPool", ["x", "regions"], ["y"], pooled_shape=[1, 1])
    regions = model([pool], {"x": ("n", 1, 4, 4), "regions": (2, 5)}, ["y"])
    with pytest.raises(UnsupportedError, match="MaxRoiPool"):
        BACKEND.prepare(regions)
    assert not BACKEND.is_compatible(regions)
    assert BACKEND.is_compatible(small_network())
    text = helper.make_tensor_value_info("x", TensorProto.STRING, [1])
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g", [text], [onnx.ValueInfoProto(name="y")]
    )
    with pytest.raises(UnsupportedError, match="no strings"):
        BACKEND.prepare(helper.make_model(graph))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "expected 1 inputs, got 0"),
        ({}, "the input 'x' is missing"),
        ({"x": np.zeros((1, 2, 4, 4), np.float32), "z": 1}, "unknown input 'z'"),
        ([None], "expected a tensor as the input 'x', got NoneType"),
        ([np.zeros((1, 2, 4, 5), np.float32)], r"its shape is \(1, 2, 4, 5\)"),
    ],
)
def test_inputs_that_do_not_fit_are_named(inputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepared().run(inputs)


@cache
def prepared() -> Any:
    return BACKEND.prepare(small_network())


def test_devices_are_those_that_exist() -> None:
    assert BACKEND.supports_device("CPU")
    assert BACKEND.supports_device("CPU:0")
    assert not BACKEND.supports_device("CPU:1")
    assert not BACKEND.supports_device("NPU")
    with pytest.raises(DeviceError, match="expected one of the devices CPU, CUDA, OPENCL"):
        BACKEND.prepare(small_network(), "NPU")
    with pytest.raises(OptionError, match="unknown option 'target'"):
        prepared().run([], target="c")


def test_a_device_runs_the_same_model() -> None:
    if not BACKEND.supports_device("OPENCL"):
        pytest.skip("no OpenCL device: apt-get install pocl-opencl-icd")
    (there,) = BACKEND.run_node(helper.make_node("Neg", ["x"], ["y"]), [np.arange(4, dtype=np.int32)], "OPENCL")
    np.testing.assert_array_equal(there, [0, -1, -2, -3])
