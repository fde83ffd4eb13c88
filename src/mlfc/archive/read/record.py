"""From checked metadata to what an archive says: the records of `archive.model`.

Older documents describe one module in a flat object. `upgraded` brings them into the shape that version 7 has: their
keys become those of the module's object, under today's names; keys that we do not know stay, so nothing is lost. What
an archive of ours has under ``mlfc`` in a flat object is the module's own object, with the archive's one inside it as
``archive`` and, where the version has no place for them, ``memory.functions`` as ``functions``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mlfc.archive.read.layout import VERSION, Layout, files_of_modules
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
from mlfc.support.module_info import ArchiveInfo, ModuleInfo
from mlfc.support.tensor_info import TensorInfo

_AGAIN = "Export the archive again"


def archive_record(
    document: Mapping[str, Any], paths: Iterable[str], *, version: int, form: str, layout: Layout
) -> ArchiveRecord:
    """Return the record of an archive.

    `document` is as `upgraded` returns it.
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


Document = dict[str, Any]


def is_operator_style(document: Mapping[str, Any]) -> bool:
    """Tell the flat style of single operators, which version 7 has too."""
    return document.get("style") == OPERATOR


def upgraded(document: Mapping[str, Any]) -> Document:
    """Return a document of version 7 that says the same as one of any version and form.

    `document` fits its schema and stays as it is.
    """
    if "modules" in document:
        return dict(document)
    module = {key: value for key, value in document.items() if key not in _RENAMED and key != "version"}
    for old, key in _RENAMED.items():
        if old in document:
            module[key] = document[old]
    module["target"] = _targets(document["target"])
    if is_operator_style(document):
        return {"executors": [], **module, "version": VERSION}
    module["style"] = FULL_MODEL
    module["memory"] = _memory(document["memory"])
    result: Document = {"version": VERSION, "modules": {document["model_name"]: module}}
    if "mlfc" in document:
        details = dict(document["mlfc"])
        if "archive" in details:
            result["mlfc"] = details.pop("archive")
        if "functions" in details:
            module["memory"]["functions"] = details.pop("functions")
        module["mlfc"] = details
    return result


_RENAMED = {"runtimes": "executors", "export_datetime_utc": "export_datetime"}


def _targets(target: str | list[str] | Mapping[str, str]) -> list[str]:
    if isinstance(target, str):
        return [target]
    if isinstance(target, Mapping):
        return [target[device] for device in sorted(target, key=int)]
    return list(target)


def _memory(memory: list[Any] | Mapping[str, Any]) -> Document:
    """Return the memory of a full model; version 1 lists the graph executor's blocks and no more."""
    functions: Document = {"functions": {"main": [], "operator_functions": []}}
    if isinstance(memory, Mapping):
        return {**functions, **memory}
    return {"sids": memory, **functions} if memory else functions
