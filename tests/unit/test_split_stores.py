"""Loops split by width compute the same as the original loops; loops that must not be split stay whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mlfc.tir import builder as tb
from mlfc.tir import interpreter, ir
from mlfc.tir.ir import Buffer, Expr, PrimFunc
from mlfc.tir.split_stores import split_stores
from mlfc.tir.visitor import walk
from tests.verify_tir import verify

ROWS, LANES = 3, 16
SUMS = Buffer("sums", (ROWS, LANES), "int32")
OTHER = Buffer("other", (ROWS, LANES), "int8")
TABLE = Buffer("table", (256,), "int8")
OUT = Buffer("out", (ROWS, LANES), "int8")

Compute = Callable[[tb.StmtBuilder, Expr, Expr], Expr]


def narrowed(value: Expr) -> Expr:
    return tb.cast(tb.clamp(value, -128, 127), "int8")


def scaled(value: Expr) -> Expr:
    return narrowed(tb.intrinsic("requantize_down", value, tb.const(1518500250), tb.const(6)) - 3)


def nest(compute: Compute, lanes: int = LANES) -> PrimFunc:
    stmts = tb.StmtBuilder()
    with stmts.loop(ROWS, "row") as row, stmts.loop(lanes, "c", "vectorized") as c:
        stmts.store(OUT, [row, c], compute(stmts, row, c))
    return PrimFunc("kernel", (SUMS, OTHER, TABLE), (), OUT, (), stmts.finish())


def loops(prim: PrimFunc) -> int:
    return sum(isinstance(stmt, ir.For) for stmt in walk(prim.body))


def both(prim: PrimFunc) -> PrimFunc:
    """Return the split function, checked to compute the same as `prim`."""
    cut = replace(prim, body=split_stores(prim.body))
    verify(cut)
    rng = np.random.default_rng(7)
    inputs = [
        rng.integers(-60000, 60000, SUMS.shape).astype(np.int32),
        rng.integers(-128, 128, OTHER.shape).astype(np.int8),
        rng.integers(-128, 128, TABLE.shape).astype(np.int8),
    ]
    np.testing.assert_array_equal(interpreter.run(cut, inputs), interpreter.run(prim, inputs))
    return cut


def plain(_: tb.StmtBuilder, row: Expr, c: Expr) -> Expr:
    return tb.maximum(scaled(tb.load(SUMS, [row, c])), tb.const(5, "int8"))


def residual(stmts: tb.StmtBuilder, row: Expr, c: Expr) -> Expr:
    value = stmts.let("value", scaled(tb.load(SUMS, [row, c])))
    other = tb.load(OTHER, [row, c])
    return narrowed(tb.cast(value, "int32") * 2 + tb.cast(other, "int32") - tb.cast(tb.minimum(value, other), "int32"))


def looked_up(stmts: tb.StmtBuilder, row: Expr, c: Expr) -> Expr:
    value = stmts.let("value", scaled(tb.load(SUMS, [row, c])))
    return narrowed(tb.cast(tb.load(TABLE, [tb.cast(value, "int32") + 128]), "int32") * 3)


def guarded(_: tb.StmtBuilder, row: Expr, c: Expr) -> Expr:
    next_row = tb.cast(tb.load(OTHER, [row + 1, c]), "int32")
    inside = tb.binary("lt", row, ROWS - 1)
    return narrowed(tb.select(inside, next_row, tb.const(7)) + tb.load(SUMS, [row, c]))


@pytest.mark.parametrize(("compute", "widths"), [(plain, 2), (residual, 3), (looked_up, 2), (guarded, 2)])
def test_a_cut_nest_computes_the_same(compute: Compute, widths: int) -> None:
    assert loops(both(nest(compute))) == 2 * widths


def wrapping(_: tb.StmtBuilder, row: Expr, c: Expr) -> Expr:
    return tb.cast(tb.load(SUMS, [row, c]), "int8")


def all_bytes(_: tb.StmtBuilder, row: Expr, c: Expr) -> Expr:
    return tb.maximum(tb.load(OTHER, [row, c]), tb.const(0, "int8"))


def recurrent(_: tb.StmtBuilder, row: Expr, c: Expr) -> Expr:
    above = tb.cast(tb.load(OUT, [tb.maximum(row - 1, 0), c]), "int32")
    return narrowed(tb.load(SUMS, [row, c]) + tb.select(tb.binary("gt", row, 0), above, tb.const(0)))


@pytest.mark.parametrize("compute", [wrapping, all_bytes, recurrent])
def test_a_nest_stays_whole(compute: Compute) -> None:
    assert loops(both(nest(compute))) == 2


def test_few_lanes_stay_whole() -> None:
    assert loops(both(nest(plain, 4))) == 2


def test_a_computed_place_stays_whole() -> None:
    flat = Buffer("flat", (256,), "int8")
    stmts = tb.StmtBuilder()
    with stmts.loop(LANES, "c", "vectorized") as c:
        value = stmts.let("value", scaled(tb.load(SUMS, [0, c])))
        stmts.store(flat, [tb.cast(value, "int32") + 128], value)
    prim = PrimFunc("kernel", (SUMS,), (), flat, (), stmts.finish())
    assert loops(replace(prim, body=split_stores(prim.body))) == 1
