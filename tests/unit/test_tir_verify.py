from __future__ import annotations

from collections.abc import Callable

import pytest

from mlfc.errors import InternalError
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.ir import Buffer, PrimFunc
from tests.verify_tir import verify

Body = Callable[[tb.StmtBuilder, Buffer, Buffer], None]


def function(body: Body, shape: tuple[int, ...] = (10, 8), out_shape: tuple[int, ...] = (10, 8)) -> PrimFunc:
    stmts = tb.StmtBuilder()
    source, output = Buffer("source", shape, "float32"), Buffer("output", out_shape, "float32")
    body(stmts, source, output)
    return PrimFunc("tested", (source,), (), output, (), stmts.finish())


def copy_all(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loops((10, 8)) as (y, x):
        b.store(output, [y, x], tb.load(source, [y, x]))


def guarded_border(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loops((10, 8)) as (y, x), b.loop(3, "k") as k:
        row = y * 2 + k - 1
        inside = tb.land(tb.binary("ge", row, 0), tb.binary("lt", row, 10))
        b.store(output, [y, x], tb.select(inside, tb.load(source, [row, x]), 0.0))


def tile_tail_by_min(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loop(10, "tile", step=4) as tile:
        rows = b.let("rows", tb.minimum(4, 10 - tile))
        with b.loop(rows, "r") as r, b.loop(8, "x") as x:
            b.store(output, [tile + r, x], tb.load(source, [tile + r, x]))


def flattened_pixels(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loop(80, "p", step=12) as p, b.loop(12, "i", "unrolled") as i:
        pixel = b.let("pixel", tb.minimum(p + i, 79))
        b.store(output, [pixel // 8, pixel % 8], tb.load(source, [pixel // 8, pixel % 8]))


def vector_rows(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loop(10, "y") as y, b.loop(8, "x", step=4) as x:
        b.store(output, [y, x], tb.load(source, [y, x], 4))


def data_dependent_but_clamped(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loops((10, 8)) as (y, x):
        row = tb.clamp(tb.truncated(tb.load(source, [y, x]), "int32"), 0, 9)
        b.store(output, [y, x], tb.load(source, [row, x]))


def branch_and_else(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loops((10, 8)) as (y, x):
        condition = tb.binary("lt", y, 9)
        down = ir.Store(output, (y, x), tb.load(source, [y + 1, x]))
        same = ir.Store(output, (y, x), tb.load(source, [y, x]))
        b.append(ir.If(condition, down, same))


def never_reached(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loops((10, 8)) as (y, x), b.when(tb.binary("lt", y + 10, 10)):
        b.store(output, [y + 10, x], tb.load(source, [y, x]))


@pytest.mark.parametrize(
    "body",
    [copy_all, guarded_border, tile_tail_by_min, flattened_pixels, vector_rows, data_dependent_but_clamped,
     branch_and_else, never_reached],
)  # fmt: skip
def test_accesses_that_stay_inside_are_proven(body: Body) -> None:
    verify(function(body))


def one_past_the_end(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loops((10, 8)) as (y, x):
        b.store(output, [y, x], tb.load(source, [y, x + 1]))


def guard_on_the_wrong_side(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loops((10, 8)) as (y, x):
        row = y - 1
        b.store(output, [y, x], tb.select(tb.binary("ge", row, 0), 0.0, tb.load(source, [row, x])))


def guard_off_by_one(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loops((10, 8)) as (y, x):
        row = y * 2
        b.store(output, [y, x], tb.select(tb.binary("le", row, 10), tb.load(source, [row, x]), 0.0))


def vector_over_the_edge(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loop(10, "y") as y, b.loop(8, "x", step=3) as x:
        b.store(output, [y, x], tb.load(source, [y, x], 4))


def guard_after_its_scope(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loops((10, 8)) as (y, x):
        with b.when(tb.binary("lt", y, 9)):
            b.store(output, [y, x], tb.load(source, [y + 1, x]))
        b.store(output, [y, x], tb.load(source, [y + 1, x]))


def reached_once(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loops((10, 8)) as (y, x), b.when(tb.binary("le", y + 10, 10)):
        b.store(output, [y + 10, x], tb.load(source, [y, x]))


def unclamped_data(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loops((10, 8)) as (y, x):
        row = tb.minimum(tb.truncated(tb.load(source, [y, x]), "int32"), 9)
        b.store(output, [y, x], tb.load(source, [row, x]))


def loop_tail_not_covered(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loop(10, "tile", step=4) as tile, b.loop(4, "r") as r, b.loop(8, "x") as x:
        b.store(output, [tile + r, x], tb.load(source, [tile + r, x]))


@pytest.mark.parametrize(
    "body",
    [one_past_the_end, guard_on_the_wrong_side, guard_off_by_one, vector_over_the_edge, guard_after_its_scope,
     unclamped_data, loop_tail_not_covered, reached_once],
)  # fmt: skip
def test_accesses_that_may_leave_their_buffer_are_refused(body: Body) -> None:
    with pytest.raises(InternalError, match=r"axis \d of (source|output) \[10, 8\]"):
        verify(function(body))


def write_input(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    b.store(source, [0, 0], tb.load(output, [0, 0]))


def wrong_rank(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    b.append(ir.Store(output, (tb.const(0),), tb.const(0.0, "float32")))


def wrong_dtype(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    b.append(ir.Store(output, (tb.const(0), tb.const(0)), tb.const(0, "int32")))


def unbound_variable(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    b.store(output, [ir.Var("stray"), 0], 0.0)


def undeclared_buffer(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    b.store(output, [0, 0], tb.load(Buffer("stray", (1,), "float32"), [0]))


def mixed_operands(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    value = ir.Binary("add", tb.const(1.0, "float32"), tb.const(1, "int32"), "float32")
    b.store(output, [0, 0], value)


def unknown_intrinsic(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    b.store(output, [0, 0], tb.intrinsic("frobnicate", tb.load(source, [0, 0])))


def missing_argument(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    b.store(output, [0, 0], tb.intrinsic("pow", tb.load(source, [0, 0])))


def float_that_may_not_fit(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    limited = tb.minimum(tb.load(source, [0, 0]), 1.0)
    b.store(output, [0, 0], tb.cast(tb.cast(limited, "int32"), "float32"))


def variable_bound_twice(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    var = ir.Var("i")
    store = ir.Store(output, (var, tb.const(0)), tb.const(0.0, "float32"))
    b.append(ir.For(var, tb.const(2), ir.For(var, tb.const(2), store)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (write_input, "is an input and is written"), (wrong_rank, "1 indices into output"),
        (wrong_dtype, "accessed as int32"), (unbound_variable, "stray is used outside its scope"),
        (undeclared_buffer, "buffer stray is used outside its scope"), (mixed_operands, "'add' of float32 and int32"),
        (unknown_intrinsic, "no intrinsic frobnicate"), (missing_argument, "pow takes 2 arguments, not 1"),
        (float_that_may_not_fit, "`truncated` would limit it"),
        (variable_bound_twice, "i is bound twice"),
    ],
)  # fmt: skip
def test_ill_formed_functions_are_refused(body: Body, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        verify(function(body))


def test_prefetches_stay_inside() -> None:
    def body(most: int) -> Body:
        def write(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
            copy_all(b, source, output)
            with b.loop(10, "i") as i:
                b.prefetch(source, tb.minimum(i * 12, most), "soon")

        return write

    verify(function(body(79)))
    with pytest.raises(InternalError, match="prefetch at min"):
        verify(function(body(80)))
