"""Storages of the graph executor, which hold one tensor after another.

The executor has no offsets, so two tensors either share a storage or do not. Storages are assigned by size, the
largest tensor first: the one of its device that it wastes least of among those that are free during its life.
Method: "greedy by size for shared objects" of Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net
Inference (2020).

Scratch of kernels on a device has storages, too: there it is an output of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mlfc.memory.liveness import live_ranges
from mlfc.memory.plan import Plan, Storage
from mlfc.tir.program import KernelCall, Program, Value


def assign_storages(program: Program, plan: Plan) -> Plan:
    """Return the plan with a storage for every tensor of a program, in the order in which the graph names the tensors.

    Those of intermediates are shared; each of the others holds one tensor for good. States have one for their old and
    new values.
    """
    chosen: dict[Value, Storage] = {}
    scratch: dict[KernelCall, tuple[Storage, ...]] = {}
    taken: dict[Storage, list[tuple[int, int]]] = {}
    for chain in sorted(_chains(program, plan), key=lambda chain: (-chain.nbytes, chain.first)):
        free = [
            storage
            for storage, busy in taken.items()
            if storage.device == chain.device and all(chain.last < start or end < chain.first for start, end in busy)
        ]
        # all storages are at least as large as this tensor, because tensors come largest first
        storage = min(free, key=lambda item: item.nbytes, default=None)
        if storage is None:
            storage = Storage(chain.nbytes, device=chain.device)
            taken[storage] = []
        taken[storage].append((chain.first, chain.last))
        chosen.update(dict.fromkeys(chain.values, storage))
        if chain.scratch_of is not None:
            scratch[chain.scratch_of] = (*scratch.get(chain.scratch_of, ()), storage)
    return _in_order(program, plan, chosen, scratch)


@dataclass(eq=False)
class _Chain:
    """Values in one place, each taking that of the one before, or scratch; and the calls from the first to the last."""

    values: list[Value]
    first: int
    last: int
    nbytes: int
    device: str | None
    scratch_of: KernelCall | None = None


def _chains(program: Program, plan: Plan) -> list[_Chain]:
    """Return the intermediates in chains of in-place reuse, then scratch on devices."""
    ranges = {item.value: item for item in live_ranges(program, 1, 1) if item.value is not None}
    chains: dict[Value, list[Value]] = {}
    for call, reused in zip(program.calls, plan.inplace, strict=True):
        root = call.output.root
        if reused is not None and reused in chains and root in ranges:
            chains[reused].append(root)
            chains[root] = chains[reused]
        elif root in ranges and root not in chains:
            chains[root] = [root]
    found = []
    for chain in {id(chain): chain for chain in chains.values()}.values():
        lives = [ranges[value] for value in chain]
        first, last = min(item.first for item in lives), max(item.last for item in lives)
        found.append(_Chain(chain, first, last, max(value.nbytes for value in chain), chain[0].device))
    for index, call in enumerate(program.calls):
        if call.kernel.device is not None:
            for buffer in call.kernel.scratch:
                found.append(_Chain([], index, index, buffer.nbytes, call.kernel.device, call))
    return found


def _in_order(
    program: Program,
    plan: Plan,
    chosen: Mapping[Value, Storage],
    scratch: Mapping[KernelCall, tuple[Storage, ...]],
) -> Plan:
    """Return the plan with these storages and those of all other tensors, numbered as the graph names them first."""
    values: dict[Value, Storage] = {}
    order: dict[Storage, None] = {}

    def take(value: Value) -> None:
        root = value.root
        if root not in values:
            values[root] = chosen.get(root) or Storage(root.nbytes, device=root.device)
            order.setdefault(values[root])

    for value in program.inputs:
        take(value)
    for state in program.states:
        take(state.before)
        values[state.written] = values[state.before]
    for call in program.calls:
        for value in (*call.inputs, *call.constants, call.output):
            take(value)
        order.update(dict.fromkeys(scratch.get(call, ())))
    return replace(plan, storages=tuple(order), values=values, scratch=scratch)
