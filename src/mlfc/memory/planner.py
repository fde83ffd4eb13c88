"""From a program to the offsets of its intermediates and scratch in one arena, and what lives there in each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mlfc.memory.allocation import Allocator, Cluster
from mlfc.memory.liveness import LiveRange, OverlapDistances, live_bytes, live_ranges
from mlfc.memory.plan import SCRATCH_ALIGNMENT, SCRATCH_NAME, Plan
from mlfc.memory.reuse import Reuse, allows_inplace, choose_reuse, overlap_distances
from mlfc.tir.program import KernelCall, Program, Value


def plan(
    program: Program,
    alignment: int = 16,
    *,
    keep: Callable[[LiveRange], bool] | None = None,
    limit: int = 0,
) -> Plan:
    """Place every intermediate and every call's scratch.

    `alignment`: of each intermediate's offset, a power of two; scratch is aligned to 64 at least. Smaller blocks are
    aligned to the largest power of two that is not larger than they are.
    `keep`: which blocks to place; default all. The plan knows nothing of the others.
    `limit`: the search ends at a plan that is not larger than this.
    Deterministic: equal programs get equal offsets.
    """
    ranges = live_ranges(program, alignment, max(SCRATCH_ALIGNMENT, alignment))
    if keep is not None:
        ranges = tuple(item for item in ranges if keep(item))
    by_value = {item.value: item for item in ranges if item.value is not None}
    overlap = program.overlaps
    choice = [choose_reuse(call, index, by_value, overlap=overlap) for index, call in enumerate(program.calls)]
    num_calls = len(program.calls)
    distances = overlap_distances(program, by_value, choice)
    clusters = _clusters(program, ranges, by_value, choice)
    live = live_bytes(clusters, num_calls, distances)
    bound = max(live, default=0)
    goal = max(limit, _good_enough(clusters, num_calls, distances, bound))
    # a plan that cannot meet its limit is not worth a search
    search = not limit or bound <= limit
    allocation = Allocator(clusters, num_calls, distances).solve(goal, search=search)
    if allocation.size > goal:
        needed = _needed_only(choice, live_bytes([((item, 0),) for item in ranges], num_calls, distances), bound)
        fewer_distances = overlap_distances(program, by_value, needed)
        fewer = _clusters(program, ranges, by_value, needed)
        other = Allocator(fewer, num_calls, fewer_distances).solve(goal, search=search)
        if other.size < allocation.size:
            clusters, allocation, choice = fewer, other, needed

    placed = [
        (item, offset + shift)
        for cluster, offset in zip(clusters, allocation.offsets, strict=True)
        for item, shift in cluster
    ]
    offsets = {item.value: offset for item, offset in placed if item.value is not None}
    scratch = {item.first: offset for item, offset in placed if item.value is None}
    inplace = tuple(
        reuse.source if reuse is not None and not reuse.distance and allows_inplace(call, reuse.source) else None
        for call, reuse in zip(program.calls, choice, strict=True)
    )
    return Plan(
        size=allocation.size,
        lower_bound=bound,
        alignment=max(item.alignment for item in ranges) if ranges else alignment,
        offsets=offsets,
        scratch_offsets=tuple(scratch.get(index, 0) for index in range(num_calls)),
        live=live,
        peak_call=live.index(bound) if live else None,
        inplace=inplace,
        aliased_inputs=tuple(
            _aliased_inputs(call, offsets, reused) for call, reused in zip(program.calls, inplace, strict=True)
        ),
    )


def _aliased_inputs(call: KernelCall, offsets: Mapping[Value, int], reused: Value | None) -> tuple[Value, ...]:
    """Return the inputs of a call whose bytes its output takes in part, but for the one whose place it takes."""
    output = call.output.root
    if output not in offsets:
        return ()
    begin = offsets[output] + call.output.root_start
    end = begin + call.output.nbytes
    return tuple(
        root
        for root in dict.fromkeys(value.root for value in call.inputs)
        if root in offsets
        and root not in (output, reused)
        and offsets[root] < end
        and begin < offsets[root] + root.nbytes
    )


def _clusters(
    program: Program,
    ranges: Sequence[LiveRange],
    by_value: Mapping[Value, LiveRange],
    choice: Sequence[Reuse | None],
) -> list[Cluster]:
    """Return the ranges in chains of reuse at fixed distances, in the order of their first calls."""
    inputs = [value.root for value in program.inputs if value.root in by_value]
    chains: dict[Value, list[tuple[LiveRange, int]]] = {root: [(by_value[root], 0)] for root in inputs}
    shifts = dict.fromkeys(inputs, 0)
    for call, reuse in zip(program.calls, choice, strict=True):
        root = call.output.root
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


def _good_enough(clusters: Sequence[Cluster], num_calls: int, distances: OverlapDistances, bound: int) -> int:
    """Return the size at which the search stops: the bound, or what alignment makes of it if that is near."""
    rounded = [
        tuple(
            (replace(item, nbytes=-(-item.nbytes // item.alignment) * item.alignment), shift) for item, shift in cluster
        )
        for cluster in clusters
    ]
    return min(max(live_bytes(rounded, num_calls, distances), default=0), bound + bound // 100)


def _needed_only(choice: Sequence[Reuse | None], apart: Sequence[int], bound: int) -> list[Reuse | None]:
    """Drop reuse at calls that stay within the bound without it: shorter chains are easier to place."""
    return [reused if load > bound else None for reused, load in zip(choice, apart, strict=True)]


@dataclass(frozen=True)
class Row:
    """The workspace during one call."""

    call: int  # index into ``Program.calls``
    function: str  # name of the kernel
    nodes: tuple[str, ...]  # original nodes that the call computes
    live_bytes: int  # sum of live bytes; tensors that share their place in this call count once
    workspace_bytes: int  # scratch of the call alone
    tensors: tuple[tuple[str, int], ...]  # name and bytes of each live tensor, largest first


def report(program: Program, plan: Plan) -> tuple[Row, ...]:
    """Return one row a call."""
    present: list[list[tuple[str, int]]] = [[] for _ in program.calls]
    for item in live_ranges(program, plan.alignment, SCRATCH_ALIGNMENT):
        for index in range(item.first, item.last + 1):
            present[index].append((item.value.name if item.value else SCRATCH_NAME, item.nbytes))
    return tuple(
        Row(
            index,
            call.kernel.name,
            call.nodes,
            plan.live[index],
            call.kernel.scratch_bytes,
            tuple(sorted(present[index], key=lambda tensor: (-tensor[1], tensor[0]))),
        )
        for index, call in enumerate(program.calls)
    )
