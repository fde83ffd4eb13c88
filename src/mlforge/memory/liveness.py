"""Which bytes of workspace are live during which calls of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mlforge.tir.ir import Program, Value


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


Leads: TypeAlias = Mapping[tuple[Value, Value], int]
"""By input and output of a call: how many bytes before the input, which dies there, the output must start."""


def alignment_of(nbytes: int, most: int) -> int:
    """Return what the offset of a block must be a multiple of: nothing wider than the block is ever loaded from it."""
    return min(most, 1 << max(0, nbytes.bit_length() - 1))


def live_ranges(program: Program, alignment: int, scratch_alignment: int) -> tuple[LiveRange, ...]:
    """Return the live range of each intermediate, then of each call's scratch.

    The alignments are those of blocks that are large enough to need them.
    A value is live from the call that writes it to the last one that reads it or a view of it. One that
    the program returns stays live to the end.
    """
    last_use: dict[Value, int] = {}
    first_write: dict[Value, int] = {}
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


def live_bytes(blocks: Sequence[Sequence[tuple[LiveRange, int]]], num_calls: int, leads: Leads) -> tuple[int, ...]:
    """Return the live bytes during each call.

    Parameters
    ----------
    blocks : sequence of sequence of (LiveRange, int)
        Ranges that have their places together, each with its distance from where all begin.
    num_calls : int
    leads : mapping
        Which outputs may reach into the place of an input, and how far: they count as far as they cannot.
    """
    total = [0] * num_calls
    for block in blocks:
        ends: dict[int, tuple[int, int]] = {}
        for item, shift in block:
            for index in range(item.first, item.last + 1):
                low, high = ends.get(index, (shift, shift))
                ends[index] = min(low, shift), max(high, shift + item.nbytes)
        for index, (low, high) in ends.items():
            total[index] += high - low
    for (call, output), together in _reaching(blocks, leads).items():
        apart = output.nbytes + sum(item.nbytes for item, _ in together)
        least = min(nbytes for _, nbytes in together)
        total[call] -= max(0, apart - max(output.nbytes, apart - output.nbytes + least))
    return tuple(total)


def _reaching(
    blocks: Sequence[Sequence[tuple[LiveRange, int]]], leads: Leads
) -> dict[tuple[int, LiveRange], list[tuple[LiveRange, int]]]:
    """Return by call and output what the output may reach into while both are live, and how far."""
    by_value = {item.value: item for block in blocks for item, _ in block}
    found: dict[tuple[int, LiveRange], list[tuple[LiveRange, int]]] = {}
    for (source, output), least in leads.items():
        one, other = by_value[source], by_value[output]
        for call in range(max(one.first, other.first), one.last + 1):
            found.setdefault((call, other), []).append((one, least))
    return found
