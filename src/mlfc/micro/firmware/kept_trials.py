"""What compilers and emulators of boards gave is kept with mlfc's other built files: it takes seconds to get again.

A key has all that a result depends on: the code, flags, the compiler and its libraries, and the program text of mlfc
that builds and measures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from mlfc.errors import MlfcError
from mlfc.library.cache import find_entry, store_entry
from mlfc.micro.board.programs import run
from mlfc.support.content import Data, sha256_of

_SUFFIX = ".json"
_SECONDS = 20
_MEASURES = ("micro", "crt")  # packages of what builds and measures


def key_of(compiler: str, core: Sequence[str], said: Sequence[str], code: Mapping[str, Data]) -> str:
    """Return the key of what a compiler makes of code, or an emulator of that.

    `compiler`: its path; `core`: its flags for the core, by which it chooses libraries.
    `said`: all other words that it is called with, and what the emulator is.
    """
    files = [f"{path} {sha256_of(code[path])}" for path in sorted(code)]
    parts = [_measuring(), *_identity(compiler, tuple(core)), *said, *files]
    return sha256("\0".join(parts).encode()).hexdigest()


def find(key: str) -> dict[str, Any] | None:
    """Return the document that is kept under a key; None where there is none."""
    path = find_entry(key, _SUFFIX)
    if path is None:
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):  # another process may have removed it
        return None
    return found


def keep(key: str, document: Mapping[str, Any]) -> None:
    """Keep a document; without a folder to write to, the next one is made anew."""
    with suppress(MlfcError):
        store_entry(key, _SUFFIX, json.dumps(document).encode())


@cache
def _identity(compiler: str, core: tuple[str, ...]) -> tuple[str, ...]:
    """Return what tells a compiler and the libraries of a core from others: versions, sizes and times of files."""
    folder = Path(compiler).parent
    said = [
        run([compiler, *core, option], folder, _SECONDS).stdout
        for option in ("--version", "-print-file-name=libc.a", "-print-libgcc-file-name", "-print-prog-name=as")
    ]
    places = [Path(compiler), *(Path(text.strip()) for text in said[1:])]
    return (*said, *map(_stamp, places))


@cache
def emulator_identity(program: str) -> tuple[str, ...]:
    """Return what tells an emulator from others: its version, and size and time of the file."""
    return (run([program, "--version"], Path(program).parent, _SECONDS).stdout, _stamp(Path(program)))


def _stamp(path: Path) -> str:
    try:
        state = path.stat()
    except OSError:  # a name that the compiler does not know comes back as it is
        return "none"
    return f"{state.st_size} {state.st_mtime_ns}"


@cache
def _measuring() -> str:
    """Return the hash of the program text that makes and measures trials."""
    package = Path(__file__).parents[2]
    paths = (path for name in _MEASURES for path in sorted((package / name).rglob("*")))
    texts = (path.read_bytes() for path in paths if path.is_file() and path.suffix != ".pyc")
    return sha256(b"".join(sha256(text).digest() for text in texts)).hexdigest()
