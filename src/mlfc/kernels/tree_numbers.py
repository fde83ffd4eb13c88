"""What compares features with thresholds: slots of features, and keys, integers in the order of the floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.kernels.tree_tables import TreeTables, keys_of, narrow
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Tensor
from mlfc.tir.intrinsics.registry import bits_of_float
from mlfc.tir.ir import Buffer, Expr

Array = npt.NDArray[Any]
# what is subtracted from keys, so that NaN of both signs is above all numbers, or below
_NAN_ABOVE, _NAN_BELOW = 0x7FFFFF, -0x7FFFFF & 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class Slots:
    """The features as nodes ask for them: those for which NaN goes to the right, then those where it goes left."""

    features: Array  # (slots,)
    right: int  # how many are of the first kind
    of_node: Array  # (nodes,)

    @staticmethod
    def of(tables: TreeTables) -> Slots:
        """Return the slots of tables."""
        codes = tables.feature + (tables.nan_left.astype(np.int64) << 32)
        known, of_node = np.unique(codes, return_inverse=True)
        return Slots(known & 0xFFFFFFFF, int((known < 1 << 32).sum()), of_node.reshape(-1))

    @property
    def is_mixed(self) -> bool:
        """Whether NaN goes both ways."""
        return 0 < self.right < len(self.features)


def cuts_of(tables: TreeTables) -> Array:
    """Return the keys of the thresholds of all nodes, as `write_numbers` makes those of features."""
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
    """Write the keys of the features of all slots, or what `convert` makes of slot, key and dtype."""
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
    """Return a float as an unsigned integer in the order of the floats, less `offset`, modulo 2**32."""
    bits = stmts.let("bits", bits_of_float(value))
    sign = tb.cast(tb.binary("shr", tb.cast(bits, "int32"), tb.const(31)), "uint32")
    return (bits ^ (sign | tb.const(1 << 31, "uint32"))) - tb.const(offset, "uint32")


def limited(index: Expr, count: int) -> Expr:
    """Return an element of a table, which is below `count`, as an index."""
    return tb.intrinsic("within", tb.cast(index, "int32"), tb.const(count - 1))


def promised(value: Expr, count: int) -> Expr:
    """Return an unsigned number as an index below `count`, as which it was made."""
    return tb.cast(tb.intrinsic("within", value, tb.const(count - 1, value.dtype)), "int32")
