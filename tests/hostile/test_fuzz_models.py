"""A short run of the model fuzzers (``make fuzz`` is the long one), and tests of their findings."""

from __future__ import annotations

import random
from functools import cache
from itertools import islice

import numpy as np
import pytest
from onnx import helper

import mlfc
from fuzz.model_files import compiles_as_checked, targets
from fuzz.python_readers import Target, failure_of, inputs
from mlfc.errors import InternalError, MlfcError
from tests.onnx_models import model
from tests.tflite_builder import Op, T, build

MODELS = {"ONNX model": 60, "TFLite model": 12}


@cache
def by_name() -> dict[str, Target]:
    return {target.name: target for target in targets()}


@pytest.mark.parametrize("name", MODELS)
def test_what_the_damage_spoils_is_good(name: str) -> None:
    for seed in by_name()[name].seeds:
        compiles_as_checked(seed)


@pytest.mark.parametrize("name", MODELS)
def test_what_check_passes_compiles(name: str) -> None:
    target = by_name()[name]
    refused = 0
    for data in islice(inputs(target, random.Random(name)), MODELS[name]):
        failure = failure_of(target, data)
        assert failure is None, failure
        refused += bool(mlfc.check(data))
    assert 0 < refused < MODELS[name]


def _refused(data: bytes, message: str) -> None:
    with pytest.raises(MlfcError, match=message) as caught:
        compiles_as_checked(data)
    assert not isinstance(caught.value, InternalError)


def test_an_extent_beyond_all_indices_is_refused() -> None:
    """Reject it also for a tensor without elements, whose size is 0."""
    node = helper.make_node("Expand", ["x", "shape"], ["y"])
    weights = {"shape": np.array([1 << 40, 0, 4])}
    _refused(model([node], {"x": (1,)}, ["y"], weights).SerializeToString(), "exceeds what indices reach")


@pytest.mark.parametrize("beta", [-1.0, 0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_softmax_needs_a_sensible_beta(beta: float, dtype: str) -> None:
    scales = ({"scale": 0.1}, {"scale": 1 / 256, "zero": -128}) if dtype == "int8" else ({}, {})
    tensors = [T("x", (1, 4), dtype, None, **scales[0]), T("y", (1, 4), dtype, None, **scales[1])]
    data = build(tensors, [Op("SOFTMAX", ["x"], ["y"], "SoftmaxOptions", {"Beta": beta})], ["x"], ["y"])
    if dtype == "float32" and np.isfinite(beta):
        compiles_as_checked(data)
    else:
        _refused(data, "SOFTMAX with beta")


@pytest.mark.parametrize("dilation", [1 << 29, 1 << 31, 1 << 35, 1 << 62])
@pytest.mark.parametrize("operator", ["Conv", "MaxPool", "AveragePool", "ConvTranspose"])
def test_dilations_beyond_all_indices_are_refused(operator: str, dilation: int) -> None:
    names = ["x"] if "Pool" in operator else ["x", "w"]
    node = helper.make_node(operator, names, ["y"], dilations=[dilation, 1], kernel_shape=[2, 2])
    weights = {} if "Pool" in operator else {"w": np.ones((1, 1, 2, 2), np.float32)}
    _refused(model([node], {"x": (1, 1, 8, 8)}, ["y"], weights, opset=19).SerializeToString(), operator)


def test_a_convolution_of_constants_is_left_to_the_passes() -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["c"]),
        helper.make_node("Conv", ["c", "w"], ["f"]),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    weights = {"shape": np.array([1, 2, 8, 8]), "w": np.ones((3, 2, 3, 3), np.float32)}
    compiles_as_checked(model(nodes, {"x": (1,)}, ["y"], weights).SerializeToString())
