"""Independent check of a memory plan by tracking the owner of each byte, instruction by instruction.

It is an abstract interpretation of the program: after a write the value owns its bytes, after use as scratch they have
no owner, and a read requires that the value still owns every byte. Where paths join, a byte keeps its owner only if it
is the same on every path; loops are iterated to a fixed point.
"""

from __future__ import annotations

from mlfc.errors import InternalError
from mlfc.memory.liveness import alignment_of, most_bytes
from mlfc.memory.plan import SCRATCH_ALIGNMENT, Plan
from mlfc.support import dtypes
from mlfc.support.dims import bounds
from mlfc.tir import program as tir_program
from mlfc.tir.inplace_overlap import overlap_distance
from mlfc.tir.program import Assign, Branch, BranchOnSymbols, Jump, KernelCall, Label, Program, Return, Value

Extent = tuple[int, int]
# start of the memory of states in the proof, beyond all offsets of an arena
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
