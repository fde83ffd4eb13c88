"""In-place reuse: outputs of calls that may overwrite an input that dies there, entirely or in part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm

from mlfc.memory.liveness import LiveRange
from mlfc.memory.plan import Plan
from mlfc.tir.inplace_overlap import OverlapDistance, overlap_distance
from mlfc.tir.program import KernelCall, Program, Value

_FAR = 1 << 40


@dataclass(frozen=True, eq=False)
class Reuse:
    """An output placed at a fixed distance from an input of its call."""

    source: Value  # the input, which dies at the call
    distance: int = 0  # bytes by which the output starts before it; 0 for the same offset


def choose_reuse(call: KernelCall, index: int, ranges: Mapping[Value, LiveRange], *, overlap: bool) -> Reuse | None:
    """Return the input that the output of call `index` may overwrite and that saves the most; or None.

    `ranges`: live ranges of the values in the workspace.
    `overlap`: also allow partial overlap at the distance that the kernel requires.
    """
    output = ranges.get(call.output.root)
    if output is None or output.first != index or not call.output.is_whole:
        return None
    best: Reuse | None = None
    saved = 0
    parts = {value.root for value in call.inputs if not value.is_whole}
    for root in dict.fromkeys(value.root for value in call.inputs):
        held = ranges.get(root)
        if held is None or held.last != index or held.returned or root is call.output.root or root in parts:
            continue
        distance = 0
        if not allows_inplace(call, root):
            needed = call_overlap_distance(call, root) if overlap else None
            if needed is None or needed.step == 1:
                continue
            step = lcm(needed.step, held.alignment, output.alignment)
            distance = -(-needed.nbytes // step) * step
        gain = saved_bytes(held.nbytes, output.nbytes, distance)
        if gain > saved:
            best, saved = Reuse(root, distance), gain
    return best


def overlap_distances(
    program: Program, ranges: Mapping[Value, LiveRange], choice: Sequence[Reuse | None]
) -> dict[tuple[Value, Value], int]:
    """Return the minimum distances at which values may start before a value that dies during their lifetime.

    The written part of the one must end before the part of the other that is still accessed. Outputs can thus overlap
    the inputs of their call, and values that are written in parts can overlap values that are read in parts. Only for
    programs with `overlaps` set: C compilers optimize less if pointers may alias. Distances are rounded up to the
    alignment of both blocks.
    """
    if not program.overlaps:
        return {}
    uses = {root: found for root, found in uses_of(program).items() if root in ranges}
    fixed = {(reuse.source, call.output.root) for call, reuse in zip(program.calls, choice, strict=True) if reuse}
    distances: dict[tuple[Value, Value], int] = {}
    for output, own in uses.items():
        for source, other in uses.items():
            one, two = ranges[source], ranges[output]
            if two.first <= one.last <= two.last and one.first <= two.last and (source, output) not in fixed:
                least = _distance(program, own, source, other)
                align = min(one.alignment, two.alignment)
                rounded = -(-least // align) * align
                if rounded < two.nbytes:
                    distances[source, output] = rounded
    return distances


@dataclass(frozen=True, eq=False)
class Uses:
    """Byte ranges of a value that calls write and read: call, first byte, end."""

    writes: list[tuple[int, int, int]] = field(default_factory=list)
    reads: list[tuple[int, int, int]] = field(default_factory=list)


def uses_of(program: Program) -> dict[Value, Uses]:
    """Return the byte ranges that calls write and read of each value that owns its bytes.

    The caller counts as a call: it writes the inputs before the first one, as -1, and reads the outputs after the last.
    """
    found: dict[Value, Uses] = defaultdict(Uses)
    for value in program.inputs:
        found[value.root].writes.append((-1, 0, value.root.nbytes))
    for index, call in enumerate(program.calls):
        for value in call.inputs:
            found[value.root].reads.append((index, value.root_start, value.root_start + value.nbytes))
        output = call.output
        found[output.root].writes.append((index, output.root_start, output.root_start + output.nbytes))
    for value in program.outputs:
        found[value.root].reads.append((len(program.calls), value.root_start, value.root_start + value.nbytes))
    return found


def _distance(program: Program, own: Uses, source: Value, other: Uses) -> int:
    """Return the bytes by which a value must start before `source` so that neither overwrites the other."""
    least = -_FAR
    for index, start, end in own.writes:
        # the caller may write inputs in any order
        accessed = [first for call, first, _ in (*other.reads, *other.writes) if call > index or index < 0]
        least = max([least, *(end - first for first in accessed)])
        for value, needed in input_overlap_distances(program.calls[index], source) if index >= 0 else ():
            distance = start + needed.nbytes if needed is not None and needed.step == 1 else end
            least = max(least, distance - value.root_start)
    return least


def input_overlap_distances(call: KernelCall, root: Value) -> Iterator[tuple[Value, OverlapDistance | None]]:
    """Yield the inputs of a call that are `root` or parts of it, with the distance at which the output may overlap."""
    for position, value in enumerate(call.inputs):
        if value.root is root:
            yield value, overlap_distance(call.kernel, position)


def call_overlap_distance(call: KernelCall, root: Value) -> OverlapDistance | None:
    """Return the distance by which a call's output must precede its input `root`; None if they must not overlap."""
    found = OverlapDistance(0)
    for _, needed in input_overlap_distances(call, root):
        if needed is None:
            return None
        found = OverlapDistance(max(found.nbytes, needed.nbytes), lcm(found.step, needed.step))
    return found


def allows_inplace(call: KernelCall, root: Value) -> bool:
    """Return whether the output may overwrite an input in place, at every position where it is passed to the kernel."""
    return all(at in call.kernel.inplace for at, value in enumerate(call.inputs) if value.root is root)


def saved_bytes(held: int, output: int, distance: int) -> int:
    """Return the bytes of an input that an output saves if it starts at a distance before the input."""
    return held + output - max(output, distance + held)


def inplace_chains(program: Program, plan: Plan) -> list[list[Value]]:
    """Return the values in the workspace as chains, in which each value overwrites the one before in place."""
    chains = {value: [value] for value in program.intermediates()}
    for call, reused in zip(program.calls, plan.inplace, strict=True):
        root = call.output.root
        if reused is not None and chains[reused] is not chains[root]:
            chains[reused] += chains[root]
            for value in chains[root]:
                chains[value] = chains[reused]
    return list({id(chain): chain for chain in chains.values()}.values())
