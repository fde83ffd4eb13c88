"""Weights quantized to 2, 4 or 8 bits: ``(code - zero point) * scale``, with a zero point and a scale per block.

Kernels sum the products of the data and the differences, which are exact, and multiply each block's sum by the scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.kernels.tiling import LANES, PackedBlock, pack_channels, pack_rows
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Buffer, Const, Expr

Array = npt.NDArray[Any]

LONGEST_BLOCK = 512  # maximum number of reduction steps whose products are added sequentially


@dataclass(frozen=True, eq=False)
class WeightCodes:
    """The quantization parameters of weight codes."""

    bits: int  # 2, 4 or 8
    scale: Array  # float32, (blocks, filters)
    zero: Array  # subtracted from the unsigned codes: (blocks, filters), int32 or float32
    block: int  # reduction steps that share a scale; the last block may be shorter

    @property
    def per_byte(self) -> int:
        """The number of codes in a byte."""
        return 8 // self.bits

    @property
    def per_word(self) -> int:
        """The number of codes in 32 bits."""
        return 32 // self.bits

    @property
    def blocks(self) -> int:
        """The number of scales of a filter."""
        return int(self.scale.shape[0])

    @property
    def zero_literal(self) -> float | None:
        """The zero point of all codes; None if they differ."""
        first = self.zero.flat[0]
        return float(first) if np.all(self.zero == first) else None

    @property
    def signed(self) -> bool:
        """True if all zero points are half of the range, so that the differences can be stored instead."""
        return self.zero_literal == 1 << (self.bits - 1)

    def zero_table(self) -> Array:
        """Return the zero points in the narrowest dtype that can represent them."""
        is_byte = self.zero.dtype != np.float32 and self.zero.min() >= 0 and self.zero.max() <= 255
        return self.zero.astype(np.uint8) if is_byte else self.zero


def unsigned_codes(values: Array, dtype: str) -> npt.NDArray[np.uint8]:
    """Return integers of a dtype of at most 8 bits as unsigned offsets from its minimum."""
    return (values.astype(np.int16) - dtypes.limits(dtype)[0]).astype(np.uint8)


def pack_codes(codes: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Return the codes of the last axis packed into bytes, lowest bits first; the last byte may be partly unused."""
    per_byte = 8 // bits
    width = [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per_byte)]
    padded = np.pad(codes.astype(np.uint8), width)
    packed = padded[..., ::per_byte].copy()
    for index in range(1, per_byte):
        packed |= padded[..., index::per_byte] << (bits * index)
    return packed


def unpack_codes(packed: Array, bits: int, extent: int) -> npt.NDArray[np.uint8]:
    """Return the first `extent` codes of each row of bytes."""
    fields = np.stack([packed >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)], axis=-1)
    return fields.reshape(*packed.shape[:-1], -1)[..., :extent].astype(np.uint8)


def code_at(byte: Expr, which: Expr | int, bits: int) -> Expr:
    """Return a code of a byte, for one lane or several, as int32; `which` counts from the lowest bits."""
    wide, index = tb.cast(byte, "int32"), tb.as_expr(which)
    if bits == 8:
        return wide
    is_last = isinstance(index, Const) and index.value == 8 // bits - 1
    shifted = wide >> (index * bits)
    return shifted if is_last else shifted & ((1 << bits) - 1)


def pack_words(codes: Array, bits: int, *, signed: bool) -> npt.NDArray[np.int32]:
    """Return the codes of the last axis packed into words, lowest bits first; the last word may be partly unused.

    If `signed`, half of the range is subtracted from the codes.
    """
    half = 1 << (bits - 1) if signed else 0
    per_word = 32 // bits
    padded = np.pad(codes ^ half, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per_word)])
    return np.ascontiguousarray(pack_codes(padded, bits)).view("<i4").astype(np.int32)


def code_of_word(word: Expr, which: int, bits: int, *, signed: bool) -> Expr:
    """Return a code of int32 words, for one lane or several; `which` counts from the lowest bits."""
    if signed:
        return word << (32 - bits * (which + 1)) >> (32 - bits)
    return word >> (which * bits) & ((1 << bits) - 1) if which else word & ((1 << bits) - 1)


class PackedPanels:
    """Codes ordered (panel, steps..., filter of the panel), counted from 0, and their zero points and scales."""

    def __init__(self, ctx: Context, codes: WeightCodes, ordered: Array) -> None:
        *outer, inner, self._width = ordered.shape
        self._bits, self._per_byte = codes.bits, codes.per_byte
        # taps are separate axes: only then can accesses be proven to be in bounds
        rows = ordered.reshape(*outer, inner * self._width)
        self._signed = codes.signed and self._width % codes.per_byte == 0
        self._bytes = ctx.constant(
            "weights", pack_codes(rows ^ (1 << (codes.bits - 1)) if self._signed else rows, codes.bits)
        )
        self.blocks, self._size = codes.blocks, codes.block
        self._block: Expr = tb.const(0)
        self._zero = codes.zero_literal
        self._zeros = None if self._zero is not None else self._table(ctx, "zero", codes.zero_table())
        self._scale = None if np.any(codes.scale != codes.scale.flat[0]) else codes.scale.flat[0].item()
        self._scales = None if self._scale is not None else self._table(ctx, "scale", codes.scale)

    def _table(self, ctx: Context, name: str, values: Array) -> Buffer:
        """Return a constant with one number per block and filter, ordered (panel, block, filter of the panel)."""
        panels = values.reshape(self.blocks, -1, self._width)
        return ctx.constant(name, np.ascontiguousarray(np.moveaxis(panels, 1, 0)))

    @contextmanager
    def block_of(self, ctx: Context, extent: int) -> Iterator[tuple[Expr, Expr]]:
        """Open a loop over the blocks of a reduction of `extent` steps; yield the start and the extent of a block."""
        with ctx.stmts.loop(self.blocks, "block") as block:
            self._block = block
            first = block * self._size
            whole = self.blocks * self._size == extent
            yield first, tb.const(self._size) if whole else tb.minimum(self._size, extent - first)

    def weight(self, at: Sequence[Expr]) -> Expr:
        """Return the code at (panel, steps..., filter) less its zero point, as float32: the unscaled weight."""
        panel, *taps, position, lane = at
        if self._width % self._per_byte == 0:
            lane = tb.as_expr(lane)
            place = position * (self._width // self._per_byte) + lane // self._per_byte
            which = lane % self._per_byte
        else:
            position = position * self._width + lane
            place, which = position // self._per_byte, position % self._per_byte
        byte = tb.load(self._bytes, [panel, *taps, place])
        if self._signed:
            assert isinstance(which, Const)
            return tb.cast(code_of_word(tb.cast(byte, "int32"), int(which.value), self._bits, signed=True), "float32")
        code = code_at(byte, which, self._bits)
        if self._zero is not None and self._zero.is_integer() and abs(self._zero) < 1 << 24:
            return tb.cast(code - int(self._zero), "float32")
        if self._zero is not None:
            return tb.cast(code, "float32") - tb.const(self._zero, "float32")
        assert self._zeros is not None
        zero = tb.load(self._zeros, [panel, self._block, lane])
        if zero.dtype == "float32":
            return tb.cast(code, "float32") - zero
        return tb.cast(code - tb.cast(zero, "int32"), "float32")

    def scale(self, panel: Expr, lane: Expr) -> Expr:
        """Return the scale of a filter in the current block."""
        if self._scales is None:
            return tb.const(self._scale or 0.0, "float32")
        return tb.load(self._scales, [panel, self._block, lane])


_FLOATS = f"float32x{LANES}"


@dataclass(frozen=True, eq=False)
class PackedVectors:
    """The constants of a block of channels, ordered (panel, ..., lane), for register tiles.

    A word of each lane has the codes of successive steps. Bytes are not used, as some compilers widen them lane by
    lane.
    """

    codes: WeightCodes
    weights: Buffer
    zeros: Buffer | None  # None if all codes have one zero point
    scales: Buffer

    def load(self, panel: Expr, place: Expr, vector: int) -> Expr:
        """Return the words of a vector of channels."""
        return tb.load(self.weights, [panel, place, vector * LANES], lanes=LANES)

    def zero(self, stmts: tb.StmtBuilder, panel: Expr, block: Expr, vector: int) -> Expr:
        """Return the zero points of a vector of channels in a block of the reduction, bound to a variable if loaded."""
        if self.zeros is None:
            return tb.const(self.codes.zero_literal or 0.0, _FLOATS)
        zero = tb.load(self.zeros, [panel, block, vector * LANES], lanes=LANES)
        return stmts.let("zero", tb.cast(zero, "float32"))

    def scale(self, panel: Expr, block: Expr, vector: int) -> Expr:
        """Return the scales of a vector of channels in a block of the reduction."""
        return tb.load(self.scales, [panel, block, vector * LANES], lanes=LANES)

    def weight(self, word: Expr, which: int, zero: Expr) -> Expr:
        """Return codes of loaded words less their zero points: unscaled weights."""
        code = tb.cast(code_of_word(word, which, self.codes.bits, signed=self.codes.signed), "float32")
        return code if self.codes.signed else code - zero


class VectorPacking:
    """The layout in which codes of each run of the reduction, (runs, steps, groups, filters of a group), are packed.

    Each block of the reduction with separate scales starts at a word boundary, and so does each piece of a long sum.
    """

    def __init__(self, codes: WeightCodes, rows: Array) -> None:
        self.codes, self._rows = codes, rows
        self._runs, steps, *_ = rows.shape
        is_long = self._runs * steps > 2 * LONGEST_BLOCK
        self.block = codes.block if codes.blocks > 1 else LONGEST_BLOCK if is_long else steps
        self.whole, self.rest = divmod(steps, self.block)
        self.in_pieces = codes.blocks > 1 or is_long
        self.block_words = -(-self.block // codes.per_word)
        self.run_words = self.whole * self.block_words + -(-self.rest // codes.per_word)

    def pack(self, ctx: Context, block: PackedBlock) -> PackedVectors:
        """Return the constants of a block of channels."""
        groups = range(self._rows.shape[2])
        words = np.concatenate([self._packed(self._rows[:, :, group], block) for group in groups])
        zeros = None
        if self.codes.zero_literal is None:
            zeros = ctx.constant("zero", self._table(self.codes.zero_table(), block))
        scales = ctx.constant("scale", self._table(self.codes.scale, block))
        return PackedVectors(self.codes, ctx.constant("weights", words), zeros, scales)

    def _packed(self, rows: Array, block: PackedBlock) -> Array:
        """Return the words of one group, (count, runs * words, lanes)."""
        lanes = pack_rows(rows, block, 1).reshape(block.count, self._runs, rows.shape[1], -1)
        cut = self.whole * self.block
        parts = []
        if self.whole:
            blocks = lanes[:, :, :cut].reshape(block.count, self._runs, self.whole, self.block, lanes.shape[-1])
            words = self._words(np.moveaxis(blocks, 3, -1))
            parts.append(np.moveaxis(words, -1, 3).reshape(block.count, self._runs, -1, lanes.shape[-1]))
        if self.rest:
            words = self._words(np.moveaxis(lanes[:, :, cut:], 2, -1))
            parts.append(np.moveaxis(words, -1, 2))
        joined = np.concatenate(parts, axis=2)
        return np.ascontiguousarray(joined.reshape(block.count, -1, lanes.shape[-1]))

    def _words(self, codes: Array) -> Array:
        return pack_words(codes, self.codes.bits, signed=self.codes.signed)

    def _table(self, values: Array, block: PackedBlock) -> Array:
        """Return one number per block of the reduction and channel, (groups * count, blocks, lanes)."""
        groups = self._rows.shape[2]
        by_group = values.reshape(self.codes.blocks, groups, -1)
        tables = [
            np.stack([pack_channels(by_group[index, group], block) for index in range(self.codes.blocks)], axis=1)
            for group in range(groups)
        ]
        return np.concatenate(tables)
