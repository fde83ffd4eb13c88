"""External code generators in models with dynamic shapes or control flow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.byoc import GENERATORS, Composite, Generator
from mlfc.byoc.pattern import anything, op
from mlfc.errors import OptionError, RunError, UnsupportedError
from mlfc.factory import library_root
from mlfc.library.export import export_library
from mlfc.micro.board.board import find_board
from mlfc.micro.project.generate import generate_project
from mlfc.micro.run.emulator import emulated_archive
from mlfc.support.dims import Symbol
from mlfc.tir.ir import External
from tests.unit.test_cli import succeeded

pytestmark = pytest.mark.usefixtures("quick_builds")
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_value = helper.make_tensor_value_info


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any] | None = None) -> bytes:
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def pooling() -> bytes:
    """Return a dynamic model with MaxRoiPool in the middle, which the compiler itself does not support."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("MaxRoiPool", ["r", "rois"], ["p"], name="roi", pooled_shape=[2, 2]),
        helper.make_node("Mul", ["p", "two"], ["y"], name="mul"),
    ]
    inputs = [_value("x", FLOAT, [1, 3, "h", "w"]), _value("rois", FLOAT, ["n", 5])]
    return model_of(nodes, inputs, [_value("y", FLOAT, ["n", 3, 2, 2])], {"two": np.float32(2)})


def regions(height: int, width: int, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(height + width)
    rois = np.array([[0, 0, index, width - 1, height - 1] for index in range(count)], np.float32)
    return {"x": rng.normal(size=(1, 3, height, width)).astype(np.float32), "rois": rois}


SIZES = [(8, 8, 1), (5, 9, 3), (20, 6, 2)]


@pytest.fixture(scope="module")
def pooled() -> Any:
    module, params = mlfc.import_model(pooling(), byoc=["onnxruntime"], dynamic=True)
    return mlfc.build(module, "c", params, module_name="roi", specialize=[{"h": 8, "w": 8, "n": 1}])


@pytest.mark.parametrize("how", ["here", "archive", "library", "llvm"])
def test_onnxruntime_computes_parts_of_open_extents(pooled: Any, how: str, tmp_path: Path) -> None:
    """Use the specialized code for static shapes, too."""
    if how == "archive":
        mlfc.export_model_library_format(pooled, tmp_path / "roi.tar")
        assert mlfc.archive.validate(tmp_path / "roi.tar") == []
        model = mlfc.load(tmp_path / "roi.tar")
    elif how == "library":
        export_library(library_root([pooled]), tmp_path / "roi.so")
        model = mlfc.load(tmp_path / "roi.so")
    elif how == "llvm":
        model = mlfc.compile(pooling(), "llvm", byoc=["onnxruntime"])
    else:
        model = pooled.runtime.model
    session = onnxruntime.InferenceSession(pooling())
    for sizes in SIZES:
        inputs = regions(*sizes)
        np.testing.assert_array_equal(model.run(inputs)["y"], session.run(None, inputs)[0])


def test_parts_that_a_runtime_refuses_end_the_run_with_its_error(pooled: Any) -> None:
    inputs = regions(8, 9, 1)
    inputs["rois"][0, 0] = 7  # there is only one image
    with pytest.raises(RunError, match="ONNX Runtime failed"):
        pooled.runtime.model.run(inputs)


def test_parts_beside_a_state(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MaxRoiPool", ["x", "rois"], ["p"], name="roi", pooled_shape=[2, 2]),
        helper.make_node("Add", ["p", "kept"], ["next"], name="add"),
        helper.make_node("Neg", ["next"], ["y"], name="neg"),
    ]
    inputs = [_value("x", FLOAT, [1, 1, "h", "w"]), _value("rois", FLOAT, [1, 5]), _value("kept", FLOAT, [1, 1, 2, 2])]
    outputs = [_value("next", FLOAT, [1, 1, 2, 2]), _value("y", FLOAT, [1, 1, 2, 2])]
    data = model_of(nodes, inputs, outputs)
    module, params = mlfc.import_model(data, byoc=["onnxruntime"], states={"kept": "next"}, dynamic=True)
    path = mlfc.export_model_library_format(mlfc.build(module, "c", params, module_name="kept"), tmp_path / "kept.tar")
    model, session = mlfc.load(path), onnxruntime.InferenceSession(data)
    kept = np.zeros((1, 1, 2, 2), np.float32)
    for height, width in ((4, 4), (6, 3), (2, 9)):
        given = {name: value[:, :1] if name == "x" else value for name, value in regions(height, width, 1).items()}
        kept, expected = session.run(None, {**given, "kept": kept})
        np.testing.assert_array_equal(model.run(given)["y"], expected)


def test_what_firmware_and_c_cannot_have_is_said(tmp_path: Path) -> None:
    shapes = {"x": (1, 3, mlfc.Dim("h", 2, 8), mlfc.Dim("w", 2, 8)), "rois": (mlfc.Dim("n", 1, 2), 5)}
    module, params = mlfc.import_model(pooling(), shapes=shapes, byoc=["onnxruntime"])
    path = mlfc.export_model_library_format(mlfc.build(module, "c", params, module_name="roi"), tmp_path / "roi.tar")
    said, board = "parts of module 'roi' require onnxruntime, which firmware does not have", "mps2-an386"
    with pytest.raises(OptionError, match=said):
        emulated_archive(path, find_board(board))
    with pytest.raises(OptionError, match=said):
        generate_project("makefile", path, tmp_path / "project", {"board": board, "project_type": "standalone"})
    inputs = regions(8, 3, 2)
    expected = onnxruntime.InferenceSession(pooling()).run(None, inputs)[0]
    np.testing.assert_array_equal(mlfc.load(path).run(inputs)["y"], expected)


def test_an_output_of_extents_that_no_operand_has_is_refused() -> None:
    """Reject an output whose size is unknown before the run."""
    operands = ["x", "boxes", "images", "size"]
    node = helper.make_node("CropAndResize", operands, ["y"], name="crop", domain="com.microsoft")
    inputs = [_value("x", FLOAT, ["n", 1, 4, 4]), _value("boxes", FLOAT, ["k", 4])]
    inputs += [_value("images", TensorProto.INT32, ["k"]), _value("size", TensorProto.INT32, [2])]
    graph = helper.make_graph([node], "graph", inputs, [_value("y", FLOAT, ["k", 1, "m", 4])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    with pytest.raises(UnsupportedError, match=r"node 'crop'.*the output 'y' of CropAndResize"):
        mlfc.import_model(data, byoc=["onnxruntime"], dynamic=True)


@pytest.fixture
def fast() -> Iterator[str]:
    """Add a C generator for Relu that doubles its results in a static helper function."""

    def generate(part: Any) -> External:
        loop = f"for (int32_t i = 0; i < {part.output.size}; ++i) {{"
        text = f"{loop}\n  ${{output}}[i] = fast_relu(${{input0}}[i]);\n}}"
        return External("fast", text, ("static float fast_relu(float x) { return x > 0 ? 2 * x : 0; }",))

    GENERATORS.add("fast", Generator("fast", (Composite("relu", op("nn.relu", anything())),), generate))
    yield "fast"
    GENERATORS._entries.pop("fast")


@pytest.fixture
def opened() -> Iterator[str]:
    """Add a C generator for Relu with any shape, which copies through scratch memory."""

    def generate(part: Any) -> External:
        part.extent("count", part.output.size)
        part.extent("rows", part.output.shape[0])
        part.scratch("kept", 4 * part.output.size)
        text = """
            float *held = (float *)(void *)${kept};
            for (int64_t i = 0; i < ${count}; ++i) held[i] = ${input0}[i] > 0 ? ${input0}[i] : 0;
            for (int64_t i = 0; i < ${count}; ++i) ${output}[i] = held[i] * (float)(2 * ${rows} - ${rows} * 1);"""
        return External("opened", text)

    table = (Composite("relu", op("nn.relu", anything())),)
    GENERATORS.add("opened", Generator("opened", table, generate, takes_open=True))
    yield "opened"
    GENERATORS._entries.pop("opened")


def two_relus() -> bytes:
    """Return a model with a static-shape Relu in each iteration of a loop, and a dynamic one behind the loop."""
    body = helper.make_graph(
        [
            helper.make_node("Neg", ["old"], ["less"], name="neg"),
            helper.make_node("Relu", ["less"], ["positive"], name="inner"),
            helper.make_node("Sub", ["positive", "one"], ["new"], name="sub"),
            helper.make_node("Identity", ["go"], ["again"]),
        ],
        "body",
        [_value("turn", INT64, []), _value("go", BOOL, []), _value("old", FLOAT, [4])],
        [_value("again", BOOL, []), _value("new", FLOAT, [4])],
        [numpy_helper.from_array(np.float32(1), "one")],
    )
    nodes = [
        helper.make_node("Loop", ["n", "", "x"], ["looped"], name="loop", body=body),
        helper.make_node("Add", ["rows", "looped"], ["sum"], name="add"),
        helper.make_node("Relu", ["sum"], ["y"], name="outer"),
    ]
    inputs = [_value("n", INT64, []), _value("x", FLOAT, [4]), _value("rows", FLOAT, ["batch", 4])]
    return model_of(nodes, inputs, [_value("y", FLOAT, ["batch", 4])])


def reference(turns: int, x: Any, rows: Any, inner: int = 2, outer: int = 1) -> Any:
    """Return the model's result if generators multiply the inner and the outer Relu by a number each."""
    for _ in range(turns):
        x = inner * np.maximum(-x, 0) - 1
    return outer * np.maximum(rows + x, 0)


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_generators_of_c_take_parts_of_fixed_extents_in_a_loop(fast: str, target: str, tmp_path: Path) -> None:
    module, params = mlfc.import_model(two_relus(), byoc=[fast], dynamic=True)
    factory = mlfc.build(module, target, params, module_name="net")
    (part,) = factory.code.external
    assert (part.generator, part.suffix) == ("fast", "c")
    assert part.data.decode().count("fast_relu(input0[i])") == 1
    path = mlfc.export_model_library_format(factory, tmp_path / "net.tar")
    export_library(library_root([factory]), tmp_path / "net.so")
    assert mlfc.archive.validate(path) == []
    rng = np.random.default_rng(5)
    for model in (mlfc.load(path), mlfc.load(tmp_path / "net.so")):
        for turns, batch in ((0, 1), (3, 2), (4, 5)):
            x, rows = (rng.normal(size=shape).astype(np.float32) for shape in ((4,), (batch, 4)))
            found = model.run({"n": np.array(turns), "x": x, "rows": rows})["y"]
            np.testing.assert_allclose(found, reference(turns, x, rows), rtol=1e-6)


def test_firmware_runs_parts_of_generators_of_c(opened: str, tmp_path: Path) -> None:
    """Run parts with static and with dynamic shapes."""
    shapes = {"n": (), "x": (4,), "rows": (mlfc.Dim("batch", 1, 3), 4)}
    module, params = mlfc.import_model(two_relus(), byoc=[opened], shapes=shapes)
    board = find_board("mps2-an386")
    path = mlfc.export_model_library_format(mlfc.build(module, board.target, params), tmp_path / "m.tar")
    made = emulated_archive(path, board, cflags="-O1")
    x, rows = np.array([1, -2, 0.5, 3], np.float32), np.ones((2, 4), np.float32)
    found = made.run({"n": np.array(3), "x": x, "rows": rows})["y"]
    np.testing.assert_allclose(found, reference(3, x, rows, inner=4, outer=2), rtol=1e-6)
    before, after = made.memory()
    assert before.stack.nbytes is not None
    assert before.stack == after.stack


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_libraries_and_archives_hold_several_open_models(fast: str, target: str, tmp_path: Path) -> None:
    looped, params = mlfc.import_model(two_relus(), byoc=[fast], dynamic=True)
    pools, weights = mlfc.import_model(pooling(), byoc=["onnxruntime"], dynamic=True)
    factories = [
        mlfc.build(looped, target, params, module_name="looped"),
        mlfc.build(pools, target, weights, module_name="pools"),
    ]
    export_library(library_root(factories), tmp_path / "both.so")
    mlfc.export_model_library_format(factories, tmp_path / "both.tar")
    inputs, x, rows = regions(5, 9, 3), np.array([1, -2, 0.5, 3], np.float32), np.ones((2, 4), np.float32)
    (expected,) = onnxruntime.InferenceSession(pooling()).run(None, inputs)
    for name in ("both.so", "both.tar"):
        found = mlfc.load(tmp_path / name, module="looped").run({"n": np.array(3), "x": x, "rows": rows})["y"]
        np.testing.assert_allclose(found, reference(3, x, rows), rtol=1e-6)
        np.testing.assert_array_equal(mlfc.load(tmp_path / name, module="pools").run(inputs)["y"], expected)


def open_relus() -> bytes:
    """Return a model of two Relu with equal code whose shapes agree in one dimension only."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Shape", ["x"], ["shape"], name="shape"),
        helper.make_node("Gather", ["shape", "last"], ["width"], name="width"),
        helper.make_node("Concat", ["single", "width"], ["wide"], name="wide", axis=0),
        helper.make_node("Expand", ["unit", "wide"], ["one"], name="row"),
        helper.make_node("Concat", ["a", "a", "one"], ["b"], name="joined", axis=0),
        helper.make_node("Relu", ["b"], ["y"], name="second"),
    ]
    inputs, outputs = [_value("x", FLOAT, ["n", "m"])], [_value("y", FLOAT, ["k", "m"])]
    weights = {"last": np.array([1]), "single": np.array([1]), "unit": np.ones((1, 1), np.float32)}
    return model_of(nodes, inputs, outputs, weights)


def open_reference(x: Any) -> Any:
    first = np.maximum(x, 0) * len(x)
    joined = np.concatenate([first, first, np.ones((1, x.shape[1]), np.float32)])
    return np.maximum(joined, 0) * len(joined)


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_generators_of_c_take_parts_of_open_extents(opened: str, target: str, tmp_path: Path) -> None:
    module, params = mlfc.import_model(open_relus(), byoc=[opened], dynamic=True)
    factory = mlfc.build(module, target, params, module_name="net", specialize=[{"n": 2, "m": 3}])
    path = tmp_path / ("net.tar" if target == "c" else "net.so")
    if target == "c":
        mlfc.export_model_library_format(factory, path)
        assert mlfc.archive.validate(path) == []
    else:
        export_library(library_root([factory]), path)
    model, rng = mlfc.load(path), np.random.default_rng(5)
    for shape in ((1, 1), (2, 3), (5, 2)):
        x = rng.normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(model.run({"x": x})["y"], open_reference(x), rtol=1e-6)


def test_numbers_that_are_in_no_tensor_of_a_part_are_a_fault_of_the_generator(opened: str) -> None:
    entry = GENERATORS._entries.pop(opened)

    def generate(part: Any) -> External:
        part.extent("other", Symbol("other").dim)
        return External(opened, "return 0;")

    GENERATORS.add(opened, Generator(opened, entry.table, generate, takes_open=True))
    module, params = mlfc.import_model(open_relus(), byoc=[opened], dynamic=True)
    with pytest.raises(OptionError, match="'other' needs other, which is not a dimension"):
        mlfc.build(module, "c", params)


def test_command_line_compiles_and_runs_such_a_model(tmp_path: Path) -> None:
    (tmp_path / "roi.onnx").write_bytes(pooling())
    np.savez(tmp_path / "in.npz", **regions(5, 9, 3))
    options = ("--byoc", "onnxruntime", "--target", "c", "-o", "roi.tar")
    succeeded("compile", "roi.onnx", *options, cwd=tmp_path)
    succeeded("run", "roi.tar", "--inputs", "in.npz", "--outputs", "out.npz", cwd=tmp_path)
    expected = onnxruntime.InferenceSession(pooling()).run(None, regions(5, 9, 3))[0]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["y"], expected)
    shown = succeeded("inspect", "roi.tar", "--layers", cwd=tmp_path)
    assert re.search(r"roi\s", shown)
