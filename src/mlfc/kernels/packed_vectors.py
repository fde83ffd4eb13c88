"""Packed weights as register tiles read them: a word of each lane holds codes of successive steps of the reduction.

A wider step than a byte, because some compilers widen vectors of bytes lane by lane.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlfc.kernels.codes import LONGEST_BLOCK, Array, WeightCodes, code_of_word, pack_words
from mlfc.kernels.tiling import LANES, PackedBlock, pack_channels, pack_rows
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Buffer, Expr

_FLOATS = f"float32x{LANES}"


@dataclass(frozen=True, eq=False)
class PackedVectors:
    """The constants of a block of channels, ordered (panel, ..., lane)."""

    codes: WeightCodes
    weights: Buffer
    zeros: Buffer | None  # None where all codes have one zero point
    scales: Buffer

    def load(self, panel: Expr, place: Expr, vector: int) -> Expr:
        """Return the words of a vector of channels."""
        return tb.load(self.weights, [panel, place, vector * LANES], lanes=LANES)

    def zero(self, panel: Expr, block: Expr, vector: int) -> Expr:
        """Return the zero points of a vector of channels in a block of the reduction."""
        literal = self.codes.zero_literal
        if literal is not None:
            return tb.const(literal, _FLOATS)
        assert self.zeros is not None
        return tb.cast(tb.load(self.zeros, [panel, block, vector * LANES], lanes=LANES), "float32")

    def scale(self, panel: Expr, block: Expr, vector: int) -> Expr:
        """Return the scales of a vector of channels in a block of the reduction."""
        return tb.load(self.scales, [panel, block, vector * LANES], lanes=LANES)

    def weight(self, word: Expr, which: int, zero: Expr) -> Expr:
        """Return codes of loaded words less their zero points, which are weights but for their scales."""
        code = tb.cast(code_of_word(word, which, self.codes.bits, signed=self.codes.signed), "float32")
        return code if self.codes.signed else code - zero


class VectorPacking:
    """How the codes of each run of the reduction, (runs, steps, groups, filters of a group), are cut and packed.

    Blocks of the reduction that have scales of their own start with a word of their own. So do pieces of long sums.
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
        """Return one number a block of the reduction and channel, (groups * count, blocks, lanes)."""
        groups = self._rows.shape[2]
        by_group = values.reshape(self.codes.blocks, groups, -1)
        tables = [
            np.stack([pack_channels(by_group[index, group], block) for index in range(self.codes.blocks)], axis=1)
            for group in range(groups)
        ]
        return np.concatenate(tables)
