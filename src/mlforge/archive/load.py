"""From archives, libraries and compiled modules to something that runs.

Loading compiles the archive's C and runs it in this process: load only archives that you trust to run. Reading and
checking an archive (`inspect`, `validate`) runs nothing of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mlforge.archive.module_parts import ModuleParts, read_parts
from mlforge.errors import ArchiveError, OptionError
from mlforge.library.build import build_library
from mlforge.runtime.aot_module import AotModule, loaded_pools
from mlforge.support.plain_file import open_plain

if TYPE_CHECKING:
    from mlforge.compiler import Factory
    from mlforge.library.host import HostLibrary
    from mlforge.runtime.device import Device
    from mlforge.runtime.factory import FactoryModule
    from mlforge.runtime.graph_module import GraphModule
    from mlforge.runtime.module import Module
    from mlforge.runtime.shared_library import SharedLibrary

_COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\x00")
_LIBRARIES = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_TAR_MAGIC = slice(257, 262)


def load(path: str | os.PathLike[str], module: str | None = None) -> AotModule | GraphModule:
    """Load a model; the C of an archive is compiled once and cached by content.

    Parameters
    ----------
    path : path
        An archive that mlforge or TVM wrote, of any version, or a shared library that mlforge made.
    module : str, optional
        Which module, where the archive holds several.

    Returns
    -------
    AotModule or GraphModule
        Both have ``inputs``, ``outputs``, ``run`` and ``bind``.

    Raises
    ------
    ArchiveError
        If the archive is damaged, contradicts itself or holds no model.
    OptionError
        If there is no such module, or several and none is named.
    ToolchainError
        If there is no C compiler or it refuses the code.
    """
    if artifact_kind(path) == "library":
        from mlforge.runtime.shared_library import load_shared_library

        return load_shared_library(path, module)
    parts = read_parts(path, module)
    if parts.executor is None:
        raise OptionError(
            "the archive holds functions, not a model",
            place=parts.place,
            next_step=f"Take them with mlforge.load_module({str(path)!r})",
        )
    return _model(parts)


def load_module(path: str | os.PathLike[str], module: str | None = None) -> FactoryModule | SharedLibrary | HostLibrary:
    """Load a module of an archive or of a shared library, told apart by content.

    Returns
    -------
    FactoryModule
        Of an archive with a model: unpacks as ``(graph_json, lib, params)``, makes executors, and runs like what `load`
        gives.
    SharedLibrary
        Of a shared library: a module of its functions; with the model in it where mlforge made it.
    HostLibrary
        Of an archive of single functions: a module of them.

    Raises
    ------
    ArchiveError
        If the file is neither; as `load` otherwise.
    """
    kind = artifact_kind(path)
    if kind == "library":
        from mlforge.runtime.shared_library import SharedLibrary

        return SharedLibrary(path, module)
    if kind != "archive":
        raise ArchiveError(
            "this is neither an archive nor a shared library",
            place=str(path),
            next_step="Compile a model first with: mlforge compile MODEL",
        )
    parts = read_parts(path, module)
    lib = host_library(parts)
    return lib if parts.executor is None else factory_module(parts, lib)


def factory_module(parts: ModuleParts, lib: HostLibrary) -> FactoryModule:
    """Return the factory of a module of an archive."""
    from mlforge.runtime.factory import FactoryModule

    return FactoryModule(
        parts.record.name,
        lib,
        lambda: _model(parts, lib),
        graph_json=parts.graph_json,
        params=parts.params,
    )


def load_factory(factory: Factory) -> AotModule | GraphModule:
    """Return the module that `build` made, ready to run in this process."""
    from mlforge.archive.metadata import module_details

    details = module_details(factory)
    if not factory.graph_json:
        return AotModule(build_library(factory.code.files), details, loaded_pools(details, factory.code.files))
    from mlforge.runtime.graph_module import GraphModule

    return GraphModule.described(factory.graph_json, factory.lib, details)


def host_library(parts: ModuleParts) -> HostLibrary:
    """Return the code of a module of an archive, with the modules that it imports."""
    from mlforge.library.host import HostLibrary

    lib = HostLibrary(parts.code, params=parts.params, digests=parts.digests)
    for module in parts.imports:
        lib.import_module(module)
    return lib


def _model(parts: ModuleParts, lib: HostLibrary | None = None) -> AotModule | GraphModule:
    if parts.executor == "graph":
        return load_graph(parts, lib or host_library(parts))
    if parts.record.details is not None:
        details = parts.record.details
        return AotModule(_built(parts), details, loaded_pools(details, parts.code))
    if parts.header is not None:
        from mlforge.archive.tvm_interface import c_interface

        description = c_interface(parts.record, parts.header, parts.relay, parts.place)
        return AotModule(_built(parts), description)
    from mlforge.runtime.packed_aot_module import PackedAotModule

    return PackedAotModule((lib or host_library(parts)).loaded(), parts.record.name)


def _built(parts: ModuleParts) -> Path:
    return build_library(parts.code, digests=parts.digests)


def load_graph(parts: ModuleParts, lib: Module, device: Device | None = None) -> GraphModule:
    """Return the model of an archive for the graph executor, which runs the functions of `lib` where that is."""
    from mlforge.runtime.graph_executor import GraphExecutor
    from mlforge.runtime.graph_json import parse_graph
    from mlforge.runtime.graph_module import GraphModule

    place = f"{parts.place}: {parts.record.files.graph}"
    if parts.record.details is not None:
        return GraphModule.described(parts.graph_json, lib, parts.record.details, place, device)
    from mlforge.archive.tvm_interface import graph_outputs

    executor = GraphExecutor(parse_graph(parts.graph_json, place), lib, device)
    outputs = parts.record.main[0].outputs if parts.record.main else ()
    return GraphModule(executor, outputs=graph_outputs(outputs, executor.output_infos()))


def artifact_kind(path: str | os.PathLike[str]) -> str:
    """Tell by content whether a file is an ``archive``, a ``library``, or anything else: a ``model``."""
    try:
        with open_plain(path) as file:
            start = file.read(512)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArchiveError(f"cannot be read: {reason}", place=str(path)) from error
    if start.startswith(_COMPRESSED) or start[_TAR_MAGIC] == b"ustar":
        return "archive"
    return "library" if start.startswith(_LIBRARIES) else "model"
