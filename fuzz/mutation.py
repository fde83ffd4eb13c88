"""Mutations of files: blind, or aware of the format, so that the file passes the first check."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

Mutator = Callable[[bytes, random.Random], bytes]

# values at which readers fail: ends of ranges, signs, counts that overflow in products
_NUMBERS = (0, 1, 2, 3, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_WORDS = ("", "a", "../a", "/", "\x00", "é", "\ud800", "9" * 400, "x" * 5000, "int8", "null", "tvm_op", "__nop")
_INTERESTING = (b"\0", b"\xff", b"\x7f", b"\x80", b"{", b"[", b'"', b"\\", b"9", b"-", b"\n", b"/*", b"%", b"(")


def random_bytes(_seed: bytes, chance: random.Random) -> bytes:
    """Return bytes unrelated to the seed."""
    return chance.randbytes(chance.choice((0, 1, 7, 64, 600)))


def flipped(seed: bytes, chance: random.Random) -> bytes:
    """Return the seed with a few bytes changed."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 8) if data else 0):
        data[chance.randrange(len(data))] = chance.choice((chance.randrange(256), 0, 0x7F, 0x80, 0xFF))
    return bytes(data)


def cut(seed: bytes, chance: random.Random) -> bytes:
    """Return a prefix of the seed."""
    return seed[: chance.randrange(len(seed) + 1)]


def spliced(seed: bytes, chance: random.Random) -> bytes:
    """Return the seed with a piece of it, or a common token, inserted, repeated or removed."""
    at = chance.randrange(len(seed) + 1)
    start = chance.randrange(len(seed) + 1)
    piece = chance.choice((seed[start : start + chance.randint(1, 40)], chance.choice(_INTERESTING)))
    piece *= chance.choice((1, 1, 1, 2, 300))
    return seed[:at] + piece + seed[at + chance.choice((0, 0, len(piece), 40)) :]


def integer_replaced(seed: bytes, chance: random.Random) -> bytes:
    """Return the seed with a little-endian integer of some width written over it."""
    data = bytearray(seed)
    width = chance.choice("BHIQ")
    size = struct.calcsize(f"<{width}")
    if len(data) >= size:
        value = chance.choice(_NUMBERS) + chance.choice((-1, 0, 0, 1))
        struct.pack_into(f"<{width}", data, chance.randrange(len(data) - size + 1), value % (1 << 8 * size))
    return bytes(data)


BLIND: tuple[Mutator, ...] = (random_bytes, flipped, cut, spliced, integer_replaced)


def json_changed(seed: bytes, chance: random.Random) -> bytes:
    """Return a JSON text with one to three values replaced, removed, doubled, or moved to another place."""
    document = json.loads(seed)
    for _ in range(chance.randint(1, 3)):
        places = _places(document)
        if places:
            _change(*chance.choice(places), places, chance)
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Return every place in a document as its container and key."""
    places: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting and len(places) < 5000:
        value = waiting.pop()
        keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            places.append((value, key))
            waiting.append(value[key])
    return places


def _change(container: Any, key: Any, places: list[tuple[Any, Any]], chance: random.Random) -> None:
    kind = chance.randrange(6)
    if kind == 0:
        container[key] = chance.choice(_NUMBERS) * chance.choice((1, 1, -1))
    elif kind == 1:
        container[key] = chance.choice((*_WORDS, None, True, 1.5, [], {}, [[]], 10**400))
    elif kind == 2:
        del container[key]
    elif kind == 3:
        other, place = chance.choice(places)
        # a copy: JSON cannot contain itself
        container[key] = json.loads(json.dumps(_at(other, place)))
    elif kind == 4 and isinstance(container, list):
        container.insert(key, json.loads(json.dumps(container[key])))
    elif isinstance(container, dict):
        container[chance.choice(_WORDS)] = container[key]
    else:
        container.append(chance.choice(_NUMBERS))


def _at(container: Any, key: Any) -> Any:
    try:
        return container[key]
    except (KeyError, IndexError):
        # an earlier change removed it
        return None
