"""The loops of decision trees whose tables are known when the model is compiled.

Where code is to be fast, and the trees are not too many, `kernels.tree_code` writes them as conditions instead. What
compares features with thresholds has three forms: the floats themselves; keys, unsigned integers in the order of the
floats, which cores without a floating-point unit compare in one instruction; and ranks, the places of the features
among the thresholds that they are ever compared with, so that a node stores a byte or two. All give the same result
for every float, NaN included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.kernels.tree_code import emit_conditions
from mlfc.kernels.tree_leaves import START, Leaves, each_target
from mlfc.kernels.tree_numbers import Slots, cuts_of, limited, promised, write_numbers
from mlfc.kernels.tree_tables import TreeTables, narrow
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Expr

Array = npt.NDArray[Any]
_RANK_CODE = 96  # bytes of code that ranks take, about

Goes: Any = Callable[[Expr], Expr]


def emit_trees(ctx: Context, data: Tensor, tables: TreeTables, scores: Array, aggregate: str, out: Output) -> bool:
    """Write the loops; return whether they were: not where NaN goes both ways in numbers that have no keys."""
    slots, leaves = Slots.of(tables), Leaves.of(tables, scores)
    if not ctx.small and emit_conditions(ctx, data, tables, slots, leaves, aggregate, out):
        return True
    form = _form(ctx, data, tables, slots)
    if form is None:
        return False
    stmts, targets = ctx.stmts, scores.shape[1]
    sizes = ctx.constant("sizes", narrow(tables.sizes))
    left = ctx.constant("left", narrow(tables.left + 1))  # and the node itself
    add = leaves.adder(ctx, aggregate)
    goes = _FORMS[form](ctx, data, tables, slots)
    with stmts.loop(data.shape[0], "row") as row:
        goes_left = goes(row)
        total = stmts.local("total", (targets,), out.dtype)
        each_target(ctx, targets, lambda target: stmts.store(total, [target], tb.const(START[aggregate], out.dtype)))
        first = stmts.local("first", (1,), "uint32")
        stmts.store(first, [0], 0)
        with stmts.loop(len(tables.sizes), "tree") as tree:
            leaf = _walk(ctx, tables, (sizes, left, first), tree, goes_left)
            add(leaf, total)
        each_target(ctx, targets, lambda target: out.store([row, target], tb.load(total, [target])))
    return True


def _walk(
    ctx: Context, tables: TreeTables, buffers: tuple[Buffer, Buffer, Buffer], tree: Expr, goes_left: Callable[..., Expr]
) -> Expr:
    """Write the way down one tree; return the number of the leaf."""
    stmts, (sizes, left, first) = ctx.stmts, buffers
    size = stmts.let("size", tb.cast(tb.load(sizes, [tree]), "uint32"))
    node, leaf, stop = (stmts.local(name, (1,), "uint32") for name in ("node", "leaf", "stop"))
    stmts.store(node, [0], tb.load(first, [0]))
    stmts.store(leaf, [0], tb.load(first, [0]) + tb.cast(tree, "uint32"))
    stmts.store(first, [0], tb.load(first, [0]) + size)
    stmts.store(stop, [0], tb.load(first, [0]))
    if tables.nodes:
        with stmts.scope() if tables.sizes.all() else stmts.when(tb.binary("ne", size, 0)):
            # the nodes of the subtree that is left are those from `node` to `stop`
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
    count = len(slots.features)
    if data.dtype != "float32" or not tables.nodes:
        return None if slots.is_mixed else "floats"
    if not ctx.features.is_microcontroller:
        return "keys" if slots.is_mixed else "floats"
    if ctx.small:
        ranks, cuts = _ranks(tables, slots)
        nbytes = narrow(ranks).nbytes + 4 * sum(map(len, cuts)) + narrow(_offsets(cuts)).nbytes
        if nbytes + _RANK_CODE < tables.threshold.nbytes // 2:  # finding ranks takes longer than one tree
            return "ranks"
    return "keys" if slots.is_mixed or tables.visits > 2 * count else "floats"


def _floats(ctx: Context, data: Tensor, tables: TreeTables, slots: Slots) -> Goes:
    feature = ctx.constant("feature", narrow(tables.feature))
    threshold = ctx.constant("threshold", tables.threshold)

    def goes(row: Expr) -> Callable[[Expr], Expr]:
        def goes_left(at: Expr) -> Expr:
            value = data(row, limited(tb.load(feature, [at]), data.shape[1]))
            if slots.right:
                return tb.binary("le", value, tb.load(threshold, [at]))
            return tb.binary("eq", tb.binary("gt", value, tb.load(threshold, [at])), tb.const(False, "bool"))

        return goes_left

    return goes


def _keys(ctx: Context, data: Tensor, tables: TreeTables, slots: Slots) -> Goes:
    return _compared(ctx, data, slots, ctx.constant("cut", cuts_of(tables)), None)


def _by_rank(ctx: Context, data: Tensor, tables: TreeTables, slots: Slots) -> Goes:
    ranks, cuts = _ranks(tables, slots)
    return _compared(ctx, data, slots, ctx.constant("cut", narrow(ranks)), cuts)


def _compared(ctx: Context, data: Tensor, slots: Slots, cut: Buffer, cuts: list[Array] | None) -> Goes:
    """Return what compares integers that are made of the features before the trees are gone down."""
    count = len(slots.features)
    slot = ctx.constant("feature", narrow(slots.of_node))
    search = None if cuts is None else _search(ctx, cuts)

    def goes(row: Expr) -> Callable[[Expr], Expr]:
        numbers = ctx.scratch("numbers", (count,), cut.dtype)
        write_numbers(ctx, data, row, slots, numbers, search)
        return lambda at: tb.binary("le", tb.load(numbers, [limited(tb.load(slot, [at]), count)]), tb.load(cut, [at]))

    return goes


def _ranks(tables: TreeTables, slots: Slots) -> tuple[Array, list[Array]]:
    """Return the rank of each node's threshold, and the keys of the thresholds of each slot in their order."""
    keys = cuts_of(tables)
    ranks, cuts = np.zeros(tables.nodes, np.int64), []
    for slot in range(len(slots.features)):
        own = slots.of_node == slot
        known, of_own = np.unique(keys[own], return_inverse=True)
        ranks[own] = of_own.reshape(-1)
        cuts.append(known)
    ranks_and_end = np.append(ranks, max(map(len, cuts), default=0))  # what is above all has the number of them
    return narrow(ranks_and_end)[:-1], cuts


def _offsets(cuts: list[Array]) -> Array:
    return np.cumsum([0, *map(len, cuts)])


def _search(ctx: Context, cuts: list[Array]) -> Callable[[Expr, Expr, str], Expr]:
    """Return what counts the thresholds of a slot that are below a key, by halves."""
    stmts = ctx.stmts
    known = ctx.constant("cuts", np.concatenate(cuts))
    offset = ctx.constant("cuts_begin", narrow(_offsets(cuts)))
    longest = max(map(len, cuts))
    steps = int(longest).bit_length()

    def search(slot: Expr, key: Expr, dtype: str) -> Expr:
        begin = stmts.let("begin", tb.cast(tb.load(offset, [slot]), "int32"))
        count = stmts.let("count", tb.cast(tb.load(offset, [slot + 1]), "int32") - begin)
        rank = stmts.local("rank", (1,), "int32")
        stmts.store(rank, [0], 0)
        with stmts.loop(steps, "step") as step:
            further = stmts.let("further", tb.load(rank, [0]) + (tb.const(1 << (steps - 1)) >> step))
            last = tb.clamp(begin + further - 1, 0, known.size - 1)
            is_below = tb.binary("lt", tb.load(known, [last]), key)
            with stmts.when(tb.land(tb.binary("le", further, count), is_below)):
                stmts.store(rank, [0], further)
        return tb.cast(tb.load(rank, [0]), dtype)

    return search


_FORMS: dict[str, Callable[[Context, Tensor, TreeTables, Slots], Goes]] = {
    "floats": _floats, "keys": _keys, "ranks": _by_rank,
}  # fmt: skip
