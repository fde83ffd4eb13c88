"""Export of a Model Library Format archive, or of objects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from mlfc.archive.read.opening import MAX_METADATA
from mlfc.archive.write import metadata
from mlfc.archive.write.members import archive_members, executor_files, linked_code, require_one_processor
from mlfc.archive.write.older import convert, metadata_path
from mlfc.archive.write.options import ExportOptions
from mlfc.codegen.device import DIALECTS
from mlfc.crt import crt_files
from mlfc.errors import OptionError
from mlfc.factory import Factory
from mlfc.library.build import needs_runtime
from mlfc.library.toolchain import OBJECT_SUFFIX, SOURCES, Compiler, compile_objects
from mlfc.runtime.executors.graph_json import MAX_TEXT as MAX_GRAPH
from mlfc.runtime.modules.module import Module
from mlfc.support.atomic import atomic_file, check_writable
from mlfc.support.content import Data, to_bytes
from mlfc.support.json_text import MAX_TOKENS, values_of
from mlfc.support.tar import source_date, write_tar
from mlfc.support.temporary import TemporaryFolder

_RUNTIME = "runtime"
_GRAPHS = (".graph", "/graph.json")


def export_model_library_format(
    mod: Factory | Sequence[Factory] | Module,
    path: str | os.PathLike[str],
    *,
    options: ExportOptions | None = None,
    include_source_params: bool | None = None,
    **fields: Any,
) -> Path:
    """Write an archive; equal modules and options produce identical bytes.

    Parameters
    ----------
    mod : Factory, sequence of Factory or Module
        Results of `build`; the modules' names must differ. A result of `load_module` for an archive is recompiled.
    path : path
        The archive. An existing file is replaced once the new one is complete.
    options : ExportOptions, optional
    include_source_params : bool, optional
        The older name of the option `source_params`.
    **fields
        Any attribute of `ExportOptions`, which overrides that of `options`: ``timestamp=0``,
        ``test_vectors=3``, ...

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    OptionError
        If `mod` is not a result of `build`, two modules have the same name, options contradict each other, or the
        archive exceeds a limit of readers.
    ToolchainError
        If test vectors are requested and the code cannot be compiled here; no file is written in this case.
    OutputError
        If `path` cannot be written.

    Examples
    --------
    >>> module, params = mlfc.import_model("digits.tflite")
    >>> factory = mlfc.build(module, params=params)
    >>> mlfc.export_model_library_format(factory, "new.tar").name
    'new.tar'
    """
    if isinstance(mod, Module):
        from mlfc.archive.write.rebuild import rebuilt

        mod, recorded = rebuilt(mod)
        options = options or recorded
    given = list(mod) if isinstance(mod, Sequence) else [mod]
    for item in given:
        if not isinstance(item, Factory):
            raise OptionError(
                f"expected the result of mlfc.build or mlfc.rebuild, got {type(item).__name__}",
                next_step="Pass the complete result of mlfc.build or mlfc.rebuild",
            )
    # the order of metadata, so that recompiling from the archive preserves it
    factories = sorted(given, key=lambda factory: factory.module_name)
    if include_source_params is not None:
        fields.setdefault("source_params", include_source_params)
    chosen = replace(options or ExportOptions(), **fields)
    target = Path(path)
    check_writable(target)
    seconds = source_date(chosen.timestamp)
    require_one_processor(factories)
    files = archive_files(factories, chosen, seconds)
    with atomic_file(target) as file:
        write_tar(file, files, seconds)
    return target


def archive_files(factories: Sequence[Factory], options: ExportOptions, seconds: int) -> dict[str, Data]:
    """Return all members by path, in the version and form of the options, with timestamp `seconds` since 1970."""
    members, trees, linked = archive_members(factories, options, seconds)
    document = metadata.archive_metadata(factories, members, trees, linked, options, seconds)
    files, document = convert(members, document, options)
    files = {**files, metadata_path(options): metadata.to_bytes(document)}
    # our own reader has limits for untrusted archives
    limits = {path: MAX_GRAPH for path in files if path.endswith(_GRAPHS)} | {metadata_path(options): MAX_METADATA}
    faults = []
    for path, limit in limits.items():
        text = to_bytes(files[path])
        if len(text) > limit:
            faults.append(f"{path} has {len(text):,} bytes, more than the {limit:,} allowed")
        if values_of(text) > MAX_TOKENS:
            faults.append(f"{path} has {values_of(text):,} values, more than the {MAX_TOKENS:,} allowed")
    if faults:
        raise OptionError(
            f"the archive would be too large to be read again: {'; '.join(faults)}",
            next_step="Export the modules into several archives",
        )
    return files


def object_files(
    factories: Sequence[Factory], options: ExportOptions | None = None, compiler: Compiler | None = None
) -> dict[str, Data]:
    """Return the compiled code of these modules, by default by the C compiler ``CC``, and its headers.

    The result includes graphs, parameters and descriptions for executors, and kernels of devices. The options choose
    what the modules share. LLVM's code is already in objects.

    Raises ToolchainError if no C compiler is found or it rejects the code.
    """
    code = code_files(factories, options)
    loaded = {path for factory in factories for path in factory.code.loaded.values()}
    files = {path: data for path, data in code.items() if path.endswith((".h", OBJECT_SUFFIX)) or path in loaded}
    beside = _files_beside(factories)
    if not any(path.endswith(SOURCES) for path in code):
        return files | beside
    runtime = {f"{_RUNTIME}/{path}": data for path, data in crt_files().items() if path.endswith(".h")}
    sources = {path: data for path, data in code.items() if path not in files or path.endswith(".h")}
    sources |= runtime if needs_runtime(code) or _has_dynamic(factories) else {}
    folders = sorted({*(str(PurePosixPath(path).parent) for path in code), f"{_RUNTIME}/include", f"{_RUNTIME}/host"})
    with TemporaryFolder() as folder:
        for built in compile_objects(sources, Path(folder), includes=folders, compiler=compiler):
            files[f"lib/{built.name.removesuffix('.o').rpartition('.')[0]}.o"] = built.read_bytes()
    return files | beside


def _files_beside(factories: Sequence[Factory]) -> dict[str, Data]:
    """Return the files that modules need beside their host code: graphs and parameters, and kernels of devices."""
    files: dict[str, Data] = {}
    for factory in factories:
        files |= executor_files(factory)
        if factory.code.device is not None:
            device = factory.code.device
            files[f"src/{factory.module_name}_kernels.{DIALECTS.get(device.kind).suffix}"] = device.source.encode()
    return files


def code_files(factories: Sequence[Factory], options: ExportOptions | None = None) -> dict[str, Data]:
    """Return the generated code of these modules by path: ``src/...``, ``include/...``, ``external/...``.

    The options choose what the modules share.

    Raises OptionError if runtime modules of external generators compute a part.
    """
    require_one_processor(factories)
    files = dict(linked_code(factories, options or ExportOptions()).files)
    for factory in factories:
        kinds = [part.generator for part in factory.code.external if part.is_module]
        if kinds:
            raise OptionError(
                f"a part runs in a module of kind '{kinds[0]}', which generated code alone cannot call",
                place=factory.module_name,
                next_step="Make an archive, --emit mlf, or a library, --emit so",
            )
        files.update(factory.code.built_files)
    return files


def _has_dynamic(factories: Sequence[Factory]) -> bool:
    return any(factory.code.executable is not None for factory in factories)


def source_folder(factories: Sequence[Factory], options: ExportOptions | None = None) -> dict[str, Data]:
    """Return `code_files` with the C runtime, files for executors, and kernels of devices.

    Raises OptionError for modules that LLVM compiled.
    """
    files = code_files(factories, options)
    for path in files:
        if path.endswith(OBJECT_SUFFIX) and not path.startswith("external/"):
            raise OptionError(
                "modules compiled by LLVM have no C sources",
                place=path,
                next_step="Compile for the target 'c', or emit objects: --emit o",
            )
    if any(factory.graph_json for factory in factories) or _has_dynamic(factories):
        files.update({f"{_RUNTIME}/{path}": data for path, data in crt_files().items()})
    return files | _files_beside(factories)
