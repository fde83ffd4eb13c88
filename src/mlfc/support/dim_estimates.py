"""Representative values of dynamic dimensions for estimates of memory, work and size."""

from __future__ import annotations

from mlfc.support.dims import LARGEST, Extent, bounds, substituted, symbols_of

NO_LIMIT = LARGEST // 128
"""Upper bounds of at least this count as unbounded: the symbol may be a factor of a larger dimension."""
_USUAL = 64
_MOST = (1 << 53) - 1  # of metadata


def most(extent: Extent) -> int | None:
    """Return the largest value of an extent or number of bytes; None if it or a symbol of it is unbounded."""
    if any(symbol.high >= NO_LIMIT for symbol in symbols_of([extent])):
        return None
    largest = max(0, bounds(extent)[1])
    return largest if largest <= _MOST else None


def most_work(count: Extent) -> int:
    """Return a number of operations for the largest dimensions; those without a bound count as 1."""
    sizes = {symbol: symbol.high if symbol.high < NO_LIMIT else 1 for symbol in symbols_of([count])}
    return min(max(0, int(substituted(count, sizes))), _MOST)


def typical(extent: Extent) -> int:
    """Return a typical value of an extent, for estimates of work and size."""
    values = {symbol: max(symbol.low, min(symbol.high, _USUAL)) for symbol in symbols_of([extent])}
    return int(substituted(extent, values))
