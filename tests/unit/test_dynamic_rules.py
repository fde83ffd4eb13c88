"""Type rules on dynamic dimensions."""

from __future__ import annotations

from typing import Any

import pytest

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.ops.rules import UnequalDimsError, broadcast_shape, fixed, same_extent, same_shape
from mlfc.relay import ir
from mlfc.support.dims import LARGEST, Symbol

N, M = Symbol("n").dim, Symbol("m").dim


def test_a_literal_one_is_broadcast_and_an_open_extent_never() -> None:
    assert broadcast_shape("add", (N, 1), (1, 5)) == (N, 5)
    assert broadcast_shape("add", (N, M), (M,)) == (N, M)
    assert broadcast_shape("add", (2 * N + 1,), (1 + N + N,), (1,)) == (2 * N + 1,)
    assert broadcast_shape("add", (2, 1), (3,), ()) == (2, 3)


@pytest.mark.parametrize(("shapes", "extents"), [
    (((N,), (M,)), (N, M)), (((N, 3), (5, 3)), (N, 5)), (((3, 1), (1, N), (1, 4)), (N, 4)),
])  # fmt: skip
def test_extents_that_may_be_equal_are_named(shapes: Any, extents: Any) -> None:
    with pytest.raises(UnequalDimsError, match="must be equal, which is only known at run time") as found:
        broadcast_shape("add", *shapes)
    assert found.value.extents == extents


def test_a_call_keeps_the_two_extents_and_says_where() -> None:
    a, b = (ir.Var(name, ir.TensorType((dim, 2), "float32")) for name, dim in (("a", N), ("b", M)))
    with pytest.raises(UnequalDimsError) as found:
        ir.call("add", [a, b], span=ir.Span(("Add_3",)))
    assert found.value.extents == (N, M)
    assert found.value.place == "Add_3"


def test_extents_that_are_never_equal_are_refused_for_good() -> None:
    for a, b in ((N, N + 1), (N, 0), (2, 3)):
        with pytest.raises(TypeCheckError) as found:
            same_extent("concatenate", a, b)
        assert not isinstance(found.value, UnequalDimsError)
    with pytest.raises(TypeCheckError, match=r"shapes .* differ"):
        same_shape("where", (N,), (N, 1))
    assert same_shape("where", (N, 2), (N, 2)) == (N, 2)


def test_what_must_be_fixed_is_named() -> None:
    assert fixed("topk", 3, "k") == 3
    with pytest.raises(UnsupportedError, match="topk: expected a static dimension for k, got n"):
        fixed("topk", N, "k")


def test_extents_as_a_tensor() -> None:
    call = ir.call("extents", [], values=(N, 3, N * M), dtype="int64", shape=(3,))
    assert call.type == ir.TensorType((3,), "int64")
    for attrs in ({"values": (N, 1), "shape": ()}, {"values": (1.5,)}, {"values": (N,), "dtype": "float32"}):
        with pytest.raises(TypeCheckError):
            ir.call("extents", [], {"dtype": "int64", **attrs})


def test_a_slice_to_the_end_keeps_an_extent_whose_bounds_leave_int32() -> None:
    x = ir.Var("x", ir.TensorType((12 * N, 3), "float32"))
    end = LARGEST  # importers write this for the end of an axis
    part = ir.call("strided_slice", [x], begin=(0, 0), end=(end, 1), strides=(1, 1), axes=None)
    assert ir.tensor_type(part).shape == (12 * N, 1)
    back = ir.call("strided_slice", [x], begin=(end, 0), end=(0, 1), strides=(-1, 1), axes=None)
    assert ir.tensor_type(back).shape[0] == 12 * N - 1
