"""Names of extents for generated code: ``n_plus_1_div_2`` says what it is, and a reviewer finds it in the comment."""

from __future__ import annotations

from collections.abc import Callable

from mlfc.support.c_names import sanitize
from mlfc.support.dim_walk import walked
from mlfc.support.dims import Extent, Symbol

MOST_CHARS = 48
"""Longer names read no better than what they stand for."""

_WORDS = {"+": "plus", "*": "times", "//": "div", "%": "mod"}
_MINUS = "minus_"


def name_of(extent: Extent, symbol_name: Callable[[Symbol], str] = lambda symbol: sanitize(symbol.name)) -> str:
    """Return the name of an extent in words, an identifier of C; that of an expression may be long, or not unique.

    `symbol_name`: what symbols are called.
    """

    def leaf(value: int | Symbol) -> str:
        return symbol_name(value) if isinstance(value, Symbol) else number_name(value)

    found: str = walked(extent, leaf, combined)
    return f"extent_{found}" if found[0].isdigit() else found


def number_name(value: int) -> str:
    """Return a number as a part of a name."""
    return f"{_MINUS}{-value}" if value < 0 else str(value)


def combined(op: str, a: str, b: str) -> str:
    """Return the name of an operation of `walked` on two extents with these names."""
    if op in ("max", "min"):
        return f"{op}_of_{a}_and_{b}"
    if op == "+" and b.startswith(_MINUS):
        return f"{a}_{b}"
    if op == "*" and b == f"{_MINUS}1":
        return f"{_MINUS}{a}"
    if op == "*" and b.startswith(_MINUS):
        return f"{_MINUS}{b.removeprefix(_MINUS)}_times_{a}"
    return f"{a}_{_WORDS[op]}_{b}"
