"""Code of modules as libraries of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from mlforge.crt import crt_files
from mlforge.errors import ToolchainError
from mlforge.library.elf import misfit
from mlforge.library.toolchain import NATIVE, compile_cached
from mlforge.support.content import Data, chunks_of, to_bytes

_RUNTIME = "runtime"
_RUNTIME_PARTS = ("include", "src/runtime/crt/common", "host")
_RUNTIME_INCLUDES = (f"{_RUNTIME}/include", f"{_RUNTIME}/host")
# functions are looked up in the library itself, whether or not it has a system library
_RUNTIME_FLAG = "-DTVM_CRT_SYSTEM_LIB=0"
_RUNTIME_HEADER = b"tvm/runtime/"
_RUNTIME_SYMBOL = b"TVM"
_CPP = (".cc", ".cpp")
_SOURCES = (".c", *_CPP, ".S", ".h")
_OBJECT = ".o"


def build_library(
    files: Mapping[str, Data], flags: Sequence[str] = (NATIVE,), *, digests: Mapping[str, str] | None = None
) -> Path:
    """Return a shared library of a module's code, from the cache where it is there.

    Parameters
    ----------
    files : mapping of str to Data
        As archives have them under ``codegen/host``: ``src/...``, ``include/...`` and ``lib/....o``. Objects for this
        machine are linked as they are; else the C is compiled. Code that includes the C runtime's headers is built
        with mlforge's runtime.
    flags : sequence of str
        For the compiler.
    digests : mapping of str to str, optional
        SHA-256 of `files`, where it is known and was checked.

    Raises
    ------
    ToolchainError
        If there is no code for this machine, no compiler, or it refuses the code.
    """
    chosen = host_code(files)
    if not needs_runtime(chosen):
        return compile_cached(chosen, flags, digests=digests)
    folders = sorted({str(PurePosixPath(name).parent) for name in chosen})
    runtime = {f"{_RUNTIME}/{name}": data for name, data in runtime_files().items()}
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
        If there is neither, or C++ without objects.
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
    for name in sorted(rest):
        if PurePosixPath(name).suffix in _CPP:
            raise ToolchainError(
                "C++ is not compiled here, only C",
                place=name,
                next_step="Compile it, and put its object into the archive under codegen/host/lib",
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
def runtime_files() -> Mapping[str, bytes]:
    """Return what code with packed functions is built with: the C runtime's headers and common part, by path."""
    return crt_files(*_RUNTIME_PARTS)
