"""Names under which the system loads libraries, and queries of its loader about addresses.

The system's loader returns the loaded library for a name that it knows. A file that replaced a loaded one, and
libraries in memory, therefore need their own names. A name is never reused for other content; a loaded library stays
loaded, and is found by its name after its file is gone. The same content in memory is therefore loaded only once.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlfc.support.locks import ForkSafeLock
from mlfc.support.plain_file import private_folder

_DESCRIPTORS = "/proc/self/fd"
_counter = itertools.count(1)
# names by path, and the identity of the file loaded from it
_guard = ForkSafeLock()
_names: dict[tuple[str, tuple[int, ...]], str] = {}
# SHA-256 of libraries in memory by name while the name is in use; names of loaded libraries by SHA-256
_digests: dict[str, bytes] = {}
_loaded: dict[bytes, str] = {}
_SYMBOL_ENTRY = 1
# offset of the kind in an ELF symbol table entry
_KIND_AT = 4 if struct.calcsize("P") == 8 else 12
_FUNCTIONS = (2, 10)


@contextmanager
def library_in_memory(data: bytes | memoryview) -> Iterator[str]:
    """Yield a name under which bytes can be loaded as a library during the context."""
    digest = hashlib.sha256(data).digest()
    if sys.platform != "linux":
        path = private_folder() / f"{digest.hex()}{'.dll' if os.name == 'nt' else '.so'}"
        if not path.exists():  # some systems forbid writing to a loaded file
            path.write_bytes(data)
        yield str(path)
        return
    with os.fdopen(os.memfd_create("mlfc-library"), "wb") as file:
        file.write(data)
        file.flush()
        # descriptor numbers are reused; a slash, or a slash and a dot, for each bit of a counter makes the name unique
        bits = f"{next(_counter):b}".replace("0", "/").replace("1", "/.")
        name = f"{_DESCRIPTORS}{bits}/{file.fileno()}"
        _digests[name] = digest
        try:
            yield name
        finally:
            del _digests[name]


def is_in_memory(name: str) -> bool:
    """Return whether a name is from `library_in_memory`; such names must not be resolved."""
    return name.startswith(f"{_DESCRIPTORS}/")


@contextmanager
def loadable(path: str, *, again: bool = False) -> Iterator[str]:
    """Yield a name under which the system loads the file now at a path; with `again`, as a second copy."""
    if path in _digests and not again:
        # without `again`, the same content is loaded once; its name is kept if loading succeeds
        digest = _digests[path]
        known = _loaded.get(digest, path)
        yield known
        _loaded.setdefault(digest, known)
        return
    state = None if is_in_memory(path) else file_identity(path)
    found = None if again else path if state is None else _known(path, state)
    if found is not None:
        yield found
        return
    with library_in_memory(Path(path).read_bytes()) as name:
        yield name
    if state is not None and not again:
        _names[path, state] = name


def _known(path: str, state: tuple[int, ...]) -> str | None:
    """Return the name under which a file was loaded, or its path if that is unused; None if it needs another name."""
    with _guard:
        if not any(known == path for known, _ in list(_names)):
            _names[path, state] = path
        return _names.get((path, state))


def file_identity(path: str | Path) -> tuple[int, ...] | None:
    """Return the identity of the file now at a path; None if it does not exist."""
    try:
        state = Path(path).stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


class _DlInfo(ctypes.Structure):
    """``Dl_info``: the file at an address, its base address, and the nearest symbol."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _of_process(name: str) -> Any:
    # on systems without it, symbol lookup in a library finds only the library's own symbols
    return getattr(ctypes.CDLL(None), name, None) if os.name == "posix" else None


_dladdr, _dladdr1 = _of_process("dladdr"), _of_process("dladdr1")


def defining_file(address: int) -> bytes | None:
    """Return the file of the library at an address; None if the system cannot tell."""
    place = _DlInfo()
    if _dladdr is None or not _dladdr(ctypes.c_void_p(address), ctypes.byref(place)):
        return None
    return place.file or b""


def may_be_function(address: int) -> bool:
    """Return whether a symbol's address may be called; False if the system knows it as data."""
    place, entry = _DlInfo(), ctypes.c_void_p()
    if _dladdr1 is None or not _dladdr1(
        ctypes.c_void_p(address), ctypes.byref(place), ctypes.byref(entry), _SYMBOL_ENTRY
    ):
        return True
    if not entry.value or place.address != address:
        return True
    return ctypes.c_uint8.from_address(entry.value + _KIND_AT).value & 15 in _FUNCTIONS
