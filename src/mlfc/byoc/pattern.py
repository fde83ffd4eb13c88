"""Patterns of operator calls in a generator's table, which name the last call first.

``op("clip", op("qnn.requantize", op("qnn.conv2d", anything(), constant(), ...)))`` ends in the ``clip``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from mlfc.relay.ir import Call, Constant, Expr, Tuple, op_name

Pattern: TypeAlias = Callable[[Expr], tuple[Call, ...] | None]
"""Returns the calls that it covers in an expression, what is read before what reads it; None if it does not fit."""


def anything() -> Pattern:
    """Return the pattern of any expression, which stays outside."""
    return lambda _: ()


def constant() -> Pattern:
    """Return the pattern of a tensor whose value is known."""
    return lambda expr: () if isinstance(expr, Constant) else None


def op(name: str | tuple[str, ...], *args: Pattern, where: Callable[[Call], bool] | None = None) -> Pattern:
    """Return the pattern of a call.

    Parameters
    ----------
    name : str or tuple of str
        Of the operator; one of several.
    *args : Pattern
        Of its arguments, those of tuples one by one; none leaves them open.
    where : callable, optional
        What else must hold of the call.
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
    """Return the pattern of `inner`, with or without an operator of one input behind it."""
    outer = op(name, where=where)

    def match(expr: Expr) -> tuple[Call, ...] | None:
        found = inner(expr.args[0]) if isinstance(expr, Call) and outer(expr) is not None else None
        return inner(expr) if found is None else (*found, *(outer(expr) or ()))

    return match
