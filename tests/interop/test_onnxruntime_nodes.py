"""ONNX nodes without generated code run in ONNX Runtime inside the graph, with the same results as the whole model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import mlfc
from mlfc.cli.main import app
from mlfc.errors import MlfcError, ModelError, OptionError, ProblemsError, UnsupportedError

Array = npt.NDArray[Any]
RNG = np.random.default_rng(11)
WHOLE = {"whole": np.array([[0, 0, 0, 5, 5]], np.float32)}  # a region of a 6x6 image


def model(
    nodes: Sequence[onnx.NodeProto],
    outputs: dict[str, int],
    constants: dict[str, Array] | None = None,
    shape: Sequence[int] = (1, 4, 6, 6),
) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def node(kind: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(" "), outputs.split(" "), name=f"the_{kind}", **attrs)


def pooled_and_cast() -> bytes:
    nodes = [
        node("Relu", "x", "r"),
        node("MaxRoiPool", "r whole", "values", pooled_shape=[2, 1]),
        node("Add", "values values", "y"),
        node("Cast", "values", "z", to=TensorProto.INT32),
    ]
    return model(nodes, {"y": 1, "z": 6}, WHOLE)


def regions() -> bytes:
    boxes = np.array([[0, 0, 0, 4, 3], [0, 1, 2, 5, 5]], np.float32)
    pool = node("MaxRoiPool", "x boxes", "s", pooled_shape=[2, 2])
    return model([pool, node("Tanh", "s", "y")], {"y": 1}, {"boxes": boxes})


def a_norm_between_compiled_layers() -> bytes:
    """Return a model with a node of another domain, one of whose middle outputs is omitted."""
    nodes = [
        node("Sigmoid", "x", "g"),
        node("Reshape", "g s", "a"),
        helper.make_node(
            "SkipLayerNormalization", ["a", "a", "gamma", "beta"], ["norm", "mean", "", "sum"],
            name="norm", domain="com.microsoft",
        ),
        node("Relu", "norm", "y"),
        node("Neg", "sum", "z"),
    ]  # fmt: skip
    constants = {name: RNG.standard_normal(6).astype(np.float32) for name in ("gamma", "beta")}
    found = onnx.load_from_string(model(nodes, {"y": 1, "z": 1}, {"s": np.array([4, 6, 6], np.int64), **constants}))
    found.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    found.graph.value_info.extend(tensor(name, shape=(4, 6, 6)) for name in ("norm", "sum"))
    found.graph.value_info.append(tensor("mean", shape=(4, 6, 1)))
    return found.SerializeToString()


def two_in_a_row_and_a_view() -> bytes:
    nodes = [
        helper.make_node("MaxRoiPool", ["x", "whole"], ["p"], name="first", pooled_shape=[6, 6]),
        node("MaxRoiPool", "p whole", "g", pooled_shape=[1, 1]),
        node("Flatten", "g", "v"),
        node("Mul", "v v", "y"),
    ]
    return model(nodes, {"y": 1}, WHOLE)


def tensor(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[int] | None = (1, 4, 6, 6)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def either(condition: str, outside: str, output: str) -> onnx.NodeProto:
    """Return an If whose branches read a tensor of the outer graph, with names that other graphs also use."""
    branches = {
        branch: helper.make_graph(
            [node(kind, outside, "input0"), node("Neg", "input0", "output")], branch, [], [tensor("output")]
        )
        for branch, kind in (("then_branch", "Relu"), ("else_branch", "Abs"))
    }
    return helper.make_node("If", [condition], [output], name=f"if_{output}", **branches)


def doubling(outside: str) -> onnx.GraphProto:
    """Return a loop body that adds a tensor of the outer graph, within an If on the largest element."""
    grown = helper.make_graph([node("Add", f"v {outside}", "t")], "grown", [], [tensor("t")])
    kept = helper.make_graph([node("Identity", "v", "e")], "kept", [], [tensor("e")])
    return helper.make_graph(
        [
            node("ReduceMax", "v", "largest", keepdims=0),
            node("Cast", "largest", "is_some", to=TensorProto.BOOL),
            helper.make_node("If", ["is_some"], ["w"], then_branch=grown, else_branch=kept),
            node("Identity", "c", "again"),
        ],
        "body",
        [tensor("i", TensorProto.INT64, []), tensor("c", TensorProto.BOOL, []), tensor("v", shape=None)],
        [tensor("again", TensorProto.BOOL, []), tensor("w", shape=None)],
    )


def branches_that_read_what_is_around_them() -> bytes:
    nodes = [
        node("Sigmoid", "x", "s"),
        node("ReduceMax", "s", "m", keepdims=0),
        node("Greater", "m half", "c"),
        either("c", "s", "first"),
        either("c", "first", "second"),
        node("Tanh", "second", "y"),
    ]
    return model(nodes, {"y": 1}, {"half": np.array(0.5, np.float32)})


def a_loop_with_a_branch_that_reads_weights() -> bytes:
    nodes = [
        node("Relu", "x", "r"),
        node("Mul", "r weight", "outside"),
        helper.make_node("Loop", ["n", "", "x"], ["carried"], name="loop", body=doubling("outside")),
        node("Tanh", "carried", "y"),
    ]
    constants = {"n": np.array(3, np.int64), "weight": RNG.standard_normal((1, 4, 1, 1)).astype(np.float32)}
    found = onnx.ModelProto.FromString(model(nodes, {"y": 1}, constants))
    found.graph.value_info.append(tensor("carried"))
    return found.SerializeToString()


MODELS: dict[str, Callable[[], bytes]] = {
    make.__name__: make
    for make in (
        pooled_and_cast,
        regions,
        a_norm_between_compiled_layers,
        two_in_a_row_and_a_view,
        branches_that_read_what_is_around_them,
        a_loop_with_a_branch_that_reads_weights,
    )
}


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_onnx_runtime_alone(name: str, tmp_path: Path) -> None:
    data = MODELS[name]()
    session = onnxruntime.InferenceSession(data)
    module, params = mlfc.import_model(data, byoc=["onnxruntime"])
    factory = mlfc.build(module, "c", params, executor="graph", module_name="m")
    assert {part.type_key for part in factory.lib.imported_modules} == {"onnxruntime"}
    mlfc.export_model_library_format(factory, tmp_path / "m.tar")
    loaded = mlfc.load(tmp_path / "m.tar")
    (again,) = mlfc.rebuild(tmp_path / "m.tar")
    x = RNG.standard_normal((1, 4, 6, 6)).astype(np.float32)
    expected = session.run(None, {"x": x})
    for runs in (factory.runtime, loaded, again.runtime):
        for found, wanted in zip(runs.run({"x": x}).values(), expected, strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_nodes_that_follow_each_other_are_one_module() -> None:
    module, params = mlfc.import_model(two_in_a_row_and_a_view(), byoc=["onnxruntime"])
    factory = mlfc.build(module, "c", params, executor="graph")
    assert len(factory.lib.imported_modules) == 1


def test_without_the_generator_every_such_node_is_a_problem() -> None:
    with pytest.raises(UnsupportedError, match="MaxRoiPool"):
        mlfc.import_model(pooled_and_cast())
    assert mlfc.check(pooled_and_cast(), byoc=["onnxruntime"]) == []


def test_code_compiled_ahead_of_time_cannot_call_it() -> None:
    module, params = mlfc.import_model(pooled_and_cast(), byoc=["onnxruntime"])
    with pytest.raises(OptionError, match=r"the_MaxRoiPool.*cannot call the runtime module.*--executor graph"):
        mlfc.build(module, "c", params, executor="aot")
    assert mlfc.build(module, "c", params).executor == "graph"


def test_firmware_cannot_have_it(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(pooled_and_cast())
    archive = tmp_path / "model.tar"
    compiled = ["compile", str(tmp_path / "model.onnx"), "--byoc", "onnxruntime", "-o", str(archive)]
    cause = "parts of module 'model' require onnxruntime, which firmware does not have"
    refused = CliRunner().invoke(app, [*compiled, "--board", "mps2-an386"])
    assert cause in str(refused.exception)
    assert not archive.exists()
    assert CliRunner().invoke(app, compiled).exit_code == 0
    create = [
        "project",
        "create",
        str(archive),
        str(tmp_path / "fw"),
        "--template",
        "makefile",
        "--board",
        "mps2-an386",
    ]
    refused = CliRunner().invoke(app, create)
    assert cause in str(refused.exception)
    assert not (tmp_path / "fw").exists()


@pytest.mark.parametrize(
    ("nodes", "cause"),
    [
        (
            [node("NonZero", "x", "n"), node("Cast", "n", "y", to=1)],
            "shape of the output 'n' of NonZero depends on data",
        ),
        ([node("TotallyUnknown", "x", "y")], "ONNX cannot infer the shapes|is not a tensor"),
        (
            [node("ReduceMax", "x", "m", keepdims=0), node("Cast", "m", "c", to=9), either("c", "nowhere", "y")],
            "the tensor 'nowhere', which nothing produces",
        ),
        (
            [helper.make_node("Loop", ["", "", "x"], ["y"], name="loop", body=doubling("x"))],
            "the shape of the output 'y' of Loop depends on data",
        ),
        (
            [node("SequenceConstruct", "x x", "s"), helper.make_node("MaxRoiPool", ["x", "s"], ["y"])],
            "ONNX Runtime cannot run MaxRoiPool alone: it reads a sequence",
        ),
    ],
    ids=["data", "unknown", "captured", "loop", "sequence"],
)
def test_nodes_that_cannot_stand_alone_are_refused_with_both_causes(nodes: list[onnx.NodeProto], cause: str) -> None:
    with pytest.raises((UnsupportedError, ModelError, ProblemsError), match=f"({cause})") as refused:
        mlfc.import_model(model(nodes, {"y": 1}), byoc=["onnxruntime"])
    assert "--byoc onnxruntime" not in str(refused.value)


@pytest.mark.parametrize("text", ["%%%", "AAAA", ""])
def test_a_damaged_node_in_relay_text_is_an_error(text: str) -> None:
    import mlfc.relay.ir as ir
    from mlfc.relay.ir import Function, IRModule, TensorType, Var

    x = Var("x", TensorType((2,), "float32"))
    body = ir.call("onnx.call", [x], model=text, shape=(2,), dtype="float32")
    with pytest.raises(ModelError):
        mlfc.build(IRModule({"main": Function((x,), body)}), "c", executor="graph")


def test_more_weights_than_onnx_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = RNG.standard_normal((1, 4, 6, 6)).astype(np.float32)
    nodes = [
        node("MaxRoiPool", "w whole", "v", pooled_shape=[1, 1]),
        node("ReduceSum", "v", "s", keepdims=0),
        node("Add", "x s", "y"),
    ]
    module, params = mlfc.import_model(model(nodes, {"y": 1}, {"w": weights, **WHOLE}), byoc=["onnxruntime"])
    monkeypatch.setattr("mlfc.byoc.onnxruntime._MOST_BYTES", weights.nbytes - 1)
    with pytest.raises(UnsupportedError, match=r"the_MaxRoiPool: 596 bytes of weights"):
        mlfc.build(module, "c", params)


def test_domains_that_onnx_runtime_does_not_know(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "onnx.brevitas" : 1]>
        two (float[1, 4] x) => (float[1, 4] z) { y = Relu(x)  z = onnx.brevitas.BipolarQuant(y) }
    """)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(MlfcError, match=r"ONNX Runtime has no operator BipolarQuant of the domain 'onnx.brevitas'"):
        mlfc.import_model(tmp_path / "m.onnx", byoc=["onnxruntime"])
