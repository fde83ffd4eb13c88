"""Archives of every version are read into the same record, and migrate to version 7 without loss."""

from __future__ import annotations

import base64
import dataclasses
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.read.model import OPERATOR, RFC, MainMemory, ModuleFiles, ModuleRecord, OperatorBuffer, TensorRecord
from mlfc.archive.read.opening import open_archive
from mlfc.archive.validate.validate import validate
from mlfc.errors import ArchiveError
from mlfc.support.params import load_params
from tests.interop.archive_versions import (
    PLACES,
    VERSIONS,
    members,
    older_archive,
    older_document,
    operator_archive,
    proposed_archive,
    text,
    write_as_tvm,
)

OLDER = VERSIONS[:-1]


@pytest.fixture(params=["kws_graph_c", "kws_aot_c"])
def tvm(request: pytest.FixtureRequest, shared: Path) -> Path:
    return shared / "fixtures/tvm-0.14" / f"{request.param}.tar.xz"


@pytest.fixture
def graph(shared: Path) -> Path:
    return shared / "fixtures/tvm-0.14/kws_graph_c.tar.xz"


def record_of(path: Path) -> ModuleRecord:
    with open_archive(path) as archive:
        (module,) = archive.record.modules.values()
        return module


def without_tensors(main: tuple[MainMemory, ...]) -> tuple[MainMemory, ...]:
    return tuple(dataclasses.replace(entry, inputs=(), outputs=()) for entry in main)


@pytest.mark.parametrize("version", OLDER)
def test_an_old_archive_says_what_the_one_of_version_7_says(tvm: Path, tmp_path: Path, version: int) -> None:
    old = older_archive(tvm, version, tmp_path / "old.tar")
    with open_archive(old) as archive:
        assert (archive.record.version, archive.record.form, archive.record.style) == (version, "tvm", "full-model")
        assert archive.record.manifest is None
    expected, found = record_of(tvm), record_of(old)
    if version == 1:
        assert found.main == found.operator_functions == ()
    else:
        assert found.main == without_tensors(expected.main)
        assert found.operator_functions == expected.operator_functions
    assert found.targets == expected.targets == ("c -keys=cpu",)
    for field in ("name", "executors", "export_datetime", "storages"):
        assert getattr(found, field) == getattr(expected, field), field


@pytest.mark.parametrize("version", OLDER)
def test_the_files_of_an_old_archive_are_found(graph: Path, tmp_path: Path, version: int) -> None:
    new, old = members(graph), older_archive(graph, version, tmp_path / "old.tar")
    files, laid = record_of(old).files, members(old)
    code = PLACES[version]["code"].format(m="kws")
    assert files == ModuleFiles(
        sources=tuple(f"codegen/host/src/{code}{number}.c" for number in (0, 1)),
        graph=PLACES[version]["graph"],
        params="parameters/kws.params",
        relay=PLACES[version]["relay"],
    )
    assert laid[files.graph or ""] == new["executor-config/graph/kws.graph"]
    assert laid[files.relay or ""] == new["src/kws.relay"]
    assert [laid[path] for path in files.sources] == [new[f"codegen/host/src/kws_lib{n}.c"] for n in (0, 1)]


@pytest.mark.parametrize("version", OLDER)
def test_migration_brings_back_version_7(tvm: Path, tmp_path: Path, version: int) -> None:
    old = older_archive(tvm, version, tmp_path / "old.tar")
    done = mlfc.migrate(old, tmp_path / "new.tar")
    assert validate(done.path) == []
    assert [warning for warning in done.warnings if "main function" not in warning] == []
    assert bool(done.warnings) == (version == 1)
    expected, found = members(tvm), members(done.path)
    lost = {path for path in expected if version < 5 and path.startswith("codegen/host/include/")}
    assert {path: data for path, data in found.items() if path != "metadata.json"} == {
        path: data for path, data in expected.items() if path not in lost and path != "metadata.json"
    }
    document = json.loads(found["metadata.json"])
    flat = older_document(json.loads(expected["metadata.json"]), 6)
    module = document["modules"]["kws"]
    if version > 1:
        assert module["memory"] == flat["memory"]
    assert (document["version"], module["executors"], module["style"]) == (7, flat["executors"], "full-model")
    assert ("external_dependencies" in module) == (version == 6 and flat["executors"] == ["aot"])
    assert document["mlfc"]["files"].keys() == found.keys() - {"metadata.json"}


def test_migration_is_reproducible_and_at_rest(tvm: Path, tmp_path: Path) -> None:
    old = older_archive(tvm, 3, tmp_path / "old.tar")
    one, two = mlfc.migrate(old, tmp_path / "a.tar").path, mlfc.migrate(old, tmp_path / "b.tar").path
    assert one.read_bytes() == two.read_bytes()
    again = mlfc.migrate(one, tmp_path / "c.tar")
    assert again.renamed == {}
    assert again.path.read_bytes() == one.read_bytes()
    in_place = mlfc.migrate(one, one)
    assert in_place.path.read_bytes() == two.read_bytes()
    with tarfile.open(one) as tar:
        exported = json.loads(members(tvm)["metadata.json"])["modules"]["kws"]["export_datetime"]
        assert {np.datetime64(exported[:-1].replace(" ", "T")).astype(int)} == {info.mtime for info in tar}
    dated = mlfc.migrate(old, tmp_path / "d.tar", timestamp=5).path
    with tarfile.open(dated) as tar:
        assert {info.mtime for info in tar} == {5}


@pytest.mark.parametrize("version", OLDER)
def test_an_old_archive_is_described(graph: Path, tmp_path: Path, version: int) -> None:
    old = older_archive(graph, version, tmp_path / "old.tar")
    assert validate(old) == []
    found = mlfc.inspect(old)
    assert found["version"] == version
    assert found["modules"]["kws"]["executor"] == "graph"
    assert {file["path"] for file in found["files"]} == members(old).keys()


def test_unknown_keys_and_files_are_kept(graph: Path, tmp_path: Path) -> None:
    old = members(older_archive(graph, 2, tmp_path / "old.tar"))
    document = json.loads(old["metadata.json"]) | {"contexts": [{"device_type": "cpu"}]}
    old |= {"metadata.json": text(document), "notes/why.txt": b"because", "codegen/host/src/devc.c": b"int devc;\n"}
    done = mlfc.migrate(write_as_tvm(old, tmp_path / "more.tar"), tmp_path / "new.tar")
    found = members(done.path)
    assert found["notes/why.txt"] == b"because"
    assert found["codegen/host/src/devc.c"] == b"int devc;\n"
    assert json.loads(found["metadata.json"])["modules"]["kws"]["contexts"] == [{"device_type": "cpu"}]


def test_two_files_that_would_meet_are_refused(graph: Path, tmp_path: Path) -> None:
    old = members(older_archive(graph, 2, tmp_path / "old.tar")) | {"src/kws.relay": b"another"}
    path = write_as_tvm(old, tmp_path / "clash.tar")
    with pytest.raises(ArchiveError, match=r"would both become src/kws\.relay"):
        mlfc.migrate(path, tmp_path / "new.tar")
    assert not (tmp_path / "new.tar").exists()


@pytest.mark.parametrize(
    ("names", "warned"),
    [
        (rb'"\002tvmgen_a\000tvmgen_b\000"', True),
        (rb'"\x02tvmgen_a\000tvmgen_b\000"', True),
        (rb'"\ttvmgen_a\000"', True),
        (rb'"\002\000tvmgen_a\000tvmgen_b\000"', False),
    ],
)
def test_a_registry_with_a_count_of_one_byte_is_warned_of(
    graph: Path, tmp_path: Path, names: bytes, warned: bool
) -> None:
    old = members(older_archive(graph, 5, tmp_path / "old.tar"))
    source = b"static const TVMFuncRegistry _tvm_func_registry = {\n    " + names + b",\n    _tvm_func_array,\n};\n"
    old["codegen/host/src/kws_lib0.c"] = source
    done = mlfc.migrate(write_as_tvm(old, tmp_path / "v5.tar"), tmp_path / "new.tar")
    assert any("in one byte" in warning for warning in done.warnings) == warned
    assert members(done.path)["codegen/host/src/kws_lib0.c"] == source


@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_operator_style_reads_and_migrates(tmp_path: Path, version: int) -> None:
    old = operator_archive(version, tmp_path / "old.tar")
    done = mlfc.migrate(old, tmp_path / "new.tar")
    assert done.renamed == {}
    for path, expected in ((old, version), (done.path, 7)):
        with open_archive(path) as archive:
            record = archive.record
        assert (record.version, record.style) == (expected, OPERATOR)
        module = record.modules["default"]
        assert module.targets == ("c -keys=cpu",)
        assert module.executor is None
        assert module.operators == {
            "add": (
                OperatorBuffer(8, (2,), "float32", "A" if version < 7 else None),
                OperatorBuffer(6, (2, 3), "int8", None),
            )
        }
        assert module.files == ModuleFiles(sources=("codegen/host/src/lib0.c",), tir=("src/tir-1.txt",))
    found = members(done.path)
    assert {**found, "metadata.json": b""} == {**members(old), "metadata.json": b""}
    document = json.loads(found["metadata.json"])
    assert (document["version"], document["target"], document["executors"]) == (7, ["c -keys=cpu "], [])
    assert document["mlfc"]["files"].keys() == found.keys() - {"metadata.json"}


def test_the_proposed_form_reads_and_migrates(graph: Path, tmp_path: Path) -> None:
    old = proposed_archive(graph, tmp_path / "kws.model-lib")
    with open_archive(old) as archive:
        assert (archive.record.version, archive.record.form) == (1, RFC)
    expected, found = record_of(graph), record_of(old)
    for field in ("name", "executors", "targets", "export_datetime", "storages"):
        assert getattr(found, field) == getattr(expected, field), field
    done = mlfc.migrate(old, tmp_path / "new.tar")
    assert done.renamed["metadata-1.json"] == "metadata.json"
    new = members(done.path)
    assert new["runtime/include/crt.h"] == b"int crt;\n"
    assert new["README.md"] == b"# a model\n"
    for path, data in members(graph).items():
        assert path == "metadata.json" or new[path] == data
    module = json.loads(new["metadata.json"])["modules"]["kws"]
    assert module["export_datetime"] == expected.export_datetime
    assert "export_datetime_utc" not in module


@pytest.mark.parametrize("form", ["json", "bson"])
def test_parameters_in_another_form_alone_become_tvms(graph: Path, tmp_path: Path, form: str) -> None:
    weights = np.array([[1.5, -0.0], [np.nan, 2e-45]], "<f4")
    tensor: dict[str, Any] = {"name": "p0", "dtype": "float32", "shape": [2, 2]}
    head = {"format": "mlfc-params", "version": 1}
    if form == "json":
        tensor["data"] = base64.b64encode(weights.tobytes()).decode()
        data = json.dumps({**head, "params": [tensor]}).encode()
    else:
        data = bson(struct.pack("<i", 2), weights.tobytes())
    old = members(proposed_archive(graph, tmp_path / "full.tar"))
    del old["parameters/kws.params"]
    path = write_as_tvm(old | {f"parameters/kws.{form}": data}, tmp_path / "old.tar")
    assert record_of(path).files.params == f"parameters/kws.{form}"
    done = mlfc.migrate(path, tmp_path / "new.tar")
    found = members(done.path)
    assert found[f"parameters/kws.{form}"] == data
    (loaded,) = load_params(found["parameters/kws.params"]).values()
    assert loaded.tobytes() == weights.tobytes()
    assert any("parameters/kws.params" in warning for warning in done.warnings)


def bson(extent: bytes, data: bytes) -> bytes:
    """Return a hand-written document of one float32 tensor with two equal dimension sizes."""

    def document(*elements: bytes) -> bytes:
        body = b"".join(elements)
        return struct.pack("<i", len(body) + 5) + body + b"\0"

    def string(key: bytes, value: bytes) -> bytes:
        return b"\x02" + key + b"\0" + struct.pack("<i", len(value) + 1) + value + b"\0"

    tensor = document(
        string(b"name", b"p0"),
        string(b"dtype", b"float32"),
        b"\x04shape\0" + document(b"\x100\0" + extent, b"\x101\0" + extent),
        b"\x05data\0" + struct.pack("<iB", len(data), 0) + data,
    )
    version = b"\x10version\0" + struct.pack("<i", 1)
    params = b"\x04params\0" + document(b"\x030\0" + tensor)
    return document(string(b"format", b"mlfc-params"), version, params)


GRAPH_EXAMPLE: dict[str, Any] = {
    "functions": {
        "main": [
            {
                "constants_size_bytes": 8,
                "device": 1,
                "inputs": {"a": {"dtype": "uint8", "size": 2}, "b": {"dtype": "float32", "size": 8}},
                "io_size_bytes": 18,
                "outputs": {"output": {"dtype": "float32", "size": 8}},
                "workspace_size_bytes": 0,
            }
        ],
        "operator_functions": [
            {
                "function_name": "tvmgen_add_fused_cast_multiply_add",
                "workspace": [{"device": 1, "workspace_size_bytes": 0}],
            }
        ],
    },
    "sids": [
        {"input_binding": "a", "size_bytes": 2, "storage_id": 0},
        {"input_binding": "b", "size_bytes": 8, "storage_id": 1},
        {"input_binding": "p0", "size_bytes": 8, "storage_id": 2},
        {"size_bytes": 8, "storage_id": 3},
    ],
}


@pytest.mark.parametrize("executor", ["graph", "aot"])
def test_the_verified_examples_of_the_description_read(tmp_path: Path, executor: str) -> None:
    memory = GRAPH_EXAMPLE if executor == "graph" else {"functions": GRAPH_EXAMPLE["functions"]}
    module = {
        "model_name": "add",
        "export_datetime": "2023-11-01 10:00:00Z",
        "executors": [executor],
        "style": "full-model",
        "target": ["c -keys=cpu "],
        "memory": memory,
    }
    files = {"metadata.json": text({"modules": {"add": module}, "version": 7}), "parameters/add.params": b""}
    record = record_of(write_as_tvm(files, tmp_path / "add.tar"))
    (main,) = record.main
    assert (main.workspace_bytes, main.constants_bytes, main.io_bytes) == (0, 8, 18)
    assert main.inputs == (TensorRecord("a", "uint8", 2), TensorRecord("b", "float32", 8))
    assert main.outputs == (TensorRecord("output", "float32", 8),)
    bindings = None if record.storages is None else [(item.storage_id, item.input_binding) for item in record.storages]
    assert bindings == ([(0, "a"), (1, "b"), (2, "p0"), (3, None)] if executor == "graph" else None)


@pytest.mark.parametrize(
    ("version", "claimed"), [(1, 2), (2, 1), (3, 4), (4, 5), (5, 4), (5, 6), (6, 5), (6, 7), (6, 8)]
)
def test_a_version_is_not_taken_for_another(graph: Path, tmp_path: Path, version: int, claimed: int) -> None:
    files = members(older_archive(graph, version, tmp_path / "old.tar"))
    files["metadata.json"] = text(json.loads(files["metadata.json"]) | {"version": claimed})
    path = write_as_tvm(files, tmp_path / "lie.tar")
    with pytest.raises(ArchiveError, match=r"lie\.tar: metadata\.json"):
        record_of(path)
