"""Memory of dynamic programs whose sizes have no bounds: storages that a run allocates.

Storages whose sizes follow from the dimensions of inputs are allocated at the start, and hold values one after the
other where their sizes are known to suffice. Others are allocated where their values are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlfc.memory.liveness import lifetimes
from mlfc.memory.plan import NO_PLAN, Plan, Storage
from mlfc.memory.reuse import allows_inplace
from mlfc.support.dims import Extent, bounds, symbols_of
from mlfc.tir.program import (
    Assign,
    BranchOnSymbols,
    Define,
    Instruction,
    KernelCall,
    Label,
    ListOperation,
    Program,
    Return,
    Value,
    sources_of,
)


def allocated(program: Program) -> Plan:
    """Return the plan of a dynamic program that allocates its memory; deterministic."""
    return _Allocations(program).plan()


class _Allocations:
    """Storages that a run allocates, each shared by values one after the other where their sizes are comparable."""

    def __init__(self, program: Program) -> None:
        self._instructions = program.instructions
        self._lives = lifetimes(program)
        # symbols that are dimensions of inputs, and so known at the start
        self._known = {
            item.symbol
            for item in program.instructions
            if isinstance(item, Define) and item.axis is not None and item.source.kind == "input"
        }
        self.storages: list[Storage] = []
        self.values: dict[Value, Storage] = {}
        self.scratch: dict[KernelCall, tuple[Storage, ...]] = {}

    def plan(self) -> Plan:
        """Return the plan."""
        starts = _parts(self._instructions)
        keeping = (Assign, Return, ListOperation)
        kept = {source.root for item in self._instructions if isinstance(item, keeping) for source in sources_of(item)}
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
        """Return another storage: of a part of the run, or allocated anew for each value."""
        self.storages.append(Storage(nbytes, part is not None, last, part or 0, device))
        return self.storages[-1]

    def _in_place(self, call: KernelCall, at: int) -> Storage | None:
        """Return the storage of an input that ends with this call and may become the output."""
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
        """Return a storage that is free and known to be large enough, or may become so; else a new one."""
        if not set(symbols_of([nbytes])) <= self._known:
            return self._new(nbytes, life[1], device)
        free = [
            item
            for item in self.storages
            if item.is_lasting and item.part == part and item.device == device and item.last < life[0]
        ]
        fitting = [item for item in free if _covers(item.nbytes, nbytes)]
        growing = [item for item in free if _covers(nbytes, item.nbytes)]
        # the one with the least that the value leaves unused, as far as is known
        closest = sorted(fitting, key=lambda item: bounds(item.nbytes - nbytes)[0])[:1]
        storage = next(iter(closest + growing[-1:]), None)
        if storage is None:
            return self._new(nbytes, life[1], device, part)
        if storage not in fitting:
            storage.nbytes = nbytes
        storage.last = life[1]
        return storage


def _parts(instructions: Sequence[Instruction]) -> list[int]:
    """Return the first instructions of the parts of a run, each of which ends it: one for each special module."""
    others = {item.otherwise for item in instructions if isinstance(item, BranchOnSymbols)}
    return [0, *(at for at, item in enumerate(instructions) if isinstance(item, Label) and item in others)]


def _covers(large: Extent, small: Extent) -> bool:
    return bounds(large - small)[0] >= 0
