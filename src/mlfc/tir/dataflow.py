"""Which call of a program reads what which other call computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from mlfc.tir.program import Assign, Instruction, KernelCall, ListOperation, Program, Value


class Dataflow:
    """Where the values of a program come from, through views, parts, branches, loops and lists.

    A source is the position of a call in `Program.calls`, or -1 - k for the program's k-th input; states are behind the
    inputs. Constants have none.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        given = (*program.inputs, *(state.before for state in program.states))
        self._given = {value.root: -1 - place for place, value in reversed([*enumerate(given)])}
        self._written: dict[Value, list[tuple[int, Value]]] = {}
        for index, call in enumerate(program.calls):
            self._written.setdefault(call.output.root, []).append((index, call.output))
        self._assigned = _assigned(program.instructions)

    def read_by(self, index: int) -> tuple[int, ...]:
        """Return the sources of what a call reads, each once, in the order of its arguments."""
        call: KernelCall = self._program.calls[index]
        found = chain.from_iterable(self.sources(value, index) for value in call.inputs)
        return tuple(dict.fromkeys(found))

    def given_by_calls(self) -> Mapping[int, tuple[int, ...]]:
        """Return by call the positions of the outputs that it computes; next values of states are behind the outputs.

        A state that a call writes in place is that call's.
        """
        found: dict[int, list[int]] = {}
        results = (*self._program.outputs, *(state.after for state in self._program.states))
        for place, value in enumerate(results):
            for source in dict.fromkeys(self.sources(value, len(self._program.calls))):
                if source >= 0:
                    found.setdefault(source, []).append(place)
        return {index: tuple(places) for index, places in found.items()}

    def sources(self, value: Value, before: int) -> Iterable[int]:
        """Yield what computes a value that is read by the call of this position."""
        seen, remaining = {value}, [value]
        while remaining:
            item = remaining.pop()
            root = item.root
            writers = self._written.get(root)
            if writers is not None:
                yield from (index for index, part in writers if index < before and _touches(part, item))
            elif root in self._assigned or item in self._assigned:
                known = self._assigned.get(item) or self._assigned[root]
                fresh = [source for source in known if source not in seen]
                seen.update(fresh)
                remaining += reversed(fresh)
                before = len(self._program.calls)  # a loop carries what later calls compute
            elif root in self._given:
                yield self._given[root]


def _assigned(instructions: Sequence[Instruction]) -> dict[Value, list[Value]]:
    """Return what variables and lists are made of."""
    found: dict[Value, list[Value]] = {}
    for step in instructions:
        if isinstance(step, Assign):
            for variable, source in zip(step.variables, step.sources, strict=True):
                found.setdefault(variable, []).append(source)
        elif isinstance(step, ListOperation):
            found.setdefault(step.output, []).extend(step.inputs)
    return found


def _touches(written: Value, read: Value) -> bool:
    """Tell whether a part of a tensor has bytes of another part of it; open extents have no parts."""
    if written.is_whole or read.is_whole:
        return True
    first, second = written.root_start, read.root_start
    return first < second + read.nbytes and second < first + written.nbytes
