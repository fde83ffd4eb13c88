"""Code of modules as libraries of this machine."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from mlforge.crt import crt_files
from mlforge.errors import ToolchainError
from mlforge.library.elf import misfit
from mlforge.library.toolchain import NATIVE, compile_cached
from mlforge.runtime.arrays import Array
from mlforge.runtime.library_module import LibraryModule
from mlforge.runtime.module import Function, Module
from mlforge.support.content import Data, chunks_of, to_bytes

_RUNTIME = "runtime"
_RUNTIME_PARTS = ("include/", "src/runtime/crt/common/", "host/")
_RUNTIME_INCLUDES = (f"{_RUNTIME}/include", f"{_RUNTIME}/host")
# functions are looked up in the library itself, whether or not it has a system library
_RUNTIME_FLAG = "-DTVM_CRT_SYSTEM_LIB=0"
_RUNTIME_HEADER = b"tvm/runtime/"
_RUNTIME_SYMBOL = b"TVM"
_SOURCES = (".c", ".cc", ".cpp", ".S", ".h")
_OBJECT = ".o"


class HostLibrary(Module):
    """C of a module, which becomes a library of this machine when a function is first asked for.

    Parameters
    ----------
    files : mapping of str to bytes or Content
        As archives have them under ``codegen/host``: ``src/...``, ``include/...`` and ``lib/....o``. Objects for this
        machine are linked as they are; else the C is compiled. Code that includes the C runtime's headers is built
        with mlforge's runtime.
    params : mapping of str to ndarray, optional
        Constants that the code takes as arguments, for executors: what `linked_params` returns.
    digests : mapping of str to str, optional
        SHA-256 of `files`, where it is known and was checked.
    flags : sequence of str
        For the compiler.

    Notes
    -----
    The library is cached by content; see `mlforge.library.toolchain.compile_cached`.
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
        """The built library."""
        return Path(self.loaded().path)

    def loaded(self) -> LibraryModule:
        """Return the library, built and loaded.

        Raises
        ------
        ToolchainError
            If there is no code for this machine, no compiler, or it refuses the code.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = LibraryModule(build_library(self.files, self._flags, digests=self._digests))
            return self._loaded

    def find_function(self, name: str) -> Function | None:
        """Return a packed function of the library."""
        return self.loaded().find_function(name)


def build_library(
    files: Mapping[str, Data], flags: Sequence[str] = (NATIVE,), *, digests: Mapping[str, str] | None = None
) -> Path:
    """Return a shared library of a module's code, from the cache where it is there.

    Parameters
    ----------
    files, flags, digests
        As for `HostLibrary`.

    Raises
    ------
    ToolchainError
        If there is no code for this machine, no compiler, or it refuses the code.
    """
    chosen = host_code(files)
    if not needs_runtime(chosen):
        return compile_cached(chosen, flags, digests=digests)
    folders = sorted({str(PurePosixPath(name).parent) for name in chosen})
    runtime = {f"{_RUNTIME}/{name}": data for name, data in _runtime().items()}
    return compile_cached(
        {**chosen, **runtime},
        (*flags, _RUNTIME_FLAG),
        includes=(*folders, *_RUNTIME_INCLUDES),
        digests=digests,
    )


def host_code(files: Mapping[str, Data]) -> dict[str, Data]:
    """Return the files to build for this machine: objects that fit it with what has none of them, else the C.

    Raises
    ------
    ToolchainError
        If there is neither.
    """
    objects = {name: data for name, data in files.items() if name.endswith(_OBJECT)}
    rest = {name: data for name, data in files.items() if name not in objects}
    reasons = {name: reason for name, data in sorted(objects.items()) if (reason := misfit(_start(data)))}
    compiled = {PurePosixPath(name).stem for name in objects}
    if objects and not reasons:
        return objects | {name: data for name, data in rest.items() if PurePosixPath(name).stem not in compiled}
    sources = {PurePosixPath(name).stem for name in rest if PurePosixPath(name).suffix in _SOURCES}
    lacking = sorted(name for name in reasons if PurePosixPath(name).stem not in sources)
    if lacking:
        raise ToolchainError(
            f"this object cannot run here: {reasons[lacking[0]]}, and there is no C that could be compiled instead",
            place=lacking[0],
            next_step="Load it on the machine that it was compiled for, or compile the model again for this one",
        )
    return rest


def needs_runtime(files: Mapping[str, Data]) -> bool:
    """Tell whether code calls the C runtime: it includes its headers, or as an object names its functions."""
    for name, data in files.items():
        suffix = PurePosixPath(name).suffix
        mark = _RUNTIME_HEADER if suffix in _SOURCES else _RUNTIME_SYMBOL if suffix == _OBJECT else None
        if mark is not None and mark in to_bytes(data):
            return True
    return False


def _start(data: Data) -> bytes:
    return bytes(next(iter(chunks_of(data)), b"")[:64])


@cache
def _runtime() -> Mapping[str, bytes]:
    return {name: data for name, data in crt_files().items() if name.startswith(_RUNTIME_PARTS)}
