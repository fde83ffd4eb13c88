"""Offset assignment for blocks with overlapping lifetimes: greedy placement in several orders, then a bounded search.

Offset assignment for blocks with lifetimes is the dynamic storage allocation problem, which is NP-hard. On the graphs
of real models one of the greedy orders nearly always meets the lower bound; the search handles the rest.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import factorial, inf

from mlfc.memory.liveness import LiveRange, OverlapDistances, live_bytes
from mlfc.support.cost import spend

Cluster = tuple[tuple[LiveRange, int], ...]
"""Ranges that are placed together, each with its distance from the start of the cluster."""

Order = list[int]

# The search ends when the arena meets the bound or after this many placements of single blocks.
_SEARCH_WORK = 40_000
# After this many visited pairs of blocks no search starts and no other greedy order is tried: thousands of blocks that
# are live together have millions of pairs.
_PAIR_WORK = 4_000_000
# This many blocks or more have more orders than the search tries.
_MOST_TO_TRY_ALL = 9
# Cost of a pair in the work limit of one model.
_PAIR_STEPS = 256


@dataclass(frozen=True)
class Allocation:
    """Offsets of the clusters, by index, and the size of the arena."""

    offsets: tuple[int, ...]
    size: int


@dataclass(frozen=True, eq=False)
class Allocator:
    """A set of clusters to place."""

    clusters: Sequence[Cluster]
    num_calls: int
    # which outputs may overlap an input, and by how much
    distances: OverlapDistances = field(default_factory=dict)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Size of each cluster in bytes."""
        return tuple(max(shift + item.nbytes for item, shift in cluster) for cluster in self.clusters)

    @cached_property
    def alignments(self) -> tuple[int, ...]:
        """Largest alignment required by a range of each cluster."""
        return tuple(max(item.alignment for item, _ in cluster) for cluster in self.clusters)

    @cached_property
    def neighbours(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """Conflicts of each cluster: ``(other, own bytes, other's bytes)``, maxima over ranges that are live together.

        The own bytes must end before the other cluster starts if this cluster is placed below it; the other's bytes
        must end before this cluster starts if the other is below.
        """
        found: list[list[tuple[int, int, int]]] = [[] for _ in self.clusters]
        spans = [(cluster[0][0].first, max(item.last for item, _ in cluster)) for cluster in self.clusters]
        firsts, lasts = sorted(first for first, _ in spans), sorted(last for _, last in spans)
        overlapping = sum(bisect_right(firsts, last) - bisect_left(lasts, first) - 1 for first, last in spans) // 2
        spend("steps", _PAIR_STEPS * overlapping)
        # for single ranges that share nothing, only their sizes matter
        alone = [0 if self.distances or len(cluster) > 1 else cluster[0][0].nbytes for cluster in self.clusters]
        for i, mine in enumerate(self.clusters):
            first, last = spans[i]
            for j in range(i):
                if first > spans[j][1] or spans[j][0] > last:
                    continue
                if alone[i] and alone[j]:
                    found[i].append((j, alone[i], alone[j]))
                    found[j].append((i, alone[j], alone[i]))
                    continue
                pairs = [
                    self._apart(a, b)
                    for a in mine
                    for b in self.clusters[j]
                    if a[0].first <= b[0].last and b[0].first <= a[0].last
                ]
                if pairs:
                    own, other = max(a for a, _ in pairs), max(b for _, b in pairs)
                    found[i].append((j, own, other))
                    found[j].append((i, other, own))
        return tuple(tuple(items) for items in found)

    def _apart(self, a: tuple[LiveRange, int], b: tuple[LiveRange, int]) -> tuple[int, int]:
        """Return the bytes by which each cluster must precede the other, for two ranges that are live together."""
        (one, own_shift), (two, other_shift) = a, b
        own, other = one.nbytes, two.nbytes
        if one.value is not None and two.value is not None:  # an output may overlap its input
            own = self.distances.get((two.value, one.value), own)
            other = self.distances.get((one.value, two.value), other)
        return own + own_shift - other_shift, other + other_shift - own_shift

    def place(self, order: Sequence[int], *, best_fit: bool) -> Allocation:
        """Place the clusters in `order`, each in the lowest gap where it fits, or in the tightest gap."""
        offsets = [-1] * len(self.clusters)
        size = self._place(order, offsets, best_fit=best_fit)
        return Allocation(tuple(offsets), size)

    def _place(
        self, order: Sequence[int], offsets: list[int], size: int = 0, *, best_fit: bool, most: float = inf
    ) -> int:
        """Place clusters around those with offsets; return the arena's size, or early a size above `most`."""
        for index in order:
            alignment = self.alignments[index]
            taken = [
                (begin, begin + other_bytes, begin - own_bytes)
                for other, own_bytes, other_bytes in self.neighbours[index]
                if (begin := offsets[other]) >= 0
            ]
            if best_fit:
                offsets[index] = _tightest_gap(taken, alignment, self.sizes[index])
            else:
                offset = 0
                for highest, end in sorted([(highest, end) for _, end, highest in taken]):
                    if highest >= offset:
                        break  # as do all that follow
                    if end > offset:
                        offset = -(-end // alignment) * alignment
                offsets[index] = offset
            size = max(size, offsets[index] + self.sizes[index])
            if size > most:
                break
        return size

    def greedy_orders(self) -> list[Order]:
        """Return orders in which greedy placement tends to work well: largest, longest, busiest calls first."""
        every = range(len(self.clusters))
        life = [sum(item.last - item.first + 1 for item, _ in cluster) for cluster in self.clusters]
        first = [cluster[0][0].first for cluster in self.clusters]
        load = live_bytes(self.clusters, self.num_calls, self.distances)
        breadth = [
            max(load[call] for item, _ in cluster for call in range(item.first, item.last + 1))
            for cluster in self.clusters
        ]
        keys: list[Callable[[int], tuple[int, ...]]] = [
            lambda i: (-self.sizes[i], first[i]),
            lambda i: (-self.sizes[i] * life[i], first[i]),
            lambda i: (-life[i], -self.sizes[i], first[i]),
            lambda i: (-breadth[i], -self.sizes[i], first[i]),
            lambda i: (-breadth[i], -life[i], first[i]),
            lambda i: (first[i], -self.sizes[i]),
            # inputs above the outputs that overlap them
            lambda i: (-first[i], -self.sizes[i]),
            lambda i: (-self.sizes[i], -first[i]),
            lambda i: (-breadth[i], -first[i], -self.sizes[i]),
        ]
        return [sorted(every, key=lambda i, key=key: (key(i), i)) for key in keys]  # type: ignore[misc]

    def solve(self, goal: int, *, search: bool = True) -> Allocation:
        """Return the smallest placement found, stopping at `goal`; without `search`, try greedy orders only."""
        best, best_order, best_fit = Allocation((), 0), Order(), False
        pairs, looked_at = sum(map(len, self.neighbours)), 0
        for order in self.greedy_orders():
            for fit in (False, True):
                if looked_at > _PAIR_WORK:
                    return best
                placed = self.place(order, best_fit=fit)
                looked_at += pairs
                if not best.offsets or placed.size < best.size:
                    best, best_order, best_fit = placed, order, fit
                if best.size <= goal:
                    return best
        return self._climb(best, best_order, goal, best_fit=best_fit) if search else best

    def _climb(self, best: Allocation, order: Order, goal: int, *, best_fit: bool) -> Allocation:
        """Improve an order by moving a block at the top or swapping two blocks, unless the result is worse."""
        chance = random.Random(0)  # noqa: S311  (a fixed seed: the same program gives the same plan)
        current = best
        # by tried order; None if it was too large, which remains true because sizes only shrink
        known: dict[tuple[int, ...], Allocation | None] = {tuple(order): best}
        # more orders than these are never tried
        number_of_orders = factorial(min(len(order), _MOST_TO_TRY_ALL))
        pairs = sum(map(len, self.neighbours))
        for _ in range(min(_SEARCH_WORK // max(1, len(order)), _PAIR_WORK // max(1, pairs))):
            if best.size <= goal or len(known) >= number_of_orders:
                break
            trial = list(order)
            top = [i for i in order if current.offsets[i] + self.sizes[i] == current.size]
            if chance.random() < 0.5:
                block = chance.choice(top)
                trial.remove(block)
                trial.insert(chance.randrange(len(order)), block)
            else:
                i, j = chance.randrange(len(order)), chance.randrange(len(order))
                trial[i], trial[j] = trial[j], trial[i]
            key = tuple(trial)
            if key not in known:
                # blocks before the first moved one keep their offsets
                same = next((at for at, (a, b) in enumerate(zip(order, trial, strict=True)) if a != b), len(order))
                offsets = [-1] * len(order)
                for i in order[:same]:
                    offsets[i] = current.offsets[i]
                kept = max((offsets[i] + self.sizes[i] for i in order[:same]), default=0)
                size = self._place(trial[same:], offsets, kept, best_fit=best_fit, most=current.size)
                known[key] = Allocation(tuple(offsets), size) if size <= current.size else None
            placed = known[key]
            if placed is not None and placed.size <= current.size:
                order, current = trial, placed
                best = min(best, current, key=lambda allocation: allocation.size)
        return best


# For each placed block: its start, its end, and the highest offset at which the new block ends below it. Ranges of a
# cluster differ in size: only ranges that are live together count.
_Taken = list[tuple[int, int, int]]


def _tightest_gap(taken: _Taken, alignment: int, size: int) -> int:
    """Return the offset in the gap that leaves the least room; above all blocks if no gap fits."""
    chosen, slack = -1, 0
    by_end = sorted([(end, highest) for _, end, highest in taken])
    ends = [end for end, _ in by_end]
    # the highest offset below all blocks from the first, the second, ... end on
    below = list(accumulate((highest for _, highest in reversed(by_end)), min))[::-1]
    # a block can start at the bottom, after each placed block, or right below it
    starts = {-(-end // alignment) * alignment for end in ends if end > 0}
    reaching = (highest for begin, _, highest in taken if highest >= 0 and begin - highest < size)
    for offset in sorted({0, *starts, *(highest // alignment * alignment for highest in reaching)}):
        above = bisect_right(ends, offset)
        if above == len(below):
            return offset if chosen < 0 else chosen
        room = below[above] - offset
        if room >= 0 and (chosen < 0 or room < slack):
            chosen, slack = offset, room
    return chosen
