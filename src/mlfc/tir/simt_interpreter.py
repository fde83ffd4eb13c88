"""The meaning of launches in numpy: all work-items of many groups take each statement together.

Items may run in any order between barriers, so what two of them do to one element without a barrier between is an error
here, whatever this order would make of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.ir import Buffer, Expr, Launch, Stmt, Var
from mlfc.tir.numpy_expr import Array, EvalFrame, access_key, check_bounds, compiled, read_elements, undefined
from mlfc.tir.visitor import walk

_Numbers = npt.NDArray[np.int64]
# work-items that run at once: what they hold is kept an item
_AT_ONCE = 1 << 16
_NOBODY, _SEVERAL = -1, -2


def run_launch(launch: Launch, memory: dict[Buffer, Array]) -> None:
    """Run all work-items of a launch on the contents of parameters and scratch.

    Raises InternalError if an access leaves its buffer, or two work-items meet in one element and one of them writes
    it.
    """
    written = {stmt.buffer for stmt in walk(launch.body) if isinstance(stmt, ir.Store)}
    watches = {buffer: _Watch(buffer.name, array.size) for buffer, array in memory.items() if buffer in written}
    groups = prod(launch.grid)
    together = max(1, _AT_ONCE // prod(launch.block))
    for first in range(0, groups, together):
        numbers = np.arange(first, min(first + together, groups))
        _SimtInterpreter(launch, numbers, memory, watches).run(launch.body)


class _Watch:
    """Who wrote and who read each element of a buffer since the last barrier."""

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
            raise InternalError(f"tir: two work-items meet in an element of {self._name}, and one of them writes it")
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
    """The variables of the work-items that take part in a statement, each cut out when it is first read."""

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
    """Some groups of a launch: variables have one element an item, private buffers one row an item or group."""

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
        """Return what a statement's expressions are for each active work-item."""
        code = self._codes.get(id(stmt))
        if code is None:
            code = self._codes[id(stmt)] = compiled(exprs, self._read)
        return code(self._frame)

    def _read(self, frame: EvalFrame, load: ir.Load, indices: list[Array], guarded: bool) -> Array:
        """Read each work-item's own variables and its group's shared ones."""
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
        """Let only those active items go on for which `holds`; tell whether there are any."""
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
        if indices:  # an element for each item, be it the same
            indices[0] = np.broadcast_to(indices[0], self._active.shape)
        else:
            value = value.ravel()[0]
        self.memory[buffer][access_key(buffer, indices, stmt.value.dtype)] = value

    def places(self, buffer: Buffer, indices: list[Array], dtype: str) -> tuple[_Numbers, _Numbers]:
        """Return the elements that active items access, and which item each of them is accessed by."""
        wide = dtypes.lanes(buffer.dtype) == 1
        lanes = dtypes.lanes(dtype) if wide else 1
        flat = np.zeros(self._active.shape, np.int64)
        for extent, index in zip(buffer.shape, indices, strict=True):
            flat = flat * extent + index
        elements = (flat[:, None] + np.arange(lanes)).ravel()
        return elements, np.repeat(self._numbers[self._active], lanes)
