"""Under which names the system loads libraries: it gives the one that it has where a name is known already.

So a file that replaced a loaded one, and what lies in memory, need names of their own. A name is never given to other
content; what was loaded under it stays loaded, and is found by it, when the file is gone. So the same content in memory
is loaded once, however often it comes.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlfc.support.locks import ForkSafeLock
from mlfc.support.private_folder import private_folder

_DESCRIPTORS = "/proc/self/fd"
_counter = itertools.count(1)
# names by path, and the device, number and time of the file that was there
_guard = ForkSafeLock()
_names: dict[tuple[str, tuple[int, int, int]], str] = {}
# the SHA-256 of what lies in memory, by its name while it has one; names of what is loaded, by SHA-256
_digests: dict[str, bytes] = {}
_loaded: dict[bytes, str] = {}


@contextmanager
def library_in_memory(data: bytes | memoryview) -> Iterator[str]:
    """Give a name under which bytes can be loaded as a library as long as the context lasts."""
    digest = hashlib.sha256(data).digest()
    if sys.platform != "linux":
        path = private_folder() / f"{digest.hex()}{'.dll' if os.name == 'nt' else '.so'}"
        if not path.exists():  # one that is loaded cannot be written to everywhere
            path.write_bytes(data)
        yield str(path)
        return
    with os.fdopen(os.memfd_create("mlfc-library"), "wb") as file:
        file.write(data)
        file.flush()
        # numbers of descriptors come again; a slash, or a slash and a dot, for each bit of a counter make a new name
        bits = f"{next(_counter):b}".replace("0", "/").replace("1", "/.")
        name = f"{_DESCRIPTORS}{bits}/{file.fileno()}"
        _digests[name] = digest
        try:
            yield name
        finally:
            del _digests[name]


def is_in_memory(name: str) -> bool:
    """Tell whether a name is one of `library_in_memory`: it must stay as it is, and leads nowhere."""
    return name.startswith(f"{_DESCRIPTORS}/")


@contextmanager
def loadable(path: str, *, again: bool = False) -> Iterator[str]:
    """Give the name under which the system loads the file that is at a path now.

    Parameters
    ----------
    path : str
    again : bool
        Load it once more, beside the same library that is loaded already.
    """
    if path in _digests and not again:
        with _loaded_once(path, _digests[path]) as name:
            yield name
        return
    state = None if is_in_memory(path) else _state(path)
    known = None if again else path if state is None else _known(path, state)
    if known is not None:
        yield known
        return
    with library_in_memory(Path(path).read_bytes()) as name:
        yield name
    if state is not None and not again:
        _names[path, state] = name


@contextmanager
def _loaded_once(name: str, digest: bytes) -> Iterator[str]:
    """Give the name under which the same content is loaded already, else `name`, which stays if loading succeeds."""
    known = _loaded.get(digest, name)
    yield known
    _loaded.setdefault(digest, known)


def _known(path: str, state: tuple[int, int, int]) -> str | None:
    """Return the name under which a file was loaded, or can be as the first of its path; None if it needs another."""
    with _guard:
        if not any(known == path for known, _ in list(_names)):
            _names[path, state] = path
        return _names.get((path, state))


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        state = Path(path).stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino, state.st_mtime_ns
