"""The interpreter of loop-level code: C's arithmetic, guarded loads, vectors, bounds."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from mlfc.errors import InternalError
from mlfc.tir import builder as tb
from mlfc.tir import interpreter
from mlfc.tir.ir import Binary, Buffer, PrimFunc, Var


def test_integers_wrap_and_truncate_as_in_c() -> None:
    a, b = Var("a", "int8"), Var("b", "int8")
    pairs = np.stack(np.meshgrid(np.arange(-128, 128), [-7, -1, 1, 3, 127]), -1).reshape(-1, 2)
    env = {a: pairs[:, 0], b: pairs[:, 1]}
    total = interpreter.evaluate_expr(Binary("add", a, b, "int8"), env, {})
    np.testing.assert_array_equal(total, [ctypes.c_int8(int(x) + int(y)).value for x, y in pairs])
    quotient = interpreter.evaluate_expr(Binary("truncdiv", a, b, "int8"), env, {})
    np.testing.assert_array_equal(quotient, [ctypes.c_int8(int(int(x) / int(y))).value for x, y in pairs])
    rest = interpreter.evaluate_expr(Binary("truncmod", a, b, "int8"), env, {})
    np.testing.assert_array_equal(rest, [int(np.fmod(int(x), int(y))) for x, y in pairs])


def test_float32_stays_float32() -> None:
    x = Var("x", "float32")
    value = interpreter.evaluate_expr(x * 0.1 + 1e-3, {x: np.float32(3)}, {})
    assert value.dtype == np.float32
    assert value == np.float32(3) * np.float32(0.1) + np.float32(1e-3)


def test_a_load_behind_a_select_may_lie_outside() -> None:
    buffer, index = Buffer("data", (4,), "int32"), Var("i")
    guarded = tb.select(tb.binary("ge", index - 1, 0), tb.load(buffer, [index - 1]), -5)
    memory = {buffer: np.arange(10, 14, dtype=np.int32)}
    indices = np.arange(5, dtype=np.int32)
    np.testing.assert_array_equal(interpreter.evaluate_expr(guarded, {index: indices}, memory), [-5, 10, 11, 12, 13])
    assert interpreter.evaluate_expr(guarded, {index: 0}, memory) == -5


@pytest.mark.parametrize("index", [-1, 4])
def test_a_load_outside_is_a_bug(index: int) -> None:
    buffer, var = Buffer("data", (4,), "int32"), Var("i")
    with pytest.raises(InternalError, match="leaves its bounds"):
        interpreter.evaluate_expr(tb.load(buffer, [var]), {var: index}, {buffer: np.zeros(4, np.int32)})


def _function(stmts: tb.StmtBuilder, source: Buffer, output: Buffer) -> PrimFunc:
    return PrimFunc("tested", (source,), (), output, (), stmts.finish())


def test_vectors_have_lanes() -> None:
    source, output = Buffer("source", (3, 8), "float32"), Buffer("output", (8,), "float32")
    stmts = tb.StmtBuilder()
    total = stmts.local("total", (2,), "float32x4")
    for half in range(2):
        stmts.store(total, [half], tb.const(0, "float32x4"))
    with stmts.loop(3, "row") as row:
        for half in range(2):
            scaled = tb.load(source, [row, half * 4], lanes=4) * tb.cast(row + 1, "float32")
            stmts.store(total, [half], tb.load(total, [half]) + scaled)
    for half in range(2):
        stmts.store(output, [half * 4], tb.load(total, [half]))
    data = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    result = interpreter.run(_function(stmts, source, output), [data])
    np.testing.assert_allclose(result, data[0] + data[1] * 2 + data[2] * 3, rtol=1e-6)


def test_a_vectorized_sum_into_one_place_still_adds_every_element() -> None:
    source, output = Buffer("source", (9,), "int32"), Buffer("output", (1,), "int32")
    stmts = tb.StmtBuilder()
    stmts.store(output, [0], 0)
    with stmts.loop(9, "i", "vectorized") as index:
        stmts.store(output, [0], tb.load(output, [0]) + tb.load(source, [index]))
    assert interpreter.run(_function(stmts, source, output), [np.arange(9, dtype=np.int32)]) == [36]


def test_what_is_not_written_shows() -> None:
    source, output = Buffer("source", (2,), "float32"), Buffer("output", (2,), "float32")
    stmts = tb.StmtBuilder()
    stmts.store(output, [1], tb.load(source, [0]))
    result = interpreter.run(_function(stmts, source, output), [np.ones(2, np.float32)])
    np.testing.assert_array_equal(result, [np.nan, 1])


def test_steps_are_limited() -> None:
    source, output = Buffer("source", (9,), "int32"), Buffer("output", (9,), "int32")
    stmts = tb.StmtBuilder()
    with stmts.loop(9, "i") as index:
        stmts.store(output, [index], tb.load(source, [index]))
    function = _function(stmts, source, output)
    with pytest.raises(interpreter.StepLimitError):
        interpreter.run(function, [np.zeros(9, np.int32)], step_limit=9)
    assert interpreter.run(function, [np.zeros(9, np.int32)], step_limit=10).sum() == 0
