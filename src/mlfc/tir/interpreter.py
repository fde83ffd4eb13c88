"""The meaning of loop-level code in numpy: the reference that printers are tested against.

`numpy_expr` evaluates expressions, `simt_interpreter` runs launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir, visitor
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Stmt, Var
from mlfc.tir.numpy_expr import Array, Evaluator, access_key, check_bounds, evaluate_expr, undefined
from mlfc.tir.simt_interpreter import run_launch

__all__ = ["StepLimitError", "evaluate_expr", "run", "run_counted"]


class StepLimitError(Exception):
    """Interpretation took more statements than its caller allowed; caught where the limit is set."""


def run(
    prim: PrimFunc, inputs: Sequence[Array], constants: Sequence[Array] = (), *, step_limit: int | None = None
) -> Array:
    """Interpret a function.

    What the function does not write is NaN in the output, or the largest value of the dtype.
    Raises StepLimitError if the limit is reached.
    """
    return run_counted(prim, inputs, constants, step_limit=step_limit)[0]


def run_counted(
    prim: PrimFunc, inputs: Sequence[Array], constants: Sequence[Array] = (), *, step_limit: int | None = None
) -> tuple[Array, int]:
    """Interpret a function as `run` does; return the output and how many statements ran."""
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
    machine = _Machine(memory, step_limit)
    with np.errstate(all="ignore"):
        machine.run(prim.body)
    result = memory[prim.output]
    return result.view(dtypes.to_numpy(prim.output.holds)) if prim.output.holds else result, machine.steps


class _Machine:
    """Runs statements; loops that allow it run as one array operation a statement."""

    def __init__(self, memory: dict[Buffer, Array], step_limit: int | None) -> None:
        self._memory = memory
        self._env: dict[Var, Any] = {}
        self.steps = 0
        self._step_limit = step_limit
        self._as_arrays: dict[int, bool] = {}

    def run(self, stmt: Stmt) -> None:
        """Run one statement and what is below it."""
        self.steps += 1
        if self._step_limit is not None and self.steps > self._step_limit:
            raise StepLimitError
        if isinstance(stmt, ir.Store):
            self._store(stmt)
        elif isinstance(stmt, ir.Seq):
            for item in stmt.stmts:
                self.run(item)
        elif isinstance(stmt, ir.For):
            self._loop(stmt)
        elif isinstance(stmt, ir.If):
            branch = stmt.then if self._value(stmt.condition) else stmt.otherwise
            if branch is not None:
                self.run(branch)
        elif isinstance(stmt, ir.Let):
            self._env[stmt.var] = self._value(stmt.value)
            self.run(stmt.body)
        elif isinstance(stmt, ir.Allocate):
            self._memory[stmt.buffer] = undefined(stmt.buffer)
            self.run(stmt.body)
        elif isinstance(stmt, ir.Launch):
            run_launch(stmt, self._memory)

    def _value(self, expr: Expr) -> Array:
        return Evaluator(self._env, self._memory).run(expr)

    def _loop(self, stmt: ir.For) -> None:
        indices = np.arange(0, int(self._value(stmt.extent)), stmt.step, dtype=np.int32)
        if indices.size == 0:
            return
        if stmt.kind == "vectorized" and self._runs_as_arrays(stmt):
            self._env[stmt.var] = indices
            self.run(stmt.body)
            return
        for index in indices:
            self._env[stmt.var] = index
            self.run(stmt.body)

    def _runs_as_arrays(self, loop: ir.For) -> bool:
        if id(loop) not in self._as_arrays:
            self._as_arrays[id(loop)] = _is_pointwise(loop)
        return self._as_arrays[id(loop)]

    def _store(self, stmt: ir.Store) -> None:
        evaluator = Evaluator(self._env, self._memory)
        indices = [evaluator.run(index) for index in stmt.indices]
        value = evaluator.run(stmt.value)
        if dtypes.element(stmt.value.dtype) != dtypes.element(stmt.buffer.dtype):
            raise InternalError(f"tir: {stmt.value.dtype} is stored to {stmt.buffer.name} of {stmt.buffer.dtype}")
        check_bounds(stmt.buffer, indices, stmt.value.dtype)
        self._memory[stmt.buffer][access_key(stmt.buffer, indices, stmt.value.dtype)] = value


def _is_pointwise(loop: ir.For) -> bool:
    """Tell whether the body only binds names and stores scalars to places that differ in each iteration."""
    varying = {loop.var}
    for stmt in visitor.walk(loop.body):
        if not isinstance(stmt, (ir.Seq, ir.Store, ir.Let, ir.Comment)):
            return False
        nodes = [node for expr in visitor.own_exprs(stmt) for node in visitor.walk_expr(expr)]
        if any(dtypes.lanes(node.dtype) > 1 for node in nodes):
            return False
        if isinstance(stmt, ir.Let) and any(node in varying for node in nodes):
            varying.add(stmt.var)
        places = stmt.indices if isinstance(stmt, ir.Store) else ()
        if places and not any(node in varying for index in places for node in visitor.walk_expr(index)):
            return False
    return True
