"""Values of options: clients send texts, as command lines have them, or values of an option's type."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

_TRUTH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_LARGEST = 1 << 40
_MESSAGE_CHARS = 100


def typed_value(name: str, kind: str, value: Any) -> str | int | bool:
    """Return an option's value in its type: ``bool``, ``int`` (none is less than 0), or ``str``.

    Raises ValueError if it cannot be.
    """
    if kind == "bool":
        truth = value if isinstance(value, bool) else _TRUTH.get(str(value).lower())
        if truth is None:
            raise refused_value(name, value, "it is true or false")
        return truth
    if kind == "int":
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,13}", str(value)) or int(value) > _LARGEST:
            raise refused_value(name, value, "it is an integer, and not less than 0")
        return int(value)
    return str(value)


def check_names(given: Iterable[str], known: Collection[str]) -> None:
    """Raise ValueError for an option that a project does not have."""
    for name in sorted(set(given) - set(known)):
        raise ValueError(f"Option '{name}' is invalid. Use --list-options to see all available options.")


def refused_value(name: str, value: Any, why: str) -> ValueError:
    """Return the error that tells why an option cannot have a value."""
    return ValueError(f"the value {str(value)[:_MESSAGE_CHARS]!r} of the option '{name}' cannot be: {why}")
