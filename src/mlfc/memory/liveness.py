"""Liveness: the values and scratch that are live during each instruction of a program, and in-place reuse.

Outputs of some calls may overwrite an input that dies there, entirely or in part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import lcm
from typing import TypeAlias

from mlfc.memory.plan import Plan
from mlfc.support.dims import bounds
from mlfc.tir.inplace_overlap import OverlapDistance, overlap_distance
from mlfc.tir.program import Assign, Instruction, Jump, KernelCall, Label, Program, Value, sources_of, written_by

_FAR = 1 << 40


@dataclass(frozen=True, eq=False)
class LiveRange:
    """A block of workspace and the instructions during which its bytes must be preserved."""

    value: Value | None  # the intermediate or variable in it; None for the scratch of call `first`
    first: int  # index into ``Program.instructions``
    last: int  # the same, inclusive
    nbytes: int  # maximum within the bounds of symbols
    alignment: int  # the offset is a multiple of it
    returned: bool = False  # the caller reads it after the last call


OverlapDistances: TypeAlias = Mapping[tuple[Value, Value], int]
"""By input and output of a call: bytes by which the output must start before the input, which dies there."""


def alignment_of(nbytes: int, most: int) -> int:
    """Return the alignment of a block, at most its size: no access is wider than the block."""
    return min(most, 1 << max(0, nbytes.bit_length() - 1))


def most_bytes(value: Value) -> int:
    """Return the maximum size of a value in bytes within the bounds of its symbols."""
    return max(0, bounds(value.nbytes)[1])


def lifetimes(program: Program) -> dict[Value, tuple[int, int]]:
    """Return the first and last instruction of the lifetime of each value that owns its bytes, including inputs.

    A value is live from the instruction that writes it to the last one that reads it or a view of it. Returned values
    stay live to the end; inputs are live from the first instruction. A value that is written before a loop and read in
    it stays live to the end of the loop.
    """
    last_use: dict[Value, int] = dict.fromkeys((value.root for value in program.inputs), 0)
    first_write = dict(last_use)
    for index, item in enumerate(program.instructions):
        for value in sources_of(item):
            last_use[value.root] = index
        for value in written_by(item):
            first_write.setdefault(value.root, index)
            last_use[value.root] = index
    if not program.is_dynamic:  # otherwise `Return` reads them
        last_use.update(dict.fromkeys((value.root for value in program.outputs), len(program.instructions) - 1))
    for begin, end in loops(program.instructions):
        for value, first in first_write.items():
            if first < begin <= last_use[value] < end:
                last_use[value] = end
    return {value: (first, last_use[value]) for value, first in first_write.items()}


def loops(instructions: Sequence[Instruction]) -> list[tuple[int, int]]:
    """Return the first and last instruction of each loop, inner loops first."""
    labels: dict[Label, int] = {}
    found = []
    for index, item in enumerate(instructions):
        if isinstance(item, Label):
            labels[item] = index
        elif isinstance(item, Jump) and item.label in labels:
            found.append((labels[item.label], index))
    return sorted(found, key=lambda loop: loop[1] - loop[0])


def is_last_use(instructions: Sequence[Instruction], at: int, value: Value) -> bool:
    """Return whether no instruction after `at` reads the value that a list has there.

    Reads after the next assignment to the variable refer to another list.
    """
    reads = [index for index, item in enumerate(instructions) if index > at and value in sources_of(item)]
    writes = [
        index
        for index, item in enumerate(instructions)
        if index > at and isinstance(item, Assign) and value in item.variables
    ]
    if writes:
        return not any(index < writes[0] for index in reads)
    return not reads and not any(begin < at < end for begin, end in loops(instructions))


def live_ranges(program: Program, alignment: int, scratch_alignment: int) -> tuple[LiveRange, ...]:
    """Return the live range of each value that needs workspace, then of each call's scratch; see `lifetimes`.

    `alignment` applies to blocks that are large enough to need it.
    """
    lives, returned = lifetimes(program), {value.root for value in program.outputs}
    ranges = [
        LiveRange(value, *lives[value], nbytes, alignment_of(nbytes, alignment), value in returned)
        for value in program.intermediates()
        for nbytes in [most_bytes(value)]
    ]
    ranges += [
        LiveRange(None, index, index, nbytes, alignment_of(nbytes, scratch_alignment))
        for index, call in enumerate(program.instructions)
        if isinstance(call, KernelCall) and (nbytes := bounds(call.kernel.scratch_bytes)[1])
    ]
    return tuple(ranges)


def live_bytes(
    blocks: Sequence[Sequence[tuple[LiveRange, int]]], num_calls: int, distances: OverlapDistances
) -> tuple[int, ...]:
    """Return the live bytes during each call.

    `blocks`: clusters of ranges that are placed together, each with its distance from the start of the cluster.
    `distances`: which outputs may overlap an input, and by how much; shared bytes count once.
    """
    changes = [0] * (num_calls + 1)
    for block in blocks:
        for begin, end, nbytes in _stretches(block):
            changes[begin] += nbytes
            changes[end] -= nbytes
    total = list(accumulate(changes))[:num_calls]
    by_value = {item.value: item for block in blocks for item, _ in block}
    pairs: dict[int, list[_Pair]] = {}  # by call, the live inputs and outputs that may share bytes, and their distances
    for (source, output), least in distances.items():
        one, other = by_value[source], by_value[output]
        for call in range(max(one.first, other.first), min(one.last, other.last) + 1):
            pairs.setdefault(call, []).append((one, other, least))
    for call, found in pairs.items():
        total[call] -= sum(map(_saved, _connected(found)))
    return tuple(total)


def _stretches(block: Sequence[tuple[LiveRange, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the first call, the call after the last, and the bytes from the lowest live range to the top."""
    waiting = sorted(block, key=lambda item: item[0].first, reverse=True)
    points = sorted({edge for item, _ in block for edge in (item.first, item.last + 1)})
    active: list[tuple[LiveRange, int]] = []
    for begin, end in pairwise(points):
        active = [item for item in active if item[0].last >= begin]
        while waiting and waiting[-1][0].first <= begin:
            active.append(waiting.pop())
        if active:
            low = min(shift for _, shift in active)
            yield begin, end, max(shift + item.nbytes for item, shift in active) - low


_Pair: TypeAlias = tuple[LiveRange, LiveRange, int]


def _connected(pairs: Sequence[_Pair]) -> list[list[_Pair]]:
    """Return the pairs in groups without common ranges."""
    groups: list[tuple[set[LiveRange], list[_Pair]]] = []
    for pair in pairs:
        touching = [group for group in groups if group[0] & {pair[0], pair[1]}]
        members = {pair[0], pair[1]}.union(*(group[0] for group in touching))
        joined = [item for group in touching for item in group[1]] + [pair]
        groups = [group for group in groups if all(group is not other for other in touching)]
        groups.append((members, joined))
    return [group[1] for group in groups]


def _saved(pairs: Sequence[_Pair]) -> int:
    """Return an upper bound of the bytes saved by ranges that may share bytes."""
    members = {item for source, output, _ in pairs for item in (source, output)}
    apart = sum(item.nbytes for item in members)
    largest = max(item.nbytes for item in members)
    outputs = {output for _, output, _ in pairs}
    if len(outputs) > 1 or any(source in outputs for source, _, _ in pairs):
        return apart - largest
    # inputs of one output do not overlap one another
    sources = apart - sum(output.nbytes for output in outputs)
    return apart - max(largest, sources + max(0, min(least for _, _, least in pairs)))


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
