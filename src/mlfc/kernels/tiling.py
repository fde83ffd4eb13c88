"""The register tile: the number of output pixels and channel vectors that are computed at once, and packed weights."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.support.dims import Dim, Extent, bounds, minimum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Expr

LANES = 16  # 32-bit lanes of the vectors in templates
FMA_SLOTS = 8  # multiply-adds in flight that hide their latency: 4 cycles on 2 pipes
MOST_PIXELS = 8  # pixels are a power of two apart if channels are: more of them than cache ways evict each other
SPARE = 2  # registers for a broadcast value, and for the mask of byte products
VECTORS = (1, 2, 4, 7)  # possible numbers of vectors of output channels per tile
MEASURED_VECTORS = (1, 2, 3, 4, 5, 6, 7, 8)  # of tiles that are measured
MOST_MEASURED_PIXELS = 14
MOST_MEASURED = 24  # maximum number of tilings of a layer that are measured
LOAD_COST = 0.05  # of each load of 64 bytes that multiply-adds do not hide: it waits for caches
COPY_COST = 0.02  # each further copy of the tile's code must save this share of the time
WIDTHS = (7, 8, 14, 16, 28, 56)  # typical sizes of images with dynamic sides
LONG = 1 << 12  # assumed size of a dynamic dimension: so long that its end hardly matters

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Split:
    """A range divided into `large` pieces of ``size + 1``, followed by `small` pieces of ``size``."""

    size: int
    large: int
    small: int

    @property
    def pieces(self) -> tuple[tuple[int, int, int], ...]:
        """(start, count, size) of each kind of piece that occurs."""
        both = ((0, self.large, self.size + 1), (self.large * (self.size + 1), self.small, self.size))
        return tuple(piece for piece in both if piece[1])

    @property
    def largest(self) -> int:
        """Size of the largest piece."""
        return self.size + 1 if self.large else self.size


@dataclass(frozen=True)
class DynamicSplit:
    """A range of dynamic size: pieces of `largest`, then at most one of each smaller power of two."""

    extent: Any  # a Dim or an expression
    largest: int

    @property
    def pieces(self) -> tuple[tuple[Any, Any, int], ...]:
        """(start, count, size) of each kind of piece."""
        whole, size = self.extent // self.largest, 1
        found = []
        rest = self.extent - whole * self.largest
        while size < self.largest:
            whole_pairs = rest // (2 * size) * (2 * size) if 2 * size < self.largest else 0
            found.append((whole * self.largest + whole_pairs, (rest - whole_pairs) // size, size))
            size *= 2
        return ((0, whole, self.largest), *reversed(found))

    def covering(self, ctx: Context, name: str) -> Iterator[Covering]:
        """Cover the range by pieces, largest first; yield each size inside the loop over its pieces.

        Only the last piece of a size between the largest and 1 may overlap the end of the previous piece.
        """
        stmts, done = ctx.stmts, tb.const(0)
        extent = stmts.let("extent", tb.as_expr(self.extent))
        for size in self._sizes:
            if size in (self.largest, 1):
                count = stmts.let("pieces", tb.maximum((extent - done) // size, 0))
                with stmts.loop(count, name) as index:
                    yield Covering(done + index * size, tb.const(0), size)
            else:
                needed = tb.minimum((extent - done + (size - 2)) // size, extent // size * 2)
                count = stmts.let("pieces", needed)
                with stmts.when(tb.binary("ge", extent, size)), stmts.loop(count, name) as index:
                    first = done + index * size
                    start = stmts.let("start", tb.minimum(first, extent - size))
                    yield Covering(start, first - start, size)
            done = stmts.let("done", done + count * size)

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Return the sizes of pieces: few, as each is a copy of the code; half of the largest for the remainder."""
        return tuple(dict.fromkeys((self.largest, -(-self.largest // 2), 1)))

    def pieces_of(self, extent: int) -> list[tuple[int, int]]:
        """Return the size and number of the pieces that cover a range of static size."""
        found, done = [], 0
        for size in self._sizes:
            overlap = 0 if size in (self.largest, 1) else size - 2
            count = max((extent - done + overlap) // size, 0) if extent >= size else 0
            found.append((size, count))
            done += count * size
        return found


@dataclass(frozen=True, eq=False)
class Covering:
    """A piece of a range: its start, the number of its first elements that other pieces have computed, its size."""

    start: Expr
    done: Expr
    size: int


Cut: TypeAlias = "Split | DynamicSplit"


def cut(extent: Extent, limit: int) -> Cut:
    """Divide a range into pieces of at most `limit`."""
    return DynamicSplit(extent, limit) if isinstance(extent, Dim) else balanced(extent, limit)


def pieces(ctx: Context, split: Cut, name: str, sizes: Container[int] | None = None) -> Iterator[tuple[Expr, int]]:
    """Open the loop over each kind of piece in turn, or over those of `sizes`; yield a piece's start and size."""
    for start, count, size in split.pieces:
        if sizes is None or size in sizes:
            with ctx.stmts.loop(count, name) as index:
                yield index * size + start, size


@contextmanager
def covering_pieces(ctx: Context, extent: int, size: int, name: str) -> Iterator[Covering]:
    """Open the loop over the fewest pieces of one size that cover a range; the last one may overlap another."""
    with ctx.stmts.loop(-(-extent // size), name) as index:
        if extent % size == 0:
            yield Covering(index * size, tb.const(0), size)
            return
        start = ctx.stmts.let("start", tb.minimum(index * size, extent - size))
        yield Covering(start, index * size - start, size)


def balanced(extent: int, limit: int) -> Split:
    """Divide `extent` into the fewest pieces of at most `limit`, as equal as possible."""
    count = -(-extent // limit)
    size, large = divmod(extent, count)
    return Split(size, large, count - large)


@dataclass(frozen=True)
class Tile:
    """A tiling of rows x columns x channel vectors."""

    rows: Cut  # the division of the output plane, as are the columns
    columns: Cut
    vectors: int  # vectors of LANES output channels in a block


def accumulators(registers: int) -> int:
    """Return how many vector accumulators fit in addition to the weights and the broadcast value.

    Machines with 16 registers have them of 32 bytes: 7 accumulators are then 14 of their registers.
    """
    return 28 if registers >= 32 else max(1, registers // parts(registers) - 1)


def parts(registers: int) -> int:
    """Return how many machine registers hold one vector: only machines with 32 registers have them of 64 bytes."""
    return 1 if registers >= 32 else 2


def panel_vectors(registers: int) -> list[int]:
    """Return the possible numbers of vectors of a product's panel."""
    return [vectors for vectors in (1, 2, 4) if vectors * 4 <= accumulators(registers)]


def panel_rows(vectors: int, registers: int) -> int:
    """Return the maximum number of pixels, or broadcast values, of a tile of `vectors` vectors.

    If several pixels share the weights, these also occupy registers, which matters only if registers are few.
    """
    fitting = accumulators(registers) // vectors
    return min(fitting if registers >= 32 else max(1, fitting - 1), MOST_PIXELS)


def _usable(allowed: tuple[int, ...], filters: int, registers: int) -> list[int]:
    """Return the numbers of vectors for which there are enough registers and, if there is a choice, channels."""
    most = max(1, -(-filters // LANES)) if len(allowed) > 1 else accumulators(registers)
    return [vectors for vectors in allowed if vectors <= min(most, accumulators(registers))]


def panel(rows: int, registers: int) -> tuple[int, int]:
    """Return the number of broadcast values, and of vectors of `rows` lanes in all, of a product's tile.

    With more vectors, each broadcast value is used more often, unless they are padding.
    """
    count = -(-rows // LANES)
    fitting = [vectors for vectors in panel_vectors(registers) if -(-count // vectors) * vectors <= count + 1]
    vectors = max((vectors for vectors in fitting if vectors == 1 or vectors <= count), default=1)
    return panel_rows(vectors, registers), vectors


def divisors(vectors: int) -> tuple[int, ...]:
    """Return the possible numbers of vectors of tiles that read weights packed for `vectors`."""
    return tuple(number for number in VECTORS if vectors % number == 0)


@cache
def choose(height: Extent, width: Extent, filters: Extent, registers: int, allowed: tuple[int, ...] = VECTORS) -> Tile:
    """Return the tiling with the least estimated time for an output plane of `filters` channels.

    The estimate counts, for each reduction step of a tile, multiply-adds, the latency they hide and loads. Tiles of a
    plane with a dynamic dimension have one row, so that only columns have a remainder. A single row is then assumed to
    be long, and a row of an image to have one of the typical widths. `allowed` are the possible numbers of vectors per
    tile.
    """
    if isinstance(filters, Dim):
        return choose(height, width, min(LONG, bounds(filters)[1]), registers, allowed)
    if isinstance(width, Dim) and not (isinstance(height, int) and height == 1):
        return Tile(cut(height, 1), *_of_dynamic_width(width, filters, registers, allowed))
    if isinstance(height, Dim) or isinstance(width, Dim):
        found = choose(1, min(LONG, bounds(width)[1]), filters, registers, allowed)
        columns = DynamicSplit(width, found.columns.largest) if isinstance(width, Dim) else found.columns
        return Tile(cut(height, 1), columns, found.vectors)
    tiles = [
        Tile(balanced(height, tall), balanced(width, min(width, most // tall)), vectors)
        for vectors in _usable(allowed, filters, registers)
        for most in (panel_rows(vectors, registers),)
        for tall in range(1, min(height, most) + 1)
    ]
    return min(tiles, key=lambda tile: _cost(tile, filters, parts(registers)))


def _of_dynamic_width(width: Dim, filters: int, registers: int, allowed: tuple[int, ...]) -> tuple[DynamicSplit, int]:
    """Return the columns and vectors that have the least estimated time over typical widths of images."""
    each = parts(registers)

    def cost(sizes: tuple[int, int]) -> float:
        wide, vectors = sizes
        split = DynamicSplit(None, wide)
        blocks, rest = divmod(-(-filters // LANES), vectors)
        return sum(
            number * count * _step_cost(size, held * each, each) / extent
            for number, held in ((blocks, vectors), (1, rest)) if held
            for extent in WIDTHS
            for size, count in split.pieces_of(extent)
        )  # fmt: skip

    fitting = [
        (wide, vectors)
        for vectors in _usable(allowed, filters, registers)
        for wide in range(1, panel_rows(vectors, registers) + 1)
    ]
    wide, vectors = min(fitting, key=cost)
    return DynamicSplit(width, wide), vectors


def covering(height: int, width: int, filters: int, registers: int, allowed: tuple[int, ...], weights: int = 1) -> Tile:
    """Return the tiling with tiles of one size, the last of which may overlap others, with the least estimated time.

    `weights` is the number of registers that products need per register of weights: two for bytes, so that a sixth
    pixel of a vector leaves none for its sums.
    """
    each = parts(registers)

    def most(vectors: int) -> int:
        return max(1, (registers - SPARE - weights * each * vectors) // (each * vectors))

    def cost(tile: Tile) -> float:
        tall, wide, vectors = sizes(tile)
        blocks, rest = divmod(-(-filters // LANES), vectors)
        held = [(blocks, vectors * each), (bool(rest), rest * each)]
        steps = sum(count * _step_cost(tall * wide, of_weights, each) for count, of_weights in held)
        return -(-height // tall) * -(-width // wide) * steps

    fitting = [
        Tile(Split(tall, 0, -(-height // tall)), Split(wide, 0, -(-width // wide)), vectors)
        for vectors in allowed
        if vectors == 1 or vectors <= -(-filters // LANES)
        for tall in range(1, min(height, most(vectors)) + 1)
        for wide in range(1, min(width, most(vectors) // tall) + 1)
    ]
    return min(fitting, key=cost)


def fitting(
    height: int, width: int, filters: int, registers: int, allowed: tuple[int, ...] = MEASURED_VECTORS
) -> tuple[tuple[int, int, int], ...]:
    """Return tilings as (rows, columns, vectors) for measurement, the one with the least estimated time first.

    Unlike `choose`, they include tiles of more pixels and other numbers of vectors, for which the estimate is too
    rough.
    """
    found: dict[Tile, float] = {}
    for vectors in _usable(allowed, filters, registers):
        most = max(1, accumulators(registers) // vectors)
        for tall in range(1, min(height, most, MOST_PIXELS) + 1):
            for wide in {min(width, most // tall), min(width, max(1, MOST_PIXELS // tall)), min(width, 4), 1}:
                if tall * wide <= min(most, MOST_MEASURED_PIXELS):
                    tile = Tile(balanced(height, tall), balanced(width, wide), vectors)
                    found[tile] = _cost(tile, filters, parts(registers))
    ranked = sorted(found, key=lambda tile: (found[tile], sizes(tile)))
    return tuple(dict.fromkeys(map(sizes, ranked)))[:MOST_MEASURED]


def sizes(tile: Tile) -> tuple[int, int, int]:
    """Return the rows, columns and vectors of a tiling's largest tile."""
    return tile.rows.largest, tile.columns.largest, tile.vectors


def _cost(tile: Tile, filters: int, width: int) -> float:
    """Return the relative time of one reduction step over the whole plane, with `width` registers per vector."""
    blocks, rest = divmod(-(-filters // LANES), tile.vectors)
    total, copies = 0.0, 0
    for _, row_count, tall in tile.rows.pieces:
        for _, column_count, wide in tile.columns.pieces:
            for count, vectors in ((blocks, tile.vectors), (1 if rest else 0, rest)):
                total += count * row_count * column_count * _step_cost(tall * wide, vectors * width, width)
            copies += 1
    return total * (1 + COPY_COST * copies)


def _step_cost(pixels: int, held: int, width: int) -> float:
    """Return the relative time of one reduction step of a tile with `held` registers of weights."""
    loads = pixels + held
    # processors execute as many 64-byte loads as multiply-adds at a time, and more 32-byte loads
    each, more = (1.0, LOAD_COST) if width == 1 else (0.75, 0.0)
    return max(pixels * held, FMA_SLOTS, loads * each) + more * loads + 0.25 * held


@dataclass(frozen=True)
class PackedBlock:
    """Output channels that the same code computes."""

    first: Any  # first channel of the first block
    count: Any  # equal blocks, one after another
    width: Any  # existing channels of a block; the rest up to ``vectors * LANES`` is padding
    vectors: int
    panel: PackedBlock | None = None  # the block whose weights contain these
    before: int = 0  # vectors of the panel before the first block

    def place(self, group: Any, number: Any, vector: int) -> tuple[Any, Any]:
        """Return the position of the weights of a block's vector: a panel, and the index of the vector in it.

        Vectors after those of the block belong to the following blocks.
        """
        if self.panel is None:
            block = group * self.count + number
            return block + vector // self.vectors if vector >= self.vectors else block, vector % self.vectors
        size, at = self.panel.vectors, number * self.vectors + (self.before + vector)
        return group * self.panel.count + at // size, at % size

    def parts(self, vectors: int) -> tuple[PackedBlock, ...]:
        """Return the blocks of at most `vectors` vectors into which the block's weights are divided when read."""
        if vectors >= self.vectors:
            return (self,)
        lanes = vectors * LANES
        full, rest = divmod(self.width, lanes) if self.count == 1 else (self.count * self.vectors // vectors, 0)
        blocks = [PackedBlock(self.first, full, lanes, vectors, self)] if full else []
        last = self.first + full * lanes, 1, rest, -(-rest // LANES), self, full * vectors
        return (*blocks, PackedBlock(*last)) if rest else tuple(blocks)


def channel_blocks(filters: Extent, vectors: int) -> tuple[PackedBlock, ...]:
    """Divide output channels into full blocks of `vectors` vectors and one for the remainder.

    The remainder of a dynamic number of channels is divided into blocks of one vector.
    """
    if isinstance(filters, Dim):
        lanes, whole = vectors * LANES, filters // LANES
        done = filters // lanes * lanes
        full_vectors = [PackedBlock(done, whole - done // LANES, LANES, 1)] if vectors > 1 else []
        last = filters - whole * LANES
        return (
            PackedBlock(0, filters // lanes, lanes, vectors), *full_vectors,
            PackedBlock(whole * LANES, minimum(last, 1), last, 1),
        )  # fmt: skip
    full, rest = divmod(filters, vectors * LANES)
    blocks = [PackedBlock(0, full, vectors * LANES, vectors)] if full else []
    blocks += [PackedBlock(full * vectors * LANES, 1, rest, -(-rest // LANES))] if rest else []
    return tuple(blocks)


def pack_rows(rows: Array, block: PackedBlock, step: int) -> Array:
    """Pack weights of one group for `block`.

    Parameters
    ----------
    rows : ndarray
        (runs, reduction, filters): each run of the reduction is padded with zeros to a multiple of `step`.
    step : int
        Reduction elements per instruction (4 for dot4).

    Returns
    -------
    ndarray
        (count, runs * ceil(reduction / step), vectors * LANES * step), the `step` elements of a
        channel adjacent.
    """
    runs, reduction, _ = rows.shape
    lanes = block.vectors * LANES
    steps = -(-reduction // step)
    padded = np.zeros((runs, steps * step, block.count, lanes), rows.dtype)
    chosen = rows[:, :, block.first : block.first + block.count * block.width]
    padded[:, :reduction, :, : block.width] = chosen.reshape(runs, reduction, block.count, block.width)
    parts = padded.reshape(runs, steps, step, block.count, lanes).transpose(3, 0, 1, 4, 2)
    return np.ascontiguousarray(parts.reshape(block.count, runs * steps, lanes * step))


def pack_channels(values: Array, block: PackedBlock) -> Array:
    """Pack one value per channel for `block`: (count, vectors * LANES), zero for padding channels."""
    padded = np.zeros((block.count, block.vectors * LANES), values.dtype)
    chosen = values[block.first : block.first + block.count * block.width]
    padded[:, : block.width] = chosen.reshape(block.count, block.width)
    return padded
