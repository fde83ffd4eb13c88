"""Opening of archives of any version: metadata are validated and converted to records, members stay readable.

Older documents describe one module in a flat object, whose ``mlfc`` is the module's own, with the archive's inside it
as ``archive`` and, if the version has no field for them, ``memory.functions`` as ``functions``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from math import prod
from typing import Any

from mlfc.archive.read.layout import (
    MODULE_NAME,
    OPERATOR_VERSIONS,
    VERSION,
    ArchiveLayout,
    files_of_modules,
    find_metadata,
    layout_of,
)
from mlfc.archive.read.model import (
    FULL_MODEL,
    OPERATOR,
    RFC,
    ArchiveRecord,
    GraphStorage,
    MainMemory,
    ModuleFiles,
    ModuleRecord,
    OperatorBuffer,
    OperatorFunction,
    TensorRecord,
)
from mlfc.archive.read.schema import faults
from mlfc.errors import ArchiveError
from mlfc.support import dtypes
from mlfc.support.content import sha256_stream
from mlfc.support.dim_estimates import NO_LIMIT
from mlfc.support.former_name import current_keys
from mlfc.support.json_text import parse_json
from mlfc.support.module_info import ArchiveInfo, ModuleInfo
from mlfc.support.tar import TarReader, open_tar
from mlfc.support.tensor_info import TensorInfo

MAX_METADATA = 16 << 20
_AGAIN = "Export the archive again"
_OBJECT = ".o"
Document = dict[str, Any]
_RENAMED = {"runtimes": "executors", "export_datetime_utc": "export_datetime"}
MAX_MODULES = 1_000
_SIZES = ("workspace", "constants", "io")
_TENSORS = ("inputs", "outputs")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)Z")


@dataclass(frozen=True)
class Archive:
    """An open archive whose metadata match their schema and are consistent."""

    tar: TarReader
    metadata_path: str  # path of the member with the metadata
    document: Mapping[str, Any]  # the metadata as they are in the archive
    metadata: Mapping[str, Any]  # the same, converted to version 7
    layout: ArchiveLayout
    record: ArchiveRecord

    @property
    def path(self) -> str:
        """The archive's path, for messages."""
        return self.tar.path

    def file_faults(self) -> Iterator[str]:
        """Yield differences between the members and the metadata's list of files; none without a list."""
        listed = self.record.manifest
        if listed is None:
            return
        for name in sorted({*listed, *self.tar.sizes} - {self.metadata_path}):
            if name not in self.tar.sizes:
                yield f"{name}: the file is missing"
            elif name not in listed:
                yield f"{name}: the file is not in the list of files of {self.metadata_path}"
            elif self.tar.sizes[name] != listed[name].nbytes:
                said = f"{self.metadata_path} declares {listed[name].nbytes:,} bytes"
                yield f"{name}: {said}, but it has {self.tar.sizes[name]:,}"
            elif sha256_stream(self.tar.open(name)) != listed[name].sha256:
                yield f"{name}: its SHA-256 differs from {self.metadata_path}"


@contextmanager
def open_archive(path: str | os.PathLike[str]) -> Iterator[Archive]:
    """Open an archive of any version, style and form; raise ArchiveError for the first fault."""
    with open_tar(path) as tar:
        yield read_archive(tar)


def read_archive(tar: TarReader) -> Archive:
    """Return the archive in an open tar; raise ArchiveError for the first fault of its metadata."""
    name, form, document = _document(tar)
    for fault in _document_faults(document, name, form):
        raise ArchiveError(fault, place=f"{tar.path}: {name}", next_step=_AGAIN)
    metadata = upgraded(document)
    version = document["version"]
    layout = layout_of(version, form, OPERATOR if is_operator_style(document) else FULL_MODEL)
    try:
        record = archive_record(metadata, tar.sizes, version=version, form=form, layout=layout)
    except ArchiveError as error:
        raise ArchiveError(error.cause, place=tar.path, next_step=_AGAIN) from None
    return Archive(tar, name, document, metadata, layout, record)


def metadata_faults(tar: TarReader) -> Iterator[str]:
    """Yield every fault of the metadata in an open tar, none if `read_archive` accepts it."""
    try:
        name, form, document = _document(tar)
    except ArchiveError as error:
        yield str(error)
        return
    for fault in _document_faults(document, name, form):
        yield f"{name}: {fault}"


def _document(tar: TarReader) -> tuple[str, str, dict[str, Any]]:
    """Return the metadata's path, the form that the path implies, and the document, if its version is supported."""
    found = find_metadata(tar.sizes)
    if found is None:
        raise ArchiveError(
            "this is a tar of objects, a library, not a Model Library Format archive"
            if any(name.endswith(_OBJECT) for name in tar.sizes)
            else "this is a tar but not a Model Library Format archive: it has no metadata.json",
            place=tar.path,
            next_step="Compile a model to one with: mlfc compile MODEL",
        )
    name, form = found
    return name, form, _parsed(tar.read(name, MAX_METADATA), form, f"{tar.path}: {name}")


def _document_faults(document: dict[str, Any], name: str, form: str) -> Iterator[str]:
    schema = "metadata-operator" if is_operator_style(document) else f"metadata-{document['version']}"
    sound = True
    for fault in faults("metadata-rfc" if form == RFC else schema, document):
        sound = False
        yield fault
    if form == RFC and name != layout_of(document["version"], RFC).metadata:
        yield f"$.version: {document['version']} is not the one in the file's name"
    if sound:
        # module checks require a document that matches its schema
        yield from module_faults(upgraded(document))


def _parsed(data: bytes, form: str, place: str) -> dict[str, Any]:
    """Return the document of an archive's metadata; raise ArchiveError unless it is an object of a known version."""
    document = parse_json(data, place)
    if not isinstance(document, dict):
        raise ArchiveError("it must hold a JSON object", place=place, next_step=_AGAIN)
    document = current_keys(document)
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise ArchiveError("the format version is missing", place=place, next_step=_AGAIN)
    if not 1 <= version <= VERSION:
        raise ArchiveError(
            f"this is version {version if abs(version) < 10**9 else 'beyond all'} of the format; "
            f"mlfc reads versions 1 to {VERSION}",
            place=place,
            next_step="Use a newer mlfc" if version > VERSION else _AGAIN,
        )
    if form != RFC and is_operator_style(document) and version not in OPERATOR_VERSIONS:
        raise ArchiveError(f"version {version} of the format has no operator style", place=place, next_step=_AGAIN)
    return document


def archive_record(
    document: Mapping[str, Any], paths: Iterable[str], *, version: int, form: str, layout: ArchiveLayout
) -> ArchiveRecord:
    """Return the record of an archive from what `upgraded` returns."""
    known = tuple(paths)
    info = ArchiveInfo.read(document["mlfc"], "mlfc", _AGAIN) if "mlfc" in document else None
    if is_operator_style(document):
        name = document["model_name"]
        module = ModuleRecord(
            name=name,
            executors=tuple(document["executors"]),
            targets=tuple(target.strip() for target in document["target"]),
            export_datetime=document["export_datetime"],
            operators={name: tuple(map(_buffer, buffers)) for name, buffers in sorted(document["memory"].items())},
            external_dependencies=tuple(document.get("external_dependencies", ())),
            files=files_of_modules((name,), known, layout)[name],
        )
        return ArchiveRecord(version, form, OPERATOR, {module.name: module}, info)
    objects: Mapping[str, Mapping[str, Any]] = document["modules"]
    files = files_of_modules(objects, known, layout)
    modules = {name: _module(objects[name], files[name]) for name in sorted(objects)}
    return ArchiveRecord(version, form, FULL_MODEL, modules, info)


def _module(module: Mapping[str, Any], files: ModuleFiles) -> ModuleRecord:
    functions, sids, details = module["memory"]["functions"], module["memory"].get("sids"), None
    if "mlfc" in module:
        own = {"executor": module["executors"][0], **module["mlfc"]}
        details = ModuleInfo.read(own, f"modules.{module['model_name']}.mlfc", _AGAIN)
    storages = [GraphStorage(item["storage_id"], item["size_bytes"], item.get("input_binding")) for item in sids or ()]
    return ModuleRecord(
        name=module["model_name"],
        executors=tuple(module["executors"]),
        targets=tuple(target.strip() for target in module["target"]),
        export_datetime=module["export_datetime"],
        # the details belong to the first entry, the host's
        main=tuple(
            MainMemory(
                device=entry["device"],
                workspace_bytes=entry["workspace_size_bytes"],
                constants_bytes=entry["constants_size_bytes"],
                io_bytes=entry["io_size_bytes"],
                inputs=_tensors(entry.get("inputs", {}), details.inputs if details and not index else None),
                outputs=_tensors(entry.get("outputs", {}), details.outputs if details and not index else None),
            )
            for index, entry in enumerate(functions["main"])
        ),
        operator_functions=tuple(map(_operator_function, functions["operator_functions"])),
        storages=None if sids is None else tuple(storages),
        external_dependencies=tuple(module.get("external_dependencies", ())),
        details=details,
        files=files,
    )


def _tensors(sizes: Mapping[str, Any], details: Iterable[TensorInfo] | None) -> tuple[TensorRecord, ...]:
    """Return the tensors in the order of the C structs if the archive records it, else by name."""
    if details is None:
        return tuple(TensorRecord(name, sizes[name]["dtype"], sizes[name]["size"]) for name in sorted(sizes))
    known = (tensor for tensor in details if tensor.name in sizes)
    return tuple(
        TensorRecord(item.name, item.dtype, sizes[item.name]["size"], item.shape, item.scale, item.zero_point)
        for item in known
    )


def _operator_function(entry: Mapping[str, Any]) -> OperatorFunction:
    workspace: dict[int, int] = {}
    for item in entry["workspace"]:
        workspace[item["device"]] = workspace.get(item["device"], 0) + item["workspace_size_bytes"]
    return OperatorFunction(entry["function_name"], workspace)


def _buffer(entry: Mapping[str, Any]) -> OperatorBuffer:
    return OperatorBuffer(entry["size_bytes"], tuple(entry["shape"]), entry["dtype"], entry.get("input_binding"))


def is_operator_style(document: Mapping[str, Any]) -> bool:
    """Return True for the flat style of single operators, which version 7 has too."""
    return document.get("style") == OPERATOR


def upgraded(document: Mapping[str, Any]) -> Document:
    """Return the equivalent version 7 document of one of any version and form that matches its schema."""
    if "modules" in document:
        return dict(document)
    module = {key: value for key, value in document.items() if key not in _RENAMED and key != "version"}
    module |= {key: document[old] for old, key in _RENAMED.items() if old in document}
    target = document["target"]
    module["target"] = [target] if isinstance(target, str) else list(target)
    if isinstance(target, Mapping):
        module["target"] = [target[device] for device in sorted(target, key=int)]
    if is_operator_style(document):
        return {"executors": [], **module, "version": VERSION}
    module["style"], memory = FULL_MODEL, document["memory"]
    module["memory"] = {"functions": {"main": [], "operator_functions": []}}
    if isinstance(memory, Mapping):
        module["memory"] |= memory
    elif memory:  # version 1 lists only the graph executor's blocks
        module["memory"] = {"sids": memory, **module["memory"]}
    result: Document = {"version": VERSION, "modules": {document["model_name"]: module}}
    if "mlfc" in document:
        details = dict(document["mlfc"])
        if "archive" in details:
            result["mlfc"] = details.pop("archive")
        if "functions" in details:
            module["memory"]["functions"] = details.pop("functions")
        module["mlfc"] = details
    return result


def module_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield ``path: what is wrong`` for each contradiction in a result of `upgraded`."""
    if is_operator_style(document):
        yield from _time_faults(document, "$")
        for name, buffers in document["memory"].items():
            for index, buffer in enumerate(buffers):
                # narrow elements of any writer's dtype are packed, except bool
                digits = buffer["dtype"].lstrip("abcdefghijklmnopqrstuvwxyz")
                expected = (prod(buffer["shape"]) * (int(digits) if digits else 8) + 7) // 8
                if expected != buffer["size_bytes"]:
                    place = f"$.memory.{name[:80]}[{index}].size_bytes"
                    yield f"{place}: {buffer['size_bytes']}, but shape and dtype give {expected}"
        return
    if not document["modules"]:
        yield "$.modules: expected at least one module"
    if len(document["modules"]) > MAX_MODULES:
        yield f"$.modules: {len(document['modules']):,} modules are more than the {MAX_MODULES:,} allowed here"
        return
    for name, module in document["modules"].items():
        place = f"$.modules.{name[:80]}"
        if not MODULE_NAME.fullmatch(name):
            yield f"{place}: invalid module name"
        if module["model_name"] != name:
            yield f"{place}.model_name: expected '{name}', found '{module['model_name'][:80]}'"
        yield from _time_faults(module, place)
        if "mlfc" in module:
            yield from _details_faults(module, place)


def export_seconds(text: str) -> int:
    """Return the seconds since 1970 of a time in the format's notation; raise ValueError if it is not a valid time."""
    match = _TIME.fullmatch(text)  # time.strptime would import locales, which takes as long as everything else
    if match is None:
        raise ValueError(f"{text} is not a time")
    year, month, day, hour, minute, second = map(int, match.groups())
    return int(datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp())


def _time_faults(module: Mapping[str, Any], place: str) -> Iterator[str]:
    try:
        export_seconds(module["export_datetime"])
    except ValueError:
        yield f"{place}.export_datetime: {module['export_datetime']} is not a time"


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
    if details.get("vm") is None:  # only the virtual machine has dynamic dimensions
        for kind in (*_TENSORS, "states"):
            for index, tensor in enumerate(details.get(kind, ())):
                for extent in (extent for extent in tensor["shape"] if not isinstance(extent, int)):
                    yield f"{place}.mlfc.{kind}[{index}]: expected a static dimension, got '{extent[:80]}'"
    bounds = {symbol["name"]: symbol["high"] for symbol in (details.get("vm") or {}).get("symbols", ())}
    for kind in _TENSORS:
        names = [tensor["name"] for tensor in details[kind]]
        if len(set(names)) != len(names) or set(names) != set(main[kind]):
            yield f"{place}.mlfc.{kind}: the names differ from those in main.{kind}"
            continue
        for index, tensor in enumerate(details[kind]):
            listed = main[kind][tensor["name"]]
            size = _size(tensor, bounds)
            if listed["dtype"] != tensor["dtype"] or size not in (None, listed["size"]):
                yield f"{place}.mlfc.{kind}[{index}]: shape and dtype do not give the size in main.{kind}"
    total = sum(entry["size"] for kind in _TENSORS for entry in main[kind].values())
    if total != sizes["io_size_bytes"]:
        yield f"{place}: inputs and outputs have {total} bytes together, io_size_bytes is {sizes['io_size_bytes']}"


def _size(tensor: Mapping[str, Any], bounds: Mapping[str, int | None]) -> int | None:
    """Return a tensor's bytes with dynamic dimensions at their bounds: 0 without a bound, None for expressions."""
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
