"""The reader of graph JSON accepts valid graphs and names the faults of invalid ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mlfc.errors import ArchiveError
from mlfc.runtime.executors.graph_json import MAX_TEXT, parse_graph

Document = dict[str, Any]


def operator(name: str, inputs: list[list[int]], function: str = "f", outputs: int = 1, **attrs: str) -> Document:
    counts = {"num_inputs": str(len(inputs)), "num_outputs": str(outputs), "flatten_data": "0"}
    return {"op": "tvm_op", "name": name, "inputs": inputs, "attrs": {"func_name": function, **counts, **attrs}}


def document() -> Document:
    """Return ``y = g(f(x, p0))``; the output of g does not reuse storage."""
    return {
        "nodes": [
            {"op": "null", "name": "x", "inputs": []},
            {"op": "null", "name": "p0", "inputs": []},
            operator("a", [[0, 0, 0], [1, 0, 0]]),
            operator("b", [[2, 0, 0]], "g"),
        ],
        "arg_nodes": [0, 1],
        "heads": [[3, 0, 0]],
        "attrs": {
            "dltype": ["list_str", ["float32", "float32", "float32", "int8"]],
            "shape": ["list_shape", [[1, 4], [4], [1, 4], []]],
            "storage_id": ["list_int", [0, 1, 2, 3]],
            "device_index": ["list_int", [1, 1, 1, 1]],
        },
        "node_row_ptr": [0, 1, 2, 3, 4],
    }


def test_the_facts_are_those_of_the_text() -> None:
    for text in (json.dumps(document()), json.dumps(document(), indent=2).encode()):
        graph = parse_graph(text)
        assert graph.arguments == {"x": 0, "p0": 1}
        assert [node.function for node in graph.nodes] == [None, None, "f", "g"]
        assert graph.nodes[2].inputs == (0, 1)
        assert [entry.nbytes for entry in graph.entries] == [16, 16, 16, 1]
        assert graph.storage_bytes == {0: 16, 1: 16, 2: 16, 3: 1}
        assert graph.heads == (3,)


def change(key: str, *path: Any, to: Any) -> Callable[[Document], None]:
    def apply(graph: Document) -> None:
        place = graph
        for step in (key, *path)[:-1]:
            place = place[step]
        place[(key, *path)[-1]] = to

    return apply


ALLOWED = {
    "references without a version": change("nodes", 2, "inputs", to=[[0, 0], [1, 0]]),
    "extensions that hold integers": change("attrs", "mlfc", to=["list_int", [1]]),
    "no device indices": lambda graph: graph["attrs"].pop("device_index"),
    "scopes": change("attrs", "storage_scope", to=["list_str", ["", "global", "", "global.texture"]]),
    "attr for attrs": lambda graph: graph["nodes"][3].update(attr=graph["nodes"][3].pop("attrs")),
    "dependencies": change("nodes", 3, "control_deps", to=[2]),
    "metadata of old graphs": change("metadata", to={}),
    "vectors": change("attrs", "dltype", 1, 0, to="float32x4"),
    "work in place": change("attrs", "storage_id", 1, 3, to=2),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_what_the_format_allows_is_read(case: str) -> None:
    graph = document()
    ALLOWED[case](graph)
    parse_graph(json.dumps(graph))


FAULTS: dict[str, tuple[Callable[[Document], Any], str]] = {
    "a missing key": (lambda graph: graph.pop("heads"), r"\$: the key 'heads' is missing"),
    "an unknown key": (change("more", to=1), r"\$: unknown key 'more' of a graph"),
    "an unknown key of a node": (change("nodes", 2, "shape", to=[]), r"nodes\[2\]: unknown key 'shape'"),
    "an unknown operation": (change("nodes", 2, "op", to="add"), r"nodes\[2\].op: unknown operation 'add'"),
    "a name that is no text": (change("nodes", 2, "name", to=7), r"nodes\[2\].name: expected a string, found 7"),
    "a cycle": (change("nodes", 2, "inputs", 0, to=[3, 0, 0]), r"nodes\[2\].inputs\[0\]: node 3 .* has a cycle"),
    "a node that reads itself": (change("nodes", 2, "inputs", 0, to=[2, 0, 0]), "the graph has a cycle"),
    "a node out of range": (change("heads", to=[[9, 0, 0]]), r"heads\[0\]: node 9"),
    "an output out of range": (change("heads", to=[[3, 1, 0]]), "got number 1"),
    "a negative reference": (change("heads", to=[[-1, 0, 0]]), r"heads\[0\]: expected an integer from 0"),
    "a reference of booleans": (change("heads", to=[[True, False, False]]), "expected an integer"),
    "too few numbers": (change("heads", to=[[3]]), r"expected a list \[node, output, version\]"),
    "a missing attribute": (lambda graph: graph["nodes"][2]["attrs"].pop("func_name"), "'func_name' is missing"),
    "an attribute that is no text": (change("nodes", 2, "attrs", "num_inputs", to=2), "expected a string, found 2"),
    "a wrong number of inputs": (change("nodes", 2, "attrs", "num_inputs", to="3"), "num_inputs: '3', but it has 2"),
    "a huge number of outputs": (change("nodes", 2, "attrs", "num_outputs", to="9" * 30), "at most six digits"),
    "flattening of neither kind": (change("nodes", 2, "attrs", "flatten_data", to="2"), "must be '0' or '1'"),
    "an input that reads": (change("nodes", 1, "inputs", to=[[0, 0, 0]]), "an input of the model cannot have inputs"),
    "inputs of one name": (change("nodes", 1, "name", to="x"), "two inputs have the name 'x'"),
    "an argument left out": (change("arg_nodes", to=[0]), "arg_nodes: expected the nodes"),
    "an operator as argument": (change("arg_nodes", to=[0, 1, 2]), "arg_nodes: expected the nodes"),
    "wrong sums": (change("node_row_ptr", to=[0, 1, 2, 3, 5]), "node_row_ptr: expected the cumulative"),
    "too few shapes": (change("attrs", "shape", 1, to=[[1]]), r"attrs.shape: 1 values for 4"),
    "a wrong tag": (change("attrs", "shape", 0, to="list_int"), "its tag must be 'list_shape', not 'list_int'"),
    "an extension of another tag": (change("attrs", "more", to=["list_str", []]), "unknown attribute with the tag"),
    "no shapes": (lambda graph: graph["attrs"].pop("shape"), "attrs: the key 'shape' is missing"),
    "a negative extent": (change("attrs", "shape", 1, 0, to=[-1]), r"attrs.shape\[1\]\[0\]: expected an integer"),
    "a product that overflows": (change("attrs", "shape", 1, 0, to=[1 << 20] * 4), "is not possible"),
    "a zero that hides others": (change("attrs", "shape", 1, 0, to=[0, 1 << 40, 1 << 40]), "is not possible"),
    "too many dimensions": (change("attrs", "shape", 1, 0, to=[1] * 33), "33 dimensions"),
    "an unknown dtype": (change("attrs", "dltype", 1, 0, to="float"), "unknown dtype 'float'"),
    "a dtype of no bits": (change("attrs", "dltype", 1, 0, to="int0"), "unknown dtype 'int0'"),
    "a fraction": (change("attrs", "shape", 1, 0, to=[1.5]), "expected an integer from 0 to .*, found 1.5"),
    "a cumulative count of another type": (change("node_row_ptr", 0, to=0.0), "node_row_ptr: expected the cumulative"),
    "an argument index of another type": (change("arg_nodes", 0, to=False), "arg_nodes: expected the nodes"),
    "two devices of a block": (
        lambda graph: (
            change("attrs", "storage_id", 1, 3, to=2)(graph),
            change("attrs", "device_index", 1, 3, to=4)(graph),
        ),
        "storage id 2 has two device types",
    ),
    "an input overwritten": (change("attrs", "storage_id", 1, 3, to=1), "would be written over the input 'p0'"),
    "inputs that share a block": (change("attrs", "storage_id", 1, 1, to=0), "storage id 0: another tensor"),
    "a view in another block": (
        change("nodes", 3, "attrs", "func_name", to="__nop"),
        r"'__nop' of 16 bytes cannot return 1",
    ),
    "not an object": (lambda graph: graph.clear(), "the key 'nodes' is missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(fault: str) -> None:
    apply, message = FAULTS[fault]
    graph = document()
    apply(graph)
    with pytest.raises(ArchiveError, match=message):
        parse_graph(json.dumps(graph), "m.graph")


def test_a_block_in_use_is_not_given_away() -> None:
    graph = document()
    # the second operator's result uses the storage of the first's, which the third still reads
    graph["nodes"].append(operator("c", [[2, 0, 0], [3, 0, 0]], "h"))
    graph["node_row_ptr"].append(5)
    graph["heads"] = [[4, 0, 0]]
    for key, value in (("dltype", "int8"), ("shape", [16]), ("storage_id", 4), ("device_index", 1)):
        graph["attrs"][key][1].append(value)
    parse_graph(json.dumps(graph))
    graph["attrs"]["storage_id"][1][3] = 2
    with pytest.raises(ArchiveError, match="storage id 2: entry 3 would be written over entry 2, still in use"):
        parse_graph(json.dumps(graph))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1", "not JSON"),
        ("[]", "expected an object, found "),
        ('{"nodes": NaN}', "NaN is not a JSON number"),
        ('{"nodes": [], "nodes": []}', "an object has a key twice"),
        ("[" * 100_000, "nested too deeply"),
        (b"\xff", "not JSON"),
        (" " * (MAX_TEXT + 1), "up to 8,388,608 are read"),
    ],
)
def test_text_that_is_no_graph_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ArchiveError, match=message):
        parse_graph(text)


def test_an_empty_graph_is_one() -> None:
    attrs = {"dltype": ["list_str", []], "shape": ["list_shape", []], "storage_id": ["list_int", []]}
    empty = {"nodes": [], "arg_nodes": [], "heads": [], "attrs": attrs, "node_row_ptr": [0]}
    assert parse_graph(json.dumps(empty)).entries == ()
