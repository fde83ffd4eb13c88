"""Variables for quotients, remainders, maxima and minima of open extents that a function reads more than once.

Code for open extents is full of them, and a reader knows ``w_plus_1_div_2`` again where ``(w + 1) / 2`` is one of
many brackets. They are computed once, before the loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from mlfc.support.dim_names import MOST_CHARS, name_of
from mlfc.support.dims import Dim
from mlfc.tir import visitor
from mlfc.tir.extents import as_extent, as_index
from mlfc.tir.ir import Binary, Cast, Expr, Let, Load, PrimFunc, Stmt, Store, Var

_NAMED = ("floordiv", "floormod", "max", "min")


def named_extents(prim: PrimFunc, without: Collection[str] = ()) -> dict[Dim, tuple[Var, Expr]]:
    """Return a variable, with its value, for each expression of open extents that is worth one, inner ones first.

    `without`: names that no variable is to have.
    """
    if not prim.symbols or prim.external is not None:
        return {}
    count: Counter[Dim] = Counter()
    values: dict[Dim, Expr] = {}
    for node in _read(prim.body):
        extent = _extent(node)
        if extent is not None:
            count[extent] += 1
            values.setdefault(extent, node)
    names = {extent: name_of(extent) for extent, uses in count.items() if uses > 1}
    fitting = [extent for extent, name in names.items() if len(name) <= MOST_CHARS and name not in without]
    found: dict[Dim, tuple[Var, Expr]] = {}
    for extent in sorted(fitting, key=lambda item: sum(1 for _ in visitor.walk_expr(values[item]))):
        found[extent] = (Var(names[extent]), with_names(values[extent], found))
    return found


def bind_names(prim: PrimFunc, named: Mapping[Dim, tuple[Var, Expr]]) -> PrimFunc:
    """Return the function with these variables, which its statements read."""

    def change(stmt: Stmt) -> Stmt:
        return visitor.rebuilt_stmt(stmt, change, lambda expr: with_names(expr, named))

    body = change(prim.body) if named else prim.body
    for var, value in reversed([*named.values()]):
        body = Let(var, value, body)
    return replace(prim, body=body)


def with_names(expr: Expr, named: Mapping[Dim, tuple[Var, Expr]]) -> Expr:
    """Return an expression that reads variables where it has what they hold."""
    if not named:
        return expr
    extent = _extent(expr)
    if extent is not None and extent in named:
        return named[extent][0]
    return visitor.rebuilt(expr, lambda below: with_names(below, named))


def _read(body: Stmt) -> Iterator[Expr]:
    """Yield all expressions of statements, and those of extents by which elements are found."""
    for stmt in visitor.walk(body):
        if isinstance(stmt, Store):
            yield from _strides(stmt)
        for node in visitor.own_nodes(stmt):
            yield node
            if isinstance(node, Load):
                yield from _strides(node)


def _strides(access: Load | Store) -> Iterator[Expr]:
    for extent in access.buffer.shape[1:]:
        if isinstance(extent, Dim):
            yield from visitor.walk_expr(as_index(extent))


def _extent(expr: Expr) -> Dim | None:
    """Return what an expression is of open extents, if a variable may hold it."""
    part = expr.value if isinstance(expr, Cast) else expr
    if not isinstance(part, Binary) or part.op not in _NAMED or expr.dtype != "int32":
        return None
    found = as_extent(expr)
    return found if isinstance(found, Dim) else None
