"""Copies of the input of a strip of output pixels, laid out so that each pixel's window is one run of bytes.

The strip holds columns of the input: of each, one pixel of every kernel row. Windows of neighbouring output pixels
overlap in whole columns, so a column is copied once for all of them. Borders are filled with the zero point: nothing
that reads the strip tests for them.
"""

from __future__ import annotations

from mlfc.kernels.geometry import Conv, Frame
from mlfc.kernels.staging import choose, inside
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Buffer, Expr

STACK_BYTES, SCRATCH_BYTES = 640, 2048
"""Most bytes of a strip on the stack, and in the workspace, if the stack has room for few pixels only."""

FEW_PIXELS, MOST_PIXELS = 8, 16


class StripCopy:
    """The copy, for output pixels that are side by side.

    Parameters
    ----------
    conv : Conv
        Two spatial dimensions, no dilation.
    channels : int
        Channels of the input that the strip holds of each pixel.
    pitch : int
        Bytes from one pixel of a column to the next.
    zero : int
        The value on the borders.
    slack : int
        Bytes behind the last window that may be read.
    """

    def __init__(
        self,
        ctx: Context,
        conv: Conv,
        source: tuple[Buffer, Frame],
        channels: int,
        pitch: int,
        zero: int,
        slack: int = 0,
    ) -> None:
        self.ctx, self.conv, self.channels, self.pitch, self.zero = ctx, conv, channels, pitch, zero
        self.data, self.seen = source
        self.column = conv.kernel[0] * pitch
        # where windows do not touch, the columns between them are left out
        self.step = min(conv.strides[1], conv.kernel[1])
        on_stack = self._fitting(STACK_BYTES - slack)
        in_scratch = self._fitting(SCRATCH_BYTES - slack)
        small = on_stack >= min(in_scratch, FEW_PIXELS)
        self.pixels = on_stack if small else in_scratch
        self.columns = (self.pixels - 1) * self.step + conv.kernel[1]
        size = self.columns * self.column + slack
        if size <= STACK_BYTES:
            self.buffer = ctx.stmts.local("strip", (size,), "int8")
        else:
            self.buffer = ctx.scratch("strip", (size,), "int8")

    def _fitting(self, limit: int) -> int:
        """Return for how many pixels a strip within so many bytes is, one at least: a divisor of the row."""
        width, kernel = self.conv.output[1], self.conv.kernel[1]
        most = min((limit // self.column - kernel) // self.step + 1, MOST_PIXELS)
        return max((count for count in range(1, min(width, most) + 1) if width % count == 0), default=1)

    def window(self, pixel: Expr | int) -> Expr:
        """Return where the window of a pixel of the strip starts."""
        return tb.as_expr(pixel) * (self.step * self.column)

    def fill(self, image: Expr, row: Expr, first: Expr, channel: Expr) -> None:
        """Write the loops that copy the windows of the output pixels of `row` from `first` on, from `channel` on."""
        stmts, conv = self.ctx.stmts, self.conv
        with stmts.loop(conv.kernel[0], "ky", "rolled") as ky:
            y = stmts.let("y", row * conv.strides[0] + ky - conv.padding[0][0])
            if self.step == conv.strides[1]:
                base = stmts.let("base", first * conv.strides[1] - conv.padding[1][0])
                with stmts.loop(self.columns, "column", "rolled") as column:
                    self._copy(ky, column, (image, y, base + column), channel)
                return
            with stmts.loop(self.pixels, "pixel", "rolled") as pixel, stmts.loop(conv.kernel[1], "kx") as kx:
                x = (first + pixel) * conv.strides[1] + kx - conv.padding[1][0]
                self._copy(ky, pixel * conv.kernel[1] + kx, (image, y, x), channel)

    def _copy(self, ky: Expr, column: Expr, place: tuple[Expr, Expr, Expr], channel: Expr) -> None:
        conv = self.conv
        image, y, x = place
        to = column * self.column + ky * self.pitch
        places = zip((y, x), conv.spatial, conv.padding, strict=True)
        valid = tb.land(*(check for each in places for check in inside(*each)))
        dtype = f"int8x{self.channels}" if self.channels > 1 else "int8"
        load = tb.load(self.data, self.seen(image, y, x, channel), lanes=self.channels)
        blank = tb.const(self.zero, dtype)
        choose(self.ctx, valid, lambda: self._run(to, load), lambda: self._run(to, blank))

    def _run(self, to: Expr, value: Expr) -> None:
        single = self.channels == 1
        self.ctx.stmts.store(self.buffer, [to], value if single else tb.intrinsic("run", value))
