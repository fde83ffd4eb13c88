"""Export in versions 5 and 6 and in the proposed form, and loading of the results."""

from __future__ import annotations

import json
import re
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.read.model import RFC, TVM, ArchiveRecord
from mlfc.archive.read.opening import open_archive
from mlfc.archive.read.params_forms import load_bson, load_json
from mlfc.archive.validate.validate import validate
from mlfc.archive.write.older import convert
from mlfc.archive.write.options import ExportOptions
from mlfc.errors import ArchiveError, OptionError
from mlfc.factory import Factory
from mlfc.relay import ir
from mlfc.support.params import load_params
from tests.native.extracted import WARNINGS, make
from tests.unit.test_archive import X, dense_factory, members, rewritten
from tests.unit.test_cli import succeeded

FORMS: dict[str, dict[str, Any]] = {"5": {"format_version": 5}, "6": {"format_version": 6}, "rfc": {"rfc": True}}
ALL_PARAMS = ("params", "json", "bson")


@pytest.fixture(scope="module", params=["aot", "graph"])
def factory(request: pytest.FixtureRequest) -> Factory:
    made = dense_factory()
    params = made.source_params
    return mlfc.build(made.module, params=params, executor=request.param, module_name="tiny")


def record_of(path: Path) -> ArchiveRecord:
    with open_archive(path) as archive:
        return archive.record


def export(factory: Factory, path: Path, **fields: Any) -> Path:
    return mlfc.export_model_library_format(factory, path, **fields)


@pytest.mark.parametrize("name", FORMS)
def test_the_archive_says_what_the_one_of_version_7_says(factory: Factory, tmp_path: Path, name: str) -> None:
    old = export(factory, tmp_path / "old.tar", **FORMS[name])
    expected, found = record_of(export(factory, tmp_path / "new.tar")), record_of(old)
    assert (found.version, found.form) == ((1, RFC) if name == "rfc" else (int(name), TVM))
    assert validate(old) == []
    ours, theirs = found.modules["tiny"], expected.modules["tiny"]
    for field in ("executors", "targets", "export_datetime", "main", "operator_functions", "storages"):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.details is not None
    assert theirs.details is not None
    assert replace(ours.details, module_tree=()) == replace(theirs.details, module_tree=())
    listed = [path for item in ours.details.module_tree for path in item.files]
    assert set(listed) <= found.manifest.keys() if found.manifest else not listed


@pytest.mark.parametrize("name", FORMS)
def test_migration_gives_the_very_archive_of_version_7(factory: Factory, tmp_path: Path, name: str) -> None:
    old = export(factory, tmp_path / "old.tar", **FORMS[name], timestamp=1_700_000_000, test_vectors=1)
    new = export(factory, tmp_path / "new.tar", timestamp=1_700_000_000, test_vectors=1)
    back = mlfc.migrate(old, tmp_path / "back.tar")
    assert back.warnings == ()
    assert back.path.read_bytes() == new.read_bytes()
    assert mlfc.migrate(new, tmp_path / "again.tar").path.read_bytes() == new.read_bytes()


@pytest.mark.parametrize("name", FORMS)
def test_the_archive_computes_the_model(factory: Factory, tmp_path: Path, name: str) -> None:
    new = mlfc.load(export(factory, tmp_path / "new.tar")).run({"x": X})
    old = mlfc.load(export(factory, tmp_path / "old.tar", **FORMS[name])).run({"x": X})
    for key, value in new.items():
        np.testing.assert_array_equal(old[key], value)


@pytest.mark.parametrize("name", FORMS)
def test_the_archive_builds_by_make(factory: Factory, tmp_path: Path, name: str) -> None:
    path = export(factory, tmp_path / "old.tar", **FORMS[name], test_vectors=1)
    with tarfile.open(path) as tar:
        tar.extractall(tmp_path / "tree", filter="data")
    assert "PASS" in make(tmp_path / "tree", "test", f"CFLAGS={WARNINGS}")


def test_version_5_has_the_shape_of_its_time(tmp_path: Path) -> None:
    files = members(export(dense_factory(), tmp_path / "a.tar", format_version=5))
    document = json.loads(files["./metadata.json"])
    assert (document["version"], document["model_name"], document["executors"]) == (5, "tiny", ["aot"])
    assert document["target"] == {"1": "c"}
    assert "modules" not in document
    assert "./src/relay.txt" in files
    assert "./codegen/host/src/tiny_lib0.c" in files


def test_version_6_lists_its_targets(tmp_path: Path) -> None:
    document = json.loads(members(export(dense_factory(), tmp_path / "a.tar", format_version=6))["./metadata.json"])
    assert (document["version"], document["target"]) == (6, ["c"])


def test_the_proposed_form_has_the_names_of_the_proposal(tmp_path: Path) -> None:
    files = members(export(dense_factory(), tmp_path / "a.model-lib", rfc=True, params_forms=ALL_PARAMS))
    document = json.loads(files["./metadata-1.json"])
    assert document["version"] == 1
    assert document["export_datetime_utc"] == "1970-01-01 00:00:00Z"
    assert (document["memory"], document["target"], document["runtimes"]) == ([], "c", ["aot"])
    assert not document.keys() & {"style", "executors", "export_datetime", "modules"}
    assert {"./README.md", "./relay.txt", "./codegen/host/src/lib0.c", "./codegen/host/src/lib1.c"} <= files.keys()
    assert {f"./parameters/tiny.{form}" for form in ALL_PARAMS} <= files.keys()
    assert not any(name.startswith("./runtime/") for name in files)


@pytest.mark.parametrize("fields", [{}, {"rfc": True}, {"format_version": 5}])
def test_every_form_of_the_parameters_holds_the_same(factory: Factory, tmp_path: Path, fields: dict[str, Any]) -> None:
    path = export(factory, tmp_path / "a.tar", params_forms=ALL_PARAMS, **fields)
    assert validate(path) == []
    files = members(path)
    expected = load_params(files["./parameters/tiny.params"])
    assert bool(expected) == (factory.executor == "graph")
    for form, load in (("json", load_json), ("bson", load_bson)):
        found = load(files[f"./parameters/tiny.{form}"])
        assert list(found) == list(expected)
        for name, array in expected.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert found[name].tobytes() == array.tobytes()


def test_large_constants_move_with_the_file_that_includes_them(tmp_path: Path) -> None:
    weights = np.arange(600 * 600, dtype=np.float32).reshape(600, 600)
    x = ir.Var("x", ir.TensorType((1, 600), "float32"))
    w = ir.Var("w", ir.TensorType((600, 600), "float32"))
    dense = ir.call("nn.dense", [x, w], units=600)
    module = ir.IRModule({"main": ir.Function((x, w), dense)}, ("y",))
    factory = mlfc.build(module, params={"w": weights}, module_name="large")
    old, new = export(factory, tmp_path / "old.tar", rfc=True), export(factory, tmp_path / "new.tar")
    assert {"./codegen/host/src/lib2.S", "./codegen/host/src/lib2.S.bin"} <= members(old).keys()
    assert mlfc.migrate(old, tmp_path / "back.tar").path.read_bytes() == new.read_bytes()
    data = np.ones((1, 600), np.float32)
    np.testing.assert_array_equal(mlfc.load(old).run(data)["y"], mlfc.load(new).run(data)["y"])


@pytest.mark.parametrize("name", FORMS)
def test_several_modules_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match=r"holds one module, got 2\. Write version 7"):
        mlfc.export_model_library_format([dense_factory("a"), dense_factory("b")], tmp_path / "a.tar", **FORMS[name])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("targets", "fields", "message"),
    [
        (["c", "llvm"], {"format_version": 5}, "'llvm' has no distinct device"),
        (["unheard"], {"format_version": 5}, "'unheard' has no distinct device"),
        (["c", "opencl"], {"rfc": True}, "supports one target, got 2"),
    ],
)
def test_targets_that_a_version_cannot_say_are_refused(
    tmp_path: Path, targets: list[str], fields: dict[str, Any], message: str
) -> None:
    document = json.loads(members(export(dense_factory(), tmp_path / "a.tar"))["./metadata.json"])
    document["modules"]["tiny"]["target"] = targets
    with pytest.raises(OptionError, match=message):
        convert({}, document, ExportOptions(**fields))


def test_targets_of_several_devices_go_by_their_numbers(tmp_path: Path) -> None:
    document = json.loads(members(export(dense_factory(), tmp_path / "a.tar"))["./metadata.json"])
    document["modules"]["tiny"]["target"] = ["c -keys=cpu", "opencl"]
    _, flat = convert({}, document, ExportOptions(format_version=5))
    assert flat["target"] == {"1": "c -keys=cpu", "4": "opencl"}


@pytest.mark.parametrize("name", FORMS)
def test_damage_is_found_in_every_version(tmp_path: Path, name: str) -> None:
    path = export(dense_factory(), tmp_path / "a.tar", **FORMS[name])
    source = "codegen/host/src/lib1.c" if name == "rfc" else "codegen/host/src/tiny_lib1.c"
    damaged = rewritten(path, {source: members(path)[f"./{source}"] + b" "}, tmp_path / "b.tar")
    with pytest.raises(ArchiveError, match=r"lib1\.c: metadata.*\.json declares"):
        mlfc.migrate(damaged, tmp_path / "c.tar")
    assert not (tmp_path / "c.tar").exists()
    assert any("lib1.c" in fault for fault in validate(damaged))


def test_the_command_tells_what_it_did(tmp_path: Path) -> None:
    export(dense_factory(), tmp_path / "old.model-lib", rfc=True)
    text = succeeded("migrate", "old.model-lib", "-o", "new.tar", cwd=tmp_path)
    assert text.startswith("old.model-lib: version 1, form of the 2021 proposal; new.tar: version 7\n")
    assert re.search(r"^ *relay\.txt +src/tiny\.relay$", text, re.MULTILINE)
    told = json.loads(succeeded("migrate", "old.model-lib", "-o", "again.tar", "--json", cwd=tmp_path))
    assert told["renamed"]["metadata-1.json"] == "metadata.json"
    assert {**told, "renamed": {}} == {
        "output": "again.tar",
        "version": 1,
        "form": "rfc",
        "renamed": {},
        "warnings": [],
    }
    assert (tmp_path / "again.tar").read_bytes() == (tmp_path / "new.tar").read_bytes()
