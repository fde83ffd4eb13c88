"""The graph executor's JSON and blocks: TVM's own text comes out again, and no block is overwritten while in use."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import mlforge
from mlforge import memory
from mlforge.executor.graph_json import MAX_NODE_NAME, build_graph, graph_text
from mlforge.relay import ir
from mlforge.tir.ir import Program, Value
from tests.harness import module_of
from tests.unit.test_memory import programs


@pytest.mark.parametrize("name", ["kws_graph_c.tar.xz", "conv_graph.json"])
def test_text_is_what_tvm_writes(shared: Path, name: str) -> None:
    path = shared / "fixtures" / "tvm-0.14" / name
    if name.endswith(".xz"):
        with tarfile.open(path) as tar:
            theirs = tar.extractfile("./executor-config/graph/kws.graph").read().decode()
    else:
        theirs = path.read_text()
    assert graph_text(json.loads(theirs)) == theirs


def replay(program: Program, storages: memory.Storages) -> None:
    """Run the program on labels instead of numbers: every read must find what was written."""
    last = {value.root: index for index, call in enumerate(program.calls) for value in call.inputs}
    last |= {value.root: len(program.calls) for value in program.outputs}
    held: dict[int, Value] = {storages.ids[value.root]: value.root for value in program.inputs}
    for index, call in enumerate(program.calls):
        for value in call.inputs:
            root = value.root
            if root.kind == "input":
                held.setdefault(storages.ids[root], root)
            assert held[storages.ids[root]] is root
            assert storages.sizes[storages.ids[root]] >= root.nbytes
        output, block = call.output.root, storages.ids[call.output.root]
        before = held.get(block)
        if before is not None and last.get(before, -1) >= index:
            positions = [k for k, value in enumerate(call.inputs) if value.root is before]
            assert last[before] == index
            assert positions
            assert set(positions) <= set(call.kernel.inplace)
        held[block] = output
        assert storages.sizes[block] >= output.nbytes
    for value in program.outputs:
        assert held[storages.ids[value.root]] is value.root


@settings(max_examples=200, deadline=None)
@given(programs(max_calls=12))
def test_no_block_is_overwritten_while_in_use(program: Program) -> None:
    plan = memory.plan(program)
    storages = memory.assign_storages(program, plan)
    replay(program, storages)
    assert storages.workspace_bytes >= max((sum(sizes) for sizes in live(program)), default=0)


def live(program: Program) -> list[list[int]]:
    """Return the bytes of the intermediates that are only read later, and so need a place, after each call."""
    last = {value.root: index for index, call in enumerate(program.calls) for value in call.inputs}
    rows: list[list[int]] = []
    written: list[Value] = []
    for index, call in enumerate(program.calls):
        if call.output.root.kind == "intermediate":
            written.append(call.output.root)
        rows.append([value.nbytes for value in dict.fromkeys(written) if last.get(value, -1) > index])
    return rows


def relu_module(name: str) -> ir.IRModule:
    return module_of({name: np.zeros((2, 3), np.float32)}, {"y": lambda v: ir.call("nn.relu", [v[name]])})


@pytest.mark.parametrize("name", ['a "quoted" \\ name', "größe", "tab\there", "\u2028", "x" * 300, "é" * 200, "p0"])
def test_names_survive_simple_readers(name: str) -> None:
    factory = mlforge.build(relu_module(name), executor="graph")
    nodes = json.loads(factory.graph_json)["nodes"]
    text = nodes[0]["name"]
    assert len(text.encode()) <= MAX_NODE_NAME
    assert not any(ord(letter) < 32 for letter in text)
    if len(name.encode()) <= MAX_NODE_NAME and "\t" not in name:
        assert text == name
    # TVM's readers know these escapes and no others
    assert "\\u" not in factory.graph_json


def test_inputs_named_like_parameters_keep_their_names() -> None:
    weight = ir.Constant(np.ones((2, 3), np.float32))
    module = module_of({"p0": np.zeros((2, 3), np.float32)}, {"y": lambda v: ir.call("add", [v["p0"], weight])})
    factory = mlforge.build(module, executor="graph")
    document = json.loads(factory.graph_json)
    names = [document["nodes"][index]["name"] for index in document["arg_nodes"]]
    assert names[0] == "p0"
    assert len(set(names)) == len(names) == 2
    assert list(factory.params) == names[1:]


def test_views_have_no_nodes_and_outputs_have_their_own_shape() -> None:
    def body(v):
        return ir.call("reshape", [ir.call("nn.relu", [v["x"]])], newshape=(3, 2))

    factory = mlforge.build(module_of({"x": np.zeros((2, 3), np.float32)}, {"y": body}), executor="graph")
    document = json.loads(factory.graph_json)
    assert [node["op"] for node in document["nodes"]] == ["null", "tvm_op"]
    (head,) = document["heads"]
    assert document["attrs"]["shape"][1][head[0]] == [3, 2]


def test_tables_fit_together() -> None:
    rng = np.random.default_rng(0)
    weight = ir.Constant(rng.standard_normal((4, 3)).astype(np.float32))

    def product(v):
        return ir.call("nn.dense", [v["x"], weight], units=4)

    module = module_of({"x": np.zeros((2, 3), np.float32)}, {"y": product})
    factory = mlforge.build(module, executor="graph")
    graph = build_graph(factory.program, factory.code.function_names, factory.code.storages)
    assert graph.text == factory.graph_json
    document = json.loads(graph.text)
    entries = document["node_row_ptr"][-1]
    assert document["node_row_ptr"] == list(range(len(document["nodes"]) + 1))
    assert {len(values) for _, values in document["attrs"].values()} == {entries}
    for index in document["arg_nodes"]:
        assert document["nodes"][index]["op"] == "null"
    for index, node in enumerate(document["nodes"]):
        assert all(source[0] < index for source in node["inputs"])
        if node["op"] == "tvm_op":
            assert node["attrs"]["num_inputs"] == str(len(node["inputs"]))
    for name, array in factory.params.items():
        place = next(i for i, node in enumerate(document["nodes"]) if node["name"] == name)
        assert document["attrs"]["shape"][1][place] == list(array.shape)
        assert document["attrs"]["dltype"][1][place] == array.dtype.name
