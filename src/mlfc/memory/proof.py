"""Independent check of a memory plan by tracking the owner of each byte, instruction by instruction.

It is an abstract interpretation of the program: after a write the value owns its bytes, after use as scratch they have
no owner, and a read requires that the value still owns every byte. Where paths join, a byte keeps its owner only if it
is the same on every path; loops are iterated to a fixed point. A plan as a list of blocks with offsets and lifetimes
can also be checked without the program.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlfc.errors import InternalError
from mlfc.memory.liveness import (
    LiveRange,
    Uses,
    alignment_of,
    input_overlap_distances,
    live_ranges,
    most_bytes,
    uses_of,
)
from mlfc.memory.plan import SCRATCH_ALIGNMENT, SCRATCH_NAME, Plan
from mlfc.support import dtypes
from mlfc.support.dims import bounds
from mlfc.support.module_info import BlockInfo, ReachInfo
from mlfc.tir import program as tir_program
from mlfc.tir.inplace_overlap import overlap_distance
from mlfc.tir.program import Assign, Branch, BranchOnSymbols, Jump, KernelCall, Label, Program, Return, Value

Extent = tuple[int, int]
# start of the memory of states in the proof, beyond all offsets of an arena
_STATES = 1 << 48


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


class _Bytes:
    """Owners of the arena's bytes: disjoint extents."""

    def __init__(self) -> None:
        self._owned: list[tuple[int, int, object]] = []

    def write(self, extent: Extent, owner: object) -> None:
        begin, end = extent
        kept: list[tuple[int, int, object]] = []
        for low, high, other in self._owned:
            if low < begin:
                kept.append((low, min(high, begin), other))
            if high > end:
                kept.append((max(low, end), high, other))
        if begin < end:
            kept.append((begin, end, owner))
        self._owned = [item for item in kept if item[0] < item[1]]

    def owned(self, extent: Extent, owner: object) -> bool:
        begin, end = extent
        parts = (
            min(high, end) - max(low, begin)
            for low, high, other in self._owned
            if other is owner and low < end and begin < high
        )
        return sum(parts) == end - begin

    def copy(self) -> _Bytes:
        copied = _Bytes()
        copied._owned = list(self._owned)
        return copied

    def meet(self, other: _Bytes) -> bool:
        """Keep the owners that are the same in another memory; return whether any owner was lost."""
        before = sum(high - low for low, high, owner in self._owned if owner is not None)
        self._owned = [
            (max(low, begin), min(high, end), owner)
            for low, high, owner in self._owned
            for begin, end, also in other._owned
            if owner is also and owner is not None and low < end and begin < high
        ]
        return sum(high - low for low, high, _ in self._owned) < before


def prove(program: Program, plan: Plan) -> None:
    """Prove that no call reads bytes that another write has overwritten.

    Raises InternalError, naming the call and both tensors, if the plan puts something outside the arena or off its
    alignment, lets a kernel overwrite what it still reads, or lets a value be overwritten before its last read.
    Plans whose runs allocate need no proof.
    """
    if not plan.is_bounded:
        return
    memory = _Bytes()
    places = [(value, _extent(value.root, plan, "start")) for value in program.parameters]
    for value, held in places:
        if held is not None:
            memory.write(held, value.root)
    for value, held in places:  # which the caller may write in any order
        if held is not None and not memory.owned(held, value.root):
            raise InternalError(f"the input '{value.name}' shares bytes with another one")
    replay = _Replay(program, plan)
    while replay.run(memory.copy()):
        pass


class _Replay:
    """Abstract interpreter of a program's instructions on owners of bytes."""

    def __init__(self, program: Program, plan: Plan) -> None:
        self._program = program
        self._plan = plan
        self._arriving: dict[Label, _Bytes] = {}  # the joined memory of all jumps to each label
        self._passed: set[Label] = set()
        self._numbers = {call: index for index, call in enumerate(program.calls)}

    def run(self, memory: _Bytes) -> bool:
        """Run all instructions; return whether a backward jump changed the memory at its label."""
        changed, falls_through = False, True
        self._passed.clear()
        for index, item in enumerate(self._program.instructions):
            if isinstance(item, Label):
                self._passed.add(item)
                arriving = self._arriving.get(item)
                if arriving is not None:
                    if falls_through:
                        memory.meet(arriving)
                    else:
                        memory = arriving.copy()
                    falls_through = True
            if not falls_through:
                continue
            place = f"instruction {index}"
            if isinstance(item, KernelCall):
                place = f"call {self._numbers[item]} ({item.kernel.name})"
            for value in tir_program.sources_of(item):
                self._require(memory, value, place)
            if isinstance(item, KernelCall):
                scratch, output = (0, 0), _extent(item.output, self._plan, place)
                if nbytes := bounds(item.kernel.scratch_bytes)[1]:
                    begin, plan = self._plan.scratch_offsets[self._numbers[item]], self._plan
                    if begin < 0 or begin + nbytes > plan.size or begin % alignment_of(nbytes, SCRATCH_ALIGNMENT):
                        raise InternalError(
                            f"scratch lies outside the arena of {plan.size} bytes or is not aligned", place=place
                        )
                    scratch = begin, begin + nbytes
                _check_within_call(item, output, scratch, self._plan, place)
                memory.write(scratch, None)
                if output is not None:
                    memory.write(output, item.output.root)
            elif isinstance(item, Assign):
                self._assign(memory, item, place)
            elif isinstance(item, (Jump, Branch, BranchOnSymbols)):
                changed |= self._jump(memory, item.label if isinstance(item, Jump) else item.otherwise)
            falls_through = not isinstance(item, (Jump, Return))
        if falls_through:
            self._end(memory)
        return changed

    def _jump(self, memory: _Bytes, label: Label) -> bool:
        """Join the memory of a jump into its label; return whether another run is needed."""
        if label not in self._arriving:
            self._arriving[label] = memory.copy()
            return label in self._passed
        return self._arriving[label].meet(memory) and label in self._passed

    def _require(self, memory: _Bytes, value: Value, place: str) -> None:
        held = _extent(value, self._plan, place)
        if held is not None and not memory.owned(held, value.root):
            raise InternalError(f"the bytes of '{value.root.name}' are overwritten before they are read", place=place)

    def _assign(self, memory: _Bytes, item: Assign, place: str) -> None:
        for variable, source in zip(item.variables, item.sources, strict=True):
            self._require(memory, source, place)  # which an earlier pair may have overwritten
            target, held = _extent(variable, self._plan, place), _extent(source, self._plan, place)
            if target is None:
                continue
            if held is not None and _overlap(target, held):
                raise InternalError(f"'{variable.name}' overlaps '{source.name}', of which it is a copy", place=place)
            memory.write(target, variable)

    def _end(self, memory: _Bytes) -> None:
        """Check the outputs and states of a program without `Return`."""
        for value in self._program.outputs:
            held = _extent(value, self._plan, "end")
            if held is not None and not memory.owned(held, value.root):
                raise InternalError(f"the bytes of the output '{value.name}' are overwritten before the end")
        for state in self._program.states:
            held = _extent(state.before, self._plan, "end")
            is_same = held is not None and held == _extent(state.written, self._plan, "end")
            if held is None or not is_same or not memory.owned(held, state.written):
                raise InternalError(f"the next run does not find the new value of the state '{state.before.name}'")


def _extent(value: Value, plan: Plan, place: str) -> Extent | None:
    """Return the checked byte range of a value in the arena; None for values elsewhere."""
    root = value.root
    if root.kind not in ("intermediate", "state", "variable"):
        return None
    begin = plan.offset(value)
    base, size = (_STATES, plan.state_bytes) if root.kind == "state" else (0, plan.size)
    nbytes, whole = most_bytes(value), most_bytes(root)
    if value.root_start + nbytes > whole:
        if isinstance(value.nbytes, int):
            raise InternalError(f"'{value.name}' extends beyond '{root.name}'", place=place)
        nbytes = whole - value.root_start  # bounds of expressions are not exact
    if begin < 0 or begin + nbytes > size or begin % dtypes.nbytes(value.dtype):
        raise InternalError(f"'{value.name}' lies outside the arena of {size} bytes or is not aligned", place=place)
    return base + begin, base + begin + nbytes


def _check_within_call(call: KernelCall, output: Extent | None, scratch: Extent, plan: Plan, place: str) -> None:
    if output is not None and _overlap(output, scratch):
        raise InternalError(f"scratch overlaps the output '{call.output.name}'", place=place)
    for position, value in enumerate(call.inputs):
        held = _extent(value, plan, place)
        if held is None:
            continue
        if _overlap(held, scratch):
            raise InternalError(f"scratch overlaps the input '{value.name}'", place=place)
        if output is None or not _overlap(held, output):
            continue
        if held[0] == output[0] and position in call.kernel.inplace:
            continue
        least = overlap_distance(call.kernel, position)
        if least is None or not least.allows(held[0] - output[0]):
            raise InternalError(
                f"the output '{call.output.name}' overlaps the input '{value.name}', which is not allowed", place=place
            )


def _overlap(a: Extent, b: Extent) -> bool:
    return a[0] < b[1] and b[0] < a[1]
