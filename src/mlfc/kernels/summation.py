"""Long float sums in pieces, so that their rounding errors do not grow with their length.

A sum of n floats, one after another, is off by some sqrt(n) roundings of its size; so a long one starts afresh after
every few hundred products, and the pieces are added up apart. Shorter sums keep the references' order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Expr

LONGEST = 1024  # products that are added up one after another
PIECE = 512  # most products of a piece of a longer sum

Piece: TypeAlias = "tuple[Expr, Expr]"


def is_long(dtype: str, steps: int) -> bool:
    """Tell whether a sum of `steps` products is taken in pieces; integers are exact in any order."""
    return dtypes.is_float(dtypes.element(dtype)) and steps > LONGEST


@contextmanager
def piece(ctx: Context, steps: int, whole: bool) -> Iterator[Piece]:
    """Open a loop over pieces of a range; yield the start and the extent of a piece.

    Parameters
    ----------
    steps : int
        The range; pieces are equal where it has a divisor for that, else the last one is shorter.
    whole : bool
        Make one piece of it all.
    """
    fewest = 1 if whole else -(-steps // PIECE)
    count = next((number for number in range(fewest, 2 * fewest) if steps % number == 0), fewest)
    size = -(-steps // count)
    with ctx.stmts.loop(count, "piece") as index:
        first = index * size
        yield first, tb.const(size) if count * size == steps else tb.minimum(size, steps - first)
