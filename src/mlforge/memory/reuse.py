"""Which outputs of calls may take the place of an input that dies there, or bytes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from mlforge.memory.liveness import LiveRange
from mlforge.tir.ir import KernelCall, Program, Value
from mlforge.tir.overlap import Lead, lead


@dataclass(frozen=True, eq=False)
class Reuse:
    """An output that lies at a fixed distance from an input of its call.

    Attributes
    ----------
    source : Value
        The input, which dies at the call.
    distance : int
        How many bytes before it the output starts; 0 for the same place.
    """

    source: Value
    distance: int = 0


def choose_reuse(call: KernelCall, index: int, ranges: Mapping[Value, LiveRange], *, overlap: bool) -> Reuse | None:
    """Return the input of call number `index` whose place its output may take, the one that saves most; or None.

    Parameters
    ----------
    call : KernelCall
    index : int
    ranges : mapping of Value to LiveRange
        Of what lies in the workspace.
    overlap : bool
        Whether the place may be taken in part too, where the kernel then needs a certain distance.
    """
    output = ranges.get(call.output.root)
    if output is None or output.first != index or not call.output.is_whole:
        return None
    best: Reuse | None = None
    saved = 0
    for held in _dying(call, index, ranges):
        assert held.value is not None
        found = _same_place(call, held.value)
        if found is None and overlap:
            found = _fixed_distance(call, held, output)
        if found is not None and _saved(held, output, found.distance) > saved:
            best, saved = found, _saved(held, output, found.distance)
    return best


def free_leads(
    program: Program, ranges: Mapping[Value, LiveRange], choice: Sequence[Reuse | None]
) -> dict[tuple[Value, Value], int]:
    """Return which outputs may start at any distance from a certain one on before an input that dies.

    Only for programs whose meta say that memory is worth it: C compilers know less of pointers that may overlap.
    Distances are rounded up to what the alignment of both blocks makes of them.
    """
    found: dict[tuple[Value, Value], int] = {}
    if not program.meta.get("overlap"):
        return found
    written: dict[Value, int] = {}
    for index, (call, reuse) in enumerate(zip(program.calls, choice, strict=True)):
        root, start = call.output.root, call.output.root_start
        before, written[root] = written.get(root, 0), max(written.get(root, 0), start + call.output.nbytes)
        output = ranges.get(root)
        # a part may reach into an input if nothing behind it has been written yet
        if output is None or before > start:
            continue
        for held in _dying(call, index, ranges):
            assert held.value is not None
            needed = lead_of_call(call, held.value)
            if needed is not None and needed.step == 1 and (reuse is None or reuse.source is not held.value):
                align = min(held.alignment, output.alignment)
                found[held.value, root] = -(-(start + needed.nbytes) // align) * align
    return found


def lead_of_call(call: KernelCall, root: Value) -> Lead | None:
    """Return how far before its input `root` the output of a call may start; None where they must not meet."""
    found = Lead(0)
    for position, value in enumerate(call.inputs):
        if value.root is root:
            needed = lead(call.kernel, position)
            if needed is None:
                return None
            found = Lead(max(found.nbytes, needed.nbytes), lcm(found.step, needed.step))
    return found


def _dying(call: KernelCall, index: int, ranges: Mapping[Value, LiveRange]) -> Iterator[LiveRange]:
    """Yield the inputs in the workspace that are passed as a whole and read no more after call `index`, each once."""
    parts = {value.root for value in call.inputs if not value.is_whole}
    for root in dict.fromkeys(value.root for value in call.inputs):
        held = ranges.get(root)
        if held is not None and held.last == index and root is not call.output.root and root not in parts:
            yield held


def _same_place(call: KernelCall, root: Value) -> Reuse | None:
    """Return the reuse of the very place, which the kernel must allow wherever that input is passed to it."""
    positions = {position for position, value in enumerate(call.inputs) if value.root is root}
    return Reuse(root) if positions <= set(call.kernel.inplace) else None


def _fixed_distance(call: KernelCall, held: LiveRange, output: LiveRange) -> Reuse | None:
    assert held.value is not None
    needed = lead_of_call(call, held.value)
    if needed is None or needed.step == 1:
        return None
    step = lcm(needed.step, held.alignment, output.alignment)
    return Reuse(held.value, -(-needed.nbytes // step) * step)


def _saved(held: LiveRange, output: LiveRange, distance: int) -> int:
    return held.nbytes + output.nbytes - max(output.nbytes, distance + held.nbytes)
