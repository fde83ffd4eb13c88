"""Compiling an archive again from its own source: for the same target, or for another one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlfc.ops  # noqa: F401  (registers the operators, which reading Relay text needs)
from mlfc.archive.read.layout import SOURCES, VERSION
from mlfc.archive.read.model import RFC
from mlfc.archive.read.opening import Archive, open_archive
from mlfc.archive.read.source import read_source
from mlfc.archive.write.options import FORMAT_VERSIONS, PARAMS_FORMS, ExportOptions
from mlfc.compiler import build
from mlfc.errors import ArchiveError
from mlfc.factory import Factory
from mlfc.memory import ConstantPool, Pool
from mlfc.target.target import parse_target


def rebuild(
    path: str | os.PathLike[str],
    target: str | None = None,
    *,
    target_host: str | None = None,
    executor: str | None = None,
    optimize: str | None = None,
    external_workspace: bool | None = None,
    workspace_io: bool | None = None,
    pools: Sequence[Pool] | None = None,
    constants: Sequence[ConstantPool] | None = None,
    ram: int | None = None,
    byoc: Sequence[str] | None = None,
    limit_factor: float | None = None,
) -> list[Factory]:
    """Compile every module of an archive again.

    Parameters
    ----------
    path : path
        An archive that mlfc wrote with source parameters.
    target, target_host, executor, optimize, external_workspace, workspace_io, pools, constants, ram, byoc, limit_factor
        As `build` takes them, for every module; what is None is as it was. Whose rounding integers follow cannot be
        chosen again: importing the model decided it.

    Returns
    -------
    list of Factory
        In the order of the modules' names. Exported with `recorded_options` they give the same archive again, to
        the byte, if nothing else was asked for.

    Raises
    ------
    ArchiveError
        If the archive lacks the source or its module has code that was not compiled from it.
    MlfcError
        For what cannot be compiled for the target.
    """
    given = {
        "target": target,
        "target_host": target_host,
        "executor": executor,
        "optimize": optimize,
        "external_workspace": external_workspace,
        "workspace_io": workspace_io,
        "pools": pools,
        "constants": constants,
        "ram": ram,
        "byoc": byoc,
        "limit_factor": limit_factor,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    with open_archive(path) as archive:
        for fault in archive.file_faults():
            raise ArchiveError(fault, place=archive.path, next_step="Export the archive again")
        if len(archive.record.modules) > 1:
            chosen.pop("ram", None)  # it is for all of them together
        return [_module(archive, name, chosen) for name in archive.record.modules]


def recorded_options(path: str | os.PathLike[str]) -> ExportOptions:
    """Return the options with which an archive was exported, as far as it tells; its time is not among them."""
    with open_archive(path) as archive:
        sizes, record = archive.tar.sizes, archive.record
        shared = (record.details or {}).get("shared", {})
        records = [module.details.get("build", {}) for module in record.modules.values() if module.details]
        forms = tuple(
            form for form in PARAMS_FORMS if any(f"parameters/{module}.{form}" in sizes for module in record.modules)
        )
        return ExportOptions(
            runtime=any(name.startswith(f"{archive.layout.runtime}/") for name in sizes),
            test_vectors=max((item.get("test_vectors", 0) for item in records), default=0),
            seed=max((item.get("seed", 0) for item in records), default=0),
            format_version=record.version if record.version in FORMAT_VERSIONS else VERSION,
            rfc=record.form == RFC,
            params_forms=forms,
            share_workspace=bool(shared.get("workspace_modules")),
            share_weights=bool(shared.get("constants_bytes")),
            system_lib=any(f"{SOURCES}/tvmgen_{module.lower()}.h" in sizes for module in record.modules),
        )


def _module(archive: Archive, name: str, chosen: Mapping[str, Any]) -> Factory:
    module, params = read_source(archive, name)
    details = archive.record.modules[name].details or {}
    recorded = details.get("build", details)
    target = recorded.get("target", " ".join(archive.record.modules[name].targets))
    chosen = dict(chosen)
    byoc = chosen.pop("byoc", recorded.get("byoc", ()))
    asked = {
        "target": target,
        "target_host": recorded.get("target_host", "c"),
        "executor": recorded.get("executor", "aot"),
        "optimize": recorded["optimize"],
        "external_workspace": recorded["external_workspace"],
        **_recorded_placement(recorded),
        **chosen,
    }
    if "executor" not in chosen and parse_target(asked["target"]).device:
        asked["executor"] = "graph"
    if asked["executor"] != "aot":
        # the graph executor has no workspace that could be passed in, or placed
        kept = ("target", "target_host", "executor", "optimize", "limit_factor")
        asked = {key: asked[key] for key in kept if key in asked}
    byoc = asked.pop("byoc", None)
    module = replace(
        module, numerics=recorded["numerics"], byoc=tuple(recorded.get("byoc", ()) if byoc is None else byoc)
    )
    factory = build(module, params=params, module_name=name, **asked)
    _require_own_modules(archive, name, details, factory)
    return factory


def _require_own_modules(archive: Archive, name: str, details: Mapping[str, Any], factory: Factory) -> None:
    """Raise ArchiveError for modules that a user imported: compiling again does not make them."""
    stored = Counter(entry["type_key"] for entry in details.get("module_tree", ())[1:])
    # kernels of a device are made again, or not needed for another target
    kernels = [str(target).partition(" ")[0] for target in archive.record.modules[name].targets]
    others = stored - Counter(module.type_key for module in factory.lib.imported_modules) - Counter(kernels)
    if others:
        raise ArchiveError(
            f"module '{name}' imports modules ({', '.join(others.elements())}) that were not compiled from its text",
            place=archive.path,
            next_step="Compile the model itself and import them again",
        )


def _recorded_placement(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a module's memory was asked to lie, as `build` takes it."""
    return {
        "workspace_io": recorded.get("workspace_io", False),
        "pools": [Pool(item["name"], item["bytes"]) for item in recorded.get("pools", ())],
        "constants": [
            ConstantPool(item["name"], item["bytes"], item["external"]) for item in recorded.get("constants", ())
        ],
        "ram": recorded.get("ram"),
    }
