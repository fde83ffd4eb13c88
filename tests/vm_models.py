"""Small models with dynamic dimensions, for tests of archives and programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.relay import ir
from mlfc.support.dims import LARGEST, Symbol

Array = npt.NDArray[Any]


def two_layers(high: int = LARGEST, low: int = 1) -> tuple[ir.IRModule, dict[str, Array]]:
    """Return a model of two dense layers and a softmax with a dynamic number of rows."""
    batch = Symbol("batch", low, high)
    x = ir.Var("x", ir.TensorType((batch.dim, 8), "float32"))
    weights = [ir.Var(name, ir.TensorType(shape, "float32")) for name, shape in (("w1", (16, 8)), ("w2", (4, 16)))]
    bias = ir.Var("b1", ir.TensorType((16,), "float32"))
    hidden = ir.call("nn.bias_add", [ir.call("nn.dense", [x, weights[0]], units=16), bias], axis=-1)
    scores = ir.call("nn.dense", [ir.call("nn.relu", [hidden]), weights[1]], units=4)
    body = ir.call("nn.softmax", [scores], axis=-1)
    rng = np.random.default_rng(7)
    shapes = {"w1": (16, 8), "b1": (16,), "w2": (4, 16)}
    params: dict[str, Array] = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    function = ir.Function((x, weights[0], bias, weights[1]), body)
    return ir.IRModule({"main": function}, output_names=("probabilities",)), params


def expected(x: Array, params: dict[str, Array]) -> Array:
    """Return the result of `two_layers` in float64."""
    wide = {name: value.astype(np.float64) for name, value in params.items()}
    hidden = np.maximum(x @ wide["w1"].T + wide["b1"], 0)
    scores = np.exp(hidden @ wide["w2"].T)
    result: Array = scores / scores.sum(axis=-1, keepdims=True)
    return result
