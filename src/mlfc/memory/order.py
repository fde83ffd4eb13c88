"""Reordering of a program's calls to minimize peak live memory.

The graph only constrains dependent calls; the order of independent branches determines which values must be kept in the
meantime. The search extends all orders call by call and keeps the most promising sets of executed calls: a beam search
over the down-sets of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from mlfc.memory.liveness import allows_inplace, call_overlap_distance, saved_bytes
from mlfc.tir.inplace_overlap import OverlapDistance
from mlfc.tir.program import Program, Value

# beam width: sets of calls kept at each step; more than a few dozen gain nothing on real graphs
_BEAM = 48
# graphs with more calls than this keep their order: the search would take seconds
_MOST_CALLS = 400


def reordered(program: Program) -> Program:
    """Return the program with its calls, which write whole values, in the order with the lowest peak of live bytes."""
    if len(program.calls) > _MOST_CALLS:
        return program
    graph = _OrderGraph(program)
    order = graph.search()
    if graph.peak(order) >= graph.peak(range(len(program.calls))):
        return program
    return replace(program, instructions=tuple(program.calls[index] for index in order))


class _Effect(NamedTuple):
    """Memory effect of a call: bytes added to the live bytes while it runs, and afterwards."""

    during: int
    after: int


class _OrderState(NamedTuple):
    """A set of executed calls, compared by memory, then by `place`: the rank of its order in the beam."""

    peak: int
    live: int
    place: int
    last: int
    done: int  # bit set of calls
    before: _BeamState


@dataclass(frozen=True, eq=False)
class _BeamState:
    """A state of the beam, with the rank of its order and the calls that may run next."""

    peak: int
    live: int
    place: int
    done: int
    order: tuple[int, ...]
    ready: dict[int, _Effect]


class _OrderGraph:
    """Dependencies of each call, and the bytes that it allocates and frees."""

    def __init__(self, program: Program) -> None:
        self.calls = program.calls
        held = set(program.intermediates())
        returned = program.returned
        writers = {call.output.root: index for index, call in enumerate(program.calls)}
        self.sources = [
            sorted({value.root for value in call.inputs if value.root in held}, key=lambda root: writers.get(root, -1))
            for call in program.calls
        ]
        needs = [{writers[value.root] for value in call.inputs if value.root in writers} for call in program.calls]
        self.needs = [sum(1 << writer for writer in of_one) for of_one in needs]
        self.successors: list[list[int]] = [[] for _ in program.calls]
        for index, of_one in enumerate(needs):
            for writer in of_one:
                self.successors[writer].append(index)
        self.readers: dict[Value, int] = {}
        for index, roots in enumerate(self.sources):
            for root in roots:
                self.readers[root] = self.readers.get(root, 0) | 1 << index
        self.made = [call.output.root.nbytes if call.output.root in held else 0 for call in program.calls]
        self.alone = [
            _Effect(
                nbytes + call.kernel.scratch_bytes,
                nbytes if call.output.root in returned or call.output.root in self.readers else 0,  # if a call reads it
            )
            for call, nbytes in zip(program.calls, self.made, strict=True)
        ]
        # the inputs that may die at each call, their bytes, and their other readers
        self.dying = [
            [(root, root.nbytes, self.readers[root] & ~(1 << index)) for root in roots if root not in returned]
            for index, roots in enumerate(self.sources)
        ]
        self.start = sum(value.root.nbytes for value in program.inputs if value.root in held)
        self._overlaps = program.overlaps
        self._saving = cache(self._found_saving)

    def search(self) -> tuple[int, ...]:
        """Return the best order found."""
        first = {index: self._effect(0, index) for index, needed in enumerate(self.needs) if not needed}
        kept = [_BeamState(self.start, self.start, 0, 0, (), first)]
        for _ in self.calls:
            following: dict[int, _OrderState] = {}
            for beam in kept:
                peak, live, place, done = beam.peak, beam.live, beam.place, beam.done
                for index, (during, after) in beam.ready.items():
                    then = done | 1 << index
                    found = _OrderState(max(peak, live + during), live + after, place, index, then, beam)
                    known = following.get(then)
                    if known is None or found < known:
                        following[then] = found
            best = sorted(following.values())[:_BEAM]
            places = {state.done: place for place, state in enumerate(sorted(best, key=attrgetter("place", "last")))}
            kept = []
            for state in best:
                ready = dict(state.before.ready)
                del ready[state.last]
                sharing = 0  # readers of this call's inputs, which may now die there
                for _, _, others in self.dying[state.last]:
                    sharing |= others
                free = (other for other in self.successors[state.last] if not self.needs[other] & ~state.done)
                for other in (*(other for other in ready if sharing >> other & 1), *free):
                    ready[other] = self._effect(state.done, other)
                order = (*state.before.order, state.last)
                kept.append(_BeamState(state.peak, state.live, places[state.done], state.done, order, ready))
        return kept[0].order

    def peak(self, order: Sequence[int]) -> int:
        """Return the peak of live bytes over all calls."""
        peak = live = self.start
        done = 0
        for index in order:
            effect = self._effect(done, index)
            peak, live, done = max(peak, live + effect.during), live + effect.after, done | 1 << index
        return peak

    def _effect(self, done: int, index: int) -> _Effect:
        """Return the memory effect of a call after those of `done`."""
        during, after = self.alone[index]
        saved = 0
        for root, nbytes, others in self.dying[index]:
            if not others & ~done:
                after -= nbytes
                saved = max(saved, self._saving(index, root))
        return _Effect(during - saved, after)

    def _found_saving(self, index: int, root: Value) -> int:
        """Return the bytes that the output of a call reuses of an input that dies there."""
        call, needed = self.calls[index], None
        if self.made[index] and allows_inplace(call, root):
            needed = OverlapDistance(0)
        elif self.made[index] and self._overlaps:
            needed = call_overlap_distance(call, root)
        return 0 if needed is None else saved_bytes(root.nbytes, call.output.nbytes, needed.nbytes)
