"""Recompilation of an archive from its own source, for the same or another target, and writing of loaded modules.

The file of a loaded module is copied where it has the requested format; an archive is compiled again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlfc.archive.read.layout import SOURCES, VERSION
from mlfc.archive.read.load import IN_MEMORY, artifact_kind, file_of
from mlfc.archive.read.model import RFC
from mlfc.archive.read.opening import Archive, open_archive
from mlfc.archive.read.source import read_source
from mlfc.archive.write.options import FORMAT_VERSIONS, PARAMS_FORMS, ExportOptions
from mlfc.compiler import build_module
from mlfc.errors import ArchiveError, OptionError
from mlfc.factory import Factory
from mlfc.memory import ConstantPool, Pool
from mlfc.options import BuildOptions
from mlfc.runtime.modules.module import Module, pick_module
from mlfc.runtime.modules.runnable import LoadedOrigin
from mlfc.support.atomic import check_writable, write_bytes
from mlfc.support.c_names import SOURCE
from mlfc.support.keywords import check_names, option_names
from mlfc.support.module_info import BuildInfo
from mlfc.support.user_files import load_user_files
from mlfc.target.target import PORTABLE, parse_target

_CHANGES = (*(name for name in option_names(BuildOptions) if name != "module_name"), "byoc", "operators")
_SHARED = (".so", ".dll", ".dylib", ".dso")


def rebuild(path: str | os.PathLike[str], target: str | None = None, **changes: Any) -> list[Factory]:
    """Compile every module of an archive again.

    Parameters
    ----------
    path : path
        An archive that mlfc wrote with source parameters, or one of TVM's graph executor with all values of its text.
    target : str, optional
        As for `build`. Default: the recorded target.
    **changes
        Options of `build` for every module, and ``byoc``; others, and those that are None, keep their recorded
        values. ``operators``: Python files that declare the model's own operators. The integer rounding mode cannot be
        changed, as it was fixed by the import of the model.

    Returns
    -------
    list of Factory
        In the order of the modules' names. Exported with `recorded_options` they reproduce the archive byte for byte
        if no option was changed.

    Raises
    ------
    ArchiveError
        If the archive lacks the source, or its module has code that was not compiled from it.
    MlfcError
        If the model cannot be compiled for the target.

    Examples
    --------
    >>> mlfc.rebuild("digits.tar", "c -mcpu=cortex-m4")[0].module_name
    'digits'
    """
    check_names("rebuild", changes, _CHANGES)
    chosen = {name: value for name, value in {"target": target, **changes}.items() if value is not None}
    load_user_files(chosen.pop("operators", ()))
    with open_archive(path) as archive:
        for fault in archive.file_faults():
            raise ArchiveError(fault, place=archive.path, next_step="Export the archive again")
        if len(archive.record.modules) > 1:
            chosen.pop("ram", None)  # the limit applies to all modules together
        return [_module(archive, name, chosen) for name in archive.record.modules]


def recorded_options(path: str | os.PathLike[str]) -> ExportOptions:
    """Return the recorded export options of an archive, without its time."""
    with open_archive(path) as archive:
        sizes, record = archive.tar.sizes, archive.record
        shared = record.details and record.details.shared
        builds = [module.details.build for module in record.modules.values() if module.details and module.details.build]
        forms = tuple(
            form for form in PARAMS_FORMS if any(f"parameters/{module}.{form}" in sizes for module in record.modules)
        )
        return ExportOptions(
            runtime=any(name.startswith(f"{archive.layout.runtime}/") for name in sizes),
            test_vectors=max((item.test_vectors for item in builds), default=0),
            seed=max((item.seed for item in builds), default=0),
            format_version=record.version if record.version in FORMAT_VERSIONS else VERSION,
            rfc=record.form == RFC,
            params_forms=forms,
            share_workspace=bool(shared and shared.workspace_modules),
            share_weights=bool(shared and shared.constants_bytes),
            system_lib=any(f"{SOURCES}/tvmgen_{module.lower()}.h" in sizes for module in record.modules),
        )


def _module(archive: Archive, name: str, chosen: Mapping[str, Any]) -> Factory:
    module, params = read_source(archive, name)
    record = archive.record.modules[name]
    details = record.details
    recorded = (details and details.build) or BuildInfo(
        target=" ".join(record.targets),
        executor=details.executor if details else record.executor or "aot",
        optimize=details.optimize if details else "speed",
        numerics=details.numerics if details else "litert",
        external_workspace=bool(details and details.external_workspace),
        toolchain=None,
        test_vectors=0,
        seed=0,
    )
    byoc = tuple(chosen.get("byoc", recorded.byoc))
    options = replace(
        BuildOptions(
            recorded.target,
            target_host=recorded.target_host or PORTABLE,
            executor=recorded.executor,
            module_name=name,
            optimize=recorded.optimize,
            external_workspace=recorded.external_workspace,
            workspace_io=recorded.workspace_io,
            pools=[Pool(pool.name, pool.nbytes) for pool in recorded.pools],
            constants=[ConstantPool(pool.name, pool.nbytes, pool.external) for pool in recorded.constants],
            ram=recorded.ram,
            specialize=recorded.specialize,
        ),
        **{key: value for key, value in chosen.items() if key != "byoc"},
    )
    if "parallel" not in chosen and f"{SOURCES}/{SOURCE}" in archive.tar.sizes and options.optimize == "speed":
        options = replace(options, parallel=True)
    if "executor" not in chosen and parse_target(options.target).device:
        options = replace(options, executor="graph")
    if options.executor != "aot":
        # the graph executor has no workspace that could be passed in or placed
        options = replace(options, external_workspace=False, workspace_io=False, pools=(), constants=(), ram=None)
    factory = build_module(replace(module, numerics=recorded.numerics, byoc=byoc), params, options)
    # recompiling does not recreate modules that a user imported
    stored = Counter(entry.type_key for entry in details.module_tree[1:]) if details else Counter()
    # kernels of a device are compiled again, or not needed for another target
    kernels = [str(target).partition(" ")[0] for target in archive.record.modules[name].targets]
    others = stored - Counter(module.type_key for module in factory.lib.imported_modules) - Counter(kernels)
    if others:
        raise ArchiveError(
            f"module '{name}' imports modules ({', '.join(others.elements())}) that were not compiled from its text",
            place=archive.path,
            next_step="Compile the model itself and import them again",
        )
    return factory


def write_library(origin: LoadedOrigin, path: str | os.PathLike[str], **options: Any) -> Path:
    """Write a loaded module as a library: a copy of a loaded library, or the model of an archive compiled again.

    Raises OptionError if a library is requested in another form, ArchiveError if an archive lacks its model.
    """
    target = Path(path)
    with _file(origin) as (source, place):
        kind = artifact_kind(source)
        if kind == "archive":
            factories = {factory.module_name: factory for factory in rebuild(source)}
            return factories[pick_module(factories, origin.arguments[0], place)].export_library(target, **options)
        if options or (target.suffix in _SHARED) != (kind == "library"):
            wanted = f"options {', '.join(options)}" if options else f"'{target.suffix}' file"
            raise OptionError(
                f"expected a copy of the loaded {kind}, got a request for {wanted}: it is machine code already",
                place=place,
                next_step="Load the model's archive, or compile the model again, and export that",
            )
        check_writable(target)
        write_bytes(target, source.read_bytes())
    return target


def rebuilt(module: Module) -> tuple[list[Factory], ExportOptions]:
    """Return the models of a loaded archive compiled again and its options; raise OptionError for other modules."""
    origin = module.origin
    if origin is not None:
        with _file(origin) as (source, place):
            if artifact_kind(source) == "archive":
                wanted = origin.arguments[0]
                factories = [factory for factory in rebuild(source) if wanted in (None, factory.module_name)]
                return factories, recorded_options(source)
        found = f"machine code ({place})"
    else:
        found = f"a module of the kind '{module.type_key}'"
    raise OptionError(
        f"expected the result of mlfc.build or a model loaded from an archive, got {found}",
        next_step="Load the model's archive, or compile the model again, and export that",
    )


@contextmanager
def _file(origin: LoadedOrigin) -> Iterator[tuple[Path, str]]:
    origin.check()
    if isinstance(origin.source, bytes):
        with file_of(origin.source) as path:
            yield path, IN_MEMORY
    else:
        yield Path(origin.source), origin.source
