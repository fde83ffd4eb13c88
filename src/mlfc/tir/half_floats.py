"""Compute with 16-bit floats as float32, and convert only loads and stores.

A value that several operators pass on stays a float32 that is rounded to 16 bits, so results have the same bits as
with a conversion after every operator. A minimum or maximum is rounded once, behind it: rounding keeps the order.
"""

from __future__ import annotations

from dataclasses import replace

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.intrinsics import INTRINSICS
from mlfc.tir.ir import Buffer, Expr, Stmt, Var
from mlfc.tir.proven_lines import with_single_uses
from mlfc.tir.visitor import inside_lets, rebuilt, rebuilt_stmt, walk_expr

_ORDERED = ("min", "max")


def widen_halves(stmt: Stmt) -> Stmt:
    """Return a statement that computes in float32 instead of 16-bit floats."""
    return _Widener().stmt(stmt)


def _is_half(expr: Expr) -> bool:
    return expr.dtype in dtypes.HALVES


class _Widener:
    def __init__(self) -> None:
        self._vars: dict[int, Var] = {}  # float32 variables by the id of the 16-bit variable
        self._buffers: dict[Buffer, Buffer] = {}

    def stmt(self, stmt: Stmt) -> Stmt:
        """Rewrite a statement."""
        if isinstance(stmt, ir.For) and stmt.kind == "vectorized":
            stmt = replace(stmt, body=_inlined(stmt.body))
        if isinstance(stmt, ir.Let) and _is_half(stmt.var) and self._computes(stmt.value):
            value, var = self._wide(stmt.value), Var(stmt.var.name, "float32")
            self._vars[id(stmt.var)] = var
            return replace(stmt, var=var, value=value, body=self.stmt(stmt.body))
        if isinstance(stmt, ir.Allocate) and stmt.buffer.dtype in dtypes.HALVES:
            wide = replace(stmt.buffer, dtype="float32")
            self._buffers[stmt.buffer] = wide
            return ir.Allocate(wide, self.stmt(stmt.body))
        if isinstance(stmt, ir.Store) and _is_half(stmt.value):
            indices, known = tuple(map(self._expr, stmt.indices)), self._buffers.get(stmt.buffer)
            if known is not None:
                return ir.Store(known, indices, self._wide(stmt.value))
            return ir.Store(stmt.buffer, indices, self._half(stmt.value))
        return rebuilt_stmt(stmt, self.stmt, self._expr)

    def _computes(self, expr: Expr) -> bool:
        """Tell whether a value is computed, not only loaded."""
        return any(
            self._is_computed(node) or id(node) in self._vars or self._is_wide_load(node) for node in walk_expr(expr)
        )

    @staticmethod
    def _is_computed(expr: Expr) -> bool:
        if not _is_half(expr) or not isinstance(expr, (ir.Binary, ir.Cast, ir.Call)):
            return False
        return not isinstance(expr, ir.Call) or _is_elementwise(expr)

    def _is_wide_load(self, expr: Expr) -> bool:
        return isinstance(expr, ir.Load) and expr.buffer in self._buffers

    def _half(self, expr: Expr) -> Expr:
        return ir.Cast(self._unrounded(expr), expr.dtype) if self._computes(expr) else self._expr(expr)

    def _expr(self, expr: Expr) -> Expr:
        if _is_half(expr) and (id(expr) in self._vars or self._is_computed(expr) or self._is_wide_load(expr)):
            return self._half(expr)
        if isinstance(expr, ir.Cast) and _is_half(expr.value):
            return tb.cast(self._wide(expr.value), expr.dtype)
        is_predicate = isinstance(expr, ir.Binary) or (isinstance(expr, ir.Call) and _is_elementwise(expr))
        if is_predicate and any(map(_is_half, _operands(expr))):
            return rebuilt(expr, self._wide)
        return rebuilt(expr, self._expr)

    def _wide(self, expr: Expr) -> Expr:
        """Return the value of a 16-bit float as a float32."""
        if isinstance(expr, ir.Const):
            return tb.const(expr.value, "float32")
        if isinstance(expr, Var):
            return self._vars.get(id(expr)) or ir.Cast(expr, "float32")
        if isinstance(expr, ir.Load):
            indices, known = tuple(map(self._expr, expr.indices)), self._buffers.get(expr.buffer)
            return tb.load(known, indices) if known else ir.Cast(replace(expr, indices=indices), "float32")
        if isinstance(expr, ir.Select):
            arms = self._wide(expr.then), self._wide(expr.otherwise)
            return ir.Select(self._expr(expr.condition), *arms, "float32")
        if isinstance(expr, ir.Binary) and expr.op in _ORDERED:
            return ir.Binary(expr.op, self._wide(expr.a), self._wide(expr.b), "float32")
        if (isinstance(expr, ir.Cast) and expr.value.dtype != "float32") or not self._is_computed(expr):
            return ir.Cast(rebuilt(expr, self._expr), "float32")
        return tb.intrinsic(f"round_{expr.dtype}", self._unrounded(expr), dtype="float32")

    def _unrounded(self, expr: Expr) -> Expr:
        """Return the float32 before rounding to the 16-bit value."""
        if isinstance(expr, ir.Cast) and expr.value.dtype == "float32":
            return self._expr(expr.value)
        if isinstance(expr, ir.Select):
            arms = self._unrounded(expr.then), self._unrounded(expr.otherwise)
            return ir.Select(self._expr(expr.condition), *arms, "float32")
        if isinstance(expr, ir.Binary):
            change = self._unrounded if expr.op in _ORDERED else self._wide
            return ir.Binary(expr.op, change(expr.a), change(expr.b), "float32")
        if isinstance(expr, ir.Call) and _is_elementwise(expr):
            return ir.Call(expr.name, tuple(map(self._wide, expr.args)), "float32")
        return self._wide(expr)


def _inlined(body: Stmt) -> Stmt:
    """Return the body of a loop; if it stores one element, bindings that are used once are inlined."""
    _, last = inside_lets(body)
    is_half = isinstance(last, ir.Store) and _is_half(last.value)
    return with_single_uses(body) if is_half else body


def _operands(expr: Expr) -> tuple[Expr, ...]:
    return (expr.a, expr.b) if isinstance(expr, ir.Binary) else expr.args if isinstance(expr, ir.Call) else ()


def _is_elementwise(call: ir.Call) -> bool:
    """Tell whether printers compute a call on float32, as they do where it has no body for 16-bit floats."""
    is_known = call.name in INTRINSICS and all(map(_is_half, call.args))
    return is_known and INTRINSICS.get(call.name).body(call.args[0].dtype) is None
