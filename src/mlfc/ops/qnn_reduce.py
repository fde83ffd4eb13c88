"""Quantized operators with their own loops: softmax, average pool, mean, product and bilinear resize.

Each computes the same result as TFLite's reference kernel of the operator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels.folding import Fold
from mlfc.kernels.rows import PlainRows, rows_of
from mlfc.ops import qnn_in_tvm
from mlfc.ops.pool import pool_windows
from mlfc.ops.qnn import check_codes, infer_of_codes, reduced_multiplier, rescaled, saturate, scales_and_zeros
from mlfc.ops.qnn_unary import interpolated, interpolation_table
from mlfc.ops.reduce import axes_of, reduced_shape
from mlfc.ops.rules import check_choice, declare, normalized_axis, optional_dtype
from mlfc.relay.ir import Attrs, TensorType, call
from mlfc.relay.op import Attr, Kind, Layout
from mlfc.support import dtypes, fixed_point
from mlfc.support.dims import Dim, Extent, bounds
from mlfc.support.fixed_point import INT32_MAX, RECIPROCAL_SLOPE, RECIPROCAL_START, input_radius, quantize_multiplier
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Reader, Tensor
from mlfc.tir.extents import as_index
from mlfc.tir.ir import Expr

# formats of TFLite's fixed-point softmax: of differences from the largest input, and of the sum of exponentials
_DIFFERENCE_BITS = 5
_SUM_BITS = 12
_CHANNELS_AT_ONCE = 64
_NEARLY_ONE = 1e-3  # TFLite's tolerance for the scale of 16-bit probabilities
_LOW16, _HIGH16 = dtypes.limits("int16")
_RANGE16 = _HIGH16 - _LOW16
_REACH = 10.0  # the 16-bit tables, which TFLite interpolates, end at exp(-10)
_LONGEST16 = 1 << 16  # the sum of a longer row of int16 could exceed 31 bits


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
        return fixed_point.exp_on_negative_values(
            fixed_point.doubling_high_mul(difference << max(shift, 0), multiplier), _DIFFERENCE_BITS
        )

    return np.array([exponential(difference) for difference in range(-255, 1)], np.int32)


@cache
def _tables16() -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """Return exp from -10 to 0, and 1 / (1 + x) from 0 to 1, in 1/32768."""
    exponentials = interpolation_table(np.exp, np.float64, (_REACH / _RANGE16, _HIGH16, 2.0 / _RANGE16, 0))
    return exponentials, interpolation_table(
        lambda x: 1.0 / (1.0 + x), np.float64, (1.0 / _RANGE16, _LOW16, 2.0 / _RANGE16, 0)
    )


class _ShortRows(PlainRows):
    """Rows of bytes on hosts, where several accumulators do not pay for their code size."""

    def folded(self, name: str, shape: tuple[int, ...], read: Reader, fold: Fold) -> Expr:
        """Write the fold of a whole row with one accumulator."""
        stmts = self.ctx.stmts
        result = stmts.filled(name, 1, fold.dtype, tb.const(fold.neutral, fold.dtype))
        with self.elements(shape, "k") as row:
            stmts.store(result, [0], fold.step(tb.load(result, [0]), read(row)))
        return tb.load(result, [0])


def _emit_softmax(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
    data, stmts = inputs[0], ctx.stmts
    in_scale, in_zero, out_scale, out_zero = scales_and_zeros("qnn.softmax", inputs)
    is_wide, (low, high) = data.dtype == "int16", dtypes.limits(out.dtype)
    axis = normalized_axis("qnn.softmax", attrs["axis"], len(out.shape))
    length = out.shape[axis]
    if is_wide:
        if in_zero or out_zero or abs(out_scale * (1 << 15) - 1) > _NEARLY_ONE:
            raise UnsupportedError("qnn.softmax of int16 needs zero points of 0 and the output scale 1/32768")
        if bounds(length)[1] > _LONGEST16:
            raise UnsupportedError(f"qnn.softmax of int16 over {length} elements, at most {_LONGEST16} are supported")
    else:
        steps = 1 << dtypes.bits(out.dtype)
        is_unit = out_scale * steps == 1 if out.dtype != "int16" else abs(out_scale * steps - 1) <= _NEARLY_ONE
        if not is_unit or out_zero != low:
            raise UnsupportedError(f"qnn.softmax needs the output scale 1/{steps} and zero point {low}")
        table = ctx.constant("exponentials", exponentials(in_scale))
    rows = rows_of(ctx, length) if ctx.features.gpu else _ShortRows(ctx)
    with rows.over((*out.shape[:axis], *out.shape[axis + 1 :])) as others:

        def at(index: Expr) -> list[Expr]:
            return [*others[:axis], index, *others[axis:]]

        def element(k: Expr) -> Expr:
            return tb.cast(data.read(at(k)), "int32")

        best = Fold("int32", dtypes.limits(data.dtype)[0], tb.maximum, lambda found: found)
        largest = rows.folded("largest", (length,), lambda row: element(*row), best)
        offset = stmts.let("largest", largest) if is_wide else stmts.let("offset", tb.const(255) - largest)

        def exponential(k: Expr) -> Expr:
            if is_wide:
                scaled = rescaled(element(k) - offset, in_scale / (_REACH / _RANGE16))
                code = stmts.let("code", tb.clamp(scaled + _HIGH16, _LOW16, _HIGH16))
                return interpolated(ctx, code, _tables16()[0], "exponentials")
            # the largest input bounds the index, which the verifier cannot see: the clamp does not change the value
            return tb.load(table, [tb.clamp(element(k) + offset, 0, 255)])

        def term(k: Expr) -> Expr:
            """Return an exponential in the format of the sum, rounded without overflow."""
            if is_wide:
                return exponential(k)
            power = stmts.let("term", exponential(k))
            return (power >> _SUM_BITS) + ((power >> (_SUM_BITS - 1)) & 1)

        add = Fold("int32", 0, lambda a, b: a + b, lambda total: total)
        total = rows.folded("total", (length,), lambda row: term(*row), add)
        scale, shift = _reciprocal16(ctx, total) if is_wide else _reciprocal(ctx, total, dtypes.bits(out.dtype))
        half = stmts.let("half", tb.const(1) << (shift - 1)) if is_wide else None
        with rows.elements((length,), "k") as (k,):
            if half is not None:
                code = tb.clamp((exponential(k) * scale + half) >> shift, 0, high)
            else:
                product = tb.intrinsic("rounding_doubling_high_mul", scale, exponential(k))
                code = tb.minimum(tb.intrinsic("rounding_divide_by_pot", product, shift) + low, high)
            out.store(at(k), tb.cast(code, out.dtype))


def _reciprocal16(ctx: Context, total: Expr) -> tuple[Expr, Expr]:
    """Return the reciprocal of a sum of 16-bit exponentials, and the right shift of products with it."""
    stmts = ctx.stmts
    total = stmts.let("total", total)
    headroom = stmts.let("headroom", tb.intrinsic("clz32", tb.cast(total, "uint32"), dtype="int32"))
    # the row contains an exponential of 1, and the sum is below 2**31, so headroom is from 1 to 17
    room = stmts.let("room", tb.clamp(headroom - 1, 0, 31))
    normal = ((tb.cast(total, "uint32") << tb.cast(room, "uint32")) + (1 << 13)) >> 14
    fraction = tb.clamp(tb.cast(normal, "int32") - ((1 << 15) + (1 << 16)), _LOW16, _HIGH16)
    reciprocal = interpolated(ctx, stmts.let("fraction", fraction), _tables16()[1], "reciprocals")
    return stmts.let("reciprocal", reciprocal), stmts.let("shift", tb.clamp(tb.const(30) - room, 1, 30))


def _reciprocal(ctx: Context, total: Expr, code_bits: int) -> tuple[Expr, Expr]:
    """Return 1 / total (in Q12) as a Q0 factor, and the right shift that converts factor * Q0 to a code."""
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
    # sums beyond Q12 would shift by more than a word; their code is 0
    exponent = stmts.let("exponent", tb.minimum(tb.const(_SUM_BITS + 31 - code_bits) - headroom, 31))
    return factor, exponent


def _infer_avg_pool(name: str, attrs: Attrs, data: TensorType, *pairs: TensorType) -> TensorType:
    infer_of_codes(name, attrs, data, *pairs)
    if len(data.shape) != 4 or len(attrs["padding"]) != 4 or tuple(attrs["dilation"]) != (1, 1):
        raise TypeCheckError(f"{name} takes 4 dimensions, 4 paddings and no dilation")
    if attrs["ceil_mode"] or attrs["count_include_pad"]:
        raise TypeCheckError(f"{name} takes neither ceil_mode nor count_include_pad")
    if attrs["layout"] not in ("NHWC", "NCHW"):
        raise TypeCheckError(f"qnn.avg_pool2d: layout must be NHWC or NCHW, not {attrs['layout']}")
    shape = list(data.shape)
    for position, axis in enumerate(map(attrs["layout"].index, "HW")):
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
    """Return the first index and the length of a pooling window within the data."""
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
                total, half = tb.load(sums, [c]), tb.binary("truncdiv", count, 2)
                nudged = tb.select(tb.binary("gt", total, 0), total + half, total - half)  # rounds ties away from zero
                mean = tb.binary("truncdiv", nudged, count)
                if (in_scale, in_zero) != (out_scale, out_zero):
                    mean = rescaled(mean - in_zero, in_scale / out_scale) + out_zero
                out.store([n, y, x, outer * block + c], saturate(mean, out.dtype))


def _infer_mean(name: str, attrs: Attrs, data: TensorType, *pairs: TensorType) -> TensorType:
    infer_of_codes(name, attrs, data, *pairs)
    return TensorType(reduced_shape(axes_of(name, data.shape, attrs)), data.dtype)


def _mean_multiplier(ctx: Context, ratio: float, count: Extent) -> tuple[Expr, Expr]:
    """Return multiplier and shift of ratio / count, divided in integers as in TFLite."""
    multiplier, shift = quantize_multiplier(ratio)
    if isinstance(count, int):
        extra = min(count.bit_length() - 1, 32, 31 + shift)
        return tb.const((multiplier << extra) // count), tb.const(shift - extra)
    let, divisor = ctx.stmts.let, tb.maximum(as_index(count), 1)
    length = tb.const(31) - tb.intrinsic("clz32", tb.cast(divisor, "uint32"), dtype="int32")
    more = let("extra", tb.minimum(length, min(32, 31 + shift)))
    wide = tb.const(multiplier, "int64") << more
    return let("multiplier", tb.cast(wide // tb.cast(divisor, "int64"), "int32")), let("shift", tb.const(shift) - more)


def _emit_fold(name: str, ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
    data, stmts, is_mean = inputs[0], ctx.stmts, name == "qnn.mean"
    in_scale, in_zero, out_scale, out_zero = scales_and_zeros(name, inputs)
    axes = axes_of(name, data.shape, attrs)
    if is_mean:
        multiplier, shift = _mean_multiplier(ctx, in_scale / out_scale, axes.count)
    else:  # the result's scale is distributed over the factors, and each product is rescaled
        multiplier, shift = map(tb.const, reduced_multiplier(in_scale / out_scale ** (1.0 / axes.count)))

    def scaled(product: Expr) -> Expr:
        return tb.intrinsic("requantize_reduced", tb.cast(product, "int64"), multiplier, shift, dtype="int32")

    with ctx.loops(out.shape) as point:
        total = stmts.filled("total", 1, "int32", -in_zero * axes.count if is_mean else 1)
        with stmts.loops([data.shape[axis] for axis in axes.folded_axes], "k") as inner:
            kept = iter([i for axis, i in enumerate(point) if axis not in axes.folded_axes] if axes.keepdims else point)
            reduced = iter(inner)
            place = [next(reduced if axis in axes.folded_axes else kept) for axis in range(len(axes.shape))]
            value = tb.cast(data.read(place), "int32")
            if is_mean:
                stmts.store(total, [0], tb.load(total, [0]) + value)
            else:
                is_first = tb.land(*(tb.binary("eq", index, 0) for index in inner))
                factor = stmts.let("factor", value - in_zero)
                product = tb.cast(tb.load(total, [0]), "int64") * tb.cast(factor, "int64")
                stmts.store(total, [0], tb.select(is_first, factor, scaled(product)))
        result = tb.load(total, [0])
        result = tb.intrinsic("requantize_double", result, multiplier, shift) if is_mean else scaled(result)
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
_AXES = (Attr("axis", None), Attr("keepdims", False), Attr("exclude", False))
for _name, _in_tvm, _doc in (
    ("qnn.mean", qnn_in_tvm.in_reals(lambda data, attrs: call("mean", [data], attrs)),
     "Mean over axes, rescaled to the result's scale."),
    ("qnn.prod", qnn_in_tvm.in_reals(lambda data, attrs: call("prod", [data], attrs)),
     "Product over axes, rescaled after each factor."),
):  # fmt: skip
    declare(_name, 5, _infer_mean, Kind.REDUCE, _AXES, emit=partial(_emit_fold, _name), in_tvm=_in_tvm,
            contract=_CONTRACT, doc=_doc)  # fmt: skip


Samples: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]

_ONE = 1 << 10  # coordinates have ten fraction bits
_LANES = 16
_FEW = 4  # channels after the last whole vector whose floats are computed one by one


def _infer(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    check_codes(name, data)
    size = attrs["size"]
    if len(data.shape) != 4 or len(size) != 2 or min(size) < 1 or min(data.shape[1:3]) < 1:
        raise TypeCheckError(f"{name}: {data} cannot be resized to {size}")
    return TensorType((data.shape[0], size[0], size[1], data.shape[3]), data.dtype)


def _samples(extent: int, count: int, attrs: Attrs) -> Samples:
    """Return the two input indices that each output index interpolates, and the weight (of 1024) of the second."""
    scale = (_ONE * extent + count // 2) // count
    if attrs["align_corners"] and count > 1:
        scale = (_ONE * (extent - 1) + (count - 1) // 2) // (count - 1)
    places = np.arange(count, dtype=np.int64) * scale
    if attrs["half_pixel_centers"]:
        places += scale // 2 - _ONE // 2
    # C's integer division truncates, which only matters for the first positions of half-pixel centres
    first = np.maximum(np.trunc(places / _ONE).astype(np.int64), 0)
    second = np.minimum(np.trunc((places + _ONE - 1) / _ONE).astype(np.int64), extent - 1)
    first = np.minimum(first, extent - 1)
    weight = places - _ONE * first
    return first.astype(np.int32), np.maximum(second, 0).astype(np.int32), weight.astype(np.int32)


def _float_samples(extent: int, count: int, attrs: Attrs) -> Samples:
    """Return the samples of `_samples` in the reference's float32 arithmetic, used for every dtype but int8."""
    scale = np.float32(extent) / np.float32(count)
    if attrs["align_corners"] and count > 1:
        scale = np.float32(extent - 1) / np.float32(count - 1)
    places = np.arange(count, dtype=np.float32)
    places = (places + np.float32(0.5)) * scale - np.float32(0.5) if attrs["half_pixel_centers"] else places * scale
    first = np.maximum(np.floor(places), 0)
    second = np.minimum(np.ceil(places), extent - 1)
    first = np.minimum(first, extent - 1)
    return first.astype(np.int32), second.astype(np.int32), (places - first).astype(np.float32)


# by dtype: samples, dtype of the sums, and sum of the weights
_HOW: dict[str, tuple[Callable[[int, int, Attrs], Samples], str, int]] = {
    "int8": (_samples, "int32", _ONE), "int16": (_samples, "int64", _ONE), "uint8": (_float_samples, "float32", 1),
}  # fmt: skip


def _emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    """Write the loops: an image row is interpolated from two rows once, then each pixel from two of its columns."""
    (data,), stmts, (batch, height, width, channels) = inputs, ctx.stmts, out.shape
    samples, kind, one = _HOW[out.dtype]
    weight_kind = "float32" if kind == "float32" else "int32"
    is_float, columns = kind == "float32", data.shape[2]

    def sampled(axis: int, letter: str, at: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """Return both input positions of an output index, and their weights."""
        labels = (f"first_{letter}", f"second_{letter}", f"weight_{letter}")
        found = samples(data.shape[axis], out.shape[axis], attrs)
        *places, weight = (ctx.constant(label, table) for label, table in zip(labels, found, strict=True))
        # the clamps do not change values; they prove bounds without knowledge of the tables' contents
        limited = (tb.clamp(tb.load(table, [at]), 0, data.shape[axis] - 1) for table in places)
        first, second = (stmts.let(label, place) for label, place in zip(labels, limited, strict=False))
        second_weight = stmts.let(labels[2], tb.load(weight, [at]))
        return first, second, stmts.let(f"{labels[2]}_first", tb.const(one, weight_kind) - second_weight), second_weight

    # integer rows are added first, which is exact; float products are added in the reference's order
    is_kept = bool(ctx.features.vector_bytes) and not ctx.features.gpu and not ctx.small and columns <= 4 * width
    pads = is_kept and is_float and isinstance(channels, int) and channels % _LANES > _FEW
    padded = -(-channels // _LANES) * _LANES if pads else channels
    kept = ctx.scratch("rows", (1 + is_float, columns, padded), weight_kind) if is_kept else None
    with stmts.loop(batch, "i0") as n, stmts.loop(height, "i1") as y:
        *rows, upper, lower = sampled(1, "y", y)

        def mixed(x: Expr, c: Expr) -> list[Expr]:
            values = [tb.cast(data.read([n, row, x, c]), weight_kind) for row in rows]
            products = [value * weight for value, weight in zip(values, (upper, lower), strict=True)]
            return products if is_float else [products[0] + products[1]]

        def loaded(x: Expr, c: Expr) -> list[Expr]:
            assert kept is not None
            return [tb.load(kept, [number, x, c]) for number in range(1 + is_float)]

        if kept is not None:
            stmts.refill(kept)
            with stmts.loop(columns, "x") as x:
                with stmts.loop(channels, "c", "vectorized") as c:
                    for number, value in enumerate(mixed(x, c)):
                        stmts.store(kept, [number, x, c], value)
                with stmts.loop(padded - channels, "c", "vectorized") as c:
                    for number in range(1 + is_float):
                        stmts.store(kept, [number, x, c + channels], tb.const(0, weight_kind))
        with stmts.loop(width, "i2") as x:
            *places, left, right = sampled(2, "x", x)
            codes = stmts.local("codes", (padded,), out.dtype) if pads else None
            with stmts.loop(padded, "i3", "vectorized") as c:
                products = [
                    tb.cast(value, kind) * tb.cast(weight, kind)
                    for place, weight in zip(places, (left, right), strict=True)
                    for value in (loaded(place, c) if kept else mixed(place, c))
                ]
                code = _rounded(reduce(operator.add, products), kind, out.dtype)
                out.store([n, y, x, c], code) if codes is None else stmts.store(codes, [c], code)
            if codes is not None:
                with stmts.loop(channels, "i3", "vectorized") as c:
                    out.store([n, y, x, c], tb.load(codes, [c]))


def _rounded(total: Expr, kind: str, dtype: str) -> Expr:
    """Round a weighted sum to a code."""
    if kind == "float32":
        return tb.cast(tb.clamp(total + tb.const(0.5, kind), *map(float, dtypes.limits(dtype))), dtype)
    # halves are rounded away from zero
    nudged = total + _ONE * _ONE // 2 - tb.cast(tb.binary("le", total, 0), kind)
    return tb.cast(tb.binary("shr", nudged, 20), dtype)


declare(
    "qnn.resize_bilinear", 1, _infer, Kind.ANCHOR,
    (Attr("size"), Attr("align_corners", False), Attr("half_pixel_centers", False)), emit=_emit,
    rounding_sensitive=True, in_tvm=qnn_in_tvm.resize_bilinear, contract="bit-exact to TFLite's reference kernel",
    doc="NHWC images of another size by linear interpolation, with ten bits of weight; uint8 in float32.",
)  # fmt: skip
