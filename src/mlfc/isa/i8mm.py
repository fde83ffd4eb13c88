"""AArch64's matrix products of bytes (FEAT_I8MM): two rows of eight times two rows of eight, added to int32.

A tile is eight pixels x eight filters. The windows of its pixels are copied first, interleaved in pairs by eight bytes
of the reduction; weights have the same layout, with four pairs of filters per vector. The zero point of the data is
folded into the initial sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mlfc.kernels.staging import choose, inside
from mlfc.kernels.templates import Array, Conv, Frame, Weights, frame_of, rows_as_pixels, template
from mlfc.support import dtypes
from mlfc.target.features import CPUS, INSTRUCTION_SETS, Cpu, Features, InstructionSet
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.context import Context, Output
from mlfc.tir.forms import C_FORMS, LLVM_FORMS, CForm, CPrinter, Helper, LlvmForm
from mlfc.tir.intrinsics import INTRINSICS, Intrinsic
from mlfc.tir.ir import Buffer, Expr

NAME = "mmla_s8"
"""``mmla_s8(sums, rows, weights)``: int32x16, int8x16, int8x64; see `_evaluate`."""

BYTES, FILTERS, PIXELS = 8, 8, 8
_SUMS, _ROWS = 2 * FILTERS, 2 * BYTES
_QUADS = _SUMS // 4

# LLVM multiplies bytes of mixed signedness by an instruction of the same extension
_PROBE = """
define i32 @mixed(ptr %p, ptr %q) {
  %a = load <16 x i8>, ptr %p, align 1
  %b = load <16 x i8>, ptr %q, align 1
  %wide_a = zext <16 x i8> %a to <16 x i32>
  %wide_b = sext <16 x i8> %b to <16 x i32>
  %products = mul <16 x i32> %wide_a, %wide_b
  %r = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %products)
  ret i32 %r
}
"""
INSTRUCTION_SETS.add("i8mm", InstructionSet("i8mm", "aarch64", _PROBE, "usdot", "i8mm", before="vector"))
for _name in ("cortex-a510", "cortex-a710", "neoverse-n2", "neoverse-v1", "apple-m2"):
    CPUS.add(_name, Cpu(Features(instruction_sets=("i8mm",))))


def _evaluate(sums: Array, rows: Array, weights: Array) -> Array:
    """Return the sums: each four are the products of either row with two rows of weights."""
    a, b = rows.astype(np.int32).reshape(1, 2, 1, BYTES), weights.astype(np.int32).reshape(_QUADS, 1, 2, BYTES)
    added: Array = sums + (a * b).sum(axis=-1, dtype=np.int32).reshape(-1)
    return added


_DOC = "int32x16 + by fours, two rows of eight int8 times two of eight rows of weights"
INTRINSICS.add(NAME, Intrinsic(NAME, 3, _evaluate, _DOC))

_HELPER = """\
/* adds to each four sums the products of two rows of eight bytes with two rows of weights */
#if defined(__ARM_FEATURE_MATMUL_INT8) && MLF_PARTS == 4
#define mlf_mmla_s8(sums, rows, weights) \\
  ((mlf_i32x16_part)vmmlaq_s32((int32x4_t)(sums), vld1q_s8(rows), (int8x16_t)(weights)))
#elif defined(__ARM_FEATURE_DOTPROD) && MLF_PARTS == 4
#define mlf_mmla_s8(sums, rows, weights) __extension__({ \\
  const int32x4_t mlf_row = vreinterpretq_s32_s8(vld1q_s8(rows)), mlf_filters = (int32x4_t)(weights); \\
  const int8x16_t mlf_a = vreinterpretq_s8_s32(vtrn1q_s32(mlf_row, mlf_row)); \\
  const int8x16_t mlf_c = vreinterpretq_s8_s32(vtrn2q_s32(mlf_row, mlf_row)); \\
  const int8x16_t mlf_b = vreinterpretq_s8_s32(vuzp1q_s32(mlf_filters, mlf_filters)); \\
  const int8x16_t mlf_d = vreinterpretq_s8_s32(vuzp2q_s32(mlf_filters, mlf_filters)); \\
  (mlf_i32x16_part)vdotq_s32(vdotq_s32((int32x4_t)(sums), mlf_a, mlf_b), mlf_c, mlf_d); })
#elif defined(__ARM_FEATURE_SVE_MATMUL_INT8) && MLF_PARTS * __ARM_FEATURE_SVE_BITS == 512
#define mlf_mmla_s8(sums, rows, weights) __extension__({ \\
  typedef svint32_t mlf_words __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS))); \\
  typedef svint8_t mlf_bytes __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS))); \\
  const svint8_t mlf_row = svld1rq_s8(svptrue_b8(), rows); \\
  (mlf_i32x16_part)(mlf_words)svmmla_s32((mlf_words)(sums), mlf_row, (mlf_bytes)(weights)); })
#else
#define mlf_mmla_s8(sums, rows, weights) __extension__({ \\
  mlf_i32x16_part mlf_sums = (sums); \\
  const int8_t *mlf_rows = (rows); \\
  const mlf_i8x64_part mlf_weights = (weights); \\
  for (int32_t mlf_i = 0; mlf_i < 16 / MLF_PARTS; ++mlf_i) { \\
    const int32_t mlf_row = mlf_i / 2 % 2 * 8, mlf_filter = mlf_i / 4 * 16 + mlf_i % 2 * 8; \\
    for (int32_t mlf_k = 0; mlf_k < 8; ++mlf_k) { \\
      mlf_sums[mlf_i] += mlf_rows[mlf_row + mlf_k] * mlf_weights[mlf_filter + mlf_k]; \\
    } \\
  } \\
  mlf_sums; })
#endif"""
_INCLUDES = (
    "#if defined(__ARM_NEON)", "#include <arm_neon.h>", "#endif",
    "#if defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS > 0", "#include <arm_sve.h>", "#endif",
)  # fmt: skip


_HELPERS: dict[str, Helper] = {NAME: ((), _HELPER)}


def _expression(printer: CPrinter, expr: Expr) -> str | None:
    if not isinstance(expr, ir.Call) or expr.name != NAME:
        return None
    sums, rows, weights = expr.args
    assert isinstance(rows, ir.Load)  # guaranteed by the template
    address = printer.address(rows.buffer, rows.indices)
    return f"{printer.need(NAME)}({printer.expr(sums)}, {address}, {printer.expr(weights)})"


C_FORMS.add("i8mm", CForm(_HELPERS.get, _INCLUDES, lambda _: {"int32x16", "int8x64"}, expression=_expression))


def _call(context: Any, name: str, args: Sequence[Any]) -> Any:
    if name != NAME:
        return None
    sums, rows, weights = args
    if not context.machine.instruction("i8mm"):
        return _portable(context, sums, rows, weights)
    results = []
    for quad in range(_QUADS):
        total = context.lanes(sums, range(4 * quad, 4 * quad + 4))
        pair = context.lanes(weights, range(_ROWS * quad, _ROWS * (quad + 1)))
        kinds = [total.type, rows.type, pair.type]
        function = context.declared("llvm.aarch64.neon.smmla.v4i32.v16i8", total.type, kinds)
        results.append(context.builder.call(function, [total, rows, pair]))
    return context.joined(results)


def _portable(context: Any, sums: Any, rows: Any, weights: Any) -> Any:
    builder = context.builder
    for k in range(BYTES):
        left = context.lanes(rows, [lane // 2 % 2 * BYTES + k for lane in range(_SUMS)])
        right = context.lanes(weights, [lane // 4 * _ROWS + lane % 2 * BYTES + k for lane in range(_SUMS)])
        sums = builder.add(sums, builder.mul(builder.sext(left, sums.type), builder.sext(right, sums.type)))
    return sums


LLVM_FORMS.add("i8mm", LlvmForm(_call))


def _accepts(_: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> bool:
    plain = conv.groups == 1 and len(conv.spatial) <= 2 and prod(conv.output) > 1
    # eight channels are multiplied at a time
    return plain and conv.channels >= BYTES and _takes(data, weights, out)


def _takes(data: Buffer, weights: Weights, out: Output) -> bool:
    bytes_only = data.dtype == "int8" and weights.values.dtype.kind in "iu" and out.dtype == "int32"
    return bytes_only and weights.centered().dtype == np.int8


@template("convolution", "i8mm", _accepts)
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over one or two dimensions."""
    _Tiles(ctx, conv.planar(), data, frame_of(len(conv.spatial)), weights, out).emit()


def _accepts_dense(_: Context, data: Buffer, weights: Weights, out: Output) -> bool:
    rows, reduction = prod(data.shape[:-1]), data.shape[-1]
    return len(data.shape) == 2 and rows > 1 and reduction >= BYTES and _takes(data, weights, out)


@template("dense", "i8mm", _accepts_dense)
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns): rows are pixels of one line."""
    conv, seen = rows_as_pixels(data.shape, out.shape[-1])
    _Tiles(ctx, conv, data, seen, weights, out).emit()


@dataclass(eq=False)
class _Tiles:
    """The loops of one convolution over (height, width)."""

    ctx: Context
    conv: Conv
    data: Buffer
    seen: Frame
    weights: Weights
    out: Output

    def __post_init__(self) -> None:
        conv, centered = self.conv, self.weights.centered()
        self.chunks = -(-conv.channels // BYTES)
        self.steps = prod(conv.kernel) * self.chunks
        self.blocks = -(-conv.filters // FILTERS)
        size = self.blocks * FILTERS
        taps = np.zeros((prod(conv.kernel), self.chunks * BYTES, size), np.int8)
        taps[:, : conv.channels, : conv.filters] = centered.reshape(-1, conv.channels, conv.filters)
        # (block, step, filter, byte)
        packed = taps.reshape(self.steps, BYTES, self.blocks, FILTERS).transpose(2, 0, 3, 1)
        self.packed = self.ctx.constant("weights", packed.reshape(self.blocks, self.steps, -1).copy())
        total = np.zeros(size, np.int64)
        total[: conv.filters] = 0 if self.out.bias is None else self.out.bias
        total -= self.weights.data_zero * taps.sum(axis=(0, 1), dtype=np.int64)
        # each pair of filters twice, as it is added for two pixels
        start = np.repeat(total.astype(np.int32).reshape(self.blocks, _QUADS, 1, 2), 2, axis=2)
        self.start = self.ctx.constant("start", start.reshape(self.blocks, _SUMS))
        self.count = prod(conv.output)
        pairs = min(PIXELS, self.count + self.count % 2) // 2
        self.patch = self.ctx.scratch("patch", (pairs, self.steps, _ROWS), "int8")

    def emit(self) -> None:
        """Write all loops."""
        stmts = self.ctx.stmts
        with stmts.loop(self.conv.batch, "image") as image:
            if full := self.count // PIXELS:
                with stmts.loop(full, "tile") as tile:
                    self._tile(image, tile * PIXELS, PIXELS)
            if rest := self.count % PIXELS:
                self._tile(image, tb.const(self.count - rest), rest)

    def _place(self, number: Expr) -> tuple[Expr, Expr]:
        width, stmts = self.conv.output[1], self.ctx.stmts
        return stmts.let("y", number // width), stmts.let("x", number % width)

    def _tile(self, image: Expr, first: Expr, pixels: int) -> None:
        stmts, filters = self.ctx.stmts, self.conv.filters
        with stmts.loop(pixels + pixels % 2, "pixel") as pixel:
            # an odd last pixel is paired with itself
            number = tb.minimum(first + pixel, self.count - 1) if pixels % 2 else first + pixel
            self._fill(image, pixel, self._place(number))
        full, rest = divmod(filters, FILTERS)
        if full:
            with stmts.loop(full, "block") as block:
                self._block(image, first, pixels, block, FILTERS)
        if rest:
            self._block(image, first, pixels, tb.const(full), rest)

    def _fill(self, image: Expr, pixel: Expr, place: tuple[Expr, Expr]) -> None:
        """Write the copy of a pixel's window."""
        stmts, conv = self.ctx.stmts, self.conv
        half = pixel % 2 * BYTES
        with stmts.loop(conv.kernel[0], "ky") as ky, stmts.loop(conv.kernel[1], "kx") as kx:
            at = [
                stmts.let(name, value * stride + tap * dilation - padding[0])
                for name, value, stride, tap, dilation, padding in zip(
                    ("iy", "ix"), place, conv.strides, (ky, kx), conv.dilation, conv.padding, strict=True
                )
            ]
            tap = (ky * conv.kernel[1] + kx) * self.chunks
            places = zip(at, self.conv.spatial, self.conv.padding, strict=True)
            valid = tb.land(*(check for each in places for check in inside(*each)))

            def copied(channel: Expr) -> Expr:
                return tb.load(self.data, self.seen(image, at[0], at[1], channel))

            to, zero = (pixel // 2, tap, half), tb.const(self.weights.data_zero, "int8")
            choose(self.ctx, valid, lambda: self._copy(to, copied), lambda: self._copy(to, lambda _: zero))

    def _copy(self, place: tuple[Expr, Expr, Expr], value: Callable[[Expr], Expr]) -> None:
        stmts, (pair, tap, half) = self.ctx.stmts, place
        whole, rest = divmod(self.conv.channels, BYTES)
        with stmts.loop(whole, "chunk") as chunk, stmts.loop(BYTES, "lane", "vectorized") as lane:
            stmts.store(self.patch, [pair, tap + chunk, half + lane], value(chunk * BYTES + lane))
        if rest:
            with stmts.loop(rest, "lane") as lane:
                stmts.store(self.patch, [pair, tap + whole, half + lane], value(lane + whole * BYTES))
            # zeros for the remainder of the last eight
            with stmts.loop(BYTES - rest, "lane") as lane:
                stmts.store(self.patch, [pair, tap + whole, half + rest + lane], tb.const(0, "int8"))

    def _block(self, image: Expr, first: Expr, pixels: int, block: Expr, width: int) -> None:
        """Write the sums of a block of filters, and their stores."""
        stmts, pairs = self.ctx.stmts, -(-pixels // 2)
        vector = dtypes.vector("int32", _SUMS)
        sums = stmts.local("sums", (pairs,), vector)
        for pair in range(pairs):
            stmts.store(sums, [pair], tb.load(self.start, [block, 0], lanes=_SUMS))
        with stmts.loop(self.steps, "k") as k:
            factors = stmts.let("w", tb.load(self.packed, [block, k, 0], lanes=_SUMS // 2 * BYTES))
            for pair in range(pairs):
                rows = tb.load(self.patch, [pair, k, 0], lanes=_ROWS)
                total = tb.intrinsic(NAME, tb.load(sums, [pair]), rows, factors, dtype=vector)
                stmts.store(sums, [pair], total)
        together, results = (stmts.local(name, (pairs, _SUMS), "int32") for name in ("together", "results"))
        for pair in range(pairs):
            stmts.store(together, [pair, 0], tb.load(sums, [pair]))
        # pixel by pixel, so that the following code is vectorized
        with stmts.loop(pairs, "pair") as both, stmts.loop(2, "half") as half, stmts.loop(_QUADS, "quad") as quad:
            for index in range(2):
                value = tb.load(together, [both, quad * 4 + half * 2 + index])
                stmts.store(results, [both, half * FILTERS + quad * 2 + index], value)
        with stmts.loop(pixels, "pixel") as pixel:
            y, x = self._place(first + pixel)
            with stmts.loop(width, "c", "vectorized") as c:
                value = tb.load(results, [pixel // 2, pixel % 2 * FILTERS + c])
                self.out.store(self.seen(image, y, x, block * FILTERS + c), value)
