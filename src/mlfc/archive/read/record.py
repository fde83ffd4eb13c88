"""From checked metadata to what an archive says: the records of `archive.model`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mlfc.archive.read.layout import Layout, files_of_modules
from mlfc.archive.read.model import (
    FULL_MODEL,
    OPERATOR,
    ArchiveRecord,
    MainMemory,
    ModuleFiles,
    ModuleRecord,
    OperatorBuffer,
    OperatorFunction,
    Storage,
    TensorRecord,
)
from mlfc.archive.read.upgrade import is_operator_style
from mlfc.support.module_info import ArchiveInfo, ModuleInfo
from mlfc.support.tensor_info import TensorInfo

_AGAIN = "Export the archive again"


def archive_record(
    document: Mapping[str, Any], paths: Iterable[str], *, version: int, form: str, layout: Layout
) -> ArchiveRecord:
    """Return the record of an archive.

    `document` is as `upgrade.upgraded` returns it.
    """
    known = tuple(paths)
    info = ArchiveInfo.read(document["mlfc"], "mlfc", _AGAIN) if "mlfc" in document else None
    if is_operator_style(document):
        module = _operator_module(document, known, layout)
        return ArchiveRecord(version, form, OPERATOR, {module.name: module}, info)
    objects: Mapping[str, Mapping[str, Any]] = document["modules"]
    files = files_of_modules(objects, known, layout)
    modules = {name: _module(objects[name], files[name]) for name in sorted(objects)}
    return ArchiveRecord(version, form, FULL_MODEL, modules, info)


def _module(module: Mapping[str, Any], files: ModuleFiles) -> ModuleRecord:
    memory = module["memory"]
    details = None
    if "mlfc" in module:
        own = {"executor": module["executors"][0], **module["mlfc"]}
        details = ModuleInfo.read(own, f"modules.{module['model_name']}.mlfc", _AGAIN)
    sids = memory.get("sids")
    return ModuleRecord(
        name=module["model_name"],
        executors=tuple(module["executors"]),
        targets=tuple(target.strip() for target in module["target"]),
        export_datetime=module["export_datetime"],
        # the details are of the host's entry, the first
        main=tuple(_main(entry, None if index else details) for index, entry in enumerate(memory["functions"]["main"])),
        operator_functions=tuple(_operator_function(entry) for entry in memory["functions"]["operator_functions"]),
        storages=None if sids is None else tuple(_storage(entry) for entry in sids),
        external_dependencies=tuple(module.get("external_dependencies", ())),
        details=details,
        files=files,
    )


def _operator_module(document: Mapping[str, Any], paths: tuple[str, ...], layout: Layout) -> ModuleRecord:
    name = document["model_name"]
    return ModuleRecord(
        name=name,
        executors=tuple(document["executors"]),
        targets=tuple(target.strip() for target in document["target"]),
        export_datetime=document["export_datetime"],
        operators={
            function: tuple(_buffer(entry) for entry in buffers)
            for function, buffers in sorted(document["memory"].items())
        },
        external_dependencies=tuple(document.get("external_dependencies", ())),
        files=files_of_modules((name,), paths, layout)[name],
    )


def _main(entry: Mapping[str, Any], details: ModuleInfo | None) -> MainMemory:
    return MainMemory(
        device=entry["device"],
        workspace_bytes=entry["workspace_size_bytes"],
        constants_bytes=entry["constants_size_bytes"],
        io_bytes=entry["io_size_bytes"],
        inputs=_tensors(entry.get("inputs", {}), details.inputs if details else None),
        outputs=_tensors(entry.get("outputs", {}), details.outputs if details else None),
    )


def _tensors(sizes: Mapping[str, Any], details: Iterable[TensorInfo] | None) -> tuple[TensorRecord, ...]:
    """Return the tensors in the order of the C structs where the archive says it, else by name."""
    if details is None:
        return tuple(TensorRecord(name, sizes[name]["dtype"], sizes[name]["size"]) for name in sorted(sizes))
    return tuple(
        TensorRecord(
            name=tensor.name,
            dtype=tensor.dtype,
            nbytes=sizes[tensor.name]["size"],
            shape=tensor.shape,
            scale=tensor.scale,
            zero_point=tensor.zero_point,
        )
        for tensor in details
        if tensor.name in sizes
    )


def _operator_function(entry: Mapping[str, Any]) -> OperatorFunction:
    workspace: dict[int, int] = {}
    for item in entry["workspace"]:
        workspace[item["device"]] = workspace.get(item["device"], 0) + item["workspace_size_bytes"]
    return OperatorFunction(entry["function_name"], workspace)


def _storage(entry: Mapping[str, Any]) -> Storage:
    return Storage(entry["storage_id"], entry["size_bytes"], entry.get("input_binding"))


def _buffer(entry: Mapping[str, Any]) -> OperatorBuffer:
    return OperatorBuffer(entry["size_bytes"], tuple(entry["shape"]), entry["dtype"], entry.get("input_binding"))
