"""From checked metadata to what an archive says: the records of `archive.model`.

Older documents describe one module in a flat object. `upgraded` brings them into the shape that version 7 has: their
keys become those of the module's object, under today's names; keys that we do not know stay, so nothing is lost. What
an archive of ours has under ``mlfc`` in a flat object is the module's own object, with the archive's one inside it as
``archive`` and, where the version has no place for them, ``memory.functions`` as ``functions``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from math import prod
from typing import Any

from mlfc.archive.read.layout import VERSION, ArchiveLayout, files_of_modules, is_module_name
from mlfc.archive.read.model import (
    FULL_MODEL,
    OPERATOR,
    ArchiveRecord,
    GraphStorage,
    MainMemory,
    ModuleFiles,
    ModuleRecord,
    OperatorBuffer,
    OperatorFunction,
    TensorRecord,
)
from mlfc.support import dtypes
from mlfc.support.dim_estimates import NO_LIMIT
from mlfc.support.module_info import ArchiveInfo, ModuleInfo
from mlfc.support.tensor_info import TensorInfo

_AGAIN = "Export the archive again"
Document = dict[str, Any]
_RENAMED = {"runtimes": "executors", "export_datetime_utc": "export_datetime"}
# time.strptime would import locales for as long as all the rest takes
MAX_MODULES = 1_000
_SIZES = ("workspace", "constants", "io")
_TENSORS = ("inputs", "outputs")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)Z")


def archive_record(
    document: Mapping[str, Any], paths: Iterable[str], *, version: int, form: str, layout: ArchiveLayout
) -> ArchiveRecord:
    """Return the record of an archive from what `upgraded` returns."""
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
        storages=None
        if sids is None
        else tuple(
            GraphStorage(entry["storage_id"], entry["size_bytes"], entry.get("input_binding")) for entry in sids
        ),
        external_dependencies=tuple(module.get("external_dependencies", ())),
        details=details,
        files=files,
    )


def _operator_module(document: Mapping[str, Any], paths: tuple[str, ...], layout: ArchiveLayout) -> ModuleRecord:
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


def _buffer(entry: Mapping[str, Any]) -> OperatorBuffer:
    return OperatorBuffer(entry["size_bytes"], tuple(entry["shape"]), entry["dtype"], entry.get("input_binding"))


def is_operator_style(document: Mapping[str, Any]) -> bool:
    """Tell the flat style of single operators, which version 7 has too."""
    return document.get("style") == OPERATOR


def upgraded(document: Mapping[str, Any]) -> Document:
    """Return a document of version 7 that says the same as one of any version and form that fits its schema."""
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


def module_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield ``path: what is wrong`` for each contradiction in what `upgraded` returns."""
    if is_operator_style(document):
        yield from _time_faults(document, "$")
        yield from _operator_faults(document)
        return
    if not document["modules"]:
        yield "$.modules: there is no module"
    if len(document["modules"]) > MAX_MODULES:
        yield f"$.modules: {len(document['modules']):,} modules are more than the {MAX_MODULES:,} allowed here"
        return
    for name, module in document["modules"].items():
        place = f"$.modules.{name[:80]}"
        if not is_module_name(name):
            yield f"{place}: no module may have this name"
        if module["model_name"] != name:
            yield f"{place}.model_name: expected '{name}', found '{module['model_name'][:80]}'"
        yield from _time_faults(module, place)
        if "mlfc" in module:
            yield from _details_faults(module, place)


def export_seconds(text: str) -> int:
    """Return the seconds since 1970 of a time as the format writes it; raise ValueError where there is no such time."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is no time")
    year, month, day, hour, minute, second = map(int, match.groups())
    return int(datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp())


def _time_faults(module: Mapping[str, Any], place: str) -> Iterator[str]:
    try:
        export_seconds(module["export_datetime"])
    except ValueError:
        yield f"{place}.export_datetime: there is no time {module['export_datetime']}"


def _operator_faults(document: Mapping[str, Any]) -> Iterator[str]:
    for name, buffers in document["memory"].items():
        for index, buffer in enumerate(buffers):
            expected = tensor_bytes(buffer["shape"], buffer["dtype"])
            if expected != buffer["size_bytes"]:
                place = f"$.memory.{name[:80]}[{index}].size_bytes"
                yield f"{place}: {buffer['size_bytes']}, but shape and dtype give {expected}"


def tensor_bytes(shape: list[int], dtype: str) -> int:
    """Return the bytes of a tensor of any writer's dtype; bits of small elements are packed, but for bool."""
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return (prod(shape) * (int(digits) if digits else 8) + 7) // 8


def _details_faults(module: Mapping[str, Any], place: str) -> Iterator[str]:
    details, entries = module["mlfc"], module["memory"]["functions"]["main"]
    if not entries:
        yield f"{place}.memory.functions.main: a module of mlfc has an entry here"
        return
    sizes = {f"{key}_size_bytes": sum(entry[f"{key}_size_bytes"] for entry in entries) for key in _SIZES}
    main = {kind: {name: item for entry in entries for name, item in entry.get(kind, {}).items()} for kind in _TENSORS}
    for key in _SIZES:
        ours, theirs = details["memory"][f"{key}_bytes"], sizes[f"{key}_size_bytes"]
        if ours != theirs:
            yield f"{place}.mlfc.memory.{key}_bytes: {ours} is not {key}_size_bytes of main, {theirs}"
    if details.get("vm") is None:
        yield from _open_faults(details, place)
    bounds = {symbol["name"]: symbol["high"] for symbol in (details.get("vm") or {}).get("symbols", ())}
    for kind in _TENSORS:
        names = [tensor["name"] for tensor in details[kind]]
        if len(set(names)) != len(names) or set(names) != set(main[kind]):
            yield f"{place}.mlfc.{kind}: the names are not those of main.{kind}"
            continue
        for index, tensor in enumerate(details[kind]):
            listed = main[kind][tensor["name"]]
            size = _size(tensor, bounds)
            if listed["dtype"] != tensor["dtype"] or size not in (None, listed["size"]):
                yield f"{place}.mlfc.{kind}[{index}]: shape and dtype do not give the size in main.{kind}"
    total = sum(entry["size"] for kind in _TENSORS for entry in main[kind].values())
    if total != sizes["io_size_bytes"]:
        yield f"{place}: inputs and outputs have {total} bytes together, io_size_bytes says {sizes['io_size_bytes']}"


def _open_faults(details: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield tensors with extents that only the virtual machine leaves open."""
    for kind in (*_TENSORS, "states"):
        for index, tensor in enumerate(details.get(kind, ())):
            for extent in tensor["shape"]:
                if not isinstance(extent, int):
                    yield f"{place}.mlfc.{kind}[{index}]: expected a fixed extent, got '{extent[:80]}'"


def _size(tensor: Mapping[str, Any], bounds: Mapping[str, int | None]) -> int | None:
    """Return the bytes of a tensor with its open extents at their bounds: 0 without a bound, None for expressions."""
    size = dtypes.nbytes(tensor["dtype"])
    has_bounds = True
    for extent in tensor["shape"]:
        if isinstance(extent, int):
            size *= extent
        elif extent not in bounds:
            return None
        elif (high := bounds[extent]) is None or high >= NO_LIMIT:
            has_bounds = False
        else:
            size *= high
    return size if has_bounds else 0
