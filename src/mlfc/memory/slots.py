"""Memory of a model that runs step by step: which values share a storage, and where it lies if all sizes are bounded.

With bounds on every symbol each storage has a place in one arena, whose size is the worst case. Without, storages are
allocated when the model runs: those whose sizes follow from the inputs' extents at its start, and values take turns in
them where the sizes are known to suffice; others where their values are computed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

from mlfc.memory.blocks import Block
from mlfc.memory.planner import SCRATCH_NAME
from mlfc.memory.reuse import allows_inplace
from mlfc.support.dims import LARGEST, Extent, Symbol, bounds, symbols_of
from mlfc.tir.program import (
    Assign,
    BranchOnSymbols,
    Define,
    Instruction,
    Jump,
    KernelCall,
    Label,
    ListOperation,
    Return,
    Value,
    sources_of,
)

ALIGNMENT = 64
_MOST_ARENA_BYTES = (1 << 31) - 1


@dataclass(eq=False)
class Slot:
    """A storage."""

    nbytes: Extent
    offset: int | None = None  # in the arena
    # whether it is there from the start of the run; else it is allocated anew for each value that is computed
    is_lasting: bool = True
    last: int = -1  # the step after which it is free
    # the step where the part of the run begins in which it is used: 0, or the mark behind what certain extents have
    part: int = 0
    device: str | None = None  # the kind of device that it is on; None for the host


@dataclass(eq=False)
class SlotPlan:
    """The storages of a model, and what is in which."""

    slots: list[Slot] = field(default_factory=list)
    values: dict[Value, Slot] = field(default_factory=dict)  # of values that own their bytes
    scratch: dict[KernelCall, tuple[Slot, ...]] = field(default_factory=dict)
    # copies that an `Assign` needs of variables that it writes and reads, by its place among the sources
    spare: dict[tuple[Assign, int], Slot] = field(default_factory=dict)
    arena_bytes: int = -1  # -1 where storages are allocated
    # what is in the arena during which calls, each block as large as bounds allow; none where storages are allocated
    blocks: tuple[Block, ...] = ()

    @property
    def is_bounded(self) -> bool:
        """Whether everything has a place in one arena."""
        return self.arena_bytes >= 0


@dataclass(eq=False)
class _Life:
    """What needs memory, and the first and last step that it does."""

    name: str
    nbytes: Extent
    first: int
    last: int
    slot: Slot | None = None
    device: str | None = None


def plan_slots(steps: Sequence[Instruction]) -> SlotPlan:
    """Return the storages of a model's values and scratch; deterministic."""
    lives, scratch, spare = _lives(steps)
    everything = [*lives.values(), *chain(*scratch.values()), *spare.values()]
    holds_lists = any(isinstance(step, ListOperation) for step in steps)  # which keep tensors for as long as they like
    runs_on_host = not any(isinstance(step, KernelCall) and step.kernel.device for step in steps)
    if runs_on_host and not holds_lists and all(_is_bounded(life.nbytes) for life in everything):
        plan = _in_arena(steps, lives, scratch, spare)
        if plan.arena_bytes <= _MOST_ARENA_BYTES:
            return plan
    return _allocated(steps, lives, scratch)


def live_in(plan: SlotPlan, calls: int) -> tuple[int, ...]:
    """Return the bytes of the arena that are live during each of so many calls; none where storages are allocated."""
    if not plan.is_bounded:
        return ()
    changes = [0] * (calls + 1)
    for block in plan.blocks:
        changes[block.first] += block.nbytes
        changes[block.last + 1] -= block.nbytes
    return tuple(accumulate(changes[:calls]))


def parts(steps: Sequence[Instruction]) -> list[int]:
    """Return where the parts of a run begin, of which each ends the run: one for each set of extents."""
    others = {step.otherwise for step in steps if isinstance(step, BranchOnSymbols)}
    return [0, *(at for at, step in enumerate(steps) if isinstance(step, Label) and step in others)]


def part_of(starts: Sequence[int], at: int) -> int:
    """Return where the part begins in which a step is."""
    return max(start for start in starts if start <= at)


def _is_bounded(nbytes: Extent) -> bool:
    return all(symbol.high < LARGEST for symbol in symbols_of([nbytes]))


def _lives(
    steps: Sequence[Instruction],
) -> tuple[dict[Value, _Life], dict[KernelCall, list[_Life]], dict[tuple[Assign, int], _Life]]:
    lives: dict[Value, _Life] = {}
    scratch: dict[KernelCall, list[_Life]] = {}
    spare: dict[tuple[Assign, int], _Life] = {}
    for at, step in enumerate(steps):
        for value in sources_of(step):
            if value.root in lives:
                lives[value.root].last = at
        for value in _written(step):
            life = lives.setdefault(
                value.root, _Life(value.root.name, value.root.nbytes, at, at, device=value.root.device)
            )
            life.last = at
        if isinstance(step, KernelCall) and step.kernel.scratch:
            kernel = step.kernel
            scratch[step] = [_Life(SCRATCH_NAME, nbytes, at, at, device=kernel.device) for nbytes in kernel.workspaces]
        if isinstance(step, Assign):
            targets = set(step.variables)
            for index, source in enumerate(step.sources):
                if source.root in targets:
                    spare[step, index] = _Life(source.root.name, source.root.nbytes, at, at)
    for begin, end in _loops(steps):
        for life in lives.values():
            if life.first < begin <= life.last < end:
                life.last = end
    return lives, scratch, spare


def _written(step: Instruction) -> tuple[Value, ...]:
    if isinstance(step, KernelCall):
        return (step.output,) if step.output.root.kind == "intermediate" else ()
    if isinstance(step, ListOperation):
        return (step.output,) if step.output.kind == "intermediate" else ()
    return tuple(item for item in step.variables if item.kind != "list") if isinstance(step, Assign) else ()


def _loops(steps: Sequence[Instruction]) -> list[tuple[int, int]]:
    """Return where loops begin and end, inner ones first."""
    marks: dict[Label, int] = {}
    found = []
    for at, step in enumerate(steps):
        if isinstance(step, Label):
            marks[step] = at
        elif isinstance(step, Jump) and step.label in marks:
            found.append((marks[step.label], at))
    return sorted(found, key=lambda loop: loop[1] - loop[0])


def _in_arena(
    steps: Sequence[Instruction],
    lives: Mapping[Value, _Life],
    scratch: Mapping[KernelCall, Sequence[_Life]],
    spare: Mapping[tuple[Assign, int], _Life],
) -> SlotPlan:
    plan, starts = SlotPlan(), parts(steps)
    placed: list[tuple[int, int, _Life]] = []

    def size(life: _Life) -> int:
        return max(0, bounds(life.nbytes)[1])

    waiting = sorted(
        (*lives.values(), *chain(*scratch.values()), *spare.values()), key=lambda life: (-size(life), life.first)
    )
    for life in waiting:
        offset = 0
        beside = sorted(
            (begin, end) for begin, end, other in placed if other.first <= life.last and life.first <= other.last
        )
        for begin, end in beside:
            if offset + size(life) <= begin:
                break
            offset = max(offset, -(-end // ALIGNMENT) * ALIGNMENT)
        placed.append((offset, offset + size(life), life))
        life.slot = Slot(size(life), offset, part=part_of(starts, life.first))
        plan.slots.append(life.slot)
    plan.arena_bytes = max((end for _, end, _ in placed), default=0)
    plan.values = {value: _slot(life) for value, life in lives.items()}
    plan.scratch = {step: tuple(map(_slot, found)) for step, found in scratch.items()}
    plan.spare = {key: _slot(life) for key, life in spare.items()}
    plan.blocks = _blocks(steps, placed)
    return plan


def _blocks(steps: Sequence[Instruction], placed: Sequence[tuple[int, int, _Life]]) -> tuple[Block, ...]:
    """Return what is live during calls, by first call; variables that live between two calls are in none."""
    calls = [at for at, step in enumerate(steps) if isinstance(step, KernelCall)]
    found = []
    for begin, end, life in placed:
        first, last = bisect_left(calls, life.first), bisect_right(calls, life.last) - 1
        if first <= last:
            found.append(Block(life.name, end - begin, begin, first, last, None, ()))
    return tuple(sorted(found, key=lambda block: (block.first, block.offset)))


def _slot(life: _Life) -> Slot:
    assert life.slot is not None
    return life.slot


def _allocated(
    steps: Sequence[Instruction], lives: Mapping[Value, _Life], scratch: Mapping[KernelCall, Sequence[_Life]]
) -> SlotPlan:
    plan = SlotPlan()
    known, starts = _from_inputs(steps), parts(steps)
    keeping = (Assign, Return, ListOperation)
    kept = {source.root for step in steps if isinstance(step, keeping) for source in sources_of(step)}
    for at, step in enumerate(steps):
        if isinstance(step, ListOperation) and step.output.kind == "intermediate":
            plan.values[step.output] = _new(plan, lives[step.output], is_lasting=False)
        if not isinstance(step, KernelCall):
            continue
        if step in scratch:
            part = part_of(starts, at)
            plan.scratch[step] = tuple(_shared(plan, life, known, part) for life in scratch[step])
        root = step.output.root
        if root.kind != "intermediate" or root in plan.values:
            continue
        life = lives[root]
        if root in kept:
            plan.values[root] = _new(plan, life, is_lasting=False)
            continue
        plan.values[root] = _in_place(plan, step, life, lives, at) or _shared(plan, life, known, part_of(starts, at))
    return plan


def _from_inputs(steps: Sequence[Instruction]) -> set[Symbol]:
    """Return the symbols that are extents of inputs, and so known at the start."""
    found = set()
    for step in steps:
        if isinstance(step, Define) and step.axis is not None and step.source.kind == "input":
            found.add(step.symbol)
    return found


def _new(plan: SlotPlan, life: _Life, *, is_lasting: bool, part: int = 0) -> Slot:
    slot = Slot(life.nbytes, None, is_lasting, life.last, part, life.device)
    plan.slots.append(slot)
    return slot


def _in_place(plan: SlotPlan, call: KernelCall, life: _Life, lives: Mapping[Value, _Life], at: int) -> Slot | None:
    """Return the storage of an input that ends with this call and may become the output."""
    for position in call.kernel.inplace:
        root = call.inputs[position].root
        slot = plan.values.get(root)
        if (
            slot is None
            or slot.device != life.device
            or not slot.is_lasting
            or lives[root].last != at
            or slot.last != at
        ):
            continue
        if root.nbytes == life.nbytes and allows_inplace(call, root):
            slot.last = life.last
            return slot
    return None


def _shared(plan: SlotPlan, life: _Life, known: set[Symbol], part: int) -> Slot:
    """Return a storage that is free and known to be large enough, or may become so; else a new one."""
    if not set(symbols_of([life.nbytes])) <= known:
        return _new(plan, life, is_lasting=False)
    free = [
        slot
        for slot in plan.slots
        if slot.is_lasting and slot.part == part and slot.device == life.device and slot.last < life.first
    ]
    fitting = [slot for slot in free if _covers(slot.nbytes, life.nbytes)]
    growing = [slot for slot in free if _covers(life.nbytes, slot.nbytes)]
    slot = next(iter(_closest(fitting, life) + growing[-1:]), None)
    if slot is None:
        return _new(plan, life, is_lasting=True, part=part)
    if slot not in fitting:
        slot.nbytes = life.nbytes
    slot.last = life.last
    return slot


def _closest(slots: Sequence[Slot], life: _Life) -> list[Slot]:
    """Return the storage with the least that a value leaves unused, as far as is known."""
    return sorted(slots, key=lambda slot: bounds(slot.nbytes - life.nbytes)[0])[:1]


def _covers(large: Extent, small: Extent) -> bool:
    return bounds(large - small)[0] >= 0


def ends_with(steps: Sequence[Instruction], at: int, value: Value) -> bool:
    """Tell whether no step reads a list after step `at`, which makes another one of it.

    A variable may be read again behind the next step that writes it: then it is that other list.
    """
    reads = [index for index, step in enumerate(steps) if index > at and value in sources_of(step)]
    writes = [
        index for index, step in enumerate(steps) if index > at and isinstance(step, Assign) and value in step.variables
    ]
    if writes:
        return not any(index < writes[0] for index in reads)
    return not reads and not any(begin < at < end for begin, end in _loops(steps))
