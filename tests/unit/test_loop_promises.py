"""Independence of loop iterations as declared to compilers, against the actual accesses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import llvmlite.ir as ll
import pytest

from mlfc.codegen.c import print_function
from mlfc.codegen.llvm.code import emit_kernel
from mlfc.codegen.llvm.machine import machine_of
from mlfc.target.target import parse_target
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.independence import of_function
from mlfc.tir.ir import Buffer, Expr, PrimFunc
from mlfc.tir.load_ahead import load_ahead
from mlfc.tir.visitor import walk, walk_expr

SIZE = 32
Body = Callable[[tb.StmtBuilder, Buffer, Buffer], None]


def function(body: Body, inplace: tuple[int, ...] = (0,)) -> PrimFunc:
    b = tb.StmtBuilder()
    data, output = Buffer("data", (SIZE,), "float32"), Buffer("output", (SIZE,), "float32")
    body(b, data, output)
    return PrimFunc("tested", (data,), (), output, (), b.finish(), inplace)


def same_element(b: tb.StmtBuilder, data: Buffer, output: Buffer) -> None:
    with b.loop(SIZE, "i", "vectorized") as i:
        b.store(output, [i], tb.load(data, [i]) + 1.0)


def neighbour(b: tb.StmtBuilder, data: Buffer, output: Buffer) -> None:
    with b.loop(SIZE - 1, "i", "vectorized") as i:
        b.store(output, [i + 1], tb.load(data, [i]) + 1.0)


def sum_in_a_local(b: tb.StmtBuilder, data: Buffer, output: Buffer) -> None:
    total = b.local("total", (1,), "float32")
    b.store(total, [0], 0.0)
    with b.loop(SIZE, "i", "vectorized") as i:
        b.store(total, [0], tb.load(total, [0]) + tb.load(data, [i]))
    b.store(output, [0], tb.load(total, [0]))


def promised(prim: PrimFunc, aliased: frozenset[int] = frozenset()) -> tuple[bool, bool]:
    """Return whether the C and the LLVM code declare the iterations of a loop independent."""
    module = ll.Module()
    emit_kernel(
        module, prim, "tested", machine=machine_of(parse_target("llvm")), contracts=True, aliased=aliased
    )  # fmt: skip
    return "MLF_INDEPENDENT" in print_function(prim, aliased=aliased).text, "parallel_accesses" in str(module)


def test_elements_in_place_are_independent() -> None:
    assert promised(function(same_element)) == (True, True)


@pytest.mark.parametrize("body", [neighbour, sum_in_a_local])
def test_nothing_is_promised_of_iterations_that_depend_on_each_other(body: Body) -> None:
    assert promised(function(body)) == (False, False)


def test_nothing_is_promised_where_the_plan_moves_an_output_into_an_input() -> None:
    assert promised(function(same_element, inplace=()), frozenset({0})) == (False, False)


def test_memory_that_nothing_shares_keeps_its_loops_apart() -> None:
    prim = function(neighbour, inplace=())
    (loop,) = (stmt for stmt in walk(prim.body) if isinstance(stmt, ir.For))
    assert of_function(prim).holds(loop)
    assert not of_function(replace(prim, inplace=(0,))).holds(loop)


# addresses that wrap around -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "wraps"),
    [
        (lambda i, _: i, False),
        (lambda i, _: i * 3 + 2, False),
        (lambda i, _: i % 8, True),
        (lambda i, _: (i * 2 + 1) % 16, True),
        (lambda i, _: i & tb.const(7), True),
        (lambda i, _: tb.cast(tb.cast(i, "int8"), "int32"), True),
        (lambda i, _: i % 6, False),  # a remainder by 6, which is not a counter of few bits
        (lambda i, _: i // 8, False),
        (lambda i, table: tb.cast(tb.load(table, [i]), "int32"), False),
    ],
)
def test_wrapping_addresses(index: Callable[[Expr, Buffer], Expr], wraps: bool) -> None:
    table = Buffer("table", (SIZE,), "int64")
    for bound in (False, True):

        def body(b: tb.StmtBuilder, data: Buffer, output: Buffer, bound: bool = bound) -> None:
            with b.loop(SIZE, "i", "vectorized") as i:
                place = index(i, table)
                b.store(output, [i], tb.load(data, [b.let("place", place) if bound else place]))

        prim = function(body)
        (loop,) = (stmt for stmt in walk(prim.body) if isinstance(stmt, ir.For))
        assert of_function(prim).has_wrapping_address(loop) == wraps


def test_compilers_are_kept_from_vectors_of_wrapping_addresses() -> None:
    def body(b: tb.StmtBuilder, data: Buffer, output: Buffer) -> None:
        with b.loop(SIZE, "i", "vectorized") as i:
            b.store(output, [i], tb.load(data, [i % 8]))

    prim = function(body, inplace=())
    module = ll.Module()
    emit_kernel(module, prim, "tested", machine=machine_of(parse_target("llvm")), contracts=True)
    assert '!"llvm.loop.vectorize.enable", i1 0' in str(module)
    assert "unroll.disable" not in str(module)
    assert "MLF_SCALAR" in print_function(prim).text


# loads in a single branch of a select ----------------------------------------------------------------------------


def chosen_loads(body: Body) -> int:
    """Return the number of conditional loads that remain in a function after `load_ahead`."""
    found = 0
    for stmt in walk(load_ahead(function(body).body)):
        values = [stmt.value] if isinstance(stmt, (ir.Store, ir.Let)) else []
        arms = [
            arm
            for value in values
            for node in walk_expr(value)
            if isinstance(node, ir.Select)
            for arm in (node.then, node.otherwise)
        ]
        found += sum(isinstance(node, ir.Load) for arm in arms for node in walk_expr(arm))
    return found


def test_what_may_always_be_read_is_read_first() -> None:
    def body(b: tb.StmtBuilder, data: Buffer, output: Buffer) -> None:
        with b.loop(SIZE, "i", "vectorized") as i:
            x = b.let("x", tb.load(data, [i]), "float32")
            scaled = x * tb.load(data, [SIZE - 1 - i])
            inner = tb.select(tb.binary("lt", x, -1.0), scaled, x + tb.load(data, [SIZE - 1 - i]))
            b.store(output, [i], tb.select(tb.binary("lt", x, 0.0), inner, x))

    assert chosen_loads(body) == 0
    loaded = [stmt for stmt in walk(load_ahead(function(body).body)) if isinstance(stmt, ir.Let)]
    assert [stmt.var.name for stmt in loaded] == ["x", "loaded"]  # loaded once


def test_what_a_condition_keeps_in_bounds_is_read_under_it() -> None:
    def body(b: tb.StmtBuilder, data: Buffer, output: Buffer) -> None:
        with b.loop(SIZE, "i", "vectorized") as i:
            b.store(output, [i], tb.select(tb.binary("ge", i, 4), tb.load(data, [i - 4]), 0.0))

    assert chosen_loads(body) == 1
