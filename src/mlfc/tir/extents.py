"""Extents that the run decides, as expressions of loops: every symbol has one variable, a parameter of functions."""

from __future__ import annotations

from functools import cache
from typing import Any

from mlfc.support.dims import Extent, Symbol, walked
from mlfc.tir.ir import Cast, Const, Expr, ExprOps, Var

_OPERATIONS = {"+": "add", "*": "mul", "//": "floordiv", "%": "floormod", "max": "max", "min": "min"}


@cache
def variable(symbol: Symbol) -> Var:
    """Return the int32 that holds a symbol, the same one in every function."""
    return Var(symbol.name)


def as_index(extent: Extent, dtype: str = "int32") -> Expr:
    """Return an extent as an expression of int32, or computed in another dtype of integers."""

    def leaf(value: int | Symbol) -> Any:
        if not isinstance(value, Symbol):
            return Const(value, dtype)
        return variable(value) if dtype == "int32" else Cast(variable(value), dtype)

    found: Expr = walked(extent, leaf, lambda op, a, b: ExprOps.build(_OPERATIONS[op], a, b))
    return found
