"""Code of a module, ready to run on this machine."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from mlforge.library.build import build_library
from mlforge.library.toolchain import NATIVE
from mlforge.runtime.arrays import Array
from mlforge.runtime.library_module import LibraryModule
from mlforge.runtime.module import Function, Module
from mlforge.support.content import Data, to_bytes


class HostLibrary(Module):
    """C of a module, which becomes a library of this machine when a function is first asked for.

    Parameters
    ----------
    files, digests, flags
        As for `build_library`.
    params : mapping of str to ndarray, optional
        Constants that the code takes as arguments, for executors: what `linked_params` returns.

    Notes
    -----
    The library is cached by content.
    """

    type_key = "c"

    def __init__(
        self,
        files: Mapping[str, Data],
        *,
        params: Mapping[str, Array] | None = None,
        digests: Mapping[str, str] | None = None,
        flags: Sequence[str] = (NATIVE,),
    ) -> None:
        super().__init__()
        self.files = files
        self._params = dict(params or {})
        self._digests = digests
        self._flags = tuple(flags)
        self._lock = threading.Lock()
        self._loaded: LibraryModule | None = None

    @property
    def is_runnable(self) -> bool:
        """It builds itself when needed."""
        return True

    @property
    def is_dso_exportable(self) -> bool:
        """It is source code."""
        return True

    @property
    def format(self) -> str:
        """``c``."""
        return "c"

    def get_source(self) -> str:
        """Return all C files as one text, in the order of their names."""
        files = sorted(name for name in self.files if PurePosixPath(name).suffix == ".c")
        return "\n".join(to_bytes(self.files[name]).decode() for name in files)

    def linked_params(self) -> Mapping[str, Array]:
        """Return the constants that the code takes as arguments, by name."""
        return self._params

    @property
    def path(self) -> Path:
        """The library, built if it is not in the cache."""
        return build_library(self.files, self._flags, digests=self._digests)

    def loaded(self) -> LibraryModule:
        """Return the library, built and loaded.

        Raises
        ------
        ToolchainError
            If there is no code for this machine, no compiler, or it refuses the code.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = LibraryModule(self.path)
            return self._loaded

    def find_function(self, name: str) -> Function | None:
        """Return a packed function of the library."""
        return self.loaded().find_function(name)
