"""Decision trees whose tables are known: every form of their loops against a walk of the tables as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mlfc.ops  # noqa: F401  (declares the operator)
from mlfc.errors import InternalError
from mlfc.kernels import tree_tables
from mlfc.relay.op import OPERATORS
from mlfc.target.features import PLAIN, Features
from mlfc.tir import builder as tb
from mlfc.tir import interpreter, ir, verify
from mlfc.tir.context import Context, Output, from_buffer
from tests.ml_cases import FEATURES, random_tables, scores

Array = np.ndarray[Any, Any]
TARGETS = {"host": Features(), "speed": PLAIN, "size": replace(PLAIN, optimize="size")}
NAMES = [f"{name}{nan}" for name in ("le", "lt", "ge", "gt") for nan in ("", "_or_nan")]
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 0.5, 3.4e38, -3.4e38]


def kernel(features: Features, data: Array, tables: Sequence[Array], attrs: dict[str, Any]) -> tuple[ir.PrimFunc, Any]:
    """Return the loops for tables that are known, and their constants."""
    buffers = [ir.Buffer(f"a{index}", array.shape, str(array.dtype)) for index, array in enumerate((data, *tables))]
    given = [from_buffer(buffers[0]), *map(from_buffer, buffers[1:], tables)]
    result = ir.Buffer("result", (len(data), tables[5].shape[1]), str(data.dtype))
    ctx = Context(features)
    out = Output(result.shape, result.dtype, lambda indices, value: ctx.stmts.store(result, indices, value))
    operator = OPERATORS.get("ml.tree_ensemble")
    assert operator.emit is not None
    operator.emit(ctx, given, operator.complete(attrs), out)
    body = ctx.stmts.finish()
    constants = tuple(buffer for buffer, _ in ctx.constants)
    prim = ir.PrimFunc("trees", tuple(buffers), constants, result, tuple(ctx.scratch_buffers), body)
    verify.verify(prim)
    return prim, [array for _, array in ctx.constants]


def names_of(prim: ir.PrimFunc) -> set[str]:
    return {buffer.name for buffer in prim.constants}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*NAMES, "mixed"])
def test_loops_equal_a_walk_of_the_tables(target: str, name: str) -> None:
    names = tuple(sorted(NAMES)) if name == "mixed" else (name,)
    seed = NAMES.index(name) if name != "mixed" else 9
    targets = (1, 2, 5)[seed % 3]
    tables = random_tables(seed, trees=12, depth=5, targets=targets)
    rng = np.random.default_rng(seed)
    tables[1][: len(EDGES)] = [0.25 if np.isnan(edge) or edge == -np.inf else edge for edge in EDGES]
    tables[5][rng.random(tables[5].shape) < 0.6] = 0
    data = rng.integers(-3, 4, (len(EDGES) + 2, FEATURES)).astype(np.float32) / 2
    data[: len(EDGES), seed % FEATURES] = EDGES
    data[1 : len(EDGES) + 1, (seed + 1) % FEATURES] = EDGES
    if len(names) > 1:
        tables.append((np.arange(len(tables[0])) % len(names)).astype(np.uint8))
    prim, constants = kernel(TARGETS[target], data, tables, {"comparisons": names})
    assert "left" in names_of(prim)
    expected = scores(data, tables, names, "add")
    np.testing.assert_array_equal(interpreter.run(prim, [data, *tables], constants), expected)


def test_each_form_is_chosen_where_it_is_meant() -> None:
    data = np.zeros((1, FEATURES), np.float32)
    many, few = random_tables(0, trees=60, depth=6, targets=5), random_tables(0, trees=1, depth=2, targets=1)
    many[5][:, 1:] = 0
    found = {(target, len(tables[0])): names_of(kernel(TARGETS[target], data, tables, {})[0])
             for target in TARGETS for tables in (many, few)}  # fmt: skip
    size = len(many[0])
    assert "cuts" in found["size", size]
    assert "cut" in found["speed", size]
    assert "cuts" not in found["speed", size]
    assert "threshold" in found["host", size]
    assert {"target_of", "values"} <= found["host", size]
    assert all({"threshold", "scores"} <= found[target, len(few[0])] for target in TARGETS)


@pytest.mark.parametrize("aggregate", ["min", "max"])
def test_extremes_and_wide_numbers(aggregate: str) -> None:
    for dtype in ("float32", "float64"):
        tables = random_tables(7, trees=3, dtype=dtype)
        data = np.random.default_rng(7).integers(-3, 4, (5, FEATURES)).astype(dtype) / 2
        data[0] = np.nan
        for target in TARGETS.values():
            prim, constants = kernel(target, data, tables, {"comparisons": ("lt",), "aggregate": aggregate})
            expected = scores(data, tables, ("lt",), aggregate)
            np.testing.assert_array_equal(interpreter.run(prim, [data, *tables], constants), expected)


def test_tables_that_these_loops_cannot_go_down_have_the_others() -> None:
    data = np.zeros((1, FEATURES), np.float32)
    lies = [(0, FEATURES), (1, np.nan), (2, 9999), (3, 9999), (4, 1)]
    for index, value in lies:
        tables = [array.copy() for array in random_tables(1)]
        tables[index].flat[0] = value
        prim, _ = kernel(PLAIN, data, tables, {})
        assert "left" not in names_of(prim)
    prim, _ = kernel(PLAIN, data, random_tables(1), {"comparisons": ("eq",)})
    assert "left" not in names_of(prim)


def test_shared_children_do_not_make_exponentially_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_tables, "MOST_NODES", 1000)
    count = 40  # both children of a node are the next one: 2**40 ways down
    following = np.stack([np.arange(1, count + 1)] * 2, 1)
    threshold = np.zeros(count, np.float32)
    args = (np.zeros(count, np.int64), threshold, following, np.zeros(1, np.int64), 1, ["le"] * count)
    assert tree_tables.tree_tables(*args) is None


def test_a_loop_that_breaks_its_promise_is_an_error() -> None:
    value = ir.Buffer("x", (1,), "int32")
    stmts = tb.StmtBuilder()
    with stmts.loop_until(tb.binary("eq", tb.load(value, [0]), 7), 3):
        stmts.store(value, [0], 1)
    prim = ir.PrimFunc("f", (), (), value, (), stmts.finish())
    verify.verify(prim)
    with pytest.raises(InternalError, match="did not end in 3 iterations"):
        interpreter.run(prim, [], [])
