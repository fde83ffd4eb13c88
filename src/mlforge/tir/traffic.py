"""How many bytes of each of its buffers a function moves: what makes a tensor hot or cold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mlforge.support import dtypes
from mlforge.tir import ir
from mlforge.tir.ir import Buffer, PrimFunc, Stmt
from mlforge.tir.visitor import own_exprs, walk_expr


def traffic(prim: PrimFunc) -> Mapping[Buffer, int]:
    """Return the bytes that one call loads from and stores to each buffer.

    Both branches of a condition count, and a loop whose extent is not a constant counts as one iteration: this tells
    hot buffers from cold ones, it is no measure of time.
    """
    moved: Counter[Buffer] = Counter()
    _count(prim.body, 1, moved)
    return moved


def _count(stmt: Stmt, times: int, moved: Counter[Buffer]) -> None:
    for expr in own_exprs(stmt):
        for node in walk_expr(expr):
            if isinstance(node, ir.Load):
                moved[node.buffer] += times * dtypes.nbytes(node.dtype)
    if isinstance(stmt, ir.Store):
        moved[stmt.buffer] += times * dtypes.nbytes(stmt.value.dtype)
    elif isinstance(stmt, ir.For):
        extent = stmt.extent.value if isinstance(stmt.extent, ir.Const) else stmt.step
        _count(stmt.body, times * max(0, -(-int(extent) // stmt.step)), moved)
    elif isinstance(stmt, ir.Seq):
        for item in stmt.stmts:
            _count(item, times, moved)
    elif isinstance(stmt, (ir.Let, ir.Allocate)):
        _count(stmt.body, times, moved)
    elif isinstance(stmt, ir.If):
        _count(stmt.then, times, moved)
        if stmt.otherwise is not None:
            _count(stmt.otherwise, times, moved)
