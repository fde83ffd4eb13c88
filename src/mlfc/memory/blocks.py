"""A plan as a list of blocks with offsets and lifetimes, which can be checked without the program."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlfc.errors import InternalError
from mlfc.memory.liveness import LiveRange, Uses, input_overlap_distances, live_ranges, uses_of
from mlfc.memory.plan import SCRATCH_ALIGNMENT, SCRATCH_NAME, Plan
from mlfc.support.module_info import BlockInfo, ReachInfo
from mlfc.tir.program import KernelCall, Program, Value


@dataclass(frozen=True, eq=False)
class _Piece:
    """Bytes of a value that are written together and read for the last time together; scratch if `value` is None."""

    value: Value | None
    start: int
    nbytes: int
    offset: int
    first: int
    last: int


def blocks(program: Program, plan: Plan) -> tuple[BlockInfo, ...]:
    """Return the blocks of a plan by their first calls."""
    pieces = sorted(_pieces(program, plan), key=lambda item: (item.first, item.value is None, item.offset))
    of_root: dict[Value, list[int]] = {}
    for number, piece in enumerate(pieces):
        if piece.value is not None:
            of_root.setdefault(piece.value, []).append(number)
    return tuple(_block(program, plan, pieces, piece, of_root) for piece in pieces)


def _pieces(program: Program, plan: Plan) -> list[_Piece]:
    """Return the values and scratch of a program, without ranges that are live only between two calls."""
    calls = [index for index, item in enumerate(program.instructions) if isinstance(item, KernelCall)]
    uses = {} if program.is_dynamic else uses_of(program)
    found = []
    for item in live_ranges(program, plan.alignment, SCRATCH_ALIGNMENT):
        first, last = bisect_left(calls, item.first), bisect_right(calls, item.last) - 1
        lives = [(0, item.nbytes, first, last)] if first <= last else []
        if item.value in uses:
            lives = _lives(uses[item.value], item)
        for start, end, begin, until in lives:
            offset = plan.scratch_offsets[first] if item.value is None else plan.offset(item.value) + start
            found.append(_Piece(item.value, start, end - start, offset, begin, until))
    return found


def _lives(uses: Uses, item: LiveRange) -> list[tuple[int, int, int, int]]:
    """Return byte ranges with one lifetime: start, end, writing call, last reading call or the writing one."""
    edges = sorted({0, item.nbytes, *(edge for _, *ends in (*uses.writes, *uses.reads) for edge in ends)})
    found: list[tuple[int, int, int, int]] = []
    for start, end in pairwise(edges):
        written = next((call for call, low, high in uses.writes if low <= start and end <= high), item.first)
        reads = [call for call, low, high in uses.reads if low <= start and end <= high]
        if written < 0 and not reads:
            continue
        first = max(item.first, written)
        last = min(item.last, max(reads, default=first))
        if found and found[-1][1:] == (start, first, last):
            start = found.pop()[0]  # noqa: PLW2901  (merged with the one before)
        found.append((start, end, first, last))
    return found


def _block(
    program: Program, plan: Plan, pieces: Sequence[_Piece], piece: _Piece, of_root: dict[Value, list[int]]
) -> BlockInfo:
    reuses: int | None = None
    reaches: list[ReachInfo] = []
    call = program.calls[piece.first]
    if piece.value is call.output.root:  # not an input, which is written before the first call
        reused = plan.inplace[piece.first]
        taken = of_root[reused] if reused is not None else []
        if len(taken) == 1:
            reuses = taken[0]
        else:  # at the same distance, byte by byte
            ending = (number for number in taken if pieces[number].last == piece.first)
            reaches = [ReachInfo(number, pieces[number].offset - piece.offset) for number in ending]
        for root in plan.aliased_inputs[piece.first]:
            for number in of_root[root]:
                if pieces[number].last != piece.first:
                    continue
                most: list[int] = []  # bytes by which the output's piece must precede the input's
                for value, needed in input_overlap_distances(call, root):
                    if needed is None:
                        raise InternalError(
                            f"the output of '{call.kernel.name}' overlaps '{root.name}', which is not allowed"
                        )
                    start = call.output.root_start - piece.start
                    most.append(needed.nbytes + start - (value.root_start - pieces[number].start))
                reaches.append(ReachInfo(number, max(most)))
    name = piece.value.name if piece.value else SCRATCH_NAME
    return BlockInfo(name, piece.nbytes, piece.offset, piece.first, piece.last, reuses, tuple(reaches))
