"""TVM's ``tvm.contrib`` and ``tvm.contrib.utils``: executors and temporary folders."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from mlfc import debug_executor as debug_executor
from mlfc import graph_executor as graph_executor

graph_runtime, debug_runtime = graph_executor, debug_executor
"""The names before TVM 0.8."""
debugger = utils = sys.modules[__name__]


class TempDirectory:
    """A folder that is deleted with this object, or by `remove`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mlfc_")
        self.temp_dir = self.path = self._folder.name

    def relpath(self, name: str) -> str:
        """Return the path of a file in the folder."""
        return str(Path(self.path, name))

    def listdir(self) -> list[str]:
        """Return the names of the files in the folder."""
        return sorted(path.name for path in Path(self.path).iterdir())

    def remove(self) -> None:
        """Delete the folder."""
        self._folder.cleanup()


tempdir = TempDirectory
