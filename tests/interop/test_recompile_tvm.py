"""Archives of graphs that TVM wrote are compiled again with the values in the graph's parameters."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.write.rebuild import rebuild
from mlfc.errors import ArchiveError
from mlfc.relay.text import from_text

Arrays = Mapping[str, Any]
RANDOM = np.random.default_rng(7)
# as TVM prints it: no version, no values of tensors, six digits of floats
TEXT = """def @main(%x: Tensor[(1, 4, 2, 2), float32] /* span=x:0:0 */, %w: Tensor[(4, 4, 1, 1), float32], \
%b: Tensor[(4), float32], output_tensor_names=["y", "z"]) {
  %0 = nn.conv2d(%x, %w, padding=[0, 0, 0, 0], channels=4, kernel_size=[1, 1]) /* span=conv:0:0 */;
  %1 = nn.bias_add(%0, %b);
  %2 = nn.relu(%1);
  %3 = nn.dropout(%2);
  %4 = %3.0;
  %5 = multiply(%4, 0.333333f /* span=third:0:0 */);
  %6 = nn.conv2d(%5, meta[relay.Constant][0], padding=[0, 0, 0, 0], channels=4, kernel_size=[1, 1]);
  %7 = nn.bias_add(%6, %b);
  %8 = add(%7, 0.5f);
  %9 = add(%8, %5);
  %10 = nn.batch_flatten(%9);
  %11 = transpose(meta[relay.Constant][1], axes=[1, 0]);
  %12 = nn.dense(%10, %11, units=6);
  %13 = nn.bias_add(%12, meta[relay.Constant][2]);
  (%13, %9)
}
"""
SHAPES = {"w": (4, 4, 1, 1), "b": (4,), "third": (), 0: (4, 4, 1, 1), 1: (16, 6), 2: (6,)}


@pytest.fixture(scope="module")
def values() -> dict[Any, Any]:
    return {name: RANDOM.standard_normal(shape).astype("f") for name, shape in SHAPES.items()} | {
        "third": np.float32(1 / 3)
    }


def graph(
    inputs: Arrays, nodes: Sequence[tuple[str, Sequence[int], tuple[int, ...], Mapping[str, str]]], heads: Sequence[int]
) -> str:
    """Return TVM's JSON of a graph in which nodes without inputs are arguments, of one float32 result each."""
    made = [
        {"op": "null", "name": name, "inputs": []}
        if not ids
        else {
            "op": "tvm_op",
            "name": f"node_{index}",
            "attrs": {"func_name": name, "num_inputs": str(len(ids)), "num_outputs": "1", "flatten_data": "0", **attrs},
            "inputs": [[each, 0, 0] for each in ids],
        }
        for index, (name, ids, _, attrs) in enumerate(nodes)
    ]
    blocks = [*range(len(made))]
    for index, (name, ids, _, _) in enumerate(nodes):
        blocks[index] = blocks[ids[0]] if name == "__nop" else index
    return json.dumps(
        {
            "nodes": made,
            "arg_nodes": [index for index, node in enumerate(made) if node["op"] == "null"],
            "heads": [[head, 0, 0] for head in heads],
            "attrs": {
                "dltype": ["list_str", ["float32"] * len(made)],
                "shape": ["list_shape", [list(shape) for _, _, shape, _ in nodes]],
                "storage_id": ["list_int", blocks],
            },
            "node_row_ptr": [*range(len(made) + 1)],
        }
    )


def compiled(values: Arrays) -> tuple[list[Any], dict[str, Any]]:
    """Return the nodes that TVM's passes make of the text, and their parameters."""
    kept, flat = (1, 4, 2, 2), (1, 16)
    params = {
        "p0": values["w"],
        "p1": values["b"].reshape(4, 1, 1),
        "p2": values["third"],
        "p3": values[0],
        "p4": np.float32(0.5),
        "p5": values[1].T.reshape(2, 3, 16).transpose(0, 2, 1),
        "p6": values[2],
    }
    nodes: list[Any] = [("x", (), kept, {}), *((name, (), params[name].shape, {}) for name in params)]
    nodes += [
        ("tvmgen_net_fused_nn_conv2d_add_nn_relu_multiply", (0, 1, 2, 3), kept, {"kernel_layout": "OIHW"}),
        ("tvmgen_net_fused_nn_conv2d_add_add_add", (8, 4, 2, 5), kept, {"kernel_layout": "OIHW"}),
        ("__nop", (9,), flat, {}),
        ("tvmgen_net_fused_nn_contrib_dense_pack_add_1", (10, 6, 7), (1, 6), {"weight_layout": "NC3n"}),
    ]
    return nodes, params


def archive(path: Path, text: str, graph_json: str, params: Arrays, inputs: Arrays) -> Path:
    """Write an archive as TVM's, with the parts from which values come."""
    tensors = {name: {"dtype": "float32", "size": array.nbytes} for name, array in inputs.items()}
    main = {"constants_size_bytes": 0, "device": 1, "inputs": tensors, "io_size_bytes": 0, "outputs": {}}
    memory = {"functions": {"main": [{**main, "workspace_size_bytes": 0}], "operator_functions": []}, "sids": []}
    record = {"export_datetime": "2026-11-20 11:29:07Z", "external_dependencies": [], "executors": ["graph"]}
    record |= {"memory": memory, "model_name": "net", "style": "full-model", "target": ["c -keys=cpu "]}
    files = {
        "metadata.json": json.dumps({"modules": {"net": record}, "version": 7}).encode(),
        "codegen/host/src/net_lib0.c": b"int net;\n",
        "executor-config/graph/net.graph": graph_json.encode(),
        "parameters/net.params": mlfc.save_param_dict(params),
        "src/net.relay": text.encode(),
    }
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(data)
            tar.addfile(item, io.BytesIO(data))
    return path


X = {"x": RANDOM.standard_normal((1, 4, 2, 2)).astype("f")}


def test_each_value_returns_to_its_place(values: dict[Any, Any], tmp_path: Path) -> None:
    nodes, params = compiled(values)
    path = archive(tmp_path / "net.tar", TEXT, graph(X, nodes, [11, 9]), params, X)
    (factory,) = rebuild(path)
    assert (factory.executor, factory.module.output_names) == ("graph", ("y", "z"))
    for name in ("w", "b"):
        np.testing.assert_array_equal(factory.source_params[name], values[name])
    text = '#[version = "0.0.5"]\n' + TEXT.replace("0.333333f", "meta[relay.Constant][3]")
    module = from_text(text, constants=[values[key] for key in (0, 1, 2, "third")])
    expected = mlfc.build(module, params={name: values[name] for name in ("w", "b")}, executor="graph")
    results = (each.runtime.run(X).values() for each in (factory, expected))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # the new archive has its values, in mlfc's form
    assert rebuild(mlfc.export_model_library_format(factory, tmp_path / "again.tar"))[0].graph_json


def test_a_graph_that_tvm_compiled_for_x86(shared: Path, tmp_path: Path) -> None:
    folder = shared / "fixtures/tvm-0.14"
    arrays = np.load(folder / "conv_io.npz")
    x = {"data": arrays["data"]}
    text = """def @main(%data: Tensor[(1, 8, 16, 16), float32], %w: Tensor[(8, 8, 3, 3), float32]) {
  %0 = nn.conv2d(%data, %w, padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3]);
  %1 = nn.relu(%0);
  %2 = nn.batch_flatten(%1);
  nn.softmax(%2)
}
"""
    json_text = (folder / "conv_graph.json").read_text().replace("tvmgen_default", "tvmgen_net")
    params = mlfc.load_param_dict((folder / "conv.params").read_bytes())
    (factory,) = rebuild(archive(tmp_path / "net.tar", text, json_text, params, x))
    np.testing.assert_array_equal(factory.source_params["w"], arrays["w"])
    (result,) = factory.runtime.run(x).values()
    np.testing.assert_allclose(result, arrays["out"], rtol=1e-5, atol=1e-7)


CONV = "tvmgen_net_fused_nn_conv2d_add_nn_relu_multiply"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (CONV, CONV.replace("nn_relu", "sigmoid"), f"{CONV.replace('nn_relu', 'sigmoid')} of the graph is not what"),
        (CONV, f"{CONV}_abs", f"{CONV}_abs of the graph is not what the text computes with multiply"),
        ('"NC3n"', '"NC2n"', "add_1 of the graph is not what the text computes with nn.bias_add"),
        ("0.333333f", "0.333334f", "of the graph is not what the text computes with multiply"),
        ("0.5f", "0.25f", "of the graph is not what the text computes with add"),
        ("(%13, %9)", "%13", "the graph has other outputs"),
        ("nn.relu(%1)", "nn.leaky_relu(%1, alpha=0.142857f)", "the attribute alpha has only 6 digits"),
        (
            "(%13, %9)\n}",
            "(%13, %9)\n}\ndef @f() {\n  1f\n}",
            "it has other functions than main",
        ),
        (
            "%0 = nn",
            "let %q = abs(%x);\n  %0 = nn",
            "only calls of operators with one result, in sequence, are supported",
        ),
        (
            "multiply(%4, 0.333333f",
            "multiply(0.333333f, %4",
            "of the graph is not what the text computes with multiply",
        ),
        ("@main", "@other", "it has other functions than main"),
        ("nn.relu(%1)", "nn.relu(%2)", "only calls of operators with one result, in sequence"),
        ("nn.relu(%1)", "nn.relu(%1).0", "only calls of operators with one result, in sequence"),
        ("%3 = nn.dropout(%2)", "%3 = split(%2, indices_or_sections=1)", "only calls of operators with one result"),
        ("%1 = nn.bias_add(%0, %b);", "%1 = nn.bias_add(%0, %b);\n  %1 = abs(%1);", "only calls of operators with one"),
        ("Constant][2]", "Constant][999999999]", "the constants are not numbered from 0 on"),
        ('"p3"', '"q3"', "add_add_add of the graph is not what the text computes with add"),
    ],
)
def test_what_the_graph_does_not_prove_is_not_recovered(
    old: str, new: str, expected: str, values: dict[Any, Any], tmp_path: Path
) -> None:
    nodes, params = compiled(values)
    parts = (TEXT, graph(X, nodes, [11, 9]))
    assert sum(old in part for part in parts) == 1
    text, json_text = (part.replace(old, new) for part in parts)
    with pytest.raises(ArchiveError) as info:
        rebuild(archive(tmp_path / "net.tar", text, json_text, params, X))
    lacks = "the weights w, b and 3" if "@main" in text else "3"
    start = f"module 'net' was not compiled by mlfc, and its archive lacks {lacks} constants meta"
    assert info.value.cause.startswith(start)
    assert expected in info.value.cause


def test_values_that_fit_in_two_places_are_not_recovered(tmp_path: Path) -> None:
    weights = ", ".join(f"%{name}: Tensor[(2), float32]" for name in "abc")
    text = f"""def @main(%x: Tensor[(2), float32], {weights}) {{
  %0 = add(%x, %a);
  %1 = add(%0, %b);
  add(%1, %c)
}}
"""
    x = {"x": np.ones(2, np.float32)}
    params = {name: np.full(2, place, np.float32) for place, name in enumerate(("p0", "p1", "p2"))}
    arguments = [(name, (), (2,), {}) for name in ("x", *params)]
    whole = [*arguments, ("tvmgen_net_fused_add_add_add", (0, 1, 2, 3), (2,), {})]
    (factory,) = rebuild(archive(tmp_path / "net.tar", text, graph(x, whole, [4]), params, x))
    assert [factory.source_params[name][0] for name in "abc"] == [0, 1, 2]
    # one value for two of the variables, and one scalar for one of two literals
    shared = [*arguments[:3], ("tvmgen_net_fused_add_add_add", (0, 1, 2), (2,), {})]
    with pytest.raises(ArchiveError, match="is not what the text computes with add"):
        rebuild(archive(tmp_path / "net.tar", text, graph(x, shared, [3]), params, x))
    text = (
        text.replace("%b", "0.333333f", 2).replace("0.333333f: Tensor[(2), float32], ", "").replace("%c)", "0.333333f)")
    )
    third = [arguments[0], arguments[1], ("p2", (), (), {}), ("tvmgen_net_fused_add_add_add", (0, 1, 2), (2,), {})]
    with pytest.raises(ArchiveError, match="can be read in two ways with add"):
        rebuild(archive(tmp_path / "net.tar", text, graph(x, third, [3]), {**params, "p2": np.float32(1 / 3)}, x))


def test_values_in_branches_and_lists_are_recovered(tmp_path: Path) -> None:
    names = [f"w{place}" for place in range(12)]
    weights = ", ".join(f"%{name}: Tensor[(2), float32]" for name in names)
    lines = [f"  %{2 * place} = add(%x, %{name});" for place, name in enumerate(names)]
    lines = [f"{line}\n  %{2 * place + 1} = multiply(%{2 * place}, %{2 * place});" for place, line in enumerate(lines)]
    fields = ", ".join(f"%{2 * place + 1}" for place in range(len(names)))
    text = f"def @main(%x: Tensor[(2), float32], {weights}) {{\n" + "\n".join(lines)
    text += f"\n  %24 = ({fields});\n  concatenate(%24)\n}}\n"
    x = {"x": np.ones(2, np.float32)}
    params = {f"p{place}": np.full(2, place, np.float32) for place in range(len(names))}
    nodes: list[Any] = [("x", (), (2,), {}), *((name, (), (2,), {}) for name in params)]
    nodes += [(f"tvmgen_net_fused_add_multiply_{place}", (0, place + 1), (2,), {}) for place in range(len(names))]
    nodes.append(("tvmgen_net_fused_concatenate", range(13, 25), (24,), {}))
    (factory,) = rebuild(archive(tmp_path / "net.tar", text, graph(x, nodes, [25]), params, x))
    assert [factory.source_params[name][0] for name in names] == [*range(12)]
    (result,) = factory.runtime.run(x).values()
    np.testing.assert_array_equal(result, np.repeat(np.arange(1, 13) ** 2, 2))


def test_operands_in_a_packed_layout_are_not_recovered(tmp_path: Path) -> None:
    text = """def @main(%x: Tensor[(1, 4, 1, 1), float32]) {
  add(%x, meta[relay.Constant][0])
}
"""
    x, shape = {"x": np.ones((1, 4, 1, 1), np.float32)}, (1, 1, 1, 1, 4)
    nodes = [
        ("x", (), (1, 4, 1, 1), {}),
        ("tvmgen_net_fused_layout_transform", (0,), shape, {}),
        ("p0", (), shape, {}),
        ("tvmgen_net_fused_add_layout_transform", (1, 2), (1, 4, 1, 1), {}),
    ]
    params = {"p0": np.ones(shape, np.float32)}
    with pytest.raises(ArchiveError, match="is not what the text computes with add"):
        rebuild(archive(tmp_path / "net.tar", text, graph(x, nodes, [3]), params, x))


def test_a_text_that_is_complete_needs_no_graph(shared: Path, tmp_path: Path) -> None:
    text = "def @main(%x: Tensor[(2), float32]) {\n  add(%x, 0.5f)\n}\n"
    x = {"x": np.ones(2, np.float32)}
    nodes = [("x", (), (2,), {}), ("tvmgen_net_fused_add", (0,), (2,), {})]
    (factory,) = rebuild(archive(tmp_path / "net.tar", text, graph(x, nodes, [1]), {}, x))
    np.testing.assert_array_equal(*factory.runtime.run(x).values(), [1.5, 1.5])
