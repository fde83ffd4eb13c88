"""Common code for the work-items of a group: distribution of a range, tree reduction of partial results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod

from mlfc.support.dim_estimates import typical
from mlfc.support.dims import Extent, maximum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
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
