"""Description of an archive: its modules, their operators, and the tensors that are live during each call.

Storages of the graph executor have no addresses, so they are laid out one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mlfc.archive.read.layout import CODE, HEADERS
from mlfc.archive.read.model import ModuleRecord, TensorRecord
from mlfc.archive.read.module_parts import executable_of
from mlfc.archive.read.opening import Archive, open_archive
from mlfc.crt import crt_files
from mlfc.errors import ArchiveError, ToolchainError
from mlfc.library.toolchain import compile_objects
from mlfc.memory.plan import SCRATCH_NAME
from mlfc.objfile.elf import ALLOCATED, EXECUTABLE, NO_BITS, WRITABLE, read_elf
from mlfc.relay.op import kernel_note
from mlfc.relay.text import not_in_tvm
from mlfc.relay.text_source import MAX_TEXT as MAX_SOURCE
from mlfc.runtime.executors.graph_json import MAX_TEXT, NOP, Graph, TensorEntry, parse_graph
from mlfc.runtime.executors.vm.containers import Signature
from mlfc.support.content import ArrayContent, sha256_of, sha256_stream
from mlfc.support.executable import Executable, vm_info
from mlfc.support.module_info import BlockInfo, ConstantInfo, PoolInfo, VmInfo
from mlfc.support.params import load_params
from mlfc.support.records import titled
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.tensor_info import Container, ContainerInfo
from mlfc.support.text import shortened

_PARAMS = ".params"
_UNBOUNDED = ("workspace_bytes", "io_bytes", "workspace_lower_bound_bytes")
Calls: TypeAlias = list[dict[str, Any]]
MAX_LISTED = 200_000
"""Maximum number of tensors over all calls; larger models show only sums."""
_INCLUDES = (HEADERS, "runtime/include", "runtime/host")  # as in the archive's own Makefile
_KINDS = ("code_bytes", "readonly_bytes", "data_bytes", "zeroed_bytes")


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe an archive of any version and from any writer. No code of it is executed.

    Returns
    -------
    dict
        ``version``, ``form``, ``style``, ``writer``, ``shared``, ``modules`` by name and ``files``; of each module
        ``executor``, ``target``, ``inputs``, ``outputs``, ``states``, ``memory``, ``operators``, ``peak``,
        ``constants``, ``storages``, ``functions``, ``module_tree``, ``workspace_io``, ``pools``, ``stripes``,
        ``constant_pools``, ``vm``, ``build``, ``source``, ``not_in_tvm`` (a list of the operators, dtypes and
        dimensions in the Relay text that TVM 0.14 lacks), ``exported``, ``facts`` by title, and ``untold``, a list of
        the facts that the archive does not record; these are None.

    Raises
    ------
    ArchiveError
        If it is not an archive, or contradicts itself.

    Examples
    --------
    >>> mlfc.inspect("digits.tar")["modules"]["digits"]["executor"]
    'aot'
    """
    with open_archive(path) as archive:
        return describe(archive)


def describe(archive: Archive) -> dict[str, Any]:
    """Return the result of `inspect` for an open archive."""
    record = archive.record
    writer = f"mlfc {record.details.version}" if record.details else None
    needed = [item for module in record.modules.values() for item in module.external_dependencies]
    runtimes = [item for item in needed if item.get("short_name") == "tvm_standalone_crt" and "version_spec" in item]
    if writer is None and runtimes:
        writer = f"TVM {', '.join(sorted({str(item['version_spec']) for item in runtimes}))}"
    return {
        "version": record.version,
        "form": record.form,
        "style": record.style,
        "writer": writer,
        "shared": record.details.shared.to_json() if record.details and record.details.shared else None,
        "modules": {name: _module(archive, module) for name, module in record.modules.items()},
        "files": [
            {"path": name, "bytes": size, "sha256": sha256_stream(archive.tar.open(name))}
            for name, size in sorted(archive.tar.sizes.items())
        ],
    }


def _module(archive: Archive, module: ModuleRecord) -> dict[str, Any]:
    details = module.details.to_json() if module.details else {}
    graph, path = None, module.files.graph
    if path is not None and path in archive.tar.sizes:
        graph = graph_memory(parse_graph(archive.tar.read(path, MAX_TEXT), f"{archive.path}: {path}"))
    vm = None
    if module.files.vm is not None and module.executor == "vm":
        _, executable = executable_of(archive, module.files.vm)
        vm = described_vm(executable, (module.details and module.details.vm) or vm_info(executable))
    operators = module_operators(module, graph, archive.path)
    inputs, outputs = (_tensors(module, kind, graph) for kind in ("inputs", "outputs"))
    found = {
        "executor": module.executor,
        "target": list(module.targets),
        "inputs": inputs,
        "outputs": outputs,
        "states": [
            {**info.to_json(), "bytes": info.nbytes} for info in (module.details.states if module.details else ())
        ],
        "memory": _memory(module, graph, operators),
        "operators": operators,
        "peak": module_peak(module, operators),
        "constants": _constants(archive, module),
        "storages": None if module.storages is None else [item.to_json() for item in module.storages],
        "functions": {name: [item.to_json() for item in buffers] for name, buffers in module.operators.items()} or None,
        "module_tree": details.get("module_tree"),
        "devices": list(module.files.devices),
        "workspace_io": bool(details.get("workspace_io")),
        "pools": details.get("pools"),
        "stripes": details.get("stripes"),
        "constant_pools": details.get("constant_pools"),
        "vm": vm,
        "build": details.get("build"),
        "source": details.get("source"),
        "exported": module.export_datetime,
    }
    facts = dict(titled(module.details)) if module.details else {}
    if lacks := _not_in_tvm(archive, module):
        facts["Relay text"] = f"needs mlfc (TVM lacks {', '.join(lacks)})"
    notes = [kernel_note(operator["function"]) for operator in operators or () if module.executor != "vm"]
    if note := next(filter(None, notes), ""):
        facts["outputs"] = note
    return {**found, "not_in_tvm": lacks, "facts": facts, "untold": _untold(found)}


def _not_in_tvm(archive: Archive, module: ModuleRecord) -> list[str] | None:
    """Return what TVM 0.14 cannot parse in the Relay text; None if the archive has no text."""
    path = module.files.relay
    if path is None or archive.tar.sizes.get(path, MAX_SOURCE + 1) > MAX_SOURCE:
        return None
    if module.details is None:  # TVM wrote it
        return []
    return list(not_in_tvm(archive.tar.read(path, MAX_SOURCE).decode("utf-8", "replace")))


def described_vm(executable: Executable, info: VmInfo) -> dict[str, Any]:
    """Return dynamic dimensions, memory, and which inputs and outputs are sequences or optionals of which tensors."""
    containers = [
        {
            "binding": binding,
            "name": info.name,
            "kind": info.kind,
            "dtype": info.dtype,
            "shape": list(info.shape),
            "tensors": list(Container(info.name, info.kind, info.dtype).parts),
        }
        for binding, values in (("input", executable.inputs), ("output", executable.outputs))
        for info in Signature(values).infos
        if isinstance(info, ContainerInfo)
    ]
    return {**info.to_json(), "containers": containers, "kernels": executable.kernels}


def unknown_memory(memory: Mapping[str, int | None], arena_bytes: int | None) -> dict[str, None]:
    """Return the unknown entries of a module's memory, which are 0 there: the arena if a dimension is unbounded.

    Older versions computed no lower bound of the virtual machine's memory.
    """
    if arena_bytes is None:
        return dict.fromkeys(_UNBOUNDED)
    is_older = arena_bytes > 0 and not memory["workspace_lower_bound_bytes"]
    return {"workspace_lower_bound_bytes": None} if is_older else {}


def _tensors(module: ModuleRecord, kind: str, graph: GraphMemorySummary | None) -> list[dict[str, Any]]:
    listed: tuple[TensorRecord, ...] = tuple(tensor for main in module.main for tensor in getattr(main, kind))
    if module.details:
        sizes = {tensor.name: tensor.nbytes for tensor in listed}
        infos = module.details.inputs if kind == "inputs" else module.details.outputs
        # metadata hold 0 for dynamic dimensions without a bound
        return [{**info.to_json(), "bytes": sizes.get(info.name) or (0 if info.is_static else None)} for info in infos]
    found = []
    for tensor in listed:
        shape, known = tensor.shape, None
        if graph is not None:
            # metadata list the outputs alphabetically, the graph in the model's order and without names
            result = graph.results[0] if len(listed) == len(graph.results) == 1 else None
            known = graph.arguments.get(tensor.name) if kind == "inputs" else result
        if shape is None and known and known[0] == tensor.dtype:
            shape = known[1]
        scales = {"dtype": tensor.dtype, "scale": tensor.scale, "zero_point": tensor.zero_point}
        found.append({"name": tensor.name, "shape": shape and list(shape), **scales, "bytes": tensor.nbytes})
    return found


def _memory(module: ModuleRecord, graph: GraphMemorySummary | None, operators: Calls) -> dict[str, int | None]:
    tensors = [tensor.nbytes for main in module.main for tensor in (*main.inputs, *main.outputs)]
    scratch = [operator["workspace_bytes"] for operator in operators]
    if module.executor != "vm":
        scratch = [size for size in scratch if size is not None]
    found: dict[str, int | None] = {
        "workspace_bytes": sum(main.workspace_bytes for main in module.main),
        "workspace_lower_bound_bytes": module.details.memory.workspace_lower_bound_bytes if module.details else None,
        "constants_bytes": sum(main.constants_bytes for main in module.main),
        # TVM counts intermediates of AOT models as inputs and outputs; the tensors' own sizes are right
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
    """Return the module's weights, the largest first; None if they are only in the C."""
    told = module.details and module.details.constants
    listed = [constant.to_json() for constant in told or ()]
    if told is None:
        path = module.files.params
        if module.executor != "graph" or path is None or not path.endswith(_PARAMS):
            return None
        params = load_params(archive.tar.view(path), place=f"{archive.path}: {path}")
        infos = (
            ConstantInfo(name, array.nbytes, str(array.dtype), array.shape, sha256_of(ArrayContent(array)))
            for name, array in params.items()
        )
        listed = [info.to_json() for info in infos]
    total = sum(item["bytes"] for item in listed)
    shares = [{**item, "share": round(item["bytes"] / total, 6) if total else 0.0} for item in listed]
    return sorted(shares, key=lambda item: (-item["bytes"], item["name"]))


def _untold(module: Mapping[str, Any]) -> list[str]:
    """Return the facts that the archive does not record, as phrases that complete a sentence."""
    tensors, operators = [*module["inputs"], *module["outputs"]], module["operators"]
    if module["functions"] is not None:
        return []
    # lifetimes of unbounded dimensions are known only at run time
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


def module_operators(module: ModuleRecord, graph: GraphMemorySummary | None, place: str) -> list[dict[str, Any]]:
    """Return the module's operators in the order of their calls, as far as the archive records them.

    Returns ``function``, ``nodes``, ``workspace_bytes`` (its scratch), ``macs``, ``bytes`` (read and written),
    ``intensity`` (MACs per byte), ``types`` (of its inputs, then of its outputs), ``live_bytes`` and ``tensors``
    (``name``, ``bytes``, ``offset``, ``storage_id`` for the graph executor, and ``pool`` if it has several), the
    largest first; ``reads``, the positions of the calls whose results it reads, with -1 - k for input k, and
    ``outputs``, the positions of outputs that it computes, as in the metadata. Facts that are not recorded are None.
    """
    operators = _connected(_listed(module, graph), module, graph)
    blocks = _blocks(module, graph, len(operators), place)
    live = None if blocks is None else live_during(blocks, len(operators))
    pools = sorted(module.details.pools if module.details else (), key=lambda pool: -pool.base)
    vm = module.details.vm if module.details else None
    is_bounded = vm is None or vm.arena_bytes is not None
    result = []
    for index, operator in enumerate(operators):
        tensors = None if live is None else [_tensor(block, pools, graph) for block in live[index]]
        live_bytes = operator.get("live_bytes")
        if graph is not None and live is not None and tensors is not None:
            # the graph executor does not allocate scratch in storages
            scratch = operator["workspace_bytes"]
            live_bytes = None if scratch is None else span_bytes(live[index]) + scratch
            tensors += [{"name": SCRATCH_NAME, "bytes": scratch, "offset": None}] if scratch else []
            tensors.sort(key=lambda item: -item["bytes"])
        macs, nbytes = operator["macs"], operator.get("bytes")
        if operator.get("run_macs") is not None and not is_bounded:
            macs = None  # known only at run time, as inputs are unbounded
        types = operator.get("shapes") or operator.get("tensors") or None
        if types is None and graph and len(graph.calls) == len(operators):
            types = list(graph.calls[index].types)
        intensity = round(macs / nbytes, 3) if macs is not None and nbytes else None
        found = {**operator, "macs": macs, "intensity": intensity, "bytes": nbytes, "types": types}
        result.append({**found, "live_bytes": live_bytes, "tensors": tensors})
    return result


def module_peak(module: ModuleRecord, operators: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the call with most live bytes: its index as ``call``, and its entry of `module_operators`."""
    known = [(operator["live_bytes"], -index) for index, operator in enumerate(operators) if operator["live_bytes"]]
    told = module.details.peak.to_json() if module.details and module.details.peak else None
    if not known:
        return told and {**told, "call": None}
    call = -max(known)[1]
    operator = operators[call]
    if told and told["live_bytes"] == operator["live_bytes"]:
        return {**told, "call": call}
    tensors = [{"name": item["name"], "bytes": item["bytes"]} for item in operator["tensors"] or ()]
    found = {key: operator[key] for key in ("function", "nodes", "live_bytes")}
    return {**found, "tensors": tensors, "call": call}


def _listed(module: ModuleRecord, graph: GraphMemorySummary | None) -> list[dict[str, Any]]:
    told = module.details.operators if module.details else None
    if told is not None and (graph is None or len(told) == len(graph.calls)):
        return [call.to_json() for call in told]
    scratch = {item.name: sum(item.workspace.values()) for item in module.operator_functions}
    calls: list[tuple[str, int | None]] = [(name, None) for name in scratch]
    if graph is not None:
        calls = [(call.function, call.nbytes) for call in graph.calls]
    return [
        {"function": name, "nodes": None, "workspace_bytes": scratch.get(name), "macs": None, "bytes": nbytes}
        for name, nbytes in calls
    ]


def _connected(calls: Calls, module: ModuleRecord, graph: GraphMemorySummary | None) -> Calls:
    """Return calls with ``reads`` and ``outputs``: as recorded, else from the graph's edges."""
    if any(operator.get("reads") for operator in calls):
        return [{**item, **{key: list(item.get(key, ())) for key in ("reads", "outputs")}} for item in calls]
    if graph is None or len(graph.calls) != len(calls):
        return [{**operator, "reads": None, "outputs": None} for operator in calls]
    given = {tensor.name: -1 - place for place, tensor in enumerate(t for main in module.main for t in main.inputs)}
    connected = []
    for operator, call in zip(calls, graph.calls, strict=True):
        sources = (source if isinstance(source, int) else given.get(source) for source in call.reads)
        reads = [source for source in dict.fromkeys(sources) if source is not None]
        connected.append({**operator, "reads": reads, "outputs": list(call.outputs)})
    return connected


def _blocks(
    module: ModuleRecord, graph: GraphMemorySummary | None, num_calls: int, place: str
) -> Sequence[BlockInfo] | None:
    """Return the blocks of a workspace; ArchiveError where a life is not within the calls."""
    if graph is not None:
        return graph.blocks if num_calls == len(graph.calls) else None
    plan = module.details.plan if module.details else None
    for block in plan or ():
        if not 0 <= block.first <= block.last < num_calls:
            raise ArchiveError(
                f"the plan keeps '{block.name[:80]}' for calls {block.first} to {block.last} of {num_calls}",
                place=f"{place}: module '{module.name}'",
                next_step="Export the archive again",
            )
    return plan


def _tensor(block: BlockInfo, pools: Sequence[PoolInfo], graph: GraphMemorySummary | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": block.name, "bytes": block.nbytes, "offset": block.offset}
    if graph is not None:
        shown["storage_id"] = graph.storage_ids[block]
    if pools:
        shown["pool"] = next((pool.name for pool in pools if pool.base <= block.offset), None)
    return shown


@dataclass(frozen=True)
class GraphCall:
    """A call of the graph executor: node name, function, and bytes read and written."""

    name: str
    function: str
    nbytes: int
    reads: tuple[int | str, ...]  # the calls that compute its operands, and names of arguments
    outputs: tuple[int, ...]  # the indices of the graph's results that it computes
    types: tuple[str, ...]  # of its inputs, then of its outputs


@dataclass(frozen=True)
class GraphMemorySummary:
    """Memory use of a graph."""

    calls: tuple[GraphCall, ...]  # in order; views, which execute no code, are left out
    blocks: tuple[BlockInfo, ...]  # written by calls
    storage_ids: Mapping[BlockInfo, int]
    storage_bytes: int  # of all storages that calls write, each as large as its largest tensor
    arguments: Mapping[str, tuple[str, tuple[int, ...]]]  # dtype and shape of each input and parameter
    results: tuple[tuple[str, tuple[int, ...]], ...]  # dtype and shape of each output


def overlap_note(tensor: Mapping[str, Any], live: Sequence[Mapping[str, Any]]) -> str:
    """Return why a tensor shares bytes with another live one, which the planner allows for reads before writes."""
    start, end = tensor.get("offset"), (tensor.get("offset") or 0) + tensor["bytes"]
    others = [] if start is None else [item for item in live if item is not tensor and item.get("offset") is not None]
    shared = [item for item in others if item["offset"] < end and start < item["offset"] + item["bytes"]]
    found = [item["name"] for item in shared if item["bytes"] and tensor["bytes"]]
    names = " and ".join(shortened(name) for name in found)
    return f"shares memory with {names}: each byte is read before it is overwritten" if found else ""


def overlap_notes(live: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the `overlap_note` of each call's result, from the tensors that are live in each call."""
    notes, before = [], set[str]()
    for tensors in live:
        new = [overlap_note(item, tensors) for item in tensors if item["name"] not in before]
        notes.append(next(filter(None, new), ""))
        before = {item["name"] for item in tensors}
    return notes


def live_during(blocks: Sequence[BlockInfo], num_calls: int) -> list[list[BlockInfo]] | None:
    """Return the blocks that are live in each call, largest first; None if they are too many to list."""
    if sum(block.last - block.first + 1 for block in blocks) > MAX_LISTED:
        return None
    present: list[list[BlockInfo]] = [[] for _ in range(num_calls)]
    for block in sorted(blocks, key=lambda block: (-block.nbytes, block.first, block.offset, block.name)):
        for index in range(block.first, block.last + 1):
            present[index].append(block)
    return present


def span_bytes(blocks: Sequence[BlockInfo]) -> int:
    """Return the number of bytes that blocks cover; overlapping bytes count once."""
    covered, end = 0, 0
    for block in sorted(blocks, key=lambda block: block.offset):
        covered += max(0, block.offset + block.nbytes - max(block.offset, end))
        end = max(end, block.offset + block.nbytes)
    return covered


def graph_memory(graph: Graph) -> GraphMemorySummary:
    """Return the memory use of a graph: a tensor is live from the call that writes it to the last that reads it."""
    calls: list[GraphCall] = []
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    names: dict[int, str] = {}
    sources: dict[int, int | str] = {entry: name for name, entry in graph.arguments.items()}
    for node in graph.nodes:
        if node.function is None:
            continue
        if node.function != NOP:
            touched = sum(graph.entries[index].nbytes for index in (*node.inputs, *node.outputs))
            sources.update(dict.fromkeys(node.outputs, len(calls)))
            reads = tuple(dict.fromkeys(sources[index] for index in node.inputs))
            outputs = tuple(place for place, index in enumerate(graph.heads) if index in node.outputs)
            entries = [graph.entries[index] for index in (*node.inputs, *node.outputs)]
            types = tuple(f"{entry.dtype}[{','.join(map(str, entry.shape))}]" for entry in entries)
            calls.append(GraphCall(node.name, node.function, touched, reads, outputs, types))
        else:  # a view
            sources.update(dict.fromkeys(node.outputs, sources[node.inputs[0]]))
        # a view before the first call counts for that call
        now = max(0, len(calls) - 1)
        for index in node.outputs:
            first[index], names[index] = now, node.name
        last.update(dict.fromkeys((*node.inputs, *node.outputs), now))
    last.update(dict.fromkeys(graph.heads, max(0, len(calls) - 1)))
    sizes = graph.storage_bytes
    offsets, total = {}, 0
    for storage in sorted({graph.entries[index].storage_id for index in first}):
        offsets[storage] = total
        total += sizes[storage]
    blocks, storage_ids = [], {}
    for index, start in first.items():
        entry = graph.entries[index]
        place = offsets[entry.storage_id]
        block = BlockInfo(names[index], entry.nbytes, place, start, last[index], None)
        storage_ids[block] = entry.storage_id
        blocks.append(block)
    arguments = {name: _type(graph.entries[index]) for name, index in graph.arguments.items()}
    results = tuple(_type(graph.entries[index]) for index in graph.heads)
    return GraphMemorySummary(tuple(calls), tuple(blocks), storage_ids, total, arguments, results)


def _type(entry: TensorEntry) -> tuple[str, tuple[int, ...]]:
    return entry.dtype, entry.shape


def code_sizes(archive: Archive) -> dict[str, int]:
    """Compile an archive's C for this machine and return the section sizes of its objects in bytes.

    Returns ``code_bytes`` (instructions), ``readonly_bytes`` (constants among them), ``data_bytes`` and
    ``zeroed_bytes`` (static workspaces among them).
    Raises ToolchainError if no compiler is found, it rejects the code, or its objects are not ELF files.
    """
    tar = archive.tar
    files = {name: tar.read(name, size) for name, size in tar.sizes.items() if name.startswith(f"{CODE}/")}
    # code generated by TVM includes the headers of its runtime
    headers = {f"runtime/{name}": data for name, data in crt_files().items() if name.endswith(".h")}
    with TemporaryFolder() as folder:
        built = compile_objects({**headers, **files}, Path(folder), includes=_INCLUDES)
        sizes = [object_sizes(path.read_bytes(), path.name) for path in built]
    return {kind: sum(item[kind] for item in sizes) for kind in _KINDS}


def object_sizes(data: bytes, place: str) -> dict[str, int]:
    """Return the sizes of an ELF object's sections by kind, with the keys of `code_sizes`."""
    try:
        sections = read_elf(data).sections
    except ValueError as error:
        raise ToolchainError(
            f"expected an ELF object from the compiler: {error}",
            place=place,
            next_step="Set CC to a compiler for ELF, such as gcc on Linux or arm-none-eabi-gcc",
        ) from None
    found = dict.fromkeys(_KINDS, 0)
    for section in sections:
        if section.flags & ALLOCATED:
            code, readonly, writable, zeroed = _KINDS
            fixed = writable if section.flags & WRITABLE else code if section.flags & EXECUTABLE else readonly
            found[zeroed if section.kind == NO_BITS else fixed] += section.nbytes
    return found
