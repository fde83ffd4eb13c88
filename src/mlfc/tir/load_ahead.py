"""Hoist loads out of conditional expressions if they are safe without the condition.

In vectorized code, a load in a branch of ``?:`` becomes a masked load, and gcc 12 may compute its address from a
register that has been overwritten. So an element that is in bounds regardless of the condition is loaded first.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from mlfc.support import dtypes
from mlfc.support.dims import Dim
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges
from mlfc.tir.ir import Expr, Stmt, Var
from mlfc.tir.visitor import children, nodes, rebuilt, rebuilt_stmt, same_expr, walk_expr


def load_ahead(stmt: Stmt) -> Stmt:
    """Return a statement whose scalar conditionals only load elements that the condition keeps in bounds."""
    return _Loader().run(stmt) if any(map(_chooses, nodes(stmt))) else stmt


class _Loader:
    def __init__(self) -> None:
        self._ranges = Ranges()

    def run(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, ir.Let):
            loaded, value = self._loaded(stmt.value)
            self._ranges.enter_let(stmt)
            return _bound(loaded, replace(stmt, value=value, body=self.run(stmt.body)))
        if isinstance(stmt, ir.Store):
            loaded, value = self._loaded(stmt.value)
            return _bound(loaded, ir.Store(stmt.buffer, stmt.indices, value))

        def below(item: Stmt) -> Stmt:
            with self._ranges.inside(stmt, item):
                return self.run(item)

        return stmt if isinstance(stmt, ir.Launch) else rebuilt_stmt(stmt, below)

    def _loaded(self, value: Expr) -> tuple[list[tuple[Var, Expr]], Expr]:
        """Return the loads to execute first, in order, and the value computed from them."""
        if not any(_chooses(node) for node in walk_expr(value)):
            return [], value
        loaded: list[tuple[Var, Expr]] = []

        @cache  # nodes are compared by identity
        def change(expr: Expr, chosen: bool) -> Expr:
            if isinstance(expr, ir.Load) and chosen and self._may_be_read(expr):
                found = (var for var, known in loaded if same_expr(known, expr))
                var = next(found, None) or Var("loaded", expr.dtype)
                if not any(var is known for known, _ in loaded):
                    loaded.append((var, expr))
                return var
            if _chooses(expr):
                first, *others = children(expr)
                operands = iter((change(first, chosen), *(change(item, True) for item in others)))
                return rebuilt(expr, lambda _: next(operands))
            return rebuilt(expr, lambda item: change(item, chosen))

        return loaded, change(value, False)

    def _may_be_read(self, load: ir.Load) -> bool:
        """Tell whether an element of memory that callers own is in bounds for all outcomes of conditions."""
        if load.buffer.scope == "local" or dtypes.lanes(load.dtype) > 1:
            return False
        if any(isinstance(node, (ir.Load, ir.Select)) for index in load.indices for node in walk_expr(index)):
            return False
        return all(
            self._ranges.is_index(index, extent - 1)
            if isinstance(extent, Dim)
            else self._ranges.interval(index).within(0, extent - 1)
            for index, extent in zip(load.indices, load.buffer.shape, strict=True)
        )


def _chooses(expr: Expr) -> bool:
    """Tell whether C evaluates the first operand, and depending on its value the others."""
    return isinstance(expr, ir.Select) or (isinstance(expr, ir.Binary) and expr.op in ("land", "lor"))


def _bound(loaded: list[tuple[Var, Expr]], stmt: Stmt) -> Stmt:
    for var, load in reversed(loaded):
        stmt = ir.Let(var, load, stmt)
    return stmt
