"""Reductions on devices, and the distribution of work among the work-items of a group.

If there are few results of many elements, several groups compute parts of each, which a second launch combines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import prod

from mlfc.kernels.folding import Axes, Contest, Fold, serial_loops
from mlfc.kernels.templates import template
from mlfc.support.dim_estimates import typical
from mlfc.support.dims import Extent, maximum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Reader
from mlfc.tir.ir import Buffer, Expr

WARP = 32


def power_of_two(least: Extent, most: int) -> int:
    """Return the smallest power of two that is at least `least`, but at most `most`, which is a power of two.

    For a dynamic dimension, use its typical value.
    """
    return min(most, 1 << max(0, typical(least) - 1).bit_length())


def unraveled(position: Expr, shape: Sequence[int]) -> list[Expr]:
    """Return the indices of a row-major position, which must be inside the shape."""
    indices: list[Expr] = []
    outermost = True
    for axis, extent in enumerate(shape):
        index = position // maximum(prod(shape[axis + 1 :]), 1)
        indices.append(tb.const(0) if extent == 1 else index if outermost else index % extent)
        outermost = outermost and extent == 1
    return indices


@contextmanager
def shared_out(ctx: Context, count: int, item: Expr, items: int) -> Iterator[Expr]:
    """Open the loop over every `items`-th element of a range, from `item` on; neighbours have adjacent elements."""
    stmts = ctx.stmts
    with stmts.loop(-(-count // items), "turn") as iteration:
        place = stmts.let("place", iteration * items + item)
        with below(ctx, place, count, items):
            yield place


def below(ctx: Context, index: Expr, extent: int, step: int) -> AbstractContextManager[None]:
    """Return a condition that the index is inside a range, or no condition if `step` divides the range."""
    return nullcontext() if extent % step == 0 else ctx.stmts.when(tb.binary("lt", index, extent))


@contextmanager
def each_result(ctx: Context, shape: Sequence[int]) -> Iterator[list[Expr]]:
    """Open a launch of one work-item for each element of `shape`; yield the indices of the item's element."""
    stmts, results, items = ctx.stmts, prod(shape), ctx.features.group_items
    with stmts.launch((-(-results // items),), (items,)) as ((group,), (item,)):
        number = stmts.let("number", group * items + item)
        with below(ctx, number, results, items):
            yield [stmts.let("at", index) for index in unraveled(number, shape)]


def fold_in_tree(ctx: Context, partial: Buffer, lane: Expr, rest: Sequence[Expr], step: Callable[..., Expr]) -> None:
    """Reduce a shared buffer over its first axis, whose size is a power of two; element 0 receives the result.

    All work-items of the group must execute this; `lane` is an item's index along that axis, `rest` its indices along
    the others.
    """
    stmts = ctx.stmts
    stmts.barrier()
    half = partial.shape[0] // 2
    while half:
        with stmts.when(tb.binary("lt", lane, half)):
            joined = step(tb.load(partial, [lane, *rest]), tb.load(partial, [lane + half, *rest]))
            stmts.store(partial, [lane, *rest], joined)
        stmts.barrier()
        half //= 2


# elements that one work-item reduces alone; the second if there are enough results to occupy a device
_ALONE, _MANY_ALONE = 32, 256
_MANY_RESULTS = 1 << 14
_ITEMS = 128  # of a group whose results need few items each
_EACH = 8  # elements of an item if results are many
_GROUPS = 256  # number of groups that occupies a large device
_NOWHERE = -1  # the position of the best element before any was found


@template("fold", "gpu")
def fold(ctx: Context, read: Reader, axes: Axes, how: Fold, out: Output) -> None:
    """Write the reduction of the values of `read` over `axes`."""
    results = prod(_kept_shape(axes))
    limit = _MANY_ALONE if axes.tiled is not None and results >= _MANY_RESULTS else _ALONE
    if axes.count <= limit or not results:
        _alone(ctx, read, axes, how, out)
        return
    sizes = _sizes(ctx, axes, axes.count if results < _MANY_RESULTS else -(-axes.count // _EACH), WARP)
    # enough parts to occupy the device with groups, while each item has enough elements to reduce
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
    """The distribution of results over groups."""

    width: int  # results of a group: neighbours in memory, if elements of one result are not adjacent
    lanes: int  # work-items of each result
    across: int  # neighbouring results in a row
    rows: int  # number of rows


def _sizes(ctx: Context, axes: Axes, lanes: int, fewest: int) -> _GroupSizes:
    """Return the distribution of results that each occupy `lanes` work-items, or at least `fewest` if possible."""
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

    # indices of its result along the kept axes; clamped to an existing one after the last result
    kept: dict[int, Expr]
    x: Expr  # the index of that result in the group
    lane: Expr  # the index of the item among those of the result
    part: Expr
    is_result: Expr  # whether the result exists, rather than being after the last one

    @property
    def stores(self) -> Expr:
        """True if this item stores the result."""
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
    """Write the launch that reduces each part; ``store(part, kept, total)`` receives the part's share of a result."""
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
    """Write the search for the position of the best element over `axes`.

    Each work-item processes a contiguous range, and the best elements of neighbouring ranges are compared. So among
    equal elements the first or last one is chosen, as in a sequential search.
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
    """Write the comparison of the best elements of neighbouring ranges; the final position is in the first element."""
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
