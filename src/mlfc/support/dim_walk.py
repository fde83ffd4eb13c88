"""Folds of dynamic extents: an expression in another form, such as text, code or instructions."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from mlfc.support.dims import Dim, Extent, Symbol


def walked(extent: Extent, leaf: Callable[[int | Symbol], Any], apply: Callable[[str, Any, Any], Any]) -> Any:
    """Fold an extent: combine its symbols and numbers bottom-up.

    `leaf` is of integers and symbols; `apply` takes an operation (``+``, ``*``, ``//``, ``%``, ``max``, ``min``) and
    the results of both operands.
    """
    if not isinstance(extent, Dim):
        return leaf(extent)
    total = None
    for factors, count in extent.terms:
        parts = [_walked_atom(factor, leaf, apply) for factor in factors]
        parts += [leaf(count)] if count != 1 or not factors else []
        term = reduce(lambda a, b: apply("*", a, b), parts)
        total = term if total is None else apply("+", total, term)
    return total


def _walked_atom(atom: Any, leaf: Callable[[Any], Any], apply: Callable[[str, Any, Any], Any]) -> Any:
    if atom.kind == "symbol":
        return leaf(atom.args[0])
    a, b = (walked(item, leaf, apply) for item in atom.args)
    return apply(atom.kind, a, b)
