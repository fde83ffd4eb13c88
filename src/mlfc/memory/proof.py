"""An independent check of a memory plan: who owns each byte, followed call by call.

The check knows nothing of live ranges, clusters or orders. It runs the program with names in place of
numbers: a write makes its bytes the value's, scratch makes them nobody's, and a read must find every byte
still owned by what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfc.errors import InternalError
from mlfc.memory.liveness import alignment_of
from mlfc.memory.plan import SCRATCH_ALIGNMENT, Plan
from mlfc.support import dtypes
from mlfc.tir.inplace_overlap import overlap_distance
from mlfc.tir.program import KernelCall, Program, Value

Extent = tuple[int, int]
# beyond all offsets of an arena: where the memory of states begins for the proof
_STATES = 1 << 48


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


def prove(program: Program, plan: Plan) -> None:
    """Prove that no call reads bytes that something else has overwritten.

    Raises InternalError, naming the call and both tensors, if the plan puts something outside the arena or off its
    alignment, lets a kernel overwrite what it still reads, or lets a value be overwritten before its last read.
    """
    memory = _Bytes()
    for value in _given(program):
        held = _extent(value.root, plan, "start")
        if held is not None:
            memory.write(held, value.root)
    for value in _given(program):  # which the caller may write in any order
        held = _extent(value.root, plan, "start")
        if held is not None and not memory.owned(held, value.root):
            raise InternalError(f"the input '{value.name}' shares bytes with another one")
    for index, call in enumerate(program.calls):
        place = f"call {index} ({call.kernel.name})"
        scratch = _scratch(call, index, plan, place)
        output = _extent(call.output, plan, place)
        for value in call.inputs:
            held = _extent(value, plan, place)
            if held is not None and not memory.owned(held, value.root):
                raise InternalError(
                    f"the bytes of '{value.root.name}' are overwritten before they are read", place=place
                )
        _check_within_call(call, output, scratch, plan, place)
        memory.write(scratch, None)
        if output is not None:
            memory.write(output, call.output.root)
    for value in program.outputs:
        held = _extent(value, plan, "end")
        if held is not None and not memory.owned(held, value.root):
            raise InternalError(f"the bytes of the output '{value.name}' are overwritten before the end")
    for state in program.states:
        held = _extent(state.before, plan, "end")
        if held != _extent(state.written, plan, "end") or held is None or not memory.owned(held, state.written):
            raise InternalError(f"the next run does not find the new value of the state '{state.before.name}'")


def _given(program: Program) -> Iterator[Value]:
    """Yield what has its value before the first call: inputs, and what the run before left."""
    yield from program.inputs
    yield from (state.before for state in program.states)


def _extent(value: Value, plan: Plan, place: str) -> Extent | None:
    """Return the bytes of a value in the arena, checked; None for what lies elsewhere."""
    if value.root.kind not in ("intermediate", "state"):
        return None
    begin = plan.offset(value)
    base, size = (_STATES, plan.state_bytes) if value.root.kind == "state" else (0, plan.size)
    if begin < 0 or begin + value.nbytes > size or begin % dtypes.nbytes(value.dtype):
        raise InternalError(f"'{value.name}' lies outside the arena of {size} bytes or is not aligned", place=place)
    begin += base
    if value.root_start + value.nbytes > value.root.nbytes:
        raise InternalError(f"'{value.name}' is no part of '{value.root.name}'", place=place)
    return begin, begin + value.nbytes


def _scratch(call: KernelCall, index: int, plan: Plan, place: str) -> Extent:
    nbytes = call.kernel.scratch_bytes
    if not nbytes:
        return 0, 0
    begin = plan.scratch_offsets[index]
    if begin < 0 or begin + nbytes > plan.size or begin % alignment_of(nbytes, SCRATCH_ALIGNMENT):
        raise InternalError(f"scratch lies outside the arena of {plan.size} bytes or is not aligned", place=place)
    return begin, begin + nbytes


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
        least = overlap_distance(call.kernel, position)
        if least is not None and least.allows(held[0] - output[0]):
            continue
        if held[0] != output[0] or position not in call.kernel.inplace:
            raise InternalError(
                f"the output '{call.output.name}' overlaps the input '{value.name}', which it may not", place=place
            )


def _overlap(a: Extent, b: Extent) -> bool:
    return a[0] < b[1] and b[0] < a[1]
