"""Dynamic dimensions as loop-level expressions: every symbol has one variable, a parameter of functions."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from mlfc.support import dims
from mlfc.support.dim_walk import MOST_CHARS, name_of, walked
from mlfc.support.dims import Dim, Extent, Symbol
from mlfc.tir import visitor
from mlfc.tir.ir import Binary, Buffer, Cast, Const, Expr, ExprOps, Let, Load, PrimFunc, Stmt, Store, Var
from mlfc.tir.visitor import nodes, walk_expr

_OPERATIONS = {"+": "add", "*": "mul", "//": "floordiv", "%": "floormod", "max": "max", "min": "min"}

_EXTENTS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "floormod": operator.mod, "max": dims.maximum, "min": dims.minimum,
}  # fmt: skip


@cache
def variable(symbol: Symbol) -> Var:
    """Return the int32 variable of a symbol, the same one in every function."""
    return Var(symbol.name, symbol=symbol)


def as_index(extent: Extent, dtype: str = "int32") -> Expr:
    """Return an extent as an int32 expression, or computed in another integer dtype."""

    def leaf(value: int | Symbol) -> Any:
        if not isinstance(value, Symbol):
            return Const(value, dtype)
        return variable(value) if dtype == "int32" else Cast(variable(value), dtype)

    def apply(op: str, a: Expr, b: Expr) -> Expr:
        if op == "+" and isinstance(b, Const) and b.value < 0:
            return ExprOps.build("sub", a, Const(-b.value, dtype))
        if op in ("//", "%") and dtype == "int32" and any(map(_is_large, (*walk_expr(a), *walk_expr(b)))):
            return Cast(ExprOps.build(_OPERATIONS[op], _widened(a), _widened(b)), dtype)
        return ExprOps.build(_OPERATIONS[op], a, b)

    found: Expr = walked(extent, leaf, apply)
    return found


_LARGE = 1 << 15
"""Divisions with constants from this size on may overflow int32 in a product with an extent, or in a sum."""


def _is_large(expr: Expr) -> bool:
    return isinstance(expr, Const) and abs(int(expr.value)) >= _LARGE


def _widened(expr: Expr) -> Expr:
    """Recompute an int32 expression of `as_index` in int64."""
    if isinstance(expr, Const):
        return Const(expr.value, "int64")
    if isinstance(expr, Binary):
        return ExprOps.build(expr.op, _widened(expr.a), _widened(expr.b))
    return expr.value if isinstance(expr, Cast) else Cast(expr, "int64")


def as_extent(expr: Expr) -> Extent | None:
    """Return an integer expression as an extent; None if it contains more than numbers and symbols."""
    if isinstance(expr, Cast):
        return as_extent(expr.value) if {expr.dtype, expr.value.dtype} == {"int32", "int64"} else None
    if isinstance(expr, Const):
        return int(expr.value)
    if isinstance(expr, Var):
        return None if expr.symbol is None else expr.symbol.dim
    if not isinstance(expr, Binary) or expr.op not in _EXTENTS or expr.dtype not in ("int32", "int64"):
        return None
    a, b = as_extent(expr.a), as_extent(expr.b)
    if a is None or b is None or (expr.op.startswith("floor") and dims.bounds(b)[0] < 1):
        return None
    found: Extent = _EXTENTS[expr.op](a, b)
    return found


def symbols_of(buffers: Iterable[Buffer], body: Stmt) -> tuple[Symbol, ...]:
    """Return the symbols of buffers and statements, each once, in order of appearance."""
    found = dict.fromkeys(dims.symbols_of(extent for buffer in buffers for extent in buffer.shape))
    variables = (node for node in nodes(body) if isinstance(node, Var))
    found.update(dict.fromkeys(node.symbol for node in variables if node.symbol is not None))
    return tuple(found)


_NAMED = ("floordiv", "floormod", "max", "min")


def named_extents(prim: PrimFunc, without: Collection[str] = ()) -> dict[Dim, tuple[Var, Expr]]:
    """Return a variable and its value for each dynamic extent expression used more than once, inner ones first.

    Code for dynamic dimensions has many quotients and remainders, which are computed once, before the loops.
    `without`: names that must not be used for variables.
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
    """Return the function with these variables bound and used in its statements."""

    def change(stmt: Stmt) -> Stmt:
        return visitor.rebuilt_stmt(stmt, change, lambda expr: with_names(expr, named))

    body = change(prim.body) if named else prim.body
    for var, value in reversed([*named.values()]):
        body = Let(var, value, body)
    return replace(prim, body=body)


def with_names(expr: Expr, named: Mapping[Dim, tuple[Var, Expr]]) -> Expr:
    """Return an expression with named subexpressions replaced by their variables."""
    if not named:
        return expr
    extent = _extent(expr)
    if extent is not None and extent in named:
        return named[extent][0]
    return visitor.rebuilt(expr, lambda below: with_names(below, named))


def _read(body: Stmt) -> Iterator[Expr]:
    """Yield all expressions of statements, including the extents used to compute addresses."""
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
    """Return an expression as a dynamic extent if a variable may hold it, else None."""
    part = expr.value if isinstance(expr, Cast) else expr
    if not isinstance(part, Binary) or part.op not in _NAMED or expr.dtype != "int32":
        return None
    found = as_extent(expr)
    return found if isinstance(found, Dim) else None
