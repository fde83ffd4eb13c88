"""Checks JSON values against the part of JSON Schema that our schemas use.

The schema files are the one place that says what metadata look like; this reports every fault with its path in the
document. Known words: ``$ref`` to ``$defs`` of this or another of our schemas, ``type``, ``properties``, ``required``,
``additionalProperties``, ``propertyNames``, ``items``, ``minItems``, ``maxItems``, ``maxLength``, ``minimum``,
``maximum``, ``enum``, ``pattern``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import mlforge.schema
from mlforge.support.text import shortened

Schema = Mapping[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


@cache
def load_schema(name: str) -> Schema:
    """Return a schema that comes with the package, by its file's name without the ending, as ``metadata-7``."""
    # importlib.resources would take longer to import than all of this takes
    text = (Path(mlforge.schema.__file__).parent / f"{name}.json").read_text(encoding="utf-8")
    schema: Schema = json.loads(text)
    return schema


def faults(schema: Schema, value: object, path: str = "$", root: Schema | None = None) -> Iterator[str]:
    """Yield ``path: what is wrong`` for every place where `value` breaks `schema`."""
    root = schema if root is None else root
    if "$ref" in schema:
        file, _, name = schema["$ref"].partition("#/$defs/")
        other = load_schema(file.removesuffix(".json")) if file else root
        yield from faults(other["$defs"][name], value, path, other)
    if "type" in schema and not _has_type(schema["type"], value):
        wanted = schema["type"] if isinstance(schema["type"], str) else " or ".join(schema["type"])
        yield f"{path}: expected {wanted}, found {_shown(value)}"
        return
    if "enum" in schema and not any(_equal(value, item) for item in schema["enum"]):
        yield f"{path}: expected {' or '.join(map(_shown, schema['enum']))}, found {_shown(value)}"
    if isinstance(value, dict):
        yield from _object_faults(schema, value, path, root)
    elif isinstance(value, list):
        yield from _array_faults(schema, value, path, root)
    elif isinstance(value, str):
        yield from _string_faults(schema, value, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield f"{path}: {value} is less than {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"{path}: {_shown(value)} is more than {schema['maximum']}"


def _equal(value: object, other: object) -> bool:
    # Python counts True as 1
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _has_type(names: str | list[str], value: object) -> bool:
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in ([names] if isinstance(names, str) else names))


def _object_faults(schema: Schema, value: dict[str, Any], path: str, root: Schema) -> Iterator[str]:
    properties = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{path}: the key '{key}' is missing"
    extra = schema.get("additionalProperties", True)
    for key, item in value.items():
        place = f"{path}.{shortened(key)}"
        if "propertyNames" in schema:
            yield from faults(schema["propertyNames"], key, f"{place} (the key)", root)
        if key in properties:
            yield from faults(properties[key], item, place, root)
        elif extra is False:
            yield f"{place}: there is no such key"
        elif extra is not True:
            yield from faults(extra, item, place, root)


def _array_faults(schema: Schema, value: list[Any], path: str, root: Schema) -> Iterator[str]:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        yield f"{path}: a list of {len(value)} items is too short or too long"
    if "items" in schema:
        for index, item in enumerate(value):
            yield from faults(schema["items"], item, f"{path}[{index}]", root)


def _string_faults(schema: Schema, value: str, path: str) -> Iterator[str]:
    if len(value) > schema.get("maxLength", len(value)):
        yield f"{path}: a string of {len(value)} characters is too long"
    elif "pattern" in schema and not re.search(_end_of_text(schema["pattern"]), value):
        yield f"{path}: {_shown(value)} does not match {schema['pattern']}"


def _end_of_text(pattern: str) -> str:
    # Python's $ allows a line break behind it, JSON Schema's does not
    return rf"{pattern[:-1]}\Z" if pattern.endswith("$") else pattern


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else shortened(json.dumps(value))
