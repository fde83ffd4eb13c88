"""Storages: memory that a run of a dynamic program allocates, and memory blocks of the graph executor.

A run reuses a storage for later values if its size is known to suffice. For the graph executor, tensors are placed
largest first, each in the storage in which it wastes the least: "greedy by size for shared objects" of Pisarchyk and
Lee, Efficient Memory Management for Deep Neural Net Inference (2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mlfc.memory.liveness import allows_inplace, inplace_chains, lifetimes, live_ranges
from mlfc.memory.plan import NO_PLAN, Plan, Storage
from mlfc.support.dims import Extent, bounds, symbols_of
from mlfc.tir import program as tir_program
from mlfc.tir.program import Assign, BranchOnSymbols, Define, KernelCall, Label, ListOperation, Program, Return, Value


class Allocations:
    """Storages that a run of a dynamic program allocates, each shared by values whose sizes are comparable."""

    def __init__(self, program: Program) -> None:
        self._instructions = program.instructions
        self._lives = lifetimes(program)
        # symbols that are dimensions of inputs, and thus known at the start of the run
        self._known = {
            item.symbol
            for item in program.instructions
            if isinstance(item, Define) and item.axis is not None and item.source.kind == "input"
        }
        self.storages: list[Storage] = []
        self.values: dict[Value, Storage] = {}
        self.scratch: dict[KernelCall, tuple[Storage, ...]] = {}

    def plan(self) -> Plan:
        """Return the plan; deterministic."""
        # the first instructions of the parts, one per specialized module; a run executes a single part
        others = {item.otherwise for item in self._instructions if isinstance(item, BranchOnSymbols)}
        labels = (at for at, item in enumerate(self._instructions) if isinstance(item, Label) and item in others)
        starts = [0, *labels]
        keeping = (Assign, Return, ListOperation)
        kept = {
            source.root
            for item in self._instructions
            if isinstance(item, keeping)
            for source in tir_program.sources_of(item)
        }
        for at, item in enumerate(self._instructions):
            if isinstance(item, ListOperation) and item.output.kind == "intermediate":
                self.values[item.output] = self._new(item.output.nbytes, self._lives[item.output][1])
            if not isinstance(item, KernelCall):
                continue
            part, kernel = max(start for start in starts if start <= at), item.kernel
            if kernel.scratch:
                self.scratch[item] = tuple(
                    self._shared(nbytes, (at, at), kernel.device, part) for nbytes in kernel.workspaces
                )
            root = item.output.root
            if root.kind != "intermediate" or root in self.values:
                continue
            life = self._lives[root]
            if root in kept:
                self.values[root] = self._new(root.nbytes, life[1], root.device)
            else:
                shared = self._in_place(item, at)
                self.values[root] = shared or self._shared(root.nbytes, life, root.device, part)
        return replace(
            NO_PLAN, storages=tuple(self.storages), values=self.values, scratch=self.scratch, is_bounded=False
        )

    def _new(self, nbytes: Extent, last: int, device: str | None = None, part: int | None = None) -> Storage:
        """Return a new storage: of a part of the run, or allocated anew for each value."""
        self.storages.append(Storage(nbytes, part is not None, last, part or 0, device))
        return self.storages[-1]

    def _in_place(self, call: KernelCall, at: int) -> Storage | None:
        """Return the storage of an input that dies at this call and may hold the output."""
        output = call.output.root
        for position in call.kernel.inplace:
            root = call.inputs[position].root
            storage = self.values.get(root)
            if storage is None or storage.device != output.device or not storage.is_lasting:
                continue
            if self._lives[root][1] != at or storage.last != at:
                continue
            if root.nbytes == output.nbytes and allows_inplace(call, root):
                storage.last = self._lives[output][1]
                return storage
        return None

    def _shared(self, nbytes: Extent, life: tuple[int, int], device: str | None, part: int) -> Storage:
        """Return a free storage that is known to be large enough, or can be enlarged; otherwise a new one."""
        if not set(symbols_of([nbytes])) <= self._known:
            return self._new(nbytes, life[1], device)
        free = [
            item
            for item in self.storages
            if item.is_lasting and item.part == part and item.device == device and item.last < life[0]
        ]
        fitting = [item for item in free if bounds(item.nbytes - nbytes)[0] >= 0]
        growing = [item for item in free if bounds(nbytes - item.nbytes)[0] >= 0]
        # the one of which the value leaves the least unused, as far as sizes are known
        closest = sorted(fitting, key=lambda item: bounds(item.nbytes - nbytes)[0])[:1]
        storage = next(iter(closest + growing[-1:]), None)
        if storage is None:
            return self._new(nbytes, life[1], device, part)
        if storage not in fitting:
            storage.nbytes = nbytes
        storage.last = life[1]
        return storage


def assign_storages(program: Program, plan: Plan) -> Plan:
    """Return the plan with a storage for every tensor of a program, in the order of the graph's tensors.

    Intermediates share storages; each other tensor has its own. The old and new value of a state share one.
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
    """Values that reuse one another's place in turn, or scratch; and the calls from the first to the last."""

    values: list[Value]
    first: int
    last: int
    nbytes: int
    device: str | None
    scratch_of: KernelCall | None = None


def _chains(program: Program, plan: Plan) -> list[_Chain]:
    """Return the intermediates in chains of in-place reuse, then scratch on devices."""
    ranges = {item.value: item for item in live_ranges(program, 1, 1) if item.value is not None}
    found = []
    for chain in inplace_chains(program, plan):
        lives = [ranges[value] for value in chain]
        first, last = min(item.first for item in lives), max(item.last for item in lives)
        found.append(_Chain(chain, first, last, max(value.nbytes for value in chain), chain[0].device))
    for index, call in enumerate(program.calls):
        if call.kernel.device is not None:
            for buffer in call.kernel.scratch:
                found.append(_Chain([], index, index, buffer.nbytes, call.kernel.device, call))
    return found


def _in_order(
    program: Program, plan: Plan, chosen: Mapping[Value, Storage], scratch: Mapping[KernelCall, tuple[Storage, ...]]
) -> Plan:
    """Return the plan with these storages and those of all other tensors, numbered by first appearance in the graph."""
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
