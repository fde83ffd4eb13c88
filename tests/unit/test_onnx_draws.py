"""Random operators: numbers depend only on seed, run and element, and have the distributions that ONNX requires."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.compiled_model import CompiledModel
from mlfc.errors import MlfcError

Array = np.ndarray[Any, Any]
MASK = 0xFFFFFFFF


def model(nodes: list[Any], outputs: dict[str, int], inputs: dict[str, Array] | None = None, **fixed: Array) -> bytes:
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in (inputs or {}).items()
    ]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    constants = [numpy_helper.from_array(value, name) for name, value in fixed.items()]
    graph = helper.make_graph(nodes, "g", given, results, constants)
    data: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]).SerializeToString()
    return data


def compiled(*args: Any, **fixed: Array) -> CompiledModel:
    return mlfc.compile(model(*args, **fixed), target="llvm")


def drawn(operator: str, inputs: dict[str, Array] | None = None, kind: int = TensorProto.FLOAT, **attrs: Any) -> Array:
    node = helper.make_node(operator, list(inputs or {}), ["y"], name="the_node", **attrs)
    found: Array = compiled([node], {"y": kind}, inputs).run(inputs or {})["y"]
    return found


def words(count: int, run: int, key: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the first two words of Philox 4x32-10 for each element, in Python integers."""
    found = []
    for element in range(count):
        c, k = [element, 0, run & MASK, run >> 32], list(key)
        for _ in range(10):
            first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [second >> 32 ^ c[1] ^ k[0], second & MASK, first >> 32 ^ c[3] ^ k[1], first & MASK]
            k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
        found.append((c[0], c[1]))
    return found


def test_numbers_follow_from_the_seed_the_run_and_the_element() -> None:
    seed = np.float32(3.5)
    nodes = [
        helper.make_node("RandomUniform", [], ["a"], shape=[2, 5], low=-1.0, high=3.0),
        helper.make_node("RandomUniform", [], ["b"], shape=[10], seed=float(seed)),
        helper.make_node("RandomUniform", [], ["c"], shape=[10], seed=float(seed), dtype=TensorProto.DOUBLE),
        helper.make_node("RandomNormal", [], ["d"], shape=[10], seed=float(seed), mean=2.0, scale=0.5),
    ]
    found = compiled(nodes, {"a": 1, "b": 1, "c": 11, "d": 1})
    own, keys = found.model, ((1, 0), (int(seed.view(np.uint32)), MASK))
    for run in (0, 1, (1 << 32) + 7):
        own.state["random_runs"] = np.array([run])
        result = found.run({})
        share = np.array([[word >> 8 for word in pair] for key in keys for pair in words(10, run, key)], np.float32)
        share *= np.float32(2**-24)
        np.testing.assert_allclose(result["a"].reshape(-1), share[:10, 1] * 4 - 1, rtol=0, atol=3e-7)
        np.testing.assert_array_equal(result["b"], share[10:, 1])
        np.testing.assert_allclose(result["c"], result["b"], rtol=0, atol=2**-24)
        radius = np.sqrt(-2 * np.log(share[10:, 1] + np.float32(2**-24)))
        np.testing.assert_allclose(result["d"], 2 + 0.5 * radius * np.cos(2 * np.pi * share[10:, 0]), rtol=0, atol=2e-5)


def test_every_run_draws_anew_and_a_reset_begins_again() -> None:
    node = helper.make_node("RandomNormalLike", ["x"], ["y"])
    x = np.zeros((4, 8), np.float16)
    found = compiled([node, helper.make_node("Neg", ["x"], ["z"])], {"y": 10, "z": 10}, {"x": x})
    assert [item.name for item in found.inputs] == ["x"]
    assert [item.name for item in found.outputs] == ["y", "z"]
    first, second = (found.run({"x": x})["y"] for _ in range(2))
    assert first.dtype == np.float16
    assert (first != second).mean() > 0.9
    found.model.reset_state()
    np.testing.assert_array_equal(found.run({"x": x})["y"], first)


def test_a_model_whose_results_do_not_depend_on_draws_keeps_no_count() -> None:
    nodes = [helper.make_node("RandomNormal", [], ["r"], shape=[3]), helper.make_node("Shape", ["r"], ["y"])]
    module, _ = mlfc.import_model(model(nodes, {"y": 7}))
    assert module.states == ()


def test_the_distributions_are_those_of_onnx() -> None:
    count = 20000  # means are within 4 standard errors
    uniform = drawn("RandomUniform", shape=[count], low=-2.0, high=4.0)
    assert -2 <= uniform.min() < -1.99 < 3.99 < uniform.max() <= 4
    assert abs(uniform.mean() - 1) < 4 * 6 / np.sqrt(12 * count)
    for code in (TensorProto.FLOAT, TensorProto.DOUBLE):
        normal = drawn("RandomNormal", kind=code, dtype=code, shape=[count], mean=3.0, scale=2.0)
        assert abs(normal.mean() - 3) < 4 * 2 / np.sqrt(count)
        assert abs(normal.std() - 2) < 0.05
        assert abs(((normal - 3) ** 3).mean()) < 0.5
        inside = (np.abs(normal - 3) < 2).mean()
        assert abs(inside - 0.6827) < 0.015
    likely = np.repeat(np.array([0.0, 0.25, 1.0, np.nan]), count // 4)
    found = drawn("Bernoulli", {"x": likely}, TensorProto.BOOL, dtype=TensorProto.BOOL).reshape(4, -1).mean(axis=1)
    assert (found[0], found[2], found[3]) == (0, 1, 0)
    assert abs(found[1] - 0.25) < 0.025
    logs = np.array([[3.0, -np.inf, 3.0], [0.0, np.log(9), -np.inf]], np.float32)
    samples = drawn("Multinomial", {"x": logs}, TensorProto.INT64, sample_size=4000, dtype=TensorProto.INT64)
    shares = np.array([np.bincount(row, minlength=3) for row in samples]) / 4000
    np.testing.assert_allclose(shares, [[0.5, 0.0, 0.5], [0.1, 0.9, 0.0]], atol=0.035)
    assert shares[0, 1] == 0


@pytest.mark.parametrize("late", [False, True])
def test_what_training_drops_is_scaled_by_what_it_keeps(late: bool) -> None:
    x = np.arange(1, 4001, dtype=np.float32)
    node = helper.make_node("Dropout", ["x", "ratio", "training"], ["y", "mask"], seed=5)
    rest = {"ratio": np.array(0.25, np.float32), "training": np.array(True)}
    found = compiled([node], {"y": 1, "mask": 9}, {"x": x, **rest} if late else {"x": x}, **({} if late else rest))
    y, mask = found.run({"x": x, **rest} if late else {"x": x}).values()
    assert abs(mask.mean() - 0.75) < 0.03
    np.testing.assert_allclose(y, np.where(mask, x / np.float32(0.75), 0), rtol=1e-6)
    if late:
        y, mask = found.run({"x": x, "ratio": np.array(1, np.float32), "training": np.array(True)}).values()
        assert not y.any()
        assert not mask.any()
        y, mask = found.run({"x": x, **rest, "training": np.array(False)}).values()
        np.testing.assert_array_equal(y, x)
        assert mask.all()


@pytest.mark.parametrize(
    ("operator", "shape", "attrs", "message"),
    [
        ("RandomNormal", None, {"shape": [-1]}, "is not a shape"),
        ("RandomNormal", None, {"shape": [1 << 32, 1 << 32]}, "too large"),
        ("RandomNormal", None, {"shape": [1 << 31]}, "exceeds what indices reach"),
        ("RandomUniform", None, {"shape": [2], "dtype": TensorProto.INT32}, "random numbers of int32"),
        ("RandomUniform", None, {"shape": [2], "high": float("inf")}, "expected finite numbers"),
        ("RandomUniform", None, {}, "requires the attribute 'shape'"),
        ("RandomUniform", None, {"shape": [2], "seed": "now"}, "must be a number"),
        ("RandomUniformLike", (2,), {"dtype": TensorProto.STRING}, "STRING is not supported"),
        ("Multinomial", (2,), {}, "cannot be drawn by logarithms"),
        ("Multinomial", (2, 0), {}, "cannot be drawn by logarithms"),
        ("Multinomial", (2, 3), {"sample_size": 0}, "0 samples"),
        ("Multinomial", (2, 3), {"sample_size": 1 << 60}, "too large"),
    ],
)
def test_what_cannot_be_drawn_is_refused(operator: str, shape: Any, attrs: dict[str, Any], message: str) -> None:
    inputs = {} if shape is None else {"x": np.zeros(shape, np.float32)}
    node = helper.make_node(operator, list(inputs), ["y"], name="the_node", **attrs)
    with pytest.raises(MlfcError, match=message):
        mlfc.import_model(model([node], {"y": 1}, inputs))
