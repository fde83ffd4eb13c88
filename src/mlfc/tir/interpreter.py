"""The meaning of loop-level code in numpy: the reference that printers are tested against.

`numpy_expr` evaluates expressions, `simt_interpreter` runs launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, TypeAlias

import numpy as np

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir, visitor
from mlfc.tir.ir import Buffer, PrimFunc, Stmt, Var
from mlfc.tir.numpy_expr import Array, EvalFrame, access_key, check_bounds, compiled, evaluate_expr, undefined
from mlfc.tir.simt_interpreter import run_launch
from mlfc.tir.specialize import with_numbers

__all__ = ["StepLimitError", "evaluate_expr", "run", "run_counted"]


_Run: TypeAlias = Callable[[], None]


class StepLimitError(Exception):
    """Interpretation took more statements than its caller allowed; caught where the limit is set."""


def run(
    prim: PrimFunc,
    inputs: Sequence[Array],
    constants: Sequence[Array] = (),
    *,
    numbers: Sequence[int] = (),
    step_limit: int | None = None,
) -> Array:
    """Interpret a function; `numbers` are what its symbols are.

    What the function does not write is NaN in the output, or the largest value of the dtype.
    Raises StepLimitError if the limit is reached.
    """
    prim = with_numbers(prim, numbers) if prim.symbols else prim
    return run_counted(prim, inputs, constants, step_limit=step_limit)[0]


def run_counted(
    prim: PrimFunc, inputs: Sequence[Array], constants: Sequence[Array] = (), *, step_limit: int | None = None
) -> tuple[Array, int]:
    """Interpret a function of fixed extents as `run` does; return the output and how many statements ran."""
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
        machine.run(prim.body)
    result = memory[prim.output]
    return result.view(dtypes.to_numpy(prim.output.holds)) if prim.output.holds else result, machine.steps


class _StatementMaker:
    """Makes functions of statements; loops that allow it run as one array operation a statement."""

    def __init__(self, memory: dict[Buffer, Array], step_limit: int | None) -> None:
        self._memory = memory
        self._env: dict[Var, Any] = {}
        self._frame = EvalFrame(self._env, memory)
        self.steps = 0
        self._step_limit = inf if step_limit is None else step_limit

    def run(self, stmt: Stmt) -> None:
        """Run one statement and what is below it."""
        self._code(stmt)()

    def _code(self, stmt: Stmt) -> _Run:
        """Return the function that runs a statement and what is below it."""
        run = self._action(stmt)

        def counted() -> None:
            self.steps += 1
            if self.steps > self._step_limit:
                raise StepLimitError
            run()

        return counted

    def _action(self, stmt: Stmt) -> _Run:
        if isinstance(stmt, ir.Store):
            return self._store(stmt)
        if isinstance(stmt, ir.Seq):
            return self._sequence(stmt)
        if isinstance(stmt, ir.For):
            return self._loop(stmt)
        if isinstance(stmt, ir.If):
            return self._branch(stmt)
        if isinstance(stmt, (ir.Let, ir.Allocate)):
            return self._binding(stmt)
        if isinstance(stmt, ir.Parallel):
            return self._parallel(stmt)
        if isinstance(stmt, ir.Launch):
            return lambda: run_launch(stmt, self._memory)
        return lambda: None

    def _sequence(self, stmt: ir.Seq) -> _Run:
        items = [self._code(item) for item in stmt.stmts]

        def sequence() -> None:
            for item in items:
                item()

        return sequence

    def _branch(self, stmt: ir.If) -> _Run:
        condition, then = compiled([stmt.condition]), self._code(stmt.then)
        otherwise = None if stmt.otherwise is None else self._code(stmt.otherwise)

        def branch() -> None:
            (holds,) = condition(self._frame)
            if holds:
                then()
            elif otherwise is not None:
                otherwise()

        return branch

    def _binding(self, stmt: ir.Let | ir.Allocate) -> _Run:
        body = self._code(stmt.body)
        if isinstance(stmt, ir.Allocate):
            buffer = stmt.buffer

            def allocate() -> None:
                self._memory[buffer] = undefined(buffer)
                body()

            return allocate
        var, value = stmt.var, compiled([stmt.value])

        def let() -> None:
            (self._env[var],) = value(self._frame)
            body()

        return let

    def _loop(self, stmt: ir.For) -> _Run:
        extent, body, var = compiled([stmt.extent]), self._code(stmt.body), stmt.var
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
            raise InternalError(f"tir: the loop {var.name} did not end in {left} iterations, as was promised")

        def loop() -> None:
            first, last = (0, int(extent(self._frame)[0])) if part is None else map(int, part(self._frame))
            indices = np.arange(first, last, stmt.step, dtype=np.int32)
            for index in [indices] if runs_as_arrays and indices.size else indices:
                self._env[var] = index
                body()

        return loop if until is None else loop_until

    def _parallel(self, stmt: ir.Parallel) -> _Run:
        count, body = compiled([stmt.count]), self._code(stmt.body)

        def run() -> None:
            for first, last in self.ranges(int(count(self._frame)[0])):
                for buffer in stmt.private:
                    self._memory[buffer] = undefined(buffer)
                self._env[stmt.first], self._env[stmt.last] = np.int32(first), np.int32(last)
                body()

        return run

    def ranges(self, count: int) -> Iterable[tuple[int, int]]:
        """Return the ranges of pieces that the threads of a parallel part take, one after another."""
        return [(0, count)]

    def _store(self, stmt: ir.Store) -> _Run:
        buffer, dtype = stmt.buffer, stmt.value.dtype
        if dtypes.element(dtype) != dtypes.element(buffer.dtype):
            raise InternalError(f"tir: {dtype} is stored to {buffer.name} of {buffer.dtype}")
        operands = compiled([*stmt.indices, stmt.value])

        def store() -> None:
            *indices, value = operands(self._frame)
            check_bounds(buffer, indices, dtype)
            self._memory[buffer][access_key(buffer, indices, dtype)] = value

        return store


def _is_pointwise(loop: ir.For) -> bool:
    """Tell whether the body only binds names and stores scalars to places that differ in each iteration."""
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
