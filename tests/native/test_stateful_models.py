"""Stateful models: each step as in ONNX Runtime, saved and restored, with every form of memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive import load_profiled
from mlfc.archive.describe.profile import profiled_factory
from mlfc.archive.read.load import load_factory
from mlfc.errors import ArchiveError, InputError, MlfcError, RunError
from mlfc.runtime import AotModule
from tests.conftest import need_opencl
from tests.native.extracted import WARNINGS, extracted, make
from tests.state_models import (
    AVERAGES,
    DELAYS,
    GRU_STATES,
    OPEN_FRAMES,
    WIDTH,
    WINDOW,
    delay_line,
    frames,
    gru,
    gru_steps,
    moving_average,
    open_frames,
    streaming_convolution,
    window,
)

pytestmark = pytest.mark.usefixtures("quick_builds")

BEGIN = np.linspace(-1, 1, WIDTH, dtype=np.float32).reshape(1, WIDTH)
FORMS: dict[str, dict[str, Any]] = {
    "static": {},
    "external": {"external_workspace": True},
    "mapped": {"workspace_io": True},
    "graph": {"executor": "graph"},
    "vm": {"executor": "vm"},
}


@pytest.mark.parametrize("target", ["c", "llvm"])
@pytest.mark.parametrize("form", FORMS)
def test_steps_are_those_of_onnxruntime(target: str, form: str) -> None:
    steps = frames(4)
    for begin in (None, {"h_in": BEGIN}):
        model = mlfc.compile(gru(), target, states=GRU_STATES, state_init=begin, module_name="cell", **FORMS[form])
        first = np.zeros((1, WIDTH), np.float32) if begin is None else BEGIN
        expected, last = gru_steps(steps, first)
        found = [model.run({"x": frame})["y"] for frame in steps]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose(model.state["h_in"], last, atol=1e-5)
        model.reset_state()
        np.testing.assert_array_equal(model.state["h_in"], first)
        np.testing.assert_array_equal(model.run({"x": steps[0]})["y"], found[0])


@pytest.mark.parametrize("form", FORMS)
def test_a_saved_state_goes_on_in_another_instance(form: str) -> None:
    steps = frames(3)
    one = mlfc.compile(gru(), states=GRU_STATES, state_init={"h_in": BEGIN}, module_name="cell", **FORMS[form])
    two = mlfc.compile(gru(), states=GRU_STATES, state_init={"h_in": BEGIN}, module_name="cell", **FORMS[form])
    one.run({"x": steps[0]})
    saved = dict(one.state)
    expected = [one.run({"x": frame})["y"] for frame in steps[1:]]
    np.testing.assert_array_equal(two.state["h_in"], BEGIN)  # the same code with separate states
    two.state.update(saved)
    for frame, output in zip(steps[1:], expected, strict=True):
        np.testing.assert_array_equal(two.run({"x": frame})["y"], output)
        one.run({"x": frame})


@pytest.mark.parametrize("form", FORMS)
def test_bound_calls_and_executors_continue_the_state_of_their_model(form: str) -> None:
    steps = frames(2)
    model = mlfc.compile(gru(), states=GRU_STATES, module_name="cell", **FORMS[form])
    expected = [model.run({"x": frame})["y"] for frame in steps]
    model.reset_state()
    buffer = steps[0].copy()
    call = model.bind({"x": buffer})
    assert call() == 0
    np.testing.assert_array_equal(call.outputs["y"], expected[0])
    np.testing.assert_array_equal(model.run({"x": steps[1]})["y"], expected[1])
    model.state["h_in"] = np.zeros((1, WIDTH), np.float32)
    call()
    np.testing.assert_array_equal(call.outputs["y"], expected[0])


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_rows_of_any_number_continue_one_state(target: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="pip install 'mlfc[verify]'")
    session = runtime.InferenceSession(open_frames().SerializeToString())
    first = {"h": np.zeros((1, 3), np.float32), "before": np.float32([[1, 2, 3]])}
    options = {"states": OPEN_FRAMES, "state_init": {"before": first["before"]}, "specialize": [{"n": 2}]}
    compiled = mlfc.compile(open_frames(), target, **options, module_name="rows")
    path = compiled.export(tmp_path / "rows.tar")
    assert mlfc.validate(path) == []
    (tmp_path / "rows.onnx").write_bytes(open_frames().SerializeToString())
    assert mlfc.verify(tmp_path / "rows.onnx", path, samples=2).is_within
    assert mlfc.verify(tmp_path / "rows.onnx", compiled, samples=2).is_within
    library = compiled.export_library(tmp_path / "rows.so")
    assert [info.offset for info in compiled.factory.interface().states] == [0, 64]
    for profiled in (load_profiled(path), load_profiled(library), profiled_factory(compiled.factory)):
        measured = profiled.profile({"x": np.zeros((2, 3), np.float32)}, repeat=2)
        # code for two rows, code for other sizes, and the copy of a state
        assert [item.nanoseconds > 0 for item in measured.operators] == [True, True, True, False, False, False]
        assert measured.outputs["y"].shape == (2, 3)
    assert [item.nodes[-1:] for item in measured.operators[:3]] == [("Add #2",), ("Add #5",), ()]
    model = mlfc.runtime.VirtualMachine(mlfc.load_module(library), mlfc.cpu()).model
    rng = np.random.default_rng(0)
    for _ in range(2):
        wanted = dict(first)
        for rows in (2, 3, 1, 2, 6):
            x = rng.normal(size=(rows, 3)).astype(np.float32)
            wanted["h"], y, wanted["before"] = session.run(["h_next", "y", "before_next"], {"x": x, **wanted})
            call = model.bind({"x": x}, {"y": np.empty_like(y)} if rows == 3 else None)
            assert call() == 0
            np.testing.assert_allclose(call.outputs["y"], y, rtol=1e-6)
            for name, array in wanted.items():
                np.testing.assert_allclose(model.state[name], array, rtol=1e-6)
            kept = dict(model.state)
            with pytest.raises(InputError, match="extent 3 on axis 1, got 4"):
                model.run({"x": np.zeros((rows, 4), np.float32)})
            assert all((model.state[name] == array).all() for name, array in kept.items())
        model.reset_state()
        assert all((model.state[name] == array).all() for name, array in first.items())


def test_states_that_move_from_one_to_the_next() -> None:
    for form in FORMS.values():
        model = mlfc.compile(delay_line(), states=DELAYS, **form)
        numbers = [np.full((1, 3), value, np.float32) for value in (1, 10, 100, 1000)]
        found = [float(model.run({"x": number})["y"][0, 0]) for number in numbers]
        assert found == [1, 12, 124, 1240]
        assert {name: float(array[0, 0]) for name, array in model.state.items()} == {"d1": 1000, "d2": 100}


@pytest.mark.parametrize("options", [{}, {"executor": "graph"}, {"optimize": "size"}])
def test_a_window_that_is_shifted(options: dict[str, Any]) -> None:
    for target in ("c", "c -mcpu=cortex-m4", "llvm"):
        model = mlfc.compile(window(), target, states=WINDOW, **options)
        steps = [np.full((1, 1, 3), value, np.float32) for value in (5, 10, 20, 40, 80, 160)]
        found = [float(model.run({"x": step})["y"][0, 0]) for step in steps]
        assert found == [1, 3, 7, 15, 31, 62]


def test_the_mapping_of_states_refuses_what_does_not_fit() -> None:
    model = mlfc.compile(gru(), states=GRU_STATES, module_name="cell")
    assert list(model.state) == ["h_in"]
    assert "h_in" in model.state
    assert "x" not in model.state
    with pytest.raises(InputError, match="unknown state 'h'; nearest: 'h_in'"):
        model.state["h"]
    with pytest.raises(InputError, match="its shape is"):
        model.state["h_in"] = np.zeros(WIDTH, np.float32)
    with pytest.raises(MlfcError, match="its dtype is float64"):
        model.state.update({"h_in": np.zeros((1, WIDTH))})
    assert len(mlfc.compile(gru()).state) == 0


def test_a_description_of_states_that_cannot_be_is_refused() -> None:
    factory = mlfc.compile(gru(), "llvm", states=GRU_STATES, module_name="cell").factory
    description = factory.interface()
    for offset in (None, 4):
        wrong = replace(description, states=(replace(description.states[0], offset=offset),))
        with pytest.raises(ArchiveError, match="the state 'h_in' is not within the 32 bytes of all states"):
            AotModule(factory.lib.executable(), wrong)


def test_archives_and_libraries_keep_states(tmp_path: Path) -> None:
    steps = frames(2)
    model = mlfc.compile(gru(), states=GRU_STATES, state_init={"h_in": BEGIN}, module_name="cell")
    expected = [model.run({"x": frame})["y"] for frame in steps]
    archive, library = model.export(tmp_path / "cell.tar"), model.export_library(tmp_path / "cell.so")
    assert mlfc.validate(archive) == []
    for path in (archive, library):
        loaded = mlfc.load(path)
        np.testing.assert_array_equal(loaded.state["h_in"], BEGIN)
        for frame, output in zip(steps, expected, strict=True):
            np.testing.assert_array_equal(loaded.run({"x": frame})["y"], output)


def test_the_demo_of_an_archive_takes_its_vectors_as_steps(tmp_path: Path) -> None:
    forms = {"cell": {}, "given": FORMS["external"], "graph": FORMS["graph"], "steps": FORMS["vm"]}
    factories = [
        mlfc.compile(gru(), "c", states=GRU_STATES, state_init={"h_in": BEGIN}, module_name=name, **form).factory
        for name, form in forms.items()
    ]
    folder = extracted(factories, tmp_path, test_vectors=3)
    demo = (folder / "demo" / "demo.c").read_text()
    assert "tvmgen_cell_state_reset() != 0" in demo
    assert "tvmgen_given_state_reset(&pools) != 0" in demo
    make(folder, "selftest", f"CFLAGS={WARNINGS}")


def test_packed_functions_keep_the_state_of_their_library(tmp_path: Path) -> None:
    steps = frames(3)
    expected, _ = gru_steps(steps, BEGIN)
    for form in ({}, FORMS["external"]):
        model = mlfc.compile(gru(), states=GRU_STATES, state_init={"h_in": BEGIN}, module_name="packed", **form)
        library = mlfc.load_module(model.export_library(tmp_path / f"packed{len(form)}.so")).lib
        for _ in range(2):
            for frame, output in zip(steps, expected, strict=True):
                found = np.zeros((), np.float32)
                library["tvmgen_packed___tvm_main__"](frame, found)
                np.testing.assert_allclose(found, output, atol=1e-5)
            library["mlfc_packed_packed_state_reset"]()
        with pytest.raises(RunError, match="packed_state_reset: num_args should be 0, it is 1"):
            library["mlfc_packed_packed_state_reset"](found)


def test_a_device_keeps_states() -> None:
    device = need_opencl()
    factory = mlfc.compile(moving_average(), "opencl", states=AVERAGES).factory
    assert {state.before.device for state in factory.program.states} == {"opencl"}
    model = load_factory(factory, [device])
    buffer = np.ones((64, 1024), np.float32)
    found = [float(model.run({"x": buffer * step})["y"][0, 0]) for step in (1, 2, 3)]
    assert found == [0.5, 1.25, 2.125]
    call = model.bind({"x": buffer * 4})
    assert call() == 0
    assert float(call.outputs["y"][0, 0]) == 3.0625
    np.testing.assert_array_equal(model.state["seen"], buffer * 3)
    model.reset_state()
    assert float(model.run({"x": buffer})["y"][0, 0]) == 0.5


def test_variables_of_tflite_are_those_of_litert() -> None:
    interpreter_module = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install 'mlfc[verify]'")
    data = streaming_convolution()
    interpreter = interpreter_module.Interpreter(
        model_content=data, experimental_op_resolver_type=interpreter_module.OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    models = [
        mlfc.compile(data, "c", optimize="size"),
        mlfc.compile(data, "llvm"),
        mlfc.compile(data, executor="graph"),
        mlfc.compile(data, executor="vm"),
    ]
    rng = np.random.default_rng(2)
    for _ in range(5):
        frame = rng.integers(-128, 128, (1, 1, 1, 4), np.int8)
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], frame)
        interpreter.invoke()
        expected = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        for model in models:
            (found,) = model.run(frame).values()
            np.testing.assert_array_equal(found, expected)
    assert [info.name for info in models[0].state.infos] == ["window"]
    assert models[0].state.infos[0].zero_point == -3
