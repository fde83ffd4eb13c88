"""Storage ids for the graph executor: whole blocks that tensors take one after another.

The executor knows no offsets, so two tensors either share a block or do not. Blocks are given out by size, the
largest tensor first, to the block that it wastes least of among those that are free during its life. Method: "greedy
by size for shared objects" of Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference (2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlforge.memory.liveness import live_ranges
from mlforge.memory.planner import Plan
from mlforge.tir.ir import Program, Value


@dataclass(frozen=True, eq=False)
class Storages:
    """The graph executor's blocks.

    Attributes
    ----------
    ids : mapping of Value to int
        The block of each value that owns its bytes: inputs, constants in use, intermediates, outputs.
    sizes : tuple of int
        Bytes of each block, by id.
    shared : frozenset of int
        The blocks of intermediates; each of the others holds one tensor for good.
    """

    ids: Mapping[Value, int]
    sizes: tuple[int, ...]
    shared: frozenset[int]

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the blocks that intermediates share."""
        return sum(self.sizes[block] for block in self.shared)


@dataclass(eq=False)
class _Block:
    nbytes: int
    busy: list[tuple[int, int]]

    def is_free(self, first: int, last: int) -> bool:
        return all(last < start or end < first for start, end in self.busy)


def assign_storages(program: Program, plan: Plan) -> Storages:
    """Give every tensor of a program a block.

    Parameters
    ----------
    program : Program
    plan : Plan
        Says which outputs of calls take the place of an input.

    Returns
    -------
    Storages
        Ids are dense, in the order in which the graph first names their tensors.
    """
    chains = _chains(program, plan)
    blocks: list[_Block] = []
    chosen: dict[Value, _Block] = {}
    for values, first, last, nbytes in sorted(chains, key=lambda chain: (-chain[3], chain[1])):
        free = [block for block in blocks if block.is_free(first, last)]
        # all blocks are at least as large as this tensor, because tensors come largest first
        block = min(free, key=lambda item: item.nbytes, default=None)
        if block is None:
            block = _Block(nbytes, [])
            blocks.append(block)
        block.busy.append((first, last))
        chosen.update(dict.fromkeys(values, block))
    return _numbered(program, chosen)


def _chains(program: Program, plan: Plan) -> list[tuple[list[Value], int, int, int]]:
    """Return the intermediates in chains of in-place reuse: values, first and last call, bytes of the largest."""
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
    return [
        (
            chain,
            min(ranges[value].first for value in chain),
            max(ranges[value].last for value in chain),
            max(value.nbytes for value in chain),
        )
        for chain in distinct
    ]


def _numbered(program: Program, chosen: Mapping[Value, _Block]) -> Storages:
    ids: dict[Value, int] = {}
    sizes: list[int] = []
    numbers: dict[int, int] = {}

    def take(value: Value) -> None:
        root = value.root
        if root in ids:
            return
        block = chosen.get(root)
        if block is None:
            ids[root] = len(sizes)
            sizes.append(root.nbytes)
            return
        if id(block) not in numbers:
            numbers[id(block)] = len(sizes)
            sizes.append(block.nbytes)
        ids[root] = numbers[id(block)]

    for value in program.inputs:
        take(value)
    for call in program.calls:
        for value in (*call.inputs, *call.constants, call.output):
            take(value)
    return Storages(ids, tuple(sizes), frozenset(numbers.values()))
