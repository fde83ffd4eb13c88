"""Subset of BSON (https://bsonspec.org, version 1.1) for parameter files; data are neither copied nor joined."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlfc.errors import InternalError, OptionError
from mlfc.support.content import Content, Data, Joined, nbytes_of
from mlfc.support.stream import Cursor

_DOUBLE, _STRING, _DOCUMENT, _ARRAY, _BINARY, _BOOL, _NULL, _INT32, _INT64 = 1, 2, 3, 4, 5, 8, 10, 16, 18
_GENERIC = 0
_INT = struct.Struct("<i")
_LONG = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_BYTE = struct.Struct("<B")
_BINARY_HEADER = struct.Struct("<iB")
MAX_BYTES = (1 << 31) - 1
# limits for untrusted documents: deep nesting reaches Python's recursion limit, and each element costs memory
MAX_DEPTH = 16
MAX_KEY = 1024
MAX_ELEMENTS = 1_000_000


def encode(document: Mapping[str, Any]) -> Content:
    """Return the bytes of a document.

    `document`: of str, int, float, bool, None, `Data` (binary), and mappings and sequences of these. Keys contain no
    zero character.
    Raises OptionError if it exceeds BSON's maximum size.
    """
    parts = _document(document.items())
    if sum(map(nbytes_of, parts)) > MAX_BYTES:
        raise OptionError(
            "a BSON document cannot have more than 2 GiB", next_step="Write parameters in the form params instead"
        )
    return Joined(tuple(parts))


def _document(items: Iterable[tuple[str, Any]]) -> list[Data]:
    parts: list[Data] = []
    for key, value in items:
        if "\0" in key:
            raise InternalError("a BSON key contains a zero character")
        kind, body = _element(value)
        parts += [bytes((kind,)) + key.encode() + b"\0", *body]
    # a document that is too large for this field is rejected as a whole
    size = min(sum(map(nbytes_of, parts)) + 5, MAX_BYTES)
    return [_INT.pack(size), *parts, b"\0"]


def _element(value: Any) -> tuple[int, Sequence[Data]]:
    if value is None:
        return _NULL, ()
    if isinstance(value, bool):
        return _BOOL, (bytes((value,)),)
    if isinstance(value, int):
        return (_INT32, (_INT.pack(value),)) if -(1 << 31) <= value < 1 << 31 else (_INT64, (_LONG.pack(value),))
    if isinstance(value, float):
        return _DOUBLE, (_FLOAT.pack(value),)
    if isinstance(value, str):
        text = value.encode()
        return _STRING, (_INT.pack(len(text) + 1), text, b"\0")
    if isinstance(value, Mapping):
        return _DOCUMENT, _document(value.items())
    if isinstance(value, (list, tuple)):
        return _ARRAY, _document((str(index), item) for index, item in enumerate(value))
    data: Data = value
    return _BINARY, (_BINARY_HEADER.pack(min(nbytes_of(data), MAX_BYTES), _GENERIC), data)


def decode(data: bytes | memoryview, place: str) -> dict[str, Any]:
    """Return the document that `data` encodes; binary data are read-only views of it.

    Raises ArchiveError, naming the first byte that is not BSON or starts an unsupported type.
    """
    reader = _BsonReader(memoryview(data), place)
    document = reader.document(0)
    if reader.take.remaining:
        raise reader.take.fault(f"{reader.take.remaining} bytes follow the document", reader.take.offset)
    return document


class _BsonReader:
    """Reader of one document; `take` is positioned at the next byte."""

    def __init__(self, data: memoryview, place: str) -> None:
        self.take = Cursor(data, 0, place)
        self._data = data
        self._elements = 0

    def document(self, depth: int) -> dict[str, Any]:
        start = self.take.offset
        if depth > MAX_DEPTH:
            raise self.take.fault("documents are nested too deeply", start)
        (size,) = self.take.unpack(_INT, "the size of a document")
        if not 5 <= size <= self.take.remaining + _INT.size:
            raise self.take.fault(f"a document of {size} bytes where {self.take.remaining + 4} are left", start)
        result: dict[str, Any] = {}
        while kind := self._byte("the type of an element"):
            at = self.take.offset
            length = bytes(self._data[at : at + MAX_KEY]).find(b"\0")
            if length < 0:
                raise self.take.fault(f"a key does not end within {MAX_KEY} bytes", at)
            key = self._text(length + 1, at)
            if key in result:
                raise self.take.fault(f"the key '{key}' is duplicated", at)
            result[key] = self._value(kind, depth)
            self._elements += 1
            if self._elements > MAX_ELEMENTS:
                raise self.take.fault(f"the document has more than {MAX_ELEMENTS:,} elements", at)
        if self.take.offset - start != size:
            raise self.take.fault(f"a document declares {size} bytes but has {self.take.offset - start}", start)
        return result

    def _value(self, kind: int, depth: int) -> Any:
        at = self.take.offset
        if kind == _DOCUMENT:
            return self.document(depth + 1)
        if kind == _ARRAY:
            items = self.document(depth + 1)
            if list(items) != [str(index) for index in range(len(items))]:
                raise self.take.fault("the keys of an array do not count from 0", at)
            return list(items.values())
        if kind == _STRING:
            (size,) = self.take.unpack(_INT, "the length of a string")
            return self._text(size, at)
        if kind == _BINARY:
            size, subtype = self.take.unpack(_BINARY_HEADER, "the header of binary data")
            if subtype != _GENERIC:
                raise self.take.fault(f"unsupported binary subtype {subtype}", at)
            return self.take.bytes(size, "binary data").toreadonly()
        if kind == _BOOL:
            value = self._byte("a boolean")
            if value > 1:
                raise self.take.fault(f"a boolean of value {value}", at)
            return bool(value)
        if kind == _NULL:
            return None
        numbers = {_INT32: _INT, _INT64: _LONG, _DOUBLE: _FLOAT}
        if kind not in numbers:
            raise self.take.fault(f"unsupported element type {kind:#04x}", at)
        return self.take.unpack(numbers[kind], "a number")[0]

    def _byte(self, what: str) -> int:
        value: int = self.take.unpack(_BYTE, what)[0]
        return value

    def _text(self, size: int, at: int) -> str:
        """Read a string of `size` bytes including its terminating zero."""
        if size < 1:
            raise self.take.fault(f"a string of {size} bytes", at)
        raw = bytes(self.take.bytes(size, "a string"))
        if raw[-1]:
            raise self.take.fault("a string does not end with a zero", at)
        try:
            return raw[:-1].decode()
        except UnicodeDecodeError as error:
            raise self.take.fault(f"a string is not UTF-8 ({error.reason})", at) from None
