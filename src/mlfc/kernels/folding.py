"""Loops that reduce a tensor over some of its axes, in forms that C compilers vectorize.

If the last axis is kept, a tile of neighbouring results is accumulated at a time; otherwise several accumulators
alternate and are combined at the end. Long float sums are split into parts of bounded length, which are added with
Kahan's compensation, so that the error does not grow with the length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod
from typing import Any

from mlfc.kernels import templates
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, Shape, bounds
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Reader
from mlfc.tir.ir import Buffer, Const, Expr, Select

# The size of a tile of results, and the number of accumulators of one result; both fill whole vectors of every target.
COLUMNS = 64
LANES = 16
# Lanes of the narrowest vectors.
VECTOR = 4
# Additions into one accumulator before a partial sum is closed: of each of several neighbouring results, and of the
# lanes of a single result. Rounding errors stay below 2e-6 and 4e-6 of the sum even if all elements are equal, so that
# the errors do not cancel out.
CLOSE_AFTER = 128
CLOSE_LANES_AFTER = 256


@dataclass(frozen=True)
class Axes:
    """The reduced and kept axes of a shape; axes of size 1 count as kept, as they need no loop."""

    shape: Shape
    folded_axes: tuple[int, ...]
    keepdims: bool
    wide: frozenset[int] = frozenset()  # dynamic axes whose size is known not to be 1 where the loops are

    @cached_property
    def folded(self) -> tuple[int, ...]:
        """The reduced axes whose size may differ from 1."""
        return tuple(axis for axis in self.folded_axes if self.shape[axis] != 1)

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """The other axes."""
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.folded)

    @cached_property
    def tiled(self) -> int | None:
        """The kept axis of unit stride if it follows every reduced axis; else None."""
        behind = [axis for axis in self.kept if self.shape[axis] != 1]
        return behind[-1] if behind and behind[-1] > max(self.folded, default=-1) else None

    @property
    def undecided(self) -> int | None:
        """A dynamic axis whose size affects the order of additions by being 1 or not; None without one."""
        behind = [axis for axis in self.kept if self.shape[axis] != 1 and axis > max(self.folded, default=axis)]
        chosen = [*(self.folded[-1:] if len(self.folded) > 1 else ()), *([] if self._is_wide(behind) else behind[-1:])]
        return next((axis for axis in chosen if not self._is_wide([axis])), None)

    def _is_wide(self, axes: Sequence[int]) -> bool:
        """Return whether one of some axes is known to have a size other than 1."""
        ends = [bounds(self.shape[axis]) for axis in axes if axis not in self.wide]
        return len(ends) < len(axes) or any(low > 1 or high < 1 for low, high in ends)

    @property
    def count(self) -> Any:
        """The number of elements reduced into one result."""
        return prod(self.shape[axis] for axis in self.folded)

    def position(self, folded: Sequence[Expr]) -> Expr:
        """Return the row-major position among the elements of one result."""
        place = tb.const(0)
        for axis, index in zip(self.folded, folded, strict=True):
            place = place * self.shape[axis] + index
        return place

    def full(self, kept: dict[int, Expr], folded: Sequence[Expr]) -> list[Expr]:
        """Return the indices of an input element."""
        every = {**kept, **dict(zip(self.folded, folded, strict=True))}
        return [every[axis] for axis in range(len(self.shape))]

    def result(self, kept: dict[int, Expr]) -> list[Expr]:
        """Return the indices of a result."""
        gone = set(self.folded_axes)
        if self.keepdims:
            return [tb.const(0) if axis in gone else kept[axis] for axis in range(len(self.shape))]
        return [kept[axis] for axis in range(len(self.shape)) if axis not in gone]


@dataclass(frozen=True)
class Fold:
    """An associative operation and its neutral element."""

    dtype: str  # of the accumulators
    neutral: float
    step: Callable[[Expr, Expr], Expr]  # (accumulator, element) -> accumulator
    finish: Callable[[Expr], Expr]  # accumulator -> result
    rounds: bool = False  # a sum of floats: each step rounds, so long sums are split into parts
    # writes code, such as a prefetch, before each read of a row's elements from a position on; only for single results
    ahead: Callable[[Expr], None] | None = None


def in_halves(parts: Sequence[Expr], step: Callable[[Expr, Expr, int], Expr]) -> Expr:
    """Return parts combined into half as many until one is left; `step`'s last argument is the second part's index.

    This is the order in which one result's accumulators are combined: a missing part changes nothing.
    """
    left, apart = list(parts), LANES // 2
    while apart:
        upper = left[apart:]
        left = [step(one, upper[at], at + apart) if at < len(upper) else one for at, one in enumerate(left[:apart])]
        apart //= 2
    return left[0]


@contextmanager
def serial_loops(ctx: Context, extents: Sequence[Extent | Expr], prefix: str) -> Iterator[list[Expr]]:
    """Open one serial loop per extent."""
    with ExitStack() as stack:
        yield [stack.enter_context(ctx.stmts.loop(extent, f"{prefix}{axis}")) for axis, extent in enumerate(extents)]


def tiles_of(ctx: Context, extent: Extent) -> Iterator[tuple[Expr, Extent]]:
    """Open each tile of a range in turn; yield its start and its width."""
    whole = extent // COLUMNS
    if not _is_zero(whole):
        with ctx.stmts.loop(whole, "tile") as tile:
            yield tile * COLUMNS, COLUMNS
    if not _is_zero(extent % COLUMNS):
        yield tb.as_expr(whole * COLUMNS), extent % COLUMNS


def kept_tiles(ctx: Context, axes: Axes) -> Iterator[tuple[dict[int, Expr], Extent]]:
    """Open loops over the kept axes, and in them each tile of results in turn; yield its start and its width."""
    looped = [axis for axis in axes.kept if axis != axes.tiled]
    with serial_loops(ctx, [axes.shape[axis] for axis in looped], "i") as indices:
        kept = dict(zip(looped, indices, strict=True))
        if axes.tiled is None:
            yield kept, 1
            return
        for first, width in tiles_of(ctx, axes.shape[axes.tiled]):
            yield {**kept, axes.tiled: first}, width


def _is_zero(extent: Extent) -> bool:
    return isinstance(extent, int) and extent == 0


def shifted(kept: dict[int, Expr], axes: Axes, offset: Expr) -> dict[int, Expr]:
    """Return the kept indices of the result `offset` positions after the first of a tile."""
    return kept if axes.tiled is None else {**kept, axes.tiled: kept[axes.tiled] + offset}


def emit_fold(ctx: Context, read: Reader, axes: Axes, fold: Fold, out: Output) -> None:
    """Write the loops that reduce the values of `read` over `axes` and store every result."""
    if ctx.features.gpu:
        templates.emit("fold", ctx, read, axes, fold, out)
        return
    axis = axes.undecided if dtypes.is_float(fold.dtype) else None
    if axis is not None:  # the order of additions is that of the loops for static sizes
        with ctx.stmts.when(tb.binary("ne", tb.as_expr(axes.shape[axis]), 1)):
            emit_fold(ctx, read, replace(axes, wide=axes.wide | {axis}), fold, out)
        with ctx.stmts.otherwise():
            single = (*axes.shape[:axis], 1, *axes.shape[axis + 1 :])
            emit_fold(ctx, read, replace(axes, shape=single), fold, out)
        return
    for first, width in kept_tiles(ctx, axes):
        _FoldTile(ctx, read, axes, fold, first, width).emit(out)


@dataclass(eq=False)
class _FoldTile:
    """The reduction of one tile: `width` neighbouring results, or one result in several lanes."""

    ctx: Context
    read: Reader
    axes: Axes
    fold: Fold
    first: dict[int, Expr]
    width: Extent

    def __post_init__(self) -> None:
        axes = self.axes
        self.inner: Extent = axes.shape[axes.folded[-1]] if axes.folded else 1
        self.outer = [axes.shape[axis] for axis in axes.folded[:-1]]
        self.across = axes.tiled is not None
        # min and max of floats use vector loops: gcc does not vectorize unrolled conditions, and it unrolls short loops
        floats = dtypes.is_float(self.fold.dtype) and not self.fold.rounds and self.fold.neutral in (-inf, inf)
        compares = floats and bool(self.ctx.features.vector_bytes)
        # lanes beyond a static size's keep the neutral element, which does not change the result
        most = 2 * LANES if compares else LANES
        alone = most if isinstance(self.inner, Dim) else max(1, min(most, self.inner))
        self.lanes: Extent = self.width if self.across else alone
        self.room = COLUMNS if isinstance(self.lanes, Dim) else self.lanes
        # elements of the innermost reduced axis that are added before a partial sum is closed
        self.additions = CLOSE_AFTER if self.across else CLOSE_LANES_AFTER
        self.stretch = self.additions if self.across else self.additions * LANES
        self.kind = "rolled" if compares else "vectorized"  # of short loops

    def emit(self, out: Output) -> None:
        total = self._accumulators("total")
        is_long = self._is_long()
        if isinstance(is_long, Const):
            (self._in_parts if is_long.value else self._plainly)(total)
        else:
            with self.ctx.stmts.when(is_long):
                self._in_parts(total)
            with self.ctx.stmts.otherwise():
                self._plainly(total)
        self._finish(total, out)

    def _is_long(self) -> Expr:
        """Return whether partial sums are closed."""
        count = self.axes.count
        if not self.fold.rounds or bounds(count)[1] <= self.additions:
            return tb.const(False, "bool")
        if isinstance(count, Dim) and not self.outer:  # a single part is the same sum as the whole
            is_small = self.ctx.features.optimize == "size"
            return tb.const(True, "bool") if is_small else tb.binary("gt", tb.as_expr(self.inner), self.stretch)
        lanes = tb.const(1) if self.across else tb.maximum(tb.minimum(LANES, tb.as_expr(self.inner)), 1)
        return tb.binary("gt", tb.as_expr(count) // lanes, self.additions)

    def _plainly(self, total: Buffer) -> None:
        with serial_loops(self.ctx, self.outer, "r") as outer:
            self._stretch(total, outer, tb.const(0), self.inner)

    def _in_parts(self, total: Buffer) -> None:
        lost = self._accumulators("lost")
        whole = self.inner // self.stretch
        with serial_loops(self.ctx, self.outer, "r") as outer:
            if self.across and isinstance(self.inner, Dim):
                # parts have no constant length: on targets with 16-bit addresses, compilers detect that it exceeds
                # memory
                with self.ctx.stmts.loop(-(-self.inner // self.stretch), "part") as part:
                    start = part * self.stretch
                    self._part(total, lost, outer, start, tb.minimum(tb.as_expr(self.inner) - start, self.stretch))
                return
            if not _is_zero(whole):
                with self.ctx.stmts.loop(whole, "part") as part:
                    self._part(total, lost, outer, part * self.stretch, self.stretch)
            if not _is_zero(self.inner % self.stretch):
                self._part(total, lost, outer, tb.as_expr(whole * self.stretch), self.inner % self.stretch)

    def _part(self, total: Buffer, lost: Buffer, outer: list[Expr], start: Expr, length: Extent | Expr) -> None:
        """Add the sum of a part to `total`; `lost` is what rounding added to `total` so far (Kahan, 1965)."""
        partial = self._accumulators("partial")
        self._stretch(partial, outer, start, length)
        stmts = self.ctx.stmts
        with stmts.loop(self.lanes, "c", "vectorized") as lane:
            before = stmts.let("before", tb.load(total, [lane]))
            added = stmts.let("added", tb.load(partial, [lane]) - tb.load(lost, [lane]))
            after = stmts.let("after", before + added)
            stmts.store(total, [lane], after)
            error = stmts.let("error", after - before - added)
            is_finite = tb.binary("eq", error - error, tb.const(0.0, self.fold.dtype))
            stmts.store(lost, [lane], tb.select(is_finite, error, tb.const(0.0, self.fold.dtype)))

    def _accumulators(self, name: str) -> Buffer:
        stmts = self.ctx.stmts
        buffer = stmts.local(name, (self.room,), self.fold.dtype)
        with stmts.loop(self.lanes, "c", "vectorized") as lane:
            stmts.store(buffer, [lane], tb.const(self.fold.neutral, self.fold.dtype))
        return buffer

    def _stretch(self, into: Buffer, outer: list[Expr], start: Expr, length: Any) -> None:
        """Reduce `length` elements of the innermost reduced axis, starting at `start`."""
        stmts = self.ctx.stmts
        if self.across:
            with stmts.loop(length, "r") as step, stmts.loop(self.lanes, "c", "vectorized") as lane:
                self._add(into, lane, shifted(self.first, self.axes, lane), [*outer, start + step])
            return
        whole = length // self.lanes
        with stmts.loop(whole, "r") as step:
            if self.fold.ahead is not None:
                self.fold.ahead(start + step * self.lanes)
            with stmts.loop(self.lanes, "c", self.kind if whole == 1 else "vectorized") as lane:
                self._add(into, lane, self.first, [*outer, start + step * self.lanes + lane])
        if not _is_zero(length % self.lanes):
            with stmts.loop(length % self.lanes, "c", self.kind) as lane:
                self._add(into, lane, self.first, [*outer, start + whole * self.lanes + lane])

    def _add(self, into: Buffer, lane: Expr, kept: dict[int, Expr], folded: list[Expr]) -> None:
        element = self.read(self.axes.full(kept, folded[: len(self.axes.folded)]))
        element = tb.cast(element, self.fold.dtype)
        self.ctx.stmts.store(into, [lane], self.fold.step(tb.load(into, [lane]), element))

    def _finish(self, total: Buffer, out: Output) -> None:
        if self.across:
            with self.ctx.stmts.loop(self.lanes, "c", "vectorized") as lane:
                value = self.fold.finish(tb.load(total, [lane]))
                out.store(self.axes.result(shifted(self.first, self.axes, lane)), tb.cast(value, out.dtype))
            return
        out.store(self.axes.result(self.first), tb.cast(self.fold.finish(self._in_one(total)), out.dtype))

    def _in_one(self, total: Buffer) -> Expr:
        """Return the lanes combined into one; whether all are in use is checked once, as in most rows they are."""
        may_be_short = isinstance(self.inner, Dim) and dtypes.is_float(self.fold.dtype) and not self.fold.rounds
        low, high = bounds(self.inner)
        if not may_be_short or low >= self.room:
            return self._tree(total, is_short=False)
        if high < self.room:
            return self._tree(total, is_short=True)
        stmts = self.ctx.stmts
        result = stmts.local("all", (1,), self.fold.dtype)
        with stmts.when(tb.binary("ge", tb.as_expr(self.inner), self.room)):
            stmts.store(result, [0], self._tree(total, is_short=False))
        with stmts.otherwise():
            stmts.store(result, [0], self._tree(total, is_short=True))
        return tb.load(result, [0])

    def _tree(self, total: Buffer, *, is_short: bool) -> Expr:
        """Return the lanes combined into half as many until one is left, in vector loops while they fill a vector."""
        stmts, room, apart = self.ctx.stmts, self.room, LANES

        def fold(lane: Expr) -> None:
            other = lane + apart
            value = self._folded(tb.load(total, [lane]), tb.load(total, [other]), other if is_short else None)
            stmts.store(total, [lane], value)

        while room > VECTOR:
            while apart >= room:
                apart //= 2
            if room - apart >= VECTOR:
                with stmts.loop(room - apart, "c", self.kind) as lane:
                    fold(lane)
            else:
                for place in range(room - apart):
                    fold(tb.const(place))
            room = apart
        parts = [tb.load(total, [lane]) for lane in range(room)]
        return in_halves(parts, lambda one, other, lane: self._folded(one, other, lane if is_short else None))

    def _folded(self, one: Expr, other: Expr, lane: Expr | int | None) -> Expr:
        """Return two lanes combined, as a variable if a step reads them more than once: nested steps would double.

        `lane` is the index of the second lane if it may be unused: then a NaN that is the result so far must be kept.
        """
        value = self.fold.step(one, other)
        if lane is not None:
            value = tb.select(tb.binary("gt", tb.as_expr(self.inner), lane), value, one)
        return self.ctx.stmts.let("best", value) if isinstance(value, Select) else value


@dataclass(frozen=True)
class Contest:
    """The comparison that determines the position of an extreme."""

    dtype: str  # of the elements
    worst: float  # the initial best value
    better: Callable[[Expr, Expr], Expr]  # (element, best so far) -> bool expression


def emit_arg(ctx: Context, read: Reader, axes: Axes, contest: Contest, out: Output) -> None:
    """Write the loops that find the position of the best element over `axes`."""
    if ctx.features.gpu:
        templates.emit("contest", ctx, read, axes, contest, out)
        return
    stmts = ctx.stmts
    for first, width in kept_tiles(ctx, axes):
        room = COLUMNS if isinstance(width, Dim) else width
        best = stmts.local("best", (room,), contest.dtype)
        place = stmts.local("place", (room,), out.dtype)
        with stmts.loop(width, "c", "vectorized") as lane:
            stmts.store(best, [lane], tb.const(contest.worst, contest.dtype))
            stmts.store(place, [lane], tb.const(0, out.dtype))
        with serial_loops(ctx, [axes.shape[axis] for axis in axes.folded], "r") as folded:
            with stmts.loop(width, "c", "vectorized") as lane:
                element = stmts.let("element", read(axes.full(shifted(first, axes, lane), folded)))
                wins = stmts.let("wins", contest.better(element, tb.load(best, [lane])))
                here = tb.cast(axes.position(folded), out.dtype)
                stmts.store(place, [lane], tb.select(wins, here, tb.load(place, [lane])))
                stmts.store(best, [lane], tb.select(wins, element, tb.load(best, [lane])))
        with stmts.loop(width, "c", "vectorized") as lane:
            out.store(axes.result(shifted(first, axes, lane)), tb.load(place, [lane]))
