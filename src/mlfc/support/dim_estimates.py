"""Numbers that stand for dynamic extents in estimates: of memory, work and size."""

from __future__ import annotations

from mlfc.support.dims import LARGEST, Extent, bounds, substituted, symbols_of

NO_LIMIT = LARGEST // 128
"""Upper bounds from here on count as unbounded memory: the symbol may be a factor of a larger dimension."""
_USUAL = 64


def most(extent: Extent) -> int | None:
    """Return the largest value that an extent, or a number of bytes, may have; None where a symbol has no bound."""
    if any(symbol.high >= NO_LIMIT for symbol in symbols_of([extent])):
        return None
    return max(0, bounds(extent)[1])


def typical(extent: Extent) -> int:
    """Return a typical value of an extent, for estimates of work and size."""
    values = {symbol: max(symbol.low, min(symbol.high, _USUAL)) for symbol in symbols_of([extent])}
    return int(substituted(extent, values))
