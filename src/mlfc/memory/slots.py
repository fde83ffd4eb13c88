"""Memory of a model that runs step by step: which values share a storage, and where it lies if all sizes are bounded.

With bounds on every symbol each storage has a place in one arena, whose size is the worst case. Without, storages are
allocated when the model runs: those whose sizes follow from the inputs' extents at its start, and values take turns in
them where the sizes are known to suffice; others where their values are computed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

from mlfc.memory.plan import NO_PLAN, SCRATCH_NAME, Block, Plan, Storage
from mlfc.memory.reuse import allows_inplace
from mlfc.support.dims import LARGEST, Extent, bounds, symbols_of
from mlfc.tir.program import (
    Assign,
    BranchOnSymbols,
    Define,
    Instruction,
    Jump,
    KernelCall,
    Label,
    ListOperation,
    Program,
    Return,
    Value,
    sources_of,
)

ALIGNMENT = 64
_MOST_ARENA_BYTES = (1 << 31) - 1


@dataclass(eq=False)
class _Life:
    """What needs memory, and the first and last step that it does."""

    name: str
    nbytes: Extent
    first: int
    last: int
    storage: Storage | None = None
    device: str | None = None


def plan_instructions(program: Program) -> Plan:
    """Return the plan of a dynamic program; deterministic."""
    steps = program.instructions
    lives, scratch = _lives(steps)
    everything = [*lives.values(), *chain(*scratch.values())]
    # lists keep tensors for as long as they like
    holds_lists = any(isinstance(step, ListOperation) for step in steps)
    runs_on_host = not any(call.kernel.device for call in program.calls)
    if runs_on_host and not holds_lists and all(_is_bounded(life.nbytes) for life in everything):
        plan = _in_arena(steps, lives, scratch)
        if plan.size <= _MOST_ARENA_BYTES:
            return plan
    return _Allocations(steps, lives).plan(scratch)


def _live(blocks: Sequence[Block], calls: int) -> tuple[int, ...]:
    """Return the bytes of the arena that are live during each call."""
    changes = [0] * (calls + 1)
    for block in blocks:
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
) -> tuple[dict[Value, _Life], dict[KernelCall, list[_Life]]]:
    lives: dict[Value, _Life] = {}
    scratch: dict[KernelCall, list[_Life]] = {}
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
    for begin, end in _loops(steps):
        for life in lives.values():
            if life.first < begin <= life.last < end:
                life.last = end
    return lives, scratch


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
) -> Plan:
    starts = parts(steps)
    placed: list[tuple[int, int, _Life]] = []

    def size(life: _Life) -> int:
        return max(0, bounds(life.nbytes)[1])

    waiting = sorted((*lives.values(), *chain(*scratch.values())), key=lambda life: (-size(life), life.first))
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
        life.storage = Storage(size(life), offset, part=part_of(starts, life.first))
    blocks = _blocks(steps, placed)
    live = _live(blocks, sum(isinstance(step, KernelCall) for step in steps))
    most = max(live, default=0)
    return replace(
        NO_PLAN,
        size=max((end for _, end, _ in placed), default=0),
        alignment=ALIGNMENT,
        lower_bound=most,
        live=live,
        peak_call=live.index(most) if live else None,
        storages=tuple(_storage(life) for _, _, life in placed),
        values={value: _storage(life) for value, life in lives.items()},
        scratch={call: tuple(map(_storage, found)) for call, found in scratch.items()},
        blocks=blocks,
    )


def _blocks(steps: Sequence[Instruction], placed: Sequence[tuple[int, int, _Life]]) -> tuple[Block, ...]:
    """Return what is live during calls, by first call; variables that live between two calls are in none."""
    calls = [at for at, step in enumerate(steps) if isinstance(step, KernelCall)]
    found = []
    for begin, end, life in placed:
        first, last = bisect_left(calls, life.first), bisect_right(calls, life.last) - 1
        if first <= last:
            found.append(Block(life.name, end - begin, begin, first, last, None, ()))
    return tuple(sorted(found, key=lambda block: (block.first, block.offset)))


def _storage(life: _Life) -> Storage:
    assert life.storage is not None
    return life.storage


class _Allocations:
    """Storages that a run allocates, each shared by values one after the other where their sizes are comparable."""

    def __init__(self, steps: Sequence[Instruction], lives: Mapping[Value, _Life]) -> None:
        self._steps = steps
        self._lives = lives
        # symbols that are dimensions of inputs, and so known at the start
        self._known = {
            step.symbol
            for step in steps
            if isinstance(step, Define) and step.axis is not None and step.source.kind == "input"
        }
        self.storages: list[Storage] = []
        self.values: dict[Value, Storage] = {}
        self.scratch: dict[KernelCall, tuple[Storage, ...]] = {}

    def plan(self, scratch: Mapping[KernelCall, Sequence[_Life]]) -> Plan:
        """Return the plan."""
        starts = parts(self._steps)
        keeping = (Assign, Return, ListOperation)
        kept = {source.root for step in self._steps if isinstance(step, keeping) for source in sources_of(step)}
        for at, step in enumerate(self._steps):
            if isinstance(step, ListOperation) and step.output.kind == "intermediate":
                self.values[step.output] = self._new(self._lives[step.output], is_lasting=False)
            if not isinstance(step, KernelCall):
                continue
            part = part_of(starts, at)
            if step in scratch:
                self.scratch[step] = tuple(self._shared(life, part) for life in scratch[step])
            root = step.output.root
            if root.kind != "intermediate" or root in self.values:
                continue
            if root in kept:
                self.values[root] = self._new(self._lives[root], is_lasting=False)
            else:
                self.values[root] = self._in_place(step, at) or self._shared(self._lives[root], part)
        return replace(
            NO_PLAN, storages=tuple(self.storages), values=self.values, scratch=self.scratch, is_bounded=False
        )

    def _new(self, life: _Life, *, is_lasting: bool, part: int = 0) -> Storage:
        self.storages.append(Storage(life.nbytes, None, is_lasting, life.last, part, life.device))
        return self.storages[-1]

    def _in_place(self, call: KernelCall, at: int) -> Storage | None:
        """Return the storage of an input that ends with this call and may become the output."""
        life = self._lives[call.output.root]
        for position in call.kernel.inplace:
            root = call.inputs[position].root
            storage = self.values.get(root)
            if storage is None or storage.device != life.device or not storage.is_lasting:
                continue
            if self._lives[root].last != at or storage.last != at:
                continue
            if root.nbytes == life.nbytes and allows_inplace(call, root):
                storage.last = life.last
                return storage
        return None

    def _shared(self, life: _Life, part: int) -> Storage:
        """Return a storage that is free and known to be large enough, or may become so; else a new one."""
        if not set(symbols_of([life.nbytes])) <= self._known:
            return self._new(life, is_lasting=False)
        free = [
            item
            for item in self.storages
            if item.is_lasting and item.part == part and item.device == life.device and item.last < life.first
        ]
        fitting = [item for item in free if _covers(item.nbytes, life.nbytes)]
        growing = [item for item in free if _covers(life.nbytes, item.nbytes)]
        # the one with the least that the value leaves unused, as far as is known
        closest = sorted(fitting, key=lambda item: bounds(item.nbytes - life.nbytes)[0])[:1]
        storage = next(iter(closest + growing[-1:]), None)
        if storage is None:
            return self._new(life, is_lasting=True, part=part)
        if storage not in fitting:
            storage.nbytes = life.nbytes
        storage.last = life.last
        return storage


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
