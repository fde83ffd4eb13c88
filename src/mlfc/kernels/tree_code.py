"""Decision trees as nested conditions: the fastest form, and the largest.

A node is a comparison with a literal and a branch, and a leaf adds its literals to the totals or, where that would be
too much code, says which row of scores is added behind the tree. The order of the additions is that of the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.kernels.tree_leaves import START, UNROLLED, Leaves, each_target
from mlfc.kernels.tree_numbers import Slots, cuts_of, promised, write_numbers
from mlfc.kernels.tree_tables import TreeTables
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Binary, Buffer, Expr

Array = npt.NDArray[Any]
MOST_NODES, MOST_DEPTH = 2500, 32  # compilers take time for each node, and recur for each level
MOST_BYTES = 96 << 10
# of code on a Cortex-M, about, literals included: of a node, of a leaf, of an addition in registers and in memory
_NODE_BYTES, _LEAF_BYTES, _ADDED_BYTES, _STORED_BYTES = 20, 4, 12, 20

Goes = Callable[[int], Expr]


def emit_conditions(
    ctx: Context, data: Tensor, tables: TreeTables, slots: Slots, leaves: Leaves, aggregate: str, out: Output
) -> bool:
    """Write the conditions; return whether they were: not where there would be too many, or too many in each other."""
    if not 0 < tables.nodes <= MOST_NODES or tables.depths.max() > MOST_DEPTH:
        return False
    plain = tables.nodes * _NODE_BYTES + len(leaves.row_of) * _LEAF_BYTES
    is_inline = bool(np.isfinite(leaves.rows).all()) and plain + _literal_bytes(leaves, aggregate) <= MOST_BYTES
    if not is_inline and plain > MOST_BYTES:
        return False
    stmts, targets = ctx.stmts, leaves.targets
    goes = _comparisons(ctx, data, tables, slots)
    add = None if is_inline else leaves.adder(ctx, aggregate, of_rows=True)
    with stmts.loop(data.shape[0], "row") as row:
        goes_left = goes(row)
        total = stmts.local("total", (targets,), out.dtype)
        each_target(ctx, targets, lambda target: stmts.store(total, [target], tb.const(START[aggregate], out.dtype)))
        ends = _literals(ctx, leaves, aggregate, total) if add is None else _numbers(ctx, leaves, add, total)
        _Trees(ctx, tables, leaves, goes_left, ends).write()
        each_target(ctx, targets, lambda target: out.store([row, target], tb.load(total, [target])))
    return True


def _literal_bytes(leaves: Leaves, aggregate: str) -> int:
    counts = np.count_nonzero(leaves.rows, axis=1) if aggregate == "add" else np.full(len(leaves.rows), leaves.targets)
    each = _ADDED_BYTES if leaves.targets <= UNROLLED else _STORED_BYTES
    return int(counts[leaves.row_of].sum()) * each


# Comparisons


def _comparisons(ctx: Context, data: Tensor, tables: TreeTables, slots: Slots) -> Callable[[Expr], Goes]:
    """Return what makes of a row what tells whether a node leads to the left."""
    features = ctx.features
    has_no_floats = features.is_microcontroller and not features.float_unit
    if data.dtype == "float32" and has_no_floats and tables.visits > 2 * len(slots.features):
        return _keys(ctx, data, tables, slots)
    return lambda row: (
        lambda at: _float_left(
            data(row, int(tables.feature[at])), tables.threshold[at], nan_left=bool(tables.nan_left[at])
        )
    )


def _float_left(value: Expr, threshold: Any, *, nan_left: bool) -> Expr:
    limit = tb.const(float(threshold), value.dtype)
    return tb.binary("eq", tb.binary("gt", value, limit), _FALSE) if nan_left else tb.binary("le", value, limit)


def _keys(ctx: Context, data: Tensor, tables: TreeTables, slots: Slots) -> Callable[[Expr], Goes]:
    cuts = cuts_of(tables)

    def goes(row: Expr) -> Goes:
        numbers = ctx.scratch("numbers", (len(slots.features),), "uint32")
        write_numbers(ctx, data, row, slots, numbers)
        return lambda at: tb.binary("le", tb.load(numbers, [int(slots.of_node[at])]), tb.const(int(cuts[at]), "uint32"))

    return goes


_FALSE = tb.const(False, "bool")


# Leaves


@dataclass(frozen=True, eq=False)
class _Ends:
    """What is written at the ends of trees."""

    leaf: Callable[[int], None]  # in a leaf, of its row of scores
    tree: Callable[[], None]  # behind a tree
    nothing: Array  # (rows,) of bool: whether leaves have nothing to do


def _literals(ctx: Context, leaves: Leaves, aggregate: str, total: Buffer) -> _Ends:
    """Return leaves that take their scores into the totals themselves."""
    is_sum = aggregate == "add"

    def leaf(row: int) -> None:
        scores = leaves.rows[row]
        for target in np.flatnonzero(scores).tolist() if is_sum else range(len(scores)):  # to add zero changes nothing
            value = tb.binary(aggregate, tb.load(total, [target]), tb.const(scores[target].item(), total.dtype))
            ctx.stmts.store(total, [target], value)

    return _Ends(leaf, lambda: None, np.asarray(is_sum & ~leaves.rows.any(axis=1), bool))


def _numbers(ctx: Context, leaves: Leaves, add: Callable[[Expr, Buffer], None], total: Buffer) -> _Ends:
    """Return leaves that say which row of scores is added behind their tree."""
    found = ctx.stmts.local("found", (1,), "uint32")

    def tree() -> None:
        with ctx.stmts.scope():
            add(promised(tb.load(found, [0]), len(leaves.rows)), total)

    return _Ends(lambda row: ctx.stmts.store(found, [0], row), tree, np.zeros(len(leaves.rows), bool))


# Trees


@dataclass(frozen=True, eq=False)
class _Trees:
    ctx: Context
    tables: TreeTables
    leaves: Leaves
    goes_left: Goes
    ends: _Ends

    def write(self) -> None:
        """Write all trees, one after another."""
        first = 0
        for tree, size in enumerate(self.tables.sizes.tolist()):
            self._subtree(first, first + tree, size)
            self.ends.tree()
            first += size

    def _subtree(self, at: int, leaf: int, size: int) -> None:
        """Write the subtree of `size` nodes from the node `at` on, whose first leaf is `leaf`."""
        if (row := self._only_row(leaf, size)) is not None:
            if not self.ends.nothing[row]:
                self.ends.leaf(row)
            return
        left = int(self.tables.left[at])
        here, there = (at + 1, leaf, left), (at + 1 + left, leaf + left + 1, size - 1 - left)
        if self.tables.nan_left[at] and self.tables.threshold[at] == np.inf:  # nothing goes to the right
            self._subtree(*here)
            return
        stmts, goes_left = self.ctx.stmts, self.goes_left(at)
        if self._is_nothing(*here[1:]):
            with stmts.when(_negated(goes_left)):
                self._subtree(*there)
            return
        with stmts.when(goes_left):
            self._subtree(*here)
        if not self._is_nothing(*there[1:]):
            with stmts.otherwise():
                self._subtree(*there)

    def _only_row(self, leaf: int, size: int) -> int | None:
        """Return the row of scores of all leaves of a subtree; None where they differ."""
        rows = self.leaves.row_of[leaf : leaf + size + 1]
        return int(rows[0]) if (rows == rows[0]).all() else None

    def _is_nothing(self, leaf: int, size: int) -> bool:
        row = self._only_row(leaf, size)
        return row is not None and bool(self.ends.nothing[row])


def _negated(condition: Expr) -> Expr:
    if isinstance(condition, Binary) and condition.op == "eq":  # of a comparison and false
        return condition.a
    return tb.binary("eq", condition, _FALSE)
