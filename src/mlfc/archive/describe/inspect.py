"""What an archive says of itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mlfc.archive.describe.operators import GraphMemorySummary, graph_memory, module_operators, module_peak
from mlfc.archive.describe.vm import described_vm, unknown_memory
from mlfc.archive.read.model import ArchiveRecord, GraphStorage, ModuleRecord, OperatorBuffer, TensorRecord
from mlfc.archive.read.opening import Archive, open_archive
from mlfc.archive.read.vm_file import executable_of
from mlfc.relay.op import kernel_note
from mlfc.runtime.executors.graph_json import MAX_TEXT, parse_graph
from mlfc.support.content import ArrayContent, sha256_of, sha256_stream
from mlfc.support.params import load_params
from mlfc.support.records import titled
from mlfc.support.vm_info import vm_info

_PARAMS = ".params"


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe an archive of any version, whoever wrote it. Nothing of it is run.

    Returns
    -------
    dict
        ``version``, ``form``, ``style``, ``writer``, ``shared``, ``modules`` by name and ``files``; of each module
        ``executor``, ``target``, ``inputs``, ``outputs``, ``states``, ``memory``, ``operators``, ``peak``,
        ``constants``, ``storages``, ``functions``, ``module_tree``, ``workspace_io``, ``pools``, ``stripes``,
        ``constant_pools``, ``vm``, ``build``, ``source``, ``exported``, ``facts`` by title, and ``untold``, a list of
        what the archive does not say; such facts are None.

    Raises
    ------
    ArchiveError
        If it is not an archive, or contradicts itself.
    """
    with open_archive(path) as archive:
        return describe(archive)


def describe(archive: Archive) -> dict[str, Any]:
    """Return what `inspect` says of an open archive."""
    record = archive.record
    return {
        "version": record.version,
        "form": record.form,
        "style": record.style,
        "writer": _writer(record),
        "shared": record.details.shared.to_json() if record.details and record.details.shared else None,
        "modules": {name: _module(archive, module) for name, module in record.modules.items()},
        "files": _files(archive),
    }


def _writer(record: ArchiveRecord) -> str | None:
    if record.details:
        return f"mlfc {record.details.version}"
    versions = {
        str(item["version_spec"])
        for module in record.modules.values()
        for item in module.external_dependencies
        if item.get("short_name") == "tvm_standalone_crt" and "version_spec" in item
    }
    return f"TVM {', '.join(sorted(versions))}" if versions else None


def _files(archive: Archive) -> list[dict[str, Any]]:
    files = []
    for name, size in sorted(archive.tar.sizes.items()):
        with archive.tar.open(name) as file:
            files.append({"path": name, "bytes": size, "sha256": sha256_stream(file)})
    return files


def _module(archive: Archive, module: ModuleRecord) -> dict[str, Any]:
    details = module.details.to_json() if module.details else {}
    graph = _graph(archive, module)
    operators = module_operators(module, graph, archive.path)
    inputs, outputs = (_tensors(module, kind, graph) for kind in ("inputs", "outputs"))
    found = {
        "executor": module.executor,
        "target": list(module.targets),
        "inputs": inputs,
        "outputs": outputs,
        "states": _states(module),
        "memory": _memory(module, graph, operators),
        "operators": operators,
        "peak": module_peak(module, operators),
        "constants": _constants(archive, module),
        "storages": None if module.storages is None else list(map(_storage, module.storages)),
        "functions": {name: list(map(_buffer, buffers)) for name, buffers in module.operators.items()} or None,
        "module_tree": details.get("module_tree"),
        "devices": list(module.files.devices),
        "workspace_io": bool(details.get("workspace_io")),
        "pools": details.get("pools"),
        "stripes": details.get("stripes"),
        "constant_pools": details.get("constant_pools"),
        "vm": _vm(archive, module),
        "build": details.get("build"),
        "source": details.get("source"),
        "exported": module.export_datetime,
    }
    facts = dict(titled(module.details)) if module.details else {}
    notes = [kernel_note(operator["function"]) for operator in operators or () if module.executor != "vm"]
    if note := next(filter(None, notes), ""):
        facts["outputs"] = note
    return {**found, "facts": facts, "untold": _untold(found)}


def _vm(archive: Archive, module: ModuleRecord) -> dict[str, Any] | None:
    """Return the dynamic dimensions and memory of a dynamic model."""
    path, told = module.files.vm, module.details.vm if module.details else None
    if path is None or module.executor != "vm":
        return None
    _, executable = executable_of(archive, path)
    return described_vm(executable, told or vm_info(executable))


def _graph(archive: Archive, module: ModuleRecord) -> GraphMemorySummary | None:
    path = module.files.graph
    if path is None or path not in archive.tar.sizes:
        return None
    place = f"{archive.path}: {path}"
    return graph_memory(parse_graph(archive.tar.read(path, MAX_TEXT), place))


def _tensors(module: ModuleRecord, kind: str, graph: GraphMemorySummary | None) -> list[dict[str, Any]]:
    listed: tuple[TensorRecord, ...] = tuple(tensor for main in module.main for tensor in getattr(main, kind))
    if module.details:
        sizes = {tensor.name: tensor.nbytes for tensor in listed}
        infos = module.details.inputs if kind == "inputs" else module.details.outputs
        # of open extents without a bound the metadata say 0
        return [{**info.to_json(), "bytes": sizes.get(info.name) or (0 if info.is_static else None)} for info in infos]
    return [
        {
            "name": tensor.name,
            "shape": _shape(tensor, kind, len(listed), graph),
            "dtype": tensor.dtype,
            "scale": tensor.scale,
            "zero_point": tensor.zero_point,
            "bytes": tensor.nbytes,
        }
        for tensor in listed
    ]


def _states(module: ModuleRecord) -> list[dict[str, Any]]:
    known = module.details.states if module.details else ()
    return [{**info.to_json(), "bytes": info.nbytes} for info in known]


def _shape(tensor: TensorRecord, kind: str, count: int, graph: GraphMemorySummary | None) -> list[int | str] | None:
    if tensor.shape is not None:
        return list(tensor.shape)
    if graph is None:
        return None
    if kind == "inputs":
        known = graph.arguments.get(tensor.name)
    else:
        # metadata name the outputs in alphabetical order, the graph has them in the model's and without names
        known = graph.results[0] if count == len(graph.results) == 1 else None
    return list(known[1]) if known and known[0] == tensor.dtype else None


def _memory(
    module: ModuleRecord, graph: GraphMemorySummary | None, operators: list[dict[str, Any]]
) -> dict[str, int | None]:
    tensors = [tensor.nbytes for main in module.main for tensor in (*main.inputs, *main.outputs)]
    scratch = [operator["workspace_bytes"] for operator in operators]
    if module.executor != "vm":
        scratch = [size for size in scratch if size is not None]
    found: dict[str, int | None] = {
        "workspace_bytes": sum(main.workspace_bytes for main in module.main),
        "workspace_lower_bound_bytes": module.details.memory.workspace_lower_bound_bytes if module.details else None,
        "constants_bytes": sum(main.constants_bytes for main in module.main),
        # TVM counts intermediates of AOT models among the inputs and outputs; the tensors' own sizes are right
        "io_bytes": sum(tensors) if tensors else sum(main.io_bytes for main in module.main),
    }
    if module.details and module.details.vm:
        found |= unknown_memory(found, module.details.vm.arena_bytes)
    return {
        **(found if module.main else dict.fromkeys(found)),
        "scratch_bytes": None if None in scratch else max((size for size in scratch if size is not None), default=None),
        "storages_bytes": graph.storage_bytes if graph else None,
        "state_bytes": module.details.memory.state_bytes if module.details else None,
    }


def _constants(archive: Archive, module: ModuleRecord) -> list[dict[str, Any]] | None:
    """Return the module's weights, the largest first; None where they are only in the C."""
    told = module.details and module.details.constants
    listed = [constant.to_json() for constant in told or ()]
    if told is None:
        path = module.files.params
        if module.executor != "graph" or path is None or not path.endswith(_PARAMS):
            return None
        params = load_params(archive.tar.view(path), place=f"{archive.path}: {path}")
        listed = [
            {
                "name": name,
                "bytes": array.nbytes,
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "sha256": sha256_of(ArrayContent(array)),
            }
            for name, array in params.items()
        ]
    total = sum(item["bytes"] for item in listed)
    shares = [{**item, "share": round(item["bytes"] / total, 6) if total else 0.0} for item in listed]
    return sorted(shares, key=lambda item: (-item["bytes"], item["name"]))


def _storage(storage: GraphStorage) -> dict[str, Any]:
    return {"storage_id": storage.storage_id, "bytes": storage.nbytes, "input_binding": storage.input_binding}


def _buffer(buffer: OperatorBuffer) -> dict[str, Any]:
    return {
        "bytes": buffer.nbytes,
        "shape": list(buffer.shape),
        "dtype": buffer.dtype,
        "input_binding": buffer.input_binding,
    }


def _untold(module: Mapping[str, Any]) -> list[str]:
    """Return what the archive does not say, in words that complete a sentence."""
    tensors, operators = [*module["inputs"], *module["outputs"]], module["operators"]
    if module["functions"] is not None:
        return []
    # without bounds, the run decides them
    is_open = bool(module["vm"]) and module["vm"]["arena_bytes"] is None
    facts = {
        "inputs and outputs": bool(tensors),
        "shapes": all(tensor["shape"] is not None for tensor in tensors),
        "nodes of the model": all(operator["nodes"] is not None for operator in operators),
        "MACs": is_open or all(operator["macs"] is not None for operator in operators),
        "which tensors live when": is_open or all(operator["tensors"] is not None for operator in operators),
        "weights": module["constants"] is not None,
    }
    return [fact for fact, told in facts.items() if not told]
