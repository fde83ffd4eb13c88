"""Launches of the loop IR: loops that become work-items, rejected code, and races found by the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlfc.errors import InternalError, UnsupportedError
from mlfc.tir import builder as tb
from mlfc.tir import interpreter, ir
from mlfc.tir.bind import bind
from mlfc.tir.ir import Buffer, PrimFunc
from mlfc.tir.visitor import launches
from tests.verify_tir import verify

Body = Callable[[tb.StmtBuilder, Buffer, Buffer], None]
SHAPE = (6, 50)


def function(body: Body, *, bound: bool = True, scratch: tuple[Buffer, ...] = ()) -> PrimFunc:
    stmts = tb.StmtBuilder()
    source, output = Buffer("source", SHAPE, "float32"), Buffer("output", SHAPE, "float32")
    body(stmts, source, output)
    done = stmts.finish()
    return PrimFunc("tested", (source,), (), output, scratch, bind(done) if bound else done)


def copied(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loops(SHAPE) as (y, x):
        b.store(output, [y, x], tb.load(source, [y, x]))


def in_strips(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loop(6, "y") as y, b.loop(10, "strip") as strip:
        first = b.let("first", strip * 5)
        with b.loop(5, "x") as x:
            b.store(output, [y, first + x], tb.load(source, [y, first + x]))


def with_step(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loop(6, "y") as y, b.loop(50, "x", step=2) as x:
        b.store(output, [y, x], tb.load(source, [y, x]))
        b.store(output, [y, x + 1], tb.load(source, [y, x + 1]))


def two_nests_in_a_loop(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loop(6, "y") as y:
        with b.loop(20, "x") as x:
            b.store(output, [y, x], tb.load(source, [y, x]))
        with b.loop(30, "x") as x:
            b.store(output, [y, x + 20], tb.load(source, [y, x + 20]))


def running_sums(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    with b.loop(6, "y") as y:
        b.store(output, [y, 0], tb.load(source, [y, 0]))
        with b.loop(49, "x") as x:
            b.store(output, [y, x + 1], tb.load(output, [y, x]) + tb.load(source, [y, x + 1]))


@pytest.mark.parametrize(
    ("body", "items"),
    [(copied, [300]), (in_strips, [300]), (with_step, [150]), (two_nests_in_a_loop, [120, 180]), (running_sums, [6])],
    ids=["copied", "in_strips", "with_step", "two_nests_in_a_loop", "running_sums"],
)
def test_independent_loops_become_items(body: Body, items: list[int]) -> None:
    plain, prim = function(body, bound=False), function(body)
    verify(prim)
    for launch, count in zip(launches(prim), items, strict=True):
        whole = launch.grid[0] * launch.block[0]
        assert count <= whole < count + 256
    data = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    np.testing.assert_array_equal(interpreter.run(prim, [data]), interpreter.run(plain, [data]))


def shared_row(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
    """Use one row of scratch in all iterations of y, so that none may run in parallel."""
    row = SCRATCH
    with b.loop(6, "y") as y:
        with b.loop(50, "x") as x:
            b.store(row, [x], tb.load(source, [y, x]) * 2.0)
        with b.loop(50, "x") as x:
            b.store(output, [y, x], tb.load(row, [49 - x]))


SCRATCH = Buffer("row", (50,), "float32", "scratch")


def test_a_row_that_iterations_share_keeps_them_in_order() -> None:
    prim = function(shared_row, scratch=(SCRATCH,))
    assert [launch.grid[0] * launch.block[0] for launch in launches(prim)] == [1]
    data = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    np.testing.assert_array_equal(interpreter.run(prim, [data]), data[:, ::-1] * 2)


def test_long_work_in_order_is_left_to_the_host() -> None:
    source, output = Buffer("source", (1 << 20,), "float32"), Buffer("output", (1 << 20,), "float32")
    stmts = tb.StmtBuilder()
    stmts.store(output, [0], tb.load(source, [0]))
    with stmts.loop((1 << 20) - 1, "i") as i:
        stmts.store(output, [i + 1], tb.load(output, [i]) + tb.load(source, [i + 1]))
    with pytest.raises(UnsupportedError, match="depend on each other"):
        bind(stmts.finish())


def turned(b: tb.StmtBuilder, source: Buffer, output: Buffer, *, waits: bool) -> None:
    with b.launch((6,), (50,)) as ((row,), (item,)):
        held = b.shared("held", (50,), "float32")
        b.store(held, [item], tb.load(source, [row, item]))
        if waits:
            b.barrier()
        b.store(output, [row, item], tb.load(held, [49 - item]))


def test_items_meet_at_barriers() -> None:
    prim = function(lambda *args: turned(*args, waits=True), bound=False)
    verify(prim)
    data = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    np.testing.assert_array_equal(interpreter.run(prim, [data]), data[:, ::-1])


def test_reading_what_another_item_writes_without_a_barrier_is_a_bug() -> None:
    prim = function(lambda *args: turned(*args, waits=False), bound=False)
    with pytest.raises(InternalError, match="that another one writes"):
        interpreter.run(prim, [np.zeros(SHAPE, np.float32)])


def test_two_items_that_write_one_element_are_a_bug() -> None:
    def body(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
        with b.launch((6,), (50,)) as ((row,), (item,)):
            b.store(output, [row, item // 2], tb.load(source, [row, item]))

    with pytest.raises(InternalError, match="two work-items access an element of output"):
        interpreter.run(function(body, bound=False), [np.zeros(SHAPE, np.float32)])


@pytest.mark.parametrize("most", [65535, 4])
def test_grids_higher_than_devices_take_lie_along_x(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit groups along y and z, where CUDA supports 65,535."""
    monkeypatch.setattr(ir, "MOST_GROUPS_ACROSS", most)

    def body(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
        with b.launch((5, 6, 2), (5,)) as ((strip, row, half), (item,)):
            x = b.let("x", half * 25 + strip * 5 + item)
            b.store(output, [row, x], tb.load(source, [row, x]))

    prim = function(body, bound=False)
    verify(prim)
    (launch,) = launches(prim)
    assert launch.grid == ((5, 6, 2) if most > 6 else (60, 1, 1))
    data = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    np.testing.assert_array_equal(interpreter.run(prim, [data]), data)


def refused(body: Body, cause: str) -> None:
    with pytest.raises(InternalError, match=cause):
        verify(function(body, bound=False))


def test_verification_refuses_what_no_device_does() -> None:
    def uneven(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
        with b.launch((6,), (50,)) as ((row,), (item,)):
            value = b.let("value", tb.load(source, [row, item]))
            with b.when(tb.binary("gt", value, 0.0)):
                b.barrier()
            b.store(output, [row, item], value)

    def outside(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
        with b.launch((7,), (50,)) as ((row,), (item,)):
            b.store(output, [row, item], tb.load(source, [row, item]))

    def high(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
        groups, items = (tuple(ir.Var(f"{name}_{axis}") for axis in "xyz") for name in ("group", "item"))
        b.append(ir.Launch((1, 65536, 1), (1, 1, 1), groups, items, ir.Store(output, (0, 0), tb.load(source, [0, 0]))))

    def nested(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
        with b.launch((6,), (50,)) as ((row,), (item,)), b.launch((2,), (2,)):
            b.store(output, [row, item], tb.load(source, [row, item]))

    def shared_on_the_host(b: tb.StmtBuilder, source: Buffer, output: Buffer) -> None:
        held = b.shared("held", (50,), "float32")
        b.store(held, [0], tb.load(source, [0, 0]))
        b.store(output, [0, 0], tb.load(held, [0]))

    refused(uneven, "a barrier stands in a condition that depends on the work-item")
    refused(outside, "is not proven to be inside")
    refused(high, "a launch of .* is larger than devices take")
    refused(nested, "a launch stands inside another")
    refused(shared_on_the_host, "is allocated but not local")
    refused(lambda b, *_: b.append(ir.Barrier()), "a barrier stands outside every launch")
