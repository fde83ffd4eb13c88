"""Compiling an archive again from its own source: for the same target, or for another one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import mlforge.ops  # noqa: F401  (registers the operators, which reading Relay text needs)
from mlforge.archive.layout import VERSION
from mlforge.archive.model import RFC
from mlforge.archive.options import FORMAT_VERSIONS, PARAMS_FORMS, ExportOptions
from mlforge.archive.read import Archive, open_archive
from mlforge.archive.source import read_source
from mlforge.compiler import Factory, build
from mlforge.errors import ArchiveError
from mlforge.memory import ConstantPool, Placement, Pool


def rebuild(
    path: str | os.PathLike[str],
    target: str | None = None,
    *,
    executor: str | None = None,
    optimize: str | None = None,
    external_workspace: bool | None = None,
    placement: Placement | None = None,
) -> list[Factory]:
    """Compile every module of an archive again.

    Parameters
    ----------
    path : path
        An archive that mlforge wrote with source parameters.
    target, executor, optimize, external_workspace, placement
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
    MlforgeError
        For what cannot be compiled for the target.
    """
    with open_archive(path) as archive:
        for fault in archive.file_faults():
            raise ArchiveError(fault, place=archive.path, next_step="Export the archive again")
        return [
            _module(archive, name, target, executor, optimize, external_workspace, placement)
            for name in archive.record.modules
        ]


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
        )


def _module(
    archive: Archive,
    name: str,
    target: str | None,
    executor: str | None,
    optimize: str | None,
    external_workspace: bool | None,
    placement: Placement | None,
) -> Factory:
    module, params = read_source(archive, name)
    details = archive.record.modules[name].details or {}
    others = [entry["type_key"] for entry in details.get("module_tree", ())[1:]]
    if others:
        raise ArchiveError(
            f"module '{name}' imports modules ({', '.join(others)}) that were not compiled from its Relay text",
            place=archive.path,
            next_step="Compile the model itself and import them again",
        )
    recorded = details.get("build", details)
    chosen = executor or recorded.get("executor", "aot")
    outside = recorded["external_workspace"] if external_workspace is None else external_workspace
    return build(
        module,
        recorded.get("target", " ".join(archive.record.modules[name].targets)) if target is None else target,
        params,
        executor=chosen,
        module_name=name,
        optimize=optimize or recorded["optimize"],
        numerics=recorded["numerics"],
        # the graph executor has no workspace that could be passed in, or placed
        external_workspace=outside and chosen == "aot",
        **(_asked(placement or recorded_placement(recorded)) if chosen == "aot" else {}),
    )


def recorded_placement(recorded: Mapping[str, Any]) -> Placement:
    """Return where a module's memory was asked to lie, from the ``build`` of its metadata."""
    return Placement(
        recorded.get("workspace_io", False),
        tuple(Pool(pool["name"], pool["bytes"]) for pool in recorded.get("pools", ())),
        tuple(ConstantPool(pool["name"], pool["bytes"], pool["external"]) for pool in recorded.get("constants", ())),
    )


def _asked(placement: Placement) -> dict[str, Any]:
    return {"workspace_io": placement.workspace_io, "pools": placement.pools, "constants": placement.constants}
