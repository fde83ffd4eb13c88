"""Archives: layout, metadata, determinism, rejected inputs."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import mlfc
import mlfc.ops
from mlfc.archive.read.schema import load_schema
from mlfc.archive.validate.validate import validate
from mlfc.archive.write import export
from mlfc.errors import ArchiveError, OptionError, OutputError
from mlfc.factory import Factory
from mlfc.relay import ir
from mlfc.relay.ir import Quantization, Span
from mlfc.relay.text import from_text
from mlfc.support import tar
from mlfc.support.params import load_params

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
X = np.array([[1, -2, 0.5, 4], [0, 3, -1, 2]], np.float32)


def dense_factory(name: str = "tiny", executor: str = "aot") -> Factory:
    """Return a compiled ``relu(x @ weights.T)``, with its softmax as second output."""
    x = ir.Var("x", ir.TensorType((2, 4), "float32"))
    weights = ir.Var("layer/weights", ir.TensorType((3, 4), "float32"))
    dense = ir.call("nn.dense", [x, weights], units=3, span=Span(("layer/dense",), "layer/out"))
    relu = ir.call("nn.relu", [dense], span=Span(("layer/relu",), "scores"))
    soft = ir.call("nn.softmax", [relu], span=Span(("soft",), "chances"))
    module = ir.IRModule(
        {"main": ir.Function((x, weights), ir.Tuple((relu, soft)))},
        ("scores", "chances"),
        {"x": Quantization(0.5, 3)},
        {"format": "test"},
    )
    return mlfc.build(module, params={"layer/weights": WEIGHTS}, executor=executor, module_name=name)


@pytest.fixture(scope="module")
def factory() -> Factory:
    return dense_factory()


@pytest.fixture(scope="module")
def archive(factory: Factory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mlfc.export_model_library_format(factory, tmp_path_factory.mktemp("archive") / "tiny.tar")


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path, "r:") as file:
        return {info.name: file.extractfile(info).read() for info in file if info.isfile()}  # type: ignore[union-attr]


def rewritten(path: Path, changes: Mapping[str, bytes | None], target: Path) -> Path:
    """Write a copy of an archive in which members are changed, added or (None) omitted."""
    files = {name.removeprefix("./"): data for name, data in members(path).items()}
    files.update({name: data for name, data in changes.items() if data is not None})
    for name, data in changes.items():
        if data is None:
            del files[name]
    out = io.BytesIO()
    tar.write_tar(out, files, 0)
    target.write_bytes(out.getvalue())
    return target


def test_layout_is_that_of_version_7(archive: Path) -> None:
    names = {name for name in members(archive) if not name.startswith(("./runtime/", "./templates/"))}
    assert names == {
        "./metadata.json",
        "./README.md",
        "./Makefile",
        "./CMakeLists.txt",
        "./demo/demo.c",
        "./demo/tensor_check.c",
        "./demo/tensor_check.h",
        "./demo/tensor_text.c",
        "./demo/tensor_text.h",
        "./codegen/host/include/tvmgen_tiny.h",
        "./codegen/host/src/tiny_lib0.c",
        "./codegen/host/src/tiny_lib1.c",
        "./parameters/tiny.params",
        "./src/tiny.relay",
        "./src/tiny.params",
    }


def test_metadata_has_the_keys_of_tvm_with_right_values(archive: Path) -> None:
    document = json.loads(members(archive)["./metadata.json"])
    jsonschema.validate(document, dict(load_schema("metadata-7")))
    assert document["version"] == 7
    module = document["modules"]["tiny"]
    assert module["model_name"] == "tiny"
    assert module["executors"] == ["aot"]
    assert module["style"] == "full-model"
    assert module["target"] == ["c"]
    assert module["export_datetime"] == "1970-01-01 00:00:00Z"
    (main,) = module["memory"]["functions"]["main"]
    assert main["device"] == 1
    assert main["inputs"] == {"x": {"dtype": "float32", "size": 32}}
    assert main["outputs"] == {"scores": {"dtype": "float32", "size": 24}, "chances": {"dtype": "float32", "size": 24}}
    assert main["io_size_bytes"] == 80
    header = members(archive)["./codegen/host/include/tvmgen_tiny.h"].decode()
    assert f"#define TVMGEN_TINY_WORKSPACE_SIZE {main['workspace_size_bytes']}" in header


def test_metadata_text_is_sorted_and_indented_by_two(archive: Path) -> None:
    text = members(archive)["./metadata.json"].decode()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True)


def test_the_same_model_gives_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    again = mlfc.export_model_library_format(dense_factory(), tmp_path / "b.tar")
    assert again.read_bytes() == archive.read_bytes()


def test_a_timestamp_shows_in_metadata_and_members(factory: Factory, tmp_path: Path) -> None:
    path = mlfc.export_model_library_format(factory, tmp_path / "a.tar", timestamp=1_700_000_000)
    with tarfile.open(path) as file:
        assert {info.mtime for info in file} == {1_700_000_000}
    document = json.loads(members(path)["./metadata.json"])
    assert document["modules"]["tiny"]["export_datetime"] == "2023-11-14 22:13:20Z"


def test_a_loaded_archive_computes_the_model(archive: Path) -> None:
    module = mlfc.load(archive)
    outputs = module.run({"x": X})
    scores = np.maximum(X @ WEIGHTS.T, 0)
    chances = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(outputs["scores"], scores, rtol=1e-6)
    np.testing.assert_allclose(outputs["chances"], chances / chances.sum(1, keepdims=True), rtol=1e-5)
    assert list(outputs) == ["scores", "chances"]
    (info,) = module.inputs
    assert (info.name, info.shape, info.dtype, info.scale, info.zero_point) == ("x", (2, 4), "float32", 0.5, 3)


def test_an_archive_carries_what_building_again_takes(factory: Factory, tmp_path: Path) -> None:
    path = mlfc.export_model_library_format(factory, tmp_path / "a.tar", include_source_params=True)
    files = members(path)
    module = from_text(files["./src/tiny.relay"].decode())
    params = load_params(files["./src/tiny.params"])
    again = mlfc.build(module, params=params, module_name="again")
    loaded = mlfc.load(mlfc.export_model_library_format(again, tmp_path / "b.tar"))
    for ours, theirs in zip(loaded.run(X).values(), mlfc.load(path).run(X).values(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_several_modules_share_an_archive(factory: Factory, tmp_path: Path) -> None:
    path = mlfc.export_model_library_format([factory, dense_factory("other")], tmp_path / "both.tar")
    assert validate(path) == []
    assert set(mlfc.inspect(path)["modules"]) == {"tiny", "other"}
    with pytest.raises(OptionError, match=r"expected one module, got 2.*other, tiny"):
        mlfc.load(path)
    np.testing.assert_array_equal(
        mlfc.load(path, module="other").run(X)["scores"], mlfc.load(path, module="tiny").run(X)["scores"]
    )
    with pytest.raises(OptionError, match="unknown module 'third'"):
        mlfc.load(path, module="third")
    with pytest.raises(OptionError, match="two modules have the name"):
        mlfc.export_model_library_format([factory, factory], tmp_path / "twice.tar")


def test_what_would_be_too_large_to_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MAX_TOKENS", 100)
    monkeypatch.setattr(export, "MAX_METADATA", 1_000)
    with pytest.raises(OptionError) as caught:
        mlfc.export_model_library_format(dense_factory(executor="graph"), tmp_path / "a.tar")
    for expected in (
        "executor-config/graph/tiny.graph has [0-9]+ values, more than the 100 allowed",
        "metadata.json has [0-9,]+ bytes, more than the 1,000 allowed",
        "metadata.json has [0-9,]+ values, more than the 100 allowed",
        "Export the modules into several archives",
    ):
        assert re.search(expected, str(caught.value))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part", [slice(None), 1])
def test_parts_of_a_factory_are_no_factory(part: slice | int, factory: Factory, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"expected the result of mlfc.build or .*, got \w+"):
        mlfc.export_model_library_format(tuple(factory)[part], tmp_path / "a.tar")
    assert list(tmp_path.iterdir()) == []


def test_inspect_tells_shapes_memory_and_operators(archive: Path) -> None:
    found = mlfc.inspect(archive)
    module = found["modules"]["tiny"]
    (tensor,) = module["inputs"]
    assert tensor == {"name": "x", "shape": [2, 4], "dtype": "float32", "scale": 0.5, "zero_point": 3, "bytes": 32}
    assert module["memory"]["io_bytes"] == 80
    assert module["memory"]["constants_bytes"] >= WEIGHTS.nbytes
    assert [node for operator in module["operators"] for node in operator["nodes"]] == [
        "layer/dense",
        "layer/relu",
        "soft",
    ]
    assert {file["path"]: file["bytes"] for file in found["files"]} == {
        name.removeprefix("./"): len(data) for name, data in members(archive).items()
    }


@pytest.mark.parametrize("name", ["kws_aot_c", "kws_graph_c", "multi"])
def test_archives_of_tvm_are_described(shared: Path, name: str) -> None:
    path = shared / "fixtures/tvm-0.14" / f"{name}.tar.xz"
    assert validate(path) == []
    module = mlfc.inspect(path)["modules"]["kws"]
    assert [(tensor["name"], tensor["dtype"]) for tensor in module["inputs"]] == [("input_1", "int8")]
    assert module["memory"]["io_bytes"] == 502


def test_an_unwritable_place_is_said_before_the_work(factory: Factory, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        mlfc.export_model_library_format(factory, tmp_path / "no" / "a.tar")
    assert list(tmp_path.iterdir()) == []


def test_code_changed_in_place_is_noticed(archive: Path, tmp_path: Path) -> None:
    source = members(archive)["./codegen/host/src/tiny_lib1.c"]
    changes = {"codegen/host/src/tiny_lib1.c": source[:-1] + b" "}
    hostile = rewritten(archive, changes, tmp_path / "hostile.tar")
    with pytest.raises(ArchiveError, match="SHA-256 differs"):
        mlfc.load(hostile)
    assert validate(hostile) == ["codegen/host/src/tiny_lib1.c: its SHA-256 differs from metadata.json"]
