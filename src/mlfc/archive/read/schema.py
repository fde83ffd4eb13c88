"""Validation of JSON values against our schemas, the single definition of metadata and board files.

fastjsonschema, which compiles a schema, accepts or rejects large documents, as reading an archive must be fast;
jsonschema, slower and slow to import, lists the faults one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastjsonschema

import mlfc.schema
from mlfc.support.text import shortened

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

Schema = Mapping[str, Any]


@cache
def load_schema(name: str) -> Schema:
    """Return a schema of the package by its file name without the extension, for example ``metadata-7``."""
    # importing importlib.resources would take longer than this
    text = (Path(mlfc.schema.__file__).parent / f"{name}.json").read_text(encoding="utf-8")
    schema: Schema = json.loads(text)
    return schema


def faults(name: str, value: object) -> Iterator[str]:
    """Yield ``path: what is wrong`` for every place where `value` breaks the schema of this name."""
    if _is_good(name)(value):
        return
    found = False
    try:
        for error in _lister(name)(value):
            found = True
            path = "".join(f"[{key}]" if isinstance(key, int) else f".{shortened(key)}" for key in error.absolute_path)
            yield f"${path}: {_text(error)}"
    except RecursionError:
        yield "$: it is nested too deeply"
    else:
        if not found:  # if the two disagree, the value is rejected
            yield f"$: it does not match the schema {name}"


@cache
def _expanded(name: str) -> Schema:
    expanded: Schema = _expand(load_schema(name), load_schema(name))
    return expanded


def _expand(part: Any, root: Schema) -> Any:
    """Return a schema with references resolved; otherwise they would be followed for every value."""
    if isinstance(part, list):
        return [_expand(item, root) for item in part]
    if isinstance(part, str):
        # other strings with this ending are not patterns
        return _end_of_text(part)
    if not isinstance(part, Mapping):
        return part
    own = {_end_of_text(key): _expand(item, root) for key, item in part.items() if key not in ("$defs", "$ref")}
    if "$ref" not in part:
        return own
    file, _, definition = part["$ref"].partition("#/$defs/")
    other = load_schema(file.removesuffix(".json")) if file else root
    referred = _expand(other["$defs"][definition], other)
    if "properties" in own:
        own["properties"] = {**referred["properties"], **own["properties"]}
    return {**referred, **own}


def _end_of_text(pattern: str) -> str:
    # Python's $ also matches before a trailing line break, JSON Schema's does not
    return pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern


def _compiled(schema: Schema) -> Callable[[object], bool]:
    # this draft alone does not treat 1.0 as an integer
    definition = {**schema, "$schema": "http://json-schema.org/draft-04/schema#"}
    check = fastjsonschema.compile(definition, use_default=False, use_formats=False, detailed_exceptions=False)

    def is_good(value: object) -> bool:
        try:
            check(value)
        except fastjsonschema.JsonSchemaValueException:
            return False
        return True

    return is_good


@cache
def _is_good(name: str) -> Callable[[object], bool]:
    return _compiled(_expanded(name))


@cache
def _lister(name: str) -> Callable[[object], Iterator[ValidationError]]:
    """Return the function that yields the errors of a value against the definition `name`.

    It skips long parts that a compiled check has found valid.
    """
    from jsonschema import Draft4Validator, ValidationError
    from jsonschema.validators import extend

    compiled: dict[int, Callable[[object], bool]] = {}

    def bad_ones(validator: Any, schema: Schema, items: Iterable[tuple[Any, Any]]) -> Iterator[ValidationError]:
        is_good = compiled.get(id(schema)) or compiled.setdefault(id(schema), _compiled(schema))
        for key, item in items:
            if not is_good(item):
                yield from validator.descend(item, schema, path=key)

    def bad_items(validator: Any, schema: Schema, value: Any, _: Schema) -> Iterator[ValidationError]:
        if isinstance(value, list):
            yield from bad_ones(validator, schema, enumerate(value))

    def bad_values(validator: Any, schema: Schema | bool, value: Any, parent: Schema) -> Iterator[ValidationError]:
        if not isinstance(value, dict):
            return
        known, patterns = parent.get("properties", {}), parent.get("patternProperties", {})
        others = [key for key in value if key not in known and not any(re.search(item, key) for item in patterns)]
        if isinstance(schema, Mapping):
            yield from bad_ones(validator, schema, ((key, value[key]) for key in others))
        elif not schema:
            wrong = f"the key does not match {' or '.join(map(_as_written, patterns))}" if patterns else "unknown key"
            yield from (ValidationError(wrong, path=[key]) for key in others)

    rules = {"items": bad_items, "additionalProperties": bad_values}
    lister: Callable[[object], Iterator[ValidationError]] = extend(Draft4Validator, rules)(_expanded(name)).iter_errors
    return lister


def _text(error: ValidationError) -> str:
    """Return the description of a fault."""
    rule, limit, value = error.validator, error.validator_value, error.instance
    if rule == "required":
        # each key is reported separately, with the list of all
        return f"the key {error.message.removesuffix(' is a required property')} is missing"
    if rule in ("type", "enum"):
        allowed = [limit] if isinstance(limit, str) else limit if rule == "type" else map(_shown, limit)
        return f"expected {' or '.join(allowed)}, got {_shown(value)}"
    if rule == "pattern":
        return f"{_shown(value)} does not match {_as_written(limit)}"
    if rule in ("minimum", "maximum"):
        return f"{_shown(value)} is {'less' if rule == 'minimum' else 'more'} than {limit}"
    if rule == "maxLength":
        return f"a string of {len(value)} characters is too long"
    if rule in ("minItems", "maxItems"):
        return f"a list of {len(value)} items is too {'short' if rule == 'minItems' else 'long'}"
    if rule == "anyOf":
        # report the fault of the alternative that has the value's type
        found = [item for item in error.context or () if item.validator != "type"]
        if found:
            return _text(found[0])
        types = [str(item.validator_value) for item in error.context or ()]
        return f"expected {' or '.join(types)}, got {_shown(value)}"
    return shortened(str(error.message))


def _as_written(pattern: str) -> str:
    return pattern.removesuffix(r"\Z") + "$" if pattern.endswith(r"\Z") else pattern


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else shortened(json.dumps(value))
