"""Convolutions and dense layers of 8-bit data and of bfloat16 by AMX tiles.

The loops, the copy of the input and the packed weights are those of the register tile (`mlfc.kernels.conv_tile`), so
processors with and without tiles read the same weights. Rows of a data tile are pixels, which overlap in memory if
their windows do. If the distance between successive pixels of a band's copy is constant, tiles cover all pixels of the
band, including the border columns, whose results are discarded. Otherwise each row has separate tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mlfc.kernels import arithmetic, tiling
from mlfc.kernels.arithmetic import Arithmetic
from mlfc.kernels.conv_tile import TiledConv
from mlfc.kernels.staging import LEAST_BAND_BYTES as FEWEST_BYTES
from mlfc.kernels.staging import MOST_BAND_BYTES, Band, Channels, Source, StagedForm, fitting_rows
from mlfc.kernels.templates import Array, Conv, Weights, frame_of, rows_as_pixels, template
from mlfc.kernels.tiling import PackedBlock, channel_blocks, pack_channels
from mlfc.support import dtypes
from mlfc.support.dims import Extent, is_static
from mlfc.target.features import Value
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.intrinsics import INTRINSICS, Intrinsic
from mlfc.tir.ir import Buffer, Expr

OPEN, CLOSE = "tiles_open", "tiles_close"
ROWS, DEPTH, FILTERS = 16, 16, 16
"""Maximum sizes of a tile: rows, groups of four bytes per row, and filters whose weights are adjacent."""
MOST_SUMS = 4
"""Maximum number of tiles of sums in use at once."""


@dataclass(frozen=True)
class TileElements:
    """Element types of the tiles, by the name of the intrinsic."""

    name: str
    group: int  # elements of the data, and weights of a filter, in four bytes
    data: str
    weight: str
    sum: str


BYTES = TileElements("tiles_u8s8", 4, "uint8", "int8", "int32")
BFLOATS = TileElements("tiles_bf16", 2, "bfloat16", "bfloat16", "float32")
"""Products of two bfloat16 are exact; their sums differ from those of vectors.

Sums are rounded to float32 in a different order, and subnormal sums are flushed to zero.
"""
KINDS = {kind.name: kind for kind in (BYTES, BFLOATS)}


class Walk(NamedTuple):
    """The access pattern of data and weights: the numbers of an intrinsic's operands, in elements.

    Row r of tile i starts at ``next * i + pixel * r``. From there, each of `lines` (`pitch` apart) has `taps` (`hop`
    apart), each of which has ``steps * depth`` groups of `group` elements. Weights are contiguous in this order:
    ``16 * group * wide`` for each group, the first of which are multiplied.
    """

    rows: int  # of a tile
    depth: int  # groups of a row per product
    pixel: int
    next: int
    lines: int
    pitch: int
    taps: int
    hop: int
    steps: int
    wide: int

    @property
    def groups(self) -> int:
        """The number of groups of a tap."""
        return self.steps * self.depth

    def data_size(self, down: int, group: int) -> int:
        """Return the number of data elements from the first to the last one that `down` tiles read."""
        ends = ((down - 1) * self.next, (self.rows - 1) * self.pixel, (self.lines - 1) * self.pitch)
        return sum(ends) + (self.taps - 1) * self.hop + group * self.groups

    def weights_size(self, across: int, group: int) -> int:
        """Return the number of weights from the first to the last of `across` vectors of filters."""
        return ((self.lines * self.taps * self.groups - 1) * self.wide + across) * FILTERS * group


def _products(kind: TileElements, _: Array, start: Array, data: Array, weights: Array, *numbers: Array) -> Array:
    """Return the sums, row by row, of all filters of `start`, for as many tiles as the data has."""
    walk = Walk(*(int(number) for number in numbers))
    across, size = start.size // FILTERS, FILTERS * kind.group
    # the distance between tiles matters only if there are several
    down = next(count for count in range(1, MOST_SUMS + 1) if walk.data_size(count, kind.group) == data.size)
    values, wide = data.astype(kind.sum), weights.astype(kind.sum)
    total = np.tile(start, (down * walk.rows, 1))
    firsts = np.add.outer(np.arange(down) * walk.next, np.arange(walk.rows) * walk.pixel).reshape(-1)
    place = 0
    for line in range(walk.lines):
        for tap in range(walk.taps):
            for group in range(walk.groups):
                at = firsts + (line * walk.pitch + tap * walk.hop + kind.group * group)
                own = wide[place : place + size * across].reshape(FILTERS * across, kind.group)
                total += values[at[:, None] + np.arange(kind.group)] @ own.T
                place += size * walk.wide
    return total.reshape(-1)


INTRINSICS.add(OPEN, Intrinsic(OPEN, 2, lambda rows, _: np.ones_like(rows), "opens tiles: 1 if there are any, else 0"))
INTRINSICS.add(CLOSE, Intrinsic(CLOSE, 1, np.zeros_like, "closes the tiles that are open"))
for _kind in KINDS.values():
    _doc = f"tiles, start, data, weights, ten numbers: {_kind.sum} sums of products of {_kind.data} and {_kind.weight}"
    INTRINSICS.add(_kind.name, Intrinsic(_kind.name, 14, partial(_products, _kind), f"{_doc} (see mlfc.isa.amx)"))

LEAST_BAND_BYTES = 32 * 1024
"""Of the copy: the time to configure tiles for a band should be negligible."""

PAIR = 2  # vectors of a panel, which share rows of data
_COPIED = {BYTES.data: (64, 32, 16, 8, 1), BFLOATS.data: (32, 16, 8, 1)}  # elements that are copied at once

# approximate costs in cycles
_STEP, _ROW, _VECTOR = 8.0, 0.94, 14.0  # of a product: fixed, per row of data, per tile of weights
_SPLIT = 3.0  # factor for a row that spans two cache lines
_TILE = 30.0  # to initialize and store a tile of sums
_STORED = 3.0  # to load a vector of stored sums, and compute its destination
_BAND = 250.0  # to configure and release tiles
_DOT4, _DOT4_IN_ROWS = 0.5, 0.7  # of a sum of four products of 16 filters by vectors; for kernels with several rows
_GAIN = 0.85  # maximum share of the vectors' time
_LINE_BYTES = 64


def _split(count: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first, count, size) of the parts of a count: as many of the largest size as fit, then the remainder."""
    if count >= most:
        yield 0, count // most, most
    if count % most:
        yield count - count % most, 1, count % most


@dataclass(frozen=True)
class PixelLines:
    """The numbering of a band's pixels: in `count` lines of `size` pixels."""

    is_band: bool  # a line is the whole band, whose rows are as wide as those of the copy
    count: int
    size: int
    rows: int  # pixels of a tile

    @property
    def tiles(self) -> int:
        """The number of tiles of a line, the last of which may have padding pixels."""
        return -(-self.size // self.rows)


@dataclass(frozen=True)
class AmxPlan:
    """The sizes of loops and buffers, computed before code is written."""

    kind: TileElements
    conv: Conv  # over (height, width), in one group, with the channels of the copy
    channels: int  # of the input
    height: int  # rows of a band
    columns: int  # of the copy
    lines: PixelLines
    walk: Walk  # in a line; `wide` is for one vector

    @property
    def pitch(self) -> int:
        """The number of elements from one row of the copy to the next."""
        return self.columns * int(self.conv.channels)

    def start(self, line: Any, pixel: Any) -> Any:
        """Return the element of the copy where the window of a pixel starts."""
        return line * (self.conv.strides[0] * self.pitch) + pixel * self.walk.pixel

    @property
    def copy_size(self) -> int:
        """The number of elements of the copy, including those read for padding pixels and after the last window."""
        rows = (self.height - 1) * self.conv.strides[0] + self.conv.extents[0]
        tiles, walk = self.lines.tiles, self.walk
        last = self.start(self.lines.count - 1, (tiles - 1) * walk.rows) + walk.data_size(1, self.kind.group)
        return max(rows * self.pitch, int(last))

    def cycles(self, lines: PixelLines) -> float:
        """Return the estimated cycles of a band's products."""
        walk, total = self.walk, 0.0
        steps, apart = walk.lines * walk.taps * walk.steps, walk.pixel * dtypes.nbytes(self.kind.data)
        row = _ROW * (_SPLIT if apart > _LINE_BYTES and apart % _LINE_BYTES else 1.0)
        for _, parts, across in _split(-(-self.conv.filters // FILTERS), PAIR):
            for _, count, down in _split(lines.tiles, MOST_SUMS // across):
                cycles = steps * (_STEP + row * down * lines.rows + _VECTOR * across) + _TILE * down * across
                total += parts * count * cycles
        return lines.count * total

    @property
    def pays(self) -> bool:
        """True if tiles take less time than vectors or, for bfloat16, than scalar loops."""
        conv, walk = self.conv, self.walk
        if self.kind is BFLOATS:
            return True
        vectors = prod(conv.output) * -(-conv.filters // FILTERS)
        ours = conv.output[0] // self.height * (_BAND + self.cycles(self.lines)) + _STORED * vectors
        each = _DOT4 if walk.lines == 1 else _DOT4_IN_ROWS
        return bool(ours < _GAIN * each * vectors * walk.lines * walk.taps * walk.groups)


def planned(conv: Conv, how: Arithmetic) -> AmxPlan:
    """Return the sizes for a convolution over (height, width)."""
    # the copy has the channels of the weights, which may have one more
    channels, conv = int(conv.channels), replace(conv, channels=how.weights.shape[-2])
    width = conv.output[1]
    columns = (width - 1) * conv.strides[1] + conv.extents[1]
    pitch, pixel = columns * conv.channels, conv.strides[1] * conv.channels
    kind = next(kind for kind in KINDS.values() if kind.data == how.staged_dtype)
    most = min(max(how.weights.nbytes, LEAST_BAND_BYTES), MOST_BAND_BYTES)
    band = fitting_rows(conv, most // (pitch * dtypes.nbytes(kind.data)))
    as_runs = conv.dilation[1] == 1
    taps = 1 if as_runs else conv.kernel[1]
    groups = -(-conv.channels * (conv.kernel[1] if as_runs else 1) // how.step)
    depth = max(depth for depth in range(1, DEPTH + 1) if groups % depth == 0)
    walk = Walk(
        ROWS, depth, pixel, 0, conv.kernel[0], conv.dilation[0] * pitch, taps, conv.dilation[1] * conv.channels,
        groups // depth, 1,
    )  # fmt: skip
    ways = [_lines(False, band, width)]
    if conv.strides == (1, 1):
        ways.append(_lines(True, 1, (band - 1) * columns + width))
    first = AmxPlan(kind, conv, channels, band, columns, ways[0], walk)
    lines = min(ways, key=first.cycles)
    return replace(first, lines=lines, walk=walk._replace(rows=lines.rows, next=lines.rows * pixel))


def _lines(is_band: bool, count: int, size: int) -> PixelLines:
    tiles = -(-size // ROWS)
    return PixelLines(is_band, count, size, -(-size // tiles))


class _InLine(Band):
    """The copy of a band of rows whose pixels and rows are contiguous."""

    def __init__(self, ctx: Context, source: Source, form: StagedForm, plan: AmxPlan) -> None:
        super(Band, self).__init__(ctx, plan.conv, source, form)
        self.length, self.rows, self.is_dynamic, self._channels = plan.pitch, plan.height, False, plan.channels
        self.buffer = ctx.scratch("staged", (plan.copy_size,), form.dtype)

    def at(self, slot: Expr, element: Expr) -> list[Expr]:
        """Return the index of an element of a row of the copy."""
        return [slot * self.length + element]

    def channels(self) -> Channels:
        """Return the channels that are copied; an additional one is zero."""
        return Channels(self._channels, lambda c: c)

    def copy(
        self, buffer: Buffer, channels: int, read: Callable[[Expr, int], Expr], to: Callable[[Expr], list[Expr]]
    ) -> None:
        """Write the copy of a pixel in vectors: compilers do not vectorize loops over bytes inside conditions."""
        stmts, done = self.ctx.stmts, 0
        for lanes in _COPIED[self.form.dtype]:
            count = (channels - done) // lanes
            if count:
                with stmts.loop(count, "c") as index:
                    c = index * lanes + done
                    value = read(c, lanes)
                    if dtypes.element(value.dtype) != self.form.dtype:
                        top = tb.const(0x80, "uint8")
                        flipped = top if lanes == 1 else tb.broadcast(top, lanes)
                        value = tb.cast(value, dtypes.vector("uint8", lanes)) ^ flipped
                    stmts.store(buffer, to(c), value)
            done += count * lanes


@dataclass(frozen=True, eq=False)
class _FilterGroup:
    """Filters whose sums are computed together: some vectors of a panel."""

    panel: PackedBlock
    number: Expr  # of the panel
    first: Expr  # first vector
    vectors: int
    width: int  # filters of each of these parts of the panel
    weights: Buffer
    start: Buffer


class TileConv(TiledConv):
    """Writes the loops of one convolution over (height, width)."""

    can_share_pieces = False

    def __init__(self, ctx: Context, conv: Conv, how: Arithmetic, source: Source, out: Output) -> None:
        self._plan = planned(conv, how)
        super().__init__(ctx, self._plan.conv, how, source, out)
        self._totals = ctx.scratch("sums", (MOST_SUMS * self._plan.walk.rows * FILTERS,), self._plan.kind.sum)

    def band_of(self, form: StagedForm, most: int) -> Band:
        """Return the copy of the input of a band of rows."""
        del most
        return _InLine(self.ctx, (self.data, self.seen), form, self._plan)

    def choose_tile(self, band: Extent) -> tiling.Tile:
        """Return the band's tiling by vectors, for which weights are packed."""
        length = self._plan.pitch + self.how.step - 1
        band = fitting_rows(self.conv, min(max(self.how.weights.nbytes, FEWEST_BYTES), MOST_BAND_BYTES) // length)
        return self._measured_tile(band, self.ctx.features.vector_registers, self.vectors, packing=True)

    def _orders(self) -> Sequence[Value]:
        return ["blocks"]

    def _unrolls(self) -> Sequence[Value]:
        return [1]

    def pack(self, block: PackedBlock) -> tuple[Buffer, Buffer]:
        """Return the weights of a panel in one row, and the initial values of its sums."""
        packed, start = self.packed(block)
        if start is None:
            start = pack_channels(np.zeros(self.conv.filters, self._plan.kind.sum), block)
        return self.ctx.constant("weights", packed.reshape(-1)), self.ctx.constant("start", start)

    def emit(self) -> None:
        """Write all loops."""
        stmts, walk, stage = self.ctx.stmts, self._plan.walk, self.stage
        assert stage is not None  # bytes are always copied
        panels = [(panel, *self.pack(panel)) for panel in channel_blocks(self.conv.filters, self.tile.vectors)]
        with stmts.loop(self.conv.batch, "image") as image, self._bands() as (row, rows):
            stmts.refill(stage.buffer, self._totals)
            stage.fill(image, row, rows)
            tiles = stmts.filled("tiles", 1, "int32", tb.intrinsic(OPEN, tb.const(walk.rows), tb.const(walk.depth)))
            for panel, weights, start in panels:
                with stmts.loop(panel.count, "block") as number:
                    for first, count, vectors in _split(panel.vectors, PAIR):
                        width = min(panel.width - first * FILTERS, vectors * FILTERS)
                        last = panel.width - (first + (count - 1) * vectors) * FILTERS
                        even = count if last >= vectors * FILTERS else count - 1
                        if even:
                            with stmts.loop(even, "part") as index:
                                at = index * vectors + first
                                part = _FilterGroup(panel, number, at, vectors, width, weights, start)
                                self._pixels((image, row), tiles, part)
                        if even < count:
                            at = tb.const(first + even * vectors)
                            part = _FilterGroup(panel, number, at, vectors, last, weights, start)
                            self._pixels((image, row), tiles, part)
            stmts.store(tiles, [0], tb.intrinsic(CLOSE, tb.load(tiles, [0])))

    def _pixels(self, band: tuple[Expr, Expr], tiles: Buffer, part: _FilterGroup) -> None:
        """Write the loops over the pixels of a band."""
        stmts, lines = self.ctx.stmts, self._plan.lines
        with stmts.loop(lines.count, "line") as line:
            for first, count, down in _split(lines.tiles, MOST_SUMS // part.vectors):
                left = lines.size - first * lines.rows
                even = min(count, left // (down * lines.rows))
                if even:
                    with stmts.loop(even, "tile") as index:
                        pixel = (index * down + first) * lines.rows
                        self._products(band, (line, pixel), tiles, part, down, down * lines.rows)
                if even < count:
                    pixel = tb.const((first + even * down) * lines.rows)
                    self._products(band, (line, pixel), tiles, part, down, left - even * down * lines.rows)

    def _products(
        self, band: tuple[Expr, Expr], at: tuple[Expr, Expr], tiles: Buffer, part: _FilterGroup, down: int, pixels: int
    ) -> None:
        """Write the sums of some tiles, and the stores of those of existing pixels."""
        stmts, plan, stage, panel = self.ctx.stmts, self._plan, self.stage, part.panel
        assert stage is not None
        wide, across = panel.vectors, part.vectors * FILTERS
        walk = plan.walk._replace(wide=wide)
        group = plan.kind.group
        size = FILTERS * group
        before = part.number * (walk.lines * walk.taps * walk.groups * size * wide) + part.first * size
        operands = [
            tb.load(tiles, [0]),
            tb.load(part.start, [part.number, part.first * FILTERS], lanes=across),
            tb.load(stage.buffer, [plan.start(*at)], lanes=walk.data_size(down, group)),
            tb.load(part.weights, [before], lanes=walk.weights_size(part.vectors, group)),
        ]
        sums = dtypes.vector(plan.kind.sum, down * walk.rows * across)
        stmts.store(self._totals, [0], tb.intrinsic(plan.kind.name, *operands, *map(tb.const, walk), dtype=sums))
        first = part.number * panel.width + panel.first + part.first * FILTERS
        with stmts.loop(pixels, "pixel") as pixel:
            number = at[1] + pixel
            if not plan.lines.is_band:
                self._store(band, (at[0], number), pixel * across, first, part.width)
                return
            y, x = stmts.let("y", number // plan.columns), stmts.let("x", number % plan.columns)
            if plan.columns == self.conv.output[1]:
                self._store(band, (y, x), pixel * across, first, part.width)
                return
            with stmts.when(tb.binary("lt", x, self.conv.output[1])):
                self._store(band, (y, x), pixel * across, first, part.width)

    def _store(self, band: tuple[Expr, Expr], at: tuple[Expr, Expr], sums: Expr, first: Expr, width: int) -> None:
        """Write the stores of the filters of a pixel."""
        image, row = band
        with self.ctx.stmts.loop(width, "c", "vectorized") as c:
            value = self.finished(tb.load(self._totals, [sums + c]), first + c)
            self.out.store(self.seen(image, row + at[0], at[1], first + c), value)


def _how(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> Arithmetic | None:
    """Return the arithmetic, or None if another one is as fast or required."""
    if conv.groups > 1 or len(conv.spatial) > 2 or prod(conv.output) == 0:
        return None
    if not is_static((*conv.spatial, conv.channels, conv.filters)):
        return None
    is_bfloat = data.dtype == out.dtype == BFLOATS.data
    how = _bfloats(ctx, conv, weights) if is_bfloat else arithmetic.choose(data.dtype, weights, ctx.features)
    if how is None or how.step == 1 or (how.accumulator != out.dtype and not is_bfloat):
        return None
    return how if planned(conv.planar(), how).pays else None


def _bfloats(ctx: Context, conv: Conv, weights: Weights) -> Arithmetic | None:
    """Return the arithmetic of bfloat16, which has a different order of additions."""
    known = weights.runtime_tensor is None and dtypes.from_numpy(weights.values.dtype) == BFLOATS.weight
    if not known or not ctx.features.winograd:
        return None
    values, run = weights.values, conv.channels * (conv.planar().kernel[1] if conv.dilation[-1] == 1 else 1)
    if run % BFLOATS.group:
        # elements after a run are multiplied by zero if its last group is incomplete, and infinities would become NaN:
        # so pixels have an additional channel of zeros
        values = np.concatenate([values, np.zeros_like(values[..., :1, :])], axis=-2)
    return Arithmetic(
        values, BFLOATS.sum, BFLOATS.group, BFLOATS.data, True, 0, 0, lambda value: value, lambda total, *_: total
    )


def _emit(ctx: Context, conv: Conv, source: Source, how: Arithmetic, out: Output) -> None:
    """Write a convolution over (height, width); sums of bfloat16 are rounded when they are stored."""
    if how.accumulator != out.dtype:
        narrow, bias = out, None if out.bias is None else out.bias.astype(how.accumulator)

        def store(at: Sequence[Expr], value: Expr) -> None:
            narrow.store(at, tb.cast(value, narrow.dtype))

        out = Output(out.shape, how.accumulator, store, bias)
    TileConv(ctx, conv, how, source, out).emit()


def _accepts(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    return _how(ctx, conv, data, weights, out) is not None


@template("convolution", "amx", _accepts)
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over one or two dimensions."""
    how = _how(ctx, conv, data, weights, out)
    assert how is not None  # guaranteed by `_accepts`
    _emit(ctx, conv.planar(), (data, frame_of(len(conv.spatial))), how, out)


def _accepts_dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> bool:
    if not is_static(data.shape):
        return False
    return _how(ctx, rows_as_pixels(data.shape, weights.values.shape[-1])[0], data, weights, out) is not None


@template("dense", "amx", _accepts_dense)
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns): rows are pixels of one line."""
    conv, frame = rows_as_pixels(data.shape, weights.values.shape[-1])
    how = _how(ctx, conv, data, weights, out)
    assert how is not None  # guaranteed by `_accepts_dense`
    _emit(ctx, conv, (data, frame), how, out)
