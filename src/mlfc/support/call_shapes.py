"""Numbers and types of one kernel call as text: in metadata, with what the run decides left open.

An open number is written in reverse Polish notation: ``n0 64 *`` is 64 times the first number that the kernel is called
with. A tensor is ``float32[1,n0 64 *]``; an extent of which the call's numbers tell nothing is ``?``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

from mlfc.support.dim_walk import walked
from mlfc.support.dims import Dim, Extent, Symbol, symbols_of
from mlfc.support.dtypes import nbytes

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


def count_text(count: Extent, symbols: Mapping[Symbol, int]) -> str:
    """Return a number as text; `symbols` are the places of its symbols among a call's numbers."""
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
    """Return the number that a text is in a call with these numbers; None if it is none, or beyond 64 bits."""
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
    """Return a tensor's type with the extents that it has in a call with these numbers."""
    parts = _TENSOR.fullmatch(text)
    if parts is None or not parts[2]:
        return text
    found = [counted(extent, numbers) for extent in parts[2].split(",")]
    return f"{parts[1]}[{','.join(UNKNOWN if extent is None else str(extent) for extent in found)}]"


def nbytes_of_type(text: str) -> int:
    """Return the bytes of a tensor of a type without unknown dimensions, 0 for others."""
    parts = _TENSOR.fullmatch(text)
    if parts is None or UNKNOWN in text:
        return 0
    return prod(int(extent) for extent in parts[2].split(",") if extent) * nbytes(parts[1])


def dtype_of(text: str) -> str:
    """Return a tensor's dtype."""
    return text.partition("[")[0]
