"""Valid archives of every kind have no faults; all faults are listed, each with its place and check."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

import mlfc
from mlfc.archive.read import layout, opening, params_forms
from mlfc.archive.read import opening as read
from mlfc.archive.validate import parsed_files
from mlfc.archive.validate.validate import MAX_FAULTS, find_faults, validate
from mlfc.relay import text_source
from mlfc.runtime.executors import graph_json
from mlfc.support import json_text, params, tar
from tests.conftest import need
from tests.hostile.corpus import encoded, packed, with_manifest
from tests.hostile.good_archives import compiled_files, compiled_metadata, graph_files, graph_metadata
from tests.onnx_models import model as onnx_model

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"


def factory(name: str, **options: Any) -> Any:
    module, params = mlfc.import_model(DIGITS / "digits_int8.tflite")
    return mlfc.build(module, params=params, module_name=name, **options)


GOOD: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "aot": ([{}], {}),
    "external_workspace": ([{"external_workspace": True}], {}),
    "graph": ([{"executor": "graph"}], {}),
    "two_graphs": ([{"executor": "graph"}, {"executor": "graph"}], {}),
    "mixed": ([{"executor": "graph"}, {}, {}], {}),
    "shared": ([{}, {}], {"share_workspace": True, "share_weights": True}),
    "mixed_and_shared": ([{"executor": "graph"}, {}, {}], {"share_workspace": True, "share_weights": True}),
    "without_source": ([{}], {"source_params": False, "runtime": False}),
    "version_5": ([{"executor": "graph"}], {"format_version": 5}),
    "version_6": ([{}], {"format_version": 6}),
    "proposal": ([{"executor": "graph"}], {"rfc": True, "params_forms": ("params", "json", "bson")}),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_mlfc_writes_has_no_fault(name: str, tmp_path: Path) -> None:
    builds, options = GOOD[name]
    factories = [factory(f"Model{index}", **build) for index, build in enumerate(builds)]
    path = mlfc.export_model_library_format(factories, tmp_path / "a.tar", **options)
    assert validate(path) == []


def test_functions_may_be_in_objects(tmp_path: Path) -> None:
    files = compiled_files()
    for path, data in compiled_files().items():
        (tmp_path / Path(path).name).write_bytes(data)
        if path.startswith("codegen/host/src/"):
            name = Path(path).stem
            command = [need("gcc", "gcc"), "-w", "-c", f"{name}.c", "-o", f"{name}.o"]
            subprocess.run(command, cwd=tmp_path, check=True)
            files[f"codegen/host/lib/{name}.o"] = (tmp_path / f"{name}.o").read_bytes()
            del files[path]
    good = tmp_path / "good.tar"
    document = compiled_metadata()
    tree = document["modules"]["digits"]["mlfc"]["module_tree"]
    tree[0]["files"] = [path for path in files if path.startswith("codegen/host/")]
    good.write_bytes(packed(with_manifest(files, document)))
    assert validate(good) == []
    del files["codegen/host/lib/digits_lib0.o"]
    tree[0]["files"].remove("codegen/host/lib/digits_lib0.o")
    good.write_bytes(packed(with_manifest(files, document)))
    assert validate(good) == ["metadata.json: digits: the function tvmgen_digits_run is not defined in the code"]


def test_all_faults_are_listed_with_check_and_place(tmp_path: Path) -> None:
    document = graph_metadata()
    document["modules"]["hand"]["memory"]["functions"]["operator_functions"][0]["function_name"] = "lost"
    document["modules"]["hand"]["memory"]["sids"].append({"storage_id": 77, "size_bytes": 1})
    files = graph_files(metadata=document, params=b"")
    files["parameters/other.params"] = b""
    del files["src/hand.relay"]
    path = tmp_path / "a.tar"
    path.write_bytes(packed(files))
    faults = find_faults(path)
    assert {(fault.check, fault.place) for fault in faults} == {
        ("layout", "parameters/other.params"),
        ("layout", "src/hand.relay"),
        ("code", "metadata.json: hand"),
        ("graph", "executor-config/graph/hand.graph"),
        ("parameters", "parameters/hand.params, byte 0"),
    }
    assert [str(fault) for fault in faults] == validate(path)


def test_as_many_faults_as_anyone_reads(tmp_path: Path) -> None:
    document = graph_metadata()
    functions = [{"function_name": f"lost{index}", "workspace": []} for index in range(2 * MAX_FAULTS)]
    document["modules"]["hand"]["memory"]["functions"]["operator_functions"] = functions
    path = tmp_path / "a.tar"
    path.write_bytes(packed(graph_files(metadata=document)))
    assert len(validate(path)) == MAX_FAULTS


def test_an_archive_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.xz"
    with tarfile.open(path, "w:xz") as out:
        for name, data in {**graph_files(), "metadata.json": encoded(graph_metadata())}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    assert validate(path) == []


def test_the_page_on_trust_states_the_limits() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "explanation" / "trust.md").read_text(encoding="utf-8")
    for limit, text in (
        (tar.MAX_BYTES, "64 GiB"),
        (tar.MAX_EXPANDED, "4 GiB"),
        (tar.MIN_EXPANDED, "64 MiB"),
        (tar.MAX_EXPANSION, "100 times"),
        (tar.MAX_MEMBERS, "8,000"),
        (read.MAX_METADATA, "16 MiB"),
        (json_text.MAX_TOKENS, "250,000 values"),
        (opening.MAX_MODULES, "1,000 modules"),
        (layout.MAX_SHARED, "100,000"),
        (graph_json.MAX_TEXT, "8 MiB"),
        (params_forms.MAX_JSON, "64 MiB"),
        (params.MAX_TENSORS, "100,000 tensors"),
        (parsed_files.MAX_TOKENS, "500,000 words"),
        (text_source.MAX_TEXT, "16 MiB"),
        (text_source.MAX_CODE, "2,097,152 characters"),
        (text_source.MAX_TOKENS, "60,000 words"),
        (text_source.MAX_NESTING, "64 nested"),
        (MAX_FAULTS, "1,000"),
    ):
        number, _, unit = text.partition(" ")
        assert limit == int(number.replace(",", "")) * {"GiB": 1 << 30, "MiB": 1 << 20}.get(unit, 1)
        assert text in page


@pytest.mark.parametrize("executor", ["aot", "graph"])
@pytest.mark.parametrize(
    "mark",
    ["\n", "\r", "\x1b[31m", "*/", "/*", "??/", "\\", "\\\n", "\u202e", '"', "$(x)`x`", "\x85", "x" * 3000],
)
def test_archives_with_any_names_are_valid(mark: str, executor: str, tmp_path: Path) -> None:
    node = helper.make_node("Add", [f"a{mark}b", f"a{mark}c"], [f"o{mark}"], name=f"n{mark}")
    data = onnx_model([node], {f"a{mark}b": (2, 3), f"a{mark}c": (2, 3)}, [f"o{mark}"]).SerializeToString()
    module, params = mlfc.import_model(data)
    factory = mlfc.build(module, params=params, executor=executor)
    path = mlfc.export_model_library_format(factory, tmp_path / "m.tar")
    assert validate(path) == []
