"""Variables of TFLite become states whose initial values are those that a subgraph assigns once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import LimitError, MlfcError
from mlfc.relay.ir import Constant
from tests.tflite_builder import Graph, Op, T, build_graphs

BEGIN = np.array([[1.0, -2.0]], np.float32)
ADD = {"options": "AddOptions"}


def handle(tensor: str, name: str | None) -> Op:
    """Return the operator that creates the handle of a variable."""
    return Op("VAR_HANDLE", [], [tensor], "VarHandleOptions", {"SharedName": name} if name is not None else {})


def assigning(name: str = "sum", value: Any = BEGIN) -> Graph:
    """Return a subgraph that assigns a constant to a variable."""
    value = np.asarray(value)
    tensors = [T("h", [], "resource"), T("c", value.shape, str(value.dtype), value)]
    return Graph(tensors, [handle("h", name), Op("ASSIGN_VARIABLE", ["h", "c"], [])])


def accumulator(*once: Graph, ops: Sequence[Op] | None = None, name: str | None = "sum", index: int = 1) -> bytes:
    """Return ``sum = sum + x``, which is also the output."""
    tensors = [T("h", [], "resource"), T("g", [], "resource"), *(T(title, [1, 2]) for title in ("x", "old", "new"))]
    usual = [
        handle("h", name),
        Op("READ_VARIABLE", ["h"], ["old"]),
        Op("ADD", ["x", "old"], ["new"], **ADD),
        Op("ASSIGN_VARIABLE", ["h", "new"], []),
    ]
    calls = [Op("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": index})] if once else []
    return build_graphs(Graph(tensors, [*calls, *(usual if ops is None else ops)], ["x"], ["new"]), *once)


def test_a_variable_is_a_state_with_its_first_value() -> None:
    module, _ = mlfc.import_model(accumulator(assigning()))
    (state,) = module.states
    assert (state.input, state.output) == ("sum", "new_1")
    np.testing.assert_array_equal(state.initial, BEGIN)
    assert module.output_names == ("new", "new_1")
    assert [param.name for param in module.main.params] == ["x", "sum"]


def test_zeros_need_no_data_and_may_be_others() -> None:
    module, _ = mlfc.import_model(accumulator(assigning(value=np.zeros((1, 2), np.float32))))
    assert module.states[0].initial is None
    module, _ = mlfc.import_model(accumulator(assigning()), state_init="zeros")
    assert module.states[0].initial is None
    module, _ = mlfc.import_model(accumulator(assigning()), state_init={"sum": 3})
    np.testing.assert_array_equal(module.states[0].initial, np.full((1, 2), 3, np.float32))


def test_two_handles_of_one_name_are_one_variable() -> None:
    ops = [
        handle("h", "sum"),
        handle("g", "sum"),
        Op("READ_VARIABLE", ["g"], ["old"]),
        Op("ADD", ["x", "old"], ["new"], **ADD),
        Op("ASSIGN_VARIABLE", ["h", "new"], []),
    ]
    module, _ = mlfc.import_model(accumulator(assigning(), ops=ops))
    assert len(module.states) == 1


def test_what_is_never_assigned_is_a_constant() -> None:
    ops = [handle("h", "sum"), Op("READ_VARIABLE", ["h"], ["old"]), Op("ADD", ["x", "old"], ["new"], **ADD)]
    module, params = mlfc.import_model(accumulator(assigning(), ops=ops))
    assert module.states == ()
    np.testing.assert_array_equal(params["sum"], BEGIN)


def test_what_is_assigned_before_it_is_read_is_no_state() -> None:
    ops = [
        handle("h", "sum"),
        Op("ASSIGN_VARIABLE", ["h", "x"], []),
        Op("READ_VARIABLE", ["h"], ["old"]),
        Op("ADD", ["x", "old"], ["new"], **ADD),
    ]
    module, _ = mlfc.import_model(accumulator(ops=ops))
    assert module.states == ()
    assert not any(isinstance(arg, Constant) for arg in module.main.body.args)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (accumulator(), "variable 'sum' is read before anything is assigned to it"),
        (accumulator(assigning("other")), "variable 'sum' is read before anything is assigned"),
        (accumulator(assigning(), index=2), "it runs subgraph 2, which is the main subgraph or out of range"),
        (accumulator(assigning(), index=0), "it runs subgraph 0, which is the main subgraph"),
        (accumulator(assigning(), index=-1), "it runs subgraph -1"),
        (accumulator(assigning(), assigning()), "the model has 3 subgraphs"),
        (
            accumulator(assigning(value=np.zeros((2, 2), np.float32))),
            r"has type Tensor\[\(2, 2\), float32\], but is read as",
        ),
        (accumulator(assigning(value=np.zeros((1, 2), np.int8))), r"has type Tensor\[\(1, 2\), int8\], but is read as"),
        (
            accumulator(Graph([T("h", [], "resource"), T("x", [1, 2])], [Op("ASSIGN_VARIABLE", ["h", "x"], [])])),
            "the first value of a variable must be a constant",
        ),
        (
            accumulator(Graph([T("c", [1, 2], value=BEGIN)], [Op("ASSIGN_VARIABLE", ["c", "c"], [])])),
            "its first input is not the handle of a variable",
        ),
        (
            accumulator(Graph([T("c", [1, 2], value=BEGIN), T("d", [1, 2])], [Op("ADD", ["c", "c"], ["d"], **ADD)])),
            "ADD is not supported there",
        ),
        (
            accumulator(assigning(), ops=[Op("READ_VARIABLE", ["x"], ["new"])]),
            "its first input is not the handle of a variable",
        ),
        (accumulator(assigning(), ops=[Op("READ_VARIABLE", [], ["new"])]), "is not the handle of a variable"),
        (
            accumulator(assigning(), ops=[handle("h", "sum"), Op("READ_VARIABLE", ["h"], [])]),
            "expected one output",
        ),
        (
            accumulator(assigning(), ops=[handle("h", "sum"), Op("ASSIGN_VARIABLE", ["h", "new"], [])]),
            "expected a handle and a value that is computed before",
        ),
        (
            accumulator(assigning(), ops=[handle("h", "sum"), Op("ASSIGN_VARIABLE", ["h", "x"], ["new"])]),
            "ASSIGN_VARIABLE has no outputs, this has 1",
        ),
        (
            accumulator(assigning(), ops=[handle("h", "sum"), handle("h", "other")]),
            "expected one output, which no other operator has",
        ),
        (
            accumulator(assigning(), ops=[handle("h", "sum"), Op("ADD", ["x", "h"], ["new"], **ADD)]),
            "it reads 'h', a handle that only READ_VARIABLE and ASSIGN_VARIABLE accept",
        ),
        (
            accumulator(assigning(), ops=[handle("h", "sum"), Op("READ_VARIABLE", ["h"], ["x"])]),
            "it computes tensor 'x', which has a value already",
        ),
    ],
)
def test_variables_that_cannot_be_kept_are_refused(model: bytes, message: str) -> None:
    with pytest.raises(MlfcError, match=message):
        mlfc.import_model(model)


def test_a_variable_without_a_name_has_one() -> None:
    once = assigning("")
    module, _ = mlfc.import_model(accumulator(once, name=None))
    assert [state.input for state in module.states] == ["variable 0"]


def test_a_tensor_that_operators_write_begins_with_what_stands_for_zero() -> None:
    tensors = [
        T("x", [1, 2], "int8", scale=0.5, zero=3),
        T("held", [1, 2], "int8", scale=0.5, zero=3, is_variable=True),
        T("y", [1, 2], "int8", scale=0.5, zero=3),
    ]
    model = build_graphs(Graph(tensors, [Op("ADD", ["x", "held"], ["y"], **ADD)], ["x"], ["y"]))
    module, _ = mlfc.import_model(model)
    np.testing.assert_array_equal(module.states[0].initial, np.full((1, 2), 3, np.int8))


@pytest.mark.parametrize("zero", [0, 3])
def test_what_a_small_file_keeps_is_limited(zero: int) -> None:
    shape = [1 << 15, 1 << 15]
    tensors = [
        T("x", shape, "int8", scale=0.5, zero=zero),
        *(T(name, shape, "int8", scale=0.5, zero=zero, is_variable=True) for name in "abcde"),
        *(T(f"y{name}", shape, "int8", scale=0.5, zero=zero) for name in "abcde"),
    ]
    ops = [Op("ADD", ["x", name], [f"y{name}"], **ADD) for name in "abcde"]
    model = build_graphs(Graph(tensors, ops, ["x"], [f"y{name}" for name in "abcde"]))
    with pytest.raises(LimitError):
        mlfc.compile(model, dry_run=True)
