"""Dependencies between calls, against the graph executor's JSON, and by hand for loops and branches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mlfc
from mlfc.archive.details import module_info
from mlfc.support.module_info import CallInfo
from tests.vm_control import INTEGER, floats, loop, module


def _calls(factory: Any) -> tuple[CallInfo, ...]:
    return module_info(factory).operators


@pytest.mark.parametrize("name", ["pretrainedResnet_quant", "trained_lstm_int8", "ad01_int8"])
def test_equals_the_graph_of_the_graph_executor(name: str, shared: Path) -> None:
    mod, params = mlfc.import_model(shared / "models" / f"{name}.tflite")
    factory = mlfc.build(mod, "c", params, executor="graph")
    graph = json.loads(factory.graph_json)
    made: dict[int, int] = {}
    expected = []
    inputs = {item.name: -1 - place for place, item in enumerate(module_info(factory).inputs)}
    for index, node in enumerate(graph["nodes"]):
        if node["op"] != "null":
            reads = [made[entry[0]] for entry in node["inputs"] if entry[0] in made]
            expected.append(tuple(dict.fromkeys(reads)))
            made[index] = len(expected) - 1
        elif node["name"] in inputs:
            made[index] = inputs[node["name"]]
    stateless = [tuple(source for source in call.reads if source >= -len(inputs)) for call in _calls(factory)]
    assert stateless == expected
    heads = [made[entry[0]] for entry in graph["heads"]]
    found = {place: index for index, call in enumerate(_calls(factory)) for place in call.outputs}
    assert [found[place] for place in range(len(heads))] == heads
    ahead = mlfc.build(mod, "c", params)
    assert len(_calls(ahead)) == len(expected)
    by_node = [
        ({call.nodes for call in calls}, sum(len(call.reads) for call in calls))
        for calls in (_calls(ahead), _calls(factory))
    ]
    assert by_node[0] == by_node[1]


def test_loops_carry_what_later_calls_compute() -> None:
    from mlfc.relay import ir

    def turn(count: Any, total: Any, x: Any) -> Any:
        one = ir.const(1, "int64")
        return [ir.call("add", [count, one]), ir.call("exp", [ir.call("add", [total, x])])]

    x = ir.Var("x", floats(4))
    head, functions = loop(
        "again", [INTEGER, floats(4)], [floats(4)],
        lambda count, total, x: ir.call("less", [count, ir.const(3, "int64")]), turn,
    )  # fmt: skip
    first = ir.call("exp", [x])
    result = ir.call_function(head, [ir.const(0, "int64"), first, x])
    factory = mlfc.build(module([x], [ir.call("tanh", [ir.TupleGetItem(result, 1)])], **functions), "c", executor="vm")
    calls = {call.function.partition("fused_")[2]: (index, call) for index, call in enumerate(_calls(factory))}
    (before, start), (inside, body), (after, end) = calls["exp"], calls["add_exp"], calls["tanh"]
    assert start.reads == (-1,)
    assert sorted(body.reads) == [-1, before, inside], "the body reads the first value, and its own last one"
    assert sorted(end.reads) == [before, inside]
    assert [call.outputs for call in (start, body, end)] == [(), (), (0,)]
    assert after > inside


def test_tiles_of_rows_read_what_they_touch(shared: Path) -> None:
    """Check that every call reads earlier calls or the input, and that every call without outputs is read."""
    mod, params = mlfc.import_model(shared / "models" / "vww_96_int8.tflite")
    factory = mlfc.build(mod, "c -mcpu=cortex-m4", params, ram=50_000)
    calls = _calls(factory)
    assert factory.program.tiling is not None
    assert all(call.reads for call in calls)
    assert all(source < index for index, call in enumerate(calls) for source in call.reads)
    read = {source for call in calls for source in call.reads}
    assert read >= {index for index, call in enumerate(calls) if not call.outputs}
