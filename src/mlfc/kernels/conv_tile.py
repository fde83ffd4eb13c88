"""Register-tile convolution: accumulators for pixels x output channels, with the reduction innermost.

Loops from outside in: image, band of staged rows, group, block of output channels, tile of pixels, reduction. Weights
of a block are read in the order of their addresses; the input value of a pixel is broadcast to all channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from mlfc.kernels import tiling
from mlfc.kernels.arithmetic import Arithmetic, Array, add_products
from mlfc.kernels.plain import PIECE, is_long, no_sum, piece, unrolled_loop
from mlfc.kernels.staging import LARGE_BAND_BYTES, MOST_BAND_BYTES, Band, Source, StagedForm
from mlfc.kernels.templates import Conv
from mlfc.kernels.tiling import LANES, PackedBlock, Tile, channel_blocks, pack_channels, pack_rows
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, bounds
from mlfc.target.features import Value
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Const, Expr

LARGE_WEIGHTS = 1024 * 1024  # size in bytes that does not fit in the second-level cache with the data
SHARED_VECTORS = (1, 2)  # vectors of output channels of a tile in that case: with more, compilers run out of registers
FEWEST_PIXELS = 16  # minimum number of pixels for keeping weights in the second-level cache

# below this number of channels, a kernel row of pixels is read as one run, which requires the staged copy
FEW_CHANNELS = 16


LEAST_BYTES = 128 * 1024  # minimum size of weights that caches may not keep from one run to the next
MOST_PART_BYTES = 512 * 1024  # maximum size of a part: with the next one, it fits in the second-level cache
MOST_TILES = 128  # maximum number of tiles per part: with more, the latency of the first hardly matters
LINE = 64  # bytes
_WHY = "weights that come next"

# offset of a step in the packed weights and in its piece, and its (ky, kx, c)
_Step: TypeAlias = "tuple[Expr, Expr, tuple[Expr, Expr, Expr]]"


@dataclass(frozen=True, eq=False)
class TilePosition:
    """The position of a tile: image, group, first output row (also within its band) and column; and its size.

    Another tile computes the results of the first `done` columns.
    """

    image: Expr
    group: Expr
    row: Expr
    column: Expr
    band_row: Expr
    tall: int
    wide: int
    done: Expr | int = 0

    @property
    def pixels(self) -> list[tuple[int, int]]:
        """Offsets of the tile's pixels."""
        return [(y, x) for y in range(self.tall) for x in range(self.wide)]


class _Pieces:
    """Totals of long sums, to which the accumulators are added after every piece; at the end they are the results."""

    def __init__(self, ctx: Context, sums: Buffer, steps: Extent) -> None:
        self._stmts, self._sums = ctx.stmts, sums
        begin = tb.broadcast(no_sum(dtypes.element(sums.dtype), steps), LANES)
        self.totals = self._stmts.filled("totals", sums.size, sums.dtype, begin)

    def add(self) -> None:
        """Write the end of a piece: reset the accumulators."""
        for index in range(self._sums.size):
            total = tb.load(self.totals, [index]) + tb.load(self._sums, [index])
            self._stmts.store(self.totals, [index], total)
            self._stmts.store(self._sums, [index], tb.const(0, self._sums.dtype))


@dataclass(frozen=True, eq=False)
class _WeightPart:
    """A part of the weights (panels, steps, elements) that all tiles read before the next, and a tile's share in it."""

    panel: Expr
    first: Any  # first step
    steps: int
    readers: int  # blocks of channels that read a panel, each different vectors
    reader: Any  # the index of the current one
    before: Expr  # pixels before those of the tile
    pixels: int
    all: Any  # all pixels that use the same weights
    is_row: bool


class _WeightStream:
    """Writes the prefetches of a tile: of the next weights, into the second-level cache.

    Weights are read in the order of their addresses; all tiles read a part of them before the next part. The first tile
    would wait for memory while the others leave it idle. So each tile prefetches its share of the next part, evenly
    over its steps: processors can track few outstanding loads.
    """

    def __init__(self, ctx: Context, weights: Buffer, part: _WeightPart) -> None:
        self._stmts, self._weights, self._start = ctx.stmts, weights, None
        if not ctx.features.prefetches or ctx.small or not _is_worthwhile(weights, part):
            return
        _, steps, elements = weights.shape
        length, at = part.steps * elements, (part.panel * steps + part.first) * elements
        pixels: Any = part.all
        if isinstance(pixels, Dim):
            # a share of at most a line per step: of two tiles, each prefetches every second line, and processors fetch
            # pairs
            pixels = tb.maximum(tb.as_expr(pixels), 1)
            self._each: Any = ctx.stmts.let("each", tb.minimum(elements * part.pixels // pixels + 1, elements))
            self._offsets, last, ahead = [0], weights.size - length, length // pixels + 1
        else:
            tiles = pixels * part.readers  # in pixels
            self._each = -(-elements * part.pixels // tiles)  # elements to prefetch per step
            self._offsets = list(range(0, self._each, LINE // dtypes.nbytes(weights.dtype)))
            last, ahead = weights.size - part.steps * self._each, -(-length // tiles)
        done = part.reader * pixels + part.before
        start = at + length + done * ahead
        start = tb.maximum(start, 0) if isinstance(part.all, Dim) else start
        self._start = ctx.stmts.let("ahead", tb.minimum(start, last))

    def step(self, index: Expr) -> None:
        """Write the prefetches of a step of the part."""
        if self._start is not None:
            for offset in self._offsets:
                self._stmts.prefetch(self._weights, self._start + (index * self._each + offset), _WHY)


def _is_worthwhile(weights: Buffer, part: _WeightPart) -> bool:
    if any(isinstance(extent, Dim) for extent in weights.shape):
        return False
    panels, steps, _ = weights.shape
    nbytes = int(weights.nbytes)
    part_bytes = nbytes // (panels * steps) * part.steps
    if nbytes < LEAST_BYTES or part_bytes > min(MOST_PART_BYTES, nbytes // 2):
        return False
    if isinstance(part.all, Dim):
        return part.is_row  # images usually have many tiles
    tiles = part.all * part.readers / part.pixels
    return bool(1 < tiles <= MOST_TILES)  # one tile is limited by memory bandwidth


class TiledConv:
    """Writes the loops of one convolution over (height, width); the output has the indexing of the input, `source`."""

    is_measured = True  # whether measurements may choose its parameters
    joins = True  # whether blocks can be computed together
    can_share_pieces = True  # whether a piece of long sums can be computed for all tiles before the next piece
    adds_by_pieces = True  # whether to do that if it pays
    can_stage = True  # whether the input may be copied
    packs_once = True  # whether weights are packed at compile time and indexed by `PackedBlock.place`
    panel = 0  # vectors of output channels whose weights are contiguous, if they differ from a tile's

    def __init__(self, ctx: Context, conv: Conv, how: Arithmetic, source: Source, out: Output) -> None:
        self.ctx, self.conv, self.how, self.out = ctx, conv, how, out
        self.data, self.seen = source
        end = how.end(out.bias)
        self.end = None if end is None else ctx.constant("bias", end)
        self.largest = how.largest(out.bias) if self.packs_once and ctx.features.fixed_point_lanes else None
        contiguous = conv.groups == 1 and conv.dilation[1] == 1 and conv.kernel[1] > 1
        few = contiguous and conv.channels < FEW_CHANNELS
        must = how.must_stage or conv.padded
        # a run of a row is divided into other pieces than its taps
        same = self.can_stage and (not contiguous or bounds(conv.kernel[1] * conv.channels)[1] <= PIECE)
        staged = must or bool(ctx.choose("stage", int(few), lambda: [0, 1] if same else [int(few)]))
        self.as_runs = contiguous and staged
        self.steps = conv.kernel[0] * prod(self.run)
        self.long = is_long(how.accumulator, self.steps)
        # whether one piece of long sums is computed for all tiles before the next, so that its weights stay in caches:
        # every element is summed in the same order as otherwise
        known = not any(isinstance(extent, Dim) for extent in (*conv.output, self.steps, conv.group_filters))
        size = dtypes.nbytes(dtypes.element(how.accumulator))
        is_large = known and self.steps * conv.group_filters * size > LARGE_WEIGHTS
        shares_pieces = self.can_share_pieces and self.long and is_large and prod(conv.output) >= FEWEST_PIXELS
        usual = "pieces" if shares_pieces else "blocks"
        self.vectors = SHARED_VECTORS if usual == "pieces" else tiling.VECTORS
        self.stage: Band | None = None
        if staged:
            form = StagedForm(how.staged_dtype, conv.channels, how.step, how.pad_value, how.to_staged)
            most = LARGE_BAND_BYTES if usual == "pieces" else MOST_BAND_BYTES
            self.stage = self.band_of(form, most)
        band = self.stage.rows if self.stage else conv.output[0]
        self.tile: Tile = self.choose_tile(band)
        self.order, self.unroll = usual if self.adds_by_pieces else "blocks", 1
        if self.is_measured:
            self.order = str(ctx.choose("order", self.order, self._orders))
            self.unroll = int(str(ctx.choose("unroll", self.unroll, self._unrolls)))
        if self.order == "pieces":
            shape = (int(band) * int(conv.output[1]), self.tile.vectors * LANES)
            self.totals = ctx.scratch("totals", shape, dtypes.element(how.accumulator))

    def band_of(self, form: StagedForm, most: int) -> Band:
        """Return the copy of the input of a band of rows, of at most `most` bytes."""
        return Band(self.ctx, self.conv, (self.data, self.seen), form, self.how.weights.nbytes, most)

    def choose_tile(self, band: Extent) -> Tile:
        """Return the tiling of a band of rows; its weights may be packed for tiles of more registers."""
        features, allowed = self.ctx.features, self.vectors
        if not self.packs_once or not features.packing_registers:
            return self._measured_tile(band, features.vector_registers, allowed)
        self.panel = self._measured_tile(band, features.packing_registers, allowed, packing=True).vectors
        return self._measured_tile(band, features.vector_registers, tiling.divisors(self.panel))

    def _measured_tile(
        self, band: Extent, registers: int, allowed: tuple[int, ...] = tiling.VECTORS, *, packing: bool = False
    ) -> Tile:
        """Return the tiling for a number of registers, or a measured one; `packing`: the one of the weight order."""
        found = self.fitting_tile(band, registers, allowed)
        width, filters = self.conv.output[1], self.conv.group_filters
        if not self.is_measured or isinstance(band, Dim) or isinstance(width, Dim) or isinstance(filters, Dim):
            return found
        usual, plane = tiling.sizes(found), (band, width, filters, registers)

        def measured() -> Sequence[Value]:
            vectors = tiling.MEASURED_VECTORS if allowed in (tiling.VECTORS, SHARED_VECTORS) else allowed
            return [usual, *(tile for tile in tiling.fitting(*plane, vectors) if tile != usual)]

        chosen = self.ctx.choose("tile", usual, measured, packing=packing)
        if chosen == usual or not isinstance(chosen, tuple):
            return found
        tall, wide, count = chosen
        return Tile(tiling.balanced(band, tall), tiling.balanced(width, wide), count)

    def fitting_tile(self, band: Extent, registers: int, allowed: tuple[int, ...] = tiling.VECTORS) -> Tile:
        """Return the tiling for a number of registers."""
        return tiling.choose(band, self.conv.output[1], self.conv.group_filters, registers, allowed)

    def _orders(self) -> Sequence[Value]:
        """Return the possible loop orders: blocks of channels outside pixels, or inside, or sum pieces in between."""
        is_dynamic = any(isinstance(split, tiling.DynamicSplit) for split in (self.tile.rows, self.tile.columns))
        if is_dynamic or isinstance(self.conv.group_filters, Dim):
            return ["blocks"]
        return [*dict.fromkeys((self.order, "blocks", "pixels"))]

    def _unrolls(self) -> Sequence[Value]:
        """Return the possible unroll factors of the innermost reduction loop."""
        steps = self.run[1]
        whole = not self.long and not isinstance(steps, Dim)
        return [1, *(count for count in (2, 4) if whole and steps % count == 0 and steps > count)]

    def emit(self) -> None:
        """Write all loops."""
        stmts = self.ctx.stmts
        blocks = [
            (block, weights, start)
            for panel in channel_blocks(self.conv.group_filters, self.panel or self.tile.vectors)
            for weights, start in [self.pack(panel)]
            for block in panel.parts(self.tile.vectors)
        ]
        with stmts.loop(self.conv.batch, "image") as image, self._bands() as (first, rows):
            self.prepare(image)
            if self.stage:
                stmts.refill(self.stage.buffer)
                self.stage.fill(image, first, rows)
            with stmts.loop(self.conv.groups, "group") as group:
                if self.order == "pixels":  # the pixels are read once, the weights for each tile
                    for place in self._tiles((image, group, first, rows)):
                        for block, weights, start in blocks:
                            with stmts.loop(block.count, "block") as number:
                                self.write_tile(place, block, number, weights, start)
                for block, weights, start in blocks if self.order != "pixels" else ():
                    with stmts.loop(block.count, "block") as number:
                        write = self._plane_by_pieces if self.order == "pieces" else self._plane
                        write((image, group, first, rows), (block, number, weights, start))
                    self._few_pixels((image, group, first), (block, weights, start))

    @contextmanager
    def _bands(self) -> Iterator[tuple[Expr, Any]]:
        """Open the loop over bands; yield the first output row and the number of rows of a band."""
        stmts, height = self.ctx.stmts, self.conv.output[0]
        if self.stage is None or not self.stage.is_dynamic:
            band = self.stage.rows if self.stage else height
            with stmts.loop(height // band if self.stage else 1, "band") as index:
                yield index * band, band
            return
        band = stmts.let("rows", tb.as_expr(self.stage.rows))
        with stmts.loop((height + (band - 1)) // band, "band") as index:
            first = index * band
            yield first, stmts.let("here", tb.minimum(band, height - first))

    def prepare(self, image: Expr) -> None:
        """Write the code that prepares an image's tiles; constants need none."""

    def read(self, image: Expr, row: Expr, column: Expr, channel: Expr) -> Expr:
        """Read the input if it is not staged."""
        return tb.load(self.data, self.seen(image, row, column, channel))

    def pack(self, block: PackedBlock) -> tuple[Buffer, Buffer | None]:
        """Return the weights of a block, (groups * count, steps, lanes), and the start of its accumulators."""
        weights, start = self.packed(block)
        constant = self.ctx.constant
        return constant("weights", weights), None if start is None else constant("start", start)

    def packed(self, block: PackedBlock) -> tuple[Array, Array | None]:
        """Return the arrays from which `pack` creates constants."""
        conv, step = self.conv, self.how.step
        reduction = conv.kernel[1] * conv.channels if self.as_runs else conv.group_channels
        rows = self.how.weights.reshape(-1, reduction, conv.groups, conv.group_filters)
        packed = np.concatenate([pack_rows(rows[:, :, group], block, step) for group in range(conv.groups)])
        start = self.how.start(self.out.bias)
        if start is None:
            return packed, None
        by_group = start.reshape(conv.groups, conv.group_filters)
        return packed, np.concatenate([pack_channels(values, block) for values in by_group])

    def _plane(
        self, band: tuple[Expr, Expr, Expr, Any], block: tuple[PackedBlock, Expr, Buffer, Buffer | None]
    ) -> None:
        """Emit the tiles of a band of output rows for one block of channels.

        `band`: the image, the group, the first row, and the number of rows. `block`: as in `write_tile`.
        """
        image, group, first, rows = band
        down = self.tile.rows if isinstance(self.tile.rows, tiling.Split) else tiling.DynamicSplit(rows, 1)
        columns = self.tile.columns
        for band_row, tall in tiling.pieces(self.ctx, down, "ty"):
            place = TilePosition(image, group, first + band_row, tb.const(0), band_row, tall, 0)
            if isinstance(columns, tiling.DynamicSplit) and not self._is_row():
                # tiles may overlap if blocks of channels are not joined for the remainder of a row
                for part in columns.covering(self.ctx, "tx"):
                    self.write_tile(replace(place, column=part.start, wide=part.size, done=part.done), *block)
                continue
            alone = {size for _, _, size in columns.pieces if self._together(block[0], size) == 1}
            for x, wide in tiling.pieces(self.ctx, columns, "tx", alone):
                self.write_tile(replace(place, column=x, wide=wide), *block)

    def _is_row(self) -> bool:
        return isinstance(self.conv.output[0], int) and self.conv.output[0] == 1

    def _plane_by_pieces(
        self, band: tuple[Expr, Expr, Expr, Any], block: tuple[PackedBlock, Expr, Buffer, Buffer | None]
    ) -> None:
        """Write the tiles of one band for one block of channels: each piece of the sums for all tiles, in order."""
        stmts, how, totals = self.ctx.stmts, self.how, self.totals
        packed, number, weights, start = block
        assert start is None  # only integer sums start with a bias
        vectors = packed.vectors
        stmts.refill(totals)
        with stmts.loop(totals.shape[0], "pixel") as pixel, stmts.loop(vectors * LANES, "c", "vectorized") as c:
            stmts.store(totals, [pixel, c], no_sum(totals.dtype, self.steps))
        at = [packed.place(band[1], number, vector) for vector in range(vectors)]
        with self._large_pieces() as (piece_at, steps):
            for place in self._tiles(band):
                sums = stmts.filled("sums", len(place.pixels) * vectors, how.vector)
                read = self.reader(place)
                ahead = self._ahead(place, packed, at[0], weights, piece_at)
                with steps() as (position, offset, tap):
                    ahead.step(offset)
                    factors = [tb.load(weights, [own, position, v * LANES], lanes=LANES) for own, v in at]
                    add_products(stmts, sums, [read(y, x, tap) for y, x in place.pixels], factors, how.accumulate)
                for index in range(sums.size):
                    where = self._total(place, index, vectors)
                    total = tb.load(totals, where, lanes=LANES) + tb.load(sums, [index])
                    stmts.store(totals, where, total)
        for place in self._tiles(band):
            sums = stmts.local("sums", (len(place.pixels) * vectors,), how.vector)
            for index in range(sums.size):
                stmts.store(sums, [index], tb.load(totals, self._total(place, index, vectors), lanes=LANES))
            self.finish(place, packed, number, sums)

    def _tiles(self, band: tuple[Expr, Expr, Expr, Any]) -> Iterator[TilePosition]:
        """Open the loops over the tiles of a band, one kind of tile after another."""
        image, group, first, _ = band
        for band_row, tall in tiling.pieces(self.ctx, self.tile.rows, "ty"):
            for x, wide in tiling.pieces(self.ctx, self.tile.columns, "tx"):
                yield TilePosition(image, group, first + band_row, x, band_row, tall, wide)

    def _total(self, place: TilePosition, index: int, vectors: int) -> list[Any]:
        """Return the indices of the total of an accumulator."""
        y, x = place.pixels[index // vectors]
        pixel = (place.band_row + y) * self.conv.output[1] + (place.column + x)
        return [pixel, index % vectors * LANES]

    @contextmanager
    def _large_pieces(self) -> Iterator[tuple[tuple[Expr, int], Callable[[], AbstractContextManager[_Step]]]]:
        """Open the loops over the pieces of `_steps`; yield a piece's offset, and a callable that opens its loops."""
        stmts = self.ctx.stmts
        taps, steps = self.run
        by_row = taps * steps <= PIECE

        @contextmanager
        def inside(ky: Expr, kx: Expr | None, first: Expr, extent: Any) -> Iterator[_Step]:
            with stmts.loop(taps, "kx") if kx is None else nullcontext(kx) as column:
                with stmts.loop(extent, "k") as offset:
                    k = first + offset
                    inside = column * steps + offset if kx is None else offset
                    yield (ky * taps + column) * steps + k, inside, (ky, column, k * self.how.step)

        with stmts.loop(self.conv.kernel[0], "ky") as ky:
            if by_row:
                yield (ky * (taps * steps), taps * steps), lambda: inside(ky, None, tb.const(0), steps)
                return
            with stmts.loop(taps, "kx") as kx, piece(self.ctx, steps, whole=False) as (first, extent):
                most = int(extent.value) if isinstance(extent, Const) else PIECE
                yield ((ky * taps + kx) * steps + first, most), lambda: inside(ky, kx, first, extent)

    def _together(self, block: PackedBlock, wide: int) -> int:
        """Return how many blocks are computed together for a piece of `wide` pixels.

        The remainder of a dynamically long row, or all of a short one, has too few sums to hide the latency of
        additions. Convolutions of more rows have few of these pieces.
        """
        is_row = isinstance(self.tile.columns, tiling.DynamicSplit) and self._is_row()
        sums = wide * block.vectors * tiling.parts(self.ctx.features.vector_registers)
        if not is_row or not self.joins or isinstance(block.count, Dim) or block.count <= 1:
            return 1
        return max(1, tiling.FMA_SLOTS // sums)

    def _few_pixels(self, band: tuple[Expr, Expr, Expr], block: tuple[PackedBlock, Buffer, Buffer | None]) -> None:
        """Write the pieces for which blocks are computed together."""
        (image, group, row), (packed, weights, start) = band, block
        joined = {size for _, _, size in self.tile.columns.pieces if self._together(packed, size) > 1}
        for x, wide in tiling.pieces(self.ctx, self.tile.columns, "tx", joined):
            count = min(self._together(packed, wide), packed.count)
            whole, rest = divmod(packed.count, count)
            place = TilePosition(image, group, row, x, tb.const(0), 1, wide)
            with self.ctx.stmts.loop(whole, "blocks") as number:
                self.write_tile(place, packed, number * count, weights, start, count)
            if rest:
                self.write_tile(place, packed, tb.const(whole * count), weights, start, rest)

    def write_tile(
        self,
        place: TilePosition,
        block: PackedBlock,
        number: Expr,
        weights: Buffer,
        start: Buffer | None,
        together: int = 1,
    ) -> None:
        """Write the sums of a tile for a block of channels, or for `together` blocks starting at `number`."""
        stmts, how, vectors = self.ctx.stmts, self.how, block.vectors * together
        at = [self.weights_at(block, place.group, number, vector) for vector in range(vectors)]
        sums = stmts.local("sums", (len(place.pixels) * vectors,), how.vector)
        for index in range(sums.size):
            own, v = at[index % vectors]
            stmts.store(sums, [index], 0 if start is None else tb.load(start, [own, v * LANES], lanes=LANES))
        pieces = _Pieces(self.ctx, sums, self.steps) if self.long else None
        read = self.reader(place)
        part = (tb.const(0), self.steps)
        is_alone = together == 1 and self.packs_once  # data that was just packed is in caches
        ahead = self._ahead(place, block, at[0], weights, part) if is_alone else None
        with self._steps(pieces) as (position, tap):
            if ahead:
                ahead.step(position)
            width = LANES * how.step
            factors = [tb.load(weights, [own, position, v * width], lanes=width) for own, v in at]
            values = [read(y, x, tap) for y, x in place.pixels]
            add_products(stmts, sums, values, factors, how.accumulate)
        self.finish(place, block, number, pieces.totals if pieces else sums, together)

    def weights_at(self, block: PackedBlock, group: Expr, number: Expr, vector: int) -> tuple[Any, Any]:
        """Return the panel of a block's vector, and the index of the vector in it."""
        return block.place(group, number, vector)

    def _ahead(
        self, place: TilePosition, block: PackedBlock, at: tuple[Any, Any], weights: Buffer, part: tuple[Expr, Any]
    ) -> _WeightStream:
        """Return the writer of prefetches for a tile that reads a number of steps of a panel, starting at one."""
        width, rows = self.conv.output[1], self.stage.rows if self.stage else self.conv.output[0]
        before = place.band_row * width + place.column * place.tall
        readers, reader = 1, 0
        if block.panel is not None:
            readers, reader = block.panel.vectors // block.vectors, at[1] // block.vectors
        pixels = len(place.pixels), rows * width
        own = _WeightPart(at[0], *part, readers, reader, before, *pixels, self._is_row())
        return _WeightStream(self.ctx, weights, own)

    def reader(self, place: TilePosition) -> Callable[[int, int, tuple[Expr, Expr, Expr]], Expr]:
        """Return the function that reads the input of a pixel of the tile at ``(ky, kx, c)``."""
        conv, stage = self.conv, self.stage
        stride_y, stride_x = conv.strides

        def read(y: int, x: int, at: tuple[Expr, Expr, Expr]) -> Expr:
            ky, kx, c = at
            row = ((place.band_row if stage else place.row) + y) * stride_y + ky * conv.dilation[0]
            column = (place.column + x) * stride_x + kx * conv.dilation[1]
            channel = c if self.as_runs else place.group * conv.group_channels + c
            if stage is None:
                return self.read(place.image, row, column, channel)
            return tb.load(stage.buffer, [row, column * conv.channels + channel], lanes=self.how.step)

        return read

    @property
    def run(self) -> tuple[int, Any]:
        """The number of taps of a kernel row with separate loops, and the steps of the loop inside them."""
        taps = 1 if self.as_runs else self.conv.kernel[1]
        run = self.conv.kernel[1] * self.conv.channels if self.as_runs else self.conv.group_channels
        return taps, -(-run // self.how.step)

    @contextmanager
    def _steps(self, pieces: _Pieces | None) -> Iterator[tuple[Expr, tuple[Expr, Expr, Expr]]]:
        """Open the loops over the reduction, in pieces of whole or part rows; yield a step's offset and (ky, kx, c)."""
        stmts = self.ctx.stmts
        taps, steps = self.run
        by_row = pieces is not None and bounds(taps * steps)[1] <= PIECE
        with stmts.loop(self.conv.kernel[0], "ky") as ky:
            with stmts.loop(taps, "kx") as kx, piece(self.ctx, steps, pieces is None) as (first, extent):
                with unrolled_loop(stmts, extent, "k", self.unroll) as offset:
                    k = first + offset
                    yield (ky * taps + kx) * steps + k, (ky, kx, k * self.how.step)
                if pieces and not by_row:
                    pieces.add()
            if pieces and by_row:
                pieces.add()

    def finish(self, place: TilePosition, block: PackedBlock, number: Expr, sums: Buffer, together: int = 1) -> None:
        """Pass the tile's elements to the output, channel by channel, so that fused operators are vectorized."""
        stmts, vectors, element = self.ctx.stmts, block.vectors * together, dtypes.element(sums.dtype)
        results = stmts.local("results", (len(place.pixels), vectors * LANES), element)
        for index in range(sums.size):
            stmts.store(results, [index // vectors, index % vectors * LANES], tb.load(sums, [index]))
        if element == "int32":
            stmts.fence("the sums above need the registers that multipliers would take")
        first = place.group * self.conv.group_filters + number * block.width + block.first
        with stmts.loop(place.tall, "py") as y, stmts.loop(place.wide - place.done, "px") as offset:
            x = offset + place.done
            at = self.place(place.image, place.row + y, place.column + x)
            with stmts.loop(block.width * together, "c", "vectorized") as c:
                value = self.finished(tb.load(results, [y * place.wide + x, c]), first + c)
                self.out.store(at(first + c), value)

    def place(self, image: Expr, row: Expr, column: Expr) -> Callable[[Expr], Sequence[Expr]]:
        """Return a function that maps a channel to its indices at a pixel of the result."""
        return lambda channel: self.seen(image, row, column, channel)

    def finished(self, total: Expr, channel: Expr) -> Expr:
        """Return the result of an output channel from its sum."""
        if self.largest is not None and not self.ctx.small:  # small functions share code even if their limits differ
            total = tb.intrinsic("within", total, tb.const(self.largest))
        return total if self.end is None else total + tb.load(self.end, [channel])
