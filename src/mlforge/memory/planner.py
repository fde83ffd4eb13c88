"""From a program to the offsets of its intermediates and scratch in one arena."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mlforge.errors import InternalError
from mlforge.memory.liveness import LiveRange, inplace_choice, live_bytes, live_ranges
from mlforge.memory.placement import Cluster, Layout
from mlforge.memory.pools import DEFAULT_POOL, Span
from mlforge.tir.ir import Program, Value

SCRATCH_ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class Plan:
    """Where everything lies in the workspace.

    Attributes
    ----------
    size : int
        Bytes of the arena. It must start at a multiple of `alignment`.
    lower_bound : int
        Largest sum of live bytes over all calls, in-place reuse taken into account: no plan can be smaller.
    alignment : int
        Of the arena. Scratch of 64 bytes or more lies at a multiple of 64.
    offsets : mapping of Value to int
        Byte offset of each intermediate that owns its storage.
    scratch_offsets : tuple of int
        For each call, the byte offset of its scratch; 0 where the call has none.
    live : tuple of int
        Live bytes during each call, scratch included.
    peak_call : int or None
        Index of the first call with the most live bytes; None for a program without calls.
    inplace : tuple of (Value or None)
        For each call, the input whose place its output takes.
    spans : tuple of Span
        The pools that the arena consists of, one after the other; empty where it is one array of the default's name.
    """

    size: int
    lower_bound: int
    alignment: int
    offsets: Mapping[Value, int]
    scratch_offsets: tuple[int, ...]
    live: tuple[int, ...]
    peak_call: int | None
    inplace: tuple[Value | None, ...]
    spans: tuple[Span, ...] = ()

    @property
    def pools(self) -> tuple[Span, ...]:
        """The arrays that the workspace consists of; none for a program without workspace."""
        return self.spans or ((Span(DEFAULT_POOL, 0, self.size),) if self.size else ())

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all pools, without what lies between them in the arena."""
        return sum(pool.nbytes for pool in self.pools)

    def place(self, offset: int) -> tuple[Span, int]:
        """Return the pool in which an offset of the arena lies, and the offset from the pool's start."""
        below = (pool for pool in self.pools if pool.base <= offset)
        pool = max(below, key=lambda pool: pool.base, default=Span(DEFAULT_POOL, 0, 0))
        return pool, offset - pool.base

    def offset(self, value: Value) -> int:
        """Return the byte offset of an intermediate or of a view of one."""
        try:
            return self.offsets[value.root]
        except KeyError:
            raise InternalError(f"'{value.name}' has no place in the workspace") from None


def plan(
    program: Program,
    alignment: int = 16,
    *,
    keep: Callable[[LiveRange], bool] | None = None,
    limit: int = 0,
) -> Plan:
    """Place every intermediate and every call's scratch.

    Parameters
    ----------
    program : Program
    alignment : int
        Of each intermediate's offset, a power of two; scratch is aligned to 64 at least. Smaller blocks are
        aligned to the largest power of two that is not larger than they are.
    keep : callable, optional
        Which blocks to place; default all. The plan knows nothing of the others.
    limit : int
        The search ends at a plan that is not larger than this.

    Returns
    -------
    Plan
        Deterministic: equal programs get equal offsets.
    """
    ranges = live_ranges(program, alignment, max(SCRATCH_ALIGNMENT, alignment))
    if keep is not None:
        ranges = tuple(item for item in ranges if keep(item))
    by_value = {item.value: item for item in ranges if item.value is not None}
    choice = [inplace_choice(call, index, by_value) for index, call in enumerate(program.calls)]
    clusters = _clusters(program, ranges, by_value, choice)
    live = live_bytes(clusters, len(program.calls))
    bound = max(live, default=0)
    goal = max(limit, _good_enough(clusters, len(program.calls), bound))
    placement = Layout(clusters, len(program.calls)).solve(goal)
    if placement.size > goal:
        needed = _needed_only(choice, live_bytes([(item,) for item in ranges], len(program.calls)), bound)
        fewer = _clusters(program, ranges, by_value, needed)
        other = Layout(fewer, len(program.calls)).solve(goal)
        if other.size < placement.size:
            clusters, placement, choice = fewer, other, needed

    offsets = {
        item.value: offset
        for cluster, offset in zip(clusters, placement.offsets, strict=True)
        for item in cluster
        if item.value is not None
    }
    scratch = {
        cluster[0].first: offset
        for cluster, offset in zip(clusters, placement.offsets, strict=True)
        if cluster[0].value is None
    }
    return Plan(
        size=placement.size,
        lower_bound=bound,
        alignment=max(item.alignment for item in ranges) if ranges else alignment,
        offsets=offsets,
        scratch_offsets=tuple(scratch.get(index, 0) for index in range(len(program.calls))),
        live=live,
        peak_call=live.index(bound) if live else None,
        inplace=tuple(choice),
    )


def _clusters(
    program: Program,
    ranges: Sequence[LiveRange],
    by_value: Mapping[Value, LiveRange],
    choice: Sequence[Value | None],
) -> list[Cluster]:
    """Return the ranges in chains of in-place reuse, in the order of their first calls."""
    inputs = (value.root for value in program.inputs)
    chains: dict[Value, list[LiveRange]] = {root: [by_value[root]] for root in inputs if root in by_value}
    for call, reused in zip(program.calls, choice, strict=True):
        root = call.output.root
        if reused is not None:
            chains[reused].append(by_value[root])
            chains[root] = chains[reused]
        elif root in by_value and root not in chains:
            chains[root] = [by_value[root]]
    distinct = {id(chain): tuple(chain) for chain in chains.values()}
    return [*distinct.values(), *((item,) for item in ranges if item.value is None)]


def _good_enough(clusters: Sequence[Cluster], num_calls: int, bound: int) -> int:
    """Return the size at which the search stops: the bound, or what alignment makes of it if that is near."""
    rounded = [
        tuple(replace(item, nbytes=-(-item.nbytes // item.alignment) * item.alignment) for item in cluster)
        for cluster in clusters
    ]
    return min(max(live_bytes(rounded, num_calls), default=0), bound + bound // 100)


def _needed_only(choice: Sequence[Value | None], apart: Sequence[int], bound: int) -> list[Value | None]:
    """Drop reuse at calls that stay within the bound without it: shorter chains are easier to place."""
    return [reused if load > bound else None for reused, load in zip(choice, apart, strict=True)]
