"""Models that are recompiled for recurring shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import mlfc
from mlfc.errors import LimitError, OptionError, UnsupportedError
from mlfc.specializing import SpecializingModel

pytestmark = pytest.mark.usefixtures("quick_builds")


def _model(path: Path) -> Path:
    """Write a dense layer and a tanh with a dynamic batch dimension."""
    weights = np.random.default_rng(3).standard_normal((8, 5)).astype(np.float32)
    data = helper.make_tensor_value_info("x", 1, ["batch", 8])
    result = helper.make_tensor_value_info("y", 1, ["batch", 5])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "dense", [data], [result], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_shapes_that_come_back_get_code_with_the_same_bits(tmp_path: Path) -> None:
    compiled = mlfc.compile(_model(tmp_path / "dense.onnx"), "llvm", specialize="auto")
    model = compiled.model
    assert isinstance(model, SpecializingModel)
    rng = np.random.default_rng(4)
    inputs = {rows: rng.standard_normal((rows, 8)).astype(np.float32) for rows in (1, 3, 7)}
    general = {rows: compiled.run({"x": x})["y"] for rows, x in inputs.items()}
    assert model.special == []
    for rows in (1, 3):
        compiled.run(inputs[rows])
        model.wait()
    assert model.special == [{"batch": 1}, {"batch": 3}]
    for rows, x in inputs.items():
        assert compiled.run({"x": x})["y"].tobytes() == general[rows].tobytes()
    bound = model.bind({"x": inputs[3]})
    assert bound() == 0
    assert bound.outputs["y"].tobytes() == general[3].tobytes()


def test_only_known_ways_to_specialize_are_taken(tmp_path: Path) -> None:
    path = _model(tmp_path / "dense.onnx")
    with pytest.raises(OptionError, match="unknown specialization 'often'"):
        mlfc.compile(path, "llvm", specialize="often")
    with pytest.raises(OptionError, match="nearest: 'batch'"):
        mlfc.compile(path, "llvm", specialize=[{"bach": 1}])
    with pytest.raises(OptionError, match="requires dynamic dimensions"):
        mlfc.compile(path, "llvm", shapes={"x": (2, 8)}, specialize=[{"batch": 2}])
    fixed = mlfc.compile(path, "llvm", shapes={"x": (2, 8)}, specialize="auto")
    assert not isinstance(fixed.model, SpecializingModel)


def test_the_command_line_names_extents_that_archives_remember(tmp_path: Path, command: Any) -> None:
    path, archive = _model(tmp_path / "dense.onnx"), tmp_path / "dense.tar"
    command("compile", path, "-o", archive, "--specialize", "batch=1", "--specialize", "batch=8")
    wanted = mlfc.compile(path, specialize=[{"batch": 1}, {"batch": 8}])
    assert wanted.factory.unit.executable != mlfc.compile(path).factory.unit.executable
    again = tmp_path / "again.tar"
    command("compile", archive, "-o", again)
    assert again.read_bytes() == archive.read_bytes() == wanted.export(tmp_path / "wanted.tar").read_bytes()
    for text in ("batch", "batch=x", "batch=1,batch=2", ""):
        with pytest.raises(OptionError, match=r"expected values of dynamic dimensions.*batch=8"):
            command("compile", path, "-o", tmp_path / "no.tar", "--specialize", text)
    with pytest.raises(OptionError, match="MODEL:batch=8"):
        command("compile", f"a={path}", f"b={path}", "-o", tmp_path / "no.tar", "--specialize", "batch=8")


def test_runs_have_the_limits_of_the_command_line(tmp_path: Path, command: Any) -> None:
    path, fixed = _model(tmp_path / "dense.onnx"), ("--shape", "x=2,8")
    command("run", path, "--memory-limit", 1 << 20, "--turn-limit", 10)
    with pytest.raises(LimitError, match=r"exceed the memory limit of 1 bytes.*--memory-limit"):
        command("run", path, "--memory-limit", 1)
    with pytest.raises(OptionError, match="turn_limit: expected a positive number"):
        command("run", path, "--turn-limit", 0)
    with pytest.raises(OptionError, match="require a model for the virtual machine"):
        command("run", path, *fixed, "--turn-limit", 5)
    with pytest.raises(OptionError, match="require a run on this machine"):
        command("run", path, "--board", "host", "--turn-limit", 5)


def test_what_the_virtual_machine_lacks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept.onnx"
    infos = [helper.make_tensor_value_info(name, 1, ["batch", 4]) for name in ("h", "next", "y")]
    nodes = [helper.make_node("Tanh", ["h"], ["next"]), helper.make_node("Neg", ["next"], ["y"])]
    graph = helper.make_graph(nodes, "kept", infos[:1], infos[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(UnsupportedError, match=r"state 'h' has a dynamic shape.*--shape h=1,4"):
        mlfc.compile(path, "llvm", states={"h": "next"})
    assert mlfc.compile(path, "llvm", states={"h": "next"}, shapes={"h": (1, 4)}).factory.executor == "aot"


def test_shapes_of_a_compiled_model_say_what_is_made_up(tmp_path: Path, command: Any) -> None:
    path, archive, found = _model(tmp_path / "dense.onnx"), tmp_path / "dense.tar", tmp_path / "found.npz"
    command("compile", path, "-o", archive, "--shape", "x=batch:2..8,8")
    command("run", archive, "--fill", "random", "--shape", "x=5,8", "--outputs", found)
    with np.load(found) as results:
        assert [array.shape[0] for array in results.values()] == [5]
    for text, expected in (
        ("x=9,8", "expected 2..8 for 'batch' of x: .*, got 9"),
        ("x=5,7", "expected 8 for '8' of x: .*, got 7"),
        ("x=5", "expected 2 numbers for x: .*, got 5"),
        ("y=5,8", "unknown input 'y'; known: 'x'"),
    ):
        with pytest.raises(OptionError, match=expected):
            command("run", archive, "--shape", text)
