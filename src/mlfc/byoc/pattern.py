"""Patterns of operator calls in a generator's table, written from the last call inwards.

``op("clip", op("qnn.requantize", op("qnn.conv2d", anything(), constant(), ...)))`` matches a ``clip`` and its operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from mlfc.relay.ir import Call, Constant, Expr, Tuple, op_name

Pattern: TypeAlias = Callable[[Expr], tuple[Call, ...] | None]
"""Function that returns the calls that it matches in an expression, operands first; None if it does not match."""


def anything() -> Pattern:
    """Return a pattern that matches any expression and leaves it outside the subgraph."""
    return lambda _: ()


def constant() -> Pattern:
    """Return a pattern that matches a constant tensor."""
    return lambda expr: () if isinstance(expr, Constant) else None


def op(name: str | tuple[str, ...], *args: Pattern, where: Callable[[Call], bool] | None = None) -> Pattern:
    """Return a pattern that matches a call.

    Parameters
    ----------
    name : str or tuple of str
        Name of the operator, or alternatives.
    *args : Pattern
        Patterns of its arguments, with those of tuples one by one; without any, all arguments match.
    where : callable, optional
        Additional condition on the call.
    """
    names = (name,) if isinstance(name, str) else name

    def match(expr: Expr) -> tuple[Call, ...] | None:
        if not isinstance(expr, Call) or op_name(expr) not in names or (where is not None and not where(expr)):
            return None
        given = [item for arg in expr.args for item in (arg.fields if isinstance(arg, Tuple) else (arg,))]
        if args and len(args) != len(given):
            return None
        covered: dict[Call, None] = {}
        for pattern, arg in zip(args, given, strict=False):
            found = pattern(arg)
            if found is None:
                return None
            covered.update(dict.fromkeys(found))
        return (*covered, expr)

    return match


def maybe(name: str, inner: Pattern, *, where: Callable[[Call], bool] | None = None) -> Pattern:
    """Return a pattern that matches `inner`, optionally followed by an operator with one input."""
    outer = op(name, where=where)

    def match(expr: Expr) -> tuple[Call, ...] | None:
        found = inner(expr.args[0]) if isinstance(expr, Call) and outer(expr) is not None else None
        return inner(expr) if found is None else (*found, *(outer(expr) or ()))

    return match
