"""Unrolling of loops that are marked ``unrolled``.

C compilers keep a small array in registers only if every index into it is a literal, and disagree on when to unroll.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.ir import Expr, PrimFunc, Stmt
from mlfc.tir.visitor import nodes, rebuilt, rebuilt_stmt, walk


@dataclass(frozen=True)
class Unroll:
    """Replace loops of kind ``unrolled`` by their copies."""

    max_stmts: int = 1024  # a loop whose copies would have more statements is kept
    # keep the constant variable of the first iteration of loops that threads may share
    keeps_begins: bool = False

    def __call__(self, prim: PrimFunc) -> PrimFunc:
        """Return the function with its small ``unrolled`` loops unrolled."""
        return replace(prim, body=self._stmt(prim.body, {}))

    def _stmt(self, stmt: Stmt, env: Mapping[ir.Var, Expr]) -> Stmt:
        if isinstance(stmt, ir.For):
            return self._loop(stmt, env)
        if isinstance(stmt, ir.If):
            condition = substitute(stmt.condition, env)
            if isinstance(condition, ir.Const):
                taken = stmt.then if condition.value else stmt.otherwise
                return self._stmt(taken, env) if taken is not None else ir.Seq(())
        if isinstance(stmt, ir.Let):
            value = substitute(stmt.value, env)
            if isinstance(value, ir.Const) and not ((stmt.carried or stmt.fresh) and self.keeps_begins):
                return self._stmt(stmt.body, {**env, stmt.var: value})
            var = ir.Var(stmt.var.name, stmt.var.dtype)
            return replace(stmt, var=var, value=value, body=self._stmt(stmt.body, {**env, stmt.var: var}))
        return rebuilt_stmt(stmt, lambda item: self._stmt(item, env), lambda expr: substitute(expr, env))

    def _loop(self, stmt: ir.For, env: Mapping[ir.Var, Expr]) -> Stmt:
        extent = substitute(stmt.extent, env)
        if stmt.kind == "unrolled" and isinstance(extent, ir.Const):
            values = range(0, int(extent.value), stmt.step)
            # all copies would share a buffer of the body, but each copy may rely on its own
            alone = not any(isinstance(item, ir.Allocate) for item in walk(stmt.body))
            if alone and len(values) * sum(1 for _ in walk(stmt.body)) <= self.max_stmts:
                return ir.Seq(tuple(self._stmt(stmt.body, {**env, stmt.var: tb.const(value)}) for value in values))
        var = ir.Var(stmt.var.name, stmt.var.dtype)
        inside = {**env, stmt.var: var}
        found = rebuilt_stmt(stmt, lambda item: self._stmt(item, inside), lambda expr: substitute(expr, env))
        assert isinstance(found, ir.For)
        return replace(found, var=var)


def substitute(expr: Expr, env: Mapping[ir.Var, Expr]) -> Expr:
    """Return `expr` with variables replaced and constants folded."""
    if not env or isinstance(expr, ir.Const):
        return expr
    if isinstance(expr, ir.Var):
        return env.get(expr, expr)
    if isinstance(expr, ir.Binary):
        return tb.binary(expr.op, substitute(expr.a, env), substitute(expr.b, env))
    if isinstance(expr, ir.Select):
        arms = (substitute(expr.then, env), substitute(expr.otherwise, env))
        return tb.select(substitute(expr.condition, env), *arms)
    if isinstance(expr, ir.Cast):
        return tb.cast(substitute(expr.value, env), expr.dtype)
    return rebuilt(expr, lambda item: substitute(item, env))


def with_values(stmt: Stmt, env: Mapping[ir.Var, Expr]) -> Stmt:
    """Return a copy of a statement with variables replaced; its bindings become new variables, loops are kept."""
    return Unroll(0)._stmt(stmt, env)


def with_single_uses(stmt: Stmt) -> Stmt:
    """Return the body of a loop with bindings of a single use inlined."""
    uses = Counter(id(node) for node in nodes(stmt) if isinstance(node, ir.Var))

    def changed(item: Stmt, env: dict[ir.Var, Expr]) -> Stmt:
        if isinstance(item, ir.Let) and uses[id(item.var)] == 1:
            return changed(item.body, {**env, item.var: substitute(item.value, env)})
        if not isinstance(item, (ir.Seq, ir.Let, ir.Store)):
            return item
        return rebuilt_stmt(item, lambda part: changed(part, env), lambda expr: substitute(expr, env))

    return changed(stmt, {})
