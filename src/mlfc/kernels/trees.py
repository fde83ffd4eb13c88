"""Loops of decision trees whose tables are constants, and nested conditions for few trees.

Features and thresholds are compared as floats; as keys (unsigned integers in the order of the floats) for cores without
an FPU; or as ranks among thresholds, so that a node takes only a byte or two. All forms have equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.kernels import tree_tables as tt
from mlfc.kernels.tree_tables import Leaves, Slots, TreeTables, limited, narrow, promised
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Binary, Buffer, Expr

Array = npt.NDArray[Any]
MOST_NODES, MOST_DEPTH = 2500, 32  # compilers need time for each node, and recursion for each level
MOST_BYTES = 96 << 10
# approximate size of Cortex-M code, including literals: of a node, a leaf, an addition in registers, and one in memory
_NODE_BYTES, _LEAF_BYTES, _ADDED_BYTES, _STORED_BYTES = 20, 4, 12, 20
_RANK_CODE = 96  # approximate size in bytes of the code for ranks
_FALSE = tb.const(False, "bool")

# maps a row of data to the condition that a node, given by its index or an expression of it, goes left
Goes = Callable[[Expr], Callable[[Any], Expr]]


def emit_trees(ctx: Context, data: Tensor, tables: TreeTables, scores: Array, aggregate: str, out: Output) -> bool:
    """Write the loops and return True, or return False: if NaN goes both ways and the dtype of the data has no keys."""
    slots, leaves = Slots.of(tables), Leaves.of(tables, scores)
    if not ctx.small and _emit_conditions(ctx, data, tables, slots, leaves, aggregate, out):
        return True
    form = _form(ctx, data, tables, slots)
    if form is None:
        return False
    stmts = ctx.stmts
    sizes = ctx.constant("sizes", narrow(tables.sizes))
    left = ctx.constant("left", narrow(tables.left + 1))  # including the node itself
    add = leaves.adder(ctx, aggregate)
    goes = _floats(ctx, data, tables, slots) if form == "floats" else _integers(ctx, data, tables, slots, form)
    with _row(ctx, data, goes, leaves.targets, aggregate, out) as (goes_left, total):
        first = stmts.filled("first", 1, "uint32")
        with stmts.loop(len(tables.sizes), "tree") as tree:
            leaf = _walk(ctx, tables, (sizes, left, first), tree, goes_left)
            add(leaf, total)
    return True


@contextmanager
def _row(
    ctx: Context, data: Tensor, goes: Goes, targets: int, aggregate: str, out: Output
) -> Iterator[tuple[Callable[[Any], Expr], Buffer]]:
    """Open the loop over rows of data; yield the condition function of nodes, and the totals."""
    stmts = ctx.stmts
    with stmts.loop(data.shape[0], "row") as row:
        goes_left = goes(row)
        total = stmts.local("total", (targets,), out.dtype)
        tt.each_target(ctx, targets, lambda target: stmts.store(total, [target], tt.START[aggregate]))
        yield goes_left, total
        tt.each_target(ctx, targets, lambda target: out.store([row, target], tb.load(total, [target])))


def _walk(
    ctx: Context, tables: TreeTables, buffers: tuple[Buffer, Buffer, Buffer], tree: Expr, goes_left: Callable[..., Expr]
) -> Expr:
    """Write the traversal of one tree; return the index of the leaf."""
    stmts, (sizes, left, first) = ctx.stmts, buffers
    size = stmts.let("size", tb.cast(tb.load(sizes, [tree]), "uint32"))
    node, leaf, stop = (stmts.local(name, (1,), "uint32") for name in ("node", "leaf", "stop"))
    stmts.store(node, [0], tb.load(first, [0]))
    stmts.store(leaf, [0], tb.load(first, [0]) + tb.cast(tree, "uint32"))
    stmts.store(first, [0], tb.load(first, [0]) + size)
    stmts.store(stop, [0], tb.load(first, [0]))
    if tables.nodes:
        with stmts.scope() if tables.sizes.all() else stmts.when(tb.binary("ne", size, 0)):
            # the remaining subtree consists of the nodes from `node` to `stop`
            is_leaf = tb.binary("eq", tb.load(node, [0]), tb.load(stop, [0]))
            with stmts.loop_until(is_leaf, int(tables.depths.max()), "level"):
                at = stmts.let("at", promised(tb.load(node, [0]), tables.nodes))
                beyond = stmts.let("beyond", tb.cast(tb.load(left, [at]), "uint32"))
                with stmts.when(goes_left(at)):
                    stmts.store(stop, [0], tb.load(node, [0]) + beyond)
                    stmts.store(node, [0], tb.load(node, [0]) + 1)
                with stmts.otherwise():
                    stmts.store(leaf, [0], tb.load(leaf, [0]) + beyond)
                    stmts.store(node, [0], tb.load(node, [0]) + beyond)
    return stmts.let("end", promised(tb.load(leaf, [0]), len(tables.leaves)))


# Comparisons


def _form(ctx: Context, data: Tensor, tables: TreeTables, slots: Slots) -> str | None:
    if data.dtype != "float32" or not tables.nodes:
        return None if slots.is_mixed else "floats"
    if not ctx.features.is_microcontroller:
        return "keys" if slots.is_mixed else "floats"
    if ctx.small:
        ranks, cuts = _ranks(tables, slots)
        nbytes = narrow(ranks).nbytes + 4 * sum(map(len, cuts)) + narrow(_offsets(cuts)).nbytes
        if nbytes + _RANK_CODE < tables.threshold.nbytes // 2:  # computing ranks takes longer than one tree
            return "ranks"
    return "keys" if slots.is_mixed or tables.visits > 2 * len(slots.features) else "floats"


def _floats(ctx: Context, data: Tensor, tables: TreeTables, slots: Slots) -> Goes:
    feature = ctx.constant("feature", narrow(tables.feature))
    threshold = ctx.constant("threshold", tables.threshold)

    def goes_left(row: Expr, at: Expr) -> Expr:
        value = data(row, limited(tb.load(feature, [at]), data.shape[1]))
        return _float_left(value, tb.load(threshold, [at]), nan_left=not slots.right)

    return lambda row: lambda at: goes_left(row, at)


def _float_left(value: Expr, limit: Expr, *, nan_left: bool) -> Expr:
    return tb.binary("eq", tb.binary("gt", value, limit), _FALSE) if nan_left else tb.binary("le", value, limit)


def _integers(ctx: Context, data: Tensor, tables: TreeTables, slots: Slots, form: str) -> Goes:
    """Return the comparison of keys or ranks, which are in tables."""
    ranks, cuts = _ranks(tables, slots) if form == "ranks" else (None, None)
    cut = ctx.constant("cut", tt.cuts_of(tables) if ranks is None else narrow(ranks))
    slot = ctx.constant("feature", narrow(slots.of_node))
    search = None if cuts is None else _search(ctx, cuts)
    count = len(slots.features)
    return _compared(
        ctx, data, slots, (cut.dtype, search),
        lambda at: limited(tb.load(slot, [at]), count), lambda at: tb.load(cut, [at]),
    )  # fmt: skip


def _compared(
    ctx: Context,
    data: Tensor,
    slots: Slots,
    made: tuple[str, Callable[[Expr, Expr, str], Expr] | None],
    slot: Callable[[Any], Any],
    cut: Callable[[Any], Expr],
) -> Goes:
    """Return the comparison of integers `made` from features with the `cut` of a node, by its `slot`."""

    def goes(row: Expr) -> Callable[[Any], Expr]:
        numbers = ctx.scratch("numbers", (len(slots.features),), made[0])
        tt.write_numbers(ctx, data, row, slots, numbers, made[1])
        return lambda at: tb.binary("le", tb.load(numbers, [slot(at)]), cut(at))

    return goes


def _ranks(tables: TreeTables, slots: Slots) -> tuple[Array, list[Array]]:
    """Return the rank of each node's threshold, and the sorted keys of the thresholds of each slot."""
    keys = tt.cuts_of(tables)
    ranks, cuts = np.zeros(tables.nodes, np.int64), []
    for slot in range(len(slots.features)):
        own = slots.of_node == slot
        known, of_own = np.unique(keys[own], return_inverse=True)
        ranks[own] = of_own.reshape(-1)
        cuts.append(known)
    ranks_and_end = np.append(ranks, max(map(len, cuts), default=0))  # the rank of values above all thresholds
    return narrow(ranks_and_end)[:-1], cuts


def _offsets(cuts: list[Array]) -> Array:
    return np.cumsum([0, *map(len, cuts)])


def _search(ctx: Context, cuts: list[Array]) -> Callable[[Expr, Expr, str], Expr]:
    """Return a function that counts the thresholds of a slot below a key by binary search."""
    stmts = ctx.stmts
    known = ctx.constant("cuts", np.concatenate(cuts))
    offset = ctx.constant("cuts_begin", narrow(_offsets(cuts)))
    steps = max(map(len, cuts)).bit_length()

    def search(slot: Expr, key: Expr, dtype: str) -> Expr:
        begin = stmts.let("begin", tb.cast(tb.load(offset, [slot]), "int32"))
        count = stmts.let("count", tb.cast(tb.load(offset, [slot + 1]), "int32") - begin)
        rank = stmts.filled("rank", 1, "int32")
        with stmts.loop(steps, "step") as step:
            further = stmts.let("further", tb.load(rank, [0]) + (tb.const(1 << (steps - 1)) >> step))
            last = tb.clamp(begin + further - 1, 0, known.size - 1)
            is_below = tb.binary("lt", tb.load(known, [last]), key)
            with stmts.when(tb.land(tb.binary("le", further, count), is_below)):
                stmts.store(rank, [0], further)
        return tb.cast(tb.load(rank, [0]), dtype)

    return search


# Conditions


def _emit_conditions(
    ctx: Context, data: Tensor, tables: TreeTables, slots: Slots, leaves: Leaves, aggregate: str, out: Output
) -> bool:
    """Write the conditions and return True, or return False if they would be too many or too deeply nested."""
    if not 0 < tables.nodes <= MOST_NODES or tables.depths.max() > MOST_DEPTH:
        return False
    plain = tables.nodes * _NODE_BYTES + len(leaves.row_of) * _LEAF_BYTES
    is_sum, targets = aggregate == "add", leaves.targets
    counts = np.count_nonzero(leaves.rows, axis=1) if is_sum else np.full(len(leaves.rows), targets)
    literals = int(counts[leaves.row_of].sum()) * (_ADDED_BYTES if targets <= tt.UNROLLED else _STORED_BYTES)
    is_inline = bool(np.isfinite(leaves.rows).all()) and plain + literals <= MOST_BYTES
    if not is_inline and plain > MOST_BYTES:
        return False
    goes = _comparisons(ctx, data, tables, slots)
    add = None if is_inline else leaves.adder(ctx, aggregate, of_rows=True)
    with _row(ctx, data, goes, targets, aggregate, out) as (goes_left, total):
        _Conditions(ctx, tables, leaves, goes_left, aggregate, add, total).write()
    return True


def _comparisons(ctx: Context, data: Tensor, tables: TreeTables, slots: Slots) -> Goes:
    """Return the comparison of floats, or of keys if that is faster, with literals."""
    features = ctx.features
    has_no_floats = features.is_microcontroller and not features.float_unit
    if data.dtype == "float32" and has_no_floats and tables.visits > 2 * len(slots.features):
        cuts = tt.cuts_of(tables)
        return _compared(
            ctx, data, slots, ("uint32", None),
            lambda at: int(slots.of_node[at]), lambda at: tb.const(int(cuts[at]), "uint32"),
        )  # fmt: skip

    def goes_left(row: Expr, at: int) -> Expr:
        limit = tb.const(float(tables.threshold[at]), data.dtype)
        return _float_left(data(row, int(tables.feature[at])), limit, nan_left=bool(tables.nan_left[at]))

    return lambda row: lambda at: goes_left(row, at)


@dataclass(eq=False)
class _Conditions:
    """Nested conditions: each node is a comparison with a literal and a branch, in the order of the tables.

    A leaf adds its literals to the totals or, if that would take too much code, stores the index of the row of scores
    to add after the tree.
    """

    ctx: Context
    tables: TreeTables
    leaves: Leaves
    goes_left: Callable[[Any], Expr]
    aggregate: str
    add: Callable[[Expr, Buffer], None] | None  # adds a row of scores; None if leaves add their literals
    total: Buffer

    def write(self) -> None:
        """Write all trees in order."""
        stmts, rows, add = self.ctx.stmts, self.leaves.rows, self.add
        # rows of zeros: leaves with these scores need no code for a sum
        is_sum = add is None and self.aggregate == "add"
        self.nothing: Array = np.asarray(is_sum & ~rows.any(axis=1), bool)
        self.found = None if add is None else stmts.local("found", (1,), "uint32")
        first = 0
        for tree, size in enumerate(self.tables.sizes.tolist()):
            self._subtree(first, first + tree, size)
            if add is not None and self.found is not None:
                with stmts.scope():
                    add(promised(tb.load(self.found, [0]), len(rows)), self.total)
            first += size

    def _leaf(self, row: int) -> None:
        stmts, scores, total = self.ctx.stmts, self.leaves.rows[row], self.total
        if self.found is not None:
            stmts.store(self.found, [0], row)
            return
        for target in np.flatnonzero(scores).tolist() if self.aggregate == "add" else range(len(scores)):
            literal = tb.const(scores[target].item(), total.dtype)
            stmts.store(total, [target], tb.binary(self.aggregate, tb.load(total, [target]), literal))

    def _subtree(self, at: int, leaf: int, size: int) -> None:
        """Write the subtree of `size` nodes that starts at node `at`; its first leaf is `leaf`."""
        if (row := self._only_row(leaf, size)) is not None:
            if not self.nothing[row]:
                self._leaf(row)
            return
        left = int(self.tables.left[at])
        here, there = (at + 1, leaf, left), (at + 1 + left, leaf + left + 1, size - 1 - left)
        if self.tables.nan_left[at] and self.tables.threshold[at] == np.inf:  # the right child is unreachable
            self._subtree(*here)
            return
        stmts, goes_left = self.ctx.stmts, self.goes_left(at)
        if self._is_nothing(*here[1:]):
            if isinstance(goes_left, Binary) and goes_left.op == "eq":  # a negated comparison
                goes_right = goes_left.a
            else:
                goes_right = tb.binary("eq", goes_left, _FALSE)
            with stmts.when(goes_right):
                self._subtree(*there)
            return
        with stmts.when(goes_left):
            self._subtree(*here)
        if not self._is_nothing(*there[1:]):
            with stmts.otherwise():
                self._subtree(*there)

    def _only_row(self, leaf: int, size: int) -> int | None:
        """Return the row of scores of all leaves of a subtree; None if they differ."""
        rows = self.leaves.row_of[leaf : leaf + size + 1]
        return int(rows[0]) if (rows == rows[0]).all() else None

    def _is_nothing(self, leaf: int, size: int) -> bool:
        row = self._only_row(leaf, size)
        return row is not None and bool(self.nothing[row])
