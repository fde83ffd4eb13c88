"""TOML files that users write."""

from __future__ import annotations

import os
import sys
from typing import Any

from mlfc.errors import OptionError
from mlfc.support.plain_file import open_plain

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LARGEST_FILE = 1 << 20


def read_toml(path: str | os.PathLike[str], what: str = "the file") -> str:
    """Return the text of a file; raise OptionError, which calls it `what`, if it cannot be read, or is too large."""
    place = str(path)
    try:
        with open_plain(path) as file:
            data = file.read(_LARGEST_FILE + 1)
        if len(data) > _LARGEST_FILE:
            raise OptionError(f"{what} is too large: more than {_LARGEST_FILE:,} bytes", place=place)
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(f"expected TOML: {error}", place=place) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"cannot read {what}: {reason}", place=place) from error


def parse_toml(text: str, place: str) -> dict[str, Any]:
    """Return the tables of a text; raise OptionError unless it is TOML."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError that is no TOMLDecodeError: thousands of digits
        raise OptionError(f"expected TOML: {error}", place=place) from None
