"""JSON objects as frozen dataclasses: one declaration defines reader, writer, JSON Schema and table rows.

Types are ``int``, ``str``, ``bool``, ``float``, ``tuple``, ``Mapping``, a `Record`, any of these ``| None``, and
`Annotated` with `Limits` and, for fields, `Says`. Unknown keys are ignored: later versions may add some.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from mlfc.errors import ArchiveError
from mlfc.support.text import shortened

Reader: TypeAlias = Callable[[Any], Any]
Schema: TypeAlias = dict[str, Any]
R = TypeVar("R", bound="Record")
F = TypeVar("F", bound=Callable[..., Any])

_JSON_NAMES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_WORDS = {"max_length": "maxLength", "min_items": "minItems", "max_items": "maxItems"}
# JSON keys of fields whose names would shadow Python's, or were improved after the format was fixed
_KEYS = {"nbytes": "bytes", "tiling": "stripes", "distance": "lead"}


@dataclass(frozen=True)
class Limits:
    """JSON Schema constraints on a value, in addition to its type; `name` is the definition's name for references."""

    name: str = ""
    minimum: int | None = None
    maximum: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    min_items: int | None = None
    max_items: int | None = None
    enum: tuple[str, ...] | None = None

    def words(self) -> Schema:
        """Return the constraints as JSON Schema keywords."""
        values = {_WORDS.get(entry.name, entry.name): getattr(self, entry.name) for entry in fields(self)[1:]}
        found = {word: value for word, value in values.items() if value is not None}
        return {word: list(value) if word == "enum" else value for word, value in found.items()}


@dataclass(frozen=True)
class Says:
    """Description of a field, in Markdown, for the documentation and the schema."""

    says: str = ""  # what the value is
    why: str = ""  # the purpose of the field
    omitted: bool = False  # whether the key is omitted from JSON if the value is the default
    title: str = ""  # `mlfc inspect` shows fields with a title


def _once(function: F) -> F:
    return cache(function)  # type: ignore[return-value]  # mypy does not accept that classes are hashable


class RecordError(ValueError):
    """A JSON value that does not match a record's declaration, with the `cause` and the `path` of the value."""

    def __init__(self, cause: str, path: str = "") -> None:
        super().__init__(cause)
        self.cause, self.path = cause, path

    def __str__(self) -> str:
        return f"{self.path}: {self.cause}"


class Record:
    """Base class of frozen dataclasses for JSON objects."""

    @classmethod
    def from_json(cls: type[R], value: object) -> R:
        """Return the record of a JSON object; raise RecordError if it is not one."""
        record: R = _reader(cls)(value)
        return record

    @classmethod
    def read(cls: type[R], value: object, place: str, next_step: str) -> R:
        """Return the record of a JSON object; raise ArchiveError, naming `place`, if it is not one."""
        try:
            return cls.from_json(value)
        except RecordError as fault:
            raise ArchiveError(fault.cause, place=f"{place}{fault.path}", next_step=next_step) from None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, with keys in field order."""
        values = ((entry, getattr(self, entry.name)) for entry in _items(type(self)))
        return {
            entry.key: _plain(value) for entry, value in values if not (entry.says.omitted and value == entry.default)
        }


@dataclass(frozen=True)
class _RecordField:
    """A field of a record: Python name, JSON key, type without `Says`, and default or MISSING."""

    name: str
    key: str
    kind: Any
    default: Any
    says: Says


@_once
def _items(cls: type[Record]) -> tuple[_RecordField, ...]:
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for entry in fields(cls):  # type: ignore[arg-type]  # every record is a dataclass
        kind = hints[entry.name]
        says = next((word for word in getattr(kind, "__metadata__", ()) if isinstance(word, Says)), Says())
        others = [argument for argument in get_args(_bare(kind)[0]) if argument is not type(None)]
        if says.omitted and entry.default is None and others:
            kind = others[0]  # a key that is omitted for None is never null
        found.append(_RecordField(entry.name, _KEYS.get(entry.name, entry.name), kind, entry.default, says))
    return tuple(found)


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return {key: _plain(entry) for key, entry in value.items()} if isinstance(value, Mapping) else value


@_once
def _reader(kind: Any) -> Reader:
    """Return the function that reads a value of a type from JSON; it is created once per type."""
    kind, limits = _bare(kind)
    if kind in _JSON_NAMES:
        return _scalar_reader(kind, limits)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # several alternatives are all scalars
        readers = {_bare(entry)[0]: _reader(entry) for entry in arguments if entry is not type(None)}
        first, is_optional = next(iter(readers.values())), type(None) in arguments
        return lambda value: None if value is None and is_optional else readers.get(type(value), first)(value)
    if origin is tuple:
        return _list_reader(_reader(arguments[0]), limits)
    if _is_record(kind):
        return _record_reader(kind)
    return _mapping_reader(_reader(arguments[1]))


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Record)


def _bare(kind: Any) -> tuple[Any, Limits]:
    """Return a type without its annotations, and its limits."""
    if get_origin(kind) is not Annotated:
        return kind, Limits()
    kind, *words = get_args(kind)
    return kind, next((word for word in words if isinstance(word, Limits)), Limits())


def _fault(wanted: str, value: object) -> RecordError:
    shown = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else shortened(repr(value))
    return RecordError(f"expected {wanted}, got {shown}")


def _scalar_reader(kind: type, limits: Limits) -> Reader:
    kinds = {int, float} if kind is float else {kind}
    least, most, longest, enum = limits.minimum, limits.maximum, limits.max_length, limits.enum
    # Python's $ also matches before a final line break, JSON Schema's does not
    pattern = re.compile(rf"{limits.pattern.removesuffix('$')}\Z") if limits.pattern else None

    def read(value: Any) -> Any:
        is_good = type(value) in kinds and not (
            (least is not None and value < least)
            or (most is not None and value > most)
            or (longest is not None and len(value) > longest)
            or (enum is not None and value not in enum)
            or (pattern is not None and pattern.search(value) is None)
        )
        if not is_good:
            bounds = ", ".join(f"{word} {limit}" for word, limit in limits.words().items())
            wanted = f"{_JSON_NAMES[kind]} ({bounds})" if bounds else _JSON_NAMES[kind]
            raise _fault(f"one of {', '.join(enum)}" if enum else wanted, value)
        return value

    return read


def _list_reader(read_item: Reader, limits: Limits) -> Reader:
    least, most = limits.min_items or 0, limits.max_items

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _fault("a list", value)
        if len(value) < least or (most is not None and len(value) > most):
            raise RecordError(f"a list of {len(value)} items is too short or too long")
        done: list[Any] = []
        try:
            done.extend(map(read_item, value))
        except RecordError as fault:
            fault.path = f"[{len(done)}]{fault.path}"
            raise
        return tuple(done)

    return read


def _mapping_reader(read_value: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _fault("an object", value)
        return {key: _read_at(f".{shortened(key)}", read_value, entry) for key, entry in value.items()}

    return read


def _record_reader(cls: type[Record]) -> Reader:
    known = [(entry.name, entry.key, _reader(entry.kind), entry.default is MISSING) for entry in _items(cls)]

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _fault("an object", value)
        made = {}
        for name, key, read_item, is_required in known:
            if key in value:
                made[name] = _read_at(f".{key}", read_item, value[key])
            elif is_required:
                raise RecordError(f"the key '{key}' is missing")
        return cls(**made)

    return read


def _read_at(place: str, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except RecordError as fault:
        fault.path = place + fault.path
        raise


def definitions(names: Mapping[type[Record], str]) -> dict[str, Schema]:
    """Return the definitions of a JSON Schema: these records, by name, and all named types in them."""
    found: dict[str, Schema] = {}
    for cls, name in names.items():
        found[name] = _record_schema(cls, names, found)
    return found


def _record_schema(cls: type[Record], names: Mapping[type[Record], str], found: dict[str, Schema]) -> Schema:
    properties: Schema = {}
    for entry in _items(cls):
        description = {"description": entry.says.says} if entry.says.says else {}
        properties[entry.key] = {**description, **_schema(entry.kind, names, found)}
    required = [entry.key for entry in _items(cls) if entry.default is MISSING]
    says = (cls.__doc__ or "").partition("\n")[0].rstrip(".")
    return {"description": says, "type": "object", "required": required, "properties": properties}


def _schema(kind: Any, names: Mapping[type[Record], str], found: dict[str, Schema]) -> Schema:
    kind, limits = _bare(kind)
    schema = _schema_of_type(kind, names, found) | limits.words()
    if limits.name:
        found[limits.name] = schema
        return {"$ref": f"#/$defs/{limits.name}"}
    return schema


def _schema_of_type(kind: Any, names: Mapping[type[Record], str], found: dict[str, Schema]) -> Schema:
    if kind in _JSON_NAMES:
        return {"type": _JSON_NAMES[kind]}
    if kind in names:
        return {"$ref": f"#/$defs/{names[kind]}"}
    if _is_record(kind):
        return _record_schema(kind, names, found)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        kinds = [_bare(entry) for entry in arguments if entry is not type(None)]
        schemas = [{**_schema_of_type(other, {}, found), **limits.words()} for other, limits in kinds]
        if type(None) not in arguments:
            return {"anyOf": schemas}
        return {**schemas[0], "type": [schemas[0]["type"], "null"]}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], names, found)}
    return {"type": "object", "additionalProperties": _schema(arguments[1], names, found)}


def titled(record: Record) -> Iterator[tuple[str, Any]]:
    """Yield the title and value of each field that has a title and a value other than None."""
    for entry in _items(type(record)):
        value = getattr(record, entry.name)
        if entry.says.title and value is not None:
            yield entry.says.title, value


def described(cls: type[Record]) -> Iterator[tuple[str, Says, type[Record] | None]]:
    """Yield for each field its key, with ``[]`` for a list, its description, and its record type, if any."""
    for entry in _items(cls):
        kind, mark = _inner(entry.kind)
        yield entry.key + mark, entry.says, kind if _is_record(kind) else None


def _inner(kind: Any) -> tuple[Any, str]:
    """Return the type of the values of a list or optional, and the suffix of its key."""
    kind, _ = _bare(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _inner(next(entry for entry in arguments if entry is not type(None)))
    if origin is tuple:
        inner, _ = _inner(arguments[0])
        return inner, "[]" if _is_record(inner) else ""
    return (arguments[1], "") if origin is Mapping else (kind, "")
