"""The order of calls: optimal on small graphs, and always consistent with dependencies."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc import memory
from mlfc.archive.read.load import load_factory
from mlfc.errors import BudgetError
from mlfc.tir.program import Program
from tests.unit.test_memory import make_call, make_program, make_value


@st.composite
def graphs(draw: st.DrawFn) -> Program:
    """Return a random graph of up to seven calls with a single last call."""
    values = [make_value("x", 64, "input")]
    calls = []
    for index in range(draw(st.integers(2, 6))):
        inputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True))
        values.append(make_value(f"v{index}", 16 * draw(st.integers(1, 9))))
        calls.append(make_call(inputs, values[-1], draw(st.sampled_from([0, 0, 64]))))
    read = {value for call in calls for value in call.inputs}
    final = make_value("y", 16, "output")
    calls.append(make_call([value for value in values[1:] if value not in read], final))
    return make_program(calls, [final])


def peak(calls: tuple[Any, ...]) -> int | None:
    """Return the peak of live bytes of calls in this order, by brute force; None if the order is invalid."""
    made: set[Any] = set()
    most = 0
    for index, call in enumerate(calls):
        if any(value not in made for value in call.inputs if value.kind == "intermediate"):
            return None
        made.add(call.output)
        later = {value for after in calls[index:] for value in after.inputs}
        live = [value for value in made if value.kind == "intermediate" and (value in later or value is call.output)]
        most = max(most, sum(value.nbytes for value in live) + call.kernel.scratch_bytes)
    return most


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_no_order_of_a_small_graph_is_better(program: Program) -> None:
    best = min(found for order in itertools.permutations(program.calls) if (found := peak(order)) is not None)
    order = memory.reordered(program).calls
    assert sorted(map(id, order)) == sorted(map(id, program.calls))
    assert peak(order) == best


def branches() -> Any:
    """Return two branches from one input, where the result of the first one is live during the larger second one."""
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.normal(0, 0.2, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "wa"], ["a"], name="a"),
        helper.make_node("Conv", ["x", "wb"], ["b1"], name="b1"),
        helper.make_node("Conv", ["b1", "wc"], ["b2"], name="b2"),
        helper.make_node("Concat", ["a", "b2"], ["y"], name="y", axis=1),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "branches",
        [info("x", TensorProto.FLOAT, (1, 4, 8, 8))], [info("y", TensorProto.FLOAT, (1, 12, 8, 8))],
        [weights("wa", 8, 4, 1, 1), weights("wb", 40, 4, 1, 1), weights("wc", 4, 40, 1, 1)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_the_larger_branch_runs_first_where_every_byte_counts(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "branches.onnx"
    path.write_bytes(branches().SerializeToString())
    mod, params = mlfc.import_model(path)
    small = mlfc.build(mod, "c -mcpu=cortex-m4", params, module_name="small")
    nodes = [node for call in small.program.calls for node in call.nodes]
    assert nodes.index("b1") < nodes.index("a")
    x = np.random.default_rng(1).normal(size=(1, 4, 8, 8)).astype(np.float32)
    expected = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})[0]
    np.testing.assert_allclose(load_factory(small).run(x)["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_pool_may_have_room_for_the_better_order_alone(tmp_path: Path) -> None:
    path = tmp_path / "branches.onnx"
    path.write_bytes(branches().SerializeToString())
    mod, params = mlfc.import_model(path)
    room = mlfc.build(mod, "c -mcpu=cortex-m4", params).plan.size
    plan = mlfc.build(mod, "c -mcpu=cortex-m4", params, pools=[memory.Pool("only", room)]).plan
    assert [(span.name, span.nbytes) for span in plan.spans] == [("only", room)]
    with pytest.raises(BudgetError, match="'only'"):
        mlfc.build(mod, "c -mcpu=cortex-m4", params, pools=[memory.Pool("only", room - 64)])
