"""The loops of decision trees whose tables are known when the model is compiled.

What compares features with thresholds has three forms: the floats themselves; keys, unsigned integers in the order of
the floats, which cores without a floating-point unit compare in one instruction; and ranks, the places of the features
among the thresholds that they are ever compared with, so that a node stores a byte or two. All give the same result for
every float, NaN included. The scores of leaves are stored once each, and by classes that are not zero where that is
smaller: to add zero changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.kernels.tree_tables import TreeTables, keys_of, narrow
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.intrinsics.registry import bits_of_float
from mlfc.tir.ir import Buffer, Expr

Array = npt.NDArray[Any]
_UNROLLED = 4  # most targets whose sums are written one by one, so that compilers keep them in registers
_RANK_CODE = 96  # bytes of code that ranks take, about
# what is subtracted from keys, so that NaN of both signs is above all numbers, or below
_NAN_ABOVE, _NAN_BELOW = 0x7FFFFF, -0x7FFFFF & 0xFFFFFFFF

Goes: Any = Callable[[Expr], Expr]


@dataclass(frozen=True, eq=False)
class _Slots:
    """The features as nodes ask for them: those for which NaN goes to the right, then those where it goes left."""

    features: Array  # (slots,)
    right: int  # how many are of the first kind
    of_node: Array  # (nodes,)


def emit_trees(ctx: Context, data: Tensor, tables: TreeTables, scores: Array, aggregate: str, out: Output) -> bool:
    """Write the loops; return whether they were: not where NaN goes both ways in numbers that have no keys."""
    slots = _slots(tables)
    form = _form(ctx, data, tables, slots)
    if form is None:
        return False
    stmts, targets = ctx.stmts, scores.shape[1]
    sizes = ctx.constant("sizes", narrow(tables.sizes))
    left = ctx.constant("left", narrow(tables.left + 1))  # and the node itself
    add = _leaves(ctx, tables, scores, aggregate)
    goes = _FORMS[form](ctx, data, tables, slots)
    with stmts.loop(data.shape[0], "row") as row:
        goes_left = goes(row)
        total = stmts.local("total", (targets,), out.dtype)
        start = {"add": 0.0, "min": np.inf, "max": -np.inf}[aggregate]
        _each(ctx, targets, lambda target: stmts.store(total, [target], tb.const(start, out.dtype)))
        first = stmts.local("first", (1,), "uint32")
        stmts.store(first, [0], 0)
        with stmts.loop(len(tables.sizes), "tree") as tree:
            leaf = _walk(ctx, tables, (sizes, left, first), tree, goes_left)
            add(leaf, total)
        _each(ctx, targets, lambda target: out.store([row, target], tb.load(total, [target])))
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
                at = stmts.let("at", _promised(tb.load(node, [0]), tables.nodes))
                beyond = stmts.let("beyond", tb.cast(tb.load(left, [at]), "uint32"))
                with stmts.when(goes_left(at)):
                    stmts.store(stop, [0], tb.load(node, [0]) + beyond)
                    stmts.store(node, [0], tb.load(node, [0]) + 1)
                with stmts.otherwise():
                    stmts.store(leaf, [0], tb.load(leaf, [0]) + beyond)
                    stmts.store(node, [0], tb.load(node, [0]) + beyond)
    return stmts.let("end", _promised(tb.load(leaf, [0]), len(tables.leaves)))


def _promised(value: Expr, count: int) -> Expr:
    """Return an unsigned number as an index below `count`, as which it was made."""
    return tb.cast(tb.intrinsic("within", value, tb.const(count - 1, value.dtype)), "int32")


def _each(ctx: Context, count: int, write: Callable[[Expr], None]) -> None:
    if count <= _UNROLLED:
        for index in range(count):
            write(tb.const(index))
        return
    with ctx.stmts.loop(count, "target") as target:
        write(target)


# Comparisons


def _slots(tables: TreeTables) -> _Slots:
    codes = tables.feature + (tables.nan_left.astype(np.int64) << 32)
    known, of_node = np.unique(codes, return_inverse=True)
    return _Slots(known & 0xFFFFFFFF, int((known < 1 << 32).sum()), of_node.reshape(-1))


def _form(ctx: Context, data: Tensor, tables: TreeTables, slots: _Slots) -> str | None:
    count = len(slots.features)
    is_mixed = 0 < slots.right < count
    if data.dtype != "float32" or not tables.nodes:
        return None if is_mixed else "floats"
    if not ctx.features.is_microcontroller:
        return "keys" if is_mixed else "floats"
    if ctx.small:
        ranks, cuts = _ranks(tables, slots)
        nbytes = narrow(ranks).nbytes + 4 * sum(map(len, cuts)) + narrow(_offsets(cuts)).nbytes
        if nbytes + _RANK_CODE < tables.threshold.nbytes // 2:  # finding ranks takes longer than one tree
            return "ranks"
    return "keys" if is_mixed or tables.visits > 2 * count else "floats"


def _floats(ctx: Context, data: Tensor, tables: TreeTables, slots: _Slots) -> Goes:
    feature = ctx.constant("feature", narrow(tables.feature))
    threshold = ctx.constant("threshold", tables.threshold)

    def goes(row: Expr) -> Callable[[Expr], Expr]:
        def goes_left(at: Expr) -> Expr:
            value = data(row, _limited(tb.load(feature, [at]), data.shape[1]))
            if slots.right:
                return tb.binary("le", value, tb.load(threshold, [at]))
            return tb.binary("eq", tb.binary("gt", value, tb.load(threshold, [at])), tb.const(False, "bool"))

        return goes_left

    return goes


def _keys(ctx: Context, data: Tensor, tables: TreeTables, slots: _Slots) -> Goes:
    offsets = np.where(tables.nan_left, np.uint32(_NAN_BELOW), np.uint32(_NAN_ABOVE))
    cut = ctx.constant("cut", (keys_of(tables.threshold) - offsets).astype(np.uint32))
    return _compared(ctx, data, slots, cut, None)


def _by_rank(ctx: Context, data: Tensor, tables: TreeTables, slots: _Slots) -> Goes:
    ranks, cuts = _ranks(tables, slots)
    return _compared(ctx, data, slots, ctx.constant("cut", narrow(ranks)), cuts)


def _compared(ctx: Context, data: Tensor, slots: _Slots, cut: Buffer, cuts: list[Array] | None) -> Goes:
    """Return what compares integers that are made of the features before the trees are gone down."""
    stmts, count = ctx.stmts, len(slots.features)
    slot = ctx.constant("feature", narrow(slots.of_node))
    is_all = np.array_equal(slots.features, np.arange(count))
    features = None if is_all else ctx.constant("features", narrow(slots.features))
    search = None if cuts is None else _search(ctx, cuts)

    def goes(row: Expr) -> Callable[[Expr], Expr]:
        numbers = ctx.scratch("numbers", (count,), cut.dtype)
        for begin, end, offset in ((0, slots.right, _NAN_ABOVE), (slots.right, count, _NAN_BELOW)):
            if begin == end:
                continue
            with stmts.loop(end - begin, "slot") as index:
                place = index + begin
                column = place if features is None else _limited(tb.load(features, [place]), data.shape[1])
                key = stmts.let("key", _key(stmts, data(row, column), offset))
                stmts.store(numbers, [place], key if search is None else search(place, key, cut.dtype))
        return lambda at: tb.binary("le", tb.load(numbers, [_limited(tb.load(slot, [at]), count)]), tb.load(cut, [at]))

    return goes


def _key(stmts: tb.StmtBuilder, value: Expr, offset: int) -> Expr:
    """Return a float as an unsigned integer in the order of the floats, less `offset`, modulo 2**32."""
    bits = stmts.let("bits", bits_of_float(value))
    sign = tb.cast(tb.binary("shr", tb.cast(bits, "int32"), tb.const(31)), "uint32")
    return (bits ^ (sign | tb.const(1 << 31, "uint32"))) - tb.const(offset, "uint32")


def _ranks(tables: TreeTables, slots: _Slots) -> tuple[Array, list[Array]]:
    """Return the rank of each node's threshold, and the keys of the thresholds of each slot in their order."""
    offsets = np.where(tables.nan_left, np.uint32(_NAN_BELOW), np.uint32(_NAN_ABOVE))
    keys = (keys_of(tables.threshold) - offsets).astype(np.uint32)
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


def _limited(index: Expr, count: int) -> Expr:
    """Return an element of a table, which is below `count`, as an index."""
    return tb.intrinsic("within", tb.cast(index, "int32"), tb.const(count - 1))


_FORMS: dict[str, Callable[[Context, Tensor, TreeTables, _Slots], Goes]] = {
    "floats": _floats, "keys": _keys, "ranks": _by_rank,
}  # fmt: skip


# Leaves


def _leaves(ctx: Context, tables: TreeTables, scores: Array, aggregate: str) -> Callable[[Expr, Buffer], None]:
    """Return what takes the scores of a leaf into the totals, in the smallest form."""
    stmts, targets = ctx.stmts, scores.shape[1]
    plain = scores[tables.leaves]
    rows, row_of = np.unique(plain, axis=0, return_inverse=True)
    row_of = narrow(row_of.reshape(-1))
    sparse = _Sparse.of(rows)
    sizes = {"plain": plain.nbytes, "mapped": row_of.nbytes + rows.nbytes}
    if aggregate == "add" and targets > 2:
        sizes["sparse"] = row_of.nbytes + sparse.nbytes
    form = min(sizes, key=lambda name: sizes[name])
    mapping = None if form == "plain" else ctx.constant("score_of_leaf", row_of)

    def row(leaf: Expr) -> Expr:
        return leaf if mapping is None else stmts.let("row", _limited(tb.load(mapping, [leaf]), len(rows)))

    if form == "sparse":
        return sparse.adder(ctx, row)
    table = ctx.constant("scores", plain if form == "plain" else rows)

    def add(leaf: Expr, total: Buffer) -> None:
        found = row(leaf)

        def include(target: Expr) -> None:
            stmts.store(
                total, [target], tb.binary(aggregate, tb.load(total, [target]), tb.load(table, [found, target]))
            )

        _each(ctx, targets, include)

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
                entry = stmts.let("place", _limited(first + index, entries))
                at = stmts.let("target", _limited(tb.load(targets, [entry]), self.targets))
                value = tb.load(values, [_limited(tb.load(numbers, [entry]), len(self.values))])
                stmts.store(total, [at], tb.load(total, [at]) + value)

        return add
