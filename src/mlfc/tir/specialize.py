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
from mlfc.tir.visitor import rebuilt, rebuilt_stmt


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
        if isinstance(stmt, ir.For):
            extent = self._expr(stmt.extent)
            if isinstance(extent, ir.Const) and 0 < extent.value <= stmt.step:
                self._values[stmt.var] = tb.const(0)
                return self.stmt(stmt.body)
        elif isinstance(stmt, ir.Let):
            value = self._expr(stmt.value)
            if isinstance(value, ir.Const):
                self._values[stmt.var] = value
                return self.stmt(stmt.body)
        elif isinstance(stmt, ir.If):
            condition = self._expr(stmt.condition)
            if isinstance(condition, ir.Const):
                taken = stmt.then if condition.value else stmt.otherwise
                return self.stmt(taken) if taken is not None else ir.Seq(())
        elif isinstance(stmt, (ir.Store, ir.Allocate)):
            stmt = replace(stmt, buffer=self._buffer(stmt.buffer))
        return stmt if isinstance(stmt, ir.Launch) else rebuilt_stmt(stmt, self.stmt, self._expr)

    def _buffer(self, buffer: Buffer) -> Buffer:
        return self._buffers.get(buffer, buffer)

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
