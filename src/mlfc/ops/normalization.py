"""Operators that scale elements by statistics of a row: softmax and the normalizations.

A row is the set of elements normalized together: one axis (softmax, layer norm), an image's channel (instance norm), or
a group of channels. Sums over rows use `folding`, which keeps their rounding errors small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.kernels import folding
from mlfc.kernels.folding import COLUMNS, LANES, Axes, Fold, emit_fold, kept_tiles, serial_loops, shifted, tiles_of
from mlfc.kernels.rows import KeptRow, PlainRows, Rows, rows_of
from mlfc.ops.elementwise import NEAR_CONTRACT
from mlfc.ops.rules import accumulator, check_dtype, declare, divided, normalized_axes, normalized_axis, same_types
from mlfc.relay.ir import Attrs, TensorType, TupleType
from mlfc.relay.op import REQUIRED, Attr, Kind, Layout
from mlfc.support import dtypes
from mlfc.support.dims import Extent, Shape, bounds, is_static
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Output, Reader, Tensor
from mlfc.tir.ir import Buffer, Expr

At = Callable[[Sequence[Expr]], list[Expr]]

# A row computed on the fly is stored in scratch up to this many elements, and recomputed beyond.
_ROW_LIMIT = 4096
# Data that does not fit into the second-level cache together with the result.
_FAR_BYTES = 512 * 1024
# Rows of up to this many elements are transposed, 64 at a time, if there are enough of them to fill a vector.
_SHORT_ROW = 23
_FEWEST_ROWS = 16


@contextmanager
def _over_rows(rows: Rows, shape: tuple[int, ...], axes: Sequence[int]) -> Iterator[At]:
    """Open loops over all axes but `axes`; yield a function from the indices of a row to those of the tensor."""
    others = [axis for axis in range(len(shape)) if axis not in axes]
    with rows.over([shape[axis] for axis in others]) as outer:

        def at(row: Sequence[Expr]) -> list[Expr]:
            every = {**dict(zip(others, outer, strict=True)), **dict(zip(axes, row, strict=True))}
            return [every[axis] for axis in range(len(shape))]

        yield at


def _reader(data: Tensor, at: At, dtype: str) -> Reader:
    """Return a function that reads an element of a row."""
    return lambda row: tb.cast(data.read(at(row)), dtype)


def _sum(dtype: str, count: Any = 1, ahead: Callable[[Expr], None] | None = None) -> Fold:
    """Return the sum of a row divided by `count`."""
    finish = (lambda total: total) if count == 1 else (lambda total: total / count)
    return Fold(dtype, 0, lambda a, b: a + b, finish, rounds=True, ahead=ahead)


def _folded(ctx: Context, shape: Shape, name: str, read: Reader, fold: Fold) -> Buffer:
    """Emit the folds of neighbouring rows, which are adjacent along the last axis; return their results."""
    results = ctx.stmts.local(name, (COLUMNS,), fold.dtype)
    store = Output(shape[-1:], fold.dtype, partial(ctx.stmts.store, results))
    emit_fold(ctx, read, Axes(shape, tuple(range(len(shape) - 1)), keepdims=False), fold, store)
    return results


def _infer_float(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    check_dtype(name, data.dtype, "float")
    normalized_axes(name, attrs["axis"], len(data.shape))
    return data


def _emit_softmax(
    ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output, *, logarithm: bool, shape: Shape | None = None
) -> None:
    """Emit rows sequentially, or side by side if an axis follows theirs; `shape` may have more axes known to be 1."""
    data, shape = inputs[0], shape or inputs[0].shape
    axis = attrs["axis"] % len(shape)
    axes = Axes(shape, (axis,), keepdims=True)
    if ctx.features.gpu or not ctx.features.vector_bytes:
        _softmax_in_rows(ctx, data, axis, out, logarithm)
        return
    if axes.tiled is None:
        _softmax_of_last(ctx, data, axis, out, logarithm)
        return
    behind = shape[axes.tiled]
    if isinstance(behind, int) or bounds(behind)[0] > 1:
        _softmax_side_by_side(ctx, data, axes, out, logarithm)
        return
    with ctx.stmts.when(tb.binary("ne", tb.as_expr(behind), 1)):
        _softmax_side_by_side(ctx, data, axes, out, logarithm)
    with ctx.stmts.otherwise():
        single = (*shape[: axes.tiled], 1, *shape[axes.tiled + 1 :])
        _emit_softmax(ctx, inputs, attrs, out, logarithm=logarithm, shape=single)


def _softmax_of_last(ctx: Context, data: Tensor, axis: int, out: Output, logarithm: bool) -> None:
    """Emit rows sequentially, or many short rows side by side; both compute the same bits."""
    length, others = data.shape[axis], [other for other in range(len(data.shape)) if other != axis]
    is_short = isinstance(length, int) and 1 < length <= _SHORT_ROW and not ctx.small
    many = [other for other in reversed(others) if bounds(data.shape[other])[1] >= _FEWEST_ROWS]
    known = [other for other in many if bounds(data.shape[other])[0] >= _FEWEST_ROWS]
    if not is_short or not many:
        _softmax_in_rows(ctx, data, axis, out, logarithm)
    elif known:
        _softmax_of_short(ctx, data, (axis, known[0]), out, logarithm)
    else:
        with ctx.stmts.when(tb.binary("ge", tb.as_expr(data.shape[many[0]]), _FEWEST_ROWS)):
            _softmax_of_short(ctx, data, (axis, many[0]), out, logarithm)
        with ctx.stmts.otherwise():
            _softmax_in_rows(ctx, data, axis, out, logarithm)


def _softmax_of_short(ctx: Context, data: Tensor, axes: tuple[int, int], out: Output, logarithm: bool) -> None:
    """Emit rows along the first of two axes side by side along the second, transposed so that compilers vectorize.

    The few elements of a row are added in the same order as by the accumulators of a single row.
    """
    stmts, dtype, (axis, beside) = ctx.stmts, accumulator(data.dtype), axes
    length, rows = int(data.shape[axis]), data.shape[beside]
    others = [other for other in range(len(data.shape)) if other not in axes]
    kept = ctx.scratch("rows", (length, COLUMNS), dtype)
    powers = ctx.scratch("powers", (length, COLUMNS), dtype) if logarithm else kept

    def tile(outer: Sequence[Expr], first: Expr, width: Extent) -> None:
        def at(place: Expr, lane: Expr) -> list[Expr]:
            every = {**dict(zip(others, outer, strict=True)), axis: place, beside: first + lane}
            return [every[other] for other in range(len(data.shape))]

        def read(place: Expr, lane: Expr) -> Expr:
            return tb.cast(data.read(at(place, lane)), dtype)

        def total(lane: Expr) -> Expr:
            column = [tb.load(powers, [place, lane]) for place in range(length)]
            parts = [sum(column[place + LANES :: LANES], column[place]) for place in range(min(length, LANES))]
            return folding.in_halves(parts, lambda a, b, _: a + b)

        tops, totals = stmts.local("tops", (COLUMNS,), dtype), stmts.local("totals", (COLUMNS,), dtype)
        with stmts.loop(width, "c", "vectorized") as lane:
            stmts.store(tops, [lane], -inf)
        with stmts.loop(length, "e") as place, stmts.loop(width, "c", "vectorized") as lane:
            stmts.store(kept, [place, lane], read(place, lane))
        with stmts.loop(length, "e") as place, stmts.loop(width, "c", "vectorized") as lane:
            stmts.store(tops, [lane], tb.maximum(tb.load(tops, [lane]), tb.load(kept, [place, lane])))
        with stmts.loop(length, "e") as place, stmts.loop(width, "c", "vectorized") as lane:
            # a computed element is recomputed, as for a single row, so that a product is fused with the difference
            # there too
            element = tb.load(kept, [place, lane]) if data.buffer is not None else read(place, lane)
            below = stmts.let("below", element - tb.load(tops, [lane]))
            if logarithm:
                stmts.store(kept, [place, lane], below)
            stmts.store(powers, [place, lane], ctx.transcendental("exp_below", below))
        with stmts.loop(width, "c", "vectorized") as lane:
            stmts.store(totals, [lane], tb.intrinsic("log", total(lane)) if logarithm else 1 / total(lane))
        with stmts.loop(width, "c") as lane, stmts.loop(length, "o", "vectorized") as place:
            value, by = tb.load(kept, [place, lane]), tb.load(totals, [lane])
            out.store(at(place, lane), tb.cast(value - by if logarithm else value * by, out.dtype))

    with serial_loops(ctx, [data.shape[other] for other in others], "i") as outer:
        for first, width in tiles_of(ctx, rows):
            stmts.refill(kept, powers)
            with stmts.refilling(kept, powers):
                tile(outer, first, width)


def _softmax_side_by_side(ctx: Context, data: Tensor, axes: Axes, out: Output, logarithm: bool) -> None:
    """Emit tiles of neighbouring rows; compilers vectorize across the rows."""
    stmts, dtype, (axis,) = ctx.stmts, accumulator(data.dtype), axes.folded_axes
    length = axes.shape[axis]
    kept = ctx.scratch("rows", (length, COLUMNS), dtype)

    def tile(first: dict[int, Expr], width: Extent) -> None:
        def at(row: Indices) -> list[Expr]:
            return axes.full(shifted(first, axes, row[1]), row[:1] if axes.folded else [])

        folded, element = partial(_folded, ctx, (length, width)), _reader(data, at, dtype)

        def exponential(row: Indices) -> Expr:
            below = stmts.let("below", element(row) - tb.load(tops, row[1:]))
            power = stmts.let("power", ctx.transcendental("exp_below", below))
            stmts.store(kept, row, below if logarithm else power)
            return power

        tops = folded("tops", element, Fold(dtype, -inf, tb.maximum, lambda best: best))
        scale = (lambda total: tb.intrinsic("log", total)) if logarithm else (lambda total: 1 / total)
        scales = folded("scales", exponential, Fold(dtype, 0, lambda a, b: a + b, scale, rounds=True))
        with stmts.loop(length, "o") as place, stmts.loop(width, "c", "vectorized") as lane:
            value, by = tb.load(kept, [place, lane]), tb.load(scales, [lane])
            out.store(at((place, lane)), tb.cast(value - by if logarithm else value * by, out.dtype))

    for first, width in kept_tiles(ctx, axes):
        stmts.refill(kept)
        with stmts.refilling(kept):
            tile(first, width)


def _softmax_in_rows(ctx: Context, data: Tensor, axis: int, out: Output, logarithm: bool) -> None:
    """Emit rows one after another."""
    stmts, dtype = ctx.stmts, accumulator(data.dtype)
    shape = (data.shape[axis],)
    rows = rows_of(ctx, *shape)
    with _over_rows(rows, data.shape, (axis,)) as at:
        if _is_far(ctx, data) and out.buffer is not None and out.dtype == dtype:
            buffer = out.buffer  # the result is the row's scratch memory: the final pass then finds it in the cache
            kept = KeptRow(lambda row, value: out.store(at(row), value), lambda row: tb.load(buffer, at(row)))
        else:
            kept = rows.keep("row", shape, dtype)
        element = _reader(data, at, dtype)
        top = rows.folded("top", shape, element, Fold(dtype, -inf, tb.maximum, lambda best: best))

        def exponential(row: Indices) -> Expr:
            below = stmts.let("below", element(row) - top)
            power = stmts.let("power", ctx.transcendental("exp_below", below))
            kept.store(row, below if logarithm else power)
            return power

        add = _sum(dtype, ahead=_next_row(ctx, data, at, shape[0]))
        total = rows.folded("total", shape, exponential, add)
        scale = stmts.let("scale", tb.intrinsic("log", total) if logarithm else 1 / total)
        with rows.elements(shape, "o") as row:
            value = kept.read(row)
            out.store(at(row), tb.cast(value - scale if logarithm else value * scale, out.dtype))


def _is_far(ctx: Context, data: Tensor) -> bool:
    """Tell whether the data of a host kernel, which reads it twice, exceeds the near caches."""
    source = data.buffer
    if source is None or ctx.features.gpu or not ctx.features.vector_bytes or ctx.small or not is_static(data.shape):
        return False
    return bool(_FAR_BYTES <= source.nbytes <= dtypes.limits("int32")[1])


def _next_row(ctx: Context, data: Tensor, at: At, length: Extent) -> Callable[[Expr], None] | None:
    """Return a function that prefetches the same elements of the next row, whose first pass only computes a maximum."""
    source, shape = data.buffer, data.shape
    if source is None or not ctx.features.prefetches or not _is_far(ctx, data):
        return None

    def ahead(element: Expr) -> None:
        place = tb.const(0)
        for index, extent in zip(at([element]), shape, strict=True):
            place = place * extent + index
        ctx.stmts.prefetch(source, tb.minimum(place + length, source.size - 1), "the next row")

    return ahead


def _infer_affine(name: str, attrs: Attrs, data: TensorType, *channel: TensorType) -> TensorType:
    check_dtype(name, data.dtype, "float")
    axis = normalized_axis(name, attrs["axis"], len(data.shape))
    for kind in channel:
        wanted = TensorType((data.shape[axis],), data.dtype)
        if kind != wanted and data.is_static:
            raise TypeCheckError(f"{name}: {kind} does not fit axis {axis} of {data}")
        same_types(name, kind, wanted, "types of channels")
    return data


def _infer_group_norm(name: str, attrs: Attrs, data: TensorType, *channel: TensorType) -> TensorType:
    _infer_affine(name, attrs, data, *channel)
    channels = data.shape[attrs["axis"] % len(data.shape)]
    if attrs["num_groups"] < 1 or (isinstance(channels, int) and channels % attrs["num_groups"]):
        raise TypeCheckError(f"{name}: {channels} channels cannot be split into {attrs['num_groups']} groups")
    divided(name, channels, attrs["num_groups"], "channels")
    if attrs["axis"] % len(data.shape) == 0:
        raise TypeCheckError(f"{name}: axis 0 is the batch")
    return data


def _normalize_row(
    ctx: Context, rows: Rows, inputs: Sequence[Tensor], attrs: Attrs, out: Output, shape: tuple[int, ...], at: At
) -> None:
    """Emit one row: mean, variance, then ``(x - mean) / sqrt(variance + epsilon) * gamma + beta``."""
    data = inputs[0]
    stmts, dtype = ctx.stmts, accumulator(data.dtype)
    axis = attrs["axis"] % len(data.shape)

    computed = _reader(data, at, dtype)

    def squared_distance(row: Indices) -> Expr:
        distance = stmts.let("distance", element(row) - mean)
        return distance * distance

    element = computed
    if data.buffer is None and bounds(prod(shape))[0] <= _ROW_LIMIT:  # stored, so that its producer runs once
        kept = rows.keep("row", shape, dtype)
        with rows.elements(shape, "k") as row:
            kept.store(row, computed(row))
        element = kept.read
    mean = rows.folded("mean", shape, element, _sum(dtype, prod(shape)))
    variance = rows.folded("variance", shape, squared_distance, _sum(dtype, prod(shape)))
    scale = stmts.let("scale", 1 / tb.intrinsic("sqrt", variance + attrs["epsilon"]))
    with rows.elements(shape, "o") as row:
        place = at(row)
        value = _scaled((element(row) - mean) * scale, inputs, attrs, place[axis])
        out.store(place, tb.cast(value, out.dtype))


def _scaled(value: Expr, inputs: Sequence[Tensor], attrs: Attrs, channel: Expr) -> Expr:
    """Return a normalized number times gamma plus beta."""
    _, gamma, beta = inputs
    value = value * tb.cast(gamma(channel), value.dtype) if attrs["scale"] else value
    return value + tb.cast(beta(channel), value.dtype) if attrs["center"] else value


def _normalize_channels(
    ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output, axes: Axes, tile: tuple[dict[int, Expr], Any]
) -> None:
    """Emit neighbouring channels of an image side by side, each as `_normalize_row` emits a row."""
    data = inputs[0]
    stmts, dtype, (first, width) = ctx.stmts, accumulator(data.dtype), tile
    row = tuple(data.shape[axis] for axis in axes.folded_axes)

    def at(place: Indices) -> list[Expr]:
        every = {**shifted(first, axes, place[-1]), **dict(zip(axes.folded_axes, place[:-1], strict=True))}
        return [every[axis] for axis in range(len(data.shape))]

    element = _reader(data, at, dtype)

    def squared_distance(place: Indices) -> Expr:
        distance = stmts.let("distance", element(place) - tb.load(means, place[-1:]))
        return distance * distance

    count, add = prod(row), _sum(dtype)
    means = _folded(ctx, (*row, width), "means", element, replace(add, finish=lambda total: total / count))
    spread = replace(add, finish=lambda total: 1 / tb.intrinsic("sqrt", total / count + attrs["epsilon"]))
    scales = _folded(ctx, (*row, width), "scales", squared_distance, spread)
    with ctx.loops((*row, width), "o") as place:
        value = (element(place) - tb.load(means, place[-1:])) * tb.load(scales, place[-1:])
        value = _scaled(value, inputs, attrs, at(place)[attrs["axis"] % len(data.shape)])
        out.store(at(place), tb.cast(value, out.dtype))


def _emit_norm(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output, *, is_layer: bool) -> None:
    """Emit the norm along an axis (layer norm), or of each channel of each image (instance norm)."""
    shape, axis = inputs[0].shape, attrs["axis"] % len(inputs[0].shape)
    axes = [axis] if is_layer else [other for other in range(1, len(shape)) if other != axis]
    beside = Axes(shape, tuple(axes), keepdims=True)
    if not is_layer and ctx.features.vector_bytes and not ctx.features.gpu and beside.tiled is not None:
        for first, width in kept_tiles(ctx, beside):
            _normalize_channels(ctx, inputs, attrs, out, beside, (first, width))
        return
    row = tuple(shape[axis] for axis in axes)
    rows = rows_of(ctx, prod(row))
    with _over_rows(rows, shape, axes) as at:
        _normalize_row(ctx, rows, inputs, attrs, out, row, at)


def _emit_group_norm(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    shape, groups = inputs[0].shape, attrs["num_groups"]
    channel = attrs["axis"] % len(shape)
    spatial = [axis for axis in range(1, len(shape)) if axis != channel]
    each = shape[channel] // groups
    elements = (*(shape[axis] for axis in spatial), each)
    rows = rows_of(ctx, prod(elements))
    with rows.over((shape[0], groups)) as (image, group):

        def at(row: Sequence[Expr]) -> list[Expr]:
            every = {0: image, channel: group * each + row[-1], **dict(zip(spatial, row, strict=False))}
            return [every[axis] for axis in range(len(shape))]

        _normalize_row(ctx, rows, inputs, attrs, out, elements, at)


def _emit_l2_normalize(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    (data,) = inputs
    dtype = accumulator(data.dtype)
    axes = normalized_axes("nn.l2_normalize", attrs["axis"], len(data.shape))
    shape = tuple(data.shape[axis] for axis in axes)
    rows = rows_of(ctx, prod(shape))
    with _over_rows(rows, data.shape, axes) as at:
        element = _reader(data, at, dtype)

        def square(row: Indices) -> Expr:
            x = ctx.stmts.let("x", element(row))
            return x * x

        energy = rows.folded("energy", shape, square, _sum(dtype))
        norm = tb.intrinsic("sqrt", tb.maximum(energy, attrs["eps"]))
        scale = ctx.stmts.let("scale", 1 / norm)
        with rows.elements(shape, "o") as row:
            out.store(at(row), tb.cast(element(row) * scale, out.dtype))


def _infer_lrn(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    check_dtype(name, data.dtype, "float")
    axis = normalized_axis(name, attrs["axis"], len(data.shape))
    if not 1 <= attrs["size"] <= 2 * data.shape[axis] + 1:
        raise TypeCheckError(f"{name}: a window of {attrs['size']} does not fit {data.shape[axis]} channels")
    return data


def _to_power(x: Expr, beta: float) -> Expr:
    """Return x ** -beta for positive x; common exponents use square roots, which vectorize unlike pow."""
    root = tb.intrinsic("sqrt", x)
    if beta == 0.5:
        return 1 / root
    if beta == 0.75:
        return 1 / (root * tb.intrinsic("sqrt", root))
    return 1 / x if beta == 1 else tb.intrinsic("pow", x, tb.const(-beta, x.dtype))


def _lrn_each(ctx: Context, data: Tensor, attrs: Attrs, out: Output) -> None:
    """Emit loops in which each element reads its own neighbours, as devices do not use rows in scratch."""
    stmts, dtype, size = ctx.stmts, accumulator(data.dtype), attrs["size"]
    axis = attrs["axis"] % len(data.shape)
    with serial_loops(ctx, data.shape, "i") as at:
        total = stmts.filled("total", 1, dtype)
        with stmts.loop(size, "tap") as tap:
            place = stmts.let("place", at[axis] + tap - (size - 1) // 2)
            with stmts.when(tb.land(tb.binary("ge", place, 0), tb.binary("lt", place, data.shape[axis]))):
                x = stmts.let("x", tb.cast(data.read([*at[:axis], place, *at[axis + 1 :]]), dtype))
                stmts.store(total, [0], tb.load(total, [0]) + x * x)
        base = stmts.let("base", tb.load(total, [0]) * (attrs["alpha"] / size) + attrs["bias"])
        value = tb.cast(data.read(at), dtype) * _to_power(base, attrs["beta"])
        out.store(at, tb.cast(value, out.dtype))


def _emit_lrn(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    (data,) = inputs
    if ctx.features.gpu:
        _lrn_each(ctx, data, attrs, out)
        return
    stmts, dtype, size = ctx.stmts, accumulator(data.dtype), attrs["size"]
    axis = attrs["axis"] % len(data.shape)
    channels, before = data.shape[axis], (size - 1) // 2
    squares = ctx.scratch("squares", (channels + size - 1,), dtype)
    sums = ctx.scratch("sums", (channels,), dtype)
    for start, count in ((0, before), (before + channels, size - 1 - before)):
        with stmts.loop(count, "z", "vectorized") as index:
            stmts.store(squares, [index + start], 0)
    with _over_rows(PlainRows(ctx), data.shape, (axis,)) as at:
        with stmts.loop(channels, "c", "vectorized") as c:
            value = stmts.let("x", tb.cast(data.read(at([c])), dtype))
            stmts.store(squares, [c + before], value * value)
        with stmts.loop(channels, "c", "vectorized") as c:
            stmts.store(sums, [c], tb.load(squares, [c]))
        with stmts.loop(size - 1, "tap") as tap, stmts.loop(channels, "c", "vectorized") as c:
            stmts.store(sums, [c], tb.load(sums, [c]) + tb.load(squares, [c + tap + 1]))
        with stmts.loop(channels, "c", "vectorized") as c:
            base = stmts.let("base", tb.load(sums, [c]) * (attrs["alpha"] / size) + attrs["bias"])
            value = tb.cast(data.read(at([c])), dtype) * _to_power(base, attrs["beta"])
            out.store(at([c]), tb.cast(value, out.dtype))


def _norm_attrs(axis: int) -> tuple[Attr, ...]:
    return (Attr("axis", axis), Attr("epsilon", 1e-5, True), Attr("center", True), Attr("scale", True))


_ROW_CONTRACT = "relative error below 1e-6 of the row's largest result"
for _name in ("nn.softmax", "nn.fast_softmax", "nn.log_softmax"):
    declare(_name, 1, _infer_float, Kind.REDUCE, (Attr("axis", -1),),
            emit=partial(_emit_softmax, logarithm=_name == "nn.log_softmax"), contract=NEAR_CONTRACT,
            layout=Layout.AXIS, magnitude=0.0 if _name == "nn.log_softmax" else 1.0,
            doc="exp(x) over its sum along an axis" if "log" not in _name else "Logarithm of softmax")  # fmt: skip
declare("nn.layer_norm", 3, _infer_affine, Kind.REDUCE, _norm_attrs(-1),
        emit=partial(_emit_norm, is_layer=True), contract=_ROW_CONTRACT, layout=Layout.AXIS,
        doc="Mean 0 and variance 1 along an axis, then gamma and beta")  # fmt: skip
declare("nn.instance_norm", 3, _infer_affine, Kind.REDUCE, _norm_attrs(1), emit=partial(_emit_norm, is_layer=False),
        contract=_ROW_CONTRACT, layout=Layout.IMAGES,
        doc="Mean 0 and variance 1 for each channel of each image, then gamma and beta")  # fmt: skip
declare("nn.group_norm", 3, _infer_group_norm, Kind.REDUCE, (Attr("num_groups", 0), *_norm_attrs(1)),
        emit=_emit_group_norm, contract=_ROW_CONTRACT, layout=Layout.IMAGES,
        doc="Mean 0 and variance 1 for each group of channels of each image, then gamma and beta")  # fmt: skip
declare("nn.l2_normalize", 1, _infer_float, Kind.REDUCE, (Attr("eps", REQUIRED, True), Attr("axis", REQUIRED)),
        emit=_emit_l2_normalize, contract=_ROW_CONTRACT, layout=Layout.AXIS,
        doc="x over the Euclidean norm along axes, whose square is at least eps")  # fmt: skip
declare("nn.lrn", 1, _infer_lrn, Kind.ANCHOR,
        (Attr("size", 5), Attr("axis", 1), Attr("bias", 2.0, True), Attr("alpha", 1e-4, True),
         Attr("beta", 0.75, True)),
        emit=_emit_lrn, contract="relative error below 1e-6", layout=Layout.AXIS,
        doc="x / (bias + alpha / size * sum of squares of the neighbouring channels) ** beta")  # fmt: skip
declare("nn.batch_norm", 5,
        lambda name, attrs, *kinds: TupleType((_infer_affine(name, attrs, *kinds), *kinds[3:])), Kind.OPAQUE,
        _norm_attrs(1),
        doc="(x - mean) / sqrt(variance + epsilon) * gamma + beta with stored mean and variance")  # fmt: skip
