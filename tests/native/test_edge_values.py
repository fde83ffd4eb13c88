"""Tensors at the edges of what C can express: scalars, infinities and NaN, integers as float literals."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mlfc
from mlfc.relay import ir
from tests.harness import compiled, module_of


def test_scalars_compute(tmp_path: Path) -> None:
    inputs = {"x": np.array(0.5, np.float32)}
    module = module_of(inputs, {"y": lambda v: ir.call("add", [ir.call("exp", [v["x"]]), ir.const(2.0)])})
    result = compiled(module, {}, tmp_path).run(inputs)["y"]
    assert result.shape == ()
    np.testing.assert_allclose(result, np.exp(np.float32(0.5)) + 2, rtol=1e-6)


def test_constants_that_are_no_numbers_compile(tmp_path: Path) -> None:
    table = np.array([np.inf, -np.inf, np.nan, -0.0, 1e30], np.float32)
    inputs = {"x": np.ones(5, np.float32)}
    module = module_of(inputs, {"y": lambda v: ir.call("add", [v["x"], ir.const(table)])})
    np.testing.assert_array_equal(compiled(module, {}, tmp_path).run(inputs)["y"], inputs["x"] + table)


def test_float_literals_do_not_depend_on_the_version_of_numpy() -> None:
    x = ir.Var("x", ir.TensorType((3,), "float32"))
    module = ir.IRModule({"main": ir.Function((x,), ir.call("add", [x, ir.const(np.float32(12582912))]))}, ("y",))
    code = mlfc.build(module).code.files
    assert any(b"12582912.0f" in data for data in code.values())
