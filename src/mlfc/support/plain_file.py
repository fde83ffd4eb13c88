"""Opening files that users name, plain ones only; and a private folder of this process for temporary ones."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
# by process: the child of a fork makes one of its own
_folders: dict[int, Path] = {}


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading; raise OSError if it does not exist, cannot be read, or is not a plain file.

    Reading a pipe or a device may wait or go on for ever, and archives and models are read in any order.
    """
    # without O_NONBLOCK, to open a pipe would wait until somebody writes
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


def private_folder() -> Path:
    """Return a folder that only this user may read, and that vanishes with this process."""
    process = os.getpid()
    if process not in _folders:
        folder = tempfile.mkdtemp(prefix="mlfc-")
        atexit.register(_remove, folder, process)
        _folders[process] = Path(folder)
    return _folders[process]


def existing_private_folder() -> Path | None:
    """Return the folder if this process has made it."""
    return _folders.get(os.getpid())


def _remove(folder: str, process: int) -> None:
    # children of a fork leave through the same functions
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
