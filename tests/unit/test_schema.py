"""Our reading of JSON Schema agrees with the jsonschema package on good and on damaged metadata."""

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

from mlforge.archive.schema import faults, load_schema

SCHEMA = load_schema("metadata-7")
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
        "operators": [{"function": "f", "nodes": ["a", "b"], "workspace_bytes": 0, "macs": 16}],
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
        "mlforge": details,
    }
    return {
        "version": 7,
        "modules": {"m": module},
        "mlforge": {"version": "1", "files": {"a": {"bytes": 1, "sha256": "0" * 64}}},
    }


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in places(item, (*path, key)))]


def damaged(value: Any, generator: random.Random) -> Any:
    """Return a copy with one value replaced by junk or one key left out."""
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


def test_schema_itself_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_own_metadata_are_good() -> None:
    assert list(faults(SCHEMA, own_metadata())) == []


@pytest.mark.parametrize("name", ["kws_aot_c", "kws_graph_c", "multi"])
def test_metadata_of_tvm_are_good(shared: Path, name: str) -> None:
    with lzma.open(shared / "fixtures/tvm-0.14" / f"{name}.tar.xz") as file, tarfile.open(fileobj=file) as archive:
        document = json.load(archive.extractfile("./metadata.json"))  # type: ignore[arg-type]
    assert list(faults(SCHEMA, document)) == []


def test_faults_are_those_that_jsonschema_finds() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    generator = random.Random(7)
    bad = 0
    for _ in range(1500):
        document = damaged(own_metadata(), generator)
        ours = list(faults(SCHEMA, document))
        assert bool(ours) != validator.is_valid(document), ours
        bad += bool(ours)
    assert 500 < bad < 1500


def test_a_fault_names_its_place() -> None:
    document = own_metadata()
    document["modules"]["m"]["mlforge"]["operators"][0]["macs"] = -4
    assert list(faults(SCHEMA, document)) == ["$.modules.m.mlforge.operators[0].macs: -4 is less than 0"]
