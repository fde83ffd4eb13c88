"""Tables of decision trees in the format of the loops of `kernels.trees`.

Inner nodes are in preorder, and a node stores the number of inner nodes of its left child. So the position of its right
child is known, and leaves are numbered by counting. Every comparison is converted to ``x <= threshold``, which selects
the left child.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Tensor
from mlfc.tir.intrinsics.registry import bits_of_float
from mlfc.tir.ir import Buffer, Expr

Array = npt.NDArray[Any]
MOST_NODES = (1 << 16) - 1
_OR_NAN = "_or_nan"
# whether a true comparison selects the left child, which is the one for smaller values
_LEFT_HOLDS = {"le": True, "lt": True, "gt": False, "ge": False}


@dataclass(frozen=True, eq=False)
class TreeTables:
    """Tree ensembles whose inner nodes are in preorder."""

    feature: Array  # (nodes,)
    threshold: Array  # (nodes,): a value that is less or equal goes left
    nan_left: Array  # (nodes,) of bool: whether NaN goes left
    left: Array  # (nodes,): number of inner nodes of the left child
    sizes: Array  # (trees,): number of inner nodes
    depths: Array  # (trees,)
    visits: float  # comparisons per inference if all leaves of a tree are equally likely
    leaves: Array  # (nodes + trees,): rows of the scores, in the order of the leaves

    @property
    def nodes(self) -> int:
        """The number of inner nodes of all trees."""
        return len(self.feature)


def tree_tables(
    feature: Array, threshold: Array, following: Array, root: Array, leaves: int, comparisons: Sequence[str]
) -> TreeTables | None:
    """Return the tables of ``ml.tree_ensemble`` in preorder.

    `comparisons`: of each node. The result is None for ensembles that these tables cannot represent: comparisons for
    equality, NaN thresholds, nodes with several parents whose copies would be too many, and invalid indices.
    """
    inner = len(feature)
    cuts = [_cut(name, value) for name, value in zip(comparisons, threshold, strict=True)]
    order: list[int] = []
    left_sizes: list[int] = []
    ends: list[int] = []
    sizes: list[int] = []
    deepest: list[int] = []
    visits = 0.0
    if not ((following >= 0).all() and (following < inner + leaves).all() and (feature >= 0).all()):
        return None
    for start in root.tolist():
        first, depths, first_leaf = len(order), [], len(ends)
        waiting = [(int(start), 0, -1)]  # a node, its level, the parent whose left child is complete
        while waiting:
            at, level, parent = waiting.pop()
            if parent >= 0:
                left_sizes[parent] = len(order) - parent - 1
            if not 0 <= at < inner:
                if not 0 <= at - inner < leaves:
                    return None
                ends.append(at - inner)
                depths.append(level)
                continue
            cut = cuts[at]
            if cut is None or len(order) >= MOST_NODES or level > inner:
                return None
            position = len(order)
            order.append(at)
            left_sizes.append(0)
            false, true = (int(child) for child in following[at])
            left, right = (true, false) if cut[2] else (false, true)
            waiting += [(right, level + 1, position), (left, level + 1, -1)]
        sizes.append(len(order) - first)
        deepest.append(max(depths))
        visits += sum(depths) / (len(ends) - first_leaf)
    chosen = [cuts[at] for at in order]
    return TreeTables(
        np.asarray(feature[order], np.int64),
        np.asarray([cut[0] for cut in chosen if cut], threshold.dtype),
        np.asarray([cut[1] for cut in chosen if cut], bool),
        np.asarray(left_sizes, np.int64),
        np.asarray(sizes, np.int64),
        np.asarray(deepest, np.int64),
        visits,
        np.asarray(ends, np.int64),
    )


def _cut(comparison: str, threshold: Any) -> tuple[Any, bool, bool] | None:
    """Return the threshold of ``<=``, whether NaN goes left, and whether the "true" child is the left one."""
    plain = comparison.removesuffix(_OR_NAN)
    left_holds = _LEFT_HOLDS.get(plain)
    if left_holds is None or np.isnan(threshold):
        return None
    nan_holds = comparison.endswith(_OR_NAN)
    if plain in ("lt", "ge"):
        if threshold == -np.inf:
            return None
        threshold = np.nextafter(threshold, np.asarray(-np.inf, threshold.dtype))
    return threshold, nan_holds == left_holds, left_holds


def keys_of(values: Array) -> Array:
    """Return float32 values as uint32 keys in the same order; those of both zeros are adjacent."""
    bits = np.asarray(values + np.float32(0), np.float32).view(np.uint32)
    negative = (bits >> 31).astype(bool)
    return np.where(negative, ~bits, bits | np.uint32(1 << 31)).astype(np.uint32)


def narrow(values: Array) -> Array:
    """Return nonnegative integers in the narrowest unsigned dtype that can represent them."""
    top = int(values.max(initial=0))
    return values.astype(np.uint8 if top < 1 << 8 else np.uint16 if top < 1 << 16 else np.uint32)


# subtracted from keys, so that NaN of both signs is above all numbers, or below
_NAN_ABOVE, _NAN_BELOW = 0x7FFFFF, -0x7FFFFF & 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class Slots:
    """The distinct features that nodes compare: those with NaN going right, then those with NaN going left."""

    features: Array  # (slots,)
    right: int  # number of slots of the first kind
    of_node: Array  # (nodes,)

    @staticmethod
    def of(tables: TreeTables) -> Slots:
        """Return the slots of tables."""
        codes = tables.feature + (tables.nan_left.astype(np.int64) << 32)
        known, of_node = np.unique(codes, return_inverse=True)
        return Slots(known & 0xFFFFFFFF, int((known < 1 << 32).sum()), of_node.reshape(-1))

    @property
    def is_mixed(self) -> bool:
        """True if NaN goes right at some nodes and left at others."""
        return 0 < self.right < len(self.features)


def cuts_of(tables: TreeTables) -> Array:
    """Return the keys of the thresholds of all nodes, which are comparable to the keys from `write_numbers`."""
    offsets = np.where(tables.nan_left, np.uint32(_NAN_BELOW), np.uint32(_NAN_ABOVE))
    return (keys_of(tables.threshold) - offsets).astype(np.uint32)


def write_numbers(
    ctx: Context,
    data: Tensor,
    row: Expr,
    slots: Slots,
    numbers: Buffer,
    convert: Callable[[Expr, Expr, str], Expr] | None = None,
) -> None:
    """Write the keys of the features of all slots, or the results of `convert` for slot, key and dtype."""
    stmts, count = ctx.stmts, len(slots.features)
    is_all = np.array_equal(slots.features, np.arange(count))
    features = None if is_all else ctx.constant("features", narrow(slots.features))
    for begin, end, offset in ((0, slots.right, _NAN_ABOVE), (slots.right, count, _NAN_BELOW)):
        if begin == end:
            continue
        with stmts.loop(end - begin, "slot") as index:
            place = index + begin
            column = place if features is None else limited(tb.load(features, [place]), data.shape[1])
            key = stmts.let("key", _key(stmts, data(row, column), offset))
            stmts.store(numbers, [place], key if convert is None else convert(place, key, numbers.dtype))


def _key(stmts: tb.StmtBuilder, value: Expr, offset: int) -> Expr:
    """Return the key of a float, an unsigned integer in the order of the floats, less `offset`, modulo 2**32."""
    bits = stmts.let("bits", bits_of_float(value))
    sign = tb.cast(tb.binary("shr", tb.cast(bits, "int32"), tb.const(31)), "uint32")
    return (bits ^ (sign | tb.const(1 << 31, "uint32"))) - tb.const(offset, "uint32")


def limited(index: Expr, count: int) -> Expr:
    """Return an element of a table, which is below `count`, as an index."""
    return tb.intrinsic("within", tb.cast(index, "int32"), tb.const(count - 1))


def promised(value: Expr, count: int) -> Expr:
    """Return an unsigned number, which is below `count` by construction, as an index."""
    return tb.cast(tb.intrinsic("within", value, tb.const(count - 1, value.dtype)), "int32")


START = {"add": 0.0, "min": np.inf, "max": -np.inf}
"""Initial values of the totals, before the first tree."""
UNROLLED = 4  # maximum number of targets whose sums are unrolled, so that compilers keep them in registers


@dataclass(frozen=True, eq=False)
class Leaves:
    """The scores of leaves as distinct rows, or without zero targets if that is smaller."""

    plain: Array  # (leaves, targets)
    rows: Array  # (rows, targets)
    row_of: Array  # (leaves,)

    @staticmethod
    def of(tables: TreeTables, scores: Array) -> Leaves:
        """Return the leaves of tables."""
        plain = np.ascontiguousarray(scores[tables.leaves])
        bits = plain.view(f"u{plain.itemsize}")  # compare bits, which distinguish zeros of both signs
        rows, row_of = np.unique(bits, axis=0, return_inverse=True)
        return Leaves(plain, rows.view(plain.dtype), narrow(row_of.reshape(-1)))

    @property
    def targets(self) -> int:
        """The number of scores of a leaf."""
        return int(self.plain.shape[1])

    def adder(self, ctx: Context, aggregate: str, *, of_rows: bool = False) -> Callable[[Expr, Buffer], None]:
        """Return a function that aggregates the scores of a leaf, or of a row, into totals; use the smallest form."""
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
    """Call `write` for each target, in a loop if they are many."""
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
    """Rows of scores in compressed sparse format."""

    begin: Array  # (rows + 1,): the first entry of each row
    target: Array  # (entries,)
    number: Array  # (entries,): index of the value
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
        """Return a function that adds a row to totals."""
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
