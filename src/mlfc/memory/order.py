"""The order of a program's calls in which least is live at a time.

A model's graph says what comes before what; among independent branches the order is free, and which branch runs first
decides what must be kept meanwhile. The search goes through all orders at once, call by call, and keeps the most
promising sets of calls that have run: a beam search over the down-sets of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlfc.memory.reuse import allows_inplace, call_overlap_distance
from mlfc.tir.ir import KernelCall, Program, Value

# sets of calls that are kept at each step; beyond some dozens nothing is won on real graphs
_BEAM = 48
# graphs with more calls than this keep their order: the search would take seconds
_MOST_CALLS = 400


def reordered(program: Program) -> Program:
    """Return the program with its calls, which write whole values, in the order in which the fewest bytes are live."""
    if len(program.calls) > _MOST_CALLS:
        return program
    graph = _Graph(program)
    order = graph.search()
    if graph.peak(order) >= graph.peak(range(len(program.calls))):
        return program
    return replace(program, calls=tuple(program.calls[index] for index in order))


@dataclass(frozen=True)
class _State:
    """Some calls that have run: as bits of `done`, in `order`; what they took at most, and what is live now."""

    done: int
    order: tuple[int, ...]
    peak: int
    live: int

    @property
    def rank(self) -> tuple[int, int, tuple[int, ...]]:
        return self.peak, self.live, self.order


class _Graph:
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
        self.needs = [
            sum(1 << writers[value.root] for value in {value.root: value for value in call.inputs}.values()
                if value.root in writers)
            for call in program.calls
        ]  # fmt: skip
        self.readers: dict[Value, int] = {}
        for index, roots in enumerate(self.sources):
            for root in roots:
                self.readers[root] = self.readers.get(root, 0) | 1 << index
        self.made = [call.output.root.nbytes if call.output.root in held else 0 for call in program.calls]
        self.kept = returned
        self.start = sum(value.root.nbytes for value in program.inputs if value.root in held)
        self._overlaps = program.overlaps
        self._saved: dict[tuple[int, Value], int] = {}

    def search(self) -> tuple[int, ...]:
        """Return the best order found."""
        states = [_State(0, (), self.start, self.start)]
        for _ in self.calls:
            following: dict[int, _State] = {}
            for state in states:
                for index in range(len(self.calls)):
                    if not state.done >> index & 1 and self.needs[index] & ~state.done == 0:
                        after = self._after(state, index)
                        known = following.get(after.done)
                        if known is None or after.rank < known.rank:
                            following[after.done] = after
            states = sorted(following.values(), key=lambda state: state.rank)[:_BEAM]
        return states[0].order

    def peak(self, order: Sequence[int]) -> int:
        """Return the most bytes that are live during one call."""
        state = _State(0, (), self.start, self.start)
        for index in order:
            state = self._after(state, index)
        return state.peak

    def _after(self, state: _State, index: int) -> _State:
        done = state.done | 1 << index
        dying = [root for root in self.sources[index] if root not in self.kept and not self.readers[root] & ~done]
        saved = max((self._saving(index, root) for root in dying), default=0)
        during = state.live + self.made[index] + self.calls[index].kernel.scratch_bytes - saved
        made = self.made[index]
        root = self.calls[index].output.root
        if made and root not in self.kept and root not in self.readers:
            made = 0  # nobody reads it
        live = state.live + made - sum(root.nbytes for root in dying)
        return _State(done, (*state.order, index), max(state.peak, during), live)

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
