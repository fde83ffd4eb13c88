"""Loop-level expressions are simplified during construction, if that is valid for any data."""

from __future__ import annotations

import operator

import pytest

from mlfc.tir import builder as tb
from mlfc.tir.ir import Binary, Buffer, Const, Load, Var

BUFFERS = {dtype: Buffer("x", (8,), dtype) for dtype in ("int32", "uint8", "bool", "float32")}


def element(dtype: str, at: Var) -> Load:
    """Return a new load of an element of a buffer."""
    return Load(BUFFERS[dtype], (at,), dtype)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
@pytest.mark.parametrize("op", ["eq", "le", "ge", "ne", "lt", "gt"])
def test_a_comparison_of_an_integer_with_itself_is_known(op: str, dtype: str) -> None:
    at = Var("i")
    found = tb.binary(op, element(dtype, at), element(dtype, at))
    assert isinstance(found, Const)
    assert bool(found.value) == getattr(operator, op)(3, 3)
    assert found.dtype == "bool"


def test_other_comparisons_stay() -> None:
    at, other = Var("i"), Var("i")
    assert isinstance(tb.binary("eq", element("int32", at), element("int32", other)), Binary)
    # x == x is false for NaN
    assert isinstance(tb.binary("eq", element("float32", at), element("float32", at)), Binary)
