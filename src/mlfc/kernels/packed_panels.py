"""Packed weights as scalar loops read them: panels of a few filters, whose codes follow each other for each tap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from mlfc.kernels.codes import Array, WeightCodes, code_at, code_of_word, pack_codes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Buffer, Const, Expr


class PackedPanels:
    """Codes, ordered (panel, steps..., filter of the panel) from 0 on, and their zero points and scales."""

    def __init__(self, ctx: Context, codes: WeightCodes, ordered: Array) -> None:
        *outer, inner, self._width = ordered.shape
        self._bits, self._per_byte = codes.bits, codes.per_byte
        # taps keep axes of their own: only so it can be proven that what reads them stays inside
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
        """Return a constant of one number a block and filter, ordered (panel, block, filter of the panel)."""
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
        """Return the code at (panel, steps..., filter) less its zero point, as float32: a weight but for its scale."""
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
        """Return the scale of a filter in the open block."""
        if self._scales is None:
            return tb.const(self._scale or 0.0, "float32")
        return tb.load(self._scales, [panel, self._block, lane])
