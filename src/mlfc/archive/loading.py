"""Loading of a model for execution, with or without a C compiler, and compiled models as bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlfc.archive.read.load import (
    IN_MEMORY,
    LOADING,
    MEMORY,
    artifact_kind,
    file_of,
    kind_of_artifact,
    load_factory,
    model_of_library,
    model_of_parts,
    open_module,
)
from mlfc.errors import OptionError, required_for
from mlfc.runtime.modules.runnable import HasModel, LoadedOrigin, Reduced, Restorable, Runnable, kept_by, restore
from mlfc.support.atomic import write_bytes
from mlfc.support.text import Displayed

if TYPE_CHECKING:
    from mlfc.archive.read.module_parts import ModuleParts
    from mlfc.factory import Factory
    from mlfc.runtime.devices.device import Device


def load_module(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, module: str | None = None, *, fmt: str = ""
) -> Any:
    """Load a module of an archive, of a shared library or of objects, which are distinguished by content.

    Parameters
    ----------
    source : path, bytes, bytearray or memoryview
        A path, or the contents.
    module : str, optional
        Name of the module, required if there are several.
    fmt : str
        Expected format, by suffix as for TVM's loader: ``so``, ``o``, ``tar``. The file is rejected if its content
        is of another format.

    Returns
    -------
    Module
        The root of a library's module tree: the `FactoryModule` if `Factory.export_library` wrote the library, the
        `SharedLibrary` itself if it has no tree. For an archive with a model a `FactoryModule`, for an archive of
        single functions the `HostLibrary`. Factories unpack as ``(graph_json, lib, params)``, create executors,
        and run like the result of `load`.

    Raises
    ------
    ArchiveError
        If the source is none of these; otherwise as for `load`.

    Examples
    --------
    >>> executor = mlfc.load_module("digits.so")["default"](mlfc.cpu(0))
    >>> executor.get_num_outputs()
    1
    """
    root = open_module(source, module, fmt=fmt)
    if root.origin is not None:
        root.origin = replace(root.origin, opener=load_module, exporter=write_library, members=len([*root.walk()]))
    return root


def load(
    path: str | os.PathLike[str] | bytes | bytearray | memoryview,
    module: str | None = None,
    devices: Sequence[Device] = (),
) -> Runnable:
    """Load a model; the C of an archive is compiled once and cached by content.

    Without a C compiler, LLVM compiles the source in the archive in this process; the results are the same.

    Parameters
    ----------
    path : path, bytes, bytearray or memoryview
        An archive that mlfc or TVM wrote, of any version, or a shared library that mlfc made: a path, or the contents.
    module : str, optional
        Name of the module, required if the archive contains several.
    devices : sequence of Device
        Devices to run on; default: the CPU, and the first of each other kind that the model was compiled for.

    Returns
    -------
    AotModule, GraphModule or VmModel
        All have ``inputs``, ``outputs``, ``run`` and ``bind``.

    Raises
    ------
    ArchiveError
        If the archive is damaged, contradicts itself or does not contain a model.
    OptionError
        If the module does not exist, or `module` is missing and there are several.
    ToolchainError
        If the C compiler rejects the code, or no compiler is found and the archive has no source.
    RunError, DeviceError
        If the model was not compiled for these devices, or they are unavailable.

    Examples
    --------
    >>> mlfc.load("digits.tar").run({"image": image})["probabilities"].shape
    (1, 10)
    """
    with required_for(LOADING, IN_MEMORY if isinstance(path, MEMORY) else str(path)):
        if not isinstance(path, MEMORY):
            model = _load_file(path, module, devices)
        elif kind_of_artifact(path) == "library":
            model = model_of_library(open_module(path, module), IN_MEMORY, devices)
        else:
            with file_of(path) as file:
                model = _load_file(file, module, devices)
    if isinstance(model, Restorable):
        model.origin = LoadedOrigin.of(load, path, module, tuple(devices))
    return model


def _load_file(path: str | os.PathLike[str], module: str | None, devices: Sequence[Device]) -> Runnable:
    if artifact_kind(path) in ("library", "objects"):
        model: Runnable = model_of_library(open_module(path, module), str(path), devices)
        return model
    from mlfc.archive.read.module_parts import read_parts

    parts = read_parts(path, module)
    if lacks_compiler(parts):
        return load_factory(own_factory(path, parts.record.name), devices)
    return model_of_parts(parts, devices)


def lacks_compiler(parts: ModuleParts) -> bool:
    """Return True if a module is C that cannot be compiled here, but its source can be."""
    from mlfc.library.build import has_only_objects
    from mlfc.library.toolchain import has_compiler

    return parts.record.details is not None and not has_only_objects(parts.code) and not has_compiler()


def own_factory(path: str | os.PathLike[str], name: str) -> Factory:
    """Recompile a module of an archive from the source that it contains."""
    from mlfc.archive.write.rebuild import rebuild

    return next(item for item in rebuild(path) if item.module_name == name)


def write_library(origin: LoadedOrigin, path: str | os.PathLike[str], **options: Any) -> Path:
    """Write a loaded module as a library; as `mlfc.archive.write.loaded.write_library`."""
    from mlfc.archive.write import rebuild

    return rebuild.write_library(origin, path, **options)


class StoredModel(Displayed, HasModel):
    """A compiled model without its source: the result of unpickling a `CompiledModel`.

    Parameters
    ----------
    name : str
        Name of the module.
    data : bytes
        A library, or an archive if no compiler could link one.

    Raises
    ------
    MlfcError
        As for `load`.
    """

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self._data = data
        self._model = load(data)

    @property
    def model(self) -> Runnable:
        """The model, loaded in this process."""
        return self._model

    def _facts(self) -> Mapping[str, object]:
        return {"name": self.name, "inputs": self.inputs, "outputs": self.outputs, "bytes": f"{len(self._data):,}"}

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the archive; raise OptionError if this is a library."""
        return self._written(path, "archive")

    def export_library(self, path: str | os.PathLike[str]) -> Path:
        """Write the library; raise OptionError if this is an archive."""
        return self._written(path, "library")

    def _written(self, path: str | os.PathLike[str], kind: str) -> Path:
        found = kind_of_artifact(self._data)
        if found != kind:
            raise OptionError(
                f"expected an {kind}, got a {found}" if kind == "archive" else f"expected a {kind}, got an {found}",
                place=self.name,
                next_step="Compile the model again, or export it before it is pickled",
            )
        write_bytes(path, self._data)
        return Path(path)

    def __reduce__(self) -> Reduced:
        return StoredModel, (self.name, self._data), kept_by(self._model)

    def __setstate__(self, kept: Mapping[str, Any]) -> None:
        restore(self._model, kept)

    def __copy__(self) -> StoredModel:
        made = StoredModel(self.name, self._data)
        restore(made.model, kept_by(self._model))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> StoredModel:
        return self.__copy__()
