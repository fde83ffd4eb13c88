"""Our JSON Schema validator agrees with the jsonschema package on valid and on damaged metadata."""

from __future__ import annotations

import copy
import json
import lzma
import random
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import referencing.jsonschema

from mlfc.archive.read.schema import faults, load_schema

JUNK = (None, True, -1, 0, 2**60, 1.5, "", "x" * 70_000, [], {}, [1], {"a": 1}, "int8", "aot")


def own_metadata() -> dict[str, Any]:
    tensor = {"name": "x", "shape": [1, 4], "dtype": "int8", "scale": 0.5, "zero_point": -3}
    sizes = {"workspace_bytes": 64, "workspace_lower_bound_bytes": 60, "constants_bytes": 9, "io_bytes": 8}
    main = {
        "device": 1,
        "workspace_size_bytes": 64,
        "constants_size_bytes": 9,
        "io_size_bytes": 8,
        "inputs": {"x": {"dtype": "int8", "size": 4}},
        "outputs": {"y": {"dtype": "int8", "size": 4}},
    }
    details = {
        "version": "1",
        "entry": "tvmgen_m_run",
        "numerics": "litert",
        "optimize": "speed",
        "external_workspace": False,
        "inputs": [tensor],
        "outputs": [{**tensor, "name": "y", "scale": None}],
        "memory": sizes,
        "operators": [
            {"function": "f", "nodes": ["a", "b"], "workspace_bytes": 0, "macs": 16, "bytes": 24, "live_bytes": 60}
        ],
        "executor": "aot",
        "plan": [{"name": "t", "bytes": 60, "offset": 0, "first": 0, "last": 1, "reuses": None}],
        "constants": [{"name": "w", "bytes": 9, "dtype": "int8", "shape": [3, 3], "sha256": "1" * 64, "source": "n"}],
        "module_tree": [{"type_key": "c", "files": ["a"], "parent": None}],
        "build": {
            "target": "c",
            "executor": "aot",
            "optimize": "speed",
            "numerics": "litert",
            "external_workspace": False,
            "toolchain": {"compiler": "cc 1"},
            "test_vectors": 1,
            "seed": 0,
        },
        "peak": {"function": "f", "nodes": [], "live_bytes": 60, "tensors": [{"name": "t", "bytes": 60}]},
        "source": {"format": "tflite"},
    }
    module = {
        "model_name": "m",
        "export_datetime": "1970-01-01 00:00:00Z",
        "executors": ["aot"],
        "style": "full-model",
        "target": ["c"],
        "memory": {
            "functions": {
                "main": [main],
                "operator_functions": [{"function_name": "f", "workspace": [{"device": 1, "workspace_size_bytes": 0}]}],
            }
        },
        "mlfc": details,
    }
    return {
        "version": 7,
        "modules": {"m": module},
        "mlfc": {
            "version": "1",
            "files": {"a": {"bytes": 1, "sha256": "0" * 64}},
            "shared": {"workspace_bytes": 64, "workspace_modules": ["m"], "constants_bytes": 0, "functions": ["f"]},
        },
    }


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every nested value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in places(item, (*path, key)))]


def damaged(value: Any, generator: random.Random) -> Any:
    """Return a copy with one value replaced by junk or one key removed."""
    value = copy.deepcopy(value)
    path = generator.choice(places(value)[1:])
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    if generator.random() < 0.3:
        del holder[path[-1]]
    else:
        holder[path[-1]] = generator.choice(JUNK)
    return value


def flat_metadata(version: int, **changes: Any) -> dict[str, Any]:
    """Return the metadata of a one-module archive of a version before 7; keys with value None are omitted."""
    module = own_metadata()["modules"]["m"]
    module["mlfc"]["archive"] = own_metadata()["mlfc"]
    module["memory"]["sids"] = [{"storage_id": 0, "size_bytes": 4, "input_binding": "x"}]
    document = {**module, "version": version, **changes}
    return {key: value for key, value in document.items() if value is not None}


BY_DEVICE = {"1": "c -keys=cpu "}
OPERATOR = {"f": [{"size_bytes": 8, "shape": [2], "dtype": "float32", "input_binding": None}]}
OLD = {"executors": None, "runtimes": ["graph"], "target": BY_DEVICE, "mlfc": None}
GOOD = {
    "metadata-1": flat_metadata(1, **OLD, style=None, memory=[{"storage_id": 0, "size_bytes": 4}]),
    "metadata-2": flat_metadata(2, **OLD, style=None),
    "metadata-3": flat_metadata(3, **OLD, style=None),
    "metadata-4": flat_metadata(4, **OLD),
    "metadata-5": flat_metadata(5, target=BY_DEVICE),
    "metadata-6": flat_metadata(6, external_dependencies=[{"url": "./runtime"}]),
    "metadata-7": own_metadata(),
    "metadata-operator": flat_metadata(6, style="operator", executors=[], memory=OPERATOR, mlfc=None),
    "metadata-rfc": flat_metadata(
        1, target="c", executors=None, runtimes=["graph"], export_datetime_utc="2021-02-12 00:00:00Z", memory=[]
    ),
}
REGISTRY = referencing.Registry().with_resources(
    (f"{name}.json", referencing.jsonschema.DRAFT202012.create_resource(load_schema(name))) for name in GOOD
)


@pytest.mark.parametrize("name", GOOD)
def test_a_schema_is_valid_itself(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema(name))


@pytest.mark.parametrize("name", GOOD)
def test_metadata_of_its_version_are_good(name: str) -> None:
    assert list(faults(name, GOOD[name])) == []


@pytest.mark.parametrize("name", ["kws_aot_c", "kws_graph_c", "multi"])
def test_metadata_of_tvm_are_good(shared: Path, name: str) -> None:
    with lzma.open(shared / "fixtures/tvm-0.14" / f"{name}.tar.xz") as file, tarfile.open(fileobj=file) as archive:
        document = json.load(archive.extractfile("./metadata.json"))  # type: ignore[arg-type]
    assert list(faults("metadata-7", document)) == []


@pytest.mark.parametrize("name", GOOD)
def test_faults_are_those_that_jsonschema_finds(name: str) -> None:
    schema = load_schema(name)
    validator = jsonschema.Draft202012Validator(schema, registry=REGISTRY)
    generator = random.Random(7)
    bad = 0
    for _ in range(100):
        document = damaged(GOOD[name], generator)
        ours = list(faults(name, document))
        assert bool(ours) != validator.is_valid(document), ours
        bad += bool(ours)
    assert 30 < bad < 100


@pytest.mark.parametrize("text", ["2020-01-01 00:00:00Z\n", "2020-01-01 00:00:00", "1"])
def test_a_pattern_ends_with_the_text(text: str) -> None:
    document = own_metadata()
    document["modules"]["m"]["export_datetime"] = text
    (fault,) = faults("metadata-7", document)
    assert "does not match" in fault


def test_true_is_not_one() -> None:
    (fault,) = faults("metadata-1", GOOD["metadata-1"] | {"version": True})
    assert fault == "$.version: expected 1, got true"


def test_a_fault_names_its_place() -> None:
    document = own_metadata()
    document["modules"]["m"]["mlfc"]["operators"][0]["macs"] = -4
    assert list(faults("metadata-7", document)) == ["$.modules.m.mlfc.operators[0].macs: -4 is less than 0"]


def test_a_fraction_is_no_integer() -> None:
    document = own_metadata()
    document["modules"]["m"]["mlfc"]["operators"][0]["macs"] = 16.0
    (fault,) = faults("metadata-7", document)
    assert fault == "$.modules.m.mlfc.operators[0].macs: expected integer, got 16.0"


def test_every_fault_is_listed_in_order() -> None:
    document = own_metadata()
    document["modules"] = {f"m {index}": {} for index in range(20)}
    del document["version"]
    document["mlfc"]["files"] = {f"f{index}": {"bytes": index - 2, "sha256": "0" * 64} for index in range(4)}
    assert list(faults("metadata-7", document)) == [
        "$: the key 'version' is missing",
        *(f"$.modules.m {index}: the key does not match ^[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}$" for index in range(20)),
        "$.mlfc.files.f0.bytes: -2 is less than 0",
        "$.mlfc.files.f1.bytes: -1 is less than 0",
    ]
