"""Attention of few queries: vectors of elements, keys and values read once for all queries that share them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from mlfc.kernels import tiling
from mlfc.kernels.arithmetic import add_products, scaled_vector
from mlfc.kernels.attention import (
    FusedAttention,
    Place,
    Visible,
    capacity,
    is_cut,
    rest_loops,
    shifted,
    split_loops,
    tiles,
    used,
)
from mlfc.kernels.folding import Fold
from mlfc.kernels.functions import transcendental
from mlfc.kernels.rows import PlainRows
from mlfc.kernels.tiling import LANES, balanced, cut
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Expr

KEYS = 128  # of a tile
MOST_ROWS = 4  # queries that are computed together
VECTOR = dtypes.vector("float32", LANES)


def accepts(_: Context, work: FusedAttention, __: Output) -> bool:
    """Tell whether keys and values can be read as vectors."""
    parts = (work.q.tensor, work.k.tensor, work.v.tensor)
    in_memory = all(part.buffer is not None and part.dtype == "float32" for part in parts)
    return work.dtype == "float32" and in_memory and min(work.size, work.value_size) >= LANES


def attention(ctx: Context, work: FusedAttention, out: Output) -> None:
    """Write an attention of few queries."""
    stmts = ctx.stmts
    rows = cut(work.share * work.queries, MOST_ROWS)
    with stmts.loop(work.batch, "batch") as batch, stmts.loop(work.groups, "group") as group:
        for piece in split_loops(ctx, rows, "row"):
            with piece as (row, count):
                _QueryRows(ctx, work, out, (batch, group), row, count).emit()


class _QueryRows:
    """The loops of a few queries that share keys."""

    def __init__(
        self, ctx: Context, work: FusedAttention, out: Output, group: tuple[Expr, Expr], row: Expr, count: int
    ) -> None:
        self.ctx, self.work, self.out, self.count = ctx, work, out, count
        self.batch, self.group = group
        self.places = [self._place(row + index) for index in range(count)]
        fitting = max(1, tiling.accumulators(ctx.features.vector_registers) // count)
        self.keys_at_once = min(4, fitting)
        self.vectors = min(4, fitting, work.value_size // LANES)
        self.scores = ctx.scratch("scores", (count, capacity(work.keys, KEYS)), "float32")
        self.mixed = ctx.scratch("mixed", (count, work.value_size), "float32")
        self.state = ctx.stmts.local("state", (count, 2), "float32")  # largest score, sum of the exponentials
        self.fade = ctx.stmts.local("fade", (count,), "float32")

    def _place(self, row: Expr) -> Place:
        stmts, work = self.ctx.stmts, self.work
        head = stmts.let("head", self.group * work.share + row // work.queries)
        return Place(self.batch, head, stmts.let("query", row % work.queries))

    def emit(self) -> None:
        """Write everything."""
        stmts, work = self.ctx.stmts, self.work
        stmts.refill(self.scores, self.mixed)
        for index, place in enumerate(self.places):
            sink = work.sink
            stmts.store(self.state, [index, 0], tb.const(-inf, "float32") if sink is None else sink(place.head))
            stmts.store(self.state, [index, 1], 0 if sink is None else 1)
        with stmts.loop(self.count, "row") as row, stmts.loop(work.value_size, "c", "vectorized") as c:
            stmts.store(self.mixed, [row, c], 0)
        first, length = stmts.let("first", work.first(self.batch)), stmts.let("length", work.length(self.batch))
        visible = work.visible(first, length, tb.const(0), tb.as_expr(work.queries))
        for tile in tiles(self.ctx, work.keys, KEYS):
            with tile as (start, count), used(self.ctx, visible, start, count) as here:
                self._tile(first, visible, start, (count, here))
        for index, place in enumerate(self.places):
            scale = stmts.let("scale", work.inverse(tb.load(self.state, [index, 1])))
            scale = work.settled(self.ctx, place, scale, self.fade, index)
            with stmts.loop(work.value_size, "c", "vectorized") as c:
                work.store(self.out, place, c, work.finished(tb.load(self.mixed, [index, c]), scale))

    def _tile(self, first: Expr, visible: Visible, start: Expr, keys: tuple[Any, Expr]) -> None:
        """Write the work on the visible ones of a tile's keys."""
        stmts = self.ctx.stmts
        count, here = keys
        whole = count // self.keys_at_once
        groups = tb.as_expr(whole)
        if visible.end is not None:
            groups = tb.minimum((here + (self.keys_at_once - 1)) // self.keys_at_once, whole)
        with stmts.loop(groups, "step") as group:
            self._scores(start, group * self.keys_at_once, self.keys_at_once)
        for few in rest_loops(self.ctx, visible, here, (count, self.keys_at_once)):
            with few as (key, size):
                self._scores(start, key, size)
        if visible.end is not None:
            with stmts.loop(self.count, "row") as row, stmts.loop(count - here, "key", "vectorized") as key:
                stmts.store(self.scores, [row, here + key], tb.const(-inf, "float32"))
        self._change(first, visible, start, here)
        for index in range(self.count):
            self._exponentials(index, count)
        self._mix(start, here)

    def _scores(self, start: Expr, key: Expr, keys: int) -> None:
        """Write the scores of `keys` keys from `key` of the tile on."""
        stmts, work = self.ctx.stmts, self.work
        steps, rest = divmod(work.size, LANES)
        items = self.count * keys
        sums = stmts.local("sums", (items,), VECTOR)
        for index in range(items):
            stmts.store(sums, [index], tb.const(0, VECTOR))
        q, k = work.q.tensor.in_memory(self.ctx), work.k.tensor.in_memory(self.ctx)
        with stmts.loop(steps, "k") as step:
            rows = [
                stmts.let("q", tb.load(q, work.q.indices(place.batch, place.head, place.query, step * LANES), LANES))
                for place in self.places
            ]
            for column in range(keys):
                vector = stmts.let(
                    "x", tb.load(k, work.k.indices(self.batch, self.group, start + key + column, step * LANES), LANES)
                )
                for index, row in enumerate(rows):
                    at = index * keys + column
                    stmts.store(sums, [at], tb.load(sums, [at]) + row * vector)
        parts = stmts.local("parts", (items, LANES), "float32")
        for index in range(items):
            stmts.store(parts, [index, 0], tb.load(sums, [index]))
        for half in (8, 4, 2):
            with stmts.loop(items, "item") as item, stmts.loop(half, "lane", "vectorized") as lane:
                stmts.store(parts, [item, lane], tb.load(parts, [item, lane]) + tb.load(parts, [item, lane + half]))
        for index, place in enumerate(self.places):
            for column in range(keys):
                at = index * keys + column
                total = tb.load(parts, [at, 0]) + tb.load(parts, [at, 1])
                for element in range(steps * LANES, steps * LANES + rest):
                    total = total + work.q(place.batch, place.head, place.query, element) * work.k(
                        self.batch, self.group, start + key + column, element
                    )
                stmts.store(self.scores, [index, key + column], total * work.scale)

    def _change(self, first: Expr, visible: Visible, start: Expr, here: Expr) -> None:
        """Write the cap, the biases and the masks; windows only where they cut the tile."""
        stmts, work = self.ctx.stmts, self.work
        for index, place in enumerate(self.places):
            if work.is_changed:
                with stmts.loop(here, "key", "vectorized") as key:
                    score = work.changed(self.ctx, place, start + key, tb.load(self.scores, [index, key]))
                    stmts.store(self.scores, [index, key], score)
            if work.has_window:
                with stmts.when(is_cut(visible, start, here)), stmts.loop(here, "key", "vectorized") as key:
                    sees = work.in_window(first + place.query, start + key)
                    score = tb.select(sees, tb.load(self.scores, [index, key]), tb.const(-inf, "float32"))
                    stmts.store(self.scores, [index, key], score)

    def _exponentials(self, index: int, count: Any) -> None:
        """Turn scores of a query into exponentials of what they are below the largest."""
        stmts, rows = self.ctx.stmts, PlainRows(self.ctx)

        def read(at: Sequence[Any]) -> Expr:
            return tb.load(self.scores, [index, *at])

        best = rows.folded("best", (count,), read, Fold("float32", -inf, tb.maximum, lambda value: value))
        before = tb.load(self.state, [index, 0])
        top = stmts.let("top", tb.maximum(best, before))
        shift = stmts.let("shift", shifted(top))
        fade = stmts.let("fade", transcendental(self.ctx, "exp", before - shift))
        with stmts.loop(count, "key", "vectorized") as key:
            stmts.store(self.scores, [index, key], tb.intrinsic("exp_below_f32", read([key]) - shift))
        part = rows.folded("part", (count,), read, Fold("float32", 0, lambda a, b: a + b, lambda value: value))
        stmts.store(self.state, [index, 1], tb.load(self.state, [index, 1]) * fade + part)
        stmts.store(self.state, [index, 0], top)
        stmts.store(self.fade, [index], fade)

    def _mix(self, start: Expr, here: Expr) -> None:
        """Add the values of the tile's keys."""
        vectors, rest = divmod(self.work.value_size, LANES)
        for piece in split_loops(self.ctx, balanced(vectors, self.vectors), "c"):
            with piece as (vector, count):
                self._mix_vectors(start, here, vector * LANES, count)
        if rest:
            self._mix_rest(start, here, vectors * LANES, rest)

    def _mix_vectors(self, start: Expr, here: Expr, first: Expr, vectors: int) -> None:
        stmts, work = self.ctx.stmts, self.work
        v = work.v.tensor.in_memory(self.ctx)
        sums = stmts.local("sums", (self.count * vectors,), VECTOR)
        for index in range(self.count * vectors):
            stmts.store(sums, [index], tb.const(0, VECTOR))
        with stmts.loop(here, "key") as key:
            values = [tb.load(self.scores, [index, key]) for index in range(self.count)]
            loads = [
                tb.load(v, work.v.indices(self.batch, self.group, start + key, first + at * LANES), LANES)
                for at in range(vectors)
            ]
            add_products(stmts, sums, values, loads, scaled_vector)
        for index in range(self.count):
            fade = tb.broadcast(tb.load(self.fade, [index]), LANES)
            for at in range(vectors):
                place = [index, first + at * LANES]
                total = tb.load(self.mixed, place, LANES) * fade + tb.load(sums, [index * vectors + at])
                stmts.store(self.mixed, place, total)

    def _mix_rest(self, start: Expr, here: Expr, first: int, rest: int) -> None:
        stmts, work = self.ctx.stmts, self.work
        sums = stmts.local("sums", (self.count, rest), "float32")
        with stmts.loop(self.count, "row") as row, stmts.loop(rest, "c", "vectorized") as c:
            stmts.store(sums, [row, c], 0)
        with stmts.loop(here, "key") as key, stmts.loop(self.count, "row") as row:
            weight = stmts.let("weight", tb.load(self.scores, [row, key]))
            with stmts.loop(rest, "c", "vectorized") as c:
                value = work.v(self.batch, self.group, start + key, c + first)
                stmts.store(sums, [row, c], tb.load(sums, [row, c]) + weight * value)
        with stmts.loop(self.count, "row") as row, stmts.loop(rest, "c", "vectorized") as c:
            total = tb.load(self.mixed, [row, c + first]) * tb.load(self.fade, [row]) + tb.load(sums, [row, c])
            stmts.store(self.mixed, [row, c + first], total)
