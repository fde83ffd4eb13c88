"""A folder of this process for files that must lie somewhere as long as it lives."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# by process: the child of a fork makes one of its own
_folders: dict[int, Path] = {}


def private_folder() -> Path:
    """Return a folder that nobody else may read, and that vanishes with this process."""
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
