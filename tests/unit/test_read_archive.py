"""Recognition of the kinds of archives, and rejected metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlfc.archive.read.layout import VERSION, files_of_modules, find_metadata, layout_of, moved
from mlfc.archive.read.opening import open_archive
from mlfc.errors import ArchiveError
from mlfc.support.json_text import MAX_TOKENS, parse_json
from tests.interop.archive_versions import operator_archive, write_as_tvm

PROPOSED: dict[str, Any] = {
    "version": 1,
    "model_name": "m",
    "export_datetime_utc": "2021-02-12 09:00:00Z",
    "memory": [{"storage_id": 0, "size_bytes": 4, "input_binding": "x"}],
    "target": "c -keys=cpu ",
    "runtimes": ["graph"],
}
FLAT = {
    "version": 5,
    "model_name": "m",
    "export_datetime": "2021-07-20 17:00:00Z",
    "executors": ["graph"],
    "style": "full-model",
    "target": {"1": "c"},
    "memory": {"sids": [], "functions": {"main": [], "operator_functions": []}},
}


def opened(path: Path, **files: Any) -> Any:
    data = {name: json.dumps(document).encode() for name, document in files.items()}
    with open_archive(write_as_tvm(data, path / "a.tar")) as archive:
        return archive.record


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["metadata.json"], ("metadata.json", "tvm")),
        (["metadata-1.json"], ("metadata-1.json", "rfc")),
        (["metadata-1.json", "metadata-2.json"], ("metadata-2.json", "rfc")),
        (["metadata-1.json", "metadata-8.json"], ("metadata-1.json", "rfc")),
        (["metadata-8.json", "metadata-9.json"], ("metadata-8.json", "rfc")),
        (["metadata-1.json", "metadata.json"], ("metadata.json", "tvm")),
        (["metadata-01.json", "metadata-x.json", "src/metadata.json"], None),
    ],
)
def test_metadata_are_found_and_tell_the_form(paths: list[str], found: tuple[str, str] | None) -> None:
    assert find_metadata(paths) == found
    assert find_metadata(paths[::-1]) == found


def test_the_proposal_s_own_example_reads(tmp_path: Path) -> None:
    record = opened(tmp_path, **{"metadata-1.json": PROPOSED})
    module = record.modules["m"]
    assert (module.executor, module.targets, module.export_datetime) == (
        "graph",
        ("c -keys=cpu",),
        "2021-02-12 09:00:00Z",
    )
    assert [(item.storage_id, item.nbytes, item.input_binding) for item in module.storages] == [(0, 4, "x")]


def test_the_proposal_left_room_for_memory_as_an_object(tmp_path: Path) -> None:
    record = opened(tmp_path, **{"metadata-2.json": {**PROPOSED, "version": 2, "memory": {}}})
    assert (record.version, record.modules["m"].storages) == (2, None)


def test_targets_by_device_come_in_the_order_of_the_devices(tmp_path: Path) -> None:
    target = {"12": "ext_dev", "1": "c ", "4": "opencl"}
    record = opened(tmp_path, **{"metadata.json": {**FLAT, "target": target}})
    assert record.modules["m"].targets == ("c", "opencl", "ext_dev")


def test_keys_that_nobody_knows_are_skipped(tmp_path: Path) -> None:
    assert opened(tmp_path, **{"metadata.json": {**FLAT, "contexts": [1], "memory_of_gold": 3}}).version == 5


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no_metadata": ({"other.json": FLAT}, "has no metadata.json"),
    "a_version_to_come": ({"metadata.json": {**FLAT, "version": 8}}, "this is version 8"),
    "a_version_before_all": ({"metadata.json": {**FLAT, "version": 0}}, "this is version 0"),
    "an_absurd_version": ({"metadata.json": {**FLAT, "version": 10**100}}, "this is version beyond all"),
    "a_version_that_is_true": ({"metadata.json": {**FLAT, "version": True}}, "the format version is missing"),
    "a_version_that_is_a_fraction": ({"metadata.json": {**FLAT, "version": 5.0}}, "the format version is missing"),
    "no_version": ({"metadata.json": {}}, "the format version is missing"),
    "no_object": ({"metadata.json": []}, "must hold a JSON object"),
    "a_number_that_the_name_contradicts": ({"metadata-2.json": PROPOSED}, "not the one in the file's name"),
    "operator_style_before_its_time": ({"metadata.json": {**FLAT, "version": 3, "style": "operator"}}, "no operator"),
    "a_style_that_is_none": ({"metadata.json": {**FLAT, "style": "half-model"}}, "style: expected"),
    "a_name_that_is_a_path": ({"metadata.json": {**FLAT, "model_name": "../m"}}, "does not match"),
    "a_device_that_is_no_number": ({"metadata.json": {**FLAT, "target": {"cpu": "c"}}}, "does not match"),
    "a_time_that_never_was": (
        {"metadata.json": {**FLAT, "export_datetime": "2021-02-30 00:00:00Z"}},
        "2021-02-30 00:00:00Z is not a time",
    ),
    "a_negative_storage": (
        {"metadata-1.json": {**PROPOSED, "memory": [{"storage_id": -1, "size_bytes": 4}]}},
        "storage_id: -1 is less than 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_metadata_are_refused(tmp_path: Path, name: str) -> None:
    files, message = REFUSED[name]
    with pytest.raises(ArchiveError, match=message) as caught:
        opened(tmp_path, **files)
    assert str(tmp_path / "a.tar") in str(caught.value)


def test_sizes_of_operator_style_must_fit_shape_and_dtype(tmp_path: Path) -> None:
    path = operator_archive(7, tmp_path / "a.tar")
    with open_archive(path) as archive:
        document = json.loads(json.dumps(archive.document))
    document["memory"]["add"][1]["size_bytes"] = 7
    with pytest.raises(ArchiveError, match=r"add\[1\]\.size_bytes: 7, but shape and dtype give 6"):
        opened(tmp_path, **{"metadata.json": document})


BAD_JSON = {
    "empty": (b"", "not JSON"),
    "utf16": ('{"a": 1}'.encode("utf-16"), "not JSON"),
    "a_byte_order_mark": (b"\xef\xbb\xbf{}", "not JSON"),
    "half_a_character": (rb'{"a": "\ud800"}', "not JSON"),
    "halves_in_the_wrong_order": (rb'"\udc00\ud800"', "not JSON"),
    "nan": (b"[NaN]", "NaN is not a JSON number"),
    "infinity": (b"[-Infinity]", "not a JSON number"),
    "a_number_beyond_all": (b"[1e999]", "1e999 is too large"),
    "a_key_twice": (b'{"a": 1, "a": 2}', "a key twice"),
    "too_deep": (b"[" * 100_000, "nested too deeply"),
    "too_many_values": (b"[" + b"1," * MAX_TOKENS + b"1]", "too many values"),
    "bytes_behind": (b"{} {}", "not JSON"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_what_is_not_strict_json_is_refused(name: str) -> None:
    data, message = BAD_JSON[name]
    with pytest.raises(ArchiveError, match=message):
        parse_json(data, "x")


def test_strict_json_is_taken() -> None:
    assert parse_json(rb'{"a": [1, -2.5e3, null, true, "\ud83d\ude00"]}', "x") == {"a": [1, -2500.0, None, True, "😀"]}


@pytest.mark.parametrize("version", range(1, VERSION + 1))
@pytest.mark.parametrize("form", ["tvm", "rfc"])
def test_a_file_that_moves_comes_back(version: int, form: str) -> None:
    old, new = layout_of(version, form), layout_of(VERSION)
    paths = [
        "codegen/host/src/m_lib0.c",
        "codegen/host/src/m_lib12.S.bin",
        "codegen/host/lib/m_lib0.o",
        "codegen/host/include/tvmgen_m.h",
        "executor-config/graph/m.graph",
        "parameters/m.params",
        "runtime/include/a.h",
        "src/m.relay",
        "src/m.params",
        "notes.txt",
    ]
    there = [moved(path, "m", new, old) for path in paths]
    assert len(set(there)) == len(paths)
    assert [moved(path, "m", old, new) for path in there] == paths


def test_code_belongs_to_the_module_whose_name_it_bears() -> None:
    paths = [
        "codegen/host/src/a_lib0.c",
        "codegen/host/src/a_lib0_lib0.c",
        "codegen/host/src/a.b_lib1.c",
        "codegen/host/src/mlfc_shared_lib0.c",
        "codegen/host/include/tvmgen_a.h",
        "codegen/host/include/tvmgen_a_lib0.h",
        "codegen/opencl/a_mod0.bin",
        "codegen/opencl/a_lib0_mod0.bin",
    ]
    modules = ["a", "a_lib0", "a.b"]
    owned = files_of_modules(modules, paths, layout_of(VERSION))
    shared = "codegen/host/src/mlfc_shared_lib0.c"
    assert owned["a"].sources == ("codegen/host/src/a_lib0.c", shared)
    assert owned["a_lib0"].sources == ("codegen/host/src/a_lib0_lib0.c", shared)
    assert owned["a.b"].sources == ("codegen/host/src/a.b_lib1.c", shared)
    assert owned["a"].headers == ("codegen/host/include/tvmgen_a.h",)
    assert owned["a_lib0"].devices == ("codegen/opencl/a_lib0_mod0.bin",)
    assert owned["a.b"].devices == ()
