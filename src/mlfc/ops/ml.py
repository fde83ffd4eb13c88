"""Classical machine learning: decision trees, counts of n-grams, and class probabilities from those of pairs.

Ensembles are tables of nodes, with one loop per tree from the root to a leaf; n-grams a tree in tables with binary
search. The probabilities follow the second approach of Wu, Lin and Weng, "Probability Estimates for Multi-class
Classification by Pairwise Coupling", JMLR 5 (2004), with libsvm's stopping rule: each error is at most 0.005 / number
of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np

from mlfc.errors import TypeCheckError
from mlfc.kernels.folding import serial_loops
from mlfc.kernels.tree_tables import tree_tables
from mlfc.kernels.trees import emit_trees
from mlfc.ops.reduce import highest, lowest
from mlfc.ops.rules import check_alike, check_choice, check_dtype, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Trait
from mlfc.support import dtypes
from mlfc.support.dims import maximum, minimum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Expr

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


_INTEGERS = ("int32", "int64")


def _infer_counts(
    name: str, attrs: Attrs, tokens: TensorType, first: TensorType, key: TensorType, column: TensorType
) -> TensorType:
    """Check tokens (rows, length) against the tables of a tree.

    Node 0 is the root. Node i + 1 is reached by the token key[i]; the children of node n are at key[i] for i from
    first[n] to first[n + 1], in ascending order of their tokens. column[i] is the result column that counts the n-gram
    ending at this node, or -1.
    """
    for kind in (tokens, key):
        if kind.dtype not in _INTEGERS:
            raise TypeCheckError(f"{name}: expected tokens of {' or '.join(_INTEGERS)}, got {kind.dtype}")
    for kind in (first, column):
        check_dtype(name, kind.dtype, "integer")
    edges = key.shape
    if len(tokens.shape) != 2 or len(edges) != 1 or column.shape != edges or first.shape != (edges[0] + 2,):
        shown = ", ".join(str(kind.shape) for kind in (tokens, first, key, column))
        raise TypeCheckError(f"{name}: tokens and tables of shapes {shown} do not fit")
    if edges[0] < 1 or min(attrs["columns"], attrs["longest"]) < 1 or attrs["skips"] < 0:
        raise TypeCheckError(f"{name}: expected a tree, columns and a longest run of at least 1, and no skips below 0")
    return TensorType((tokens.shape[0], attrs["columns"]), "float32")


def _emit_counts(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    """Walk the tree from every token, with every token, then with every second one, and so on."""
    tokens, stmts = inputs[0], ctx.stmts
    rows, length = tokens.shape
    counts = ctx.scratch("counts", (attrs["columns"],), "int32")
    # a skip that leaves the row from every token only finds n-grams of one token, which are counted once
    steps = minimum(attrs["skips"] + 1, maximum(1, length - 1)) if attrs["longest"] > 1 else 1
    with stmts.loop(rows, "row") as row:
        with stmts.loop(attrs["columns"], "clear") as column:
            stmts.store(counts, [column], 0)
        with serial_loops(ctx, (steps, length), "from") as (skip, start):
            node = stmts.filled("node", 1, "int32")
            with stmts.loop(minimum(attrs["longest"], length), "taken") as taken:
                place = stmts.let("place", start + taken * (skip + 1))
                is_on = tb.land(tb.binary("ge", tb.load(node, [0]), 0), tb.binary("lt", place, length))
                with stmts.when(is_on):
                    token = stmts.let("token", tokens(row, tb.clamp(place, 0, length - 1)))
                    found = _child(ctx, inputs, tb.load(node, [0]), token)
                    stmts.store(node, [0], tb.select(tb.binary("ge", found, 0), found + 1, -1))
                    counts_here = tb.binary("ge", found, 0)
                    if steps != 1:
                        is_new = tb.binary("lor", tb.binary("gt", taken, 0), tb.binary("eq", skip, 0))
                        counts_here = tb.land(counts_here, is_new)
                    with stmts.when(counts_here):
                        columns, last = inputs[3], attrs["columns"] - 1
                        own = tb.cast(columns(tb.clamp(found, 0, columns.shape[0] - 1)), "int32")
                        own = stmts.let("column", own)
                        with stmts.when(tb.land(tb.binary("ge", own, 0), tb.binary("le", own, last))):
                            at = stmts.let("at", tb.clamp(own, 0, last))
                            stmts.store(counts, [at], tb.load(counts, [at]) + 1)
        with stmts.loop(attrs["columns"], "column") as column:
            out.store([row, column], tb.cast(tb.load(counts, [column]), "float32"))


def _child(ctx: Context, inputs: Sequence[Tensor], node: Expr, token: Expr) -> Expr:
    """Return the index of a token among the children of a node, or -1; tables with any contents are safe."""
    _, first, key, _ = inputs
    stmts, edges = ctx.stmts, key.shape[0]
    parent = stmts.let("parent", tb.clamp(node, 0, edges))
    low, high = stmts.local("low", (1,), "int32"), stmts.local("high", (1,), "int32")
    end = stmts.let("end", tb.clamp(tb.cast(first(parent + 1), "int32"), 0, edges))
    stmts.store(low, [0], tb.clamp(tb.cast(first(parent), "int32"), 0, edges))
    stmts.store(high, [0], end)
    wide = tb.cast(token, "int64")
    with stmts.loop(edges.bit_length(), "halving"):
        middle = stmts.let("middle", tb.binary("shr", tb.load(low, [0]) + tb.load(high, [0]), 1))
        with stmts.when(tb.binary("lt", tb.load(low, [0]), tb.load(high, [0]))):
            is_behind = tb.binary("lt", tb.cast(key(tb.clamp(middle, 0, edges - 1)), "int64"), wide)
            is_behind = stmts.let("is_behind", is_behind)
            stmts.store(low, [0], tb.select(is_behind, middle + 1, tb.load(low, [0])))
            stmts.store(high, [0], tb.select(is_behind, tb.load(high, [0]), middle))
    at = stmts.let("at", tb.load(low, [0]))
    inside = stmts.let("inside", tb.clamp(at, 0, edges - 1))
    is_there = tb.land(tb.binary("lt", at, end), tb.binary("eq", tb.cast(key(inside), "int64"), wide))
    return stmts.let("found", tb.select(is_there, inside, -1))


declare("ml.ngram_counts", 4, _infer_counts, Kind.ANCHOR,
        (Attr("columns", REQUIRED), Attr("longest", REQUIRED), Attr("skips", 0)),
        emit=_emit_counts, traits=Trait.NOT_IN_TVM, contract="exact up to 2^24",
        doc="Counts of known n-grams, also with up to a number of tokens skipped between any two")  # fmt: skip


_ROUNDS = 100
_ERROR = 0.005


def _infer_coupling(name: str, _: Attrs, data: TensorType) -> TensorType:
    check_dtype(name, data.dtype, "float")
    if len(data.shape) != 2 or data.shape[1] < 1:
        raise TypeCheckError(f"{name}: expected rows of pairs, got the shape {data.shape}")
    classes = (1 + isqrt(1 + 8 * data.shape[1])) // 2
    if classes * (classes - 1) // 2 != data.shape[1]:
        raise TypeCheckError(f"{name}: expected n * (n - 1) / 2 columns for n classes, got {data.shape[1]}")
    return TensorType((data.shape[0], classes), data.dtype)


def _emit_coupling(ctx: Context, inputs: Sequence[Tensor], _: Attrs, out: Output) -> None:
    (pairs,) = inputs
    stmts, classes, dtype = ctx.stmts, out.shape[1], out.dtype
    with stmts.loop(out.shape[0], "row") as row:
        shapes = {"matrix": (classes, classes), "guess": (classes,), "product": (classes,), "total": (1,)}
        state = _CouplingState(*(stmts.local(name, shape, dtype) for name, shape in shapes.items()))
        worst, goes_on = stmts.local("worst", (1,), dtype), stmts.local("goes_on", (1,), "bool")
        stmts.store(goes_on, [0], True)
        with stmts.loop(classes, "class") as one:
            stmts.store(state.guess, [one], tb.const(1 / classes, dtype))
            _fill(ctx, state.matrix, pairs, row, one)
        with stmts.loop(_ROUNDS, "round"), stmts.when(tb.load(goes_on, [0])):
            state.multiply(ctx, worst)
            stmts.store(goes_on, [0], tb.binary("ge", tb.load(worst, [0]), tb.const(_ERROR / classes, dtype)))
            with stmts.when(tb.load(goes_on, [0])), stmts.loop(classes, "class") as one:
                state.improve(ctx, one)
        with stmts.loop(classes, "class") as one:
            out.store([row, one], tb.load(state.guess, [one]))


def _fill(ctx: Context, matrix: Buffer, pairs: Tensor, row: Expr, one: Expr) -> None:
    """Write the row of a class in the matrix of the quadratic form that the probabilities minimize."""
    classes = matrix.shape[0]

    def wins(first: Expr, second: Expr) -> Expr:
        """Return the probability of the first of two classes, given that it is one of the two."""
        low, high = tb.minimum(first, second), tb.maximum(first, second)
        place = (low * (2 * classes - 1 - low)) // 2 + high - low - 1
        value = pairs(row, tb.clamp(place, 0, pairs.shape[1] - 1))
        return tb.select(tb.binary("lt", first, second), value, tb.const(1, value.dtype) - value)

    ctx.stmts.store(matrix, [one, one], 0.0)
    with ctx.stmts.loop(classes, "other") as other, ctx.stmts.when(tb.binary("ne", other, one)):
        loses = ctx.stmts.let("loses", wins(other, one))
        ctx.stmts.store(matrix, [one, other], tb.const(0, loses.dtype) - loses * wins(one, other))
        ctx.stmts.store(matrix, [one, one], tb.load(matrix, [one, one]) + loses * loses)


@dataclass(frozen=True, eq=False)
class _CouplingState:
    """The current probabilities p, their product Qp with the matrix, and the quadratic form p'Qp."""

    matrix: Buffer
    guess: Buffer
    product: Buffer
    total: Buffer

    def multiply(self, ctx: Context, worst: Buffer) -> None:
        """Compute both products, and the error of the worst class."""
        stmts, classes = ctx.stmts, self.guess.shape[0]
        stmts.store(self.total, [0], 0.0)
        stmts.store(worst, [0], 0.0)
        with stmts.loop(classes, "class") as one:
            stmts.store(self.product, [one], 0.0)
            with stmts.loop(classes, "other") as other:
                part = tb.load(self.matrix, [one, other]) * tb.load(self.guess, [other])
                stmts.store(self.product, [one], tb.load(self.product, [one]) + part)
            part = tb.load(self.guess, [one]) * tb.load(self.product, [one])
            stmts.store(self.total, [0], tb.load(self.total, [0]) + part)
        with stmts.loop(classes, "class") as one:
            apart = tb.load(self.product, [one]) - tb.load(self.total, [0])
            stmts.store(
                worst, [0], tb.maximum(tb.load(worst, [0]), tb.maximum(apart, tb.const(0, apart.dtype) - apart))
            )

    def improve(self, ctx: Context, one: Expr) -> None:
        """Emit a step for the class `one`: solve its equation for its probability, then normalize all to the sum 1."""
        stmts = ctx.stmts
        own, product = tb.load(self.matrix, [one, one]), tb.load(self.product, [one])
        change = stmts.let("change", (tb.load(self.total, [0]) - product) / own)
        scale = stmts.let("scale", change + tb.const(1, change.dtype))
        stmts.store(self.guess, [one], tb.load(self.guess, [one]) + change)
        grown = tb.load(self.total, [0]) + change * (change * own + product + product)
        stmts.store(self.total, [0], grown / scale / scale)
        with stmts.loop(self.guess.shape[0], "other") as other:
            moved = tb.load(self.product, [other]) + change * tb.load(self.matrix, [one, other])
            stmts.store(self.product, [other], moved / scale)
            stmts.store(self.guess, [other], tb.load(self.guess, [other]) / scale)


declare("ml.pairwise_coupling", 1, _infer_coupling, Kind.ANCHOR, emit=_emit_coupling, traits=Trait.NOT_IN_TVM,
        contract="libsvm's steps in the dtype of the data; 0.005 over the number of classes where it stops",
        doc="Class probabilities (rows, classes) from those of the pairs (0, 1), (0, 2), ...")  # fmt: skip
