"""Cache of built libraries. Their code is executed, so it is used only if no other user could have written it.

The name of an entry contains the SHA-256 of its content, so concurrent builds of the same library do not conflict. A
damaged entry counts as missing. Beyond a size limit, the least recently used entries are removed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mlfc.errors import OptionError, OutputError
from mlfc.support.atomic import atomic_file
from mlfc.support.content import Data, FileContent, chunks_of, sha256_of
from mlfc.support.plain_file import existing_private_folder, private_folder
from mlfc.support.text import byte_count

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LIMIT = "MLFC_CACHE_LIMIT"
_USUAL_LIMIT = 1 << 30
_ENTRY = re.compile(r"[0-9a-f]{40,64}-[0-9a-f]{64}\.[a-z]+", re.ASCII)
_ZIG = "zig"
_warned: set[str] = set()


@dataclass(frozen=True)
class CachePart:
    """Number and size of files of one kind, or of removed files."""

    name: str
    files: int
    nbytes: int


def cache_limit() -> int:
    """Return the maximum bytes of built files: ``$MLFC_CACHE_LIMIT`` or 1 GiB; raise OptionError if it is invalid."""
    try:
        return byte_count(os.environ.get(_LIMIT) or _USUAL_LIMIT)
    except OptionError as error:
        raise OptionError(error.cause, place=_LIMIT, next_step=f"Set {_LIMIT} to bytes, or unset it") from None


def cache_folder() -> Path:
    """Return the folder of built files: ``$XDG_CACHE_HOME/mlfc`` or ``~/.cache/mlfc``.

    If it is not writable, or other users can write to it, a private folder for the lifetime of the process.
    """
    folder = _trusted_folder()
    return folder if folder is not None and os.access(folder, os.W_OK) else private_folder()


def find_entry(key: str, suffix: str) -> Path | None:
    """Return an intact cache entry by the hash of its inputs, or None."""
    for folder in filter(None, (_trusted_folder(), existing_private_folder())):
        with os.scandir(folder) as entries:  # ten times as fast as Path.glob
            found = [item.name for item in entries if item.name.startswith(f"{key}-") and item.name.endswith(suffix)]
        for path in (folder / name for name in sorted(found)):
            # owned and writable by this user only, with the content that its name declares
            with suppress(OSError):
                state = path.lstat()
                is_own = stat.S_ISREG(state.st_mode) and _fault_of(state) is None
                if is_own and sha256_of(FileContent(path)) == path.name[len(key) + 1 : -len(suffix)]:
                    with suppress(OSError):  # a read-only folder
                        os.utime(path)
                    return path
    return None


def store_entry(key: str, suffix: str, content: Data) -> Path:
    """Store an entry and return it, in a private folder if the cache is not writable; raise OutputError on failure."""
    name = f"{key}-{sha256_of(content)}{suffix}"
    limit = cache_limit()
    try:
        path = _store(cache_folder() / name, content)
    except OutputError:
        return _store(private_folder() / name, content)
    _remove_entries(path.parent, limit, spare=path)
    return path


def cache_contents() -> list[CachePart]:
    """Return the cache's contents: built files, and the zig compiler's own cache."""
    folder = cache_folder()
    sizes = [state.st_size for _, state in _entries(folder)]
    return [CachePart("built files", len(sizes), sum(sizes)), _contents(folder / _ZIG, "the compiler zig's own")]


def clean_cache(keep: int = 0) -> CachePart:
    """Remove the cache, or all but the newest `keep` bytes of built files; return the removed files.

    Files of other programs stay. A process that uses a removed library is not affected.
    """
    folder = cache_folder()
    removed = _remove_entries(folder, keep)
    if keep:
        return removed
    zig = _contents(folder / _ZIG, _ZIG)
    shutil.rmtree(folder / _ZIG, ignore_errors=True)
    left = _contents(folder / _ZIG, _ZIG)
    files, nbytes = removed.files + zig.files - left.files, removed.nbytes + zig.nbytes - left.nbytes
    return CachePart("removed", files, nbytes)


def _entries(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the entries of a folder, most recently used first."""
    found = []
    for path in folder.iterdir():
        with suppress(OSError):  # another process may remove it
            state = path.lstat()
            if _ENTRY.fullmatch(path.name) and stat.S_ISREG(state.st_mode):
                found.append((path, state))
    return sorted(found, key=lambda item: (-item[1].st_mtime_ns, item[0].name))


def _remove_entries(folder: Path, keep: int, spare: Path | None = None) -> CachePart:
    """Remove the least recently used entries until at most `keep` bytes stay; never the one to `spare`."""
    kept = files = nbytes = 0
    for path, state in _entries(folder):
        kept += state.st_size
        if kept > keep and path != spare:
            with suppress(OSError):
                path.unlink()
                files, nbytes, kept = files + 1, nbytes + state.st_size, kept - state.st_size
    return CachePart("removed", files, nbytes)


def _contents(folder: Path, name: str) -> CachePart:
    sizes = [Path(place, file).lstat().st_size for place, _, files in os.walk(folder) for file in files]
    return CachePart(name, len(sizes), sum(sizes))


def _store(path: Path, content: Data) -> Path:
    # an existing entry, damaged or writable by others, is replaced, and links are not followed
    with suppress(OSError):
        if path.is_symlink():
            path.unlink()
    with atomic_file(path, permissions=0o700, durable=True) as file:
        for chunk in chunks_of(content):
            file.write(chunk)
    return path


def _trusted_folder() -> Path | None:
    """Return the cache folder, created if necessary; None if it is unusable or other users can write to it."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # the XDG specification requires relative paths to be ignored
        base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"  # noqa: PTH117  (of a text)
        folder = base / "mlfc"
        for missing in [path for path in (*reversed(folder.parents), folder) if not path.exists()]:
            missing.mkdir(mode=0o700, exist_ok=True)
        folder = folder.resolve(strict=True)
        if not folder.is_dir():
            return None
        fault = _fault_of_folder(folder)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return None
    if fault is None:
        return folder
    text = f"the cache of built libraries in {folder} is not used: {fault}"
    if text not in _warned:
        _warned.add(text)
        warnings.warn(
            f"{text}. Built libraries are kept until this process ends. "
            "Set XDG_CACHE_HOME to a folder that only you may write",
            stacklevel=2,
        )
    return None


def _fault_of_folder(folder: Path) -> str | None:
    """Return the reason why other users could have written the content of a folder, or None."""
    fault = _fault_of(folder.stat())
    if fault is not None:
        return f"{folder} {fault}"
    for parent in folder.parents:
        state = parent.stat()
        # in a folder with the sticky bit, as for temporary files, users cannot replace files of others
        if not (state.st_mode & stat.S_ISVTX and state.st_uid == 0):
            fault = _fault_of(state, or_root=True)
            if fault is not None:
                return f"{parent} {fault}"
    return None


def _fault_of(state: os.stat_result, *, or_root: bool = False) -> str | None:
    if not hasattr(os, "geteuid"):  # Windows, where users own their folders
        return None
    if state.st_uid != os.geteuid() and not (or_root and state.st_uid == 0):
        return f"belongs to another user, number {state.st_uid}"
    return "can be written by other users" if state.st_mode & _WRITABLE_BY_OTHERS else None
