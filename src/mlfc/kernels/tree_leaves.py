"""How the scores of leaves are stored, and taken into totals.

Rows of scores are stored once each, and by targets that are not zero where that is smaller: to add zero changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.kernels.tree_numbers import limited
from mlfc.kernels.tree_tables import TreeTables, narrow
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Buffer, Expr

Array = npt.NDArray[Any]
START = {"add": 0.0, "min": np.inf, "max": -np.inf}
"""What totals are before the first tree."""
UNROLLED = 4  # most targets whose sums are written one by one, so that compilers keep them in registers


@dataclass(frozen=True, eq=False)
class Leaves:
    """The scores of leaves, each row once."""

    plain: Array  # (leaves, targets)
    rows: Array  # (rows, targets)
    row_of: Array  # (leaves,)

    @staticmethod
    def of(tables: TreeTables, scores: Array) -> Leaves:
        """Return the leaves of tables."""
        plain = np.ascontiguousarray(scores[tables.leaves])
        bits = plain.view(f"u{plain.itemsize}")  # zeros of both signs are two
        rows, row_of = np.unique(bits, axis=0, return_inverse=True)
        return Leaves(plain, rows.view(plain.dtype), narrow(row_of.reshape(-1)))

    @property
    def targets(self) -> int:
        """Scores of a leaf."""
        return int(self.plain.shape[1])

    def adder(self, ctx: Context, aggregate: str, *, of_rows: bool = False) -> Callable[[Expr, Buffer], None]:
        """Return what takes the scores of a leaf, or of a row, into the totals, in the smallest form."""
        sparse = _Sparse.of(self.rows)
        mapped = 0 if of_rows else self.row_of.nbytes
        sizes = {"mapped": mapped + self.rows.nbytes}
        if not of_rows:
            sizes = {"plain": self.plain.nbytes, **sizes}
        if aggregate == "add" and self.targets > 2:
            sizes["sparse"] = mapped + sparse.nbytes
        form = min(sizes, key=lambda name: sizes[name])
        is_mapped = form != "plain" and not of_rows
        mapping = ctx.constant("score_of_leaf", self.row_of) if is_mapped else None

        def row(leaf: Expr) -> Expr:
            found = leaf if mapping is None else limited(tb.load(mapping, [leaf]), len(self.rows))
            return leaf if form == "plain" else ctx.stmts.let("row", found)

        if form == "sparse":
            return sparse.adder(ctx, row)
        return _dense(ctx, self.plain if form == "plain" else self.rows, row, aggregate)


def each_target(ctx: Context, count: int, write: Callable[[Expr], None]) -> None:
    """Write something for each target, in a loop if they are many."""
    if count <= UNROLLED:
        for index in range(count):
            write(tb.const(index))
        return
    with ctx.stmts.loop(count, "target") as target:
        write(target)


def _dense(ctx: Context, scores: Array, row: Callable[[Expr], Expr], aggregate: str) -> Callable[[Expr, Buffer], None]:
    stmts, table = ctx.stmts, ctx.constant("scores", scores)

    def add(leaf: Expr, total: Buffer) -> None:
        found = row(leaf)

        def include(target: Expr) -> None:
            value = tb.binary(aggregate, tb.load(total, [target]), tb.load(table, [found, target]))
            stmts.store(total, [target], value)

        each_target(ctx, scores.shape[1], include)

    return add


@dataclass(frozen=True, eq=False)
class _Sparse:
    """Rows of scores without their zeros."""

    begin: Array  # (rows + 1,): the first entry of each row
    target: Array  # (entries,)
    number: Array  # (entries,): of the value
    values: Array
    targets: int

    @staticmethod
    def of(rows: Array) -> _Sparse:
        where, target = np.nonzero(rows)
        values, number = np.unique(rows[where, target], return_inverse=True)
        begin = np.searchsorted(where, np.arange(len(rows) + 1))
        return _Sparse(narrow(begin), narrow(target), narrow(number.reshape(-1)), values, rows.shape[1])

    @property
    def nbytes(self) -> int:
        return self.begin.nbytes + self.target.nbytes + self.number.nbytes + self.values.nbytes

    def adder(self, ctx: Context, row: Callable[[Expr], Expr]) -> Callable[[Expr, Buffer], None]:
        """Return what adds a row to totals."""
        stmts, entries = ctx.stmts, len(self.target)
        begins, targets = ctx.constant("begin", self.begin), ctx.constant("target_of", self.target)
        numbers, values = ctx.constant("value_of", self.number), ctx.constant("values", self.values)

        def add(leaf: Expr, total: Buffer) -> None:
            found = row(leaf)
            first = stmts.let("entries", tb.cast(tb.load(begins, [found]), "int32"))
            count = tb.cast(tb.load(begins, [found + 1]), "int32") - first
            with stmts.loop(tb.intrinsic("within", count, tb.const(self.targets)), "entry") as index:
                entry = stmts.let("place", limited(first + index, entries))
                at = stmts.let("target", limited(tb.load(targets, [entry]), self.targets))
                value = tb.load(values, [limited(tb.load(numbers, [entry]), len(self.values))])
                stmts.store(total, [at], tb.load(total, [at]) + value)

        return add
