"""Code of a module, ready to run on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from mlfc.byoc.generator import supply_of
from mlfc.errors import ToolchainError
from mlfc.library.build import Beside, build_library
from mlfc.library.export import export_library
from mlfc.library.toolchain import NATIVE
from mlfc.runtime.ffi.native_code import NativeCode
from mlfc.runtime.libraries.library_module import LibraryModule
from mlfc.runtime.modules.external_code import ExternalCode
from mlfc.runtime.modules.module import Function, Module
from mlfc.support.arrays import Array
from mlfc.support.content import Data, to_bytes
from mlfc.support.locks import ForkSafeLock


class HostLibrary(Module):
    """C of a module, which becomes a library of this machine when a function is first asked for.

    Parameters
    ----------
    files, digests, flags
        As for `build_library`.
    params : mapping of str to ndarray, optional
        Constants that the code takes as arguments, for executors: what `linked_params` returns.
    beside : callable, optional
        Takes calling conventions and the code, and returns what lies beside it in libraries that are exported; a path
        of the code takes the place of that file.
    cpu : str
        The processor that the code is for, as in target strings.
    native : callable, optional
        Returns the files for this very processor, where compilers of C cannot make them of `files`, which run on all of
        its kind.

    Notes
    -----
    The library is cached by content.
    """

    type_key = "c"
    is_dso_exportable = True
    is_runnable = True

    def __init__(
        self,
        files: Mapping[str, Data],
        *,
        params: Mapping[str, Array] | None = None,
        digests: Mapping[str, str] | None = None,
        flags: Sequence[str] = (NATIVE,),
        beside: Beside | None = None,
        cpu: str = "generic",
        native: Callable[[], Mapping[str, Data]] | None = None,
    ) -> None:
        super().__init__()
        self.files = files
        self._native = native
        self.cpu = cpu
        self._beside = beside
        self._params = dict(params or {})
        self._digests = digests
        self._flags = tuple(flags)
        self._lock = ForkSafeLock()
        self._loaded: LibraryModule | None = None

    @property
    def format(self) -> str:
        """``c``."""
        return "c"

    def get_source(self) -> str:
        """Return all C files as one text, in the order of their names."""
        files = sorted(name for name in self.files if PurePosixPath(name).suffix == ".c")
        return "\n".join(to_bytes(self.files[name]).decode() for name in files)

    def files_here(self) -> Mapping[str, Data]:
        """Return the files whose code uses all that this very processor has."""
        return self.files if self._native is None else self._native()

    def library_files(self, abi: Sequence[str], files: Mapping[str, Data]) -> Mapping[str, Data]:
        """Return what lies beside the code in libraries whose functions have these calling conventions."""
        return {} if self._beside is None else self._beside(abi, files)

    def export_library(self, path: str | os.PathLike[str], *arguments: Any, **options: Any) -> Path:
        """Write the code and what it imports as a library; as `mlfc.library.export.export_library`."""
        return export_library(self, path, *arguments, **options)

    def linked_params(self) -> Mapping[str, Array]:
        """Return the constants that the code takes as arguments, by name."""
        return self._params

    @property
    def path(self) -> Path:
        """The library, built if it is not in the cache."""
        with self._told_what_it_needs():
            return build_library({**self.files, **self._external_files()}, self._flags, digests=self._digests)

    def _external(self) -> list[ExternalCode]:
        return [module for module in self.imported_modules if isinstance(module, ExternalCode)]

    def _external_files(self) -> dict[str, Data]:
        """Return the code of external generators, which is built with this one."""
        return {path: data for module in self._external() for path, data in module.files.items()}

    @contextmanager
    def _told_what_it_needs(self) -> Iterator[None]:
        """Let an error of building say what the code of external generators needs beside itself."""
        try:
            yield
        except ToolchainError as error:
            supplies = [
                text for name in {item.type_key: None for item in self._external()} if (text := supply_of(name))
            ]
            if supplies:
                error.next_step = f"It needs {'; '.join(supplies)}"
            raise

    def executable(self) -> str | NativeCode:
        """Return what the code's model is run from: a library's path, or code in this process."""
        return str(self.path)

    def loaded(self) -> LibraryModule:
        """Return the library, built and loaded.

        Raises
        ------
        ToolchainError
            If there is no code for this machine, no compiler, or it refuses the code.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = LibraryModule(self.path, self)
            return self._loaded

    def find_function(self, name: str) -> Function | None:
        """Return a packed function of the library."""
        return self.loaded().find_function(name)
