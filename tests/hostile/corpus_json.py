"""Faults in the text of ``metadata.json``, independent of its content."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from tests.hostile.corpus import add, encoded, packed
from tests.hostile.good_archives import graph_files, graph_metadata

_GOOD = encoded(graph_metadata())


def _huge(digits: int) -> bytes:
    return _GOOD.replace(b'"size_bytes": 16', b'"size_bytes": ' + b"9" * digits, 1)


TEXTS: dict[str, tuple[bytes, str]] = {
    "json_empty_file": (b"", "not JSON"),
    "json_blanks": (b" " * 10_000, "not JSON"),
    "json_cut_off": (_GOOD[:-20], "not JSON"),
    "json_behind_the_end": (_GOOD + b"{}", "not JSON"),
    "json_nested_lists": (b"[" * 100_000, "nested too deeply|too many values"),
    "json_nested_objects": (b'{"a":' * 100_000, "nested too deeply|too many values"),
    "json_nested_and_closed": (b"[" * 100_000 + b"]" * 100_000, "nested too deeply|too many values"),
    "json_nested_in_an_unknown_key": (
        _GOOD[:-2] + b', "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        "nested too deeply|too many values",
    ),
    "json_nan": (_GOOD.replace(b": 16", b": NaN", 1), "not a JSON number"),
    "json_infinity": (_GOOD.replace(b": 16", b": -Infinity", 1), "not a JSON number"),
    "json_number_beyond_floats": (_GOOD.replace(b": 16", b": 1e999999", 1), "too large"),
    "json_number_of_1e5_digits": (_huge(100_000), r"the number 9+\.\.\.9+ is too large"),
    "json_number_of_4000_digits": (_huge(4_000), "too large"),
    "json_number_of_400_digits": (_huge(400), "more than"),
    "json_number_with_a_long_exponent": (_GOOD.replace(b": 16", b": 1e-" + b"9" * 100_000, 1), "expected integer"),
    "json_leading_zero": (_GOOD.replace(b": 16", b": 016", 1), "not JSON"),
    "json_comment": (b"// x\n" + _GOOD, "not JSON"),
    "json_byte_order_mark": (codecs.BOM_UTF8 + _GOOD, "not JSON"),
    "json_utf16": (_GOOD.decode().encode("utf-16"), "not JSON"),
    "json_utf32": (_GOOD.decode().encode("utf-32-le"), "not JSON"),
    "json_not_utf8": (_GOOD.replace(b'"x"', b'"\xff"', 1), "not JSON"),
    "json_overlong_utf8": (_GOOD.replace(b'"x"', b'"\xc0\xaf"', 1), "not JSON"),
    "json_lone_surrogate": (_GOOD.replace(b'"x"', b'"\\ud800"', 1), "not JSON"),
    "json_line_break_in_a_string": (_GOOD.replace(b'"x"', b'"\n"', 1), "not JSON"),
    "json_key_twice": (b'{"version": 7, ' + _GOOD[1:], "key twice"),
    "json_key_twice_deep_inside": (_GOOD.replace(b'"size": 16', b'"size": 16, "size": 8', 1), "key twice"),
    "json_list": (b"[" + _GOOD + b"]", "object"),
    "json_text": (b'"version 7"', "object"),
    "json_null": (b"null", "object"),
}
LARGE: dict[str, tuple[Callable[[], bytes], str]] = {
    "json_many_small_values": (
        lambda: b'{"version": 7, "modules": {}, "x": [' + b"[]," * 3_000_000 + b"[]]}",
        "too many",
    ),
    "json_many_long_numbers": (
        lambda: b'{"version": 7, "modules": {}, "x": [' + b",".join([b"9" * 400] * 40_000) + b"]}",
        "expected at least one module",
    ),
    "json_many_keys": (
        lambda: b'{"version": 7, "modules": {' + b",".join(b'"%d":0' % number for number in range(400_000)) + b"}}",
        "expected object|too many",
    ),
}


def _add(name: str, text: Callable[[], bytes], expected: str) -> None:
    add(name, expected, lambda: packed({**graph_files(), "metadata.json": text()}))


for _name, (_text, _expected) in TEXTS.items():
    _add(_name, lambda text=_text: text, _expected)
for _name, (_make, _expected) in LARGE.items():
    _add(_name, _make, _expected)
