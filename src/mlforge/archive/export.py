"""Writing a Model Library Format archive, a shared library, or objects."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from mlforge.archive import metadata
from mlforge.archive.layout import graph_path, params_path
from mlforge.archive.members import archive_members, linked_code
from mlforge.archive.older import convert, metadata_path
from mlforge.archive.options import ExportOptions
from mlforge.compiler import Factory
from mlforge.crt import crt_files
from mlforge.errors import OptionError
from mlforge.library.build import build_library, needs_runtime
from mlforge.library.toolchain import compile_objects, compile_shared
from mlforge.runtime.shared_library import DESCRIPTION_SYMBOL
from mlforge.support.atomic import atomic_file, check_writable
from mlforge.support.content import Data
from mlforge.support.params import params_content
from mlforge.support.tar import source_date, write_tar

_RUNTIME = "runtime"


def export_model_library_format(
    mod: Factory | Sequence[Factory],
    path: str | os.PathLike[str],
    *,
    options: ExportOptions | None = None,
    include_source_params: bool | None = None,
    **fields: Any,
) -> Path:
    """Write an archive; the same modules give the same bytes.

    Parameters
    ----------
    mod : Factory or sequence of Factory
        What `build` returned; the modules' names must differ.
    path : path
        Where to write. A file that is there is replaced once the new one is complete.
    options : ExportOptions, optional
    include_source_params : bool, optional
        The older name of the option `source_params`.
    **fields
        Any attribute of `ExportOptions`, which then counts instead of that of `options`: ``timestamp=0``,
        ``test_vectors=3``, ...

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    OptionError
        If something else is given than what `build` returns, two modules have the same name, or options contradict
        each other.
    ToolchainError
        If test vectors are wanted and the code cannot be compiled here; nothing has been written then.
    OutputError
        If the place cannot be written.
    """
    given = list(mod) if isinstance(mod, Sequence) else [mod]
    for item in given:
        if not isinstance(item, Factory):
            raise OptionError(
                f"an object of the class {type(item).__name__} cannot be exported",
                next_step="Give what mlforge.build or mlforge.rebuild returned, whole",
            )
    # the order of metadata, so that what is compiled again from the archive comes in the same one
    factories = sorted(given, key=lambda factory: factory.module_name)
    if include_source_params is not None:
        fields.setdefault("source_params", include_source_params)
    chosen = replace(options or ExportOptions(), **fields)
    target = Path(path)
    check_writable(target)
    seconds = source_date(chosen.timestamp)
    files = archive_files(factories, chosen, seconds)
    with atomic_file(target) as file:
        write_tar(file, files, seconds)
    return target


def archive_files(factories: Sequence[Factory], options: ExportOptions, seconds: int) -> dict[str, Data]:
    """Return all members of an archive by path, in the version and form that the options ask for.

    Parameters
    ----------
    factories : sequence of Factory
    options : ExportOptions
    seconds : int
        The time to stamp on it, since 1970.
    """
    members = archive_members(factories, options, seconds)
    document = metadata.archive_metadata(factories, members.files, members.facts, members.linked, options, seconds)
    files, document = convert(members.files, document, options)
    return {**files, metadata_path(options): metadata.to_bytes(document)}


def export_shared_library(
    factories: Sequence[Factory], path: str | os.PathLike[str], options: ExportOptions | None = None
) -> Path:
    """Write a shared library for this machine that carries its own description.

    Parameters
    ----------
    factories : sequence of Factory
        What `build` returned; the modules' names must differ. Of modules for the graph executor the library has the
        packed functions: their graphs and parameters come from elsewhere.
    path : path
    options : ExportOptions, optional
        Say what the modules share.

    Raises
    ------
    OptionError
        If a module has constants that its caller loads.
    ToolchainError
        If there is no C compiler or it refuses the code.
    OutputError
        If the place cannot be written.
    """
    for factory in factories:
        if factory.code.loaded:
            raise OptionError(
                f"a library has no place for the constants that callers of module '{factory.module_name}' load",
                place=", ".join(factory.code.loaded),
                next_step="Make an archive, or leave the constants in the code",
            )
    linked = linked_code(factories, options or ExportOptions())
    modules = {
        factory.module_name: metadata.module_details(factory, code)
        for factory, code in zip(factories, linked.modules, strict=True)
        if code.entry is not None
    }
    text = json.dumps({"modules": modules}, sort_keys=True).encode()
    # numbers, because C promises string literals of no more than 4,095 characters
    numbers = ",".join(map(str, (*text, 0)))
    description = f"const char {DESCRIPTION_SYMBOL}[] = {{{numbers}}};\n".encode()
    files = {**linked.files, "src/mlforge_description.c": description}
    if not needs_runtime(files):
        return compile_shared(files, path)
    target = Path(path)
    with atomic_file(target) as file, build_library(files).open("rb") as built:
        shutil.copyfileobj(built, file, 1 << 20)
    if target.is_file():  # a device keeps its mode
        target.chmod(0o755)
    return target


def object_files(factories: Sequence[Factory], options: ExportOptions | None = None) -> dict[str, Data]:
    """Return the code of these modules compiled by the C compiler at hand (``CC``), and its headers, by path.

    The options say what the modules share.

    Raises
    ------
    ToolchainError
        If there is no C compiler or it refuses the code.
    """
    code = code_files(factories, options)
    loaded = {path for factory in factories for path in factory.code.loaded.values()}
    files = {path: data for path, data in code.items() if path.endswith(".h") or path in loaded}
    runtime = {f"{_RUNTIME}/{path}": data for path, data in crt_files().items() if path.endswith(".h")}
    sources = {**code, **runtime} if needs_runtime(code) else code
    folders = sorted({*(str(PurePosixPath(path).parent) for path in code), f"{_RUNTIME}/include", f"{_RUNTIME}/host"})
    with tempfile.TemporaryDirectory(prefix="mlforge-objects-") as folder:
        for built in compile_objects(sources, Path(folder), includes=folders):
            files[f"lib/{built.name.removesuffix('.o').rpartition('.')[0]}.o"] = built.read_bytes()
    return files


def code_files(factories: Sequence[Factory], options: ExportOptions | None = None) -> dict[str, Data]:
    """Return the generated code of these modules by path: ``src/...`` and ``include/...``.

    The options say what the modules share.
    """
    return dict(linked_code(factories, options or ExportOptions()).files)


def source_folder(factories: Sequence[Factory], options: ExportOptions | None = None) -> dict[str, Data]:
    """Return `code_files`, and for the graph executor also the C runtime, the graphs and the parameters."""
    files = code_files(factories, options)
    for factory in factories:
        if factory.graph_json:
            files[graph_path(factory.module_name)] = factory.graph_json.encode()
            files[params_path(factory.module_name)] = params_content(factory.params)
            files.update({f"{_RUNTIME}/{path}": data for path, data in crt_files().items()})
    return files
