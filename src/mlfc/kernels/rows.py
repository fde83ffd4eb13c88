"""Loops over rows: what is normalized together is read, folded and written a row at a time.

Hosts take one row after another. On a device a row is the work of a group of work-items.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from mlfc.kernels.folding import Fold
from mlfc.kernels.gpu_rows import GroupRows
from mlfc.kernels.plain_rows import Kept, PlainRows
from mlfc.tir.context import Context, Reader
from mlfc.tir.ir import Expr


class Rows(Protocol):
    """The loops of an operator that works on rows."""

    def over(self, extents: Sequence[int]) -> AbstractContextManager[Sequence[Expr]]:
        """Open the loops over rows; yield the indices of one."""

    def elements(self, shape: Sequence[int], prefix: str) -> AbstractContextManager[Sequence[Expr]]:
        """Open the loops over the elements of a row; yield the indices of one."""

    def folded(self, name: str, shape: tuple[int, ...], read: Reader, fold: Fold) -> Expr:
        """Write the fold of a whole row and return its result."""

    def keep(self, name: str, shape: Sequence[int], dtype: str) -> Kept:
        """Return memory for a row; call it inside `over`."""


def rows_of(ctx: Context, length: int) -> Rows:
    """Return the loops over rows of `length` elements for the target."""
    return GroupRows(ctx, length) if ctx.features.gpu else PlainRows(ctx)
