"""How long a statement takes, roughly: enough to tell what is worth a second thread."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, TypeAlias

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.ir import Expr, Stmt, Var
from mlfc.tir.visitor import children, own_exprs, walk, walk_expr

Work: TypeAlias = "float | Expr"
"""About as many scalar instructions; an expression of float32 where the run decides."""
GRAIN = 20_000.0
"""Work that a thread should have at least, about five microseconds: as long as it takes to wake one."""
LEAST_OF_MODEL = 2e7
"""Work of a model from which on its kernels share theirs unless told otherwise: half a millisecond or more.

Below that, waking a thread for each run costs what it saves.
"""
_LANES = 8  # elements that an iteration of a vectorized loop computes
_VECTOR = 16  # elements of a vector that an instruction takes
_VECTOR_COST = 0.5  # processors take two such instructions at a time
_CALL = 12  # of a function for one number, such as the exponential
_UNKNOWN = 16  # iterations of a loop whose extent depends on those around it
_MOST = 1e30


def as_number(work: Work) -> float:
    """Return work as a number; what the run decides is taken to be much."""
    return work if isinstance(work, (int, float)) else _MOST


def work_of(stmt: Stmt) -> Work:
    """Return the work of a statement; the variables of the expression are those bound outside of it."""
    bound = {item.var for item in walk(stmt) if isinstance(item, (ir.For, ir.Let))}
    return _work(stmt, bound, 1.0)


def _work(stmt: Stmt, bound: Set[Var], lanes: float) -> Work:
    if isinstance(stmt, ir.For):
        inner = _work(stmt.body, bound, _LANES if stmt.kind == "vectorized" else lanes)
        return _times(trips(stmt, bound), _plus(inner, 2.0 / lanes))
    total: Work = 1.0 / lanes
    if isinstance(stmt, ir.Store):
        total = _of_expr(stmt.value, lanes)
    elif isinstance(stmt, (ir.Let, ir.If)):
        total = sum(_of_expr(expr, lanes) for expr in own_exprs(stmt))
    if isinstance(stmt, ir.Seq):
        for item in stmt.stmts:
            total = _plus(total, _work(item, bound, lanes))
        return total
    if isinstance(stmt, ir.If):
        then = _work(stmt.then, bound, lanes)
        other = 0.0 if stmt.otherwise is None else _work(stmt.otherwise, bound, lanes)
        # which of both runs is not known
        chosen = max(then, other) if isinstance(then, float) and isinstance(other, float) else _plus(then, other)
        return _plus(total, chosen)
    if isinstance(stmt, (ir.Let, ir.Allocate)):
        return _plus(total, _work(stmt.body, bound, lanes))
    return total


def _of_expr(expr: Expr, lanes: float) -> float:
    """Return the work of a value: compilers work addresses out beforehand."""
    if isinstance(expr, (ir.Const, ir.Var)):
        return 0.0
    below = 0.0 if isinstance(expr, ir.Load) else sum(_of_expr(item, lanes) for item in children(expr))
    wide = dtypes.lanes(expr.dtype)
    if wide > 1:
        return below + (0.0 if isinstance(expr, ir.Broadcast) else _VECTOR_COST * -(-wide // _VECTOR))
    return below + (_CALL if isinstance(expr, ir.Call) else 1) / lanes


def trips(loop: ir.For, bound: Set[Var] = frozenset()) -> Work:
    """Return how often a loop's body runs; `bound` are variables that nobody knows outside of it."""
    if isinstance(loop.extent, ir.Const):
        return float(-(-int(loop.extent.value) // loop.step))
    if any(isinstance(node, ir.Load) or node in bound for node in walk_expr(loop.extent)):
        return float(_UNKNOWN)
    return tb.cast(loop.extent, "float32")


def _plus(a: Work, b: Work) -> Work:
    if isinstance(a, float) and isinstance(b, float):
        return a + b
    total: Expr = _expr(a) + _expr(b)
    return total


def _times(a: Work, b: Work) -> Work:
    if isinstance(a, float) and isinstance(b, float):
        return a * b
    product: Expr = _expr(a) * _expr(b)
    return product


def _expr(work: Work) -> Any:
    return tb.const(work, "float32") if isinstance(work, float) else work
