"""Loading of archives and compiled modules for profiling, with timers for every operator."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mlfc.archive.loading import lacks_compiler, load, own_factory
from mlfc.archive.read.load import artifact_kind, host_library, load_factory, load_graph, open_module
from mlfc.archive.read.module_parts import read_parts
from mlfc.crt import trace_headers
from mlfc.errors import OptionError
from mlfc.library.build import has_only_objects
from mlfc.runtime.executors.aot_module import loaded_pools
from mlfc.runtime.executors.graph_module import GraphModule
from mlfc.runtime.executors.profile import TRACE_FLAGS, ProfiledModule, record_file
from mlfc.runtime.executors.vm.vm_model import ProfiledVm, VmModel
from mlfc.runtime.executors.vm.vm_module import VmModule
from mlfc.runtime.libraries.library_module import LibraryModule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mlfc.factory import Factory
    from mlfc.library.host import HostLibrary
    from mlfc.runtime.devices.device import Device
    from mlfc.runtime.modules.module import Module


def load_profiled(
    path: str | os.PathLike[str], module: str | None = None, devices: Sequence[Device] = ()
) -> ProfiledModule | GraphModule | ProfiledVm:
    """Load a model of an archive for profiling.

    Parameters
    ----------
    path : path
        An archive or library with a model for the graph executor or the virtual machine, which time their operators
        themselves, or an archive that mlfc compiled ahead of time: its C is compiled once more with the tracing hook
        enabled. Objects lack the hook, so an archive of objects is compiled again from its own source. A library has
        neither, so it cannot be profiled.
    module : str, optional
        Name of the module, required if the archive contains several.
    devices : sequence of Device
        As for `mlfc.load`.

    Returns
    -------
    ProfiledModule, GraphModule or ProfiledVm
        All have ``profile``.

    Raises
    ------
    OptionError
        For a library of a model that was compiled ahead of time, and for code without the hook; otherwise as
        `mlfc.load`.

    Examples
    --------
    >>> profile = load_profiled("kws.tar").profile({"input_1": x}, repeat=100)   # doctest: +SKIP
    >>> max(profile.operators, key=lambda item: item.nanoseconds).nodes          # doctest: +SKIP
    ('functional_1/conv2d/Conv2D',)
    """
    if artifact_kind(path) in ("library", "objects"):
        model = load(path, module, devices)
        if isinstance(model, GraphModule):
            return model
        if isinstance(model, VmModel):
            return _vm_of_library(open_module(path, module))
        raise OptionError(
            "a library of a model compiled ahead of time cannot be profiled: it has no C that could be built with "
            "timers",
            place=str(path),
            next_step="Profile the archive, or the model that the library was made from",
        )
    parts = read_parts(path, module)
    if lacks_compiler(parts):
        return profiled_factory(own_factory(path, parts.record.name), devices)
    if parts.executable is not None:
        known = parts.record.details.operators if parts.record.details is not None else ()
        return VmModule(parts.executable, host_library(parts)).profiled(known)
    if parts.executor == "graph":
        return load_graph(parts, host_library(parts), devices)
    details = parts.record.details
    if details is None:
        raise OptionError(
            f"the code of '{parts.record.name}' has no hook for timers: mlfc did not generate it",
            place=parts.place,
            next_step="Compile the model with: mlfc compile MODEL",
        )
    if has_only_objects(parts.code):
        return profiled_factory(own_factory(path, parts.record.name), devices)
    return ProfiledModule(_library(host_library(parts)), details, loaded_pools(details, parts.code))


def _vm_of_library(root: Module) -> ProfiledVm:
    """Return the model, with the library's description of its operators if it has one."""
    found = next(item for item in root.walk() if isinstance(item, VmModule))
    described = (item.description() for item in root.walk() if isinstance(item, LibraryModule))
    known = next((modules[found.name] for modules in described if found.name in modules), None)
    return found.profiled(() if known is None else known.operators or ())


def profiled_factory(
    factory: Factory, devices: Sequence[Device] = (), flags: Sequence[str] = ()
) -> ProfiledModule | GraphModule | ProfiledVm:
    """Return the module that `build` produced, ready for profiling; `flags` are additional C compiler flags."""
    from mlfc.archive.details import module_info
    from mlfc.compiler import runnable_here

    factory = runnable_here(factory)
    if isinstance(factory.runtime, VmModule):
        return factory.runtime.profiled(module_info(factory).operators)
    model = load_factory(factory, devices) if factory.graph_json else None
    if isinstance(model, GraphModule):
        return model
    details = module_info(factory)
    # optionally with kernels that share their work
    code = factory.host_code.files
    loaded = loaded_pools(details, code)
    if factory.host_unit.target.kind == "llvm":
        from mlfc.library.llvm_library import traced_code

        return ProfiledModule(traced_code(factory.host_unit), details, loaded)
    return ProfiledModule(_library(factory.lib, flags), details, loaded)


def _library(code: HostLibrary, flags: Sequence[str] = ()) -> Path:
    """Return the library of code with timers for every operator."""
    files = {"trace/operator_record.c": record_file()}
    files.update({f"trace/{name}": data for name, data in trace_headers().items()})
    return code.built(files, (*TRACE_FLAGS, *flags))
