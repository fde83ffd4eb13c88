"""Which bytes of workspace are live during which calls of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlforge.tir.ir import KernelCall, Program, Value


@dataclass(frozen=True, eq=False)
class LiveRange:
    """A block of workspace and the calls during which it must keep its bytes.

    Attributes
    ----------
    value : Value or None
        The intermediate that lies there; None for the scratch of call `first`.
    first, last : int
        Indices into ``Program.calls``, both inclusive.
    nbytes : int
    alignment : int
        What the offset must be a multiple of.
    """

    value: Value | None
    first: int
    last: int
    nbytes: int
    alignment: int


def alignment_of(nbytes: int, most: int) -> int:
    """Return what the offset of a block must be a multiple of: nothing wider than the block is ever loaded from it."""
    return min(most, 1 << max(0, nbytes.bit_length() - 1))


def live_ranges(program: Program, alignment: int, scratch_alignment: int) -> tuple[LiveRange, ...]:
    """Return the live range of each intermediate, then of each call's scratch.

    The alignments are those of blocks that are large enough to need them.
    A value is live from the call that writes it to the last one that reads it or a view of it. One that
    the program returns stays live to the end, an input that lies in the workspace is live from the first call on.
    """
    last_use: dict[Value, int] = dict.fromkeys((value.root for value in program.inputs), 0)
    first_write = dict(last_use)
    for index, call in enumerate(program.calls):
        for value in call.inputs:
            last_use[value.root] = index
        root = call.output.root
        first_write.setdefault(root, index)
        last_use[root] = index
    for value in program.outputs:
        last_use[value.root] = len(program.calls) - 1
    ranges = [
        LiveRange(value, first_write[value], last_use[value], value.nbytes, alignment_of(value.nbytes, alignment))
        for value in program.intermediates()
    ]
    ranges += [
        LiveRange(None, index, index, nbytes, alignment_of(nbytes, scratch_alignment))
        for index, call in enumerate(program.calls)
        if (nbytes := call.kernel.scratch_bytes)
    ]
    return tuple(ranges)


def inplace_choice(call: KernelCall, index: int, ranges: dict[Value, LiveRange]) -> Value | None:
    """Return the input whose place the output of call number `index` may take, the one that saves most; or None.

    The input must be an intermediate that dies at this call, and the kernel must allow sharing for every
    position at which that input is passed: one read of it elsewhere would see overwritten bytes.
    """
    output = ranges.get(call.output.root)
    if output is None or output.first != index:
        return None
    best: Value | None = None
    for position in call.kernel.inplace:
        root = call.inputs[position].root
        held = ranges.get(root)
        if held is None or held.last != index or root is call.output.root:
            continue
        if not all(k in call.kernel.inplace for k, value in enumerate(call.inputs) if value.root is root):
            continue
        if best is None or min(held.nbytes, output.nbytes) > min(ranges[best].nbytes, output.nbytes):
            best = root
    return best


def live_bytes(clusters: Sequence[Sequence[LiveRange]], num_calls: int) -> tuple[int, ...]:
    """Return the live bytes during each call; ranges of one cluster share their place, so the largest counts."""
    total = [0] * num_calls
    for cluster in clusters:
        largest: dict[int, int] = {}
        for item in cluster:
            for index in range(item.first, item.last + 1):
                largest[index] = max(largest.get(index, 0), item.nbytes)
        for index, nbytes in largest.items():
            total[index] += nbytes
    return tuple(total)
