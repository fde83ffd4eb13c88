"""Rows on devices: a group of work-items shares out the elements of a row and folds what each of them has in a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod

from mlfc.kernels.folding import Fold
from mlfc.kernels.gpu_groups import WARP, fold_in_tree, power_of_two, shared_out, unraveled
from mlfc.kernels.plain_rows import Kept
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Reader
from mlfc.tir.ir import Expr


class GroupRows:
    """A group a row.

    Parameters
    ----------
    length : int
        Elements of a row.
    """

    def __init__(self, ctx: Context, length: int) -> None:
        self._ctx = ctx
        self._items = max(WARP, power_of_two(-(-length // 4), ctx.features.group_items))
        self._shared = ctx.features.shared_bytes - 4096  # less what folds take
        self._item: Expr = tb.const(0)
        self._row: Expr = tb.const(0)
        self._rows = 1

    @contextmanager
    def over(self, extents: Sequence[int]) -> Iterator[Sequence[Expr]]:
        """Open the launch; yield the indices of the group's row."""
        self._rows = prod(extents)
        with self._ctx.stmts.launch((self._rows,), (self._items,)) as ((row,), (item,)):
            self._row, self._item = row, item
            yield unraveled(row, extents)

    @contextmanager
    def elements(self, shape: Sequence[int], prefix: str) -> Iterator[Sequence[Expr]]:
        """Open the loop over a work-item's share of the elements."""
        del prefix
        with shared_out(self._ctx, prod(shape), self._item, self._items) as place:
            yield unraveled(place, shape)

    def folded(self, name: str, shape: tuple[int, ...], read: Reader, fold: Fold) -> Expr:
        """Write the fold of the whole row and return its result, which all work-items have."""
        stmts = self._ctx.stmts
        total = stmts.local("part", (1,), fold.dtype)
        stmts.store(total, [0], tb.const(fold.neutral, fold.dtype))
        with self.elements(shape, "r") as row:
            stmts.store(total, [0], fold.step(tb.load(total, [0]), tb.cast(read(row), fold.dtype)))
        partial_results = stmts.shared(name, (self._items,), fold.dtype)
        stmts.store(partial_results, [self._item], tb.load(total, [0]))
        fold_in_tree(self._ctx, partial_results, self._item, [], fold.step)
        return stmts.let("folded", fold.finish(tb.load(partial_results, [0])), fold.dtype)

    def keep(self, name: str, shape: Sequence[int], dtype: str) -> Kept:
        """Return memory that the group shares or, for long rows, scratch for all rows."""
        stmts = self._ctx.stmts
        needed = prod(shape) * dtypes.nbytes(dtype)
        if needed <= self._shared:
            self._shared -= needed
            buffer = stmts.shared(name, shape, dtype)
            return Kept(partial(stmts.store, buffer), partial(tb.load, buffer))
        rows = self._ctx.scratch(name, (self._rows, *shape), dtype)

        def store(indices: Indices, value: Expr) -> None:
            stmts.store(rows, [self._row, *indices], value)

        return Kept(store, lambda indices: tb.load(rows, [self._row, *indices]))
