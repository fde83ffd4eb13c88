"""Conversion of dynamic dimensions to code, to names, and to the text of calls' numbers and types in metadata.

``n0 64 *``, in reverse Polish notation, is 64 times the kernel's first number; ``?`` is an unknown dimension.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

from mlfc.support.c_names import sanitize
from mlfc.support.dims import Dim, Extent, Symbol, symbols_of
from mlfc.support.dtypes import nbytes

MOST_CHARS = 48
"""Longest name of an expression that is still readable."""

_WORDS = {"+": "plus", "*": "times", "//": "div", "%": "mod"}
_MINUS = "minus_"
UNKNOWN = "?"
_MOST_CHARACTERS = 2_000
_MOST_BITS = 64
_APPLIED: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": max,
    "min": min,
}
_TENSOR = re.compile(r"([a-z][a-z0-9_]*)\[([^][]*)\]")


def walked(extent: Extent, leaf: Callable[[int | Symbol], Any], apply: Callable[[str, Any, Any], Any]) -> Any:
    """Fold an extent: combine its symbols and numbers bottom-up.

    `leaf` is called with integers and symbols; `apply` with an operation (``+``, ``*``, ``//``, ``%``, ``max``,
    ``min``) and the results of both operands.
    """
    if not isinstance(extent, Dim):
        return leaf(extent)
    total = None
    for factors, count in extent.terms:
        parts = []
        for factor in factors:
            args = factor.args if factor.kind == "symbol" else [walked(item, leaf, apply) for item in factor.args]
            parts.append(leaf(*args) if factor.kind == "symbol" else apply(factor.kind, *args))
        parts += [leaf(count)] if count != 1 or not factors else []
        term = reduce(lambda a, b: apply("*", a, b), parts)
        total = term if total is None else apply("+", total, term)
    return total


def name_of(extent: Extent, symbol_name: Callable[[Symbol], str] = lambda symbol: sanitize(symbol.name)) -> str:
    """Return a C identifier that describes an extent; for expressions it may be long, or not unique.

    `symbol_name` returns the name of a symbol.
    """
    found: str = walked(
        extent, lambda leaf: symbol_name(leaf) if isinstance(leaf, Symbol) else number_name(leaf), combined
    )
    return f"extent_{found}" if found[0].isdigit() else found


def number_name(value: int) -> str:
    """Return the form of a number in a name."""
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


def count_text(count: Extent, symbols: Mapping[Symbol, int]) -> str:
    """Return a count as text; `symbols` maps its symbols to their index in a call's numbers."""
    if not isinstance(count, Dim):
        return str(count)
    if any(symbol not in symbols for symbol in symbols_of([count])):
        return UNKNOWN
    text: str = walked(
        count,
        lambda leaf: f"n{symbols[leaf]}" if isinstance(leaf, Symbol) else str(leaf),
        lambda kind, a, b: f"{a} {b} {kind}",
    )
    return text if len(text) <= _MOST_CHARACTERS else UNKNOWN


def tensor_text(dtype: str, shape: Iterable[Extent], symbols: Mapping[Symbol, int]) -> str:
    """Return a tensor's type as text; `symbols` as for `count_text`."""
    return f"{dtype}[{','.join(count_text(extent, symbols) for extent in shape)}]"


def counted(text: str, numbers: Sequence[int]) -> int | None:
    """Return the value of a count's text in a call with these numbers; None if invalid, or beyond 64 bits."""
    stack: list[int] = []
    try:
        for word in text[:_MOST_CHARACTERS].split():
            if word in _APPLIED:
                b, a = stack.pop(), stack.pop()
                stack.append(_APPLIED[word](a, b))
            else:
                stack.append(numbers[int(word[1:])] if word.startswith("n") else int(word))
            if stack[-1].bit_length() > _MOST_BITS:
                return None
    except (ValueError, IndexError, ZeroDivisionError):
        return None
    return stack[0] if len(stack) == 1 else None


def tensor_in_call(text: str, numbers: Sequence[int]) -> str:
    """Return a tensor's type with the dimensions that it has in a call with these numbers."""
    parts = _TENSOR.fullmatch(text)
    if parts is None or not parts[2]:
        return text
    found = [counted(extent, numbers) for extent in parts[2].split(",")]
    return f"{parts[1]}[{','.join(UNKNOWN if extent is None else str(extent) for extent in found)}]"


def nbytes_of_type(text: str) -> int:
    """Return the bytes of a tensor of this type; 0 if it has unknown dimensions."""
    parts = _TENSOR.fullmatch(text)
    if parts is None or UNKNOWN in text:
        return 0
    return prod(int(extent) for extent in parts[2].split(",") if extent) * nbytes(parts[1])


def dtype_of(text: str) -> str:
    """Return the dtype in a tensor's type."""
    return text.partition("[")[0]
