"""What launches of a function are, and whether all work-items of a group reach their barriers together."""

from __future__ import annotations

from collections.abc import Iterator

from mlfc.errors import InternalError
from mlfc.tir import ir
from mlfc.tir.ir import Expr, Launch, PrimFunc, Stmt
from mlfc.tir.visitor import below, own_exprs, walk, walk_expr


def launches(prim: PrimFunc) -> tuple[Launch, ...]:
    """Return the launches of a function in order.

    Raises InternalError if anything but comments stands beside them.
    """
    stmts = prim.body.stmts if isinstance(prim.body, ir.Seq) else (prim.body,)
    found = tuple(stmt for stmt in stmts if not isinstance(stmt, ir.Comment))
    if not all(isinstance(stmt, Launch) for stmt in found):
        raise InternalError("a statement stands outside every launch", place=prim.name)
    return found  # type: ignore[return-value]  # checked just above


def uneven_barriers(launch: Launch) -> Iterator[str]:
    """Yield what keeps the work-items of a group from reaching a barrier together.

    What a work-item computes from its own place, from memory or from its own variables may differ from its neighbours'.
    """
    yield from _uneven(launch.body, {id(var) for var in launch.items})


def _uneven(stmt: Stmt, own: set[int]) -> Iterator[str]:
    if isinstance(stmt, ir.Let) and _differs(stmt.value, own):
        own.add(id(stmt.var))
    if isinstance(stmt, (ir.For, ir.If)) and any(isinstance(item, ir.Barrier) for item in walk(stmt)):
        if any(_differs(expr, own) for expr in own_exprs(stmt)):
            what = "loop" if isinstance(stmt, ir.For) else "condition"
            yield f"a barrier stands in a {what} that depends on the work-item"
    elif isinstance(stmt, ir.For) and _differs(stmt.extent, own):
        own.add(id(stmt.var))
    for item in below(stmt):
        yield from _uneven(item, own)


def _differs(expr: Expr, own: set[int]) -> bool:
    return any(isinstance(node, ir.Load) or id(node) in own for node in walk_expr(expr))
