"""Code of modules as libraries of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from mlfc.crt import crt_files
from mlfc.errors import ToolchainError
from mlfc.library.toolchain import NATIVE, OBJECT_SUFFIX, SOURCES, compile_cached
from mlfc.objfile.head import HEAD, OBJECT, misfit
from mlfc.support.content import Data, chunks_of
from mlfc.support.platforms import Platform

Beside: TypeAlias = Callable[[Sequence[str], Mapping[str, Data]], Mapping[str, Data]]
"""Takes calling conventions and code, and returns what lies beside it in libraries that are exported."""
_RUNTIME = "runtime"
_RUNTIME_PARTS = ("include", "src/runtime/crt/common", "host", "library")
# the configuration of libraries comes before that of whole programs
_RUNTIME_INCLUDES = (f"{_RUNTIME}/include", f"{_RUNTIME}/library")
_RUNTIME_HEADERS = (b"tvm/runtime/",)
# names of symbols begin behind the zero of the name before, on some systems with an underscore; one that ends another
# name, such as that of a variable for the function, is not written again
_RUNTIME_SYMBOLS = (b"\0TVM", b"\0_TVM", b"\0__TVM", b"\0___TVM")
_LONGEST_MARK = 16
_CPP = (".cc", ".cpp")
_TEXTS = (*SOURCES, *_CPP, ".h")


def build_library(
    files: Mapping[str, Data], flags: Sequence[str] = (NATIVE,), *, digests: Mapping[str, str] | None = None
) -> Path:
    """Return a shared library of a module's code, from the cache where it is there.

    Parameters
    ----------
    files : mapping of str to Data
        As archives have them under ``codegen/host``: ``src/...``, ``include/...`` and ``lib/....o``. Objects for this
        machine are linked as they are; else the C is compiled. Code that includes the C runtime's headers is built
        with mlfc's runtime.
    flags : sequence of str
        For the compiler.
    digests : mapping of str to str, optional
        SHA-256 of `files`, where it is known and was checked.

    Raises
    ------
    ToolchainError
        If there is no code for this machine, no compiler, or it refuses the code.
    """
    code = buildable(files)
    return compile_cached(code.files, flags, includes=code.includes, digests=digests)


@dataclass(frozen=True)
class Buildable:
    """All that a library is built from.

    Attributes
    ----------
    files : mapping of str to Data
    includes : tuple of str
        Folders of `files` to search for headers.
    """

    files: Mapping[str, Data]
    includes: tuple[str, ...]


def buildable(files: Mapping[str, Data], machine: Platform | None = None) -> Buildable:
    """Return what a library for `machine`, default this one, is built from: the code, and the runtime that it calls.

    Raises
    ------
    ToolchainError
        If there is no code for the machine.
    """
    chosen = fitting_code(files, machine)
    folders = tuple(sorted({str(PurePosixPath(name).parent) for name in chosen}))
    if not needs_runtime(chosen):
        return Buildable(chosen, folders)
    runtime = runtime_code()
    return Buildable({**chosen, **runtime.files}, (*folders, *runtime.includes))


def runtime_code() -> Buildable:
    """Return the runtime that code with packed functions calls, in a folder of its own."""
    return Buildable({f"{_RUNTIME}/{name}": data for name, data in runtime_files().items()}, _RUNTIME_INCLUDES)


def fitting_code(files: Mapping[str, Data], machine: Platform | None = None) -> dict[str, Data]:
    """Return the files to build for a machine: objects that fit it with what has none of them, else the C.

    Raises
    ------
    ToolchainError
        If there is neither, or C++ without objects.
    """
    objects = {name: data for name, data in files.items() if name.endswith(OBJECT_SUFFIX)}
    rest = {name: data for name, data in files.items() if name not in objects}
    reasons = {
        name: reason for name, data in sorted(objects.items()) if (reason := misfit(_start(data), OBJECT, machine))
    }
    compiled = {PurePosixPath(name).stem for name in objects}
    if objects and not reasons:
        return objects | {name: data for name, data in rest.items() if PurePosixPath(name).stem not in compiled}
    sources = {PurePosixPath(name).stem for name in rest if PurePosixPath(name).suffix in _TEXTS}
    lacking = sorted(name for name in reasons if PurePosixPath(name).stem not in sources)
    if lacking:
        raise ToolchainError(
            f"this object cannot be linked: {reasons[lacking[0]]}, and there is no C that could be compiled instead",
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


def has_only_objects(files: Mapping[str, Data]) -> bool:
    """Tell whether code is there as objects and not as sources."""
    suffixes = {PurePosixPath(name).suffix for name in files}
    return OBJECT_SUFFIX in suffixes and suffixes.isdisjoint((*SOURCES, *_CPP))


def needs_runtime(files: Mapping[str, Data]) -> bool:
    """Tell whether code calls the C runtime: it includes its headers, or as an object names its functions."""
    for name, data in files.items():
        suffix = PurePosixPath(name).suffix
        marks = _RUNTIME_HEADERS if suffix in _TEXTS else _RUNTIME_SYMBOLS if suffix == OBJECT_SUFFIX else ()
        if any(mark in piece for piece in _overlapping(data) for mark in marks):
            return True
    return False


def _overlapping(data: Data) -> Iterator[bytes]:
    """Yield the pieces of data, which may be weights of a gigabyte, each with the end of the one before."""
    end = b""
    for chunk in chunks_of(data):
        piece = end + bytes(chunk)
        yield piece
        end = piece[-_LONGEST_MARK:]


def _start(data: Data) -> bytes:
    return bytes(next(iter(chunks_of(data)), b"")[:HEAD])


@cache
def runtime_files() -> Mapping[str, bytes]:
    """Return what code with packed functions is built with: the C runtime's headers and common part, by path."""
    return crt_files(*_RUNTIME_PARTS)
