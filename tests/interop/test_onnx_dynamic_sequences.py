"""Sequences and optionals of ONNX as inputs, outputs and values of the virtual machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime import InferenceSession
from typer.testing import CliRunner

import mlfc
from mlfc.cli.main import app
from mlfc.errors import LimitError, MlfcError
from mlfc.frontend.onnx import importer
from tests.node_tests import node_tests
from tests.onnx_graphs import CONTAINERS, graph_model

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert isinstance(found, list)
        for ours, other in zip(found, wanted, strict=True):
            _assert_same(ours, other)
    elif wanted is None:
        assert found is None
    else:
        assert (found.shape, found.dtype) == (np.asarray(wanted).shape, np.asarray(wanted).dtype)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_sequences_and_optionals_are_inputs_and_outputs_of_the_virtual_machine() -> None:
    cases = [case for case in node_tests() if case.name.startswith(CONTAINERS)]
    count = 0
    for case in cases:
        # the rank of this one's tensors is unknown
        shapes = {"x": (None,) * 4} if case.name == "test_identity_sequence" else None
        compiled = mlfc.compile(case.model, "llvm", shapes=shapes)
        for inputs, outputs in case.data_sets:
            given = dict(zip([item.name for item in case.model.graph.input], inputs, strict=True))
            found = compiled.run({info.name: given[info.name] for info in compiled.inputs})
            for ours, wanted in zip(found.values(), outputs, strict=True):
                _assert_same(ours, wanted)
        count += 1
    assert count >= 34


def _edited(length: str) -> onnx.ModelProto:
    """Return a model that splits, erases, inserts and concatenates at runtime positions."""
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["s"], axis=1),
        helper.make_node("SequenceErase", ["s", "i"], ["t"]),
        helper.make_node("SequenceInsert", ["t", "x", "j"], ["u"]),
        helper.make_node("ConcatFromSequence", ["u"], ["y"], axis=1),
        helper.make_node("SequenceAt", ["s", "i"], ["z"]),
    ]
    inputs = {"x": (FLOAT, ["n", "m"]), "sizes": (INT64, [length]), "i": (INT64, []), "j": (INT64, [])}
    return graph_model(nodes, inputs, {"y": (FLOAT, None), "z": (FLOAT, None)})


def test_places_in_sequences_come_when_the_model_runs(tmp_path: Path) -> None:
    model = _edited("k")
    reference = InferenceSession(model.SerializeToString())
    library = mlfc.compile(model, "c").export_library(tmp_path / "edited.so")
    modules = mlfc.load_module(library), mlfc.compile(model, "llvm").factory.runtime
    machines = [mlfc.runtime.VirtualMachine(lib, mlfc.cpu(0)) for lib in modules]
    x = np.random.default_rng(5).normal(size=(3, 6)).astype(np.float32)
    fitting = [([2, 4], 0, 0), ([1, 2, 3], -1, 2), ([0, 6, 0], 1, -1), ([6], 0, 0)]
    wrong = [([2, 5], 0, 0, "sizes"), ([-1, 7], 0, 0, "sizes"), ([6], 1, 0, "index into"), ([3, 3], 0, 3, "index into")]
    for machine in machines:
        for sizes, i, j in fitting:
            given = {"x": x, "sizes": np.int64(sizes), "i": np.asarray(i), "j": np.asarray(j)}
            for found, wanted in zip(machine.invoke("main", **given), reference.run(None, given), strict=True):
                np.testing.assert_array_equal(found, wanted)
        for sizes, i, j, text in wrong:
            with pytest.raises(MlfcError, match=text):
                machine.invoke("main", x, np.int64(sizes), np.asarray(i), np.asarray(j))


def _sequence_model(nodes: Sequence[onnx.NodeProto], output: onnx.ValueInfoProto) -> onnx.ModelProto:
    inputs = [helper.make_tensor_sequence_value_info("s", FLOAT, [None, 2])]
    graph = helper.make_graph(list(nodes), "tested", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_sequences_that_do_not_fit_are_one_error(tmp_path: Path) -> None:
    joined = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    model = _sequence_model([joined], helper.make_tensor_value_info("y", FLOAT, None))
    library = mlfc.compile(model, "c").export_library(tmp_path / "joined.so")
    x = np.ones((2, 2), np.float32)
    for lib in (mlfc.load_module(library), mlfc.compile(model, "llvm").factory.runtime):
        machine = mlfc.runtime.VirtualMachine(lib, mlfc.cpu(0))
        machine.set_input("main", s=[x, x[:1]])
        assert machine.invoke("main").shape == (3, 2)
        faults: list[tuple[Any, str]] = [
            ([], "sequence is empty"), ([x, x.astype(np.float64)], "got float64"), ([x, x[0]], "of 1"),
            ([x, np.ones((2, 3), np.float32)], "equal"), (x, "list of arrays"), (None, "list of arrays"),
        ]  # fmt: skip
        for value, text in faults:
            with pytest.raises(MlfcError, match=text):
                machine.invoke("main", value)


def test_sizes_of_sequences_are_narrowed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    run = importer._Importer.run

    def counted(self: Any, *args: Any) -> Any:
        runs.append(self)
        return run(self, *args)

    monkeypatch.setattr(importer._Importer, "run", counted)
    nodes = [helper.make_node("ConcatFromSequence", ["s"], ["t"], axis=0), helper.make_node("Unknown", ["t"], ["y"])]
    with pytest.raises(MlfcError, match="Unknown"):
        mlfc.import_model(_sequence_model(nodes, helper.make_tensor_value_info("y", FLOAT, None)), dynamic=True)
    assert len(runs) <= 6


def test_a_sequence_that_grows_without_end_reaches_the_memory_limit(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("SequenceInsert", ["t", "x"], ["more"]), helper.make_node("Identity", ["c"], ["go"])],
        "turn",
        [
            helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("c", BOOL, []),
            helper.make_tensor_sequence_value_info("t", FLOAT, None),
        ],
        [helper.make_tensor_value_info("go", BOOL, []), helper.make_tensor_sequence_value_info("more", FLOAT, None)],
    )  # fmt: skip
    nodes = [
        helper.make_node("SequenceEmpty", [], ["s"]),
        helper.make_node("Loop", ["", "c0", "s"], ["all"], body=body),
        helper.make_node("SequenceLength", ["all"], ["y"]),
    ]
    inputs = {"x": (FLOAT, ["n"]), "c0": (BOOL, [])}
    model = graph_model(nodes, inputs, {"y": (INT64, [])})
    library = mlfc.compile(model, "c").export_library(tmp_path / "all.so")
    for lib in (mlfc.load_module(library), mlfc.compile(model, "llvm").factory.runtime):
        machine = mlfc.runtime.VirtualMachine(lib, mlfc.cpu(0), memory_limit=1 << 18)
        with pytest.raises(LimitError, match="memory limit"):
            machine.invoke("main", np.ones(3, np.float32), np.asarray(True))


def test_sequences_are_arrays_with_numbers_in_files(tmp_path: Path) -> None:
    output = helper.make_tensor_sequence_value_info("y", FLOAT, None)
    model = _sequence_model([helper.make_node("Identity", ["s"], ["y"])], output)
    archive = mlfc.compile(model, "llvm").export(tmp_path / "same.tar")
    parts = {f"s.{index}": np.full((index, 2), index, np.float32) for index in range(3)}
    np.savez(tmp_path / "in.npz", **parts)
    outcome = CliRunner().invoke(
        app, ["run", str(archive), "--inputs", str(tmp_path / "in.npz"), "--outputs", str(tmp_path / "out.npz")]
    )
    assert outcome.exit_code == 0, outcome.output
    with np.load(tmp_path / "out.npz") as found:
        assert sorted(found) == ["y.0", "y.1", "y.2"]
        for index in range(3):
            np.testing.assert_array_equal(found[f"y.{index}"], parts[f"s.{index}"])
