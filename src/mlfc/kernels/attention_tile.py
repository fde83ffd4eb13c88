"""Attention of many queries by the register tile: vectors of queries, keys and values as broadcast numbers.

Scores are computed transposed, a tile of keys times a panel of queries. So each lane is a query of its own: largest
scores, sums and exponentials need nothing of other lanes, and keys and values are read where they are, without packing.
Queries are turned into panels once, and the result back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

from mlfc.kernels import attention_rows, tiling
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
from mlfc.kernels.attention import attention as of_one
from mlfc.kernels.functions import transcendental
from mlfc.kernels.templates import template
from mlfc.kernels.tiling import LANES, Split, balanced
from mlfc.support import dtypes
from mlfc.support.dims import Dim, bounds
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

FEWEST = 8  # queries for which panels of them pay
KEYS = 64  # about as many keys are a tile: their scores, keys and values stay in the first-level cache
PANELS = 4  # panels that share a tile
VECTOR = dtypes.vector("float32", LANES)


def _accepts(_: Context, work: FusedAttention, __: Output) -> bool:
    return (
        work.dtype == "float32"
        and bounds(work.queries)[1] >= FEWEST
        and work.k.tensor.dtype == work.v.tensor.dtype == "float32"
    )


@template("attention", "vector", _accepts)
def attention(ctx: Context, work: FusedAttention, out: Output) -> None:
    """Write an attention of many queries; where the run decides how many there are, also that of few."""
    if bounds(work.queries)[0] >= FEWEST:
        _of_many(ctx, work, out)
        return
    with ctx.stmts.when(tb.binary("ge", tb.as_expr(work.queries), FEWEST)):
        _of_many(ctx, work, out)
    with ctx.stmts.otherwise():
        of_few = attention_rows.attention if attention_rows.accepts(ctx, work, out) else of_one
        of_few(ctx, work, out)


template("attention", "vector", attention_rows.accepts)(attention_rows.attention)  # of what that does not take


def _of_many(ctx: Context, work: FusedAttention, out: Output) -> None:
    """Write the work of panels, with as many vectors as suit the number of queries."""
    registers = ctx.features.vector_registers
    if isinstance(work.queries, Dim):
        _by_vectors(ctx, work, out, tiling.panel_vectors(registers))
    else:
        _Panels(ctx, work, out, tiling.panel(work.queries, registers)).emit()


def _by_vectors(ctx: Context, work: FusedAttention, out: Output, choices: Sequence[int]) -> None:
    """Write the work of panels of each number of vectors, the largest one first, and the choice among them."""
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
        self.scores = scratch("scores", capacity(work.keys, self.tile))

    def emit(self) -> None:
        """Write everything."""
        stmts, work = self.ctx.stmts, self.work
        with stmts.loop(work.batch, "batch") as batch, stmts.loop(work.heads, "head") as head:
            first, length = stmts.let("first", work.first(batch)), stmts.let("length", work.length(batch))
            with stmts.loop(-(-self.panels // self.block), "block") as block:
                stmts.refill(self.queries, self.mixed, self.tops, self.totals, self.scores)
                start = block * self.block
                with self._panels(batch, head, start) as (panel, place):
                    self._begin(panel, place)
                for tile in tiles(self.ctx, work.keys, self.tile):
                    with tile as (key, keys), self._panels(batch, head, start) as (panel, place):
                        visible = work.visible(first, length, place.query, place.query + self.lanes)
                        with used(self.ctx, visible, key, keys) as here:
                            self._tile(panel, place, first, visible, (key, keys, here))
                with self._panels(batch, head, start) as (panel, place):
                    self._finish(panel, place)

    @contextmanager
    def _panels(self, batch: Expr, head: Expr, start: Expr) -> Iterator[tuple[Expr, Place]]:
        """Open the loop over the panels of a block, the first of which is `start`; yield which, and its first query."""
        is_even = self.panels % self.block == 0
        count = tb.const(self.block) if is_even else tb.minimum(self.block, self.panels - start)
        with self.ctx.stmts.loop(count, "panel") as panel:
            yield panel, Place(batch, head, self.ctx.stmts.let("query", (start + panel) * self.lanes))

    def _each(self) -> Any:
        return self.ctx.stmts.loop(self.lanes, "lane", "vectorized")

    def _query(self, place: Place, lane: Expr) -> Expr:
        """Return the query of a lane: those behind the last one repeat it."""
        if self.is_whole:
            return place.query + lane
        return tb.minimum(place.query + lane, self.work.queries - 1)

    def _begin(self, panel: Expr, place: Place) -> None:
        """Turn the queries of a panel, scaled, and set its state."""
        stmts, work = self.ctx.stmts, self.work
        with stmts.loop(self.lanes, "lane") as lane:
            query = stmts.let("row", self._query(place, lane))
            with stmts.loop(work.size, "k", "vectorized") as k:
                value = work.q(place.batch, place.head, query, k)
                stmts.store(self.queries, [panel, k, lane], value * work.scale)
        with stmts.loop(work.value_size, "c") as c, self._each() as lane:
            stmts.store(self.mixed, [panel, c, lane], 0)
        with self._each() as lane:
            top = tb.const(-inf, "float32") if work.sink is None else work.sink(place.head)
            stmts.store(self.tops, [panel, lane], top)
            stmts.store(self.totals, [panel, lane], 0 if work.sink is None else 1)

    def _tile(self, panel: Expr, place: Place, first: Expr, visible: Visible, keys: tuple[Expr, Any, Expr]) -> None:
        """Write the work of a panel on `here` keys of a tile."""
        stmts = self.ctx.stmts
        start, count, here = keys
        whole = count // self.rows
        groups = tb.as_expr(whole) if visible.end is None else tb.minimum((here + (self.rows - 1)) // self.rows, whole)
        with stmts.loop(groups, "group") as group:
            self._scores(panel, place, start, group * self.rows, self.rows)
        for few in rest_loops(self.ctx, visible, here, (count, self.rows)):
            with few as (key, size):
                self._scores(panel, place, start, key, size)
        self._change(place, first, visible, start, here)
        fade = self._exponentials(panel, here)
        for piece in split_loops(self.ctx, self._pieces(), "c"):
            with piece as (c, size):
                self._mix(panel, place, fade, (c, size), (start, here))

    def _pieces(self) -> Split:
        return balanced(self.work.value_size, self.rows)

    def _sums(self, rows: int) -> Buffer:
        sums = self.ctx.stmts.local("sums", (rows * self.vectors,), VECTOR)
        for index in range(rows * self.vectors):
            self.ctx.stmts.store(sums, [index], tb.const(0, VECTOR))
        return sums

    def _vectors(self, buffer: Buffer, *indices: Any) -> Sequence[Expr]:
        return [tb.load(buffer, [*indices, v * LANES], lanes=LANES) for v in range(self.vectors)]

    def _scores(self, panel: Expr, place: Place, start: Expr, key: Expr, rows: int) -> None:
        """Write the scores of a few keys from `key` of the tile on."""
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
        """Write the cap, the biases and the masks; windows only where they cut the tile."""
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
        """Turn scores into exponentials of what they are below the largest; return the factors of what was before."""
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
            stmts.store(fade, [lane], transcendental(self.ctx, "exp", tb.load(self.tops, [panel, lane]) - down))
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
        """Add the values of the tile's keys, a few elements of each."""
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
        """Divide by the sums of the exponentials, and turn the result back."""
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
