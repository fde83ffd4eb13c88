"""Compiled and loaded models as values: a pickle or copy computes the same, starting with the same state."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.read.load import kind_of_artifact
from mlfc.errors import ArchiveError, InputError, OptionError, ToolchainError
from mlfc.library import export
from tests.state_models import GRU_STATES, frames, gru

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
FIRST, SECOND = frames(2)


@pytest.fixture(scope="module", params=["aot", "graph", "vm"])
def model(request: pytest.FixtureRequest) -> mlfc.CompiledModel:
    return mlfc.compile(gru(), states=GRU_STATES, module_name="cell", executor=request.param)


def test_models_go_on_where_they_were(model: mlfc.CompiledModel, tmp_path: Path) -> None:
    library = model.export_library(tmp_path / "cell.so")
    forms = [model, mlfc.load(library), mlfc.load(model.export(tmp_path / "cell.tar")), mlfc.load(library.read_bytes())]
    for form in forms:
        form.reset_state()
        form.run({"x": FIRST})
        state = form.state["h_in"]
        made = {name: way(form) for name, way in WAYS.items()}
        made["again"] = WAYS["pickle"](made["pickle"])
        wanted = form.run({"x": SECOND})["y"]
        for name, found in made.items():
            np.testing.assert_array_equal(found.state["h_in"], state, err_msg=name)
            np.testing.assert_array_equal(found.run({"x": SECOND})["y"], wanted, err_msg=name)
            found.reset_state()  # does not affect the others
        assert form.state["h_in"].any()
    assert type(made["copy"]) is type(forms[-1])


def test_a_pickle_needs_no_compiler_and_is_checked_as_libraries_are(tmp_path: Path) -> None:
    model = mlfc.compile(gru(), module_name="cell")
    inputs = {"x": FIRST, "h_in": np.ones((1, 8), np.float32)}
    data = pickle.dumps((model, inputs, model.run(inputs)["y"]))
    (tmp_path / "model.pickle").write_bytes(data)
    program = """
import pickle, sys
model, inputs, wanted = pickle.load(open(sys.argv[1], "rb"))
assert (model.run(inputs)["y"] == wanted).all()
assert model.name == "cell"
assert not {"mlfc.compiler", "mlfc.codegen", "llvmlite", "onnx"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "model.pickle")], check=True)
    session = WAYS["pickle"](mlfc.InferenceSession(model))
    np.testing.assert_array_equal(session.run(["y"], inputs)[0], model.run(inputs)["y"])
    stored = pickle.loads(data)[0]
    again = mlfc.load(stored.export_library(tmp_path / "again.so"))
    np.testing.assert_array_equal(again.run(inputs)["y"], model.run(inputs)["y"])
    with pytest.raises(OptionError, match="expected an archive, got a library"):
        stored.export(tmp_path / "again.tar")
    # damage one byte of the machine code
    function, arguments, state = stored.__reduce__()
    library = bytearray(arguments[1])
    place = library.find(b"\x55\x48\x89\xe5") if b"\x55\x48\x89\xe5" in library else len(library) // 4
    library[place] ^= 1
    damaged = pickle.dumps((function, (arguments[0], bytes(library)), state))
    function, arguments, _ = pickle.loads(damaged)
    with pytest.raises(ArchiveError):
        function(*arguments)


def refused(*_: object, **__: object) -> None:
    raise ToolchainError("no linker")


def test_a_library_that_was_pickled_before_is_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"x": FIRST, "h_in": np.ones((1, 8), np.float32)}
    models = [mlfc.compile(gru(), module_name=name) for name in ("cell", "cell", "other")]
    wanted = [WAYS["pickle"](models[0]).run(inputs)["y"]]
    monkeypatch.setattr(export, "link", refused)
    found, made = (WAYS["pickle"](model) for model in models[1:])
    np.testing.assert_array_equal(found.run(inputs)["y"], wanted[0])
    kinds = [kind_of_artifact(model._data) for model in (found, made)]
    assert kinds == ["library", "archive"], "another module has other code"


def test_where_nothing_links_libraries_a_pickle_has_an_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlfc.compile(gru(), "llvm", module_name="cell")

    monkeypatch.setattr(export, "find_entry", lambda *_: None)
    monkeypatch.setattr(export, "link", refused)
    inputs = {"x": FIRST, "h_in": np.ones((1, 8), np.float32)}
    found = pickle.loads(pickle.dumps(model))
    # the archive's objects are for all processors of this architecture
    np.testing.assert_allclose(found.run(inputs)["y"], model.run(inputs)["y"], rtol=1e-6)
    with pytest.raises(OptionError, match="expected a library, got an archive"):
        found.export_library("cell.so")


def test_loaded_modules_are_pickled_too(tmp_path: Path) -> None:
    model = mlfc.compile(gru(), states=GRU_STATES, module_name="cell", executor="vm")
    path = model.export_library(tmp_path / "cell.so")
    for source in (path, path.read_bytes()):
        found = WAYS["pickle"](mlfc.load_module(source))
        assert found.type_key == "mlfc.vm"
        assert found.run({"x": FIRST})["y"] == model.model.run({"x": FIRST})["y"]
        model.reset_state()
    limited = mlfc.load(path)
    limited.set_limits(1 << 20, 5)  # type: ignore[attr-defined]  # the virtual machine has limits
    assert WAYS["pickle"](limited).limits == {"memory_limit": 1 << 20, "turn_limit": 5}


def test_what_cannot_be_restored_says_so(tmp_path: Path) -> None:
    model = mlfc.compile(gru(), module_name="cell")
    with pytest.raises(TypeError, match=r"cannot pickle or copy this AotModule.* Pickle what mlfc\.compile"):
        pickle.dumps(model.model)
    path = model.export_library(tmp_path / "cell.so")
    loaded = mlfc.load(path)
    path.unlink()
    for way in WAYS.values():
        with pytest.raises(InputError, match="was changed or removed"):
            way(loaded)
