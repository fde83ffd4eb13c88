"""Folds on devices: a result is the work of one work-item, or of several that fold partial results in a tree.

Where there are few results of many elements, several groups make parts of each, which a second launch folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from mlfc.kernels.folding import Axes, Contest, Fold, serial_loops
from mlfc.kernels.gpu_groups import WARP, below, fold_in_tree, power_of_two, shared_out, unraveled
from mlfc.kernels.templates import template
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Reader
from mlfc.tir.ir import Buffer, Expr

# elements that a work-item folds alone, and where there are enough results to fill a device
_ALONE, _MANY_ALONE = 32, 256
_MANY_RESULTS = 1 << 14
_ITEMS = 128  # of a group whose results take few of them each
_EACH = 8  # elements of an item where results are many
_GROUPS = 256  # that a large device should have to do
_NOWHERE = -1  # the place of the winner where nothing has won


@template("fold", "gpu")
def fold(ctx: Context, read: Reader, axes: Axes, how: Fold, out: Output) -> None:
    """Write the fold of what `read` gives over `axes`."""
    results = prod(_kept_shape(axes))
    limit = _MANY_ALONE if axes.tiled is not None and results >= _MANY_RESULTS else _ALONE
    if axes.count <= limit or not results:
        _alone(ctx, read, axes, how, out)
        return
    sizes = _sizes(ctx, axes, axes.count if results < _MANY_RESULTS else -(-axes.count // _EACH), WARP)
    # so many that there are enough groups, and each item has enough to fold
    groups, each = -(-sizes.across // sizes.width) * sizes.rows, -(-axes.count // sizes.lanes)
    parts = max(1, min(_GROUPS // groups, each // _ALONE)) if 2 * groups <= _GROUPS else 1
    if parts == 1:
        _together(ctx, read, axes, how, sizes, 1, lambda _, kept, total: _finish(axes, how, out, kept, total))
        return
    made = ctx.scratch("parts", (parts, *_kept_shape(axes)), how.dtype)
    _together(
        ctx, read, axes, how, sizes, parts,
        lambda part, kept, total: ctx.stmts.store(made, [part, *kept.values()], total),
    )  # fmt: skip
    joined = Axes(made.shape, (0,), keepdims=False)

    def store(at: Sequence[Expr], value: Expr) -> None:
        out.store(axes.result(dict(zip(axes.kept, at, strict=True))), value)

    results_of = Output(tuple(_kept_shape(axes)), out.dtype, store)
    fold(ctx, lambda indices: tb.load(made, indices), joined, how, results_of)


def _kept_shape(axes: Axes) -> list[int]:
    return [axes.shape[axis] for axis in axes.kept]


def _finish(axes: Axes, how: Fold, out: Output, kept: dict[int, Expr], total: Expr) -> None:
    out.store(axes.result(kept), tb.cast(how.finish(total), out.dtype))


def _alone(ctx: Context, read: Reader, axes: Axes, how: Fold, out: Output) -> None:
    with serial_loops(ctx, _kept_shape(axes), "i") as indices:
        kept = dict(zip(axes.kept, indices, strict=True))
        total = ctx.stmts.filled("total", 1, how.dtype, how.neutral)
        with serial_loops(ctx, [axes.shape[axis] for axis in axes.folded], "r") as folded:
            element = tb.cast(read(axes.full(kept, folded)), how.dtype)
            ctx.stmts.store(total, [0], how.step(tb.load(total, [0]), element))
        _finish(axes, how, out, kept, tb.load(total, [0]))


@dataclass(frozen=True)
class _GroupSizes:
    """How results are dealt out to groups."""

    width: int  # results of a group: neighbours in memory, where that leaves elements of one result apart
    lanes: int  # work-items of each
    across: int  # results side by side
    rows: int  # of so many results


def _sizes(ctx: Context, axes: Axes, lanes: int, fewest: int) -> _GroupSizes:
    """Return how results are dealt out where each has work for so many work-items, but `fewest` if that can be."""
    items, results = ctx.features.group_items, prod(_kept_shape(axes))
    if axes.tiled is None:
        lanes = power_of_two(max(lanes, min(fewest, axes.count)), items)
        return _GroupSizes(power_of_two(results, max(1, min(items, _ITEMS) // lanes)), lanes, results, 1)
    across = axes.shape[axes.tiled]
    width = power_of_two(across, max(WARP, min(items, _ITEMS) // lanes))
    return _GroupSizes(width, power_of_two(lanes, items // width), across, results // across)


@dataclass(frozen=True)
class _WorkItem:
    """The work of one work-item."""

    # indices of its result along the kept axes; of one that exists, where it would be behind the last
    kept: dict[int, Expr]
    x: Expr  # the place of that result in the group
    lane: Expr  # the place of the item among those that make it
    part: Expr
    is_result: Expr  # whether the result is one, and not behind the last

    @property
    def stores(self) -> Expr:
        """Whether this item stores the result."""
        return tb.land(tb.binary("eq", self.lane, 0), self.is_result)


@contextmanager
def _items(ctx: Context, axes: Axes, sizes: _GroupSizes, parts: int) -> Iterator[_WorkItem]:
    """Open the launch over all results; neighbouring items read neighbouring elements."""
    stmts, tiled, width = ctx.stmts, axes.tiled, sizes.width
    grid = -(-sizes.across // width), sizes.rows, parts
    block = (sizes.lanes, width) if tiled is None else (width, sizes.lanes)
    with stmts.launch(grid, block) as ((group, row, part), places):
        x, lane = places[::-1] if tiled is None else places
        number = stmts.let("number", group * width + x)
        whole = sizes.across % width == 0
        inside = number if whole else stmts.let("inside", tb.minimum(number, sizes.across - 1))
        if tiled is None:
            indices = [stmts.let("at", index) for index in unraveled(inside, _kept_shape(axes))]
            kept = dict(zip(axes.kept, indices, strict=True))
        else:
            others = [axis for axis in axes.kept if axis != tiled]
            found = dict(zip(others, unraveled(row, [axes.shape[axis] for axis in others]), strict=True))
            kept = {axis: inside if axis == tiled else found[axis] for axis in axes.kept}
        yield _WorkItem(kept, x, lane, part, tb.land() if whole else tb.binary("lt", number, sizes.across))


def _together(
    ctx: Context, read: Reader, axes: Axes, how: Fold, sizes: _GroupSizes, parts: int,
    store: Callable[[Expr, dict[int, Expr], Expr], None],
) -> None:  # fmt: skip
    """Write the launch that folds each part; ``store(part, kept, total)`` gets the part's share of a result."""
    stmts, length = ctx.stmts, -(-axes.count // parts)
    with _items(ctx, axes, sizes, parts) as item:
        total = ctx.stmts.filled("total", 1, how.dtype, how.neutral)
        with shared_out(ctx, length, item.lane, sizes.lanes) as offset:
            place = stmts.let("place", item.part * length + offset)
            with below(ctx, place, axes.count, length):
                folded = unraveled(place, [axes.shape[axis] for axis in axes.folded])
                element = tb.cast(read(axes.full(item.kept, folded)), how.dtype)
                stmts.store(total, [0], how.step(tb.load(total, [0]), element))
        partial = stmts.shared("partial", (sizes.lanes, sizes.width), how.dtype)
        stmts.store(partial, [item.lane, item.x], tb.load(total, [0]))
        fold_in_tree(ctx, partial, item.lane, [item.x], how.step)
        with stmts.when(item.stores):
            store(item.part, item.kept, tb.load(partial, [0, item.x]))


@template("contest", "gpu")
def contest(ctx: Context, read: Reader, axes: Axes, how: Contest, out: Output) -> None:
    """Write the search for the position of the element that wins over `axes`.

    Each work-item takes a stretch, and winners of neighbouring stretches meet: so the first or last of equals wins as
    it does one after another.
    """
    if not prod(_kept_shape(axes)):
        return
    stmts = ctx.stmts
    sizes = _sizes(ctx, axes, -(-axes.count // _ALONE), 1)
    lanes, width = sizes.lanes, sizes.width
    with _items(ctx, axes, sizes, 1) as item:
        best, place = stmts.filled("best", 1, how.dtype, how.worst), stmts.filled("place", 1, out.dtype, _NOWHERE)
        length = -(-axes.count // lanes)
        with stmts.loop(length, "k") as step:
            here = stmts.let("here", item.lane * length + step)
            with stmts.when(tb.binary("lt", here, axes.count)):
                folded = unraveled(here, [axes.shape[axis] for axis in axes.folded])
                element = stmts.let("element", read(axes.full(item.kept, folded)))
                with stmts.when(how.better(element, tb.load(best, [0]))):
                    stmts.store(best, [0], element)
                    stmts.store(place, [0], tb.cast(here, place.dtype))
        if lanes == 1:
            winner = tb.load(place, [0])
        else:
            bests = stmts.shared("bests", (lanes, width), how.dtype)
            places = stmts.shared("places", (lanes, width), out.dtype)
            stmts.store(bests, [item.lane, item.x], tb.load(best, [0]))
            stmts.store(places, [item.lane, item.x], tb.load(place, [0]))
            _meet(ctx, item, how, bests, places)
            winner = tb.load(places, [0, item.x])
        with stmts.when(item.stores):
            out.store(axes.result(item.kept), tb.maximum(winner, 0))


def _meet(ctx: Context, item: _WorkItem, how: Contest, bests: Buffer, places: Buffer) -> None:
    """Write the contest of the winners of neighbouring stretches; the last winner's position comes first."""
    stmts, lanes, apart = ctx.stmts, bests.shape[0], 1
    lane, x = item.lane, item.x
    stmts.barrier()
    while apart < lanes:
        with stmts.when(tb.binary("lt", lane, lanes // (2 * apart))):
            left = lane * (2 * apart)
            right = left + apart
            found = tb.binary("ge", tb.load(places, [right, x]), 0)
            with stmts.when(tb.land(found, how.better(tb.load(bests, [right, x]), tb.load(bests, [left, x])))):
                stmts.store(bests, [left, x], tb.load(bests, [right, x]))
                stmts.store(places, [left, x], tb.load(places, [right, x]))
        stmts.barrier()
        apart *= 2
