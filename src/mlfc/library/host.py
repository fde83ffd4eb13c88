"""Code of a module for this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from mlfc.byoc.generator import supply_of
from mlfc.errors import ToolchainError
from mlfc.library.build import Beside, build_library
from mlfc.library.export import STATIC, export_library, level_flags
from mlfc.library.toolchain import NATIVE, find_compiler
from mlfc.runtime.ffi.native_code import NativeCode
from mlfc.runtime.libraries.library_module import LibraryModule
from mlfc.runtime.modules.module import ExternalCode, Function, Module
from mlfc.support.content import Data, to_bytes
from mlfc.support.locks import ForkSafeLock
from mlfc.support.params import ParameterOffsets
from mlfc.support.tensor_info import Array
from mlfc.target.features import Level, flagged_level, level_here, levels_of_host


class HostLibrary(Module):
    """C of a module, compiled to a library for this machine when a function is first used, and cached by content.

    `files`, which may be a function that is called when they are needed, `digests` and `flags` are as for
    `build_library`, `cpu` as in target strings. `params` are constants that the code takes: `linked_params`.
    `beside` returns files for exported libraries, which replace files of the code with the same path. `native` returns
    files for exactly this processor, if C compilers cannot derive them from `files`, which run on all of its kind.
    `levels` are by path the processor levels of files that do not run on all processors; `at_level` returns the files
    for one level only. `system` returns the files for programs with TVM's C runtime, if they differ;
    `system_lib` makes them the default of exported objects.
    """

    type_key = "c"
    format = "c"
    is_dso_exportable = True
    is_runnable = True

    def __init__(
        self,
        files: Mapping[str, Data] | Callable[[], Mapping[str, Data]],
        *,
        params: Mapping[str, Array] | None = None,
        digests: Mapping[str, str] | None = None,
        flags: Sequence[str] = (NATIVE,),
        beside: Beside | None = None,
        cpu: str = "generic",
        native: Callable[[], Mapping[str, Data]] | None = None,
        levels: Mapping[str, Level] | None = None,
        at_level: Callable[[str | None], Mapping[str, Data]] | None = None,
        system: Callable[[], Mapping[str, Data]] | None = None,
        system_lib: bool = False,
    ) -> None:
        super().__init__()
        self.levels = dict(levels or {})
        self._at_level = at_level
        self._files = files
        self._native = native
        self._system = system
        self._system_lib = system_lib
        self.cpu = cpu
        self._beside = beside
        self._params = dict(params or {})
        self._digests = digests
        self._flags = tuple(flags)
        self._lock = ForkSafeLock()
        self._loaded: LibraryModule | None = None

    @cached_property
    def files(self) -> Mapping[str, Data]:  # type: ignore[override]  # created on first access
        """Files of the code, for all of its processors."""
        return self._files() if callable(self._files) else self._files

    def get_source(self) -> str:
        """Return all C files as one text, in name order."""
        files = sorted(name for name in self.files if PurePosixPath(name).suffix == ".c")
        return "\n".join(to_bytes(self.files[name]).decode() for name in files)

    def files_at(self, level: str | None) -> Mapping[str, Data]:
        """Return the files compiled for one processor level, or for every processor if `level` is None."""
        return self.files if self._at_level is None else self._at_level(level)

    def files_here(self) -> Mapping[str, Data]:
        """Return the files whose code uses every feature of this processor."""
        return self.files if self._native is None else self._native()

    def system_files(self) -> Mapping[str, Data]:
        """Return the files for programs with TVM's C runtime, with ``TVMSystemLibEntryPoint``."""
        return self.files if self._system is None else self._system()

    def library_files(
        self, abi: Sequence[str], files: Mapping[str, Data], places: ParameterOffsets
    ) -> Mapping[str, Data]:
        """Return the files beside the code in libraries whose functions have these calling conventions.

        `places` are those of graphs' parameters in the library.
        """
        return {} if self._beside is None else self._beside(abi, files, places)

    def export_library(self, path: str | os.PathLike[str], *arguments: Any, **options: Any) -> Path:
        """Write the code and its imports as a library; as `mlfc.library.export.export_library`."""
        return export_library(self, path, *arguments, **self.export_options(path, options))

    def export_options(self, path: str | os.PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options of an export with the default of `system_lib`: as the model was built, if `path` allows it."""
        is_static = Path(path).suffix.lower() in STATIC and options.get("fcompile") is None
        return {**({"system_lib": True} if self._system_lib and is_static else {}), **options}

    def linked_params(self) -> Mapping[str, Array]:
        """Return the constants that the code takes as arguments, by name."""
        return self._params

    @property
    def path(self) -> Path:
        """Path of the library, built if it is not in the cache."""
        return self.built()

    def built(self, beside: Mapping[str, Data] | None = None, more_flags: Sequence[str] = ()) -> Path:
        """Return the library with the files `beside`, compiled with further flags, from the cache if possible."""
        flags = self._flags
        own: dict[str, Sequence[str]] = {}
        known = levels_of_host()
        if self.levels and known is None:
            files = self.files_at(None)
        elif self.levels and known is not None:
            # this processor only, as generating and compiling it is faster
            level, is_native = level_here(known)
            files = self.files_at(level.name)
            if known.chosen(level.name) is not None:  # kernels that lower levels serve are compiled for these
                compiler, first = find_compiler(), known.levels[0]
                own = {path: level_flags(compiler, self.levels.get(path, first)) for path in (*files, *(beside or ()))}
                flags = ()
            elif not is_native:
                flags = level_flags(find_compiler(), level)
        else:
            files = self.files
            if self._flags == (NATIVE,) and (named := flagged_level(self.cpu)) is not None:
                flags = level_flags(find_compiler(), named)
        code = {**files, **self._external_files(), **(beside or {})}
        with self._told_what_it_needs():
            return build_library(code, (*flags, *more_flags), digests=self._digests, own_flags=own)

    def _external(self) -> list[ExternalCode]:
        return [module for module in self.imported_modules if isinstance(module, ExternalCode)]

    def _external_files(self) -> dict[str, Data]:
        """Return the code of external generators, which is built together with this module."""
        return {path: data for module in self._external() for path, data in module.files.items()}

    @contextmanager
    def _told_what_it_needs(self) -> Iterator[None]:
        """Add the requirements of external generators' code to build errors."""
        try:
            yield
        except ToolchainError as error:
            supplies = list(filter(None, map(supply_of, dict.fromkeys(item.type_key for item in self._external()))))
            if supplies:
                error.next_step = f"It needs {'; '.join(supplies)}"
            raise

    def executable(self) -> str | NativeCode:
        """Return the executable code of the model: a library's path, or code in this process."""
        return str(self.path)

    def loaded(self) -> LibraryModule:
        """Return the library, built and loaded; raise ToolchainError as for `build_library`."""
        with self._lock:
            if self._loaded is None:
                self._loaded = LibraryModule(self.path, self)
            return self._loaded

    def address(self, symbol: str) -> int | None:
        """Return the address of a symbol of the code in this process, or None."""
        return self.loaded().address(symbol)

    def find_function(self, name: str) -> Function | None:
        """Return a packed function of the library."""
        return self.loaded().find_function(name)
