"""The cache of built libraries, whose content is run: used only where nobody else could have written it.

The name of an entry holds the SHA-256 of its content, so the two cannot be separated, and processes that build the same
at once write the same file or two different ones. A damaged entry counts as missing.
"""

from __future__ import annotations

import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path

from mlfc.errors import OutputError
from mlfc.support.atomic import atomic_file
from mlfc.support.content import Data, FileContent, chunks_of, sha256_of
from mlfc.support.plain_file import existing_private_folder, private_folder

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_warned: set[str] = set()


def cache_folder() -> Path:
    """Return the folder of built files: ``$XDG_CACHE_HOME/mlfc`` or ``~/.cache/mlfc``.

    If it is not writable, or others can write it, a private folder that lives as long as the process.
    """
    folder = _trusted_folder()
    return folder if folder is not None and os.access(folder, os.W_OK) else private_folder()


def find_entry(key: str, suffix: str) -> Path | None:
    """Return an intact entry of the cache by the hash of what it is made from; None if there is none."""
    for folder in (_trusted_folder(), existing_private_folder()):
        if folder is not None:
            for path in sorted(folder.glob(f"{key}-*{suffix}")):
                if _is_intact(path, path.name[len(key) + 1 : -len(suffix)]):
                    return path
    return None


def store_entry(key: str, suffix: str, content: Data) -> Path:
    """Return a new entry, in a private folder if the cache is not writable; raise OutputError if that fails too."""
    name = f"{key}-{sha256_of(content)}{suffix}"
    with suppress(OutputError):
        return _store(cache_folder() / name, content)
    return _store(private_folder() / name, content)


def _store(path: Path, content: Data) -> Path:
    # an existing entry, damaged or writable by others, is replaced, and links are not followed
    with suppress(OSError):
        if path.is_symlink():
            path.unlink()
    with atomic_file(path, permissions=0o700, durable=True) as file:
        for chunk in chunks_of(content):
            file.write(chunk)
    return path


def _is_intact(path: Path, digest: str) -> bool:
    """Tell whether an entry is a file of this user alone with the content that its name promises."""
    try:
        state = path.lstat()
        return stat.S_ISREG(state.st_mode) and _fault_of(state) is None and sha256_of(FileContent(path)) == digest
    except OSError:
        return False


def _trusted_folder() -> Path | None:
    """Return the folder of the cache, made if necessary; None if there is none, or others can write it."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # the specification of these folders wants a path that is not absolute to be passed over
        base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"  # noqa: PTH117  (of a text)
        folder = base / "mlfc"
        for missing in [path for path in (*reversed(folder.parents), folder) if not path.exists()]:
            missing.mkdir(mode=0o700, exist_ok=True)
        folder = folder.resolve(strict=True)
        if not folder.is_dir():
            return None
        fault = _fault_of_folder(folder)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    if fault is None:
        return folder
    _warn_once(f"the cache of built libraries in {folder} is not used: {fault}")
    return None


def _fault_of_folder(folder: Path) -> str | None:
    """Return why somebody else could have written what a folder holds; None if nobody could."""
    fault = _fault_of(folder.stat())
    if fault is not None:
        return f"{folder} {fault}"
    for parent in folder.parents:
        state = parent.stat()
        # in a folder with the sticky bit, as for temporary files, nobody can take what is another's away
        if not (state.st_mode & stat.S_ISVTX and state.st_uid == 0):
            fault = _fault_of(state, or_root=True)
            if fault is not None:
                return f"{parent} {fault}"
    return None


def _fault_of(state: os.stat_result, *, or_root: bool = False) -> str | None:
    if not hasattr(os, "geteuid"):  # Windows, where the folders of users are theirs
        return None
    if state.st_uid != os.geteuid() and not (or_root and state.st_uid == 0):
        return f"belongs to another user, number {state.st_uid}"
    return "can be written by other users" if state.st_mode & _WRITABLE_BY_OTHERS else None


def _warn_once(text: str) -> None:
    if text in _warned:
        return
    _warned.add(text)
    warnings.warn(
        f"{text}. What is built lasts as long as this process. Set XDG_CACHE_HOME to a folder that only you may write",
        stacklevel=2,
    )
