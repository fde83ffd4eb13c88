"""Rough cost model of statements, to decide if a second thread is worthwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from math import prod
from typing import TypeAlias

from mlfc.support import dtypes
from mlfc.support.dims import bounds
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Stmt, Var
from mlfc.tir.visitor import below, children, own_exprs, own_nodes, walk, walk_expr

Work: TypeAlias = "float | Expr"
"""Number of scalar instructions, approximately; a float32 expression for dynamic extents."""
GRAIN = 20_000.0
"""Minimum work of a thread, about five microseconds, which is the time to wake one."""
LEAST_OF_MODEL = 2e7
"""Work of a model from which on its kernels use threads by default: half a millisecond or more.

Below that, waking a thread for each run costs as much as it saves.
"""
_LANES = 8  # elements per iteration of a vectorized loop
_VECTOR = 16  # vector elements per instruction
_VECTOR_COST = 0.5  # processors issue two such instructions at a time
_CALL = 12  # of a scalar function, such as the exponential
_UNKNOWN = 16  # iterations of a loop whose extent depends on those around it
_MOST = 1e30


def as_number(work: Work) -> float:
    """Return work as a number; a runtime value counts as large."""
    return work if isinstance(work, (int, float)) else _MOST


def work_of(stmt: Stmt) -> Work:
    """Return the work of a statement; an expression only has variables that are bound outside of it."""
    bound = {item.var for item in walk(stmt) if isinstance(item, (ir.For, ir.Let))}
    return _work(stmt, bound, 1.0)


def _work(stmt: Stmt, bound: Set[Var], lanes: float) -> Work:
    if isinstance(stmt, ir.For):
        inner = _work(stmt.body, bound, _LANES if stmt.kind == "vectorized" else lanes)
        return trips(stmt, bound) * (inner + 2.0 / lanes)
    total: Work = 1.0 / lanes
    if isinstance(stmt, ir.Store):
        total = _of_expr(stmt.value, lanes)
    elif isinstance(stmt, (ir.Let, ir.If)):
        total = sum(_of_expr(expr, lanes) for expr in own_exprs(stmt))
    if isinstance(stmt, ir.Seq):
        return sum((_work(item, bound, lanes) for item in stmt.stmts), total)
    if isinstance(stmt, ir.If):
        then = _work(stmt.then, bound, lanes)
        other = 0.0 if stmt.otherwise is None else _work(stmt.otherwise, bound, lanes)
        # the branch is not known at compile time
        chosen = max(then, other) if isinstance(then, float) and isinstance(other, float) else then + other
        return total + chosen
    if isinstance(stmt, (ir.Let, ir.Allocate)):
        return total + _work(stmt.body, bound, lanes)
    return total


def _of_expr(expr: Expr, lanes: float) -> float:
    """Return the work of a value; address computations are free, as compilers hoist them."""
    if isinstance(expr, (ir.Const, ir.Var)):
        return 0.0
    below = 0.0 if isinstance(expr, ir.Load) else sum(_of_expr(item, lanes) for item in children(expr))
    wide = dtypes.lanes(expr.dtype)
    if wide > 1:
        return below + (0.0 if isinstance(expr, ir.Broadcast) else _VECTOR_COST * -(-wide // _VECTOR))
    return below + (_CALL if isinstance(expr, ir.Call) else 1) / lanes


def trips(loop: ir.For, bound: Set[Var] = frozenset()) -> Work:
    """Return the iteration count of a loop; `bound` are variables whose values are not known outside of it."""
    if isinstance(loop.extent, ir.Const):
        return float(-(-int(loop.extent.value) // loop.step))
    if any(isinstance(node, ir.Load) or node in bound for node in walk_expr(loop.extent)):
        return float(_UNKNOWN)
    return tb.cast(loop.extent, "float32")


def traffic(prim: PrimFunc) -> Mapping[Buffer, int]:
    """Return the maximum number of bytes that one call loads from and stores to each buffer.

    Both branches of a condition count, and a loop counts its maximum iterations. This separates hot from cold buffers
    and does not measure time.
    """
    counter = _Counter()
    counter.count(prim.body, 1)
    return counter.moved


class _Counter:
    def __init__(self) -> None:
        self.moved: Counter[Buffer] = Counter()
        self._ranges = Ranges()

    def count(self, stmt: Stmt, times: int) -> None:
        for node in own_nodes(stmt):
            if isinstance(node, ir.Load):
                self.moved[node.buffer] += times * dtypes.nbytes(node.dtype)
        if isinstance(stmt, ir.Store):
            self.moved[stmt.buffer] += times * dtypes.nbytes(stmt.value.dtype)
        elif isinstance(stmt, ir.For):
            times *= -(-max(0, self._ranges.interval(stmt.extent).high) // stmt.step)
        elif isinstance(stmt, ir.Launch):
            times *= prod(bounds(extent)[1] for extent in stmt.grid) * prod(stmt.block)
        with self._ranges.scope():
            self._ranges.enter(stmt)
            for item in below(stmt):
                self.count(item, times)
