"""Moving views and recognizing layer norms: graphs that change, graphs that must not, and equal values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlfc.relay import ir
from mlfc.transform.layer_norm import RecognizeLayerNorm
from mlfc.transform.move_views import MoveViews
from tests.harness import module_of
from tests.relay_run import Array, operators, run_main

X = np.random.default_rng(0).standard_normal((2, 6, 12)).astype(np.float32)


def changed(step: Callable[[ir.IRModule], ir.IRModule], build: Callable[[ir.Expr], ir.Expr]) -> list[str]:
    """Return the operators after a pass, and check that the values do not change."""
    module = module_of({"x": X}, {"y": lambda variables: build(variables["x"])})
    result = step(module)
    expected: Array = run_main(module, {"x": X})[0]
    np.testing.assert_allclose(run_main(result, {"x": X})[0], expected, rtol=1e-5, atol=1e-6)
    return operators(result)


def reshape(x: ir.Expr, *shape: int) -> ir.Call:
    return ir.call("reshape", [x], newshape=shape)


def product(x: ir.Expr) -> ir.Call:
    return ir.call("nn.batch_matmul", [x, x], transpose_b=True)


def heads(x: ir.Expr, begin: int, end: int, size: int) -> ir.Call:
    part = ir.call("strided_slice", [x], begin=(begin,), end=(end,), strides=(1,), axes=(2,))
    return reshape(part, 2, 6, (end - begin) // size, size)


def test_scalar_arithmetic_moves_in_front_of_a_view_of_a_product() -> None:
    names = changed(MoveViews(), lambda x: ir.call("divide", [reshape(product(x), 1, 2, 6, 6), ir.const(3.0)]))
    assert names == ["nn.batch_matmul", "divide", "reshape"]


def test_arithmetic_stays_behind_views_of_inputs() -> None:
    assert changed(MoveViews(), lambda x: ir.call("divide", [reshape(x, 12, 12), ir.const(3.0)]))[0] == "reshape"


def test_arithmetic_with_vectors_stays_behind_the_view() -> None:
    vector = ir.const(np.arange(1, 7, dtype=np.float32))
    names = changed(MoveViews(), lambda x: ir.call("multiply", [reshape(product(x), 12, 6), vector]))
    assert names == ["nn.batch_matmul", "reshape", "multiply"]


@pytest.mark.parametrize(("begin", "end"), [(0, 4), (4, 8), (8, 12)])
def test_slices_of_whole_heads_move_behind_the_view(begin: int, end: int) -> None:
    assert changed(MoveViews(), lambda x: heads(x, begin, end, 2)) == ["reshape", "strided_slice"]


def test_slices_that_cut_heads_stay() -> None:
    assert changed(MoveViews(), lambda x: heads(x, 1, 5, 2)) == ["strided_slice", "reshape"]


def layer_norm(x: ir.Expr, *, mean_axis: int = -1, variance_axis: int = -1) -> ir.Call:
    distance = ir.call("subtract", [x, ir.call("mean", [x], axis=(mean_axis,), keepdims=True)])
    square = ir.call("power", [distance, ir.const(2.0)])
    variance = ir.call("mean", [square], axis=(variance_axis,), keepdims=True)
    root = ir.call("sqrt", [ir.call("add", [variance, ir.const(1e-5)])])
    return ir.call("divide", [distance, root])


def affine(x: ir.Expr, extent: int) -> ir.Call:
    gamma = ir.const(np.linspace(0.5, 1.5, extent, dtype=np.float32))
    return ir.call("add", [ir.call("multiply", [x, gamma]), ir.const(np.ones(extent, np.float32))])


def test_a_layer_norm_with_gamma_and_beta_is_one_operator() -> None:
    assert changed(RecognizeLayerNorm(), lambda x: affine(layer_norm(x), 12)) == ["nn.layer_norm"]


def test_means_of_different_axes_are_no_layer_norm() -> None:
    assert "nn.layer_norm" not in changed(RecognizeLayerNorm(), lambda x: layer_norm(x, mean_axis=1))


def test_a_vector_along_another_axis_stays_behind() -> None:
    names = changed(RecognizeLayerNorm(), lambda x: affine(layer_norm(x, mean_axis=1, variance_axis=1), 12))
    assert names == ["nn.layer_norm", "multiply", "add"]


def test_what_is_added_before_gamma_is_not_beta() -> None:
    names = changed(
        RecognizeLayerNorm(),
        lambda x: ir.call("multiply", [affine(layer_norm(x), 12), ir.const(np.full(12, 2, np.float32))]),
    )
    assert names == ["nn.layer_norm", "multiply"]
