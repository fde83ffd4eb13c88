"""Convolutions of 3x3 windows in float32 by Winograd's algorithm, which needs fewer products.

Loops from outside in: image, band of rows of tiles, all inputs of which are transformed, block of output channels,
position in a tile. Products are those of tiles x channels, by the register tile; weights are transformed when packed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mlfc.kernels import arithmetic, staging, tiling
from mlfc.kernels.conv_tile import TiledConv, TilePosition
from mlfc.kernels.templates import WINOGRAD, Array, Conv, Weights, line, planar, template
from mlfc.kernels.tiling import LANES, PackedBlock
from mlfc.support import dims, dtypes
from mlfc.support.dims import Dim, bounds
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

TAPS = 3
TOLERANCE = 1e-5  # relative to the largest result: a layer whose error may be larger is computed without transforms
CHECKED_TILES = 2


@dataclass(frozen=True)
class WinogradForm:
    """A tile size: ``results x results`` outputs read ``size x size`` inputs; values may have any type with addition.

    Inputs, weights and products are polynomials that are evaluated at 0, at pairs of points ``p`` and ``-p``, and at
    infinity. The points determine the rounding errors: 3/4 and 3/2 keep those of 4x4 outputs within about twice those
    of the direct sum, compared to six times for the usual 1 and 2. As one point is twice the other, their powers are
    exact. No sum has two products whose rounding compilers could fuse in either order.
    """

    pairs: tuple[float, ...]

    @property
    def size(self) -> int:
        """The number of inputs along a side of a tile, and of products."""
        return 2 * len(self.pairs) + 2

    @property
    def results(self) -> int:
        """The number of outputs along a side of a tile."""
        return self.size - TAPS + 1

    def input(self, values: Sequence[Any]) -> list[Any]:
        """Return the transform of `size` inputs."""
        squares = [pair * pair for pair in self.pairs]
        found = [_monic(values[::2], squares)]
        for index, pair in enumerate(self.pairs):
            others = squares[:index] + squares[index + 1 :]
            even, odd = _monic(values[2::2], others), _monic(values[1:-1:2], others)
            found += [even + odd * pair, even + odd * -pair]
        return [*found, _monic(values[1::2], squares)]

    def output(self, values: Sequence[Any]) -> list[Any]:
        """Return the `results` outputs of `size` sums of products."""
        sums = [values[place] + values[place + 1] for place in range(1, self.size - 1, 2)]
        apart = [values[place] + values[place + 1] * -1.0 for place in range(1, self.size - 1, 2)]
        found = []
        for power in range(self.results):
            total, *others = apart if power % 2 else sums
            for pair, value in zip(self.pairs[1:], others, strict=True):
                factor = (pair / self.pairs[0]) ** power
                total = total + (value if factor == 1 else value * factor)
            total = total if self.pairs[0] ** power == 1 else total * self.pairs[0] ** power
            total = values[0] + total if power == 0 else total
            found.append(values[-1] + total if power == self.results - 1 else total)
        return found

    def weights(self, values: Array) -> Array:
        """Return the transform of weights (3, 3, ...) as (size, size, ...): computed in float64, rounded once."""
        down = self._of_taps(list(values.astype(np.float64)))
        return np.stack([np.stack(self._of_taps(list(row))) for row in down]).astype(np.float32)

    def _of_taps(self, taps: Sequence[Array]) -> list[Array]:
        squares = [pair * pair for pair in self.pairs]
        found = [taps[0] / prod(-square for square in squares)]
        for index, (pair, square) in enumerate(zip(self.pairs, squares, strict=True)):
            others = squares[:index] + squares[index + 1 :]
            share = 2 * square * prod(square - other for other in others)
            for point in (pair, -pair):
                found.append((taps[0] + taps[1] * point + taps[2] * square) / share)
        return [*found, taps[2]]

    def error(self, weights: Array) -> float:
        """Return the maximum float32 error for seeded random data, relative to the largest result."""
        channels, filters = weights.shape[2:]
        size, results = self.size, self.results
        data = np.random.default_rng(0).standard_normal((size, size, CHECKED_TILES, channels), np.float32)
        by_column = [self.input(list(data[:, x])) for x in range(size)]
        inputs = np.stack([np.stack(self.input([column[y] for column in by_column])) for y in range(size)])
        factors = self.weights(weights)
        total = np.zeros((size, size, CHECKED_TILES, filters), np.float32)
        for channel in range(channels):
            total += inputs[..., channel, None] * factors[:, :, None, channel]
        columns = [self.output(list(total[:, x])) for x in range(size)]
        found = np.stack([np.stack(self.output([column[y] for column in columns])) for y in range(results)])
        wide, kernel = data.astype(np.float64), weights.astype(np.float64)
        expected = sum(
            np.tensordot(wide[y : y + results, x : x + results], kernel[y, x], 1)
            for y in range(TAPS)
            for x in range(TAPS)
        )
        largest = float(np.abs(expected).max())
        return float(np.abs(found - expected).max()) / largest if largest else 0.0


FORMS = (WinogradForm((0.75, 1.5)), WinogradForm((1.0,)))
"""Tiles of 4x4 results, which need a quarter of the products, and of 2x2, which need four ninths."""


_ERRORS: dict[tuple[WinogradForm, bytes], float] = {}
_MOST_ERRORS = 4096


def is_close(form: WinogradForm, weights: Array) -> bool:
    """Return whether the form's results are within `TOLERANCE` for these weights."""
    key = (
        form,
        hashlib.blake2b(np.ascontiguousarray(weights).data, digest_size=16, key=repr(weights.shape).encode()).digest(),
    )
    if key not in _ERRORS:
        if len(_ERRORS) >= _MOST_ERRORS:
            _ERRORS.clear()
        _ERRORS[key] = form.error(weights)
    return _ERRORS[key] <= TOLERANCE


def _monic(values: Sequence[Any], squares: Sequence[float]) -> Any:
    """Return the sum of values times the coefficients of the product of all ``x - square``, the last of which is 1."""
    coefficients = [1.0]
    for square in squares:
        shifted, lower = [0.0, *coefficients], [*coefficients, 0.0]
        coefficients = [a - square * b for a, b in zip(shifted, lower, strict=True)]
    *others, total = values[: len(coefficients)]
    for value, coefficient in reversed(list(zip(others, coefficients, strict=False))):
        total = total + value * coefficient
    return total


LARGE_WEIGHTS = 16 * 1024 * 1024  # size in bytes of transformed weights that does not fit in caches with the data
LEAST_BAND_BYTES, MOST_BAND_BYTES = 512 * 1024, 4 * 1024 * 1024  # of transformed inputs

Choice: TypeAlias = "tuple[WinogradForm, int]"


def choices(ctx: Context, conv: Conv, data: Buffer, weights: Weights) -> list[Choice]:
    """Return the forms of a layer, each with its minimum side of images, in descending order of that side.

    The choice depends only on channels and weights, so that dynamic code uses the same forms as static code. Small
    tiles read fewer weights, which takes most of the time if there are many weights and few tiles.
    """
    is_usual = conv.kernel == (TAPS, TAPS) and conv.strides == conv.dilation == (1, 1) and conv.groups == 1
    is_known = data.dtype in ("float32", *dtypes.HALVES)
    if not (ctx.features.winograd and is_usual and is_known) or ctx.small or weights.runtime_tensor is not None:
        return []
    if weights.codes is not None or weights.values.dtype != np.float32 or not isinstance(conv.filters, int):
        return []
    if not isinstance(conv.channels, int) or conv.channels % LANES:
        return []
    is_large = FORMS[0].size ** 2 * conv.channels * conv.filters * 4 > LARGE_WEIGHTS
    sides = (18, 4) if is_large else (6, 6)
    close = [(form, side) for form, side in zip(FORMS, sides, strict=True) if is_close(form, weights.values)]
    return close if is_large else close[:1]


def _accepts(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    found = choices(ctx, conv, data, weights) if out.dtype == "float32" else []
    return bool(found) and all(bounds(extent)[1] >= found[-1][1] for extent in conv.output)


@template("convolution", WINOGRAD, _accepts)
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution by transforms, in all forms that a dynamic image size may require."""
    _by_side(ctx, conv, (data, weights, out), choices(ctx, conv, data, weights))


def _by_side(ctx: Context, conv: Conv, args: tuple[Buffer, Weights, Output], found: Sequence[Choice]) -> None:
    """Write the form for the size of the output, and the choice among forms if the size is dynamic."""
    data, weights, out = args
    if not found:
        TiledConv(ctx, conv, arithmetic.float32(weights, data.dtype), (data, planar), out).emit()
        return
    (form, side), *others = found
    if any(bounds(extent)[1] < side for extent in conv.output):
        _by_side(ctx, conv, args, others)
    elif all(bounds(extent)[0] >= side for extent in conv.output):
        WinogradConv(ctx, conv, form, data, weights, out).emit()
    else:
        with ctx.stmts.when(tb.land(*(tb.binary("ge", tb.as_expr(extent), side) for extent in conv.output))):
            WinogradConv(ctx, conv, form, data, weights, out).emit()
        with ctx.stmts.otherwise():
            _by_side(ctx, conv, args, others)


class _Products(TiledConv):
    """The products of a band: for each position in a tile, tiles x channels; a position is a group."""

    can_share_pieces = False
    can_stage = False
    joins = False

    def __init__(self, ctx: Context, conv: Conv, how: arithmetic.Arithmetic, inputs: Buffer, out: Output) -> None:
        super().__init__(ctx, conv, how, (inputs, planar), replace(out, bias=None))
        self.sums = ctx.scratch("sums", (conv.groups, conv.output[1], self.tile.vectors * LANES), "float32")

    def packed(self, block: PackedBlock) -> tuple[Array, Array | None]:
        """Return the weights of a block in the order in which they are read: positions inside blocks."""
        weights, start = super().packed(block)
        by_place = weights.reshape(self.conv.groups, -1, *weights.shape[1:])
        return np.ascontiguousarray(by_place.swapaxes(0, 1)).reshape(weights.shape), start

    def weights_at(self, block: PackedBlock, group: Expr, number: Expr, vector: int) -> tuple[Any, Any]:
        """Return the panel of a block's vector, and the index of the vector in it."""
        panel, own = block.place(tb.const(0), number, vector)
        return panel * self.conv.groups + group, own

    def reader(self, place: TilePosition) -> Callable[[int, int, tuple[Expr, Expr, Expr]], Expr]:
        """Return the function that reads the transformed input of a tile."""
        return lambda _, x, at: tb.load(self.data, [place.group, place.column + x, at[2]])

    def finish(self, place: TilePosition, block: PackedBlock, number: Expr, sums: Buffer, together: int = 1) -> None:
        """Store the sums for the output transform."""
        del number, together
        for index in range(sums.size):
            at = [place.group, place.column + index // block.vectors, index % block.vectors * LANES]
            self.ctx.stmts.store(self.sums, at, tb.load(sums, [index]))

    def write(self, tiles: Any, block: PackedBlock, number: Expr, weights: Buffer) -> None:
        """Write the products of the first `tiles` tiles of the band with a block of channels."""
        columns = self.tile.columns
        if isinstance(columns, tiling.DynamicSplit):
            columns = tiling.DynamicSplit(tiles, columns.largest)
        with self.ctx.stmts.loop(self.conv.groups, "place") as group:
            place = TilePosition(tb.const(0), group, tb.const(0), tb.const(0), tb.const(0), 1, 0)
            if self.ctx.features.compact and isinstance(tiles, int):  # one kind of tile: sums may be stored again
                registers, filters = self.ctx.features.vector_registers, self.conv.group_filters
                size = tiling.covering(1, tiles, filters, registers, (block.vectors,)).columns.largest
                with tiling.covering_pieces(self.ctx, tiles, size, "tx") as piece:
                    self.write_tile(replace(place, column=piece.start, wide=size), block, number, weights, None)
                return
            for x, wide in tiling.pieces(self.ctx, columns, "tx"):
                self.write_tile(replace(place, column=x, wide=wide), block, number, weights, None)


class _TileBand(NamedTuple):
    """A band's first row of tiles, the number of its rows of tiles, and the image."""

    image: Expr
    first: Expr
    rows: Any


class WinogradConv:
    """Writes the loops of one layer."""

    def __init__(
        self, ctx: Context, conv: Conv, form: WinogradForm, data: Buffer, weights: Weights, out: Output
    ) -> None:
        self.ctx, self.conv, self.form, self.data, self.out = ctx, conv, form, data, out
        self.down, self.across = ((extent + (form.results - 1)) // form.results for extent in conv.output)
        places = form.size * form.size
        self.rows = self._rows()
        tiles = self.rows * self.across
        self.inputs = ctx.scratch("inputs", (places, tiles, conv.channels), "float32")
        wide = line(1, tiles, places * conv.channels, places * conv.filters, places)
        # the transformed weights as those of a convolution with one tap and a group for each position
        factors = form.weights(weights.values).reshape(-1, conv.channels, conv.filters).transpose(1, 0, 2)
        how = arithmetic.float32(Weights(np.ascontiguousarray(factors).reshape(1, 1, conv.channels, -1)))
        self.products = _Products(ctx, wide, how, self.inputs, out)
        self.bias = ctx.constant("bias", out.bias) if out.bias is not None and out.bias.any() else None

    def _rows(self) -> Any:
        """Return the number of rows of tiles of a band."""
        per_row = self.form.size**2 * self.across * self.conv.channels * 4
        weights = self.form.size**2 * self.conv.channels * self.conv.filters * 4
        limit = min(max(weights // 2, LEAST_BAND_BYTES), MOST_BAND_BYTES)
        most = dims.maximum(limit // per_row, 1)
        if isinstance(self.down, Dim) or isinstance(most, Dim):
            return dims.minimum(most, self.down)
        fitting = [rows for rows in range(self.down, 0, -1) if self.down % rows == 0]
        usual = next(rows for rows in fitting if rows <= most)
        chosen = self.ctx.choose("band", usual, lambda: [usual, *(rows for rows in fitting if rows != usual)])
        return chosen if isinstance(chosen, int) else usual

    def emit(self) -> None:
        """Write all loops."""
        stmts, products = self.ctx.stmts, self.products
        blocks = [
            (block, weights)
            for panel in tiling.channel_blocks(self.conv.filters, products.panel or products.tile.vectors)
            for weights, _ in [products.pack(panel)]
            for block in panel.parts(products.tile.vectors)
        ]
        with stmts.loop(self.conv.batch, "image") as image, self._bands(image) as band:
            stmts.refill(self.inputs)
            self._transform_inputs(band)
            for block, weights in blocks:
                with stmts.loop(block.count, "block") as number:
                    stmts.refill(products.sums)
                    products.write(band.rows * self.across, block, number, weights)
                    self._transform_sums(band, block, number)

    @contextmanager
    def _bands(self, image: Expr) -> Iterator[_TileBand]:
        stmts, rows, down = self.ctx.stmts, self.rows, self.down
        if isinstance(rows, int) and isinstance(down, int):
            with stmts.loop(down // rows, "band") as index:
                yield _TileBand(image, index * rows, rows)
            return
        whole = stmts.let("rows", tb.as_expr(rows))
        with stmts.loop((down + (whole - 1)) // whole, "band") as index:
            first = index * whole
            yield _TileBand(image, first, stmts.let("here", tb.minimum(whole, down - first)))

    @contextmanager
    def _tiles(self, band: _TileBand) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Open the loops over a band's tiles; yield a tile's first output row and column, and its index."""
        stmts, results = self.ctx.stmts, self.form.results
        with stmts.loop(band.rows, "ty") as y, stmts.loop(self.across, "tx") as x:
            yield (band.first + y) * results, x * results, y * self.across + x

    def _transform_inputs(self, band: _TileBand) -> None:
        """Write the input transform of the band."""
        stmts, size, channels = self.ctx.stmts, self.form.size, self.conv.channels
        lanes = next(lanes for lanes in (64, 48, 32, 16) if channels % lanes == 0)
        with self._tiles(band) as (row, column, number), stmts.loop(channels // lanes, "part") as part:
            patch = stmts.local("patch", (size, size, lanes), "float32")
            self._copy_patch(patch, (band.image, row, column), part * lanes)
            with stmts.loop(lanes // LANES, "vector") as vector:
                half = stmts.local("half", (size, size, LANES), "float32")
                with stmts.loop(size, "x") as x:
                    values = [self._loaded(patch, [place, x, vector * LANES]) for place in range(size)]
                    for place, value in enumerate(self.form.input(values)):
                        stmts.store(half, [place, x, 0], value)
                with stmts.loop(size, "y") as y:
                    values = [self._loaded(half, [y, place, 0]) for place in range(size)]
                    for place, value in enumerate(self.form.input(values)):
                        # bound to a variable: gcc does not fuse a product and sum separated by branches of the address
                        named = stmts.let("sum", value)
                        stmts.store(self.inputs, [y * size + place, number, part * lanes + vector * LANES], named)

    def _copy_patch(self, patch: Buffer, at: tuple[Expr, Expr, Expr], first: Expr) -> None:
        """Write the copy of a tile's inputs, with zeros outside the image."""
        stmts, conv, (size, _, lanes) = self.ctx.stmts, self.conv, patch.shape
        image, top, left = at

        def checks(index: Expr, axis: int) -> list[Expr]:
            return staging.inside(index, conv.spatial[axis], (conv.padding[axis][0], 1))

        with stmts.loop(size, "y") as y, stmts.loop(size, "x") as x:
            row = stmts.let("row", top + y - conv.padding[0][0])
            column = stmts.let("column", left + x - conv.padding[1][0])

            def copy(is_inside: bool) -> None:
                with stmts.loop(lanes, "c", "vectorized") as c:
                    at = planar(image, row, column, first + c)
                    stmts.store(patch, [y, x, c], tb.cast(tb.load(self.data, at), "float32") if is_inside else 0)

            staging.choose(
                self.ctx, tb.land(*checks(row, 0), *checks(column, 1)), lambda: copy(True), lambda: copy(False)
            )

    def _transform_sums(self, band: _TileBand, block: PackedBlock, number: Expr) -> None:
        """Write the output transform of the sums of a block of channels, and pass the results to the output."""
        stmts, conv, size, results = self.ctx.stmts, self.conv, self.form.size, self.form.results
        with self._tiles(band) as (row, column, tile):
            found = stmts.local("results", (results, results, block.vectors * LANES), "float32")
            with stmts.loop(block.vectors, "vector") as vector:
                half = stmts.local("half", (results, size, LANES), "float32")
                with stmts.loop(size, "x") as x:
                    at = [[place * size + x, tile, vector * LANES] for place in range(size)]
                    values = [self._loaded(self.products.sums, indices) for indices in at]
                    for place, value in enumerate(self.form.output(values)):
                        stmts.store(half, [place, x, 0], value)
                stmts.fence("products above are rounded before they are added to anything", half)
                with stmts.loop(results, "y") as y:
                    values = [self._loaded(half, [y, place, 0]) for place in range(size)]
                    for place, value in enumerate(self.form.output(values)):
                        stmts.store(found, [y, place, vector * LANES], value)
            stmts.fence("products above are rounded before they are added to anything", found)
            first = number * block.width + block.first
            tall = tb.minimum(results, conv.output[0] - row)
            wide = tb.minimum(results, conv.output[1] - column)
            with stmts.loop(tall, "py") as y, stmts.loop(wide, "px") as x:
                with stmts.loop(block.width, "c", "vectorized") as c:
                    value = tb.load(found, [y, x, c])
                    value = value if self.bias is None else value + tb.load(self.bias, [first + c])
                    self.out.store(planar(band.image, row + y, column + x, first + c), value)

    def _loaded(self, buffer: Buffer, at: list[Any]) -> Expr:
        return self.ctx.stmts.let("v", tb.load(buffer, at, lanes=LANES))
