"""The order of a program's calls in which least is live at a time.

A model's graph says what comes before what; among independent branches the order is free, and which branch runs first
decides what must be kept meanwhile. The search goes through all orders at once, call by call, and keeps the most
promising sets of calls that have run: a beam search over the down-sets of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from mlfc.memory.reuse import allows_inplace, call_overlap_distance
from mlfc.tir.program import KernelCall, Program, Value

# sets of calls that are kept at each step; beyond some dozens nothing is won on real graphs
_BEAM = 48
# graphs with more calls than this keep their order: the search would take seconds
_MOST_CALLS = 400


def reordered(program: Program) -> Program:
    """Return the program with its calls, which write whole values, in the order in which the fewest bytes are live."""
    if len(program.calls) > _MOST_CALLS:
        return program
    graph = _OrderGraph(program)
    order = graph.search()
    if graph.peak(order) >= graph.peak(range(len(program.calls))):
        return program
    return replace(program, instructions=tuple(program.calls[index] for index in order))


class _Effect(NamedTuple):
    """What a call does to memory: bytes beyond those that are live, while it runs and afterwards."""

    during: int
    after: int


class _OrderState(NamedTuple):
    """Some calls that have run: what they took at most, what is live now, and the last of them.

    They compare by what they take and then as their orders do: `place` is that of the others' order among those kept.
    """

    peak: int
    live: int
    place: int
    last: int
    done: int  # as bits
    before: _BeamState


@dataclass(frozen=True, eq=False)
class _BeamState:
    """A state of the beam, with its own place among their orders, and what may run next."""

    peak: int
    live: int
    place: int
    done: int
    order: tuple[int, ...]
    ready: dict[int, _Effect]


class _OrderGraph:
    """What each call needs to have run, and what it allocates and frees."""

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
        made = [call.output.root.nbytes if call.output.root in held else 0 for call in program.calls]
        self.alone = [
            _Effect(
                nbytes + call.kernel.scratch_bytes,
                nbytes if call.output.root in returned or call.output.root in self.readers else 0,  # if somebody reads
            )
            for call, nbytes in zip(program.calls, made, strict=True)
        ]
        # the inputs that may die at each call, their bytes, and who else reads them
        self.dying = [
            [(root, root.nbytes, self.readers[root] & ~(1 << index)) for root in roots if root not in returned]
            for index, roots in enumerate(self.sources)
        ]
        self.made = made
        self.start = sum(value.root.nbytes for value in program.inputs if value.root in held)
        self._overlaps = program.overlaps
        self._saved: dict[tuple[int, Value], int] = {}

    def search(self) -> tuple[int, ...]:
        """Return the best order found."""
        first = {index: self._effect(0, index) for index, needed in enumerate(self.needs) if not needed}
        kept = [_BeamState(self.start, self.start, 0, 0, (), first)]
        for _ in self.calls:
            following: dict[int, _OrderState] = {}
            for state in kept:
                peak, live, place, done = state.peak, state.live, state.place, state.done
                for index, (during, after) in state.ready.items():
                    then = done | 1 << index
                    found = _OrderState(max(peak, live + during), live + after, place, index, then, state)
                    known = following.get(then)
                    if known is None or found < known:
                        following[then] = found
            best = sorted(following.values())[:_BEAM]
            places = {state.done: place for place, state in enumerate(sorted(best, key=attrgetter("place", "last")))}
            kept = [self._kept(state, places[state.done]) for state in best]
        return kept[0].order

    def peak(self, order: Sequence[int]) -> int:
        """Return the most bytes that are live during one call."""
        peak = live = self.start
        done = 0
        for index in order:
            effect = self._effect(done, index)
            peak, live, done = max(peak, live + effect.during), live + effect.after, done | 1 << index
        return peak

    def _kept(self, state: _OrderState, place: int) -> _BeamState:
        before, index, done = state.before, state.last, state.done
        ready = dict(before.ready)
        del ready[index]
        sharing = 0  # who reads what this call read, which may now die there
        for _, _, others in self.dying[index]:
            sharing |= others
        for other in ready:
            if sharing >> other & 1:
                ready[other] = self._effect(done, other)
        for other in self.successors[index]:
            if self.needs[other] & ~done == 0:
                ready[other] = self._effect(done, other)
        return _BeamState(state.peak, state.live, place, done, (*before.order, index), ready)

    def _effect(self, done: int, index: int) -> _Effect:
        """Return what a call does after those of `done`."""
        during, after = self.alone[index]
        saved = 0
        for root, nbytes, others in self.dying[index]:
            if not others & ~done:
                after -= nbytes
                saved = max(saved, self._saving(index, root))
        return _Effect(during - saved, after)

    def _saving(self, index: int, root: Value) -> int:
        """Return how many bytes the output of a call takes of an input that dies there."""
        key = index, root
        if key not in self._saved:
            self._saved[key] = self._found_saving(self.calls[index], root) if self.made[index] else 0
        return self._saved[key]

    def _found_saving(self, call: KernelCall, root: Value) -> int:
        if allows_inplace(call, root):
            return min(root.nbytes, call.output.nbytes)
        needed = call_overlap_distance(call, root) if self._overlaps else None
        if needed is None:
            return 0
        return root.nbytes + call.output.nbytes - max(call.output.nbytes, needed.nbytes + root.nbytes)
