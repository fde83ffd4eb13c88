"""Reference semantics of loop-level code in numpy, against which printers are tested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir, visitor
from mlfc.tir.ir import Buffer, Expr, Launch, PrimFunc, Stmt, Var
from mlfc.tir.numpy_expr import (
    Array,
    EvalFrame,
    access_key,
    check_bounds,
    compiled,
    evaluate_expr,
    read_elements,
    undefined,
)
from mlfc.tir.parameters import with_numbers
from mlfc.tir.visitor import walk

_Numbers = npt.NDArray[np.int64]
# work-items that run at once, as their private memory is stored per item
_AT_ONCE = 1 << 16
_NOBODY, _SEVERAL = -1, -2


def run_launch(launch: Launch, memory: dict[Buffer, Array]) -> None:
    """Run all work-items of a launch on the contents of parameters and scratch, each statement for all items.

    Items may run in any order between barriers, so a data race between two items is an error even if this order hides
    it. Raises InternalError if an access is outside its buffer, or two work-items access the same element and one of
    them writes it.
    """
    written = {stmt.buffer for stmt in walk(launch.body) if isinstance(stmt, ir.Store)}
    watches = {buffer: _Watch(buffer.name, array.size) for buffer, array in memory.items() if buffer in written}
    groups = prod(launch.grid)
    together = max(1, _AT_ONCE // prod(launch.block))
    for first in range(0, groups, together):
        numbers = np.arange(first, min(first + together, groups))
        _SimtInterpreter(launch, numbers, memory, watches).run(launch.body)


class _Watch:
    """The writers and readers of each element of a buffer since the last barrier."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._writer = np.full(size, _NOBODY, np.int64)
        self._reader = np.full(size, _NOBODY, np.int64)

    def forget(self) -> None:
        self._writer[:] = self._reader[:] = _NOBODY

    def wrote(self, places: _Numbers, who: _Numbers) -> None:
        seen = self._reader[places]
        alone = self._may_touch(places, who) and bool(((seen == _NOBODY) | (seen == who)).all())
        if not alone or np.unique(places).size < places.size:
            raise InternalError(f"tir: two work-items access an element of {self._name}, and one of them writes it")
        self._writer[places] = who

    def read(self, places: _Numbers, who: _Numbers) -> None:
        if not self._may_touch(places, who):
            raise InternalError(f"tir: a work-item reads an element of {self._name} that another one writes")
        seen = self._reader[places]
        self._reader[places] = np.where((seen == _NOBODY) | (seen == who), who, _SEVERAL)
        order = np.argsort(places, kind="stable")
        same = (np.diff(places[order]) == 0) & (np.diff(who[order]) != 0)
        self._reader[places[order][1:][same]] = _SEVERAL

    def _may_touch(self, places: _Numbers, who: _Numbers) -> bool:
        owner = self._writer[places]
        return bool(((owner == _NOBODY) | (owner == who)).all())


class _ActiveItems(dict[Var, Array]):
    """The variables of the active work-items of a statement, each sliced when it is first read."""

    def __init__(self, values: Mapping[Var, Array], active: _Numbers) -> None:
        super().__init__()
        self._values, self._active = values, active

    def __missing__(self, var: Var) -> Array:
        value = self._values[var]
        self[var] = value[self._active] if value.ndim else value
        return self[var]

    def __contains__(self, var: object) -> bool:
        return var in self._values


class _SimtInterpreter:
    """Several groups of a launch: variables have one element per item, private buffers one row per item or group."""

    def __init__(
        self, launch: Launch, groups: _Numbers, memory: Mapping[Buffer, Array], watches: Mapping[Buffer, _Watch]
    ) -> None:
        self.memory = dict(memory)
        self.watches = dict(watches)
        self.owned: dict[Buffer, tuple[Buffer, Var]] = {}
        size = prod(launch.block)
        self._count, self._groups = groups.size * size, groups.size
        self._numbers = (groups[:, None] * size + np.arange(size)).ravel()
        self._item, self._group = Var("item"), Var("group")
        self._env: dict[Var, Array] = {
            self._item: np.arange(self._count, dtype=np.int32),
            self._group: np.repeat(np.arange(groups.size, dtype=np.int32), size),
        }
        for variables, extents, numbers in (
            (launch.groups, launch.grid, self._numbers // size),
            (launch.items, launch.block, self._numbers % size),
        ):
            rest = numbers
            for var, extent in zip(variables, extents, strict=True):
                self._env[var] = (rest % extent).astype(np.int32)
                rest = rest // extent
        self._active: _Numbers = np.arange(self._count)
        self._frame = EvalFrame(_ActiveItems(self._env, self._active), self.memory)
        self._codes: dict[int, Callable[[EvalFrame], list[Array]]] = {}

    def run(self, stmt: Stmt) -> None:
        if isinstance(stmt, ir.Seq):
            for item in stmt.stmts:
                self.run(item)
        elif isinstance(stmt, ir.For):
            self._loop(stmt)
        elif isinstance(stmt, ir.Store):
            self._store(stmt)
        elif isinstance(stmt, ir.If):
            self._branch(stmt)
        elif isinstance(stmt, ir.Let):
            self._bind(stmt.var, *self._values(stmt, stmt.value))
            self.run(stmt.body)
        elif isinstance(stmt, ir.Allocate):
            self._allocate(stmt.buffer)
            self.run(stmt.body)
        elif isinstance(stmt, ir.Barrier):
            if self._active.size != self._count:
                raise InternalError("tir: a barrier is reached by some work-items of a group, not by all")
            for own, _ in self.owned.values():
                if own in self.watches:
                    self.watches[own].forget()

    def _values(self, stmt: Stmt, *exprs: Expr) -> list[Array]:
        """Return the values of a statement's expressions for each active work-item."""
        code = self._codes.get(id(stmt))
        if code is None:
            code = self._codes[id(stmt)] = compiled(exprs, self._read)
        return code(self._frame)

    def _read(self, frame: EvalFrame, load: ir.Load, indices: list[Array], guarded: bool) -> Array:
        """Read private variables of each work-item and shared ones of its group."""
        buffer, own = load.buffer, self.owned.get(load.buffer)
        if own is not None:
            buffer, indices = own[0], [frame.env[own[1]], *indices]
        watch = self.watches.get(buffer)
        if watch is not None and not guarded:
            watch.read(*self.places(buffer, indices, load.dtype))
        return read_elements(self.memory[buffer], buffer, indices, load.dtype, guarded)

    def _choose(self) -> None:
        self._frame.env = _ActiveItems(self._env, self._active)

    def _bind(self, var: Var, value: Array) -> None:
        lanes = dtypes.lanes(var.dtype)
        whole = np.zeros((self._count,) if lanes == 1 else (self._count, lanes), dtypes.to_numpy(var.dtype))
        whole[self._active] = value
        self._env[var] = whole
        self._choose()

    @contextmanager
    def _only(self, holds: Array) -> Iterator[bool]:
        """Deactivate the items for which `holds` is false; yield whether any item is active."""
        before = self._active
        self._active = before[np.broadcast_to(holds, before.shape)]
        self._choose()
        try:
            yield bool(self._active.size)
        finally:
            self._active = before
            self._choose()

    def _branch(self, stmt: ir.If) -> None:
        (holds,) = self._values(stmt, stmt.condition)
        for body, taken in ((stmt.then, holds), (stmt.otherwise, ~holds)):
            if body is not None:
                with self._only(taken) as some:
                    if some:
                        self.run(body)

    def _loop(self, stmt: ir.For) -> None:
        (extents,) = self._values(stmt, stmt.extent)
        for index in range(0, int(extents.max(initial=0)), stmt.step):
            with self._only(extents > index):
                self._env[stmt.var] = np.asarray(index, np.int32)[()]
                self._choose()
                self.run(stmt.body)

    def _allocate(self, buffer: Buffer) -> None:
        shared = buffer.scope == "shared"
        rows = self._groups if shared else self._count
        own = Buffer(buffer.name, (rows, *buffer.shape), buffer.dtype, buffer.scope)
        self.owned[buffer] = own, self._group if shared else self._item
        self.memory[own] = undefined(own)
        if shared:
            self.watches[own] = _Watch(buffer.name, own.size)

    def _store(self, stmt: ir.Store) -> None:
        own = self.owned.get(stmt.buffer)
        buffer, head = (stmt.buffer, ()) if own is None else (own[0], (own[1],))
        *indices, value = self._values(stmt, *head, *stmt.indices, stmt.value)
        if dtypes.element(stmt.value.dtype) != dtypes.element(buffer.dtype):
            raise InternalError(f"tir: {stmt.value.dtype} is stored to {buffer.name} of {buffer.dtype}")
        check_bounds(buffer, indices, stmt.value.dtype)
        if buffer in self.watches:
            self.watches[buffer].wrote(*self.places(buffer, indices, stmt.value.dtype))
        if indices:  # one element per item, even if all are the same
            indices[0] = np.broadcast_to(indices[0], self._active.shape)
        else:
            value = value.ravel()[0]
        self.memory[buffer][access_key(buffer, indices, stmt.value.dtype)] = value

    def places(self, buffer: Buffer, indices: list[Array], dtype: str) -> tuple[_Numbers, _Numbers]:
        """Return the elements that active items access, and the item of each access."""
        wide = dtypes.lanes(buffer.dtype) == 1
        lanes = dtypes.lanes(dtype) if wide else 1
        flat = np.zeros(self._active.shape, np.int64)
        for extent, index in zip(buffer.shape, indices, strict=True):
            flat = flat * extent + index
        elements = (flat[:, None] + np.arange(lanes)).ravel()
        return elements, np.repeat(self._numbers[self._active], lanes)


__all__ = ["StepLimitError", "evaluate_expr", "run", "run_counted"]


_Run: TypeAlias = Callable[[], None]


class StepLimitError(Exception):
    """Exceeded limit on interpreted statements; caught where the limit is set."""


def run(
    prim: PrimFunc,
    inputs: Sequence[Array],
    constants: Sequence[Array] = (),
    *,
    numbers: Sequence[int] = (),
    step_limit: int | None = None,
) -> Array:
    """Interpret a function; `numbers` are the values of its symbols.

    Unwritten elements of the output are NaN, or the largest value of an integer dtype. Raises StepLimitError if the
    limit is reached.
    """
    prim = with_numbers(prim, numbers) if prim.symbols else prim
    return run_counted(prim, inputs, constants, step_limit=step_limit)[0]


def run_counted(
    prim: PrimFunc, inputs: Sequence[Array], constants: Sequence[Array] = (), *, step_limit: int | None = None
) -> tuple[Array, int]:
    """Interpret a static function like `run`; return the output and the number of executed statements."""
    memory: dict[Buffer, Array] = {}
    for buffer, given in zip((*prim.inputs, *prim.constants), (*inputs, *constants), strict=True):
        is_narrow = buffer.holds is not None and given.dtype == dtypes.to_numpy(buffer.holds)
        array = given.view(dtypes.to_numpy(buffer.dtype)) if is_narrow else given
        if array.shape != buffer.shape or array.dtype != dtypes.to_numpy(buffer.dtype):
            raise InternalError(
                f"tir: {buffer.name} takes {buffer.dtype}{buffer.shape}, not {array.dtype}{array.shape}"
            )
        memory[buffer] = array
    for buffer in (*prim.scratch, prim.output):
        memory[buffer] = undefined(buffer)
    machine = _StatementMaker(memory, step_limit)
    with np.errstate(all="ignore"):
        machine.code(prim.body)()
    result = memory[prim.output]
    return result.view(dtypes.to_numpy(prim.output.holds)) if prim.output.holds else result, machine.steps


class _StatementMaker:
    """Compiles statements to functions; loops that permit it run each statement as one array operation."""

    def __init__(self, memory: dict[Buffer, Array], step_limit: int | None) -> None:
        self._memory = memory
        self._env: dict[Var, Any] = {}
        self._frame = EvalFrame(self._env, memory)
        self.steps = 0
        self._step_limit = inf if step_limit is None else step_limit

    def code(self, stmt: Stmt) -> _Run:
        """Return the function that runs a statement and those below it."""
        run = self._action(stmt)

        def counted() -> None:
            self.steps += 1
            if self.steps > self._step_limit:
                raise StepLimitError
            run()

        return counted

    def _action(self, stmt: Stmt) -> _Run:
        makers: dict[type, Callable[[Any], _Run]] = {
            ir.Store: self._store, ir.Seq: self._sequence, ir.For: self._loop, ir.If: self._branch, ir.Let: self._let,
            ir.Allocate: self._allocate, ir.Parallel: self._parallel,
            ir.Launch: lambda launch: lambda: run_launch(launch, self._memory),
        }  # fmt: skip
        return makers.get(type(stmt), lambda _: lambda: None)(stmt)

    def _sequence(self, stmt: ir.Seq) -> _Run:
        items = [self.code(item) for item in stmt.stmts]

        def sequence() -> None:
            for item in items:
                item()

        return sequence

    def _branch(self, stmt: ir.If) -> _Run:
        condition, then = compiled([stmt.condition]), self.code(stmt.then)
        otherwise = None if stmt.otherwise is None else self.code(stmt.otherwise)

        def branch() -> None:
            (holds,) = condition(self._frame)
            if holds:
                then()
            elif otherwise is not None:
                otherwise()

        return branch

    def _allocate(self, stmt: ir.Allocate) -> _Run:
        body, buffer = self.code(stmt.body), stmt.buffer

        def allocate() -> None:
            self._memory[buffer] = undefined(buffer)
            body()

        return allocate

    def _let(self, stmt: ir.Let) -> _Run:
        body, var, value = self.code(stmt.body), stmt.var, compiled([stmt.value])

        def let() -> None:
            (self._env[var],) = value(self._frame)
            body()

        return let

    def _loop(self, stmt: ir.For) -> _Run:
        extent, body, var = compiled([stmt.extent]), self.code(stmt.body), stmt.var
        runs_as_arrays = stmt.kind == "vectorized" and _is_pointwise(stmt)
        until = None if stmt.until is None else compiled([stmt.until])
        part = None if stmt.part is None else compiled([*stmt.part])

        def loop_until() -> None:
            left = int(extent(self._frame)[0])
            assert until is not None
            for _ in range(left):
                body()
                if until(self._frame)[0]:
                    return
            raise InternalError(f"tir: the loop {var.name} did not end within {left} iterations")

        def loop() -> None:
            first, last = (0, int(extent(self._frame)[0])) if part is None else map(int, part(self._frame))
            indices = np.arange(first, last, stmt.step, dtype=np.int32)
            for index in [indices] if runs_as_arrays and indices.size else indices:
                self._env[var] = index
                body()

        return loop if until is None else loop_until

    def _parallel(self, stmt: ir.Parallel) -> _Run:
        count, body = compiled([stmt.count]), self.code(stmt.body)

        def run() -> None:
            for first, last in self.ranges(int(count(self._frame)[0])):
                for buffer in stmt.private:
                    self._memory[buffer] = undefined(buffer)
                self._env[stmt.first], self._env[stmt.last] = np.int32(first), np.int32(last)
                body()

        return run

    def ranges(self, count: int) -> Iterable[tuple[int, int]]:
        """Return the ranges of pieces that the threads of a parallel part run in order."""
        return [(0, count)]

    def _store(self, stmt: ir.Store) -> _Run:
        buffer, dtype = stmt.buffer, stmt.value.dtype
        if dtypes.element(dtype) != dtypes.element(buffer.dtype):
            raise InternalError(f"tir: {dtype} is stored to {buffer.name} of {buffer.dtype}")
        operands, shape = compiled([*stmt.indices, stmt.value]), buffer.shape
        is_element = dtypes.lanes(dtype) == 1

        def store() -> None:
            *indices, value = operands(self._frame)
            if is_element:  # the fast path of common stores
                for place, extent in zip(indices, shape, strict=True):
                    if place.ndim or not 0 <= int(place) < extent:
                        break
                else:
                    self._memory[buffer][(*indices,)] = value
                    return
            check_bounds(buffer, indices, dtype)
            self._memory[buffer][access_key(buffer, indices, dtype)] = value

        return store


def _is_pointwise(loop: ir.For) -> bool:
    """Tell whether the body only binds names and stores scalars to positions that differ in each iteration."""
    varying = {loop.var}
    for stmt in visitor.walk(loop.body):
        if not isinstance(stmt, (ir.Seq, ir.Store, ir.Let, ir.Comment)):
            return False
        nodes = [*visitor.own_nodes(stmt)]
        if any(dtypes.lanes(node.dtype) > 1 for node in nodes):
            return False
        if isinstance(stmt, ir.Let) and any(node in varying for node in nodes):
            varying.add(stmt.var)
        places = stmt.indices if isinstance(stmt, ir.Store) else ()
        if places and not any(node in varying for index in places for node in visitor.walk_expr(index)):
            return False
    return True
