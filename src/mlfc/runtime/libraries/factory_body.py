"""The stored form of factories, which is TVM's.

| field | encoding |
|---|---|
| graph JSON | string; only graph factories have it |
| number of parameters | u64 |
| their names | list of strings |
| their values | the binary form of a tensor each |
| key of its executors | string |

Facts without a place in TVM's form, such as the model's own name and the names and scales of outputs, are in the code
that the factory imports: no reader of these bytes would skip them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlfc.support.arrays import Array
from mlfc.support.content import Joined
from mlfc.support.params import MAX_TENSORS, decode_ndarray, ndarray_content, ndarray_end
from mlfc.support.stream import Cursor, encode_string, encode_strings, encode_u64

AOT, GRAPH = "AotExecutorFactory", "GraphExecutorFactory"
GRAPH_BEFORE = "GraphRuntimeFactory"
"""The key of graph factories before TVM 0.8."""
DEFAULT_KEY = "default"
"""What programs call: ``lib["default"](device)``. TVM's factories know their executors by one name alone, so a library
of one model has this one, whatever the model's own name."""

_WORD = 8
_MAX_JSON = 64 << 20
_MAX_NAME = 4096
_SHOWN = 60


@dataclass(frozen=True, eq=False)
class FactoryBody:
    """What a factory stores; `name` is its key."""

    name: str
    graph_json: str | None  # None for code compiled ahead of time
    params: Mapping[str, Array]


def encode_factory(body: FactoryBody) -> Joined:
    """Return the stored form; parameters are read from their arrays.

    Parameters are sorted by falling element sizes, and blanks after the JSON bring the first one to a multiple of eight
    bytes in a blob. So all of them can be used in place when the library is mapped.
    """
    params = dict(sorted(body.params.items(), key=lambda item: -item[1].itemsize))
    names = encode_u64(len(params)) + encode_strings(list(params))
    arrays = tuple(ndarray_content(np.asarray(array)) for array in params.values())
    tail = encode_string(body.name)
    if body.graph_json is None:
        return Joined((names, *arrays, tail))
    text = body.graph_json.encode()
    # of everything before the body, only the key of the root is not a multiple of eight
    blanks = -(len(GRAPH) + len(text) + len(names)) % _WORD
    return Joined((encode_string(text + b" " * blanks), names, *arrays, tail))


def decode_factory(data: bytes | memoryview, kind: str) -> FactoryBody:
    """Return the content of the stored form, parameters as views if possible; raise ArchiveError if it is broken."""
    place = f"module of the kind '{kind}'"
    take = Cursor(data, 0, place)
    text = _graph(take) if kind != AOT else None
    params: dict[str, Array] = {}
    for name in _names(take):
        params[name], take.offset = decode_ndarray(data, take.offset, place=f"{place}, tensor '{name[:_SHOWN]}'")
    name = take.text("the name of the module", _MAX_NAME)
    take.end("the name of the module")
    return FactoryBody(name, None if text is None else text.rstrip(" "), params)


def graph_extent(data: memoryview) -> int:
    """Return the bytes of a graph factory's stored form."""
    take = Cursor(data, 0, "its body")
    take.string("the graph JSON")
    return _extent(take)


def aot_extent(data: memoryview) -> int:
    """Return the bytes of the stored form of an AOT factory."""
    return _extent(Cursor(data, 0, "its body"))


def _extent(take: Cursor) -> int:
    for name in _names(take):
        rest = take.peek()
        take.bytes(ndarray_end(rest, place=f"tensor '{name[:_SHOWN]}'"), "a tensor")
    take.string("the name of the module")
    return take.offset


def _graph(take: Cursor) -> str:
    at = take.offset
    text = take.text("the graph JSON", _MAX_JSON)
    if not text.strip():
        raise take.fault("the graph JSON is empty", at)
    return text


def _names(take: Cursor) -> list[str]:
    at = take.offset
    count = take.count("parameters", _WORD, MAX_TENSORS)
    names = take.texts("names of parameters", MAX_TENSORS)
    if len(names) != count:
        raise take.fault(f"{count} parameters, but {len(names)} names", at)
    return names
