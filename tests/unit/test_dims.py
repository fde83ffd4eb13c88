"""Symbolic dimensions: arithmetic agrees with that of integers, and constant results are integers."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfc.support import dims
from mlfc.support.dim_walk import walked
from mlfc.support.dims import Symbol, UndecidedError, bounds, maximum, minimum, substituted

N, M = Symbol("n"), Symbol("m", 0, 9)
OPERATIONS: dict[str, Any] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "max": maximum, "min": minimum,
}  # fmt: skip
OF_INTEGERS = {**OPERATIONS, "max": max, "min": min}

LEAVES = st.one_of(st.sampled_from([N, M]), st.integers(-8, 8))
TREES = st.recursive(LEAVES, lambda inner: st.tuples(st.sampled_from(sorted(OPERATIONS)), inner, inner), max_leaves=8)


def _value(tree: Any, values: dict[Symbol, Any], operations: dict[str, Any]) -> Any:
    if isinstance(tree, tuple):
        op, a, b = tree
        return operations[op](_value(a, values, operations), _value(b, values, operations))
    return values.get(tree, tree) if isinstance(tree, Symbol) else tree


@settings(max_examples=400, deadline=None)
@given(TREES, st.integers(1, 70), st.integers(0, 9))
def test_expressions_have_the_values_of_their_parts(tree: Any, n: int, m: int) -> None:
    try:
        extent = _value(tree, {N: N.dim, M: M.dim}, OPERATIONS)
        wanted = _value(tree, {N: n, M: m}, OF_INTEGERS)
    except ZeroDivisionError:
        return
    low, high = bounds(extent)
    assert substituted(extent, {N: n, M: m}) == wanted
    assert low <= wanted <= high
    assert isinstance(extent, int) or extent.symbols
    values = {N: n, M: m}
    assert wanted == walked(
        extent,
        lambda leaf: values[leaf] if isinstance(leaf, Symbol) else leaf,
        lambda op, a, b: OF_INTEGERS[op](a, b),
    )


def test_what_is_known_becomes_an_integer() -> None:
    n, m = N.dim, M.dim
    assert (n * m * 768) // (n * 768) == m
    assert (n * 12 * 64) // (12 * 64) == n
    assert (n + 1) * (n - 1) // (n - 1) == n + 1
    assert (n - n, n * 6 // n, (4 * n + 2) % 2, (2 * n + 3) // 2 - n, maximum(n, 0) - n) == (0, 6, 0, 1, 0)
    assert math.prod((n, 3, m)) == 3 * m * n
    assert type(n - n) is int
    assert {n + 1: 1}[1 + n] == 1
    assert [str(2 * n - 3), str((n + 1) // 2), str(-(-n // 64))] == ["2 * n - 3", "(n + 1) // 2", "(n + 63) // 64"]


def test_choices_have_one_form_and_close_bounds() -> None:
    n, m = N.dim, M.dim
    assert minimum(minimum(100, n), n) == minimum(n, 100)
    assert maximum(minimum(n, m), n) == n
    assert maximum(256 - n, 0) == maximum(256, n) - n
    assert bounds(maximum(256 - n, 0)) == (0, 255)
    assert minimum(maximum(256, n), 3) == 3
    assert (maximum(256, n) + 255) // 256 == maximum(1, (n + 255) // 256)
    assert bounds((n + 255) // 256 - n // 256) == (0, 1)
    assert str(3 * (maximum(256, n) * m // 5)) == "3 * ((max(256, n) * m) // 5)"
    assert [(4 * n).multiple, n.multiple, (n + 1).multiple, (n * m).multiple] == [(4, N), (1, N), None, None]


def test_bounds_decide_the_order_or_nothing_does() -> None:
    n, m = N.dim, M.dim
    assert [n > 0, n >= 1, n < 1, m <= 9, m < 10, bool(n)] == [True, True, False, True, True, True]
    for compare in (lambda: n > 1, lambda: n < m, lambda: bool(m), lambda: m >= 1):
        with pytest.raises(UndecidedError):
            compare()
    with pytest.raises(TypeError):
        range(n)  # type: ignore[call-overload]  # what has to be an integer takes no expression
    with pytest.raises(ZeroDivisionError):
        _ = n // 0


def _halved(extent: Any, times: int) -> Any:
    return _halved((extent + 1) // 2, times - 1) if times else extent


def _strip(height: Any, width: Any, times: int) -> Any:
    """Return the scratch size of a convolution behind others of stride 2."""
    height, width = _halved(height, times), _halved(width, times)
    rows = maximum(1, minimum(height, (4096 // (64 * width - 29) + 1) // 2))
    return 128 * width * rows - 64 * width - 58 * rows + 29


def test_the_work_for_bounds_of_nested_quotients_is_bounded() -> None:
    dims._bounds.cache_clear()
    bounds(_strip(N.dim, Symbol("w").dim, 6) - _strip(N.dim, Symbol("w").dim, 8))
    assert dims._bounds.cache_info().misses < 1000


def test_the_work_for_renaming_symbols_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    power: Any = 1
    for _ in range(60):
        power = power * (N.dim + M.dim)
    sums = 0
    made = dims._made

    def counted(terms: Any) -> Any:
        nonlocal sums
        sums += 1
        return made(terms)

    monkeypatch.setattr(dims, "_made", counted)
    assert substituted(power, {N: M.dim, M: N.dim}) == power
    assert sums <= 2 * len(power.terms) + 1
