"""Text for people, and numbers in it."""

from __future__ import annotations

from typing import Any

import numpy as np

_GAP = "..."


def shortest_digits(value: float | np.floating[Any]) -> str:
    """Return the shortest decimal form of a finite number that reads back as the same number of its width.

    ``str`` of numpy's scalars would do, but from which size on it writes an exponent depends on numpy's version,
    and what mlfc writes must not.
    """
    if isinstance(value, float):
        return repr(float(value))
    if value == 0 or 1e-4 <= abs(float(value)) < 1e16:
        return np.format_float_positional(value, unique=True, trim="0")
    return np.format_float_scientific(value, unique=True, trim="-", exp_digits=2)


def shortened(text: str, limit: int = 64) -> str:
    """Return `text` with its middle left out if it has more than `limit` characters.

    Converters join the names of all fused operators, which gives names of hundreds of characters; their ends tell
    them apart.
    """
    if len(text) <= limit:
        return text
    kept = limit - len(_GAP)
    return text[: kept - kept // 2] + _GAP + text[-(kept // 2) :]


def printable(text: str) -> str:
    """Return `text` with every character but line breaks that does not print as its escape.

    Names come from files that nobody has checked, and a terminal takes some characters for commands.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def with_article(noun: str) -> str:
    """Return a noun behind ``a`` or ``an``."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
