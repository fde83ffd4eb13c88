"""Records: JSON is read according to their declarations, and to the JSON Schema derived from them."""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import pytest

from mlfc.archive.describe.inspect_library import _module
from mlfc.errors import ArchiveError
from mlfc.support.module_info import DEFINITIONS, ArchiveInfo, ModuleInfo, ModuleInterface
from mlfc.support.records import Record, RecordError, definitions, titled
from tests.unit.test_schema import damaged, own_metadata

DOCUMENT = own_metadata()
OBJECTS = {ModuleInfo: DOCUMENT["modules"]["m"]["mlfc"], ArchiveInfo: DOCUMENT["mlfc"]}


@pytest.mark.parametrize("record", OBJECTS)
def test_what_is_read_is_written_again(record: type[Record]) -> None:
    written = record.from_json(OBJECTS[record]).to_json()
    assert record.from_json(written) == record.from_json(OBJECTS[record])
    assert {key: written[key] for key in OBJECTS[record]} | {"workspace_peers": []} == written | {"workspace_peers": []}


@pytest.mark.parametrize("record", OBJECTS)
def test_the_reader_refuses_what_the_schema_refuses(record: type[Record]) -> None:
    found = definitions(DEFINITIONS)
    validator = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{DEFINITIONS[record]}", "$defs": found})
    generator = random.Random(3)
    bad = 0
    for _ in range(500):
        document = damaged(OBJECTS[record], generator)
        is_good = validator.is_valid(document)
        bad += not is_good
        assert is_read(record, document) is is_good, document
    assert 100 < bad < 500


def is_read(record: type[Record], document: Any) -> bool:
    """Return whether the reader accepts a document."""
    try:
        record.from_json(document)
    except RecordError:
        return False
    return True


def test_keys_of_later_versions_are_ignored() -> None:
    info = ModuleInfo.from_json({**OBJECTS[ModuleInfo], "new": 1})
    assert info == ModuleInfo.from_json(OBJECTS[ModuleInfo])


@pytest.mark.parametrize(
    ("change", "path", "cause"),
    [
        ({"memory": {"workspace_bytes": True}}, ".memory.workspace_bytes", "expected integer"),
        (
            {"inputs": [{"name": "x", "shape": [1, -4], "dtype": "int8"}]},
            ".inputs[0].shape[1]",
            "2147483647), got -4",
        ),
        ({"entry": "a-b"}, ".entry", "got 'a-b'"),
        ({"executor": "jit"}, ".executor", "expected one of aot, graph, vm, got 'jit'"),
        ({"outputs": {}}, ".outputs", "expected a list, got an object"),
    ],
)
def test_a_fault_names_its_place(change: dict[str, Any], path: str, cause: str) -> None:
    with pytest.raises(ArchiveError) as caught:
        ModuleInterface.read({**OBJECTS[ModuleInfo], **change}, "a.so: m", "Export it again")
    assert caught.value.place == f"a.so: m{path}"
    assert cause in caught.value.cause


def test_a_field_with_a_title_is_shown() -> None:
    info = ModuleInfo.from_json({**OBJECTS[ModuleInfo], "parameters": 9})
    assert dict(titled(info)) == {"parameters of the model": 9}
    assert _module(info, None)["facts"] == {"parameters of the model": 9}
    assert dict(titled(ModuleInfo.from_json(OBJECTS[ModuleInfo]))) == {}
