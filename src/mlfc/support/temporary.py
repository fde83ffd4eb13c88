"""Temporary folders. Those of killed processes are removed by the next process."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
import weakref
from contextlib import suppress
from functools import cache

try:
    import fcntl
except ImportError:  # Windows: folders of killed processes stay
    fcntl = None  # type: ignore[assignment]

_PREFIX = "mlfc-tmp-"
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]+")
_SETTLED = 60  # seconds after which a folder in use is certainly locked


class TemporaryFolder:
    """A folder that only this user may read, locked until it is removed or its process ends.

    Unlike with `tempfile`, forked children, which run the same exit functions, do not remove it.
    """

    def __init__(self) -> None:
        _remove_once(os.getpid())
        self.name = tempfile.mkdtemp(prefix=_PREFIX)
        self._end = weakref.finalize(self, _end, self.name, _locked(self.name), os.getpid())

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove the folder."""
        self._end()


def _end(path: str, lock: int | None, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def remove_abandoned() -> None:
    """Remove this user's temporary folders whose processes have ended.

    A folder is in use if it is locked: the system frees locks with the process, while process ids may be reused.
    """
    if fcntl is None:
        return
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for path in (entry.path for entry in entries if _NAME.fullmatch(entry.name)):
            _remove(path)


@cache
def _remove_once(_process: int) -> None:
    remove_abandoned()


def _remove(path: str) -> None:
    with suppress(OSError):
        # do not follow links
        if os.lstat(path).st_uid != os.getuid() or time.time() - os.lstat(path).st_mtime < _SETTLED:
            return
        lock = _locked(path)
        if lock is not None:
            try:
                if os.path.samestat(os.lstat(path), os.fstat(lock)):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _locked(path: str) -> int | None:
    """Return the descriptor that locks a folder; None if another process holds the lock, or locks are unsupported."""
    if fcntl is None:
        return None
    descriptor = None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor
