"""ONNX's tree ensembles of all versions, converted from node lists to the tables of ``ml.tree_ensemble``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.ml import label_of, labels_of, transformed
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.table import ML, importer
from mlfc.ops.ml import OR_NAN
from mlfc.relay.ir import Constant, Expr
from mlfc.support import cost

Array = npt.NDArray[Any]
_MODES = {
    "BRANCH_LEQ": "le", "BRANCH_LT": "lt", "BRANCH_GTE": "ge", "BRANCH_GT": "gt", "BRANCH_EQ": "eq", "BRANCH_NEQ": "ne",
}  # fmt: skip
# modes of TreeEnsemble by number; the last one tests for set membership
_NUMBERED = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_EXTREMES: dict[str, tuple[float, np.ufunc]] = {"MIN": (np.inf, np.minimum), "MAX": (-np.inf, np.maximum)}
_AGGREGATES = {"SUM": "add", "AVERAGE": "add", "MIN": "min", "MAX": "max"}


@dataclass(frozen=True, eq=False)
class _Nodes:
    """The inner nodes of all trees. References below their number are inner nodes, larger ones are leaves."""

    feature: Array  # (nodes,)
    threshold: Array  # (nodes,)
    comparison: list[str]  # (nodes,)
    false: Array  # (nodes,): the successor if the comparison is false
    true: Array  # (nodes,)
    roots: Array  # (trees,)
    leaves: int


@importer("TreeEnsembleRegressor", domain=ML)
def _regressor(node: Node) -> Expr:
    targets = node.integer("n_targets", 1)
    nodes, leaf_of = _listed(node)
    scores, _ = _listed_scores(node, nodes, leaf_of, "target", targets)
    result = _with_base(node, _ensemble(node, nodes, scores, node.string("aggregate_function", "SUM")))
    return node.cast(transformed(node, result, node.string("post_transform", "NONE")), "float32")


@importer("TreeEnsembleClassifier", domain=ML)
def _classifier(node: Node) -> list[Expr]:
    labels = labels_of(node, "classlabels_int64s")
    nodes, leaf_of = _listed(node)
    scores, classes = _listed_scores(node, nodes, leaf_of, "class", len(labels))
    if len(labels) == 2 and len(classes) == 1:
        picked, result = _two_classes(node, labels, nodes, scores[:, list(classes)])
    else:
        total = _with_base(node, _ensemble(node, nodes, scores, "SUM"))
        picked = label_of(node, labels, total)
        result = transformed(node, total, node.string("post_transform", "NONE"))
    return [picked, node.cast(result, "float32")]  # computed in float64 if the features are


def _two_classes(node: Node, labels: Array, nodes: _Nodes, scores: Array) -> list[Expr]:
    """Return the label and the scores of both classes if the leaves have scores of only one class.

    As in ONNX Runtime, the score is a probability if no weight is negative, else a margin whose negative is the other
    class's score.
    """
    base = node.reals("base_values", ())
    total = _ensemble(node, nodes, scores, "SUM")
    if base:
        total = node.call("add", total, base[-1])
    is_probability = bool((scores >= 0).all())
    first = node.call("greater", total, 0.5 if is_probability else 0.0)
    index = node.cast(node.reshape(first, (shape_of(first)[0],)), "int32")
    picked = node.call("take", node.constant(labels, "int64"), index, axis=0)
    is_logistic = node.string("post_transform", "NONE") == "LOGISTIC"
    if is_probability and not is_logistic:
        return [picked, node.concatenate([node.call("subtract", 1.0, total), total], 1)]
    both = node.concatenate([node.call("negative", total), total], 1)
    return [picked, transformed(node, both, "LOGISTIC" if is_logistic else "NONE")]


@importer("TreeEnsemble", domain=ML)
def _tree_ensemble(node: Node) -> Expr:
    targets = node.integer("n_targets", 1)
    nodes = _numbered(node)
    ids, weights = np.asarray(node.integers("leaf_targetids")), np.asarray(node.attribute("leaf_weights"))
    aggregate = {0: "AVERAGE", 1: "SUM", 2: "MIN", 3: "MAX"}.get(node.integer("aggregate_function", 1), "")
    if ids.size != nodes.leaves or weights.size != nodes.leaves or ((ids < 0) | (ids >= targets)).any():
        node.wrong(f"{ids.size} targets and {weights.size} weights do not fit {nodes.leaves} leaves")
    scores = _table(node, (nodes.leaves, targets), (np.arange(nodes.leaves), ids), weights.reshape(-1), aggregate)
    transforms = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    number = node.integer("post_transform", 0)
    if not 0 <= number < len(transforms):
        node.wrong(f"post_transform {number} is not known")
    return node.cast(transformed(node, _ensemble(node, nodes, scores, aggregate), transforms[number]), node.dtype(0))


def _with_base(node: Node, scores: Expr) -> Expr:
    stored = node.attribute("base_values_as_tensor")
    base = np.asarray(node.reals("base_values", ()) if stored is None else stored)
    if not base.size:
        return scores
    if base.size not in (1, shape_of(scores)[1]):
        node.wrong(f"{base.size} base values do not fit {shape_of(scores)[1]} scores")
    return node.call("add", scores, node.constant(base.reshape(-1), dtype_of(scores)))


def _ensemble(node: Node, nodes: _Nodes, scores: Array, aggregate: str) -> Expr:
    """Return the scores of every input row."""
    x = node.input(0)
    if len(shape_of(x)) != 2:
        node.wrong(f"expected rows of features, got data of shape {shape_of(x)}")
    if aggregate not in _AGGREGATES:
        node.wrong(f"aggregate_function {aggregate} is not known")
    dtype = "float64" if dtype_of(x) == "float64" else "float32"
    if (nodes.feature < 0).any() or (nodes.feature >= shape_of(x)[1]).any():
        node.wrong(f"a tree reads feature {int(nodes.feature.max())}, but the input has {shape_of(x)[1]}")
    names = tuple(sorted(set(nodes.comparison)))
    # leaves with equal scores are shared: many leaves of a classification forest contain a single class
    inner = len(nodes.feature)
    scores, number = np.unique(scores, axis=0, return_inverse=True)
    false, true, roots = (
        np.where(ends < inner, ends, inner + number.reshape(-1)[np.maximum(ends - inner, 0)])
        for ends in (nodes.false, nodes.true, nodes.roots)
    )
    tables = {
        "features": _narrow(nodes.feature),
        "thresholds": nodes.threshold.astype(dtype),
        "next": _narrow(np.stack([false, true], 1)),
        "roots": _narrow(roots),
        "depths": _narrow(_depths(node, inner, false, true, roots)),
        "scores": scores.astype(dtype),
    }
    if len(names) > 1:
        tables["comparisons"] = _narrow(np.asarray([names.index(name) for name in nodes.comparison]))
    known = [Constant(table, f"{node.name} {title}", node.span) for title, table in tables.items()]
    result = node.call(
        "ml.tree_ensemble", node.cast(x, dtype), *known, comparisons=names, aggregate=_AGGREGATES[aggregate]
    )
    if aggregate in _EXTREMES and not np.isfinite(scores).all():
        # 0 if no leaf has a score for the target, as in ONNX Runtime
        result = node.call("where", node.call("less", node.call("abs", result), np.inf), result, 0.0)
    return node.call("divide", result, len(nodes.roots)) if aggregate == "AVERAGE" else result


def _narrow(values: Array) -> Array:
    """Return a table in the narrowest sufficient integer dtype."""
    top = int(values.max(initial=0))
    return values.astype(np.uint8 if top < 1 << 8 else np.uint16 if top < 1 << 16 else np.int32)


def _depths(node: Node, inner: int, false: Array, true: Array, roots: Array) -> Array:
    """Return the maximum number of comparisons in each tree; raise ModelError for a cycle."""
    depth = np.full(inner, -1, np.int64)
    following = list(zip(false.tolist(), true.tolist(), strict=True))
    for root in roots:
        waiting = [(int(root), False)]
        open_nodes: set[int] = set()
        while waiting:
            at, is_done = waiting.pop()
            if at >= inner or (depth[at] >= 0 and not is_done):
                continue
            if is_done:
                depth[at] = 1 + max((0 if after >= inner else int(depth[after])) for after in following[at])
                open_nodes.discard(at)
                continue
            if at in open_nodes:
                node.wrong("a tree has a cycle")
            open_nodes.add(at)
            waiting.append((at, True))
            waiting += [(after, False) for after in following[at]]
    return np.asarray([0 if root >= inner else depth[int(root)] for root in roots], np.int64)


def _listed(node: Node) -> tuple[_Nodes, dict[tuple[int, int], int]]:
    """Return the nodes of a TreeEnsembleRegressor or -Classifier, and the leaf numbers by (tree id, node id)."""
    ids = list(zip(node.integers("nodes_treeids"), node.integers("nodes_nodeids"), strict=True))
    place = {key: index for index, key in enumerate(ids)}
    if len(place) != len(ids) or not ids:
        node.wrong("two nodes have the same id" if ids else "the ensemble has no nodes")
    thresholds = _floats(node, "nodes_values")
    tracks = node.integers("nodes_missing_value_tracks_true", ()) or (0,) * len(ids)
    modes = [mode.decode() if isinstance(mode, bytes) else mode for mode in node.attribute("nodes_modes") or ()]
    lists = node.integers("nodes_featureids"), node.integers("nodes_falsenodeids"), node.integers("nodes_truenodeids")
    if any(len(each) != len(ids) for each in (thresholds, tracks, modes, *lists)):
        node.wrong(f"lists of nodes differ in length, expected {len(ids)} of each")
    node.attribute("nodes_hitrates"), node.attribute("nodes_hitrates_as_tensor")  # training statistics

    def child(index: int, side: Sequence[int]) -> int:
        key = ids[index][0], side[index]
        if key not in place:
            node.wrong(f"tree {key[0]} has no node {key[1]}")
        return place[key]

    inner = [index for index, mode in enumerate(modes) if mode != "LEAF"]
    unknown = next((modes[index] for index in inner if modes[index] not in _MODES), None)
    if unknown is not None:
        node.wrong(f"unknown mode '{unknown}'")
    following = {index: (child(index, lists[1]), child(index, lists[2])) for index in inner}
    numbers, roots, leaves = _numbers(node, [tree for tree, _ in ids], following)
    rows = sorted(following, key=lambda index: numbers[index])
    comparison = [_MODES[modes[index]] for index in rows]
    ends = np.asarray([[numbers[after] for after in following[index]] for index in rows]).reshape(-1, 2)
    nodes = _Nodes(
        np.asarray([lists[0][index] for index in rows]),
        thresholds[rows],
        [name + OR_NAN * bool(tracks[index] and name != "ne") for name, index in zip(comparison, rows, strict=True)],
        ends[:, 0],
        ends[:, 1],
        np.asarray([numbers[root] for root in roots]),
        len(leaves),
    )
    if not rows:  # tables must not be empty: add a dummy inner node
        one = np.ones(1, np.int64)
        nodes = replace(nodes, feature=0 * one, threshold=np.zeros(1), comparison=["le"], false=one, true=one)
    return nodes, {ids[index]: number for number, index in enumerate(leaves)}


def _numbers(
    node: Node, trees: Sequence[int], following: dict[int, tuple[int, int]]
) -> tuple[dict[int, int], list[int], list[int]]:
    """Return node numbers (inner nodes first, each kind by tree and level), the roots, and the leaves in order."""
    children = {after for pair in following.values() for after in pair}
    roots = [index for index in range(len(trees)) if index not in children]
    if sorted({trees[root] for root in roots}) != sorted(trees[root] for root in roots):
        node.wrong("a tree has several roots")
    if {trees[root] for root in roots} != set(trees):
        node.wrong("a tree has no root: its nodes form a cycle")
    seen: dict[int, None] = {}
    for root in roots:
        level = [root]
        while level:
            seen.update(dict.fromkeys(level))
            below = (after for index in level for after in following.get(index, ()))
            level = [index for index in dict.fromkeys(below) if index not in seen]
    if len(seen) < len(trees):
        node.wrong("nodes cannot be reached from the root of their tree")
    inner = [index for index in seen if index in following]
    leaves = [index for index in seen if index not in following]
    if not leaves:
        node.wrong("the trees have no leaves")
    first = max(1, len(inner))
    numbers = {index: number for number, index in enumerate(inner)}
    return numbers | {index: first + number for number, index in enumerate(leaves)}, roots, leaves


def _listed_scores(
    node: Node, nodes: _Nodes, leaf_of: dict[tuple[int, int], int], kind: str, count: int
) -> tuple[Array, set[int]]:
    """Return the leaf scores (leaves, `count`), and the set of columns that they use."""
    weights = _floats(node, f"{kind}_weights")
    ids = np.asarray(node.integers(f"{kind}_ids"), np.int64)
    keys = list(zip(node.integers(f"{kind}_treeids"), node.integers(f"{kind}_nodeids"), strict=True))
    if not len(keys) == len(ids) == len(weights):
        node.wrong(f"{len(keys)} leaves, {len(ids)} ids and {len(weights)} weights do not fit")
    wrong = next((key for key in keys if key not in leaf_of), None)
    if wrong is not None:
        node.wrong(f"tree {wrong[0]} has no leaf {wrong[1]}")
    if ((ids < 0) | (ids >= count)).any():
        node.wrong(f"the {kind} ids must be below {count}")
    rows = np.asarray([leaf_of[key] for key in keys], np.int64)
    aggregate = node.string("aggregate_function", "SUM") if kind == "target" else "SUM"
    return _table(node, (nodes.leaves, count), (rows, ids), weights, aggregate), set(ids.tolist())


def _table(node: Node, shape: tuple[int, int], places: tuple[Array, Array], weights: Array, aggregate: str) -> Array:
    """Return the weights by leaf and target; for MIN and MAX, missing targets of a leaf are infinite."""
    cost.require("constants", math.prod(shape) * weights.dtype.itemsize, node.name)
    if aggregate not in _EXTREMES:
        scores = np.zeros(shape, weights.dtype)
        np.add.at(scores, places, weights)
        return scores
    neutral, combine = _EXTREMES[aggregate]
    if not np.isfinite(weights).all():
        node.unsupported(f"with weights that are not finite is not supported for {aggregate}")
    scores = np.full(shape, neutral, weights.dtype)
    combine.at(scores, places, weights)
    return scores


def _floats(node: Node, name: str) -> Array:
    """Return a list of floats, which newer models may store as a tensor instead."""
    stored = node.attribute(f"{name}_as_tensor")
    return np.asarray(node.reals(name, ()), np.float32) if stored is None else np.asarray(stored).reshape(-1)


def _numbered(node: Node) -> _Nodes:
    """Return the nodes of TreeEnsemble, whose children are node or leaf indices."""
    feature = list(node.integers("nodes_featureids"))
    count, leaves = len(feature), len(node.integers("leaf_targetids"))
    roots = np.asarray(node.integers("tree_roots"), np.int64)
    splits = np.asarray(node.attribute("nodes_splits")).reshape(-1)
    modes = np.asarray(node.attribute("nodes_modes")).reshape(-1).tolist()
    tracks = node.integers("nodes_missing_value_tracks_true", ()) or (0,) * count
    false, true = (_ends(node, side, count, leaves) for side in ("false", "true"))
    node.attribute("nodes_hitrates")  # training statistics
    if any(len(each) != count for each in (splits, modes, tracks)) or not leaves or not roots.size:
        node.wrong(f"lists of nodes differ in length, expected {count} of each")
    if any(not 0 <= mode < len(_NUMBERED) for mode in modes) or ((roots < 0) | (roots >= count)).any():
        node.wrong(f"unknown modes or roots: {sorted(set(modes))}, {roots.tolist()}")
    # sets of members, separated by NaN
    stored = node.attribute("membership_values")
    sets: list[list[float]] = [[]]
    for value in np.asarray(() if stored is None else stored).tolist():
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    members = iter(sets)
    threshold, comparison, others = [], [], []
    for index, mode in enumerate(modes):
        name = _MODES.get(_NUMBERED[mode], "eq")
        is_set = _NUMBERED[mode] not in _MODES
        values = next(members, []) or [float("nan")] if is_set else [float(splits[index])]
        threshold.append(values[0])
        comparison.append(name + OR_NAN * bool(tracks[index] and name != "ne"))
        others.append(values[1:])
    # a set membership test becomes a chain of equality tests, one per member
    for index, rest in enumerate(others):
        last = index
        for member in rest:
            for column, item in ((feature, feature[index]), (false, false[last]), (true, true[index])):
                column.append(item)
            threshold.append(member)
            comparison.append("eq")
            false[last] = len(feature) - 1
            last = len(feature) - 1
    inner = len(feature)
    lower, upper = (np.where(np.asarray(side) < 0, inner - 1 - np.asarray(side), side) for side in (false, true))
    return _Nodes(np.asarray(feature), np.asarray(threshold), comparison, lower, upper, roots, leaves)


def _ends(node: Node, side: str, count: int, leaves: int) -> list[int]:
    """Return the successors of all nodes on one side: node indices, and leaves as -1 - index."""
    ids, is_leaf = node.integers(f"nodes_{side}nodeids"), node.integers(f"nodes_{side}leafs")
    if not len(ids) == len(is_leaf) == count:
        node.wrong(f"lists of nodes differ in length, expected {count} of each")
    wrong = next((at for at, leaf in zip(ids, is_leaf, strict=True) if not 0 <= at < (leaves if leaf else count)), None)
    if wrong is not None:
        node.wrong(f"unknown node or leaf {wrong}")
    return [-1 - at if leaf else at for at, leaf in zip(ids, is_leaf, strict=True)]
