"""Functions with numbers put in: the members of a family from the function that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlfc.support import dtypes
from mlfc.tir import block_intrinsics, ir
from mlfc.tir import builder as tb
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Stmt, Var
from mlfc.tir.parameters import SharedFunction
from mlfc.tir.unroll import substitute
from mlfc.tir.visitor import rebuilt


def without_single_trips(body: Stmt) -> Stmt:
    """Return statements with the bodies of loops of one trip in place of these loops."""
    return _Specializer({}, {}).stmt(body)


def specialize(shared: SharedFunction, member: int) -> PrimFunc:
    """Return what a shared function does for the numbers of one member; its buffers have one dimension."""
    values = {var: tb.const(value, var.dtype) for var, value in shared.values(member).items()}
    own = shared.members[member]
    buffers = {buffer: replace(buffer, shape=(sizes[member],)) for buffer, sizes in shared.sizes.items()}
    prim = shared.prim
    return PrimFunc(
        own.name,
        inputs=tuple(buffers[buffer] for buffer in prim.inputs),
        constants=tuple(buffers[buffer] for buffer in prim.constants),
        output=buffers[prim.output],
        scratch=tuple(buffers[buffer] for buffer in prim.scratch),
        body=_Specializer(values, buffers).stmt(prim.body),
        inplace=own.inplace,
        macs=own.macs,
    )


class _Specializer:
    def __init__(self, values: Mapping[Var, Expr], buffers: Mapping[Buffer, Buffer]) -> None:
        self._values: dict[Var, Expr] = dict(values)
        self._buffers = buffers

    def stmt(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, ir.Seq):
            return ir.Seq(tuple(map(self.stmt, stmt.stmts)))
        if isinstance(stmt, ir.For):
            return self._loop(stmt)
        if isinstance(stmt, ir.Let):
            value = self._expr(stmt.value)
            if isinstance(value, ir.Const):
                self._values[stmt.var] = value
                return self.stmt(stmt.body)
            return ir.Let(stmt.var, value, self.stmt(stmt.body))
        if isinstance(stmt, ir.Store):
            return ir.Store(self._buffer(stmt.buffer), tuple(map(self._expr, stmt.indices)), self._expr(stmt.value))
        if isinstance(stmt, ir.If):
            return self._branch(stmt)
        if isinstance(stmt, ir.Allocate):
            return ir.Allocate(self._buffer(stmt.buffer), self.stmt(stmt.body))
        return stmt

    def _buffer(self, buffer: Buffer) -> Buffer:
        return self._buffers.get(buffer, buffer)

    def _loop(self, loop: ir.For) -> Stmt:
        extent = self._expr(loop.extent)
        if isinstance(extent, ir.Const) and 0 < extent.value <= loop.step:
            self._values[loop.var] = tb.const(0)
            return self.stmt(loop.body)
        return ir.For(loop.var, extent, self.stmt(loop.body), loop.kind, loop.step)

    def _branch(self, branch: ir.If) -> Stmt:
        condition = self._expr(branch.condition)
        if isinstance(condition, ir.Const):
            taken = branch.then if condition.value else branch.otherwise
            return self.stmt(taken) if taken is not None else ir.Seq(())
        otherwise = self.stmt(branch.otherwise) if branch.otherwise is not None else None
        return ir.If(condition, self.stmt(branch.then), otherwise)

    def _expr(self, expr: Expr) -> Expr:
        """Return an expression with the numbers put in and what they make literal folded."""
        return self._placed(substitute(expr, self._values))

    def _placed(self, expr: Expr) -> Expr:
        """Return an expression of this member's buffers, with the lengths of runs in the types of their loads."""
        inner = rebuilt(expr, self._placed)
        if isinstance(inner, ir.Load):
            return replace(inner, buffer=self._buffer(inner.buffer))
        if isinstance(inner, ir.Call) and (
            inner.name == block_intrinsics.COUNTED_FILL or block_intrinsics.uncounted(inner.name)
        ):
            return _uncounted(inner)
        return inner


def _uncounted(call: ir.Call) -> Expr:
    if call.name == block_intrinsics.COUNTED_FILL:
        value, size = call.args
        assert isinstance(size, ir.Const)
        return tb.intrinsic("run", tb.broadcast(value, int(size.value)))
    name = block_intrinsics.uncounted(call.name) or ""
    numbers = [int(arg.value) for arg in call.args if isinstance(arg, ir.Const)]
    loads = [arg for arg in call.args if isinstance(arg, ir.Load)]
    sizes, result = block_intrinsics.sizes(name, numbers)
    wide = [
        replace(load, dtype=dtypes.vector(load.buffer.dtype, size)) for load, size in zip(loads, sizes, strict=True)
    ]
    return ir.Call(name, tuple(wide), dtypes.vector(call.dtype, result))
