"""Vectorized attention: along elements for few queries, by the register tile (keys x panel of queries) for many.

For many queries, scores are computed transposed, so each lane is a query: maxima, sums and exponentials need no
cross-lane operations, and keys and values are read in place. Queries are transposed into panels once, and so is the
result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

from mlfc.kernels import tiling
from mlfc.kernels.arithmetic import add_products, scaled_vector
from mlfc.kernels.attention import (
    FusedAttention,
    Place,
    Visible,
    is_cut,
    rest_loops,
    shifted,
    tiles,
    used,
)
from mlfc.kernels.attention import attention as of_one
from mlfc.kernels.folding import Fold
from mlfc.kernels.rows import PlainRows
from mlfc.kernels.templates import template
from mlfc.kernels.tiling import LANES, balanced, cut
from mlfc.support import dtypes
from mlfc.support.dims import Dim, bounds
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

ROW_KEYS = 128  # keys of a tile
MOST_ROWS = 4  # maximum number of queries that are computed together
VECTOR = dtypes.vector("float32", LANES)


def accepts_few(_: Context, work: FusedAttention, __: Output) -> bool:
    """Return whether keys and values can be read as vectors."""
    parts = (work.q.tensor, work.k.tensor, work.v.tensor)
    in_memory = all(part.buffer is not None and part.dtype == "float32" for part in parts)
    return work.dtype == "float32" and in_memory and min(work.size, work.value_size) >= LANES


def attention_of_few(ctx: Context, work: FusedAttention, out: Output) -> None:
    """Write an attention of few queries."""
    stmts = ctx.stmts
    rows = cut(work.share * work.queries, MOST_ROWS)
    with stmts.loop(work.batch, "batch") as batch, stmts.loop(work.groups, "group") as group:
        for row, count in tiling.pieces(ctx, rows, "row"):
            _QueryRows(ctx, work, out, (batch, group), row, count).emit()


class _QueryRows:
    """The loops of a few queries that share keys: vectors of elements; keys and values are read once for all."""

    def __init__(
        self, ctx: Context, work: FusedAttention, out: Output, group: tuple[Expr, Expr], row: Expr, count: int
    ) -> None:
        self.ctx, self.work, self.out, self.count = ctx, work, out, count
        self.batch, self.group = group
        self.places = [self._place(row + index) for index in range(count)]
        fitting = max(1, tiling.accumulators(ctx.features.vector_registers) // count)
        self.keys_at_once = min(4, fitting)
        self.vectors = min(4, fitting, work.value_size // LANES)
        self.scores = ctx.scratch("scores", (count, min(ROW_KEYS, bounds(work.keys)[1])), "float32")
        self.mixed = ctx.scratch("mixed", (count, work.value_size), "float32")
        self.state = ctx.stmts.local("state", (count, 2), "float32")  # largest score, sum of the exponentials
        self.fade = ctx.stmts.local("fade", (count,), "float32")

    def _place(self, row: Expr) -> Place:
        stmts, work = self.ctx.stmts, self.work
        head = stmts.let("head", self.group * work.share + row // work.queries)
        return Place(self.batch, head, stmts.let("query", row % work.queries))

    def emit(self) -> None:
        """Write all loops."""
        stmts, work = self.ctx.stmts, self.work
        stmts.refill(self.scores, self.mixed)
        for index, place in enumerate(self.places):
            for which, value in enumerate(work.begin(place.head)):
                stmts.store(self.state, [index, which], value)
        with stmts.loop(self.count, "row") as row, stmts.loop(work.value_size, "c", "vectorized") as c:
            stmts.store(self.mixed, [row, c], 0)
        first, length = stmts.let("first", work.first(self.batch)), stmts.let("length", work.length(self.batch))
        visible = work.visible(first, length, tb.const(0), tb.as_expr(work.queries))
        for start, count in tiles(self.ctx, work.keys, ROW_KEYS):
            with used(self.ctx, visible, start, count) as here:
                self._tile(first, visible, start, (count, here))
        for index, place in enumerate(self.places):
            scale = stmts.let("scale", work.inverse(tb.load(self.state, [index, 1])))
            scale = work.settled(self.ctx, place, scale, self.fade, index)
            with stmts.loop(work.value_size, "c", "vectorized") as c:
                work.store(self.out, place, c, work.finished(tb.load(self.mixed, [index, c]), scale))

    def _tile(self, first: Expr, visible: Visible, start: Expr, keys: tuple[Any, Expr]) -> None:
        """Process the visible keys of a tile."""
        stmts = self.ctx.stmts
        count, here = keys
        whole = count // self.keys_at_once
        groups = tb.as_expr(whole)
        if visible.end is not None:
            groups = tb.minimum((here + (self.keys_at_once - 1)) // self.keys_at_once, whole)
        with stmts.loop(groups, "step") as group:
            self._scores(start, group * self.keys_at_once, self.keys_at_once)
        for key, size in rest_loops(self.ctx, visible, here, (count, self.keys_at_once)):
            self._scores(start, key, size)
        if visible.end is not None:
            with stmts.loop(self.count, "row") as row, stmts.loop(count - here, "key", "vectorized") as key:
                stmts.store(self.scores, [row, here + key], tb.const(-inf, "float32"))
        self._change(first, visible, start, here)
        for index in range(self.count):
            self._exponentials(index, count)
        self._mix(start, here)

    def _scores(self, start: Expr, key: Expr, keys: int) -> None:
        """Write the scores of `keys` keys, starting at `key` of the tile."""
        stmts, work = self.ctx.stmts, self.work
        steps, rest = divmod(work.size, LANES)
        items = self.count * keys
        sums = stmts.filled("sums", items, VECTOR)
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
        """Apply the cap, the biases and the masks; windows only if they cut the tile."""
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
        """Replace the scores of a query by the exponentials of their differences from the largest."""
        stmts, rows = self.ctx.stmts, PlainRows(self.ctx)

        def read(at: Sequence[Any]) -> Expr:
            return tb.load(self.scores, [index, *at])

        best = rows.folded("best", (count,), read, Fold("float32", -inf, tb.maximum, lambda value: value))
        before = tb.load(self.state, [index, 0])
        top = stmts.let("top", tb.maximum(best, before))
        shift = stmts.let("shift", shifted(top))
        fade = stmts.let("fade", self.ctx.transcendental("exp", before - shift))
        with stmts.loop(count, "key", "vectorized") as key:
            stmts.store(self.scores, [index, key], tb.intrinsic("exp_below_f32", read([key]) - shift))
        part = rows.folded("part", (count,), read, Fold("float32", 0, lambda a, b: a + b, lambda value: value))
        stmts.store(self.state, [index, 1], tb.load(self.state, [index, 1]) * fade + part)
        stmts.store(self.state, [index, 0], top)
        stmts.store(self.fade, [index], fade)

    def _mix(self, start: Expr, here: Expr) -> None:
        """Accumulate the values of the tile's keys."""
        vectors, rest = divmod(self.work.value_size, LANES)
        for vector, count in tiling.pieces(self.ctx, balanced(vectors, self.vectors), "c"):
            self._mix_vectors(start, here, vector * LANES, count)
        if rest:
            self._mix_rest(start, here, vectors * LANES, rest)

    def _mix_vectors(self, start: Expr, here: Expr, first: Expr, vectors: int) -> None:
        stmts, work = self.ctx.stmts, self.work
        v = work.v.tensor.in_memory(self.ctx)
        sums = stmts.filled("sums", self.count * vectors, VECTOR)
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


FEWEST = 8  # minimum number of queries for which panels pay
KEYS = 64  # approximate number of keys of a tile: their scores, keys and values fit in the first-level cache
PANELS = 4  # panels that share a tile


def _accepts(_: Context, work: FusedAttention, __: Output) -> bool:
    return (
        work.dtype == "float32"
        and bounds(work.queries)[1] >= FEWEST
        and work.k.tensor.dtype == work.v.tensor.dtype == "float32"
    )


@template("attention", "vector", _accepts)
def attention(ctx: Context, work: FusedAttention, out: Output) -> None:
    """Write an attention of many queries; if their number is dynamic, also the code for few."""
    if bounds(work.queries)[0] >= FEWEST:
        _of_many(ctx, work, out)
        return
    with ctx.stmts.when(tb.binary("ge", tb.as_expr(work.queries), FEWEST)):
        _of_many(ctx, work, out)
    with ctx.stmts.otherwise():
        of_few = attention_of_few if accepts_few(ctx, work, out) else of_one
        of_few(ctx, work, out)


template("attention", "vector", accepts_few)(attention_of_few)  # for the cases that the template above rejects


def _of_many(ctx: Context, work: FusedAttention, out: Output) -> None:
    """Write the loops over panels, with the number of vectors that suits the number of queries."""
    registers = ctx.features.vector_registers
    if isinstance(work.queries, Dim):
        _by_vectors(ctx, work, out, tiling.panel_vectors(registers))
    else:
        _Panels(ctx, work, out, tiling.panel(work.queries, registers)).emit()


def _by_vectors(ctx: Context, work: FusedAttention, out: Output, choices: Sequence[int]) -> None:
    """Write the loops over panels for each number of vectors, largest first, and the choice among them."""
    *fewer, vectors = choices
    panels = tiling.panel_rows(vectors, ctx.features.vector_registers), vectors
    if not fewer:
        _Panels(ctx, work, out, panels).emit()
        return
    count = tb.as_expr((work.queries + (LANES - 1)) // LANES)
    is_filled = tb.binary("le", (count + (vectors - 1)) // vectors * vectors, count + 1)
    with ctx.stmts.when(tb.land(tb.binary("ge", count, vectors), is_filled)):
        _Panels(ctx, work, out, panels).emit()
    with ctx.stmts.otherwise():
        _by_vectors(ctx, work, out, fewer)


class _Panels:
    """The loops over panels of queries and tiles of keys."""

    def __init__(self, ctx: Context, work: FusedAttention, out: Output, panel: tuple[int, int]) -> None:
        self.ctx, self.work, self.out = ctx, work, out
        self.rows, self.vectors = panel
        self.lanes = self.vectors * LANES
        self.panels = -(-work.queries // self.lanes)
        self.is_whole = work.queries % self.lanes == 0
        self.block = min(PANELS, bounds(self.panels)[1])
        self.tile = self.rows * -(-KEYS // self.rows)

        def scratch(name: str, *shape: int) -> Buffer:
            return ctx.scratch(name, (*shape, self.lanes), "float32")

        self.queries = scratch("queries", self.block, work.size)
        self.mixed = scratch("mixed", self.block, work.value_size)
        self.tops, self.totals = scratch("tops", self.block), scratch("totals", self.block)
        self.scores = scratch("scores", min(self.tile, bounds(work.keys)[1]))

    def emit(self) -> None:
        """Write all loops."""
        stmts, work = self.ctx.stmts, self.work
        with stmts.loop(work.batch, "batch") as batch, stmts.loop(work.heads, "head") as head:
            first, length = stmts.let("first", work.first(batch)), stmts.let("length", work.length(batch))
            with stmts.loop(-(-self.panels // self.block), "block") as block:
                stmts.refill(self.queries, self.mixed, self.tops, self.totals, self.scores)
                start = block * self.block
                with self._panels(batch, head, start) as (panel, place):
                    self._begin(panel, place)
                for key, keys in tiles(self.ctx, work.keys, self.tile):
                    with self._panels(batch, head, start) as (panel, place):
                        visible = work.visible(first, length, place.query, place.query + self.lanes)
                        with used(self.ctx, visible, key, keys) as here:
                            self._tile(panel, place, first, visible, (key, keys, here))
                with self._panels(batch, head, start) as (panel, place):
                    self._finish(panel, place)

    @contextmanager
    def _panels(self, batch: Expr, head: Expr, start: Expr) -> Iterator[tuple[Expr, Place]]:
        """Open the loop over the panels of a block that begins at panel `start`; yield a panel and its first query."""
        is_even = self.panels % self.block == 0
        count = tb.const(self.block) if is_even else tb.minimum(self.block, self.panels - start)
        with self.ctx.stmts.loop(count, "panel") as panel:
            yield panel, Place(batch, head, self.ctx.stmts.let("query", (start + panel) * self.lanes))

    def _each(self) -> Any:
        return self.ctx.stmts.loop(self.lanes, "lane", "vectorized")

    def _query(self, place: Place, lane: Expr) -> Expr:
        """Return the query of a lane; lanes after the last query repeat it."""
        if self.is_whole:
            return place.query + lane
        return tb.minimum(place.query + lane, self.work.queries - 1)

    def _begin(self, panel: Expr, place: Place) -> None:
        """Transpose and scale the queries of a panel, and initialize its state."""
        stmts, work = self.ctx.stmts, self.work
        with stmts.loop(self.lanes, "lane") as lane:
            query = stmts.let("row", self._query(place, lane))
            with stmts.loop(work.size, "k", "vectorized") as k:
                value = work.q(place.batch, place.head, query, k)
                stmts.store(self.queries, [panel, k, lane], value * work.scale)
        with stmts.loop(work.value_size, "c") as c, self._each() as lane:
            stmts.store(self.mixed, [panel, c, lane], 0)
        with self._each() as lane:
            top, total = work.begin(place.head)
            stmts.store(self.tops, [panel, lane], top)
            stmts.store(self.totals, [panel, lane], total)

    def _tile(self, panel: Expr, place: Place, first: Expr, visible: Visible, keys: tuple[Expr, Any, Expr]) -> None:
        """Process `here` keys of a tile for a panel."""
        stmts = self.ctx.stmts
        start, count, here = keys
        whole = count // self.rows
        groups = tb.as_expr(whole) if visible.end is None else tb.minimum((here + (self.rows - 1)) // self.rows, whole)
        with stmts.loop(groups, "group") as group:
            self._scores(panel, place, start, group * self.rows, self.rows)
        for key, size in rest_loops(self.ctx, visible, here, (count, self.rows)):
            self._scores(panel, place, start, key, size)
        self._change(place, first, visible, start, here)
        fade = self._exponentials(panel, here)
        for elements in tiling.pieces(self.ctx, balanced(self.work.value_size, self.rows), "c"):
            self._mix(panel, place, fade, elements, (start, here))

    def _sums(self, rows: int) -> Buffer:
        return self.ctx.stmts.filled("sums", rows * self.vectors, VECTOR)

    def _vectors(self, buffer: Buffer, *indices: Any) -> Sequence[Expr]:
        return [tb.load(buffer, [*indices, v * LANES], lanes=LANES) for v in range(self.vectors)]

    def _scores(self, panel: Expr, place: Place, start: Expr, key: Expr, rows: int) -> None:
        """Write the scores of a few keys, starting at `key` of the tile."""
        stmts, work = self.ctx.stmts, self.work
        group = place.head // work.share
        sums = self._sums(rows)
        with stmts.loop(work.size, "k") as k:
            values = [work.k(place.batch, group, start + key + row, k) for row in range(rows)]
            add_products(stmts, sums, values, self._vectors(self.queries, panel, k), scaled_vector)
        for row in range(rows):
            for v in range(self.vectors):
                stmts.store(self.scores, [key + row, v * LANES], tb.load(sums, [row * self.vectors + v]))

    def _change(self, place: Place, first: Expr, visible: Visible, start: Expr, here: Expr) -> None:
        """Apply the cap, the biases and the masks; windows only if they cut the tile."""
        stmts, work = self.ctx.stmts, self.work
        if work.is_changed:
            with stmts.loop(here, "key") as key, self._each() as lane:
                own = Place(place.batch, place.head, self._query(place, lane))
                score = work.changed(self.ctx, own, start + key, tb.load(self.scores, [key, lane]))
                stmts.store(self.scores, [key, lane], score)
        if not work.has_window:
            return
        with stmts.when(is_cut(visible, start, here)):
            with stmts.loop(here, "key") as key, self._each() as lane:
                sees = work.in_window(first + place.query + lane, start + key)
                score = tb.select(sees, tb.load(self.scores, [key, lane]), tb.const(-inf, "float32"))
                stmts.store(self.scores, [key, lane], score)

    def _exponentials(self, panel: Expr, here: Expr) -> Buffer:
        """Replace scores by exponentials of their differences from the largest; return factors of the previous sums."""
        stmts = self.ctx.stmts
        best = stmts.local("best", (self.vectors,), VECTOR)
        for v, vector in enumerate(self._vectors(self.tops, panel)):
            stmts.store(best, [v], vector)
        with stmts.loop(here, "key") as key:
            for v, vector in enumerate(self._vectors(self.scores, key)):
                stmts.store(best, [v], tb.maximum(vector, tb.load(best, [v])))
        tops, shift, fade, part = (
            stmts.local(name, (self.lanes,), "float32") for name in ("top", "shift", "fade", "part")
        )
        for v in range(self.vectors):
            stmts.store(tops, [v * LANES], tb.load(best, [v]))
        with self._each() as lane:
            top = stmts.let("new", tb.load(tops, [lane]))
            down = stmts.let("down", shifted(top))
            stmts.store(fade, [lane], self.ctx.transcendental("exp", tb.load(self.tops, [panel, lane]) - down))
            stmts.store(shift, [lane], down)
            stmts.store(self.tops, [panel, lane], top)
            stmts.store(part, [lane], 0)
        with stmts.loop(here, "key") as key, self._each() as lane:
            value = tb.intrinsic("exp_below_f32", tb.load(self.scores, [key, lane]) - tb.load(shift, [lane]))
            value = stmts.let("value", value)
            stmts.store(self.scores, [key, lane], value)
            stmts.store(part, [lane], tb.load(part, [lane]) + value)
        with self._each() as lane:
            total = tb.load(self.totals, [panel, lane]) * tb.load(fade, [lane]) + tb.load(part, [lane])
            stmts.store(self.totals, [panel, lane], total)
        return fade

    def _mix(
        self, panel: Expr, place: Place, fade: Buffer, elements: tuple[Expr, int], keys: tuple[Expr, Expr]
    ) -> None:
        """Accumulate the values of the tile's keys, a few elements of each."""
        stmts, work = self.ctx.stmts, self.work
        group = place.head // work.share
        (c, size), (start, here) = elements, keys
        sums = self._sums(size)
        with stmts.loop(here, "key") as key:
            values = [work.v(place.batch, group, start + key, c + row) for row in range(size)]
            add_products(stmts, sums, values, self._vectors(self.scores, key), scaled_vector)
        for row in range(size):
            for v in range(self.vectors):
                at = [panel, c + row, v * LANES]
                before = tb.load(self.mixed, at, lanes=LANES) * tb.load(fade, [v * LANES], lanes=LANES)
                stmts.store(self.mixed, at, before + tb.load(sums, [row * self.vectors + v]))

    def _finish(self, panel: Expr, place: Place) -> None:
        """Divide by the sums of the exponentials, and transpose the result back."""
        stmts, work = self.ctx.stmts, self.work
        scale = stmts.local("scale", (self.lanes,), "float32")
        with self._each() as lane:
            stmts.store(scale, [lane], work.inverse(stmts.let("total", tb.load(self.totals, [panel, lane]))))
        count = self.lanes if self.is_whole else tb.minimum(self.lanes, work.queries - place.query)
        with stmts.loop(count, "row") as row:
            own = Place(place.batch, place.head, place.query + row)
            factor = work.settled(self.ctx, own, tb.load(scale, [row]), scale, row)
            with stmts.loop(work.value_size, "c", "vectorized") as c:
                value = work.finished(tb.load(self.mixed, [panel, c, row]), factor)
                work.store(self.out, own, c, value)
