"""Matrix products on devices: a group of work-items computes a tile, each item a smaller tile in registers.

A step copies a slice of both matrices into memory that the group shares, where each element is used as often as the
tile is wide. Meanwhile, the next slice is loaded into registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from mlfc.kernels.gpu_fold import below, each_result, unraveled
from mlfc.support import dtypes
from mlfc.support.dim_estimates import typical
from mlfc.support.dims import Dim, is_static
from mlfc.target.features import Features
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Buffer, Expr

VECTOR = 4  # 32-bit elements per load
_SKEW = 4  # padding between rows of the first slice, in elements: columns are in different banks
# of a large GPU: processors, results per nanosecond of one; nanoseconds of a launch, bytes moved in one
_PROCESSORS, _ENDED, _LAUNCH, _BANDWIDTH = 132, 10, 1020, 17000
_MOST_SPLITS, _LEAST_STEPS, _MOST_PARTIAL = 16, 4, 1 << 25


@dataclass(frozen=True)
class GpuTile:
    """The tile sizes of a group and of a work-item."""

    rows: int  # of the group's tile, as are the columns
    columns: int
    depth: int  # elements of the reduction per step
    tall: int  # rows of an item's tile
    wide: int  # columns of an item's tile
    # nanoseconds of a step on an H200, fitted to the measurements of `benchmarks.device_tiles`
    latency: int  # of a single group
    share: int  # of each group on a fully occupied processor

    @property
    def items(self) -> int:
        """The number of work-items of a group."""
        return self.rows // self.tall * (self.columns // self.wide)

    @property
    def nbytes(self) -> int:
        """The size of a group's shared memory in bytes."""
        return 4 * self.depth * (self.rows + _SKEW + self.columns)


_TILES = (
    GpuTile(128, 64, 16, 8, 8, 710, 900), GpuTile(64, 128, 16, 8, 8, 1152, 839), GpuTile(64, 64, 16, 8, 8, 1052, 463),
    GpuTile(64, 64, 16, 4, 4, 593, 538), GpuTile(64, 64, 8, 8, 4, 528, 236), GpuTile(64, 32, 16, 4, 4, 431, 297),
    GpuTile(32, 64, 16, 2, 4, 613, 436), GpuTile(128, 16, 16, 4, 2, 640, 442), GpuTile(32, 32, 16, 4, 2, 377, 189),
    GpuTile(16, 16, 8, 4, 4, 387, 43),
)  # fmt: skip


class ProductSizes(NamedTuple):
    """The sizes of `layers` products of (rows, depth) and (depth, columns)."""

    layers: Any
    rows: Any
    columns: Any
    depth: Any


class Schedule(NamedTuple):
    """A tile, and the number of groups that split the reduction of each tile."""

    tile: GpuTile
    splits: int


def choose(features: Features, sizes: ProductSizes) -> Schedule:
    """Return the schedule with the least estimated time.

    The reduction of small results is split over groups, or most of a device would be idle. Dynamic sizes are not split,
    as the parts of a sum take memory and their number depends on its length.
    """
    most_splits = _MOST_SPLITS if is_static(sizes) else 1
    sizes = ProductSizes(*map(typical, sizes))
    results = 4 * sizes.layers * sizes.rows * sizes.columns

    def splits(tile: GpuTile) -> Iterator[int]:
        """Yield the numbers of equal parts into which the steps of a tile may be split."""
        steps = -(-sizes.depth // tile.depth)
        for parts in range(1, most_splits + 1):
            is_long = steps % parts == 0 and steps // parts >= _LEAST_STEPS
            if parts == 1 or (is_long and parts * results <= _MOST_PARTIAL):
                yield parts

    fitting = [t for t in _TILES if t.items <= features.group_items and t.nbytes <= features.shared_bytes]
    found = [Schedule(tile, parts) for tile in fitting or _TILES[-1:] for parts in splits(tile)]
    return min(found, key=lambda schedule: _nanoseconds(sizes, schedule))


def _nanoseconds(sizes: ProductSizes, schedule: Schedule) -> float:
    """Return the estimated time of a product on a large GPU, without the cost that all schedules share."""
    tile, splits = schedule
    steps = -(-sizes.depth // tile.depth) // splits
    groups = sizes.layers * -(-sizes.rows // tile.rows) * -(-sizes.columns // tile.columns) * splits
    each = -(-groups // _PROCESSORS)
    working = steps * max(tile.latency, each * tile.share) + each * tile.rows * tile.columns / _ENDED
    if splits == 1:
        return float(working)
    return float(working + _LAUNCH + 8 * splits * sizes.layers * sizes.rows * sizes.columns / _BANDWIDTH)


Store: TypeAlias = Callable[[Expr, Expr, Expr, Expr], None]


class MatrixSource(Protocol):
    """A matrix operand: lines of elements along the reduction."""

    dtype: str  # of its elements in shared memory
    width: int  # elements per fetch
    along: bool  # whether they are adjacent along the reduction; otherwise they belong to neighbouring lines

    def line(self, layer: Expr, line: Expr) -> Any:
        """Write and return the common part of all elements of a line, which may be after the last one."""

    def step(self, step: Expr, depth: int) -> Any:
        """Write and return the common part of all elements of a step."""

    def fetch(self, line: Any, step: Any, place: Expr) -> Expr:
        """Return `width` elements, starting at `place` of the step, or 0 outside the matrix."""


@dataclass(frozen=True)
class ProductArithmetic:
    """The dtype and operation by which products are accumulated."""

    dtype: str  # of sums
    add: Callable[[Expr, Expr, Expr], Expr]  # (sum, first, second) -> sum


class _Slice:
    """The slice of a matrix in shared memory, and the part that each item copies."""

    def __init__(self, ctx: Context, source: MatrixSource, name: str, lines: int, tile: GpuTile, skew: int) -> None:
        self._stmts, self._source, self._tile = ctx.stmts, source, tile
        self.buffer = ctx.stmts.shared(name, (tile.depth, lines + skew), source.dtype)
        self._loads = lines * tile.depth // source.width
        self._iterations = -(-self._loads // tile.items)
        self._held = ctx.stmts.local(f"{name}_next", (self._iterations * source.width,), source.dtype)
        self._lines = lines
        self._places: list[tuple[Expr, Expr, Any]] = []

    def place(self, item: Expr, layer: Expr, first: Expr) -> None:
        """Compute the elements that the item copies: lines from `first` on."""
        stmts, source, width = self._stmts, self._source, self._source.width
        for iteration in range(self._iterations):
            number = item + iteration * self._tile.items
            if self._loads < self._tile.items:
                number = stmts.let("number", tb.minimum(number, self._loads - 1))
            if source.along:
                each = self._tile.depth // width
                line, place = stmts.let("line", number // each), stmts.let("place", number % each * width)
            else:
                each = self._lines // width
                line, place = stmts.let("line", number % each * width), stmts.let("place", number // each)
            self._places.append((line, place, source.line(layer, stmts.let("at", first + line))))

    def fetch(self, step: Expr) -> None:
        """Write the loads of a step."""
        width = self._source.width
        known = self._source.step(step, self._tile.depth)
        for iteration, (_, place, line) in enumerate(self._places):
            self._stmts.store(self._held, [iteration * width], self._source.fetch(line, known, place))

    def bring(self, item: Expr) -> None:
        """Write the stores of fetched elements into shared memory."""
        stmts, width, is_few = self._stmts, self._source.width, self._loads < self._tile.items
        with stmts.when(tb.binary("lt", item, self._loads)) if is_few else nullcontext():
            for iteration, (line, place, _) in enumerate(self._places):
                first = iteration * width
                if self._source.along:
                    for lane in range(width):
                        stmts.store(self.buffer, [place + lane, line], tb.load(self._held, [first + lane]))
                else:
                    stmts.store(self.buffer, [place, line], tb.load(self._held, [first], width))


class GpuTiledProduct:
    """The launches that multiply layers of matrices: one, and a second one if it sums partial results.

    Lines of the first of the `sources` are rows, those of the second are columns.
    """

    def __init__(
        self,
        ctx: Context,
        schedule: Schedule,
        sizes: ProductSizes,
        sources: tuple[MatrixSource, MatrixSource],
        how: ProductArithmetic,
    ) -> None:
        self._ctx, (self._tile, self._splits), self._how = ctx, schedule, how
        self._sizes, self._sources = sizes, sources

    def emit(self, store: Store) -> None:
        """Write the launch; ``store(layer, row, column, sum)`` is called once for each result."""
        if self._splits == 1:
            self._launch(lambda _, *result: store(*result))
            return
        stmts, sizes = self._ctx.stmts, self._sizes
        shape = self._splits, sizes.layers, sizes.rows, sizes.columns
        parts = self._ctx.scratch("parts", shape, self._how.dtype)
        self._launch(lambda part, *result: stmts.store(parts, [part, *result[:-1]], result[-1]))
        with each_result(self._ctx, shape[1:]) as (layer, row, column):
            total = stmts.filled("total", 1, self._how.dtype)
            with stmts.loop(self._splits, "part") as part:
                stmts.store(total, [0], tb.load(total, [0]) + tb.load(parts, [part, layer, row, column]))
            store(layer, row, column, tb.load(total, [0]))

    def _launch(self, store: Callable[..., None]) -> None:
        """Write the launch of all parts: ``store(part, layer, row, column, sum)`` receives a part of a result."""
        stmts, tile, sizes = self._ctx.stmts, self._tile, self._sizes
        grid = -(-sizes.columns // tile.columns), -(-sizes.rows // tile.rows), sizes.layers * self._splits
        with stmts.launch(grid, (tile.items,)) as ((group_x, group_y, group_z), (item,)):
            part, layer = unraveled(group_z, (self._splits, sizes.layers))
            across = tile.columns // tile.wide
            x, y = stmts.let("x", item % across), stmts.let("y", item // across)
            row, column = stmts.let("row", group_y * tile.rows), stmts.let("column", group_x * tile.columns)
            a = _Slice(self._ctx, self._sources[0], "a", tile.rows, tile, _SKEW)
            b = _Slice(self._ctx, self._sources[1], "b", tile.columns, tile, 0)
            sums = stmts.local("sums", (tile.tall * tile.wide,), self._how.dtype)
            with stmts.loop(tile.tall * tile.wide, "s", "unrolled") as index:
                stmts.store(sums, [index], 0)
            a.place(item, layer, row)
            b.place(item, layer, column)
            self._steps(a, b, item, part, lambda: self._work(a.buffer, b.buffer, sums, x, y))
            self._store(sums, partial(store, part, layer), (row, y), (column, x))

    def _steps(self, a: _Slice, b: _Slice, item: Expr, part: Expr, work: Callable[[], None]) -> None:
        stmts = self._ctx.stmts
        steps = -(-self._sizes.depth // self._tile.depth) // self._splits
        first = part * steps

        def bring() -> None:
            a.bring(item)
            b.bring(item)
            stmts.barrier()

        a.fetch(first)
        b.fetch(first)
        bring()
        # dynamic sizes may have one step, so the loop has no iteration
        if isinstance(steps, Dim) or steps > 1:
            with stmts.loop(steps - 1, "step", "rolled") as step:
                a.fetch(first + step + 1)
                b.fetch(first + step + 1)
                work()
                stmts.barrier()
                bring()
        work()

    def _work(self, a: Buffer, b: Buffer, sums: Buffer, x: Expr, y: Expr) -> None:
        """Write the products of one step: an item uses each element that it reads for its whole tile."""
        stmts, tile = self._ctx.stmts, self._tile
        with stmts.loop(tile.depth, "k") as k:  # GPU compilers unroll it; CPU compilers should not
            left, right = stmts.local("left", (tile.tall,), a.dtype), stmts.local("right", (tile.wide,), b.dtype)
            for buffer, held, place, extent in ((a, left, y, tile.rows), (b, right, x, tile.columns)):
                for start, first in _pieces(held.shape[0], extent):
                    lanes = min(VECTOR, held.shape[0]) if dtypes.nbytes(buffer.dtype) == 4 else 1
                    for lane in range(0, min(VECTOR, held.shape[0]), lanes):
                        at = first + place * min(VECTOR, held.shape[0]) + lane
                        stmts.store(held, [start + lane], tb.load(buffer, [k, at], lanes))
            with stmts.loop(tile.tall, "i", "unrolled") as i, stmts.loop(tile.wide, "j", "unrolled") as j:
                index = i * tile.wide + j
                total = self._how.add(tb.load(sums, [index]), tb.load(left, [i]), tb.load(right, [j]))
                stmts.store(sums, [index], total)

    def _store(
        self, sums: Buffer, store: Callable[..., None], rows: tuple[Expr, Expr], columns: tuple[Expr, Expr]
    ) -> None:
        stmts, tile, sizes = self._ctx.stmts, self._tile, self._sizes
        high, wide = min(VECTOR, tile.tall), min(VECTOR, tile.wide)
        for top, row_first in _pieces(tile.tall, tile.rows):
            with stmts.loop(high, "i", "unrolled") as i:
                row = stmts.let("r", rows[0] + rows[1] * high + row_first + i)
                with below(self._ctx, row, sizes.rows, tile.rows):
                    for left, column_first in _pieces(tile.wide, tile.columns):
                        with stmts.loop(wide, "j", "unrolled") as j:
                            column = stmts.let("c", columns[0] + columns[1] * wide + column_first + j)
                            with below(self._ctx, column, sizes.columns, tile.columns):
                                total = tb.load(sums, [(i + top) * tile.wide + j + left])
                                store(row, column, total)


def _pieces(held: int, extent: int) -> Sequence[tuple[int, int]]:
    """Return the start of each vector of an item's rows or columns in its registers, and in the group's tile."""
    lanes = min(VECTOR, held)
    return [(start, start * extent // held) for start in range(0, held, lanes)]
