"""Representative values of dynamic dimensions for estimates of memory, work and size."""

from __future__ import annotations

from mlfc.support.dims import LARGEST, Extent, bounds, substituted, symbols_of

NO_LIMIT = LARGEST // 128
"""Upper bounds of at least this count as unbounded: the symbol may be a factor of a larger dimension."""
_USUAL = 64


def most(extent: Extent) -> int | None:
    """Return the largest value of an extent or number of bytes; None if a symbol is unbounded."""
    if any(symbol.high >= NO_LIMIT for symbol in symbols_of([extent])):
        return None
    return max(0, bounds(extent)[1])


def typical(extent: Extent) -> int:
    """Return a typical value of an extent, for estimates of work and size."""
    values = {symbol: max(symbol.low, min(symbol.high, _USUAL)) for symbol in symbols_of([extent])}
    return int(substituted(extent, values))
