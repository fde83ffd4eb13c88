"""Checks JSON values against the part of JSON Schema that our schemas use.

The schema files are the one place that says what metadata look like; this reports every fault with its path in the
document. Known words: ``$ref`` to ``$defs`` of this or another of our schemas, ``type``, ``properties``, ``required``,
``additionalProperties``, ``propertyNames``, ``items``, ``minItems``, ``maxItems``, ``maxLength``, ``minimum``,
``maximum``, ``enum``, ``pattern``.

Metadata may hold a million values, and reading an archive waits for this. So a schema is turned into checks once, and a
check of a good value makes neither text nor iterator: it returns an empty tuple.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import mlforge.schema
from mlforge.support.text import shortened

Schema = Mapping[str, Any]
# places below the value that was checked, and what is wrong there
Found = Iterable[tuple[str, str]]

_TYPES: dict[str, type] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": float,
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


@cache
def load_schema(name: str) -> Schema:
    """Return a schema that comes with the package, by its file's name without the ending, as ``metadata-7``."""
    # importlib.resources would take longer to import than all of this takes
    text = (Path(mlforge.schema.__file__).parent / f"{name}.json").read_text(encoding="utf-8")
    schema: Schema = json.loads(text)
    return schema


def faults(schema: Schema, value: object) -> Iterator[str]:
    """Yield ``path: what is wrong`` for every place where `value` breaks `schema`, a whole one of `load_schema`."""
    for path, fault in _check_of(schema, schema).check(value):
        yield f"${path}: {fault}"


class _Check:
    """A schema, or a part of one, made ready."""

    def __init__(self, schema: Schema, root: Schema) -> None:
        names = schema.get("type", ())
        self._names: list[str] = [names] if isinstance(names, str) else list(names)
        self._types = {_TYPES[name] for name in self._names} | ({int} if "number" in self._names else set())
        self._enum: list[object] = schema.get("enum", [])
        self._range = schema.get("minimum", -float("inf")), schema.get("maximum", float("inf"))
        self._max_length: float = schema.get("maxLength", float("inf"))
        pattern = schema.get("pattern")
        self._pattern = re.compile(_end_of_text(pattern)) if pattern else None
        self._pattern_text = pattern
        self._required: list[str] = schema.get("required", [])
        self._properties = {key: _check_of(part, root) for key, part in schema.get("properties", {}).items()}
        extra = schema.get("additionalProperties", True)
        self._others = _check_of(extra, root) if isinstance(extra, Mapping) else None
        self._closed = extra is False
        self._keys = _check_of(schema["propertyNames"], root) if "propertyNames" in schema else None
        self._items = _check_of(schema["items"], root) if "items" in schema else None
        self._counts = schema.get("minItems", 0), schema.get("maxItems", float("inf"))
        self._referred = _referred(schema["$ref"], root) if "$ref" in schema else None

    def check(self, value: object) -> Found:
        """Return what is wrong; an empty tuple for nothing."""
        found: Found = self._referred.check(value) if self._referred else ()
        own = self._own_faults(value)
        if own:
            return chain(found, own) if found else own
        return found

    def _own_faults(self, value: object) -> Found:
        kind = type(value)
        if self._types and kind not in self._types:
            return (("", f"expected {' or '.join(self._names)}, found {_shown(value)}"),)
        if self._enum and not any(value == item and kind is type(item) for item in self._enum):
            return (("", f"expected {' or '.join(map(_shown, self._enum))}, found {_shown(value)}"),)
        if isinstance(value, dict):
            return self._object_faults(value) if self._has_object_faults(value) else ()
        if isinstance(value, list):
            return self._array_faults(value) if self._has_array_faults(value) else ()
        if isinstance(value, str):
            return self._string_faults(value)
        return self._number_faults(value) if kind in (int, float) else ()

    def _number_faults(self, value: Any) -> Found:
        least, most = self._range
        if least <= value <= most:
            return ()
        return (("", f"{value} is less than {least}" if value < least else f"{_shown(value)} is more than {most}"),)

    def _string_faults(self, value: str) -> Found:
        if len(value) > self._max_length:
            return (("", f"a string of {len(value)} characters is too long"),)
        if self._pattern and not self._pattern.search(value):
            return (("", f"{_shown(value)} does not match {self._pattern_text}"),)
        return ()

    def _has_object_faults(self, value: dict[str, Any]) -> bool:
        if any(key not in value for key in self._required):
            return True
        properties, others = self._properties, self._others
        for key, item in value.items():
            check = properties.get(key, others)
            if check.check(item) if check else self._closed:
                return True
            if self._keys and self._keys.check(key):
                return True
        return False

    def _object_faults(self, value: dict[str, Any]) -> Iterator[tuple[str, str]]:
        for key in self._required:
            if key not in value:
                yield "", f"the key '{key}' is missing"
        for key, item in value.items():
            place = f".{shortened(key)}"
            if self._keys:
                yield from _below(f"{place} (the key)", self._keys.check(key))
            check = self._properties.get(key, self._others)
            if check:
                yield from _below(place, check.check(item))
            elif self._closed:
                yield place, "there is no such key"

    def _has_array_faults(self, value: list[Any]) -> bool:
        least, most = self._counts
        if not least <= len(value) <= most:
            return True
        return self._items is not None and any(map(self._items.check, value))

    def _array_faults(self, value: list[Any]) -> Iterator[tuple[str, str]]:
        least, most = self._counts
        if not least <= len(value) <= most:
            yield "", f"a list of {len(value)} items is too short or too long"
        if self._items:
            for index, item in enumerate(value):
                yield from _below(f"[{index}]", self._items.check(item))


_CHECKS: dict[tuple[int, int], tuple[Schema, Schema, _Check]] = {}


def _check_of(schema: Schema, root: Schema) -> _Check:
    """Return the check for a part of a schema, made once; what is kept with it keeps the identities its own."""
    if schema.keys() <= {"$ref", "description"} and "$ref" in schema:
        return _referred(schema["$ref"], root)
    key = id(schema), id(root)
    if key not in _CHECKS:
        _CHECKS[key] = schema, root, _Check(schema, root)
    return _CHECKS[key][2]


def _referred(reference: str, root: Schema) -> _Check:
    file, _, name = reference.partition("#/$defs/")
    other = load_schema(file.removesuffix(".json")) if file else root
    return _check_of(other["$defs"][name], other)


def _below(place: str, found: Found) -> Iterator[tuple[str, str]]:
    return ((f"{place}{path}", fault) for path, fault in found)


def _end_of_text(pattern: str) -> str:
    # Python's $ allows a line break behind it, JSON Schema's does not
    return rf"{pattern[:-1]}\Z" if pattern.endswith("$") else pattern


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else shortened(json.dumps(value))
