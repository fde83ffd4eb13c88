"""Malicious Relay text inside an archive."""

from __future__ import annotations

from collections.abc import Callable

from tests.hostile.corpus import add, packed
from tests.hostile.good_archives import graph_files

_HEAD = '#[version = "0.0.5"]\n'


def _main(body: str) -> str:
    return f"{_HEAD}def @main(%x: Tensor[(1, 4), float32]) {{ {body} }}"


TEXTS: dict[str, Callable[[], str]] = {
    "relay_nested_parentheses": lambda: _main("(" * 100_000),
    "relay_nested_calls": lambda: _main("exp(" * 100_000),
    "relay_nested_functions": lambda: _main("fn () {" * 50_000),
    "relay_nested_comments": lambda: _main("/*" * 100_000),
    "relay_huge_integer": lambda: _main("9" * 200_000),
    "relay_huge_shape": lambda: f"{_HEAD}def @main(%x: Tensor[({'999999, ' * 9}1), int8]) {{ %x }}",
    "relay_long_name": lambda: _main(f"%{'x' * 1_000_000}"),
    "relay_lying_constant": lambda: (
        _main("meta[relay.Constant][99999999999]") + '\n#[metadata]\n{"root": 1, "nodes": []}'
    ),
    "relay_deep_metadata": lambda: _main("%x") + "\n#[metadata]\n" + "[" * 100_000,
    "relay_constant_of_no_bytes": lambda: (
        _main("meta[relay.Constant][0]")
        + '\n#[metadata]\n{"root": 1, "nodes": [{"type_key": ""}], "b64ndarrays": ["AAAA"], "attrs": {}}'
    ),
    "relay_million_numbers": lambda: _main(f"sum(%x, axis=[{'1,' * 1_100_000}1])"),
    "relay_million_operators": lambda: _main("%x" + " + %x" * 1_000_000),
    "relay_million_comments": lambda: _main("/**/" * 1_000_000 + "%x"),
    "relay_million_calls": lambda: _main("".join(f"%{index} = exp(%x); " for index in range(500_000)) + "%0"),
    "relay_tokens_up_to_the_limit": lambda: _main("(" + "1, " * 29_000 + "1"),
    "relay_one_long_string": lambda: _main(f'exp(%x, a="{"x" * 2_000_000}")'),
    "relay_blanks": lambda: _main(" " * 15_000_000),
    "relay_tuples_that_double": lambda: _main(
        "%0 = (%x, %x); " + "".join(f"%{index + 1} = (%{index}, %{index}); " for index in range(60)) + "exp(%60)"
    ),
    "relay_million_values_in_the_metadata": lambda: _main("%x") + "\n#[metadata]\n[" + "[]," * 4_000_000 + "[]]",
    "relay_terminal_escapes": lambda: _main("\x1b[2J\x1b[H"),
}


def _add(name: str, text: Callable[[], str]) -> None:
    add(name, r"hand\.relay", lambda: packed(graph_files(relay=text().encode())), refused=False)


for _name, _text in TEXTS.items():
    _add(_name, _text)
add("relay_not_utf8", r"hand\.relay", lambda: packed(graph_files(relay=b"\xff\xfe")), refused=False)
