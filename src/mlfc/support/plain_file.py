"""Opening files that users name: plain ones only."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading.

    A pipe or a device is refused: to read one may wait or go on for ever, and archives and models are read in any
    order.

    Raises
    ------
    OSError
        If there is no such file, it cannot be read, or it is no plain file.
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
