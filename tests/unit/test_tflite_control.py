"""IF of TFLite, and WHILE with a constant condition, against LiteRT; and rejected models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import LimitError, MlfcError
from mlfc.verify.litert import LiteRtReference
from tests.tflite_builder import Graph, Op, T, build_graphs

X = np.array([-2, -0.5, 1.25, 3], np.float32)  # products and sums of these are exact
_ONE = T("one", (), "int32", 1)


def _step(code: str, name: str = "step") -> Graph:
    """Return a subgraph that adds or multiplies by a constant shared by all iterations."""
    tensors = [T("x", (4,)), T("weights", (4,), value=np.arange(1.0, 5.0)), T(name, (4,))]
    return Graph(tensors, [Op(code, ["x", "weights"], [name], f"{code.title()}Options")], ["x"], [name])


def branching(condition: T) -> bytes:
    """Return a model of one input that adds or multiplies."""
    given = ["x"] if condition.value is not None else ["x", "condition"]
    op = Op("IF", ["condition", "x"], ["y"], "IfOptions", {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2})
    main = Graph([T("x", (4,)), condition, T("y", (4,))], [op], given, ["y"])
    return build_graphs(main, _step("ADD"), _step("MUL"))


def uneven() -> bytes:
    """Return a model whose branches return different shapes."""
    op = Op("IF", ["condition", "x"], ["y"], "IfOptions", {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2})
    main = Graph([T("x", (4,)), T("condition", (), "bool"), T("y", (4,))], [op], ["x", "condition"], ["y"])
    square = Graph([T("x", (4,)), T("wide", (2, 2))], [Op("RESHAPE", ["x"], ["wide"], "ReshapeOptions",
                   {"NewShape": [2, 2]})], ["x"], ["wide"])  # fmt: skip
    return build_graphs(main, _step("ADD"), square)


def looping(
    limit: int = 3, *, start: Any = 0, dtype: str = "int32", condition: int = 1, body: int = 2, step: Any = 1
) -> bytes:
    """Return a model whose loop multiplies if the counter is even, and adds if it is odd."""
    count = T("i", (), dtype)
    op = Op("WHILE", ["start", "x"], ["end", "y"], "WhileOptions",
            {"CondSubgraphIndex": condition, "BodySubgraphIndex": body})  # fmt: skip
    main = Graph(
        [T("start", (), dtype, start), T("x", (4,)), T("end", (), dtype), T("y", (4,))], [op],
        ["x"] if start is not None else ["start", "x"], ["y", "end"],
    )  # fmt: skip
    goes_on = Graph(
        [count, T("x", (4,)), T("limit", (), dtype, limit), T("on", (), "bool")],
        [Op("LESS", ["i", "limit"], ["on"], "LessOptions")], ["i", "x"], ["on"],
    )  # fmt: skip
    turn = Graph(
        [count, T("x", (4,)), T("one", (), dtype, step), T("two", (), dtype, 2), T("zero", (), dtype, 0),
         T("rest", (), dtype), T("even", (), "bool"), T("next", (), dtype), T("y", (4,))],
        [Op("ADD", ["i", "one"], ["next"], "AddOptions"), Op("FLOOR_MOD", ["i", "two"], ["rest"], "FloorModOptions"),
         Op("EQUAL", ["rest", "zero"], ["even"], "EqualOptions"),
         Op("IF", ["even", "x"], ["y"], "IfOptions", {"ThenSubgraphIndex": 3, "ElseSubgraphIndex": 4})],
        ["i", "x"], ["next", "y"],
    )  # fmt: skip
    return build_graphs(main, goes_on, turn, _step("MUL"), _step("ADD"))


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (branching(T("condition", (), "bool", True)), {}),
        (branching(T("condition", (), "bool", False)), {}),
        (branching(T("condition", (), "bool")), {"condition": False}),
        (looping(), {}),
        (looping(0), {}),
        (looping(2, dtype="float32", step=0.5), {}),
        (looping(5, start=None), {"start": 2}),
    ],
    ids=["then", "else", "frozen", "loop", "no turn", "real counter", "frozen counter"],
)
def test_what_is_known_is_what_litert_computes(model: bytes, values: dict[str, Any]) -> None:
    fed = {name: np.array(value, bool if name == "condition" else np.int32) for name, value in values.items()}
    theirs = LiteRtReference(model).run({"x": X, **fed})
    compiled = mlfc.compile(model, target="llvm", values=values)
    ours = compiled.run({"x": X})
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_both_branches_of_a_condition_that_comes_late_are_computed() -> None:
    model = branching(T("condition", (), "bool"))
    compiled = mlfc.compile(model, target="llvm")
    for holds in (True, False):
        given = {"x": X, "condition": np.array(holds)}
        np.testing.assert_array_equal(compiled.run(given)["y"], LiteRtReference(model).run(given)["y"])


def test_turns_share_their_weights() -> None:
    _, params = mlfc.import_model(looping(20))
    assert len(params) == 2


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        (branching(T("condition", (2,), "bool")), MlfcError, "the condition must be a single bool, got"),
        (uneven(), MlfcError, "its branches return .*, and its condition is only known at run time"),
        (looping(start=None), MlfcError, "its number of iterations is only known at run time"),
        (looping(1 << 30), LimitError, "operators"),
        (looping(step=0), LimitError, "operators"),
        (looping(condition=9), MlfcError, "runs subgraph 9, which is the main subgraph or out of range"),
        (looping(body=0), MlfcError, "runs subgraph 0, which is the main subgraph"),
        (looping(body=3), MlfcError, "subgraph 3 has 1 inputs, got 2"),
    ],
)
def test_what_cannot_be_known_is_refused(model: bytes, kind: type[MlfcError], message: str) -> None:
    with pytest.raises(kind, match=message):
        mlfc.import_model(model)


def test_a_subgraph_that_runs_itself_is_refused() -> None:
    again = Op("IF", ["condition", "x"], ["y"], "IfOptions", {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 1})
    tensors = [T("x", (4,)), T("condition", (), "bool", True), T("y", (4,))]
    graph = Graph(tensors, [again], ["x"], ["y"])
    with pytest.raises(MlfcError, match="subgraph 1 runs itself"):
        mlfc.import_model(build_graphs(graph, graph))
