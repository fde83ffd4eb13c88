"""Constraints of symbols: what makes dimension sizes equal, multiples of numbers, or large enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from math import gcd
from typing import Any

from mlfc.frontend.onnx.node import Node
from mlfc.relay.dynamic import unproven_extents
from mlfc.relay.ir import Call, Expr, Function, If, Tuple
from mlfc.relay.visitor import post_order
from mlfc.support.dims import Dim, Extent, Symbol, UndecidedError, bounds, factors_of, maximum, minimum, substituted

_MULTIPLES = (2, 4, 8, 16, 32, 64, 128)
_BY = "_by_"


def making_equal(a: Extent, b: Extent, own: AbstractSet[Symbol]) -> dict[Symbol, Extent] | None:
    """Return what makes two extents equal: a symbol of the inputs, and what it has to be; None if nothing does."""
    difference = a - b
    if not isinstance(difference, Dim):
        return None
    for extent, other in ((a, b), (b, a)):
        limited = _limited(extent, other) if isinstance(extent, Dim) and extent.symbol in own else None
        if limited is not None:
            return limited
    difference = _without_factors(difference)
    if not isinstance(difference, Dim):
        return None
    rests = [
        (symbol, symbol.dim - sign * difference) for symbol in sorted(difference.symbols & own) for sign in (1, -1)
    ]
    rests = [(symbol, rest) for symbol, rest in rests if not isinstance(rest, Dim) or symbol not in rest.symbols]
    # a sum is better than a difference, which may be negative
    rests.sort(key=lambda found: bounds(found[1])[0] < found[0].low)
    return _replacing(*rests[0], own) if rests else _making_none(a, b, own)


def making_least(extent: Extent, least: int, own: AbstractSet[Symbol]) -> dict[Symbol, Extent] | None:
    """Return the symbol of the inputs in the bounds in which an extent is at least a number; None if nothing does."""
    symbol = _only_symbol(extent, own)
    if symbol is None:
        return None
    found = _from_where_on(symbol, partial(_reaches, extent, symbol, least))
    return None if found is None else _if_it_holds(symbol, found, symbol.high, lambda given: given(extent) >= least)


def fitting_length(
    node: Node, declared: Sequence[int | str] | None, own: AbstractSet[Symbol]
) -> dict[Symbol, Extent] | None:
    """Return the length of a list of dynamic length that determines a shape, from the ranks of tensors."""
    index = {"ConstantOfShape": 0, "Resize": 3}.get(node.operator, 1)
    shape = node.shape(index) if node.has(index) else ()
    if len(shape) != 1 or not isinstance(shape[0], Dim) or node.given("axes") or node.has(3) != (index == 3):
        return None
    rank, others = node.rank(0), None if declared is None else len(declared)
    lengths = {
        **dict.fromkeys(("Reshape", "Expand", "ConstantOfShape"), others),
        **dict.fromkeys(("Squeeze", "Unsqueeze"), None if others is None else abs(rank - others)),
        "Tile": rank, "Resize": rank, "Pad": 2 * rank, "Split": len(node.outputs),
    }  # fmt: skip
    length = lengths.get(node.operator)
    return making_equal(shape[0], length, own) if length else None


def fitting_windows(
    results: Sequence[Expr], own: AbstractSet[Symbol], functions: Mapping[str, Function]
) -> dict[Symbol, Extent]:
    """Return symbols of the inputs in the bounds in which windows of convolutions and pools fit into their data.

    Of two branches the wider bounds count: which one runs is not known, and the other may need less. The bodies of
    loops do not count, because a loop may run no iteration.
    """
    found: dict[Symbol, Extent] = {}
    for node in post_order(Tuple(tuple(results))):
        narrower: list[Mapping[Symbol, Extent]] = []
        if isinstance(node, Call):
            narrower = [making_least(extent, least, own) or {} for extent, least in unproven_extents(node).items()]
        elif isinstance(node, If):
            then, other = (
                fitting_windows([functions[branch.name].body], own, functions) for branch in (node.then, node.otherwise)
            )
            narrower = [{symbol: _joined(symbol, then[symbol], other[symbol]) for symbol in then.keys() & other}]
        for symbol, narrow in ((symbol, narrow) for item in narrower for symbol, narrow in item.items()):
            (low, high), (least, most) = bounds(narrow), bounds(found.get(symbol, symbol.dim))
            found[symbol] = Symbol(symbol.name, max(low, least), min(high, most)).dim
    return found


def _joined(symbol: Symbol, *ranges: Extent) -> Dim:
    lows, highs = zip(*map(bounds, ranges), strict=True)
    return Symbol(symbol.name, min(lows), max(highs)).dim


def _making_none(a: Extent, b: Extent, own: AbstractSet[Symbol]) -> dict[Symbol, Extent] | None:
    """Return the symbol in the bounds in which a factor of the difference of two extents is 0, as a quotient may be."""
    for factor in factors_of(a - b):
        symbol = _only_symbol(factor, own)
        if symbol is None:
            continue
        for sign in (1, -1):
            first, behind = (_from_where_on(symbol, partial(_reaches, sign * factor, symbol, end)) for end in (0, 1))
            if first is None:
                continue
            last = symbol.high if behind is None else behind - 1
            found = _if_it_holds(symbol, first, last, lambda given: given(a) == given(b) and bounds(given(a))[1] > 0)
            if found is not None:
                return found
    return None


def _only_symbol(extent: Extent, own: AbstractSet[Symbol]) -> Symbol | None:
    """Return the symbol of an expression that has one, which is of an input."""
    symbols = extent.symbols if isinstance(extent, Dim) else frozenset()
    return next(iter(symbols)) if len(symbols) == 1 and symbols <= own else None


def _reaches(extent: Extent, symbol: Symbol, least: int, value: int) -> bool:
    try:
        return bool(substituted(extent, {symbol: value}) >= least)
    except ZeroDivisionError:
        return False


def _from_where_on(symbol: Symbol, holds: Callable[[int], bool]) -> int | None:
    """Return the least value of a symbol at which something holds that does so from there on; None if it never does."""
    low, high = symbol.low, symbol.high
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _if_it_holds(
    symbol: Symbol, low: int, high: int, holds: Callable[[Callable[[Extent], Any]], bool]
) -> dict[Symbol, Extent] | None:
    """Return a symbol in other bounds if something holds for all of its values there, which a search only supposes."""
    if not symbol.low <= low <= high <= symbol.high or (low, high) == (symbol.low, symbol.high):
        return None
    found: dict[Symbol, Extent] = {symbol: low if low == high else Symbol(symbol.name, low, high).dim}
    try:
        return found if holds(lambda extent: substituted(extent, found)) else None
    except (UndecidedError, ZeroDivisionError):
        return None


def making_multiples(
    a: Extent, b: Extent, own: AbstractSet[Symbol], by: Extent | None = None
) -> dict[Symbol, Extent] | None:
    """Return multiples of symbols that make two extents equal, in the place of symbols of the inputs.

    One symbol is tried before all of those in both extents. `by` is a count to try that is no power of 2.
    """
    difference: Any = a - b
    symbols = sorted(difference.symbols & own) if isinstance(difference, Dim) else []
    likely = (by,) if isinstance(by, int) and by not in _MULTIPLES else ()
    for count in (*_MULTIPLES, *likely):
        for chosen in [*([symbol] for symbol in symbols), symbols]:
            found = {symbol: _multiple(symbol, count, own) for symbol in chosen}
            if found and None not in found.values() and substituted(a, found) == substituted(b, found):
                return found
    return None


def _multiple(symbol: Symbol, count: int, own: AbstractSet[Symbol]) -> Any:
    """Return `count` times a symbol named after what it counts; None if its bounds exclude that."""
    name, by, before = symbol.name.rpartition(_BY)
    if not (by and before.isdigit()):
        name, before = symbol.name, "1"
    total = int(before) * count
    low, high = -(-symbol.low // count), symbol.high // count
    if low > high or total > max(_MULTIPLES):
        return None
    title = f"{name}{_BY}{total}"
    while any(other.name == title for other in own):
        title += "_"
    return count * Symbol(title, low, high).dim


def _without_factors(difference: Dim) -> Any:
    """Return a difference without symbols that all its terms are multiples of."""
    for symbol in sorted(difference.symbols):
        while isinstance(difference, Dim) and difference % symbol.dim == 0:
            difference = difference // symbol.dim
    counts = [count for _, count in difference.terms] if isinstance(difference, Dim) else [1]
    return difference // gcd(*counts)


def _limited(extent: Dim, other: Extent) -> dict[Symbol, Extent] | None:
    """Return the symbol in the bounds in which it is the smaller, or larger, one of itself and a number."""
    symbol = extent.symbol
    assert symbol is not None
    for chosen, low, high in ((minimum, symbol.low, None), (maximum, None, symbol.high)):
        for limit in bounds(other):
            found = Symbol(symbol.name, limit if low is None else low, limit if high is None else high)
            if found.low <= found.high and found != symbol and chosen(extent, limit) == other:
                return {symbol: found.low if found.low == found.high else found.dim}
    return None


def _replacing(symbol: Symbol, rest: Extent, own: AbstractSet[Symbol]) -> dict[Symbol, Extent] | None:
    low, high = bounds(rest)
    if low > symbol.high or high < symbol.low:
        return None
    other = rest.symbol if isinstance(rest, Dim) else None
    if other is not None:
        # one symbol with the bounds of both, under the name that sorts first
        first, second = sorted((symbol, other))
        both = Symbol(first.name, max(first.low, second.low), min(first.high, second.high))
        return {first: both.dim, second: both.dim} if both != first else {second: both.dim}
    return None if isinstance(rest, Dim) and not rest.symbols <= own else {symbol: rest}
