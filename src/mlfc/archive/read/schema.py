"""Checks JSON values against the part of JSON Schema that our schemas use.

The schema files are the one place that says what metadata look like; this reports every fault with its path in the
document. Known words: ``$ref`` to ``$defs`` of this or another of our schemas, ``type``, ``properties``, ``required``,
``additionalProperties``, ``propertyNames``, ``items``, ``minItems``, ``maxItems``, ``maxLength``, ``minimum``,
``maximum``, ``enum``, ``pattern``.

Metadata may hold hundreds of thousands of values, and reading an archive waits for this. So each part of a schema is
turned once into a function that tells in one call whether a value is good, with nothing in it that the part does not
ask for; only a value that is not good is gone through again to say what is wrong.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import mlfc.schema
from mlfc.support.text import shortened

Schema = Mapping[str, Any]
# places below the value that was checked, and what is wrong there
Found = Iterator[tuple[str, str]]
Good = Callable[[Any], bool]

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
    text = (Path(mlfc.schema.__file__).parent / f"{name}.json").read_text(encoding="utf-8")
    schema: Schema = json.loads(text)
    return schema


def faults(schema: Schema, value: object) -> Iterator[str]:
    """Yield ``path: what is wrong`` for every place where `value` breaks `schema`, a whole one of `load_schema`."""
    check = _check_of(schema, schema)
    if not check.is_good(value):
        for path, fault in check.faults(value):
            yield f"${path}: {fault}"


class _Check:
    """A schema, or a part of one, made ready.

    Attributes
    ----------
    is_good : callable
        Whether a value, whatever it is, has no faults.
    """

    def __init__(self, schema: Schema, root: Schema) -> None:
        names = schema.get("type", ())
        self._names: list[str] = [names] if isinstance(names, str) else list(names)
        self._types = {_TYPES[name] for name in self._names} | ({int} if "number" in self._names else set())
        self._enum: list[object] = schema.get("enum", [])
        self._range = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        self._max_length: float = schema.get("maxLength", math.inf)
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
        self._counts = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        self._referred = _referred(schema["$ref"], root) if "$ref" in schema else None
        self.is_good = self._test()

    def _test(self) -> Good:
        """Return the test of a value: of the one type that most parts allow, or of whatever it may be."""
        all_tests: dict[type, Good] = {
            dict: self._object_test(),
            list: self._array_test(),
            str: self._string_test(),
            int: self._number_test(int),
            float: self._number_test(float),
            bool: lambda value: type(value) is bool,
            type(None): lambda value: value is None,
        }
        tests = {kind: test for kind, test in all_tests.items() if not self._types or kind in self._types}
        if len(tests) == 1 and not self._enum and not self._referred:
            return next(iter(tests.values()))
        test_of = tests.get
        enum = {(type(item), item) for item in self._enum}
        referred = self._referred.is_good if self._referred else None

        def is_good(value: Any) -> bool:
            if enum and (isinstance(value, (dict, list)) or (type(value), value) not in enum):
                return False
            return test_of(type(value), _nothing)(value) and (referred is None or referred(value))

        return is_good

    def _number_test(self, kind: type) -> Good:
        least, most = self._range
        return lambda value: type(value) is kind and least <= value <= most

    def _string_test(self) -> Good:
        longest = self._max_length
        if self._pattern is None:
            return lambda value: type(value) is str and len(value) <= longest
        search = self._pattern.search
        return lambda value: type(value) is str and len(value) <= longest and search(value) is not None

    def _object_test(self) -> Good:
        required = frozenset(self._required)
        tests = {key: check.is_good for key, check in self._properties.items()}
        # of keys that the schema does not name
        other: Good = self._others.is_good if self._others else _nothing if self._closed else _anything
        is_good_key = self._keys.is_good if self._keys else None

        def is_good(value: Any) -> bool:
            if type(value) is not dict or not value.keys() >= required:
                return False
            for key, item in value.items():
                if not tests.get(key, other)(item):
                    return False
            return is_good_key is None or all(map(is_good_key, value))

        return is_good

    def _array_test(self) -> Good:
        least, most = self._counts
        is_good_item = self._items.is_good if self._items else _anything
        return lambda value: type(value) is list and least <= len(value) <= most and all(map(is_good_item, value))

    def faults(self, value: object) -> Found:
        """Yield what is wrong with a value, and where."""
        if self._referred:
            yield from self._referred.faults(value)
        kind = type(value)
        if self._types and kind not in self._types:
            yield "", f"expected {' or '.join(self._names)}, found {_shown(value)}"
        elif self._enum and not any(value == item and kind is type(item) for item in self._enum):
            yield "", f"expected {' or '.join(map(_shown, self._enum))}, found {_shown(value)}"
        elif isinstance(value, dict):
            yield from self._object_faults(value)
        elif isinstance(value, list):
            yield from self._array_faults(value)
        elif isinstance(value, str):
            yield from self._string_faults(value)
        elif isinstance(value, (int, float)) and kind is not bool:
            yield from self._number_faults(value)

    def _number_faults(self, value: float) -> Found:
        least, most = self._range
        if value < least:
            yield "", f"{value} is less than {least}"
        elif value > most:
            yield "", f"{_shown(value)} is more than {most}"

    def _string_faults(self, value: str) -> Found:
        if len(value) > self._max_length:
            yield "", f"a string of {len(value)} characters is too long"
        elif self._pattern and not self._pattern.search(value):
            yield "", f"{_shown(value)} does not match {self._pattern_text}"

    def _object_faults(self, value: dict[str, Any]) -> Found:
        for key in self._required:
            if key not in value:
                yield "", f"the key '{key}' is missing"
        for key, item in value.items():
            place = f".{shortened(key)}"
            if self._keys:
                yield from self._keys.faults_below(f"{place} (the key)", key)
            check = self._properties.get(key, self._others)
            if check:
                yield from check.faults_below(place, item)
            elif self._closed:
                yield place, "there is no such key"

    def _array_faults(self, value: list[Any]) -> Found:
        least, most = self._counts
        if not least <= len(value) <= most:
            yield "", f"a list of {len(value)} items is too short or too long"
        if self._items:
            for index, item in enumerate(value):
                yield from self._items.faults_below(f"[{index}]", item)

    def faults_below(self, place: str, value: object) -> Found:
        """Yield what is wrong with a value that lies at a place of what is checked."""
        if not self.is_good(value):
            for path, fault in self.faults(value):
                yield f"{place}{path}", fault


def _anything(_value: object) -> bool:
    return True


def _nothing(_value: object) -> bool:
    return False


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


def _end_of_text(pattern: str) -> str:
    # Python's $ allows a line break behind it, JSON Schema's does not
    return rf"{pattern[:-1]}\Z" if pattern.endswith("$") else pattern


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else shortened(json.dumps(value))
