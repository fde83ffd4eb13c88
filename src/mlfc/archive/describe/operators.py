"""The operators of a module with the memory that is live around each, from an archive's record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlfc.archive.describe.lifetimes import BlockLifetime, GraphMemory, live_during, plan_blocks, span_bytes
from mlfc.archive.read.model import ModuleRecord
from mlfc.memory.report import SCRATCH_NAME
from mlfc.support.module_info import PoolInfo


def module_operators(module: ModuleRecord, graph: GraphMemory | None, place: str) -> list[dict[str, Any]]:
    """Return the module's operators in the order of their calls, as far as its archive knows it.

    `graph`: of a module for the graph executor.
    Returns ``function``, ``nodes``, ``workspace_bytes`` (its scratch), ``macs``, ``bytes`` (read and written),
    ``intensity`` (MACs a byte), ``live_bytes`` and ``tensors`` (``name``, ``bytes``, ``offset``, of the graph
    executor ``storage_id``, and ``pool`` where there are several), the largest first. What the archive does not say
    is None.
    """
    operators = _listed(module, graph)
    blocks = _blocks(module, graph, len(operators), place)
    live = None if blocks is None else live_during(blocks, len(operators))
    pools = sorted(module.details.pools if module.details else (), key=lambda pool: -pool.base)
    result = []
    for index, operator in enumerate(operators):
        tensors = None if live is None else [_tensor(block, pools) for block in live[index]]
        live_bytes = operator.get("live_bytes")
        if graph is not None and live is not None and tensors is not None:
            # the graph executor takes scratch from elsewhere than storages
            scratch = operator["workspace_bytes"]
            live_bytes = None if scratch is None else span_bytes(live[index]) + scratch
            tensors += [{"name": SCRATCH_NAME, "bytes": scratch, "offset": None}] if scratch else []
            tensors.sort(key=lambda item: -item["bytes"])
        result.append(
            {
                **operator,
                "intensity": _intensity(operator["macs"], operator.get("bytes")),
                "bytes": operator.get("bytes"),
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


def _listed(module: ModuleRecord, graph: GraphMemory | None) -> list[dict[str, Any]]:
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


def _blocks(
    module: ModuleRecord, graph: GraphMemory | None, num_calls: int, place: str
) -> tuple[BlockLifetime, ...] | None:
    if graph is not None:
        return graph.blocks if num_calls == len(graph.calls) else None
    plan = module.details.plan if module.details else None
    return None if plan is None else plan_blocks(plan, num_calls, f"{place}: module '{module.name}'")


def _intensity(macs: int | None, nbytes: int | None) -> float | None:
    return round(macs / nbytes, 3) if macs is not None and nbytes else None


def _tensor(block: BlockLifetime, pools: Sequence[PoolInfo]) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": block.name, "bytes": block.nbytes, "offset": block.offset}
    if block.storage_id is not None:
        shown["storage_id"] = block.storage_id
    if pools:
        shown["pool"] = next((pool.name for pool in pools if pool.base <= block.offset), None)
    return shown
