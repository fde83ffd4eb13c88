"""Pool assignment: distributes workspace blocks and constants over several memories by access density.

Blocks that must share memory stay together. Blocks of high access density (bytes moved for each byte held during a
call) go into the first pool that has room; scratch, which kernels work in, comes before all. If a block does not fit
that way, the largest blocks go first instead. Constants that are read most go into the first memory that has room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlfc.errors import BudgetError, InternalError
from mlfc.memory.liveness import LiveRange, inplace_chains, live_ranges
from mlfc.memory.plan import POOL_ALIGNMENT, SCRATCH_ALIGNMENT, ConstantPool, Plan, Pool, PoolSpan
from mlfc.memory.planner import live_tensors, plan
from mlfc.support.text import shortened
from mlfc.tir.parallel import traffic
from mlfc.tir.program import Program, Value

_LARGEST = 5
_UNLIMITED = 1 << 62

Key = Value | int
"""A block: the value in it, or the index of the call whose scratch it is."""


@dataclass(frozen=True, eq=False)
class _PoolGroup:
    """Blocks that must be in one pool, because one reuses the memory of another."""

    blocks: tuple[LiveRange, ...]
    access_density: float

    @property
    def keys(self) -> frozenset[Key]:
        return frozenset(map(_key, self.blocks))


def _key(block: LiveRange) -> Key:
    return block.first if block.value is None else block.value


class _Filling:
    """One pool while it is being filled."""

    def __init__(self, program: Program, pool: Pool) -> None:
        self._program = program
        self.pool = pool
        self.capacity = _UNLIMITED if pool.nbytes is None else pool.nbytes
        self.keys: frozenset[Key] = frozenset()

    def planned(self, keys: frozenset[Key], limit: int = 0) -> Plan:
        return plan(self._program, keep=lambda block: _key(block) in keys, limit=limit)

    def take(self, groups: Sequence[_PoolGroup]) -> list[_PoolGroup]:
        """Add the groups that fit, in their order, and return the others."""
        if not groups:
            return []
        together = self.keys.union(*(group.keys for group in groups))
        if self.capacity == _UNLIMITED or self.planned(together, self.capacity).size <= self.capacity:
            self.keys = together
            return []
        if len(groups) == 1:
            return list(groups)
        half = len(groups) // 2
        return [*self.take(groups[:half]), *self.take(groups[half:])]


def assign_pools(program: Program, pools: Sequence[Pool]) -> Plan:
    """Place every block of the workspace in one of several pools.

    `pools`: in order of preference, the fastest first. The arena of the plan consists of the used pools, one after the
    other. Its bound is that of a single pool.
    Raises BudgetError, naming the pool, the layer and the largest tensors, if the blocks do not fit.
    """
    groups = _groups(program)
    for order in (
        sorted(groups, key=lambda group: (group.blocks[0].value is not None, -group.access_density)),
        sorted(groups, key=lambda group: -max(block.nbytes for block in group.blocks)),
    ):
        filled, left = [_Filling(program, pool) for pool in pools], order
        for filling in filled:
            left = filling.take(left)
        if not left:
            return _joined(program, [item for item in filled if item.keys])
    raise _too_small(program, filled, left)


def _groups(program: Program) -> list[_PoolGroup]:
    ranges = live_ranges(program, 1, SCRATCH_ALIGNMENT)
    by_key = {_key(block): block for block in ranges}
    moved = _moved(program)
    groups = []
    chains: list[Sequence[Key]] = [*inplace_chains(program, plan(program))]
    chains += [[block.first] for block in ranges if block.value is None]
    for chain in chains:
        blocks = [by_key[key] for key in chain]
        held = sum(block.nbytes * (block.last - block.first + 1) for block in blocks)
        groups.append(_PoolGroup(tuple(blocks), sum(moved.get(key, 0) for key in chain) / max(1, held)))
    return groups


def _moved(program: Program) -> dict[Key, int]:
    """Return for each block the number of bytes that are read and written in it, summed over all calls."""
    kernels = {kernel: traffic(kernel) for kernel in dict.fromkeys(call.kernel for call in program.calls)}
    moved: dict[Key, int] = {}
    for index, call in enumerate(program.calls):
        found = kernels[call.kernel]
        values = (*call.inputs, *call.constants, call.output)
        for value, buffer in zip(values, call.kernel.params, strict=True):
            moved[value.root] = moved.get(value.root, 0) + found.get(buffer, 0)
        moved[index] = sum(found.get(buffer, 0) for buffer in call.kernel.scratch)
    return moved


def _joined(program: Program, filled: Sequence[_Filling]) -> Plan:
    """Return one plan of consecutive pools."""
    spans: list[PoolSpan] = []
    offsets: dict[Value, int] = {}
    scratch = [0] * len(program.calls)
    inplace: list[Value | None] = [None] * len(program.calls)
    aliased_inputs: list[tuple[Value, ...]] = [()] * len(program.calls)
    parts = []
    end = 0
    for filling in filled:
        part = filling.planned(filling.keys)
        base = -(-end // POOL_ALIGNMENT) * POOL_ALIGNMENT
        spans.append(PoolSpan(filling.pool.name, base, max(1, part.size), part.lower_bound))
        end = base + max(1, part.size)
        offsets.update({value: base + offset for value, offset in part.offsets.items()})
        for index in range(len(program.calls)):
            inplace[index] = inplace[index] or part.inplace[index]
            aliased_inputs[index] += part.aliased_inputs[index]
            if index in filling.keys:
                scratch[index] = base + part.scratch_offsets[index]
        parts.append(part)
    live = tuple(sum(part.live[index] for part in parts) for index in range(len(program.calls)))
    return Plan(
        size=end,
        lower_bound=max(live, default=0),
        alignment=max((part.alignment for part in parts), default=POOL_ALIGNMENT),
        offsets=offsets,
        scratch_offsets=tuple(scratch),
        live=live,
        peak_call=live.index(max(live)) if live else None,
        inplace=tuple(inplace),
        aliased_inputs=tuple(aliased_inputs),
        spans=tuple(spans),
    )


def _too_small(program: Program, filled: Sequence[_Filling], homeless: Sequence[_PoolGroup]) -> BudgetError:
    """Describe what the pool with the most free space would have to hold in addition."""
    pool = max(filled, key=lambda filling: filling.capacity)
    keys = pool.keys.union(*(group.keys for group in homeless))
    wanted = pool.planned(keys)
    peak = wanted.peak_call or 0
    busiest = program.calls[peak]
    largest = live_tensors(program, wanted, peak, keep=lambda block: _key(block) in keys)[:_LARGEST]
    listed = ", ".join(f"{shortened(name)} ({nbytes:,})" for name, nbytes in largest)
    others = ", ".join(f"{item.pool.name} ({item.capacity:,})" for item in filled if item is not pool)
    return BudgetError(
        f"the workspace does not fit: beside what the others hold, the pool '{pool.pool.name}' of {pool.capacity:,} "
        f"bytes would need {wanted.size:,}, {wanted.size - pool.capacity:,} more; the peak is in "
        f"{shortened(', '.join(busiest.nodes) or busiest.kernel.name)} with {wanted.live[peak]:,} live bytes; "
        f"the largest tensors there: {listed}" + (f"; the other pools: {others}" if others else ""),
        next_step="Enlarge a pool, or add another one",
    )


def prove_pools(program: Program, plan: Plan, pools: Sequence[Pool]) -> None:
    """Check that every block is in one pool, and every pool within its size; `memory.prove` proves the rest."""
    limits = {pool.name: pool.nbytes for pool in pools}
    for span in plan.spans:
        limit = limits[span.name]
        if span.base % POOL_ALIGNMENT or (limit is not None and span.nbytes > limit):
            raise InternalError(f"the pool '{span.name}' has {span.nbytes} bytes of {limit}, from {span.base}")
    blocks = [(value.name, plan.offset(value), value.nbytes) for value in program.intermediates()]
    blocks += [
        (call.kernel.name, plan.scratch_offsets[index], call.kernel.scratch_bytes)
        for index, call in enumerate(program.calls)
    ]
    for name, offset, nbytes in blocks:
        span, within = plan.place(offset)
        if nbytes > 0 and within + nbytes > span.nbytes:
            raise InternalError(f"'{name}' is not within the pool '{span.name}'")


def assign_constants(program: Program, pools: Sequence[ConstantPool]) -> Mapping[Value, ConstantPool]:
    """Choose a memory for every constant that a call reads.

    `pools`: in order of preference, the fastest first; without pools the linker places all constants.
    Raises BudgetError, naming the constant, the memory and the largest constants, if the constants do not fit.
    """
    if not pools:
        return {}
    # in the order of first use
    read = {key: nbytes for key, nbytes in _moved(program).items() if isinstance(key, Value) and key.kind == "constant"}
    sizes = {value: -(-value.nbytes // POOL_ALIGNMENT) * POOL_ALIGNMENT for value in read}
    free = {pool: _UNLIMITED if pool.nbytes is None else pool.nbytes for pool in pools}
    chosen: dict[Value, ConstantPool] = {}
    # ties are resolved by order of first use, so placement is deterministic
    for value in sorted(read, key=lambda value: -read[value] / max(1, value.nbytes)):
        pool = next((pool for pool in pools if sizes[value] <= free[pool]), None)
        if pool is None:
            largest = sorted(read, key=lambda item: (-item.nbytes, item.name))[:_LARGEST]
            listed = ", ".join(f"{shortened(item.name)} ({item.nbytes:,})" for item in largest)
            size, room, total = sizes[value], max(free.values()), sum(sizes.values())
            given = sum(pool.nbytes or 0 for pool in pools)
            raise BudgetError(
                f"the constants do not fit: '{shortened(value.name)}' of {size:,} bytes exceeds the most free "
                f"space in a memory, {room:,}; all constants take {total:,}, {', '.join(pool.name for pool in pools)} "
                f"have {given:,}; the largest: {listed}",
                next_step="Enlarge a memory, or add another one",
            )
        chosen[value] = pool
        free[pool] -= sizes[value]
    return chosen
