"""Integer constants fold to the results of the loops, in one step: wrapping sums and products, extremes, logic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mlfc.ops.evaluate import evaluate
from mlfc.relay.ir import Constant, call
from mlfc.support import cost

NUMBERS, TRUTH = ("sum", "prod", "max", "min"), ("all", "any")
SHAPES = arrays.array_shapes(max_dims=3, max_side=5)


@given(
    data=st.sampled_from(["int8", "uint8", "int32", "int64", "bool"]).flatmap(
        lambda dtype: arrays.arrays(dtype, SHAPES)
    ),
    axes=st.sets(st.integers(0, 2)),
    keepdims=st.booleans(),
    exclude=st.booleans(),
    which=st.integers(0, 3),
)
def test_integers_fold_at_once_as_loops_fold_them(
    data: Any, axes: set[int], keepdims: bool, exclude: bool, which: int
) -> None:
    names = TRUTH if data.dtype == np.bool_ else NUMBERS
    axis = tuple(sorted(axis for axis in axes if axis < data.ndim)) or None
    node = call(
        names[which % len(names)], [Constant(data)], axis=axis, keepdims=keepdims, exclude=exclude and bool(axis)
    )
    loops = replace(node, op=replace(node.op, of_constants=None))
    found, wanted = evaluate(node), evaluate(loops)
    assert found is not None
    assert wanted is not None
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_sums_of_large_weights_are_known_when_the_model_is_compiled() -> None:
    weights = np.random.default_rng(0).integers(-128, 128, (2048, 1000)).astype(np.int32)
    with cost.limited(1 << 20, 1):
        found = evaluate(call("sum", [Constant(weights)], axis=(0,), keepdims=True))
    np.testing.assert_array_equal(found, weights.sum(axis=0, keepdims=True, dtype=np.int32))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_keep_the_order_of_the_loops(dtype: str) -> None:
    data = np.array([1e8, 1, -1e8, 1], dtype)
    operator = call("sum", [Constant(data)]).op
    assert operator.of_constants({"axis": None, "keepdims": False, "exclude": False}, None, data) is None
