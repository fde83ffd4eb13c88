"""The tables of decision trees in the form in which the loops of `kernels.trees` read them.

Inner nodes are in preorder, tree after tree, so the left child of a node is the next one and the right child is as far
away as the left one has nodes. A subtree of n inner nodes has n + 1 leaves: so how many inner nodes the left child has
is all that a node stores of its children, and leaves are found by counting. Every comparison is made one of the kind
``x <= threshold``, which leads to the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MOST_NODES = (1 << 16) - 1
_OR_NAN = "_or_nan"
# where the greater of two numbers is: the left child is the one that comes after where the comparison holds?
_LEFT_HOLDS = {"le": True, "lt": True, "gt": False, "ge": False}


@dataclass(frozen=True, eq=False)
class TreeTables:
    """Ensembles whose inner nodes are in preorder."""

    feature: Array  # (nodes,)
    threshold: Array  # (nodes,): a value that is less or equal goes to the left
    nan_left: Array  # (nodes,) of bool: whether NaN goes to the left
    left: Array  # (nodes,): inner nodes of the left child
    sizes: Array  # (trees,): inner nodes
    depths: Array  # (trees,)
    visits: float  # comparisons of an inference, if all leaves of a tree were as likely
    leaves: Array  # (nodes + trees,): rows of the scores, in the order of the leaves

    @property
    def nodes(self) -> int:
        """Inner nodes of all trees."""
        return len(self.feature)


def tree_tables(
    feature: Array, threshold: Array, following: Array, root: Array, leaves: int, comparisons: Sequence[str]
) -> TreeTables | None:
    """Return the tables of ``ml.tree_ensemble`` in preorder.

    `comparisons`: of each node. None for what these tables cannot say: comparisons for equality, thresholds without
    order, nodes that several others lead to so that there would be too many of them, indices that are none.
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
        waiting = [(int(start), 0, -1)]  # a node, its level, the position of the parent whose left child is done here
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
    """Return the threshold of ``<=``, whether NaN goes left, and whether left is what comes after "true"."""
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
    """Return float32 values as uint32 in their order, those of both zeros next to each other."""
    bits = np.asarray(values + np.float32(0), np.float32).view(np.uint32)
    negative = (bits >> 31).astype(bool)
    return np.where(negative, ~bits, bits | np.uint32(1 << 31)).astype(np.uint32)


def narrow(values: Array) -> Array:
    """Return integers from 0 on in the narrowest unsigned dtype that holds them."""
    top = int(values.max(initial=0))
    return values.astype(np.uint8 if top < 1 << 8 else np.uint16 if top < 1 << 16 else np.uint32)
