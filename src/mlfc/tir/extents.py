"""Extents that the run decides, as expressions of loops: every symbol has one variable, a parameter of functions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from mlfc.support import dims
from mlfc.support.dim_walk import walked
from mlfc.support.dims import Extent, Symbol
from mlfc.tir.ir import Binary, Buffer, Cast, Const, Expr, ExprOps, Stmt, Var
from mlfc.tir.visitor import nodes, walk_expr

_OPERATIONS = {"+": "add", "*": "mul", "//": "floordiv", "%": "floormod", "max": "max", "min": "min"}

_EXTENTS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "floormod": operator.mod, "max": dims.maximum, "min": dims.minimum,
}  # fmt: skip


@cache
def variable(symbol: Symbol) -> Var:
    """Return the int32 that holds a symbol, the same one in every function."""
    return Var(symbol.name, symbol=symbol)


def as_index(extent: Extent, dtype: str = "int32") -> Expr:
    """Return an extent as an expression of int32, or computed in another dtype of integers."""

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
"""From here on, a constant in a division may overflow int32 in a product with an extent, or in a sum."""


def _is_large(expr: Expr) -> bool:
    return isinstance(expr, Const) and abs(int(expr.value)) >= _LARGE


def _widened(expr: Expr) -> Expr:
    """Return an expression of int32, made by `as_index`, computed in int64."""
    if isinstance(expr, Const):
        return Const(expr.value, "int64")
    if isinstance(expr, Binary):
        return ExprOps.build(expr.op, _widened(expr.a), _widened(expr.b))
    return expr.value if isinstance(expr, Cast) else Cast(expr, "int64")


def as_extent(expr: Expr) -> Extent | None:
    """Return an expression of integers as an extent; None where it is not of numbers and symbols alone."""
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
    """Return the symbols of buffers and statements, each once, in the order of their appearance."""
    found = dict.fromkeys(dims.symbols_of(extent for buffer in buffers for extent in buffer.shape))
    variables = (node for node in nodes(body) if isinstance(node, Var))
    found.update(dict.fromkeys(node.symbol for node in variables if node.symbol is not None))
    return tuple(found)
