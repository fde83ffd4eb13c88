"""Storage ids for the graph executor: whole blocks that tensors take one after another.

The executor knows no offsets, so two tensors either share a block or do not. Blocks are given out by size, the
largest tensor first, to the block of its device that it wastes least of among those that are free during its life.
Method: "greedy by size for shared objects" of Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net
Inference (2020).

Scratch of kernels on a device has a place among the tensors: there it is one, which the call writes beside its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlfc.memory.liveness import live_ranges
from mlfc.memory.plan import Plan
from mlfc.tir.program import KernelCall, Program, Value


@dataclass(frozen=True, eq=False)
class Storages:
    """The graph executor's blocks."""

    # the block of each value that owns its bytes: inputs, constants in use, intermediates, outputs
    ids: Mapping[Value, int]
    sizes: tuple[int, ...]  # bytes of each block, by id
    devices: tuple[str | None, ...]  # the kind of device of each block, by id; None for the host
    # what stands for the scratch buffers of a kernel on a device, in their order; they have ids too
    scratch: Mapping[KernelCall, tuple[Value, ...]]
    shared: frozenset[int]  # the blocks of intermediates; each of the others holds one tensor for good

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the blocks that intermediates share."""
        return sum(self.sizes[block] for block in self.shared)

    def bytes_on(self, device: str | None) -> int:
        """Return the bytes of the shared blocks on one kind of device."""
        return sum(self.sizes[block] for block in self.shared if self.devices[block] == device)


@dataclass(eq=False)
class _Block:
    nbytes: int
    device: str | None
    busy: list[tuple[int, int]]

    def is_free(self, first: int, last: int) -> bool:
        return all(last < start or end < first for start, end in self.busy)


def assign_storages(program: Program, plan: Plan) -> Storages:
    """Give every tensor of a program a block; ids follow the order in which the graph first names their tensors."""
    scratch = {
        call: tuple(
            Value(buffer.name, buffer.shape, buffer.dtype, "intermediate", device=call.kernel.device)
            for buffer in call.kernel.scratch
        )
        for call in program.calls
        if call.kernel.device is not None
    }
    blocks: list[_Block] = []
    chosen: dict[Value, _Block] = {}
    for chain in sorted(_chains(program, plan, scratch), key=lambda chain: (-chain.nbytes, chain.first)):
        free = [block for block in blocks if block.device == chain.device and block.is_free(chain.first, chain.last)]
        # all blocks are at least as large as this tensor, because tensors come largest first
        block = min(free, key=lambda item: item.nbytes, default=None)
        if block is None:
            block = _Block(chain.nbytes, chain.device, [])
            blocks.append(block)
        block.busy.append((chain.first, chain.last))
        chosen.update(dict.fromkeys(chain.values, block))
    return _numbered(program, chosen, scratch)


@dataclass(eq=False)
class _Chain:
    """Values that lie in one place, each taking that of the one before, and the calls from the first to the last."""

    values: list[Value]
    first: int
    last: int

    @property
    def nbytes(self) -> int:
        return max(value.nbytes for value in self.values)

    @property
    def device(self) -> str | None:
        return self.values[0].device


def _chains(program: Program, plan: Plan, scratch: Mapping[KernelCall, tuple[Value, ...]]) -> list[_Chain]:
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
    distinct = {id(chain): chain for chain in chains.values()}.values()
    found = [
        _Chain(chain, min(ranges[value].first for value in chain), max(ranges[value].last for value in chain))
        for chain in distinct
    ]
    for index, call in enumerate(program.calls):
        found += [_Chain([value], index, index) for value in scratch.get(call, ())]
    return found


def _numbered(
    program: Program, chosen: Mapping[Value, _Block], scratch: Mapping[KernelCall, tuple[Value, ...]]
) -> Storages:
    ids: dict[Value, int] = {}
    sizes: list[int] = []
    devices: list[str | None] = []
    numbers: dict[int, int] = {}

    def take(value: Value) -> None:
        root = value.root
        if root in ids:
            return
        block = chosen.get(root)
        if block is None:
            ids[root] = len(sizes)
            sizes.append(root.nbytes)
            devices.append(root.device)
            return
        if id(block) not in numbers:
            numbers[id(block)] = len(sizes)
            sizes.append(block.nbytes)
            devices.append(block.device)
        ids[root] = numbers[id(block)]

    for value in program.inputs:
        take(value)
    for state in program.states:
        take(state.before)
        ids[state.written] = ids[state.before]
    for call in program.calls:
        for value in (*call.inputs, *call.constants, call.output, *scratch.get(call, ())):
            take(value)
    return Storages(ids, tuple(sizes), tuple(devices), scratch, frozenset(numbers.values()))
