"""Slices selected by a condition: constant, or at run time with a declared shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.errors import MlfcError
from tests.harness import loaded_by_llvm
from tests.relay_run import run_main

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def run(condition: list[bool], shape: Any, *, late: bool = True, compiles: bool = False, **attrs: Any) -> Any:
    chosen = np.array(condition, bool)
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)]
    if late:
        given.append(helper.make_tensor_value_info("c", TensorProto.BOOL, chosen.shape))
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    constants = [] if late else [numpy_helper.from_array(chosen, "c")]
    node = helper.make_node("Compress", ["x", "c"], ["y"], name="the_node", **attrs)
    graph = helper.make_graph([node], "g", given, [out], constants)
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    module, params = mlfc.import_model(source.SerializeToString())
    inputs = {"x": X, **({"c": chosen} if late else {})}
    if compiles:
        return loaded_by_llvm(module, params).run(inputs)["y"]
    (found,) = run_main(module, {**inputs, **params})
    return found


def test_slices_are_kept_in_their_order() -> None:
    for late in (False, True):
        np.testing.assert_array_equal(run([True, False, True], (2, 4), late=late, axis=0), X[[0, 2]])
        np.testing.assert_array_equal(run([False, True, True], (3, 2), late=late, axis=-1), X[:, 1:3])
        np.testing.assert_array_equal(run([False, True] * 5, (5,), late=late), X.reshape(-1)[1:10:2])


def test_a_condition_that_keeps_another_number_than_declared_ends_the_run() -> None:
    for condition in ([True] * 3, [False] * 3):
        with pytest.raises(MlfcError, match="contradict a shape that the model declares"):
            run(condition, (2, 4), compiles=True, axis=0)
        assert run(condition, (2, 4), axis=0).shape == (2, 4)  # no element outside of the tensor is read


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(MlfcError, match="'condition' that is not constant"):
        run([True] * 3, None, axis=0)
    with pytest.raises(MlfcError, match="4 conditions do not fit 3 slices"):
        run([True] * 4, (2, 4), axis=0)
    with pytest.raises(MlfcError, match="cannot give one of shape"):
        run([True] * 2, (3, 4), axis=0)
    with pytest.raises(MlfcError, match="cannot give one of shape"):
        run([True] * 3, (2, 3), axis=0)
