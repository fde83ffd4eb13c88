"""Trials are kept with mlfc's other built files: compiling a model for a board takes seconds, and gives the same again.

The key has all that a trial depends on: the code, flags, the compiler and its libraries, and the program text of mlfc
that measures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from mlfc.errors import MlfcError
from mlfc.library.cache import find_entry, store_entry
from mlfc.micro.board.programs import run
from mlfc.micro.memory.stack_bound import Frame, StackBound
from mlfc.micro.memory.trial import Trial
from mlfc.support.content import Data, sha256_of

_SUFFIX = ".json"
_SECONDS = 20
_LARGEST = 1 << 20
_MEASURES = ("firmware", "memory", "templates/linker")  # folders of what measures


def key_of(compiler: str, core: Sequence[str], said: Sequence[str], code: Mapping[str, Data]) -> str:
    """Return the key of a trial.

    `compiler`: its path; `core`: its flags for the core, by which it chooses libraries.
    `said`: all other words that it is called with.
    """
    files = [f"{path} {sha256_of(code[path])}" for path in sorted(code)]
    parts = [_measuring(), *_identity(compiler, tuple(core)), *said, *files]
    return sha256("\0".join(parts).encode()).hexdigest()


def find(key: str) -> Trial | None:
    """Return the trial that is kept under a key; None where there is none."""
    path = find_entry(key, _SUFFIX)
    if path is None:
        return None
    try:
        document = json.loads(path.read_bytes()[:_LARGEST])
        stack = document["stack"]
        frames = tuple(Frame(function, nbytes) for function, nbytes in stack["path"])
        return Trial(document["sizes"], StackBound(stack["bytes"], frames, tuple(stack["untold"])))
    except (OSError, ValueError, KeyError, TypeError):  # another process may have removed it
        return None


def keep(key: str, trial: Trial) -> None:
    """Keep a trial; without a folder to write to, the next one is made anew."""
    stack = trial.stack
    frames = [(item.function, item.nbytes) for item in stack.path]
    document = {
        "sizes": dict(trial.sizes),
        "stack": {"bytes": stack.nbytes, "path": frames, "untold": list(stack.untold)},
    }
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


def _stamp(path: Path) -> str:
    try:
        state = path.stat()
    except OSError:  # a name that the compiler does not know comes back as it is
        return "none"
    return f"{state.st_size} {state.st_mtime_ns}"


@cache
def _measuring() -> str:
    """Return the hash of the program text that makes and measures trials."""
    folder = Path(__file__).parents[1]
    paths = sorted(path for name in _MEASURES for path in (folder / name).iterdir() if path.is_file())
    return sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
