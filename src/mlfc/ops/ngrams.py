"""Counts of n-grams: a tree of the known n-grams, stored in tables with binary search."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.errors import TypeCheckError
from mlfc.kernels.folding import serial_loops
from mlfc.ops.rules import check_dtype, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Trait
from mlfc.support.dims import maximum, minimum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Expr

_INTEGERS = ("int32", "int64")


def _infer(
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


def _emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
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


declare("ml.ngram_counts", 4, _infer, Kind.ANCHOR,
        (Attr("columns", REQUIRED), Attr("longest", REQUIRED), Attr("skips", 0)),
        emit=_emit, traits=Trait.NOT_IN_TVM, contract="exact up to 2^24",
        doc="Counts of known n-grams, also with up to a number of tokens skipped between any two")  # fmt: skip
