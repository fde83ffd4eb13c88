"""A folder of this process for files that must lie somewhere as long as it lives."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path


def private_folder() -> Path:
    """Return a folder that nobody else may read, and that vanishes with this process."""
    return _folder_of(os.getpid())


@cache
def _folder_of(process: int) -> Path:
    folder = tempfile.mkdtemp(prefix="mlforge-")
    atexit.register(_remove, folder, process)
    return Path(folder)


def _remove(folder: str, process: int) -> None:
    # children of a fork leave through the same functions
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
