"""Opening of regular files that users name, reading of TOML, and a private folder of this process."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from mlfc.errors import OptionError
from mlfc.support.temporary import TemporaryFolder

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
# by process id: the child of a fork creates its own folder
_folders: dict[int, TemporaryFolder] = {}
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LARGEST_FILE = 1 << 20


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading; raise OSError if it does not exist, cannot be read, or is not a regular file.

    Reading a pipe or a device may block or never end, and archives and models require random access.
    """
    # without O_NONBLOCK, opening a pipe would block until it has a writer
    descriptor = os.open(Path(path), _FLAGS)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_small(
    path: str | os.PathLike[str], limit: int, fault: Callable[[str], Exception], what: str = "the file"
) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes.

    If it cannot be read or is larger, raises ``fault(reason)``; the reason refers to the file as `what`.
    """
    try:
        with open_plain(path) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise fault(f"{what} cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise fault(f"{what} exceeds {limit:,} bytes")
    return data


def private_folder() -> Path:
    """Return a folder that only this user can read, and that is removed when this process ends."""
    process = os.getpid()
    if process not in _folders:
        _folders[process] = TemporaryFolder()
    return Path(_folders[process].name)


def existing_private_folder() -> Path | None:
    """Return the private folder if this process has created it."""
    found = _folders.get(os.getpid())
    return None if found is None else Path(found.name)


def read_toml(path: str | os.PathLike[str], what: str = "the file") -> str:
    """Return the text of a file; raise OptionError, which names it `what`, if it is unreadable or too large."""
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
    """Return the tables of a TOML text; raise OptionError if it is invalid."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits raise a plain ValueError
        raise OptionError(f"expected TOML: {error}", place=place) from None
