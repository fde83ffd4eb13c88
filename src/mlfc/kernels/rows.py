"""Loops over rows: elements that are normalized together are read, reduced and written row by row.

Hosts process rows sequentially. On a device, a group of work-items processes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TypeAlias

from mlfc.kernels.folding import Axes, Fold, emit_fold, serial_loops
from mlfc.kernels.gpu_fold import WARP, fold_in_tree, power_of_two, shared_out, unraveled
from mlfc.support import dtypes
from mlfc.support.dim_estimates import typical
from mlfc.support.dims import bounds, maximum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Output, Reader
from mlfc.tir.ir import Expr


@dataclass(frozen=True)
class KeptRow:
    """A row that is written once and read back; each work-item reads the elements that it wrote."""

    store: Callable[[Indices, Expr], None]
    read: Reader


class PlainRows:
    """Sequential loops over rows."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    @contextmanager
    def over(self, extents: Sequence[int]) -> Iterator[Sequence[Expr]]:
        """Open one serial loop per extent."""
        with serial_loops(self.ctx, extents, "row") as outer:
            yield outer

    @contextmanager
    def elements(self, shape: Sequence[int], prefix: str) -> Iterator[Sequence[Expr]]:
        """Open one loop per axis."""
        with self.ctx.loops(shape, prefix) as row:
            yield row

    def folded(self, name: str, shape: tuple[int, ...], read: Reader, fold: Fold) -> Expr:
        """Write the reduction of a whole row and return its result."""
        result = self.ctx.stmts.local(name, (1,), fold.dtype)
        out = Output((), fold.dtype, lambda _, value: self.ctx.stmts.store(result, [0], value))
        emit_fold(self.ctx, read, Axes(shape, tuple(range(len(shape))), keepdims=False), fold, out)
        return tb.load(result, [0])

    def keep(self, name: str, shape: Sequence[int], dtype: str) -> KeptRow:
        """Return scratch that all rows share."""
        buffer = self.ctx.scratch(name, shape, dtype)
        self.ctx.stmts.refill(buffer)
        return KeptRow(partial(self.ctx.stmts.store, buffer), partial(tb.load, buffer))


class GroupRows:
    """Loops with a group of work-items for each row of `length` elements."""

    def __init__(self, ctx: Context, length: int) -> None:
        self._ctx = ctx
        self._items = max(WARP, power_of_two(-(-typical(length) // 4), ctx.features.group_items))
        self._shared = ctx.features.shared_bytes - 4096  # excluding the memory of reductions
        self._item: Expr = tb.const(0)
        self._row: Expr = tb.const(0)
        self._rows = 1

    @contextmanager
    def over(self, extents: Sequence[int]) -> Iterator[Sequence[Expr]]:
        """Open the launch; yield the indices of the group's row."""
        self._rows = prod(extents)
        groups = maximum(1, self._rows)
        with self._ctx.stmts.launch((groups,), (self._items,)) as ((row,), (item,)):
            self._row, self._item = row, item
            is_whole = groups == self._rows
            with nullcontext() if is_whole else self._ctx.stmts.when(tb.binary("lt", row, self._rows)):
                yield unraveled(row, extents)

    @contextmanager
    def elements(self, shape: Sequence[int], prefix: str) -> Iterator[Sequence[Expr]]:
        """Open the loop over a work-item's share of the elements."""
        del prefix
        with shared_out(self._ctx, prod(shape), self._item, self._items) as place:
            yield unraveled(place, shape)

    def folded(self, name: str, shape: tuple[int, ...], read: Reader, fold: Fold) -> Expr:
        """Write the reduction of the whole row and return its result, which is available to all work-items."""
        stmts = self._ctx.stmts
        total = stmts.filled("part", 1, fold.dtype, fold.neutral)
        with self.elements(shape, "r") as row:
            stmts.store(total, [0], fold.step(tb.load(total, [0]), tb.cast(read(row), fold.dtype)))
        partial_results = stmts.shared(name, (self._items,), fold.dtype)
        stmts.store(partial_results, [self._item], tb.load(total, [0]))
        fold_in_tree(self._ctx, partial_results, self._item, [], fold.step)
        return stmts.let("folded", fold.finish(tb.load(partial_results, [0])), fold.dtype)

    def keep(self, name: str, shape: Sequence[int], dtype: str) -> KeptRow:
        """Return shared memory of the group or, for long rows, scratch for all rows."""
        stmts = self._ctx.stmts
        needed = prod(shape) * dtypes.nbytes(dtype)
        if bounds(needed)[1] <= self._shared:
            self._shared -= needed
            buffer = stmts.shared(name, shape, dtype)
            return KeptRow(partial(stmts.store, buffer), partial(tb.load, buffer))
        rows = self._ctx.scratch(name, (self._rows, *shape), dtype)

        def store(indices: Indices, value: Expr) -> None:
            stmts.store(rows, [self._row, *indices], value)

        return KeptRow(store, lambda indices: tb.load(rows, [self._row, *indices]))


Rows: TypeAlias = PlainRows | GroupRows
"""The loops of an operator that processes rows."""


def rows_of(ctx: Context, length: int) -> Rows:
    """Return the loops over rows of `length` elements for the target."""
    return GroupRows(ctx, length) if ctx.features.gpu else PlainRows(ctx)
