"""The register tile on packed weights, which are unpacked in registers once for all pixels of a tile.

A dense layer of many rows instead unpacks its weights to scratch, a piece of the reduction at a time, for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import prod

from mlfc.kernels import arithmetic, tiling
from mlfc.kernels.codes import LONGEST_BLOCK, PackedVectors, VectorPacking
from mlfc.kernels.conv_tile import TiledConv, TilePosition
from mlfc.kernels.product_tile import FlatRows
from mlfc.kernels.staging import Source
from mlfc.kernels.templates import Conv, Weights, frame_of, rows_as_pixels, template, unflattened
from mlfc.kernels.tiling import LANES, PackedBlock, Tile, channel_blocks
from mlfc.support.dims import Extent, bounds, is_static
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

_VECTOR = f"float32x{LANES}"
_FEW_ROWS = 4  # maximum number of rows for which weights are unpacked where they are multiplied
_FREE_REGISTERS = 2  # registers for unpacking, beyond those of a tile of floats
_MOST_VECTORS = 4  # maximum vectors of a tile of one pixel


def _accepts(_: Context, conv: Conv, data: Buffer, __: Weights, out: Output) -> bool:
    return len(conv.spatial) <= 2 and data.dtype == out.dtype == "float32"


@template("packed_convolution", "vector", _accepts)
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over one or two dimensions."""
    seen = frame_of(len(conv.spatial))
    PackedTile(ctx, conv.planar(), weights, (data, seen), out).emit()


@template("packed_dense", "vector")
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times weights (reduction, columns)."""
    conv, frame = rows_as_pixels(data.shape, weights.values.shape[-1])
    fewest, most = bounds(prod(data.shape[:-1]))
    if most <= _FEW_ROWS:
        PackedTile(ctx, conv, weights, (data, frame), out).emit()
    elif fewest > _FEW_ROWS:
        UnpackedRows(ctx, conv, weights, (data, frame), out).emit()
    else:
        with ctx.stmts.when(tb.binary("le", tb.as_expr(prod(data.shape[:-1])), _FEW_ROWS)):
            _FewRows(ctx, conv, weights, (data, frame), out).emit()
        with ctx.stmts.otherwise():
            UnpackedRows(ctx, conv, weights, (data, frame), out).emit()


class PackedTile(TiledConv):
    """Writes the loops of one convolution whose weights are unpacked in registers."""

    is_measured = False
    can_share_pieces = False

    def __init__(self, ctx: Context, conv: Conv, weights: Weights, source: Source, out: Output) -> None:
        assert weights.codes is not None
        how = arithmetic.float32(weights)
        super().__init__(ctx, conv, how, source, out)
        codes = weights.codes
        self.packing = VectorPacking(codes, weights.values.reshape(-1, self.run[1], conv.groups, conv.group_filters))
        self._vectors: dict[Buffer, PackedVectors] = {}
        self._scale: Buffer | float | None = None
        if codes.blocks == 1:
            first = float(codes.scale.flat[0])
            self._scale = first if (codes.scale == first).all() else ctx.constant("scale", codes.scale[0].copy())

    def fitting_tile(self, band: Extent, registers: int, allowed: tuple[int, ...] = tiling.VECTORS) -> Tile:
        """Return a tiling that leaves registers for unpacking."""
        width, filters = self.conv.output[1], self.conv.group_filters
        if bounds(band * width)[1] == 1:
            one = tiling.balanced(1, 1)
            return Tile(one, one, max(1, min(_MOST_VECTORS, filters // LANES)))
        left = registers - _FREE_REGISTERS if registers < 32 else registers
        return tiling.choose(band, width, filters, left, allowed)

    def pack(self, block: PackedBlock) -> tuple[Buffer, Buffer | None]:
        """Return the words of a block."""
        packed = self.packing.pack(self.ctx, block)
        self._vectors[packed.weights] = packed
        return packed.weights, None

    def finished(self, total: Expr, channel: Expr) -> Expr:
        """Return the result of an output channel from its sum."""
        if isinstance(self._scale, Buffer):
            total = total * tb.load(self._scale, [channel])
        elif self._scale is not None:
            total = total * tb.const(self._scale, "float32")
        return super().finished(total, channel)

    def write_tile(
        self,
        place: TilePosition,
        block: PackedBlock,
        number: Expr,
        weights: Buffer,
        start: Buffer | None,
        together: int = 1,
    ) -> None:
        """Write the sums of a tile of pixels and a block of channels."""
        del start
        _TileSums(self, place, block, number, self._vectors[weights], together).emit()


class _FewRows(FlatRows, PackedTile):
    """A dense layer of a dynamic number of rows, for few rows; it shares the weights of `UnpackedRows`."""

    def fitting_tile(self, band: Extent, registers: int, allowed: tuple[int, ...] = tiling.VECTORS) -> Tile:
        """Return the tiling of that layer with tiles of few rows."""
        found = tiling.choose(band, self.conv.output[1], self.conv.filters, registers, allowed)
        columns = tiling.DynamicSplit(self.conv.output[1], min(_FEW_ROWS, found.columns.largest))
        return Tile(found.rows, columns, found.vectors)


class _TileSums:
    """The sums of one tile."""

    def __init__(
        self,
        conv: PackedTile,
        place: TilePosition,
        block: PackedBlock,
        number: Expr,
        vectors: PackedVectors,
        together: int,
    ) -> None:
        self._conv, self._place, self._block, self._number = conv, place, block, number
        self._packed, self._packing, self._stmts = vectors, conv.packing, conv.ctx.stmts
        self._together = together
        self._across = block.vectors * together  # vectors of a pixel
        self._count = len(place.pixels) * self._across
        self._read = conv.reader(place)

    def emit(self) -> None:
        """Write all loops."""
        stmts, packing, kernel = self._stmts, self._packing, self._conv.conv.kernel
        self._sums = stmts.filled("sums", self._count, _VECTOR)
        totals = stmts.filled("totals", self._count, _VECTOR) if packing.in_pieces else None
        taps = self._conv.run[0]
        with stmts.loop(kernel[0], "ky") as ky, stmts.loop(taps, "kx") as kx:
            first = (ky * taps + kx) * packing.run_words

            def write(index: Expr, steps: int) -> None:
                at = first + index * packing.block_words
                self._piece(at, (ky, kx, index * packing.block), steps, index)
                self._end(totals, index)

            if packing.whole:
                with stmts.loop(packing.whole, "piece") as index:
                    write(index, packing.block)
            if packing.rest:
                write(tb.const(packing.whole), packing.rest)
        self._conv.finish(self._place, self._block, self._number, totals or self._sums, self._together)

    def _at(self, vector: int) -> tuple[Expr, int]:
        """Return the panel of a vector of a pixel, and the index of the vector in it."""
        return self._block.place(self._place.group, self._number, vector)

    def _piece(self, word: Expr, at: tuple[Expr, Expr, Expr], steps: int, index: Expr) -> None:
        """Write the products of successive steps whose codes start at a word boundary."""
        stmts, per_word, (ky, kx, first) = self._stmts, self._packing.codes.per_word, at
        which = index if self._packing.codes.blocks > 1 else tb.const(0)
        places = [self._at(vector) for vector in range(self._across)]
        zeros = [self._packed.zero(stmts, panel, which, own) for panel, own in places]
        whole, rest = divmod(steps, per_word)
        if whole:
            with stmts.loop(whole, "k") as k:
                self._products(word + k, (ky, kx, first + k * per_word), per_word, zeros)
        if rest:
            self._products(word + whole, (ky, kx, first + whole * per_word), rest, zeros)

    def _products(self, word: Expr, at: tuple[Expr, Expr, Expr], steps: int, zeros: list[Expr]) -> None:
        """Write the products of the steps whose codes are in one word of each lane."""
        stmts, vectors, (ky, kx, c) = self._stmts, range(self._across), at
        places = [self._at(vector) for vector in vectors]
        words = [stmts.let("codes", self._packed.load(panel, word, own)) for panel, own in places]
        for step in range(steps):
            values = [self._read(y, x, (ky, kx, c + step)) for y, x in self._place.pixels]
            weights = [self._packed.weight(words[vector], step, zeros[vector]) for vector in vectors]
            with stmts.scope() if isinstance(self._conv, FlatRows) else nullcontext():
                arithmetic.add_products(stmts, self._sums, values, weights, self._conv.how.accumulate)

    def _end(self, totals: Buffer | None, index: Expr) -> None:
        """Write the end of a piece: add its sums to the totals and reset them."""
        if totals is None:
            return
        has_scale = self._packing.codes.blocks > 1
        for number in range(self._count):
            total = tb.load(self._sums, [number])
            if has_scale:
                panel, own = self._at(number % self._across)
                total = total * self._packed.scale(panel, index, own)
            self._stmts.store(totals, [number], tb.load(totals, [number]) + total)
            self._stmts.store(self._sums, [number], tb.const(0, _VECTOR))


class UnpackedRows:
    """Writes the loops of a dense layer of many rows.

    Loops from outside in: block of columns, piece of the reduction, tile of rows, reduction. The weights of a piece are
    unpacked to scratch, which stays in the cache. The sums of each piece are added to totals in scratch.
    """

    def __init__(self, ctx: Context, conv: Conv, weights: Weights, source: Source, out: Output) -> None:
        assert weights.codes is not None
        self._ctx, self._stmts, self._conv, self._source, self._out = ctx, ctx.stmts, conv, source, out
        self._how = arithmetic.float32(weights)
        reduction, columns = weights.values.shape
        self._rows = conv.output[1]
        self._packing = VectorPacking(weights.codes, weights.values.reshape(1, reduction, 1, columns))
        self._together = max(1, LONGEST_BLOCK // self._packing.block)  # number of blocks that are unpacked at a time
        size, registers = (1, self._rows, columns), ctx.features.vector_registers
        # the weights may be packed for tiles of more registers
        self._vectors = tiling.choose(*size, ctx.features.packing_registers or registers).vectors
        self._tile = tiling.choose(*size, registers, tiling.divisors(self._vectors))
        end = self._how.end(out.bias)
        self._end = None if end is None else ctx.constant("bias", end)

    def emit(self) -> None:
        """Write all loops."""
        stmts, packing = self._stmts, self._packing
        blocks = [
            (block, packing.pack(self._ctx, block)) for block in channel_blocks(self._conv.filters, self._vectors)
        ]
        most = max(block.vectors for block, _ in blocks) * LANES
        together = min(self._together, max(packing.whole, 1))
        steps = max(together * packing.block, (packing.whole % together) * packing.block + packing.rest)
        padded = steps + packing.codes.per_word - 1  # the last word of a block may have unused codes
        self._panel = self._ctx.scratch("panel", (padded, most), "float32")
        self._totals = self._ctx.scratch("totals", (self._rows, most), "float32")
        for block, vectors in blocks:
            with stmts.loop(block.count, "block") as number:
                self._clear(block)
                pieces, left = divmod(packing.whole, together)
                if pieces:
                    with stmts.loop(pieces, "piece") as piece:
                        self._piece(block, vectors, number, piece * together, (together, 0))
                if left or packing.rest:
                    self._piece(block, vectors, number, tb.const(pieces * together), (left, packing.rest))
                self._finish(block, number)

    def _clear(self, block: PackedBlock) -> None:
        with self._stmts.loop(self._rows, "row") as row:
            for vector in range(block.vectors):
                self._stmts.store(self._totals, [row, vector * LANES], tb.const(0, _VECTOR))

    def _piece(
        self, block: PackedBlock, vectors: PackedVectors, number: Expr, first: Expr, length: tuple[int, int]
    ) -> None:
        """Write a piece of the reduction from a block on: a number of whole blocks, and some steps of another."""
        stmts, packing, (blocks, rest) = self._stmts, self._packing, length
        if blocks:
            with stmts.loop(blocks, "part") as part:
                self._unpack(block, vectors, (number, first + part, part * packing.block), packing.block)
        if rest:
            self._unpack(block, vectors, (number, first + blocks, tb.const(blocks * packing.block)), rest)
        extent = first * packing.block, blocks * packing.block + rest
        for row, wide in tiling.pieces(self._ctx, self._tile.columns, "rows"):
            for own in replace(block, count=1).parts(self._tile.vectors):
                with stmts.loop(own.count, "vectors") as which:
                    self._multiply((own.vectors, which * own.vectors + own.before), row, wide, extent)

    def _unpack(self, block: PackedBlock, vectors: PackedVectors, at: tuple[Expr, Expr, Expr], steps: int) -> None:
        """Write the code that unpacks one block of the reduction to scratch."""
        stmts, packing, (panel, index, step) = self._stmts, self._packing, at
        which = index if packing.codes.blocks > 1 else tb.const(0)
        per_word = packing.codes.per_word
        zeros, scales = [], []
        for vector in range(block.vectors):
            zeros.append(vectors.zero(stmts, panel, which, vector))
            scales.append(stmts.let("scale", vectors.scale(panel, which, vector)))
        with stmts.loop(-(-steps // per_word), "k") as k:
            for vector in range(block.vectors):
                loaded = vectors.load(panel, index * packing.block_words + k, vector)
                codes = stmts.let("codes", loaded)
                for number in range(per_word):
                    weight = vectors.weight(codes, number, zeros[vector]) * scales[vector]
                    stmts.store(self._panel, [step + k * per_word + number, vector * LANES], weight)

    def _multiply(self, part: tuple[int, Expr], row: Expr, wide: int, steps: tuple[Expr, int]) -> None:
        """Write the products of `wide` rows with a piece of the reduction, for some vectors of a block."""
        stmts, (first, extent), (data, _), (vectors, before) = self._stmts, steps, self._source, part
        sums = stmts.filled("sums", wide * vectors, _VECTOR)
        rows = [self._indices(row + pixel) for pixel in range(wide)]
        with stmts.loop(extent, "k") as k:
            weights = [tb.load(self._panel, [k, (before + vector) * LANES], lanes=LANES) for vector in range(vectors)]
            values = [tb.load(data, at(first + k)) for at in rows]
            arithmetic.add_products(stmts, sums, values, weights, self._how.accumulate)
        for index in range(sums.size):
            place = [row + index // vectors, (before + index % vectors) * LANES]
            total = tb.load(self._totals, place, lanes=LANES) + tb.load(sums, [index])
            stmts.store(self._totals, place, total)

    def _finish(self, block: PackedBlock, number: Expr) -> None:
        """Pass the results to the output, channel by channel, so that fused operators are vectorized."""
        stmts = self._stmts
        first = number * block.width + block.first
        with stmts.loop(self._rows, "row") as row:
            at = self._indices(row)
            with stmts.loop(block.width, "c", "vectorized") as c:
                value = tb.load(self._totals, [row, c])
                if self._end is not None:
                    value = value + tb.load(self._end, [first + c])
                self._out.store(at(first + c), value)

    def _indices(self, row: Expr) -> Callable[[Expr], Sequence[Expr]]:
        """Emit the position of a row of the input; return the function from a channel to the indices in that row."""
        data, seen = self._source
        if is_static(data.shape):
            return lambda channel: seen(0, 0, row, channel)
        at = [self._stmts.let("at", index) for index in unflattened(row, data.shape[:-1])]
        return lambda channel: [*at, channel]
