"""The operators of a module, and which tensors it keeps in memory during which of its calls, as its archive says.

AOT modules of mlfc list the blocks of their workspace. For graph modules of any writer the graph JSON says which
storage each tensor lies in; storages have no addresses, so they are laid one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlfc.archive.read.model import ModuleRecord
from mlfc.errors import ArchiveError
from mlfc.memory.plan import SCRATCH_NAME
from mlfc.runtime.executors.graph_json import NOP, Graph, TensorEntry
from mlfc.support.module_info import BlockInfo, PoolInfo

MAX_LISTED = 200_000
"""Tensors of all calls together; beyond it only sums are of use to anybody."""


def module_operators(module: ModuleRecord, graph: GraphMemorySummary | None, place: str) -> list[dict[str, Any]]:
    """Return the module's operators in the order of their calls, as far as its archive knows it.

    Returns ``function``, ``nodes``, ``workspace_bytes`` (its scratch), ``macs``, ``bytes`` (read and written),
    ``intensity`` (MACs a byte), ``types`` (of what it reads, then of what it writes), ``live_bytes`` and ``tensors``
    (``name``, ``bytes``, ``offset``, of the graph executor ``storage_id``, and ``pool`` where there are several), the
    largest first; ``reads``, the positions of the calls whose results it reads, with -1 - k for input k, and
    ``outputs``, the positions of those that it computes, as metadata have them. What the archive does not say is None.
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
            # the graph executor takes scratch from elsewhere than storages
            scratch = operator["workspace_bytes"]
            live_bytes = None if scratch is None else span_bytes(live[index]) + scratch
            tensors += [{"name": SCRATCH_NAME, "bytes": scratch, "offset": None}] if scratch else []
            tensors.sort(key=lambda item: -item["bytes"])
        macs, nbytes = operator["macs"], operator.get("bytes")
        if operator.get("run_macs") is not None and not is_bounded:
            macs = None  # those of a run, which inputs without a bound decide
        types = (
            operator.get("shapes")
            or operator.get("tensors")
            or (list(graph.calls[index].types) if graph and len(graph.calls) == len(operators) else None)
        )
        result.append(
            {
                **operator,
                "macs": macs,
                "intensity": round(macs / nbytes, 3) if macs is not None and nbytes else None,
                "bytes": nbytes,
                "types": types,
                "live_bytes": live_bytes,
                "tensors": tensors,
            }
        )
    return result


def module_peak(module: ModuleRecord, operators: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the call during which most bytes are live: ``call``, its index, and what `module_operators` says of it."""
    known = [(operator["live_bytes"], -index) for index, operator in enumerate(operators) if operator["live_bytes"]]
    told = module.details.peak.to_json() if module.details and module.details.peak else None
    if not known:
        return told and {**told, "call": None}
    call = -max(known)[1]
    operator = operators[call]
    tensors = [{"name": item["name"], "bytes": item["bytes"]} for item in operator["tensors"] or ()]
    found = {"function": operator["function"], "nodes": operator["nodes"], "live_bytes": operator["live_bytes"]}
    if told and told["live_bytes"] == operator["live_bytes"]:
        found = told
        tensors = told["tensors"]
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


def _connected(
    operators: list[dict[str, Any]], module: ModuleRecord, graph: GraphMemorySummary | None
) -> list[dict[str, Any]]:
    """Return operators with ``reads`` and ``outputs``: as told, else as the graph connects them."""
    if any(operator.get("reads") for operator in operators):
        return [{**item, **{key: list(item.get(key, ())) for key in ("reads", "outputs")}} for item in operators]
    if graph is None or len(graph.calls) != len(operators):
        return [{**operator, "reads": None, "outputs": None} for operator in operators]
    given = {tensor.name: -1 - place for place, tensor in enumerate(t for main in module.main for t in main.inputs)}
    connected = []
    for operator, call in zip(operators, graph.calls, strict=True):
        sources = (source if isinstance(source, int) else given.get(source) for source in call.reads)
        reads = [source for source in dict.fromkeys(sources) if source is not None]
        connected.append({**operator, "reads": reads, "outputs": list(call.outputs)})
    return connected


def _blocks(
    module: ModuleRecord, graph: GraphMemorySummary | None, num_calls: int, place: str
) -> tuple[BlockInfo, ...] | None:
    if graph is not None:
        return graph.blocks if num_calls == len(graph.calls) else None
    plan = module.details.plan if module.details else None
    return None if plan is None else plan_blocks(plan, num_calls, f"{place}: module '{module.name}'")


def _tensor(block: BlockInfo, pools: Sequence[PoolInfo], graph: GraphMemorySummary | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": block.name, "bytes": block.nbytes, "offset": block.offset}
    if graph is not None:
        shown["storage_id"] = graph.storage_ids[block]
    if pools:
        shown["pool"] = next((pool.name for pool in pools if pool.base <= block.offset), None)
    return shown


@dataclass(frozen=True)
class GraphCall:
    """A call of the graph executor: the node's name, its function, and the bytes that it reads and writes."""

    name: str
    function: str
    nbytes: int
    reads: tuple[int | str, ...]  # the calls that compute what it reads, and the names of arguments
    outputs: tuple[int, ...]  # the positions of the graph's results that it computes
    types: tuple[str, ...]  # of what it reads, then of what it writes


@dataclass(frozen=True)
class GraphMemorySummary:
    """What a graph says of memory."""

    calls: tuple[GraphCall, ...]  # in order; views, which run no code, are left out
    blocks: tuple[BlockInfo, ...]  # what the calls write
    storage_ids: Mapping[BlockInfo, int]
    storage_bytes: int  # of all storages that calls write, each as large as the largest tensor in it
    arguments: Mapping[str, tuple[str, tuple[int, ...]]]  # dtype and shape of each input and parameter
    results: tuple[tuple[str, tuple[int, ...]], ...]  # dtype and shape of each output


def plan_blocks(plan: Sequence[BlockInfo], num_calls: int, place: str) -> tuple[BlockInfo, ...]:
    """Return the blocks of a workspace; ArchiveError where a life is not within the calls."""
    for block in plan:
        if not 0 <= block.first <= block.last < num_calls:
            raise ArchiveError(
                f"the plan keeps '{block.name[:80]}' for calls {block.first} to {block.last} of {num_calls}",
                place=place,
                next_step="Export the archive again",
            )
    return tuple(plan)


def live_during(blocks: Sequence[BlockInfo], num_calls: int) -> list[list[BlockInfo]] | None:
    """Return the blocks that are live in each call, largest first; None where they are too many to list."""
    if sum(block.last - block.first + 1 for block in blocks) > MAX_LISTED:
        return None
    present: list[list[BlockInfo]] = [[] for _ in range(num_calls)]
    for block in sorted(blocks, key=lambda block: (-block.nbytes, block.first, block.offset, block.name)):
        for index in range(block.first, block.last + 1):
            present[index].append(block)
    return present


def span_bytes(blocks: Sequence[BlockInfo]) -> int:
    """Return how many bytes blocks cover; where one takes another's place, in whole or in part, bytes count once."""
    covered, end = 0, 0
    for block in sorted(blocks, key=lambda block: block.offset):
        covered += max(0, block.offset + block.nbytes - max(block.offset, end))
        end = max(end, block.offset + block.nbytes)
    return covered


def graph_memory(graph: Graph) -> GraphMemorySummary:
    """Return what a graph says of memory: a tensor lives from the call that writes it to the last that reads it."""
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
            types = tuple(_type_text(graph.entries[index]) for index in (*node.inputs, *node.outputs))
            calls.append(GraphCall(node.name, node.function, touched, reads, outputs, types))
        else:  # a view
            sources.update(dict.fromkeys(node.outputs, sources[node.inputs[0]]))
        # a view before the first call belongs to it
        now = max(0, len(calls) - 1)
        for index in node.outputs:
            first[index], names[index] = now, node.name
        last.update(dict.fromkeys((*node.inputs, *node.outputs), now))
    last.update(dict.fromkeys(graph.heads, max(0, len(calls) - 1)))
    offsets, total = _laid_out(graph, first)
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


def _type_text(entry: TensorEntry) -> str:
    return f"{entry.dtype}[{','.join(map(str, entry.shape))}]"


def _type(entry: TensorEntry) -> tuple[str, tuple[int, ...]]:
    return entry.dtype, entry.shape


def _laid_out(graph: Graph, written: Iterable[int]) -> tuple[dict[int, int], int]:
    """Return an offset for each storage of these entries, one after the other by id, and the bytes of all."""
    sizes = graph.storage_bytes
    offsets, total = {}, 0
    for storage in sorted({graph.entries[index].storage_id for index in written}):
        offsets[storage] = total
        total += sizes[storage]
    return offsets, total
