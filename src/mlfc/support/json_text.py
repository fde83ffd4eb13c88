"""Strict and bounded reading of untrusted JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from mlfc.errors import ArchiveError
from mlfc.support.text import shortened

# A parsed value costs up to 300 bytes of memory and 4 microseconds, and a comparison reads two files. The metadata of
# DenseNet-121 have 15,000 values, those of a hundred keyword spotters 130,000.
MAX_TOKENS = 250_000
_MAX_DIGITS = 400
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_AGAIN = "Export the archive again"


def values_of(data: bytes) -> int:
    """Return an upper bound on the number of values in a JSON text; punctuation in strings counts, too."""
    return sum(map(data.count, (b"[", b"{", b",", b":")))


def parse_json(data: bytes, place: str) -> Any:
    """Return the value of a JSON text.

    Raises ArchiveError unless the text is JSON of RFC 8259 in UTF-8, and for duplicate keys, numbers out of range, lone
    surrogates, and too many or too deeply nested values.
    """
    if values_of(data) > MAX_TOKENS:
        raise ArchiveError(
            f"it has too many values, more than {MAX_TOKENS:,}",
            place=place,
            next_step="Export its modules into several archives",
        )
    try:
        value = json.loads(
            data.decode("utf-8"),
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_keys,
        )
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ArchiveError("it is nested too deeply", place=place, next_step=_AGAIN) from None
    except ValueError as error:
        raise ArchiveError(f"it is not JSON: {error}", place=place, next_step=_AGAIN) from None
    return value


def _integer(text: str) -> int:
    # time is quadratic in the digits, and not every Python limits them
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"the number {shortened(text)} is too large")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {shortened(text)} is too large")
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has a key twice")
    return result
