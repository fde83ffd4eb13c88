"""Whether graphs, parameters and Relay texts are sound and fit the metadata; `code` looks for the graphs' functions."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy.typing as npt

from mlfc.archive.read.model import ModuleRecord, TensorRecord
from mlfc.archive.read.opening import Archive
from mlfc.archive.read.params_forms import WRITERS, read_params
from mlfc.archive.read.source import read_source
from mlfc.archive.read.vm_file import executable_faults as faults_of
from mlfc.archive.read.vm_file import executable_of
from mlfc.archive.validate.parsed_files import ArchiveFault, ParsedFiles, fault_of_error
from mlfc.codegen.host.graph_json import input_names
from mlfc.errors import ArchiveError, MlfcError
from mlfc.relay.text import from_text
from mlfc.relay.text_source import MAX_TEXT
from mlfc.runtime.executors.graph_json import Graph
from mlfc.support import dtypes
from mlfc.support.content import ArrayContent, sha256_of
from mlfc.support.params import params_content

_COUNT_AT = 16
Params = Mapping[str, npt.NDArray[Any]]
_VERSION_LINE = "#[version"


def graph_faults(parsed: ParsedFiles) -> Iterator[ArchiveFault]:
    """Yield what is wrong with the graph of each module, and where it contradicts what is beside it."""
    for module in parsed.archive.record.modules.values():
        path = module.files.graph
        if path is None:
            continue
        graph = parsed.graphs.get(path)
        if graph is not None:
            for cause in (*_storage_faults(graph, module), *_interface_faults(graph, module)):
                yield ArchiveFault("graph", path, cause)
        elif path in parsed.errors:
            yield fault_of_error("graph", path, parsed.errors[path])


def _storage_faults(graph: Graph, module: ModuleRecord) -> Iterator[str]:
    if module.storages is None:
        return
    listed = {storage.storage_id: storage for storage in module.storages}
    needed = graph.storage_bytes
    for storage in sorted(needed.keys() - listed.keys()):
        yield f"storage id {storage} is not in the metadata"
    for storage in sorted(listed.keys() - needed.keys()):
        yield f"storage id {storage} of the metadata is in no tensor of the graph"
    if module.details is None:
        # TVM takes sizes and inputs from other tensors wherever ids are not in the order of the entries
        return
    for storage in sorted(needed.keys() & listed.keys()):
        if needed[storage] != listed[storage].nbytes:
            yield f"storage id {storage} needs {needed[storage]} bytes, the metadata say {listed[storage].nbytes}"
    bound = {graph.entries[entry].storage_id: name for name, entry in graph.arguments.items()}
    for storage, item in listed.items():
        if item.input_binding != bound.get(storage):
            yield f"storage id {storage} holds '{bound.get(storage)}', the metadata say '{item.input_binding}'"


def _interface_faults(graph: Graph, module: ModuleRecord) -> Iterator[str]:
    """Yield inputs and outputs that differ from those of the metadata."""
    names = input_names([tensor.name for tensor in module.inputs])
    for tensor, name in zip(module.inputs, names, strict=True):
        entry = graph.arguments.get(tensor.name, graph.arguments.get(name))
        if entry is None:
            yield f"the graph has no input {tensor.name}, which the metadata list"
        else:
            yield from _tensor_faults(graph, entry, tensor, f"input {tensor.name}")
    if module.outputs and len(module.outputs) != len(graph.heads):
        yield f"the graph has {len(graph.heads)} outputs, the metadata {len(module.outputs)}"
    elif module.details is not None:
        for entry, tensor in zip(graph.heads, module.outputs, strict=False):
            yield from _tensor_faults(graph, entry, tensor, f"output {tensor.name}")


def _tensor_faults(graph: Graph, entry: int, tensor: TensorRecord, shown: str) -> Iterator[str]:
    found = graph.entries[entry]
    if found.dtype != tensor.dtype:
        yield f"{shown}: of {found.dtype}, the metadata say {tensor.dtype}"
    if found.nbytes != tensor.nbytes:
        yield f"{shown}: {found.nbytes} bytes, the metadata say {tensor.nbytes}"
    if tensor.shape is not None and found.shape != tensor.shape:
        yield f"{shown}: of shape {found.shape}, the metadata say {tensor.shape}"


def executable_faults(parsed: ParsedFiles) -> Iterator[ArchiveFault]:
    """Yield the faults in the description of each dynamic model, and where it contradicts the metadata."""
    archive = parsed.archive
    for module in archive.record.modules.values():
        path = module.files.vm
        if path is None or module.executor != "vm":
            continue
        try:
            _, executable = executable_of(archive, path)
        except ArchiveError as error:
            yield fault_of_error("executable", path, error)
            continue
        for cause in faults_of(executable, module):
            yield ArchiveFault("executable", path, cause)


def params_faults(parsed: ParsedFiles) -> Iterator[ArchiveFault]:
    """Yield what is wrong with the parameters of each module, in each form that is there."""
    archive = parsed.archive
    for module in archive.record.modules.values():
        graph = parsed.graphs.get(module.files.graph or "")
        for path in _files(archive, module):
            try:
                params = read_params(archive.tar, path)
            except ArchiveError as error:
                yield fault_of_error("parameters", path, error)
                continue
            causes = [*_file_faults(archive, path, params)]
            if path != module.files.source_params:
                causes += _graph_faults(params, graph, module)
            for cause in causes:
                yield ArchiveFault("parameters", path, cause)


def _files(archive: Archive, module: ModuleRecord) -> Iterator[str]:
    if module.files.params is not None:
        stem = str(PurePosixPath(module.files.params).with_suffix(""))
        yield from (path for form in WRITERS if (path := f"{stem}.{form}") in archive.tar.sizes)
    if module.files.source_params is not None:
        yield module.files.source_params


def _file_faults(archive: Archive, path: str, params: Params) -> Iterator[str]:
    """Yield what TVM's readers pass over in silence: names given twice, bytes behind the last tensor."""
    if not path.endswith(".params"):
        return
    (count,) = struct.unpack_from("<Q", archive.tar.view(path), _COUNT_AT)
    if count != len(params):
        yield f"names are there twice: {count} tensors have {len(params)} names"
        return
    behind = archive.tar.sizes[path] - params_content(params).nbytes
    if behind:
        yield f"{behind} bytes behind the last tensor"


def _graph_faults(params: Params, graph: Graph | None, module: ModuleRecord) -> Iterator[str]:
    """Yield tensors that are not those of the graph and of the metadata."""
    constants = {item.name: item for item in (module.details and module.details.constants) or ()}
    for name, array in params.items():
        dtype = dtypes.from_numpy(array.dtype)
        if graph is not None:
            if name not in graph.arguments:
                yield f"tensor '{name[:80]}' is no input of the graph"
                continue
            entry = graph.entries[graph.arguments[name]]
            if entry.dtype != dtype:
                yield f"tensor '{name[:80]}' is of {dtype}, the graph says {entry.dtype}"
            if entry.shape != array.shape:
                yield f"tensor '{name[:80]}' is of shape {array.shape}, the graph says {entry.shape}"
        if name in constants and sha256_of(ArrayContent(array)) != constants[name].sha256:
            yield f"tensor '{name[:80]}' is not the one of the metadata (SHA-256 differs)"
    if graph is not None and module.main:
        listed = [[tensor.name for tensor in main.inputs] for main in module.main]
        inputs = {name for names in listed for name in (*names, *input_names(names))}
        # archives of before 0.11 do not list their inputs
        if inputs:
            for name in graph.arguments.keys() - params.keys() - inputs:
                yield f"no tensor for '{name[:80]}', which the graph takes and the metadata do not list as an input"


def relay_faults(parsed: ParsedFiles) -> Iterator[ArchiveFault]:
    """Yield texts that do not parse.

    TVM's archives hold ``str(module)``, which TVM's own parser does not take: it has no line with a version, and the
    values of its constants are nowhere. Such a text must be text, and no more can be asked of it.
    """
    archive = parsed.archive

    for name, module in archive.record.modules.items():
        path = module.files.relay
        if path is None:
            continue
        try:
            _read(archive, name, module, path)
        except MlfcError as error:
            yield fault_of_error("relay", path, error)


def _read(archive: Archive, name: str, module: ModuleRecord, path: str) -> None:
    try:
        text = archive.tar.read(path, MAX_TEXT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArchiveError(f"it is not UTF-8 at byte {error.start}", place=path) from None
    if not text.startswith(_VERSION_LINE):
        return
    if module.details is not None and module.files.source_params is not None:
        read_source(archive, name)
    else:
        from_text(text, path)
