"""BSON: the worked examples of its specification, round trips, and invalid input."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfc.archive.read.bson import MAX_DEPTH, decode, encode
from mlfc.errors import ArchiveError, OptionError
from mlfc.support.content import to_bytes

# both from https://bsonspec.org/faq.html
EXAMPLES: list[tuple[dict[str, Any], bytes]] = [
    ({"hello": "world"}, b"\x16\x00\x00\x00\x02hello\x00\x06\x00\x00\x00world\x00\x00"),
    (
        {"BSON": ["awesome", 5.05, 1986]},
        bytes.fromhex(
            "31000000 04 42534f4e00 26000000"
            "02 3000 08000000 617765736f6d6500"
            "01 3100 3333333333331440"
            "10 3200 c2070000"
            "00 00"
        ),
    ),
]


@pytest.mark.parametrize(("document", "data"), EXAMPLES)
def test_the_specification_s_examples(document: dict[str, Any], data: bytes) -> None:
    assert to_bytes(encode(document)) == data
    assert decode(data, "x") == document


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text().filter(lambda key: "\0" not in key), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["a", "b", "ü", ""]), VALUES))
def test_what_is_written_reads_back(document: dict[str, Any]) -> None:
    data = to_bytes(encode(document))
    assert encode(document).nbytes == len(data) == struct.unpack("<i", data[:4])[0]
    assert decode(data, "x") == document


def fault_of(data: bytes) -> str:
    """Return the message of the error that decoding raises; only ArchiveError is allowed."""
    try:
        decode(data, "params.bson")
    except ArchiveError as error:
        return str(error)
    return "params.bson, byte (none)"


@given(st.binary(max_size=80))
def test_garbage_is_refused_with_a_place(data: bytes) -> None:
    assert fault_of(data).startswith("params.bson, byte ")


@given(st.sampled_from(EXAMPLES), st.integers(0, 60), st.integers(0, 255))
def test_a_changed_byte_never_ends_in_another_error(example: tuple[Any, bytes], at: int, byte: int) -> None:
    data = bytearray(example[1])
    data[at % len(data)] = byte
    assert fault_of(bytes(data)).startswith("params.bson, byte ")


def element(kind: int, body: bytes, key: bytes = b"k\0") -> bytes:
    return struct.pack("<i", 6 + len(key) + len(body)) + bytes([kind]) + key + body + b"\0"


def nested(depth: int) -> bytes:
    data = b"\x05\0\0\0\0"
    for _ in range(depth):
        data = element(3, data)
    return data


BROKEN = {
    "empty": (b"", "the size of a document needs 4 bytes"),
    "a_size_beyond_the_end": (b"\xff\0\0\0\0", "a document of 255 bytes where"),
    "a_negative_size": (b"\xff\xff\xff\xff\0", "a document of -1 bytes"),
    "a_size_too_small": (b"\x05\0\0\0\x0ak\0\0", "declares 5 bytes but has 8"),
    "bytes_behind": (b"\x05\0\0\0\0\0", "1 bytes follow"),
    "an_unknown_type": (element(0x13, bytes(16)), "unsupported element type 0x13"),
    "a_key_twice": (b"\x0b\0\0\0\x0ak\0\x0ak\0\0", "the key 'k' is duplicated"),
    "a_key_without_end": (b"\x06\0\0\0\x0ak", "a key does not end"),
    "a_key_not_utf8": (element(10, b"", b"\xff\0"), "not UTF-8"),
    "a_string_without_end": (element(2, b"\x02\0\0\0ab"), "does not end with a zero"),
    "a_string_of_no_bytes": (element(2, b"\0\0\0\0"), "a string of 0 bytes"),
    "a_string_too_long": (element(2, b"\xff\xff\xff\x7fa\0"), "a string needs 2147483647 bytes"),
    "binary_too_long": (element(5, b"\xff\xff\xff\x7f\0a"), "binary data needs 2147483647 bytes"),
    "negative_binary": (element(5, b"\xff\xff\xff\xff\0a"), "binary data needs -1 bytes"),
    "another_subtype": (element(5, b"\x01\0\0\0\x04a"), "subtype 4"),
    "a_boolean_of_two": (element(8, b"\x02"), "a boolean of value 2"),
    "an_array_that_counts_from_one": (element(4, element(10, b"", b"1\0")), "do not count from 0"),
    "too_deep": (nested(MAX_DEPTH + 1), "nested too deeply"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_format_is_refused(name: str) -> None:
    data, message = BROKEN[name]
    with pytest.raises(ArchiveError, match=message):
        decode(data, "x")


def test_the_deepest_document_reads() -> None:
    assert decode(nested(MAX_DEPTH), "x")


class Endless:
    """Content that is too large and must not be read."""

    nbytes = 1 << 31

    def chunks(self) -> Any:
        raise AssertionError


def test_more_than_the_format_can_count_is_refused() -> None:
    with pytest.raises(OptionError, match="2 GiB"):
        encode({"a": Endless()})
    with pytest.raises(OptionError, match="2 GiB"):
        encode({"a": [{"b": Endless()}, Endless()]})
