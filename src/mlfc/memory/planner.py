"""Memory planner: offsets in one arena for intermediates and scratch, or allocations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mlfc.memory.allocation import Allocator, Cluster
from mlfc.memory.allocations import Allocations
from mlfc.memory.liveness import (
    LiveRange,
    Reuse,
    allows_inplace,
    choose_reuse,
    live_bytes,
    live_ranges,
    most_bytes,
    overlap_distances,
)
from mlfc.memory.plan import SCRATCH_ALIGNMENT, SCRATCH_NAME, Plan
from mlfc.support.dim_estimates import NO_LIMIT
from mlfc.support.dims import symbols_of
from mlfc.tir.program import KernelCall, ListOperation, Program, Value, written_by

_MOST_ARENA_BYTES = (1 << 31) - 1  # of a dynamic program


def plan(
    program: Program, alignment: int = 16, *, keep: Callable[[LiveRange], bool] = lambda _: True, limit: int = 0
) -> Plan:
    """Plan the memory of every intermediate and variable, and every call's scratch.

    A dynamic program is planned for the largest dimensions within bounds. Without bounds, and for lists and devices, a
    run allocates: see `allocations`.
    `alignment`: of each intermediate's offset, a power of two; scratch is aligned to at least 64. Smaller blocks are
        aligned to the largest power of two that does not exceed their size.
    `keep`: which blocks to place; default all. The plan omits the others.
    `limit`: the search ends at a plan that is not larger than this.
    Deterministic: equal programs get equal offsets.
    """
    if program.is_dynamic:
        alignment = SCRATCH_ALIGNMENT
        # lists hold any number of tensors
        has_lists = any(isinstance(item, ListOperation) for item in program.instructions)
        sizes = [value.nbytes for value in program.intermediates()]
        sizes += [call.kernel.scratch_bytes for call in program.calls]
        has_bounds = all(symbol.high < NO_LIMIT for symbol in symbols_of(sizes))
        if has_lists or not has_bounds or any(call.kernel.device for call in program.calls):
            return Allocations(program).plan()
    ranges = tuple(filter(keep, live_ranges(program, alignment, max(SCRATCH_ALIGNMENT, alignment))))
    placed, size, choice, live = _placed(program, ranges, limit)
    if program.is_dynamic and size > _MOST_ARENA_BYTES:
        return Allocations(program).plan()
    offsets = {item.value: offset for item, offset in placed if item.value is not None}
    scratch = {item.first: offset for item, offset in placed if item.value is None}
    calls = [index for index, item in enumerate(program.instructions) if isinstance(item, KernelCall)]
    # for each call, the input that its output overwrites in place, element by element
    inplace = tuple(
        reuse.source if reuse is not None and not reuse.distance and allows_inplace(call, reuse.source) else None
        for call, reuse in zip(program.calls, map(choice.__getitem__, calls), strict=True)
    )
    during = tuple(live[index] for index in calls)
    bound = max(during, default=0)
    return Plan(
        size=size,
        lower_bound=bound,
        alignment=max(item.alignment for item in ranges) if ranges else alignment,
        offsets=offsets,
        scratch_offsets=tuple(scratch.get(index, 0) for index in calls),
        live=during,
        peak_call=during.index(bound) if during else None,
        inplace=inplace,
        aliased_inputs=tuple(
            _aliased_inputs(call, offsets, reused) for call, reused in zip(program.calls, inplace, strict=True)
        ),
    )


def _placed(
    program: Program, ranges: Sequence[LiveRange], limit: int
) -> tuple[list[tuple[LiveRange, int]], int, list[Reuse | None], tuple[int, ...]]:
    """Return the ranges with their offsets, the size of the arena, what each call reuses, and the live bytes."""
    by_value = {item.value: item for item in ranges if item.value is not None}
    choice = [
        choose_reuse(item, index, by_value, overlap=program.overlaps) if isinstance(item, KernelCall) else None
        for index, item in enumerate(program.instructions)
    ]
    length = len(program.instructions)
    distances = overlap_distances(program, by_value, choice)
    clusters = _clusters(program, ranges, by_value, choice)
    live = live_bytes(clusters, length, distances)
    bound = max(live, default=0)
    # the search stops at the bound, or at the aligned bound if that is close
    rounded = [
        tuple(
            (replace(item, nbytes=-(-item.nbytes // item.alignment) * item.alignment), shift) for item, shift in cluster
        )
        for cluster in clusters
    ]
    goal = max(limit, min(max(live_bytes(rounded, length, distances), default=0), bound + bound // 100))
    # a plan that cannot meet its limit needs no search
    search = not limit or bound <= limit
    allocation = Allocator(clusters, length, distances).solve(goal, search=search)
    if allocation.size > goal:
        # without reuse at calls that meet the bound anyway: shorter chains are easier to place
        apart = live_bytes([((item, 0),) for item in ranges], length, distances)
        needed = [reused if load > bound else None for reused, load in zip(choice, apart, strict=True)]
        fewer_distances = overlap_distances(program, by_value, needed)
        fewer = _clusters(program, ranges, by_value, needed)
        other = Allocator(fewer, length, fewer_distances).solve(goal, search=search)
        if other.size < allocation.size:
            clusters, allocation, choice = fewer, other, needed
    placed = [
        (item, offset + shift)
        for cluster, offset in zip(clusters, allocation.offsets, strict=True)
        for item, shift in cluster
    ]
    return placed, allocation.size, choice, live


def _aliased_inputs(call: KernelCall, offsets: Mapping[Value, int], reused: Value | None) -> tuple[Value, ...]:
    """Return the inputs of a call that its output partially overlaps, except the one that it overwrites in place."""
    output = call.output.root
    if output not in offsets:
        return ()
    begin = offsets[output] + call.output.root_start
    end = begin + most_bytes(call.output)
    return tuple(
        root
        for root in dict.fromkeys(value.root for value in call.inputs)
        if root in offsets
        and root not in (output, reused)
        and offsets[root] < end
        and begin < offsets[root] + most_bytes(root)
    )


def _clusters(
    program: Program, ranges: Sequence[LiveRange], by_value: Mapping[Value, LiveRange], choice: Sequence[Reuse | None]
) -> list[Cluster]:
    """Return the ranges in chains of reuse at fixed distances, in the order of their first calls."""
    inputs = [value.root for value in program.inputs if value.root in by_value]
    chains: dict[Value, list[tuple[LiveRange, int]]] = {root: [(by_value[root], 0)] for root in inputs}
    shifts = dict.fromkeys(inputs, 0)
    for item, reuse in zip(program.instructions, choice, strict=True):
        for root in dict.fromkeys(value.root for value in written_by(item)):
            if reuse is not None:
                chains[root] = chains[reuse.source]
                shifts[root] = shifts[reuse.source] - reuse.distance
                chains[root].append((by_value[root], shifts[root]))
            elif root in by_value and root not in chains:
                chains[root], shifts[root] = [(by_value[root], 0)], 0
    distinct = {id(chain): chain for chain in chains.values()}.values()
    lowest = [min(shift for _, shift in chain) for chain in distinct]
    moved = [tuple((item, shift - low) for item, shift in chain) for chain, low in zip(distinct, lowest, strict=True)]
    return [*moved, *(((item, 0),) for item in ranges if item.value is None)]


def live_tensors(
    program: Program, plan: Plan, call: int, *, keep: Callable[[LiveRange], bool] = lambda _: True
) -> tuple[tuple[str, int], ...]:
    """Return the name and bytes of each tensor that is live during a call, the largest first, and of its scratch.

    `keep`: which blocks count; default all.
    """
    at = [index for index, item in enumerate(program.instructions) if isinstance(item, KernelCall)][call]
    present = [
        (item.value.name if item.value else SCRATCH_NAME, item.nbytes)
        for item in live_ranges(program, plan.alignment, SCRATCH_ALIGNMENT)
        if item.first <= at <= item.last and keep(item)
    ]
    return tuple(sorted(present, key=lambda tensor: (-tensor[1], tensor[0])))
