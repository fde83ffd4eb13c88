"""The advice of ``check`` lets a model compile."""

from __future__ import annotations

import importlib
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc import frontend
from mlfc.cli.check import check as command
from mlfc.cli.options import BoardOptions, Inputs, parse_values
from mlfc.errors import LimitError, ProblemsError, Remedy
from mlfc.frontend.shapes import parse_shapes
from mlfc.problems import Examination, examine
from tests.harness import loaded_by_llvm
from tests.onnx_models import model
from tests.tflite_builder import Graph, Op, T, build, build_graphs

FIXED = "opencl"
"""A host target that does not support runtime values here, like executors other than the virtual machine."""


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_to_the_run() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        leaves = frontend.leaves_to_run
        patch.setattr(frontend, "leaves_to_run", lambda *args: args[1] != FIXED and leaves(*args))
        yield


# ONNX's own tests of operators with inputs that decide shapes, with data-dependent shapes, or without support
OPERATORS = {
    "Col2Im": "col2im", "DFT": "dft", "Loop": "loop",
    "QLinearConv": "qlinearconv", "Resize": "resize", "STFT": "stft", "Scan": "scan", "Unique": "unique",
    "Upsample": "upsample",
}  # fmt: skip
# with declared shapes that do not determine the values, with sequences, or with data-dependent shapes
STAY = {"test_col2im_5d", "test_resize_downsample_sizes_nearest_not_smaller", "test_loop13_seq", "test_loop16_seq_none"}


@cache
def refused() -> tuple[Any, ...]:
    """Return the node tests that cannot be imported unchanged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import node

        for module in OPERATORS.values():
            importlib.import_module(f"onnx.backend.test.case.node.{module}")
    # other tests may have loaded the tests of ONNX functions, which contain these operators, too
    tests = [
        test
        for test in node._NodeTestCases
        if "_expanded" not in test.name and {item.op_type for item in test.model.graph.node} & {*OPERATORS}
    ]
    return tuple(test for test in tests if mlfc.check(test.model.SerializeToString(), target=FIXED))


def with_options(data: bytes, remedies: tuple[Remedy, ...]) -> None:
    """Compile a model with the advice as command-line options."""
    texts: dict[str, list[str]] = {"--shape": [], "--value": [], "--byoc": []}
    for remedy in remedies:
        texts[remedy.option].append(remedy.argument)
    given = {"shapes": parse_shapes(texts["--shape"]), "values": parse_values(texts["--value"])}
    module, params = mlfc.import_model(data, **given, byoc=texts["--byoc"])
    mlfc.build(module, params=params, dry_run=True)


def test_refused_node_tests_compile_with_the_advice() -> None:
    pytest.importorskip("onnxruntime")
    stay = set()
    for test in refused():
        data = test.model.SerializeToString()
        found = examine(data, target=FIXED)
        assert found.problems, test.name
        # the node is unchecked if the model is rejected for the type of an input
        assert (found.nodes, found.refused + found.unchecked) == (1, 1), test.name
        if found.left.problems:
            stay.add(test.name)
        else:
            with_options(data, found.remedies)
    assert len(refused()) - len(stay) > 40
    assert {name for name in stay if "unique" not in name} == STAY


def test_the_value_that_is_offered_gives_what_the_test_expects() -> None:
    (test,) = (test for test in refused() if test.name == "test_resize_upsample_scales_nearest")
    ((x, scales), (expected,)) = test.data_sets[0]
    (remedy,) = examine(test.model.SerializeToString(), target=FIXED).remedies
    assert parse_values([remedy.argument])["scales"].tolist() == scales.tolist()
    module, params = mlfc.import_model(test.model.SerializeToString(), values={"scales": scales})
    np.testing.assert_array_equal(loaded_by_llvm(module, params).run({"X": x})["Y"], expected)


def detector() -> bytes:
    """Return a model with a runtime value, an operator that only ONNX Runtime supports, and consumers of both."""
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["large"], name="grow"),
        helper.make_node("MaxRoiPool", ["large", "boxes"], ["parts"], name="cut", pooled_shape=[2, 2]),
        helper.make_node("Relu", ["parts"], ["kept"]),
        helper.make_node("MaxRoiPool", ["kept", "boxes"], ["y"], name="pool", pooled_shape=[1, 1]),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    kinds = {"x": [1, 1, 4, 4], "scales": [4], "boxes": [3, 5]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in kinds.items()]
    graph = helper.make_graph(nodes, "detector", inputs, [onnx.ValueInfoProto(name="z")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def places(found: Examination) -> list[str | None]:
    return [problem.place for problem in found.problems]


def test_every_refused_node_is_listed_also_behind_others() -> None:
    found = examine(detector(), target=FIXED)
    assert places(found) == ["node 'grow'", "node 'cut'", "node 'pool'"]
    assert (found.nodes, found.refused, found.unchecked) == (5, 3, 0)
    assert [str(remedy) for remedy in found.remedies] == ["--value scales=1", "--byoc onnxruntime"]
    assert (found.left.problems, found.left.refused) == ((), 0)
    # the target has no ONNX Runtime, so only the value helps
    found = examine(detector(), target="c -mcpu=cortex-m4")
    assert [str(remedy) for remedy in found.remedies] == ["--value scales=1"]
    assert [problem.place for problem in found.left.problems] == ["node 'cut'", "node 'pool'"]
    assert "--byoc" not in "".join(map(str, found.problems))


def test_nodes_of_which_nothing_is_known_are_counted() -> None:
    nodes = [
        helper.make_node("Unique", ["x"], ["u"]),
        helper.make_node("Relu", ["u"], ["v"]),
        helper.make_node("Abs", ["x"], ["w"]),
    ]
    found = examine(model(nodes, {"x": (100,)}, ["v", "w"]).SerializeToString(), target=FIXED)
    assert (found.nodes, found.refused, found.unchecked) == (3, 1, 1)
    assert found.left.problems == found.problems


def test_what_follows_from_a_guess_is_no_problem_of_its_own() -> None:
    """Report a problem once: the first reshape fits no usual image size, and the values of the second depend on it."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("Shape", ["flat"], ["extents"]),
        helper.make_node("Reshape", ["flat", "extents"], ["z"]),
        helper.make_node("MaxRoiPool", ["x", "flat"], ["y"], name="regions"),
    ]
    data = model(nodes, {"x": ("n", 3, "h", "w")}, ["y", "z"], {"shape": np.array([1, 77])}).SerializeToString()
    assert places(examine(data, target=FIXED)) == [None, "node 'regions'"]


def test_the_node_is_named_where_no_shape_helps() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], name="product"), helper.make_node("Relu", ["a"], ["y"])]
    found = examine(model(nodes, {"x": ("n", 4)}, ["y"], {"w": np.ones((5, 6), np.float32)}).SerializeToString())
    (problem,) = found.problems
    assert (problem.place, found.refused, found.remedies) == ("node 'product'", 1, ())
    assert "shapes (n, 4) and (5, 6) do not fit together" in problem.cause


def test_a_shape_that_fits_is_tried_and_a_limit_is_not() -> None:
    found = examine(
        model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("n", 3, "h", "w")}, ["y"]).SerializeToString(),
        target=FIXED,
    )
    assert ([str(item) for item in found.remedies], found.left.problems) == (["--shape x=1,3,224,224"], ())
    nodes = [helper.make_node("ConstantOfShape", ["extents"], [f"c{index}"]) for index in range(5)]
    nodes.append(helper.make_node("Sum", ["x", *(f"c{index}" for index in range(5))], ["y"]))
    large = model(nodes, {"x": (1,)}, ["y"], {"extents": np.array([1 << 22])}).SerializeToString()
    found = examine(large, target=FIXED)
    (problem,) = found.problems
    assert isinstance(problem, LimitError)
    assert [item.option for item in problem.remedies] == ["--limit-factor"]
    assert (found.remedies, found.left.problems) == ((), found.problems)


def test_another_opset_is_named_where_that_has_the_operator() -> None:
    (problem,) = mlfc.check(
        model([helper.make_node("BitCast", ["x"], ["y"], to=6)], {"x": (2,)}, ["y"]).SerializeToString()
    )
    assert problem.next_step == "Export the model with opset 26 or newer of the domain 'ai.onnx'"


def test_values_that_follow_from_data_say_so() -> None:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["count"], to=TensorProto.INT64),
        helper.make_node("Range", ["zero", "count", "one"], ["y"]),
    ]
    weights = {"zero": np.array(0), "one": np.array(1)}
    (problem,) = mlfc.check(model(nodes, {"x": (100,)}, ["y"], weights).SerializeToString(), target=FIXED)
    assert str(problem.next_step).startswith("It follows from the data in 'x'.")
    assert problem.remedies == ()
    # a small input that values are computed from is a setting
    found = examine(model(nodes, {"x": (1,)}, ["y"], weights).SerializeToString(), target=FIXED)
    assert [item.subject for item in found.remedies] == ["x"]
    assert found.left.problems == ()


def test_shapes_are_found_once_a_condition_is_known() -> None:
    """Voice detectors select a branch by the sample rate; the branches need at least 512 and 256 samples.

    The branches return different shapes, so the model cannot compute both.
    """
    branches = {}
    for name, taps in (("then", 512), ("else", 256)):
        weights = numpy_helper.from_array(np.ones((1, 1, taps), np.float32), f"{name}_w")
        nodes = [
            helper.make_node("Conv", ["frames", f"{name}_w"], [f"{name}_c"], strides=[64]),
            helper.make_node("ReduceMean", [f"{name}_c"], [f"{name}_m"], axes=[1, 2], keepdims=0),
            helper.make_node("Add", ["state", f"{name}_m"], [f"{name}_a"]),
            helper.make_node("Concat", [f"{name}_a"] * (1 if name == "then" else 2), [f"{name}_s"], axis=2),
        ]
        result = helper.make_tensor_value_info(f"{name}_s", TensorProto.FLOAT, None)
        branches[f"{name}_branch"] = helper.make_graph(nodes, name, [], [result], [weights])
    nodes = [
        helper.make_node("Unsqueeze", ["audio", "one"], ["frames"]),
        helper.make_node("Equal", ["sr", "rate"], ["is_wide"]),
        helper.make_node("If", ["is_wide"], ["next"], **branches),
    ]
    weights = [numpy_helper.from_array(np.array(16000), "rate"), numpy_helper.from_array(np.array([1]), "one")]
    inputs = [
        helper.make_tensor_value_info("audio", TensorProto.FLOAT, ["batch", "samples"]),
        helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, None, 8]),
        helper.make_tensor_value_info("sr", TensorProto.INT64, []),
    ]
    graph = helper.make_graph(nodes, "voice", inputs, [onnx.ValueInfoProto(name="next")], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = examine(made.SerializeToString(), target=FIXED)
    assert found.left.problems == ()
    assert {str(item) for item in found.remedies} == {
        "--value sr=16000", "--shape audio=1,512", "--shape state=2,512,8",
    }  # fmt: skip


def test_shapes_are_found_for_the_ones_that_tflite_exporters_write() -> None:
    tensors = [
        T("x", [1, 1, 1, 2], signature=[-1, -1, -1, 2]),
        T("w", [4, 3, 3, 2], value=np.ones((4, 3, 3, 2))),
        T("b", [4], value=np.zeros(4)),
        T("y", [1, 1, 1, 4], signature=[-1, -1, -1, 4]),
    ]
    fields = {"Padding": 1, "StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
    found = examine(build(tensors, [Op("CONV_2D", ["x", "w", "b"], ["y"], "Conv2DOptions", fields)], ["x"], ["y"]))
    (problem,) = found.problems
    assert problem.next_step == "Specify them, for example: --shape x=1,224,224,2"
    assert found.left.problems == ()


def test_every_operator_of_control_flow_is_named() -> None:
    tensors = [T("x", [1]), T("a", [1]), T("b", [1])]
    loop = {"CondSubgraphIndex": 2, "BodySubgraphIndex": 1}
    operators = [Op("WHILE", ["x"], ["a"], "WhileOptions", loop), Op("WHILE", ["a"], ["b"], "WhileOptions", loop)]
    turn = Graph([T("t", [1]), T("u", [1])], [Op("NEG", ["t"], ["u"])], ["t"], ["u"])
    goes_on = Graph([T("t", [1]), T("on", [1], "bool")], [Op("LESS", ["t", "t"], ["on"])], ["t"], ["on"])
    found = examine(build_graphs(Graph(tensors, operators, ["x"], ["b"]), turn, goes_on), target=FIXED)
    assert [problem.cause for problem in found.problems] == ["its number of iterations is only known at run time"] * 2
    assert found.refused == 2


def shown(capsys: pytest.CaptureFixture[str], *, problems: int = 0, value: Sequence[str] = (), **options: Any) -> str:
    """Return the output of the command, which raises the errors that the program would print."""
    fixed = Inputs(value=[*value])
    if problems:
        with pytest.raises(ProblemsError, match=f"{problems} problems found"):
            command(Path("detector.onnx"), fixed=fixed, board=BoardOptions(), **options)
    else:
        command(Path("detector.onnx"), fixed=fixed, board=BoardOptions(), **options)
    return capsys.readouterr().out


def test_the_command_counts_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    Path("detector.onnx").write_bytes(detector())
    assert shown(capsys, problems=3).splitlines() == [
        "detector.onnx: 3 problems; 3 of 5 nodes cannot be compiled",
        "with --value scales=1 --byoc onnxruntime: no problems remain",
        "these are examples that fit the model; use the values that you need",
    ]
    report = json.loads(shown(capsys, problems=3, as_json=True))
    assert (report["nodes"], report["refused"], report["left"]["problems"]) == (5, 3, [])
    assert report["remedies"] == [
        {"option": "--value", "argument": "scales=1", "example": True},
        {"option": "--byoc", "argument": "onnxruntime", "example": False},
    ]
    assert report["problems"][0]["remedies"] == report["remedies"][:1]
    taken = shown(capsys, value=[report["remedies"][0]["argument"]], byoc=[report["remedies"][1]["argument"]])
    assert taken == "detector.onnx: no problems found\n"


def _of_two() -> bytes:
    """Return a model with one dimension common to two inputs, and one of a single input."""
    items = [
        helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", ["batch", "n"]), ("y", ["batch", 1]))
    ]
    result = helper.make_tensor_value_info("z", 1, ["batch", "n"])
    graph = helper.make_graph([helper.make_node("Add", ["x", "y"], ["z"])], "two", items, [result])
    opset = [helper.make_opsetid("", 17)]
    data: bytes = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    return data


def test_dimensions_that_stay_open_are_listed() -> None:
    found = examine(_of_two())
    assert [str(item) for item in found.open_dimensions] == [
        "batch (0 or more) of 'x', 'y'", "n (0 or more) of 'x'",
    ]  # fmt: skip
    assert (found.problems, found.bounding) == ((), ())
    batch = mlfc.Dim("batch", 2, 4)
    bounded = examine(_of_two(), shapes={"x": (batch, 5), "y": (batch, 1)}, target="c -mcpu=cortex-m4")
    assert [str(item) for item in bounded.open_dimensions] == ["batch (2 to 4) of 'x', 'y'"]
    assert (bounded.problems, bounded.bounding) == ((), ())
    assert examine(_of_two(), shapes={"x": (2, 5), "y": (2, 1)}).open_dimensions == ()


def test_a_microcontroller_asks_for_bounds() -> None:
    target = "c -mcpu=cortex-m4"
    unbounded = examine(_of_two(), shapes={"x": (None, None), "y": (None, 1)}, target=target)
    assert unbounded.bounding == ("--shape x=batch:0..8,n:0..8",)
    shapes = parse_shapes([option.removeprefix("--shape ") for option in unbounded.bounding])
    assert examine(_of_two(), shapes=shapes, target=target).bounding == ()
    (problem,) = examine(_of_two(), target=target).problems
    said = re.findall(r"--shape (\S+:\S+)", str(problem))
    assert len(said) == 2
    kept = examine(_of_two(), shapes=parse_shapes(said), target=target)
    assert [item.name for item in kept.open_dimensions] == ["batch", "n"]
    assert (kept.problems, kept.bounding) == ((), ())
