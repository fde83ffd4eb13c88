"""Loading of archives, libraries and compiled modules for execution. Only for trusted files: their code runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlfc.errors import ArchiveError, MlfcError, OptionError, required_for
from mlfc.objfile.head import HEAD, OBJECT, read_head
from mlfc.runtime.executors.aot_module import AotModule, loaded_pools
from mlfc.runtime.modules.runnable import HasModel, LoadedOrigin, Runnable
from mlfc.support.plain_file import open_plain
from mlfc.support.tar import first_file
from mlfc.support.temporary import TemporaryFolder

if TYPE_CHECKING:
    from mlfc.archive.read.module_parts import ModuleParts
    from mlfc.factory import Factory
    from mlfc.library.host import HostLibrary
    from mlfc.runtime.devices.device import Device
    from mlfc.runtime.executors.graph_module import GraphModule
    from mlfc.runtime.executors.vm.vm_model import VmModel
    from mlfc.runtime.executors.vm.vm_module import VmModule
    from mlfc.runtime.libraries.factory import FactoryModule
    from mlfc.runtime.modules.module import Module

_COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\x00")
# by the suffixes that TVM's loader supports
_KINDS_OF_FORMAT = {
    **dict.fromkeys(("so", "dll", "dylib", "dso"), ("library",)),
    "o": ("objects",),
    "tar": ("archive", "objects"),
}
LOADING = "loading this file"
MEMORY = (bytes, bytearray, memoryview)
IN_MEMORY = "bytes"
"""Name in messages of an artifact that is not in a file."""
_TAR_MAGIC = slice(257, 262)


def open_module(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, module: str | None = None, *, fmt: str = ""
) -> Any:
    """Load a module; as `mlfc.load_module`."""
    with required_for(LOADING, IN_MEMORY if isinstance(source, MEMORY) else str(source)):
        if isinstance(source, MEMORY):
            view = memoryview(source)
            root = _module_of_bytes(view.cast("B") if view.c_contiguous else memoryview(bytes(view)), module, fmt)
        else:
            root = _module_of_file(source, module, fmt)
    root.origin = LoadedOrigin.of(open_module, source, module)
    return root


def _module_of_file(source: str | os.PathLike[str], module: str | None, fmt: str) -> Any:
    kind = artifact_kind(source)
    _check_format(fmt, kind, str(source))
    if kind == "model":
        raise ArchiveError(
            "this is neither an archive nor a library",
            place=str(source),
            next_step="Compile a model first with: mlfc compile MODEL",
        )
    if kind == "archive":
        from mlfc.archive.read.module_parts import read_parts

        parts = read_parts(source, module)
        lib = host_library(parts)
        return lib if parts.executor is None else _factory_module(parts, lib)
    from mlfc.runtime.libraries.shared_library import open_library

    if kind == "library":
        return open_library(source, module)
    from mlfc.library.build import linked_library

    return open_library(linked_library(source), module, place=str(source))


def _check_format(fmt: str, kind: str, place: str) -> None:
    if fmt and kind not in _KINDS_OF_FORMAT.get(fmt, ()):
        known = ", ".join(_KINDS_OF_FORMAT)
        raise ArchiveError(
            f"expected a file of the format '{fmt}'", place=place, next_step=f"Omit fmt. Formats: {known}"
        )


def _module_of_bytes(data: memoryview, module: str | None, fmt: str) -> Any:
    if _kind_of_code(bytes(data[:HEAD])) == "library":
        from mlfc.runtime.ffi.library_names import library_in_memory
        from mlfc.runtime.libraries.shared_library import open_library

        _check_format(fmt, "library", IN_MEMORY)
        with library_in_memory(data) as name:
            return open_library(name, module, place=IN_MEMORY)
    with file_of(data) as path:
        return _module_of_file(path, module, fmt)


@contextmanager
def file_of(data: bytes | bytearray | memoryview) -> Iterator[Path]:
    """Yield a temporary file with these bytes; errors name it `IN_MEMORY`."""
    with TemporaryFolder() as folder:
        path = Path(folder) / "module"
        path.write_bytes(data)
        try:
            yield path
        except MlfcError as error:
            if error.place is not None:
                error.place = error.place.replace(str(path), IN_MEMORY)
            raise


def model_of_library(root: Any, place: str, devices: Sequence[Device]) -> Any:
    """Return the model in a loaded library; raise ArchiveError if it has none."""
    from mlfc.runtime.libraries.factory import FactoryModule, ModuleSet

    if isinstance(root, ModuleSet):
        root = root.pick(None, place)
    if devices and isinstance(root, FactoryModule):
        return root.model_on(devices)
    if not isinstance(root, HasModel):
        raise ArchiveError(
            f"the library holds a module of the kind '{root.type_key}', not a model",
            place=place,
            next_step=f"Load its functions with mlfc.load_module({place!r})",
        )
    return root.model


def model_of_parts(parts: ModuleParts, devices: Sequence[Device] = ()) -> AotModule | GraphModule | VmModel:
    """Return the model of an archive; raise OptionError if it has none, or ToolchainError as for `build_library`."""
    if parts.executor is None:
        raise OptionError(
            "the archive holds functions, not a model",
            place=parts.place,
            next_step=f"Load them with mlfc.load_module({parts.place!r})",
        )
    made = _factory_module(parts, host_library(parts))
    if parts.executable is not None:
        return made.model  # type: ignore[return-value]  # as the next: the type matches these parts
    return made.model_on(devices)  # type: ignore[return-value,union-attr]


def _factory_module(parts: ModuleParts, lib: HostLibrary) -> FactoryModule | VmModule:
    """Return the factory of a module of an archive, or its dynamic model."""
    if parts.executable is not None:
        from mlfc.runtime.executors.vm.vm_module import VmModule

        return VmModule(parts.executable, lib)
    from mlfc.runtime.libraries.factory import DEFAULT_KEY, FactoryModule

    return FactoryModule(
        parts.record.name,
        lib,
        lambda devices: _model(parts, lib, devices),
        graph_json=parts.graph_json,
        params=parts.params,
        key=DEFAULT_KEY,
    )


def load_factory(factory: Factory, devices: Sequence[Device] = ()) -> Runnable:
    """Return the module that `build` produced, loaded in this process, compiled by LLVM if no C compiler is found."""
    from mlfc.archive.details import module_info
    from mlfc.compiler import runnable_here

    factory = runnable_here(factory)
    if factory.executor == "vm":
        made: Any = factory.runtime
        return made.model_with(made)  # type: ignore[no-any-return]  # a VmModule; each model has separate states
    details = module_info(factory)
    if not factory.graph_json:
        return AotModule(factory.lib.executable(), details, loaded_pools(details, factory.code.files))
    from mlfc.runtime.executors.graph_module import GraphModule

    return GraphModule.described(factory.graph_json, factory.lib, details, devices=devices)


def host_library(parts: ModuleParts) -> HostLibrary:
    """Return the code of a module of an archive, with the modules that it imports."""
    from mlfc.library.build import has_only_objects
    from mlfc.library.host import HostLibrary

    kind = HostLibrary
    if parts.record.details is not None and has_only_objects(parts.code):  # our own, which need no compiler
        from mlfc.library.llvm_library import LlvmLibrary

        kind = LlvmLibrary
    lib = kind(parts.code, params=parts.params, digests=parts.digests)
    for module in parts.imports:
        lib.import_module(module)
    return lib


def _model(parts: ModuleParts, lib: HostLibrary, devices: Sequence[Device]) -> AotModule | GraphModule:
    if parts.executor == "graph":
        return load_graph(parts, lib, devices)
    details = parts.record.details
    if details is not None:
        return AotModule(lib.executable(), details, loaded_pools(details, parts.code))
    if parts.header is not None:
        from mlfc.archive.read.c_header import c_interface
        from mlfc.library.build import build_library

        description = c_interface(parts.record, parts.header, parts.relay, parts.place)
        return AotModule(build_library(parts.code, digests=parts.digests), description)
    from mlfc.runtime.libraries.library_module import PackedAotModule

    return PackedAotModule(lib.loaded(), parts.record.name)


def load_graph(parts: ModuleParts, lib: Module, devices: Device | Sequence[Device] = ()) -> GraphModule:
    """Return the model of an archive for the graph executor, which calls the functions of `lib`."""
    from mlfc.runtime.executors.graph_executor import GraphExecutor
    from mlfc.runtime.executors.graph_json import parse_graph
    from mlfc.runtime.executors.graph_module import GraphModule

    place = f"{parts.place}: {parts.record.files.graph}"
    if parts.record.details is not None:
        return GraphModule.described(parts.graph_json, lib, parts.record.details, place, devices)
    from mlfc.archive.read.c_header import graph_outputs

    executor = GraphExecutor(parse_graph(parts.graph_json, place), lib, devices)
    outputs = parts.record.main[0].outputs if parts.record.main else ()
    return GraphModule(executor, outputs=graph_outputs(outputs, executor.output_infos()))


def kind_of_artifact(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> str:
    """Return the kind of a file or of its contents, as `artifact_kind`."""
    if not isinstance(source, MEMORY):
        return artifact_kind(source)
    start = bytes(source[:HEAD])
    return "archive" if _is_tar(start) else _kind_of_code(start) or "model"


def artifact_kind(path: str | os.PathLike[str]) -> str:
    """Return a file's kind by content: ``archive``, ``library``, ``objects``, or for anything else ``model``."""
    try:
        with open_plain(path) as file:
            start = file.read(HEAD)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArchiveError(f"cannot be read: {reason}", place=str(path)) from error
    if not _is_tar(start):
        return _kind_of_code(start) or "model"
    from mlfc.library.toolchain import OBJECT_SUFFIX, SOURCES

    # files of archives are in folders, except metadata
    name = first_file(path) or ""
    return "objects" if "/" not in name and name.endswith((OBJECT_SUFFIX, *SOURCES)) else "archive"


def may_be(kind: str, start: bytes) -> bool:
    """Return True if a file that starts with these `HEAD` bytes may be of a kind returned by `artifact_kind`."""
    return (kind in ("archive", "objects") and _is_tar(start)) or kind == _kind_of_code(start)


def _is_tar(start: bytes) -> bool:
    return start.startswith(_COMPRESSED) or start[_TAR_MAGIC] == b"ustar"


def _kind_of_code(start: bytes) -> str | None:
    """Return ``objects`` or ``library`` for the start of a machine code file, else None."""
    head = read_head(start)
    if head is None:
        # even damaged ones are not models
        return "library" if start.startswith((b"\x7fELF", b"MZ")) else None
    return "objects" if head.kind == OBJECT else "library"
