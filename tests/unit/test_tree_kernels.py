"""Decision trees with constant tables: every form of their loops against a traversal of the original tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlfc.errors import InternalError
from mlfc.kernels import tree_tables, trees
from mlfc.relay.op import OPERATORS
from mlfc.target.features import PLAIN, Features
from mlfc.tir import builder as tb
from mlfc.tir import interpreter, ir
from mlfc.tir.context import Context, Output, from_buffer
from mlfc.tir.visitor import walk
from tests import verify_tir as verify
from tests.ml_cases import FEATURES, random_tables, scores

Array = np.ndarray[Any, Any]
TARGETS = {
    "host": Features(), "speed": PLAIN, "unit": replace(PLAIN, float_unit=True), "size": replace(PLAIN, optimize="size")
}  # fmt: skip
# limits of the forms: the constants of `trees` by name
FORMS: dict[str, dict[str, int]] = {
    "conditions": {}, "numbered leaves": dict.fromkeys(("_ADDED_BYTES", "_STORED_BYTES"), 1 << 30),
    "tables": {"MOST_NODES": 0},
}  # fmt: skip
NAMES = [f"{name}{nan}" for name in ("le", "lt", "ge", "gt") for nan in ("", "_or_nan")]
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 0.5, 3.4e38, -3.4e38]


def kernel(features: Features, data: Array, tables: Sequence[Array], attrs: dict[str, Any]) -> tuple[ir.PrimFunc, Any]:
    """Return the loops for constant tables, and their constants."""
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


def conditions_of(prim: ir.PrimFunc) -> int:
    return sum(isinstance(stmt, ir.If) for stmt in walk(prim.body))


@pytest.fixture
def only_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MOST_NODES", 0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*NAMES, "mixed"])
def test_loops_equal_a_walk_of_the_tables(target: str, name: str) -> None:
    names = tuple(sorted(NAMES)) if name == "mixed" else (name,)
    seed = NAMES.index(name) if name != "mixed" else 9
    targets = (1, 2, 5)[seed % 3]
    tables = random_tables(seed, trees=5, depth=4, targets=targets)
    rng = np.random.default_rng(seed)
    tables[1][: len(EDGES)] = [0.25 if np.isnan(edge) or edge == -np.inf else edge for edge in EDGES]
    tables[5][rng.random(tables[5].shape) < 0.6] = 0
    data = rng.integers(-3, 4, (len(EDGES) + 2, FEATURES)).astype(np.float32) / 2
    data[: len(EDGES), seed % FEATURES] = EDGES
    data[1 : len(EDGES) + 1, (seed + 1) % FEATURES] = EDGES
    if len(names) > 1:
        tables.append((np.arange(len(tables[0])) % len(names)).astype(np.uint8))
    expected = scores(data, tables, names, "add")
    for form, limits in FORMS.items():
        with pytest.MonkeyPatch.context() as monkeypatch:
            for limit, value in limits.items():
                monkeypatch.setattr(trees, limit, value)
            prim, constants = kernel(TARGETS[target], data, tables, {"comparisons": names})
        assert ("left" in names_of(prim)) == (form == "tables" or target == "size")
        assert interpreter.run(prim, [data, *tables], constants).tobytes() == expected.tobytes(), form
        if target == "size":
            break


@pytest.mark.usefixtures("only_tables")
def test_each_form_of_the_loops_is_chosen_where_it_is_meant() -> None:
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


def test_conditions_are_chosen_where_they_are_few_and_code_may_be_large(monkeypatch: pytest.MonkeyPatch) -> None:
    data, tables = np.zeros((1, FEATURES), np.float32), random_tables(0, trees=20, depth=5, targets=1)
    count, leaves = len(tables[0]), len(tables[5])
    found = {target: kernel(features, data, tables, {})[0] for target, features in TARGETS.items()}
    assert {target: conditions_of(prim) for target, prim in found.items() if target != "size"} == dict.fromkeys(
        ("host", "speed", "unit"), count
    )
    assert {target for target, prim in found.items() if prim.constants} == {"size"}
    assert "left" in names_of(found["size"])
    assert conditions_of(found["size"]) <= 2
    with_integers = {target for target, prim in found.items() if prim.scratch}
    assert with_integers == {"speed", "size"}  # targets without instructions that compare floats
    for limit, value in (("MOST_NODES", count - 1), ("MOST_DEPTH", 4), ("MOST_BYTES", 20 * count)):
        with monkeypatch.context() as patch:
            patch.setattr(trees, limit, value)
            assert "left" in names_of(kernel(PLAIN, data, tables, {})[0])
    monkeypatch.setattr(trees, "MOST_BYTES", 20 * count + 4 * leaves)  # for leaves that only assign their numbers
    prim, _ = kernel(PLAIN, data, tables, {})
    assert names_of(prim) == {"scores"}
    assert conditions_of(prim) == count


@pytest.mark.parametrize("depth", [trees.MOST_DEPTH, 300])
def test_a_chain_of_nodes_is_nested_as_deep_as_is_allowed(depth: int) -> None:
    nodes = np.arange(depth)
    tables = [
        np.zeros(depth, np.uint8), np.arange(depth, 0, -1).astype(np.float32),
        np.stack([depth + nodes, np.append(nodes[1:], 2 * depth)], 1), np.zeros(1, np.int32), np.asarray([depth]),
        np.arange(depth + 1, dtype=np.float32)[:, None],
    ]  # fmt: skip
    data = np.asarray([[0.5], [depth / 2], [depth + 1], [np.nan]], np.float32)
    prim, constants = kernel(PLAIN, data, tables, {})
    assert (conditions_of(prim) == depth) == (depth <= trees.MOST_DEPTH)
    expected = scores(data, tables, ("le",), "add")
    np.testing.assert_array_equal(interpreter.run(prim, [data, *tables], constants), expected)


def test_leaves_that_do_nothing_and_nodes_that_lead_one_way_are_left_out() -> None:
    tables = [
        np.zeros(3, np.uint8), np.asarray([1, np.inf, 2], np.float32), np.asarray([[2, 1], [3, 4], [4, 3]]),
        np.zeros(1, np.int32), np.asarray([2]), np.asarray([[5], [0]], np.float32),
    ]  # fmt: skip
    data = np.asarray([[0], [1.5], [3], [np.nan]], np.float32)
    names = ("le_or_nan",)
    prim, constants = kernel(PLAIN, data, tables, {"comparisons": names})
    assert conditions_of(prim) == 2
    assert not any(isinstance(stmt, ir.If) and stmt.then == ir.Seq(()) for stmt in walk(prim.body))
    expected = scores(data, tables, names, "add")
    np.testing.assert_array_equal(interpreter.run(prim, [data, *tables], constants), expected)


def test_scores_that_are_no_numbers_stay_in_memory() -> None:
    tables = random_tables(3, trees=3, targets=1)
    tables[5][:2] = [[np.nan], [np.inf]]
    data = np.random.default_rng(3).integers(-3, 4, (5, FEATURES)).astype(np.float32) / 2
    prim, constants = kernel(PLAIN, data, tables, {})
    assert names_of(prim) == {"scores"}
    expected = scores(data, tables, ("le",), "add")
    np.testing.assert_array_equal(interpreter.run(prim, [data, *tables], constants), expected)


@pytest.mark.usefixtures("only_tables")
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
    count = 40  # both children of a node are the next one: 2**40 paths
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
    with pytest.raises(InternalError, match="did not end within 3 iterations"):
        interpreter.run(prim, [], [])
