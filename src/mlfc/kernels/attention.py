"""Attention as operators pass it to templates, and its plain template: one query at a time, over tiles of keys.

The softmax is computed online: when a tile has a larger score, the sum of exponentials and the accumulated values are
rescaled. So memory contains the scores of only one tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from math import inf
from typing import Any

from mlfc.kernels.folding import serial_loops
from mlfc.kernels.templates import template
from mlfc.kernels.tiling import DynamicSplit, balanced, pieces
from mlfc.support.dims import Dim, Extent, bounds
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Const, Expr

FARTHEST = 1 << 29
"""Largest position and window: sums of a few of them do not overflow 32 bits, and no tensor has so many rows."""

KEYS_AT_ONCE = 4
PLAIN_TILE = 32


@dataclass(frozen=True, eq=False)
class AttentionOperand:
    """Queries, keys, values or results, indexed by (batch, head, position, element) in any memory order."""

    order: str  # BHND, BNHD or NBHD
    tensor: Tensor

    def indices(self, batch: Any, head: Any, position: Any, element: Any) -> list[Expr]:
        """Return the indices of an element."""
        return ordered(self.order, batch, head, position, element)

    def __call__(self, batch: Any, head: Any, position: Any, element: Any) -> Expr:
        """Read an element."""
        return self.tensor.read(self.indices(batch, head, position, element))


def ordered(order: str, batch: Any, head: Any, position: Any, element: Any) -> list[Expr]:
    """Return indices in the order of a tensor."""
    places = {"B": batch, "H": head, "N": position, "D": element}
    return [tb.as_expr(places[letter]) for letter in order]


@dataclass(frozen=True, eq=False)
class Place:
    """The position of a query: its batch row, head and position, as expressions."""

    batch: Expr
    head: Expr
    query: Expr


@dataclass(frozen=True)
class Visible:
    """The keys from `begin` to before `end` that a block's queries attend to, and those that all of them do.

    None means that the limit is the number of keys.
    """

    begin: Expr | None
    end: Expr | None
    begin_of_all: Expr | None
    end_of_all: Expr | None


@dataclass(frozen=True, eq=False)
class FusedAttention:
    """``softmax(cap(scale * q k^T) + biases, where masks allow) v``, computed for each query."""

    q: AttentionOperand
    k: AttentionOperand
    v: AttentionOperand
    out_order: str
    batch: Any
    heads: Any
    groups: Any  # heads of keys and values, each shared by an equal number of query heads
    queries: Any
    keys: Any
    size: int
    value_size: int
    dtype: str  # of the sums
    scale: float
    cap: float  # 0 for none
    left: int  # number of keys before its position that a query attends to, -1 for all
    right: int  # and after
    offset: Any  # position of the first query among the keys; `offsets` adds a value per batch row
    offsets: Tensor | None
    lengths: Tensor | None  # number of keys of each batch row
    masks: tuple[
        Tensor, ...
    ]  # bool, each broadcast to (batch, heads, queries, keys): whether the query attends to the key
    biases: tuple[Tensor, ...]
    sink: Tensor | None  # for each head, the score of an extra key without a value
    fill: float | None  # score of a masked key; None adds minus infinity, which propagates NaN
    zero_rows: bool  # whether queries without visible keys result in zeros instead of 0 / 0
    zero_nan: bool  # whether queries whose softmax is NaN result in zeros

    @property
    def share(self) -> Any:
        """The number of query heads that share keys."""
        return self.heads // self.groups

    @property
    def is_changed(self) -> bool:
        """True if scores are more than scaled products, apart from windows and lengths."""
        return bool(self.cap or self.masks or self.biases)

    @property
    def has_window(self) -> bool:
        """True if the visible keys of a query depend on its position."""
        return self.left >= 0 or self.right >= 0

    def begin(self, head: Expr) -> tuple[Expr, int]:
        """Return the largest score and the sum of the exponentials before the first key."""
        if self.sink is None:
            return tb.const(-inf, self.dtype), 0
        return tb.cast(self.sink(head), self.dtype), 1

    def first(self, batch: Expr) -> Expr:
        """Return the position of the first query."""
        if self.offsets is None:
            return tb.as_expr(self.offset)
        own = tb.clamp(self.offsets(batch), -FARTHEST, FARTHEST)
        return tb.binary("add", own, self.offset)

    def length(self, batch: Expr) -> Expr:
        """Return the number of keys."""
        if self.lengths is None:
            return tb.as_expr(self.keys)
        return tb.clamp(self.lengths(batch), 0, self.keys)

    def visible(self, first: Expr, length: Expr, begin: Expr, end: Expr) -> Visible:
        """Return the keys that the queries from `begin` to before `end` attend to."""
        limit = None if self.lengths is None else length
        found: list[Expr | None] = [None, limit, None, limit]
        if self.left >= 0:
            found[0], found[2] = first + begin - self.left, first + end - 1 - self.left
        if self.right >= 0:
            for place, query in ((1, end - 1), (3, begin)):
                last = first + query + self.right + 1
                found[place] = last if limit is None else tb.minimum(last, limit)
        return Visible(*found)

    def in_window(self, position: Expr, key: Expr) -> Expr:
        """Return whether the window of a query at `position` contains a key."""
        limits = []
        if self.right >= 0:
            limits.append(tb.binary("le", key, position + self.right))
        if self.left >= 0:
            limits.append(tb.binary("ge", key, position - self.left))
        return tb.land(*limits)

    def changed(self, ctx: Context, place: Place, key: Expr, score: Expr) -> Expr:
        """Return a score after the cap, the biases and the masks."""
        if self.cap:
            score = ctx.transcendental("tanh", score / self.cap) * self.cap
        for bias in self.biases:
            score = score + tb.cast(_broadcast(bias, place, key), self.dtype)
        allowed = tb.land(*(_broadcast(mask, place, key) for mask in self.masks))
        if isinstance(allowed, Const):
            return score
        return tb.select(allowed, score, score - inf if self.fill is None else tb.const(self.fill, self.dtype))

    def store(self, out: Output, place: Place, element: Expr, value: Expr) -> None:
        """Store an element of the result."""
        at = ordered(self.out_order, place.batch, place.head, place.query, element)
        out.store(at, tb.cast(value, out.dtype))

    def inverse(self, total: Expr) -> Expr:
        """Return the factor of the accumulated values; negative if they become zeros."""
        whole, nothing, negative = (tb.const(number, self.dtype) for number in (1.0, 0.0, -1.0))
        whole = whole / total
        if self.zero_rows or self.zero_nan:
            whole = tb.select(tb.binary("eq", total, 0), nothing, whole)
        return tb.select(tb.binary("ne", total, total), negative, whole) if self.zero_nan else whole

    def finished(self, mixed: Expr, scale: Expr) -> Expr:
        """Return an element of the result: the accumulated values times the factor from `inverse`."""
        value, is_cleared = mixed * scale, self.zero_nan or self.may_hide_all
        return tb.select(tb.binary("lt", scale, 0), tb.const(0.0, self.dtype), value) if is_cleared else value

    @property
    def may_hide_all(self) -> bool:
        """True if masks or biases may hide all keys of a query; its result is then zeros even if its scores are NaN."""
        return self.zero_rows and self.fill is None and bool(self.masks or self.biases)

    def settled(self, ctx: Context, place: Place, scale: Expr, room: Buffer, at: Any) -> Expr:
        """Return the scale of a query, negative if its scores are NaN and all keys are hidden; `room` stores it."""
        if not self.may_hide_all:
            return scale
        stmts, scale = ctx.stmts, ctx.stmts.let("undecided", scale)
        stmts.store(room, [at], scale)
        with stmts.when(tb.binary("ne", scale, scale)):
            stmts.store(room, [at], tb.const(-1.0, self.dtype))
            position, length = self.first(place.batch) + place.query, self.length(place.batch)
            with stmts.loop(self.keys, "key") as key:
                tests = [_broadcast(mask, place, key) for mask in self.masks]
                tests += [tb.binary("ne", _broadcast(bias, place, key), -inf) for bias in self.biases]
                with stmts.when(tb.land(tb.binary("lt", key, length), self.in_window(position, key), *tests)):
                    stmts.store(room, [at], scale)
        return stmts.let("scale", tb.load(room, [at]))


def _broadcast(mask: Tensor, place: Place, key: Expr) -> Expr:
    at = (place.batch, place.head, place.query, key)
    return mask.read([tb.const(0) if extent == 1 else index for extent, index in zip(mask.shape, at, strict=True)])


def shifted(top: Expr) -> Expr:
    """Return the value to subtract from scores before the exponential: the largest, or 0 while all are masked."""
    return tb.select(tb.binary("eq", top, -inf), tb.const(0.0, top.dtype), top)


def tiles(ctx: Context, keys: Extent, limit: int) -> Iterator[tuple[Expr, Extent]]:
    """Open each kind of tile of keys in turn, those of `limit` keys and the remainder; yield its start and extent."""
    whole, rest = divmod(keys, limit)
    if bounds(whole)[1]:
        with ctx.stmts.loop(whole, "tile") as tile:
            yield tile * limit, limit
    if bounds(rest)[1]:
        with ctx.stmts.when(tb.binary("gt", tb.as_expr(rest), 0)) if isinstance(rest, Dim) else nullcontext():
            yield tb.as_expr(whole * limit), rest


@contextmanager
def used(ctx: Context, visible: Visible, start: Expr, count: Extent) -> Iterator[Expr]:
    """Open a condition that the tile has visible keys; yield how many of its keys precede the end of those."""
    tests, here = [], ctx.stmts.let("here", tb.as_expr(count))
    if visible.begin is not None:
        tests.append(tb.binary("gt", start + count, visible.begin))
    if visible.end is not None:
        here = ctx.stmts.let("here", tb.clamp(visible.end - start, 0, count))
        tests.append(tb.binary("gt", here, 0))
    with ctx.stmts.when(tb.land(*tests)) if tests else nullcontext():
        yield here


def is_cut(visible: Visible, start: Expr, here: Expr) -> Expr:
    """Return whether some query of the block does not attend to all of the keys from `start` on."""
    tests = []
    if visible.begin_of_all is not None:
        tests.append(tb.binary("gt", visible.begin_of_all, start))
    if visible.end_of_all is not None:
        tests.append(tb.binary("lt", visible.end_of_all, start + here))
    return reduce(partial(tb.binary, "lor"), tests) if tests else tb.const(False, "bool")


def rest_loops(ctx: Context, visible: Visible, here: Expr, keys: tuple[Extent, int]) -> Iterator[tuple[Expr, int]]:
    """Open the loops over the keys of a tile beyond whole groups, if any; yield the first key and size of each part.

    `here` is the number of the tile's keys before the end of the visible ones.
    """
    count, at_once = keys
    if isinstance(count, Dim):
        found = DynamicSplit(count, at_once).pieces[1:]
    else:
        found = ((count - count % at_once, 1, count % at_once),) if count % at_once else ()
    for start, number, size in found:
        # without masks, all keys are visible
        is_seen = nullcontext() if visible.end is None else ctx.stmts.when(tb.binary("gt", here, start))
        with is_seen, nullcontext() if number == 1 else ctx.stmts.loop(number, "rest"):
            yield tb.as_expr(start), size


@template("attention", "plain")
def attention(ctx: Context, work: FusedAttention, out: Output) -> None:
    """Write an attention of any size and dtype."""
    with serial_loops(ctx, (work.batch, work.heads, work.queries), "row") as (batch, head, query):
        _PlainRow(ctx, work, out, Place(batch, head, query)).emit()


class _PlainRow:
    """The loops of one query."""

    def __init__(self, ctx: Context, work: FusedAttention, out: Output, place: Place) -> None:
        self.ctx, self.work, self.out, self.place = ctx, work, out, place
        self.group = place.head // work.share
        memory = ctx.stmts.local if ctx.features.gpu else ctx.scratch  # work-items need separate memory
        self.scores = memory("scores", (min(PLAIN_TILE, bounds(work.keys)[1]),), work.dtype)
        self.mixed = memory("mixed", (work.value_size,), work.dtype)
        self.state = ctx.stmts.local("state", (2,), work.dtype)  # the largest score, the sum of the exponentials

    def emit(self) -> None:
        stmts, work, place = self.ctx.stmts, self.work, self.place
        for index, value in enumerate(work.begin(place.head)):
            stmts.store(self.state, [index], value)
        with stmts.loop(work.value_size, "c", "vectorized") as c:
            stmts.store(self.mixed, [c], 0)
        first, length = stmts.let("first", work.first(place.batch)), stmts.let("length", work.length(place.batch))
        visible = work.visible(first, length, place.query, place.query + 1)
        for start, count in tiles(self.ctx, work.keys, PLAIN_TILE):
            with used(self.ctx, visible, start, count) as here:
                begin = tb.const(0)
                if visible.begin is not None:
                    begin = stmts.let("begin", tb.clamp(visible.begin - start, 0, here))
                self._tile(start, begin, here)
        scale = stmts.let("scale", work.inverse(tb.load(self.state, [1])))
        scale = work.settled(self.ctx, place, scale, self.state, 1)
        with stmts.loop(work.value_size, "c", "vectorized") as c:
            work.store(self.out, place, c, work.finished(tb.load(self.mixed, [c]), scale))

    def _tile(self, start: Expr, begin: Expr, end: Expr) -> None:
        """Process the keys from `begin` to before `end` of a tile."""
        stmts, work, place = self.ctx.stmts, self.work, self.place
        top = stmts.filled("top", 1, work.dtype, tb.load(self.state, [0]))
        with stmts.loop(end - begin, "key") as index:
            at = begin + index
            total = stmts.filled("total", 1, work.dtype)
            with stmts.loop(work.size, "k") as k:
                a = tb.cast(work.q(place.batch, place.head, place.query, k), work.dtype)
                b = tb.cast(work.k(place.batch, self.group, start + at, k), work.dtype)
                stmts.store(total, [0], tb.load(total, [0]) + a * b)
            score = work.changed(self.ctx, place, start + at, tb.load(total, [0]) * work.scale)
            score = stmts.let("score", score)
            stmts.store(self.scores, [at], score)
            stmts.store(top, [0], tb.maximum(score, tb.load(top, [0])))
        shift = stmts.let("shift", shifted(tb.load(top, [0])))
        fade = stmts.let("fade", self.ctx.transcendental("exp", tb.load(self.state, [0]) - shift))
        part = stmts.filled("part", 1, work.dtype)
        with stmts.loop(end - begin, "key") as index:
            value = stmts.let("value", self.ctx.transcendental("exp", tb.load(self.scores, [begin + index]) - shift))
            stmts.store(self.scores, [begin + index], value)
            stmts.store(part, [0], tb.load(part, [0]) + value)
        stmts.store(self.state, [0], tb.load(top, [0]))
        stmts.store(self.state, [1], tb.load(self.state, [1]) * fade + tb.load(part, [0]))
        for c, elements in pieces(self.ctx, balanced(work.value_size, KEYS_AT_ONCE), "c"):
            self._mix(start, begin, end, c, elements, fade)

    def _mix(self, start: Expr, begin: Expr, end: Expr, c: Expr, count: int, fade: Expr) -> None:
        """Accumulate the values of a tile, `count` elements of each from `c` on."""
        stmts, work = self.ctx.stmts, self.work
        sums = stmts.filled("sums", count, work.dtype)
        with stmts.loop(end - begin, "key") as key:
            weight = stmts.let("weight", tb.load(self.scores, [begin + key]))
            for index in range(count):
                value = work.v(self.place.batch, self.group, start + begin + key, c + index)
                stmts.store(sums, [index], tb.load(sums, [index]) + weight * tb.cast(value, work.dtype))
        for index in range(count):
            total = tb.load(self.mixed, [c + index]) * fade + tb.load(sums, [index])
            stmts.store(self.mixed, [c + index], total)
