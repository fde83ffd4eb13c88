"""Loops over elements in vectors of four lanes: equal values, and no change to loops without a vector form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlfc.tir import builder as tb
from mlfc.tir import interpreter
from mlfc.tir.fixed_point_lanes import QUARTET, vectorize
from mlfc.tir.ir import Buffer, Expr, For, PrimFunc, Store
from mlfc.tir.visitor import walk
from tests.verify_tir import verify

Value = Callable[[tb.StmtBuilder, Expr], Expr]


def function(
    value: Value, extent: int, inputs: tuple[Buffer, ...], output: Buffer, place: Callable[[Expr], Any] = lambda i: i
) -> PrimFunc:
    stmts = tb.StmtBuilder()
    with stmts.loop(extent, "i", "vectorized") as i:
        stmts.store(output, [place(i)], value(stmts, i))
    return PrimFunc("function", inputs, (), output, (), stmts.finish())


def vectors(prim: PrimFunc) -> int:
    """Return the number of stores that write vectors."""
    return sum(isinstance(stmt, Store) and stmt.value.dtype.endswith("x4") for stmt in walk(prim.body))


X, Y = Buffer("x", (40,), "int8"), Buffer("y", (40,), "int32")
OUT8, OUT32 = Buffer("out", (40,), "int8"), Buffer("out", (40,), "int32")


def byte(value: Expr) -> Expr:
    return tb.cast(tb.clamp(value, -128, 127), "int8")


def narrow_sum(stmts: tb.StmtBuilder, i: Expr) -> Expr:
    both = stmts.let("both", tb.cast(tb.load(X, [i]), "int32") * 3 - tb.load(Y, [i]))
    limited = stmts.let("limited", byte(tb.intrinsic("requantize_down", both, tb.const(1 << 30), tb.const(2))))
    return tb.maximum(limited, tb.const(-20, "int8"))


GOOD: dict[str, tuple[Value, Buffer]] = {
    "narrow_sum": (narrow_sum, OUT8),
    "wide": (lambda _, i: tb.load(Y, [i]) + 7, OUT32),
    "fixed_element": (lambda _, i: tb.load(Y, [3]) + tb.load(Y, [i]), OUT32),
    "single_rounding": (
        lambda _, i: tb.intrinsic("requantize_single", tb.load(Y, [i]), tb.const(3 << 29), tb.const(-4)), OUT32,
    ),
    "ties_away": (
        lambda _, i: tb.intrinsic("requantize_away", tb.load(Y, [i]), tb.const(1 << 30), tb.const(-2)),
        OUT32,
    ),
    "double_rounding": (
        lambda _, i: tb.intrinsic("requantize_double", tb.load(Y, [i]), tb.const(3 << 29), tb.const(2)), OUT32,
    ),
}  # fmt: skip

BAD: dict[str, tuple[Value, Buffer]] = {
    "strided": (lambda _, i: tb.load(Y, [i * 2]), OUT32),
    "counter": (lambda _, i: i + tb.load(Y, [i]), OUT32),
    "wraps": (lambda _, i: tb.cast(tb.load(Y, [i]), "int8"), OUT8),
    "wide_shift": (
        lambda _, i: tb.intrinsic("requantize_single", tb.load(Y, [i]), tb.const(3 << 29), tb.const(-1)), OUT32,
    ),
    "sixty_four_bits": (lambda _, i: tb.cast(tb.cast(tb.load(Y, [i]), "int64") >> 3, "int32"), OUT32),
    "narrow_arithmetic": (lambda _, i: tb.load(X, [i]) + tb.load(X, [i]), OUT8),
}  # fmt: skip


def results(prim: PrimFunc) -> np.ndarray:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-128, 128, X.shape).astype(np.int8), rng.integers(-(2**20), 2**20, Y.shape).astype(np.int32)]
    return interpreter.run(prim, arrays)


@pytest.mark.parametrize("extent", [4, 6, 8, 19])
@pytest.mark.parametrize("name", GOOD)
def test_vectors_hold_the_same_values(name: str, extent: int) -> None:
    value, output = GOOD[name]
    prim = function(value, extent, (X, Y), output)
    made = PrimFunc("function", prim.inputs, (), prim.output, (), vectorize(prim.body, QUARTET))
    verify(made)
    assert vectors(made) == 1
    np.testing.assert_array_equal(results(made), results(prim))


@pytest.mark.parametrize("name", BAD)
def test_what_has_no_form_in_vectors_stays(name: str) -> None:
    value, output = BAD[name]
    prim = function(value, 8, (X, Y), output)
    made = PrimFunc("function", prim.inputs, (), prim.output, (), vectorize(prim.body, QUARTET))
    assert vectors(made) == 0
    np.testing.assert_array_equal(results(made), results(prim))


def test_short_and_unmarked_loops_stay() -> None:
    prim = function(GOOD["wide"][0], 3, (X, Y), OUT32)
    assert vectorize(prim.body, QUARTET) is prim.body
    loop = prim.body
    assert isinstance(loop, For)
    serial = For(loop.var, tb.const(8), loop.body)
    assert vectors(PrimFunc("function", prim.inputs, (), prim.output, (), vectorize(serial, QUARTET))) == 0


def test_a_loop_that_reads_what_it_writes_elsewhere_stays() -> None:
    stmts = tb.StmtBuilder()
    with stmts.loop(8, "i", "vectorized") as i:
        stmts.store(OUT32, [i + 1], tb.load(OUT32, [i]) + tb.load(Y, [i]))
    body = stmts.finish()
    assert vectors(PrimFunc("function", (X, Y), (), OUT32, (), vectorize(body, QUARTET))) == 0
