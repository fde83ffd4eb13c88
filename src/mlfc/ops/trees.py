"""Ensembles of decision trees: tables of nodes, and one loop per tree from the root to a leaf."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlfc.errors import TypeCheckError
from mlfc.kernels.tree_tables import tree_tables
from mlfc.kernels.trees import emit_trees
from mlfc.ops.reduce import highest, lowest
from mlfc.ops.rules import check_alike, check_choice, check_dtype, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind, Trait
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Expr

COMPARISONS = ("le", "lt", "ge", "gt", "eq", "ne")
OR_NAN = "_or_nan"
_AGGREGATES = ("add", "min", "max")
_INPUTS = 7


def _infer(name: str, attrs: Attrs, *types: TensorType) -> TensorType:
    """Check the tables against each other; the result has a row of scores for each row of data.

    Of `types`: data (rows, features); feature (nodes,), threshold (nodes,) and next (nodes, 2) of the inner nodes,
    indexed by the truth of the comparison of feature and threshold; root (trees,) and depth (trees,); score (leaves,
    targets). A node number below the number of inner nodes is an inner node; leaves are numbered after them. With
    several comparisons, the last tensor selects the comparison of each inner node.
    """
    if len(types) != _INPUTS + (len(attrs["comparisons"]) > 1):
        raise TypeCheckError(f"{name} with {len(attrs['comparisons'])} comparisons does not take {len(types)} tensors")
    data, feature, threshold, following, root, depth, score = types[:_INPUTS]
    check_choice(name, "aggregate", attrs["aggregate"], _AGGREGATES)
    for comparison in attrs["comparisons"]:
        check_choice(name, "comparison", comparison.removesuffix(OR_NAN), COMPARISONS)
    check_dtype(name, data.dtype, "float")
    check_alike(name, data, threshold)
    check_dtype(name, score.dtype, "float")
    for table in (feature, following, root, depth, *types[_INPUTS:]):
        check_dtype(name, table.dtype, "integer")
    nodes = feature.shape
    wanted = (nodes, (*nodes, 2), root.shape, *[nodes for _ in types[_INPUTS:]])
    found = (threshold.shape, following.shape, depth.shape, *[kind.shape for kind in types[_INPUTS:]])
    if wanted != found or (len(nodes), len(root.shape), len(data.shape), len(score.shape)) != (1, 1, 2, 2):
        raise TypeCheckError(f"{name}: tables of {', '.join(str(kind.shape) for kind in types)} do not fit")
    if 0 in (*nodes, *root.shape, *score.shape, data.shape[1]):
        raise TypeCheckError(f"{name}: a table is empty: {', '.join(str(kind.shape) for kind in types)}")
    return TensorType((data.shape[0], score.shape[1]), score.dtype)


def _emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    if _emit_known(ctx, inputs, attrs, out):
        return
    data, feature, _, _, root, depth, score = inputs[:_INPUTS]
    stmts, inner, (leaves, targets) = ctx.stmts, feature.shape[0], score.shape
    start = {"add": 0.0, "min": highest(score.dtype), "max": lowest(score.dtype)}[attrs["aggregate"]]
    with stmts.loop(data.shape[0], "row") as row:
        total = stmts.local("total", (targets,), score.dtype)
        with stmts.loop(targets, "target") as target:
            stmts.store(total, [target], tb.const(start, score.dtype))
        with stmts.loop(root.shape[0], "tree") as tree:
            node = stmts.local("node", (1,), "int32")
            stmts.store(node, [0], _index(root(tree)))
            with stmts.loop(_limited(depth(tree), inner), "level"):
                at = stmts.let("at", tb.load(node, [0]))
                with stmts.when(tb.land(tb.binary("ge", at, 0), tb.binary("lt", at, inner))):
                    stmts.store(node, [0], _following(inputs, attrs["comparisons"], row, at))
            leaf = stmts.let("leaf", tb.clamp(tb.load(node, [0]) - inner, 0, leaves - 1))
            with stmts.loop(targets, "target") as target:
                stmts.store(
                    total, [target], tb.binary(attrs["aggregate"], tb.load(total, [target]), score(leaf, target))
                )
        with stmts.loop(targets, "target") as target:
            out.store([row, target], tb.load(total, [target]))


def _emit_known(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> bool:
    """Write the loops for constant tables; return False without writing for devices and irregular tables."""
    if ctx.features.gpu or any(table.value is None for table in inputs[1:]):
        return False
    data, (feature, threshold, following, root, depth, score) = inputs[0], (each.array() for each in inputs[1:_INPUTS])
    names = attrs["comparisons"]
    kinds = inputs[_INPUTS].array() if len(names) > 1 else np.zeros(len(feature), np.int64)
    if (feature >= data.shape[1]).any() or not ((kinds >= 0) & (kinds < len(names))).all():
        return False
    known = tree_tables(feature, threshold, following, root, len(score), [names[int(kind)] for kind in kinds])
    if known is None or (depth < known.depths).any():
        return False
    return emit_trees(ctx, data, known, score, attrs["aggregate"], out)


def _following(inputs: Sequence[Tensor], comparisons: Sequence[str], row: Expr, at: Expr) -> Expr:
    """Return the node that follows the inner node `at`."""
    data, feature, threshold, following = inputs[:4]
    value = data(row, _limited(feature(at), data.shape[1] - 1))
    holds = _compared(comparisons[-1], value, threshold(at))
    if len(comparisons) > 1:
        chosen = inputs[_INPUTS](at)
        for number, comparison in reversed(list(enumerate(comparisons[:-1]))):
            holds = tb.select(tb.binary("eq", chosen, number), _compared(comparison, value, threshold(at)), holds)
    return _index(following(at, tb.cast(holds, "int32")))


def _compared(comparison: str, value: Expr, threshold: Expr) -> Expr:
    holds = tb.binary(comparison.removesuffix(OR_NAN), value, threshold)
    return tb.binary("lor", holds, tb.binary("ne", value, value)) if comparison.endswith(OR_NAN) else holds


def _limited(value: Expr, last: int) -> Expr:
    """Convert an element of a table of any integer dtype to an index clamped to [0, last]."""
    index = _index(value)
    return tb.minimum(index, last) if value.dtype.startswith("u") else tb.clamp(index, 0, last)


def _index(value: Expr) -> Expr:
    """Convert an element of a table to int32; larger values become an invalid node, feature or depth."""
    limit = dtypes.limits("int32")[1]
    return tb.cast(tb.minimum(value, limit) if dtypes.limits(value.dtype)[1] > limit else value, "int32")


declare("ml.tree_ensemble", None, _infer, Kind.ANCHOR, (Attr("comparisons", ("le",)), Attr("aggregate", "add")),
        emit=_emit, traits=Trait.NOT_IN_TVM,
        contract="scores are sums in the order of the trees, in the dtype of the leaves",
        doc="Scores of decision trees, whose nodes are in tables")  # fmt: skip
