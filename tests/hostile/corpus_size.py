"""Well-formed archives that are slow or large to read: too many items, or just within a limit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.hostile.corpus import add, packed, set_at
from tests.hostile.good_archives import GRAPH, graph_files, graph_metadata

_MEMORY = "modules/hand/memory"
_FUNCTIONS = f"{_MEMORY}/functions"


def _add_metadata(name: str, expected: str, path: str, value: Callable[[], Any], *, refused: bool = True) -> None:
    add(name, expected, lambda: _with_metadata(set_at(graph_metadata(), path, value())), refused=refused)


def _with_metadata(document: Any, **files: bytes) -> bytes:
    # without indentation, so that the number of values exceeds its limit, and not the number of bytes
    return packed({**graph_files(), **files, "metadata.json": json.dumps(document).encode()})


def _modules(count: int, shared: int) -> bytes:
    document = graph_metadata()
    module = document["modules"]["hand"]
    document["modules"] = {f"m{index}": {**module, "model_name": f"m{index}"} for index in range(count)}
    return _with_metadata(document, **{f"codegen/host/src/lib{index}.c": b"" for index in range(shared)})


def _operator_functions(count: int) -> list[Any]:
    workspace = [{"device": 1, "workspace_size_bytes": 0}]
    return [{"function_name": f"tvmgen_{index}", "workspace": workspace} for index in range(count)]


def _inputs(count: int) -> dict[str, Any]:
    return {f"x{index}": {"dtype": "int8", "size": 1} for index in range(count)}


def _graph(**changes: Any) -> bytes:
    return packed(graph_files(graph=json.dumps({**GRAPH, **changes}).encode()))


_TOO_MANY = "more than 250,000"
add("many_modules", "1,200 modules are more than", lambda: _modules(1_200, 7_500))
add("many_modules_with_code_in_common", "1,000 modules have 5,001 files", lambda: _modules(1_000, 5_000))
_add_metadata(
    "many_functions",
    f"{_TOO_MANY}|16,777,216",
    f"{_FUNCTIONS}/operator_functions",
    lambda: _operator_functions(30_000),
)
_add_metadata(
    "many_functions_up_to_the_limit",
    "tvmgen_[0-9]+ is not defined",
    f"{_FUNCTIONS}/operator_functions",
    lambda: _operator_functions(24_000),
    refused=False,
)
_add_metadata("many_inputs", _TOO_MANY, f"{_FUNCTIONS}/main/0/inputs", lambda: _inputs(50_000))
_add_metadata(
    "many_inputs_up_to_the_limit",
    "no input x[0-9]+",
    f"{_FUNCTIONS}/main/0/inputs",
    lambda: _inputs(41_000),
    refused=False,
)
_add_metadata("many_unknown_values", _TOO_MANY, "extra", lambda: {str(index): [index] for index in range(100_000)})
_add_metadata("long_metadata", "exceed the limit of 16,777,216", "extra", lambda: "x" * (16 << 20))
add("many_heads", _TOO_MANY, lambda: _graph(heads=[[4, 0, 0]] * 100_000), refused=False)
add("many_heads_up_to_the_limit", "61000 outputs", lambda: _graph(heads=[[4, 0, 0]] * 61_000), refused=False)


def _code(text: bytes) -> bytes:
    return packed(graph_files(source=text))


_TOO_LONG = r"hand_lib0\.c: more than 500,000 words"
CODES: dict[str, Callable[[], bytes]] = {
    "words": lambda: b"a " * 11_000_000,
    "functions": lambda: b"".join(b"f%d(){}" % index for index in range(500_000)),
    "arrays": lambda: b"".join(b"int a%d[1];" % index for index in range(500_000)),
    "braces": lambda: b"f(){" + b"{}" * 10_000_000 + b"}",
    "strings": lambda: b'""' * 10_000_000,
    "semicolons": lambda: b";" * 20_000_000,
    "parentheses": lambda: (b"(" * 2_000 + b"){}") * 4_000,
    "comments": lambda: b"/**/" * 5_000_000,
}
for _name, _text in CODES.items():
    add(f"code_of_many_{_name}", _TOO_LONG, lambda text=_text: _code(text()), refused=False)
