"""Quantized operators with loops of their own: ``qnn.softmax``, ``qnn.avg_pool2d``, ``qnn.mean``, ``qnn.prod``.

Each computes what TFLite's reference kernel of the operator computes.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels.folding import Fold
from mlfc.kernels.rows import PlainRows, rows_of
from mlfc.ops import qnn_in_tvm, qnn_softmax16
from mlfc.ops.pool import pool_windows
from mlfc.ops.qnn import infer_of_codes, reduced_multiplier, rescaled, saturate, scales_and_zeros
from mlfc.ops.rules import check_choice, declare, normalized_axes, normalized_axis, optional_dtype
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind, Layout
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, bounds
from mlfc.support.fixed_point import (
    INT32_MAX,
    RECIPROCAL_SLOPE,
    RECIPROCAL_START,
    doubling_high_mul,
    exp_on_negative_values,
    input_radius,
    quantize_multiplier,
)
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Reader, Tensor
from mlfc.tir.extents import as_index
from mlfc.tir.ir import Expr

# formats of TFLite's fixed-point softmax: of the differences to the largest input, and of the sum of their exponentials
_DIFFERENCE_BITS = 5
_SUM_BITS = 12
_CHANNELS_AT_ONCE = 64
_NEARLY_ONE = 1e-3  # how far TFLite lets the scale of 16-bit probabilities be off


def _infer_softmax(name: str, attrs: Attrs, data: TensorType, *pairs: TensorType) -> TensorType:
    normalized_axis(name, attrs["axis"], len(data.shape))
    dtype = optional_dtype(attrs["out_dtype"], data.dtype)
    check_choice(name, "out_dtype", dtype, (data.dtype, "int16"))
    return TensorType(infer_of_codes(name, attrs, data, *pairs).shape, dtype)


def exponentials(scale: float) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return exp(scale * d) in Q0 for d = -255 ... 0, as TFLite's softmax computes it."""
    real = min(scale * (1 << (31 - _DIFFERENCE_BITS)), float(INT32_MAX))
    multiplier, shift = quantize_multiplier(real)
    smallest = -input_radius(_DIFFERENCE_BITS, shift)

    def exponential(difference: int) -> int:
        if difference < smallest:
            return 0
        # a scale this small would shift right, which the reference does not do
        return exp_on_negative_values(doubling_high_mul(difference << max(shift, 0), multiplier), _DIFFERENCE_BITS)

    return np.array([exponential(difference) for difference in range(-255, 1)], np.int32)


class _ShortRows(PlainRows):
    """Rows of bytes on hosts, where several accumulators are not worth their code."""

    def folded(self, name: str, shape: tuple[int, ...], read: Reader, fold: Fold) -> Expr:
        """Write the fold of a whole row with one accumulator."""
        stmts = self.ctx.stmts
        result = stmts.local(name, (1,), fold.dtype)
        stmts.store(result, [0], tb.const(fold.neutral, fold.dtype))
        with self.elements(shape, "k") as row:
            stmts.store(result, [0], fold.step(tb.load(result, [0]), read(row)))
        return tb.load(result, [0])


def _emit_softmax(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
    data, stmts = inputs[0], ctx.stmts
    in_scale, _, out_scale, out_zero = scales_and_zeros("qnn.softmax", inputs)
    if data.dtype == "int16":
        _emit_softmax16(ctx, inputs, attrs, out)
        return
    low, high = dtypes.limits(out.dtype)
    steps = 1 << dtypes.bits(out.dtype)
    is_unit = out_scale * steps == 1 if out.dtype != "int16" else abs(out_scale * steps - 1) <= _NEARLY_ONE
    if not is_unit or out_zero != low:
        raise UnsupportedError(f"qnn.softmax needs the output scale 1/{steps} and zero point {low}")
    axis = normalized_axis("qnn.softmax", attrs["axis"], len(out.shape))
    table = ctx.constant("exponentials", exponentials(in_scale))
    length = out.shape[axis]
    rows = rows_of(ctx, length) if ctx.features.gpu else _ShortRows(ctx)
    with rows.over((*out.shape[:axis], *out.shape[axis + 1 :])) as others:

        def at(index: Expr) -> list[Expr]:
            return [*others[:axis], index, *others[axis:]]

        def element(k: Expr) -> Expr:
            return tb.cast(data.read(at(k)), "int32")

        best = Fold("int32", dtypes.limits(data.dtype)[0], tb.maximum, lambda found: found)
        largest = rows.folded("largest", (length,), lambda row: element(*row), best)
        offset = stmts.let("offset", tb.const(255) - largest)

        def exponential(k: Expr) -> Expr:
            # the largest input bounds the index, which the verifier cannot see: the clamp proves it and changes nothing
            return tb.load(table, [tb.clamp(element(k) + offset, 0, 255)])

        def rounded(k: Expr) -> Expr:
            """Return an exponential in the format of the sum; written so that it cannot overflow."""
            term = stmts.let("term", exponential(k))
            return (term >> _SUM_BITS) + ((term >> (_SUM_BITS - 1)) & 1)

        add = Fold("int32", 0, lambda a, b: a + b, lambda total: total)
        total = rows.folded("total", (length,), lambda row: rounded(*row), add)
        scale, exponent = _reciprocal(ctx, total, dtypes.bits(out.dtype))
        with rows.elements((length,), "k") as (k,):
            product = tb.intrinsic("rounding_doubling_high_mul", scale, exponential(k))
            code = tb.intrinsic("rounding_divide_by_pot", product, exponent) + low
            out.store(at(k), tb.cast(tb.minimum(code, high), out.dtype))


def _emit_softmax16(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
    in_scale, in_zero, out_scale, out_zero = scales_and_zeros("qnn.softmax", inputs)
    if in_zero or out_zero or abs(out_scale * (1 << 15) - 1) > _NEARLY_ONE:
        raise UnsupportedError("qnn.softmax of int16 needs zero points of 0 and the output scale 1/32768")
    axis = normalized_axis("qnn.softmax", attrs["axis"], len(out.shape))
    rows = rows_of(ctx, out.shape[axis]) if ctx.features.gpu else _ShortRows(ctx)
    qnn_softmax16.emit(ctx, inputs[0], axis, in_scale, out, rows)


def _reciprocal(ctx: Context, total: Expr, code_bits: int) -> tuple[Expr, Expr]:
    """Return 1 / total (in Q12) as a Q0 factor and the right shift that brings factor * Q0 to a code."""
    stmts = ctx.stmts
    bits = stmts.let("bits", tb.cast(total, "uint32"), "uint32")
    headroom = stmts.let("headroom", tb.intrinsic("clz32", bits, dtype="int32"))
    fraction = tb.cast((bits << headroom) - (1 << 31), "int32")
    half_denominator = stmts.let("half_denominator", (fraction >> 1) + (1 << 30))
    x = tb.intrinsic("rounding_doubling_high_mul", half_denominator, tb.const(RECIPROCAL_SLOPE)) + RECIPROCAL_START
    x = stmts.let("x", x)
    for _ in range(3):
        error = tb.const(1 << 29) - tb.intrinsic("rounding_doubling_high_mul", half_denominator, x)
        x = stmts.let("x", x + tb.intrinsic("rounding_doubling_high_mul", x, error) * 4)
    factor = stmts.let("factor", tb.select(tb.binary("ge", x, 1 << 30), INT32_MAX, x * 2))
    # sums beyond Q12 would shift by more than a word; the code is 0 there
    exponent = stmts.let("exponent", tb.minimum(tb.const(_SUM_BITS + 31 - code_bits) - headroom, 31))
    return factor, exponent


def _axes_of(layout: str) -> tuple[int, int]:
    if layout not in ("NHWC", "NCHW"):
        raise TypeCheckError(f"qnn.avg_pool2d: layout must be NHWC or NCHW, not {layout}")
    return layout.index("H"), layout.index("W")


def _infer_avg_pool(name: str, attrs: Attrs, data: TensorType, *pairs: TensorType) -> TensorType:
    infer_of_codes(name, attrs, data, *pairs)
    if len(data.shape) != 4 or len(attrs["padding"]) != 4 or tuple(attrs["dilation"]) != (1, 1):
        raise TypeCheckError(f"{name} takes 4 dimensions, 4 paddings and no dilation")
    if attrs["ceil_mode"] or attrs["count_include_pad"]:
        raise TypeCheckError(f"{name} takes neither ceil_mode nor count_include_pad")
    shape = list(data.shape)
    for position, axis in enumerate(_axes_of(attrs["layout"])):
        before, after = attrs["padding"][position], attrs["padding"][position + 2]
        size, stride = attrs["pool_size"][position], attrs["strides"][position]
        room = data.shape[axis] + before + after - size
        if stride < 1 or size < 1 or room < 0 or not 0 <= before < size or not 0 <= after < size:
            raise TypeCheckError(f"{name}: window {size}, stride {stride} do not fit {data} padded {before}, {after}")
        shape[axis] = room // stride + 1
    return TensorType(tuple(shape), data.dtype)


def _window(
    ctx: Context, index: Expr, extent: int, count: int, *, size: int, stride: int, before: int
) -> tuple[Any, Any]:
    """Return first index and length of a pooling window within the data."""
    if before == 0 and bounds(extent - (count - 1) * stride - size)[0] >= 0:
        return index * stride, tb.const(size)
    start = index * stride - before
    first = ctx.stmts.let("first", tb.maximum(start, 0))
    return first, ctx.stmts.let("length", tb.minimum(start + size, extent) - first)


def _emit_avg_pool(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
    name, data, stmts = "qnn.avg_pool2d", inputs[0], ctx.stmts
    if attrs["layout"] != "NHWC":
        raise UnsupportedError(f"{name} is lowered from NHWC, not {attrs['layout']}")
    in_scale, in_zero, out_scale, out_zero = scales_and_zeros(name, inputs)
    batch, height, width, channels = out.shape
    at_once = 1 if ctx.features.gpu or isinstance(channels, Dim) else min(channels, _CHANNELS_AT_ONCE)
    block = next(size for size in range(at_once, 0, -1) if channels % size == 0)
    (top, left), sizes, strides = attrs["padding"][:2], attrs["pool_size"], attrs["strides"]
    with stmts.loop(batch, "n") as n, stmts.loop(height, "y") as y, stmts.loop(width, "x") as x:
        y0, rows = _window(ctx, y, data.shape[1], height, size=sizes[0], stride=strides[0], before=top)
        x0, columns = _window(ctx, x, data.shape[2], width, size=sizes[1], stride=strides[1], before=left)
        count = stmts.let("count", rows * columns)
        with stmts.loop(channels // block, "c_block") as outer:
            sums = stmts.local("sums", (block,), "int32")
            with stmts.loop(block, "c", "vectorized") as c:
                stmts.store(sums, [c], 0)
            with stmts.loop(rows, "ky") as ky, stmts.loop(columns, "kx") as kx:
                with stmts.loop(block, "c", "vectorized") as c:
                    value = data(n, y0 + ky, x0 + kx, outer * block + c)
                    stmts.store(sums, [c], tb.load(sums, [c]) + tb.cast(value, "int32"))
            with stmts.loop(block, "c", "vectorized") as c:
                mean = _rounded_quotient(tb.load(sums, [c]), count)
                if (in_scale, in_zero) != (out_scale, out_zero):
                    mean = rescaled(mean - in_zero, in_scale / out_scale) + out_zero
                out.store([n, y, x, outer * block + c], saturate(mean, out.dtype))


def _rounded_quotient(total: Expr, count: Expr) -> Expr:
    """Return total / count rounded to nearest, ties away from zero."""
    half = tb.binary("truncdiv", count, 2)
    nudged = tb.select(tb.binary("gt", total, 0), total + half, total - half)
    return tb.binary("truncdiv", nudged, count)


def _infer_mean(name: str, attrs: Attrs, data: TensorType, *pairs: TensorType) -> TensorType:
    infer_of_codes(name, attrs, data, *pairs)
    axes = normalized_axes(name, attrs["axis"], len(data.shape), exclude=attrs["exclude"])
    kept = [1 if axis in axes else extent for axis, extent in enumerate(data.shape)]
    if not attrs["keepdims"]:
        kept = [extent for axis, extent in enumerate(data.shape) if axis not in axes]
    return TensorType(tuple(kept), data.dtype)


def _mean_multiplier(ctx: Context, ratio: float, count: Extent) -> tuple[Expr, Expr]:
    """Return multiplier and shift of ratio / count, divided in integers as TFLite does."""
    multiplier, shift = quantize_multiplier(ratio)
    if isinstance(count, int):
        extra = min(count.bit_length() - 1, 32, 31 + shift)
        return tb.const((multiplier << extra) // count), tb.const(shift - extra)
    let, divisor = ctx.stmts.let, tb.maximum(as_index(count), 1)
    length = tb.const(31) - tb.intrinsic("clz32", tb.cast(divisor, "uint32"), dtype="int32")
    more = let("extra", tb.minimum(length, min(32, 31 + shift)))
    wide = tb.const(multiplier, "int64") << more
    return let("multiplier", tb.cast(wide // tb.cast(divisor, "int64"), "int32")), let("shift", tb.const(shift) - more)


def _emit_mean(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
    data, stmts = inputs[0], ctx.stmts
    in_scale, in_zero, out_scale, out_zero = scales_and_zeros("qnn.mean", inputs)
    axes = normalized_axes("qnn.mean", attrs["axis"], len(data.shape), exclude=attrs["exclude"])
    count = prod(data.shape[axis] for axis in axes)
    multiplier, shift = _mean_multiplier(ctx, in_scale / out_scale, count)
    with ctx.loops(out.shape) as point:
        total = stmts.local("total", (1,), "int32")
        stmts.store(total, [0], -in_zero * count)
        with stmts.loops([data.shape[axis] for axis in axes], "k") as inner:
            kept = iter(point if not attrs["keepdims"] else [i for a, i in enumerate(point) if a not in axes])
            reduced = iter(inner)
            index = [next(reduced) if axis in axes else next(kept) for axis in range(len(data.shape))]
            stmts.store(total, [0], tb.load(total, [0]) + tb.cast(data.read(index), "int32"))
        value = tb.intrinsic("requantize_double", tb.load(total, [0]), multiplier, shift)
        out.store(list(point), saturate(value + out_zero, out.dtype))


def _emit_prod(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
    data, stmts = inputs[0], ctx.stmts
    in_scale, in_zero, out_scale, out_zero = scales_and_zeros("qnn.prod", inputs)
    axes = normalized_axes("qnn.prod", attrs["axis"], len(data.shape), exclude=attrs["exclude"])
    extents = [data.shape[axis] for axis in axes]
    # the result's scale is spread over the factors, and each product is rescaled
    multiplier, shift = reduced_multiplier(in_scale / out_scale ** (1.0 / prod(extents)))
    with ctx.loops(out.shape) as point:
        total = stmts.local("total", (1,), "int32")

        def scaled(product: Expr) -> Expr:
            return tb.intrinsic("requantize_reduced", product, tb.const(multiplier), tb.const(shift), dtype="int32")

        stmts.store(total, [0], 1)
        with stmts.loops(extents, "k") as inner:
            kept = iter(point if not attrs["keepdims"] else [i for a, i in enumerate(point) if a not in axes])
            reduced = iter(inner)
            index = [next(reduced) if axis in axes else next(kept) for axis in range(len(data.shape))]
            is_first = tb.land(*(tb.binary("eq", place, 0) for place in inner))
            factor = stmts.let("factor", tb.cast(data.read(index), "int32") - in_zero)
            product = tb.cast(tb.load(total, [0]), "int64") * tb.cast(factor, "int64")
            stmts.store(total, [0], tb.select(is_first, factor, scaled(product)))
        result = scaled(tb.cast(tb.load(total, [0]), "int64"))
        out.store(list(point), saturate(result + out_zero, out.dtype))


_CONTRACT = "bit-exact to TFLite's reference kernel"

declare("qnn.softmax", 5, _infer_softmax, Kind.REDUCE, (Attr("axis", -1), Attr("out_dtype", None, in_tvm={})),
        emit=_emit_softmax, layout=Layout.AXIS, in_tvm=qnn_in_tvm.softmax, contract=_CONTRACT,
        doc="Softmax along an axis in fixed point; result of scale 1/256 (int16: 1/65536) and the lowest zero point.",
        )  # fmt: skip
declare(
    "qnn.avg_pool2d", 5, _infer_avg_pool, Kind.ANCHOR,
    (Attr("pool_size"), Attr("strides", (1, 1)), Attr("dilation", (1, 1)), Attr("padding", (0, 0, 0, 0)),
     Attr("layout", "NCHW"), Attr("out_layout", ""), Attr("ceil_mode", False), Attr("count_include_pad", False)),
    emit=_emit_avg_pool, windows=partial(pool_windows, "qnn.avg_pool2d"), contract=_CONTRACT,
    doc="Mean of a window, rounded to nearest; padding is not counted.",
)  # fmt: skip
declare("qnn.mean", 5, _infer_mean, Kind.REDUCE,
        (Attr("axis", None), Attr("keepdims", False), Attr("exclude", False)), emit=_emit_mean,
        in_tvm=qnn_in_tvm.in_reals(qnn_in_tvm.mean), contract=_CONTRACT,
        doc="Mean over axes, rescaled to the result's scale.")  # fmt: skip
declare("qnn.prod", 5, _infer_mean, Kind.REDUCE,
        (Attr("axis", None), Attr("keepdims", False), Attr("exclude", False)), emit=_emit_prod, contract=_CONTRACT,
        doc="Product over axes, rescaled after each factor.")  # fmt: skip
