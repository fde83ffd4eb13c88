"""Parts of libraries: code that fits the machine, the runtime that it calls, and blobs of modules."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from mlfc.crt import crt_files
from mlfc.errors import ArchiveError, ToolchainError
from mlfc.library.module_tree import PackedTree
from mlfc.library.toolchain import NATIVE, OBJECT_SUFFIX, RUNTIME, SOURCES, compile_cached
from mlfc.objfile.exports import exports
from mlfc.objfile.head import HEAD, OBJECT, misfit, read_head
from mlfc.objfile.write import blob_source, object_with_data
from mlfc.runtime.libraries.library_module import SYSTEM_LIB
from mlfc.runtime.modules.blob import SYMBOLS
from mlfc.support.c_names import HEADERS, SOURCE
from mlfc.support.content import Data, FileContent, chunks_of, to_bytes, write_data
from mlfc.support.params import ParameterOffsets
from mlfc.support.plain_file import open_plain
from mlfc.support.platforms import Platform
from mlfc.support.tar import open_tar
from mlfc.target.features import AUTO, Level

Beside: TypeAlias = Callable[[Sequence[str], Mapping[str, Data], ParameterOffsets], Mapping[str, Data]]
"""Function that returns the files beside code in exported libraries, given calling conventions, code and offsets."""
PARALLEL = tuple(HEADERS)
"""Functions through which code distributes work over threads."""
# the configuration of libraries takes precedence over that of whole programs
_RUNTIME_INCLUDES = (f"{RUNTIME}/include", f"{RUNTIME}/library")
# folders of the runtime that code needs if it includes their headers
_FOLDERS = {"dynamic": b'"mlfc_dynamic.h"', "relax": b'"mlfc_relax.h"'}
_PARALLEL_INCLUDES = (f"{RUNTIME}/parallel",)
_PARALLEL_HEADERS = tuple(f"<{header}>".encode() for header in HEADERS.values())
_PARALLEL_SYMBOLS = tuple(f"{name}\0".encode() for name in PARALLEL)
# symbol names start after the zero of the previous name, on some systems with an underscore; a name that ends another
# one, as the name of a function may end that of a variable, shares its bytes
_RUNTIME_SYMBOLS = (b"\0TVM", b"\0_TVM", b"\0__TVM", b"\0___TVM")
_LONGEST_MARK = 32
_CPP = (".cc", ".cpp")
_TEXTS = (*SOURCES, *_CPP, ".h")
_NAMES = {SYMBOLS["classic"]: "devc", SYMBOLS["ffi"]: "devc_ffi"}
_LINKED = (OBJECT_SUFFIX, *SOURCES)


def build_library(
    files: Mapping[str, Data],
    flags: Sequence[str] = (NATIVE,),
    *,
    digests: Mapping[str, str] | None = None,
    own_flags: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Return a shared library of a module's code, cached by content.

    `files` are those of archives under ``codegen/host``: ``src/...``, ``include/...`` and ``lib/....o``. Objects for
    this machine are linked as they are; else the C is compiled. Code that includes the C runtime's headers is built
    with mlfc's runtime. `digests` holds the verified SHA-256 of files. `own_flags` are as for `compile_cached`. Raises
    ToolchainError if no code is for this machine, or no compiler is found, or it rejects the code.
    """
    chosen = fitting_code(files)
    folders = sorted({str(PurePosixPath(name).parent) for name in chosen})
    runtime = runtime_code([chosen])
    code, includes = {**chosen, **runtime.files}, (*folders, *runtime.includes)
    return compile_cached(code, flags, includes=includes, digests=digests, own_flags=own_flags)


@dataclass(frozen=True)
class BuildPart:
    """Files that are compiled in the same way."""

    files: Mapping[str, Data]  # sources, their includes, and objects, by path; paths of different parts differ
    includes: tuple[str, ...]  # folders with headers, of this part's files and those of others
    cpu: str = "generic"  # the target processor
    levels: Mapping[str, Level] = field(default_factory=dict)  # processor levels of files that not all processors run


def runtime_code(code: Iterable[Mapping[str, Data]]) -> BuildPart:
    """Return the runtime that code needs, in a separate folder: for packed functions, dynamic models, threads."""
    needed: dict[str, bytes] = {}
    includes: tuple[str, ...] = ()
    for files in code:
        if needs_runtime(files):
            needed.update(runtime_files())
        if _mentions(files, [b"<mlfc_vm.h>"], ()):
            needed.update(crt_files("include"))
        for folder, header in _FOLDERS.items():
            if _mentions(files, [header], ()):
                needed.update(crt_files(folder))
                includes += (f"{RUNTIME}/{folder}",)
        if mentions_parallel(files):
            needed.update(crt_files("parallel"))
            includes += _PARALLEL_INCLUDES
    files = {f"{RUNTIME}/{name}": data for name, data in sorted(needed.items())}
    return BuildPart(files, (*_RUNTIME_INCLUDES, *dict.fromkeys(includes)) if needed else ())


def mentions_parallel(files: Mapping[str, Data]) -> bool:
    """Return True if code distributes work over threads."""
    return _mentions(files, _PARALLEL_HEADERS, _PARALLEL_SYMBOLS)


def fitting_code(files: Mapping[str, Data], machine: Platform | None = None) -> dict[str, Data]:
    """Return the files to build for a machine: matching objects and the files without objects, else the C.

    Raises ToolchainError if no file fits, or for C++ without objects.
    """
    # a thread pool replaces the function that an application may pass in
    files = {name: data for name, data in files.items() if PurePosixPath(name).name != SOURCE}
    objects = {name: data for name, data in files.items() if name.endswith(OBJECT_SUFFIX)}
    rest = {name: data for name, data in files.items() if name not in objects}
    reasons = {
        name: reason
        for name, data in sorted(objects.items())
        if (reason := misfit(next(iter(chunks_of(data)), b"")[:HEAD], OBJECT, machine))
    }
    compiled = {PurePosixPath(name).stem for name in objects}
    if objects and not reasons:
        return objects | {name: data for name, data in rest.items() if PurePosixPath(name).stem not in compiled}
    sources = {PurePosixPath(name).stem for name in rest if PurePosixPath(name).suffix in _TEXTS}
    lacking = sorted(name for name in reasons if PurePosixPath(name).stem not in sources)
    if lacking:
        raise ToolchainError(
            f"this object cannot be linked: {reasons[lacking[0]]}, and it has no C source to compile instead",
            place=lacking[0],
            next_step="Load it on the machine that it was compiled for, or compile the model again for this one",
        )
    for name in sorted(rest):
        if PurePosixPath(name).suffix in _CPP:
            raise ToolchainError(
                "only C can be compiled here, not C++",
                place=name,
                next_step="Compile it, and put its object into the archive under codegen/host/lib",
            )
    return rest


def _parallel_source(files: Mapping[str, Data]) -> Mapping[str, Data]:
    """Return the function of programs that distributes work, which libraries replace by a thread pool."""
    return {name: data for name, data in files.items() if PurePosixPath(name).name == SOURCE}


def has_only_objects(files: Mapping[str, Data]) -> bool:
    """Return True if code consists of objects without sources."""
    suffixes = {PurePosixPath(name).suffix for name in files if PurePosixPath(name).name != SOURCE}
    return OBJECT_SUFFIX in suffixes and suffixes.isdisjoint((*SOURCES, *_CPP))


def needs_runtime(files: Mapping[str, Data]) -> bool:
    """Return True if code calls the C runtime: sources include its headers, objects refer to its functions."""
    return _mentions(files, [b"tvm/runtime/"], _RUNTIME_SYMBOLS)


def _mentions(files: Mapping[str, Data], in_texts: Sequence[bytes], in_objects: Sequence[bytes]) -> bool:
    for name, data in files.items():
        suffix = PurePosixPath(name).suffix
        marks = in_texts if suffix in _TEXTS else in_objects if suffix == OBJECT_SUFFIX else ()
        end = b""
        for chunk in chunks_of(data) if marks else ():  # may be gigabytes of weights
            piece = end + bytes(chunk)
            if any(mark in piece for mark in marks):
                return True
            end = piece[-_LONGEST_MARK:]
    return False


@cache
def runtime_files() -> Mapping[str, bytes]:
    """Return the C runtime's headers and common part by path, for building code with packed functions."""
    return crt_files("include", "src/runtime/crt/common", "host", "library")


def parts_of(
    tree: PackedTree,
    abi: Sequence[str],
    machine: Platform | None,
    *,
    is_native: bool = False,
    has_levels: bool = True,
    system_lib: bool = False,
) -> list[BuildPart]:
    """Return the parts of a library for `machine`, default this one, in the order in which TVM numbers their files.

    `is_native` requests code for exactly this processor; without `has_levels`, no files are for some processors only.
    `system_lib` requests code for a program with TVM's C runtime, without a runtime and the functions of `abi`.
    Raises ToolchainError if a module has no code for the machine.
    """
    code = []
    for module in tree.code:
        files: Mapping[str, Data] = getattr(module, "files")  # noqa: B009  (what modules that are code have)
        if not has_levels and getattr(module, "levels", {}):
            files = module.files_at(None)  # type: ignore[attr-defined]  # which modules with levels have
        other: Callable[[], Mapping[str, Data]] | None = getattr(
            module, "system_files" if system_lib else "files_here", None
        )
        if other and (is_native or system_lib):
            files = other()
        beside: Beside | None = getattr(module, "library_files", None)
        if beside and not (system_lib and tree.modules == (None,)):  # programs do without descriptions of models
            files = {**files, **beside(() if system_lib else abi, files, tree.places)}
        fitting = fitting_code(files, machine)
        code.append({**fitting, **_parallel_source(files)} if system_lib else fitting)
    runtime = runtime_code(code)
    headers = {name: data for name, data in runtime.files.items() if name.endswith(".h")}
    parts = []
    for index, (module, own) in enumerate(zip(tree.code, code, strict=True)):
        # modules may have files of the same name, so each has its own folder
        placed = {f"module{index}/{name}": data for name, data in own.items()}
        folders = sorted({str(PurePosixPath(name).parent) for name in placed})
        cpu, known = getattr(module, "cpu", "generic"), getattr(module, "levels", {})
        levels = {f"module{index}/{name}": level for name, level in known.items() if name in own}
        parts.append(BuildPart(placed | headers, (*folders, *runtime.includes), cpu, levels))
    if runtime.files and not system_lib:
        # for all processors, if a module is
        common = AUTO if any(part.cpu == AUTO for part in parts) else "generic"
        parts.append(BuildPart(runtime.files, runtime.includes, common))
    return parts


def write_blob(tree: PackedTree, folder: Path, machine: Platform | None) -> Path:
    """Write a tree's blob and return its path: as an object, or as C if the machine is unknown or unsupported."""
    content: Data
    # the file names of TVM's exporter
    place = folder / f"{_NAMES[tree.symbol]}{OBJECT_SUFFIX}"
    if machine is None or machine.system == "wasi":
        place, content = place.with_suffix(".c"), blob_source(tree.content, tree.symbol)
    else:
        content = object_with_data({tree.symbol: tree.content}, machine.triple)
    write_data(place, content)
    return place


def linked_library(path: str | os.PathLike[str]) -> Path:
    """Return the shared library of an object, or of a tar of objects, cached by content.

    Raises ArchiveError if the file cannot be read, ToolchainError for other machines' objects or without a compiler.
    """
    with open_plain(path) as file:
        head = read_head(file.read(HEAD))
    files: dict[str, Data] = {}
    if head is not None and head.kind == OBJECT:
        files[f"object{OBJECT_SUFFIX}"] = FileContent(Path(path))
    else:
        with open_tar(path) as tar:
            others = [name for name in tar.sizes if PurePosixPath(name).suffix not in _LINKED]
            if others:
                raise ArchiveError(
                    "the tar contains a file that is neither an object nor C",
                    place=f"{path}: {others[0]}",
                    next_step="Link all of its files to a shared library with the compiler they are for, and load that",
                )
            files = {name: tar.view(name) for name in tar.sizes}
    # objects contain the runtime that they call, or get its functions when loaded, except those for TVM's C runtime;
    # C that includes TVM's headers was exported by TVM, which provides the runtime and its headers separately
    code = fitting_code(files)
    sources = {name: data for name, data in code.items() if PurePosixPath(name).suffix in SOURCES}
    lacks_runtime = runtime_code([sources]).files or _lacks_runtime(code)
    return build_library(files) if lacks_runtime else compile_cached(code, (NATIVE,))


def _lacks_runtime(files: Mapping[str, Data]) -> bool:
    """Return True if objects have a function table for TVM's C runtime, and none of them is part of a runtime."""
    if not _mentions(files, (), [f"{SYSTEM_LIB}\0".encode()]):
        return False
    mark = "TVMAPISetLastError"
    found = [data for name, data in files.items() if _mentions({name: data}, (), [f"{mark}\0".encode()])]
    return not any(item.name == mark for data in found for item in exports(memoryview(to_bytes(data))))
