"""Values of options: clients send strings, as on command lines, or values of an option's type."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

_TRUTH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_LARGEST = 1 << 40
_MESSAGE_CHARS = 100


def typed_value(name: str, kind: str, value: Any) -> str | int | bool:
    """Convert an option's value to its type: ``bool``, ``int`` (at least 0), or ``str``.

    Raises ValueError if it cannot be converted.
    """
    if kind == "bool":
        truth = value if isinstance(value, bool) else _TRUTH.get(str(value).lower())
        if truth is None:
            raise refused_value(name, value, "it must be true or false")
        return truth
    if kind == "int":
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,13}", str(value)) or int(value) > _LARGEST:
            raise refused_value(name, value, "it must be an integer of at least 0")
        return int(value)
    return str(value)


def check_names(given: Iterable[str], known: Collection[str]) -> None:
    """Raise ValueError for an option that a project does not have."""
    for name in sorted(set(given) - set(known)):
        raise ValueError(f"Option '{name}' is invalid. Use --list-options to see all available options.")


def refused_value(name: str, value: Any, why: str) -> ValueError:
    """Return the error for an invalid value of an option."""
    return ValueError(f"invalid value {str(value)[:_MESSAGE_CHARS]!r} of option '{name}': {why}")
