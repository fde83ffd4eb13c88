"""Whether the graph executor's JSON is sound and fits the metadata; `validate_code` looks for its functions."""

from __future__ import annotations

from collections.abc import Iterator

from mlfc.archive.read.model import ModuleRecord, TensorRecord
from mlfc.archive.validate.fault import Fault, fault_of_error
from mlfc.archive.validate.parsed_files import ParsedFiles
from mlfc.codegen.host.graph_json import input_names
from mlfc.runtime.executors.graph_json import Graph


def graph_faults(parsed: ParsedFiles) -> Iterator[Fault]:
    """Yield what is wrong with the graph of each module, and where it contradicts what is beside it."""
    for module in parsed.archive.record.modules.values():
        path = module.files.graph
        if path is None:
            continue
        graph = parsed.graphs.get(path)
        if graph is not None:
            for cause in (*_storage_faults(graph, module), *_interface_faults(graph, module)):
                yield Fault("graph", path, cause)
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
