"""Plain scalar templates: correct for every size and dtype, and the reference for the others.

Long float sums are split into pieces, which are summed separately: the rounding error of a sequential sum of n floats
grows like sqrt(n). Shorter sums keep the order of the reference implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from math import prod
from typing import TypeAlias

import numpy as np

from mlfc.kernels.codes import PackedPanels
from mlfc.kernels.folding import serial_loops
from mlfc.kernels.nibbles import LEAST_NIBBLES, fit_nibbles, nibble, nibbles
from mlfc.kernels.templates import Array, Conv, Product, Weights, is_padded, template
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, bounds
from mlfc.target.features import Value
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Const, Expr

LONGEST = 1024  # maximum number of products that are summed sequentially
PIECE = 512  # maximum number of products in a piece of a longer sum

FILTERS_AT_ONCE = 4
MOST_FILTERS = 8  # maximum that is worth measuring
Block: TypeAlias = "tuple[Expr, Callable[..., None], Callable[[], None]]"


def is_long(dtype: str, steps: Extent) -> bool:
    """Return whether a sum of `steps` products is split into pieces; integers are exact in any order.

    A dynamic sum that may be long is split, but has one piece if it is short; see `no_sum` for its initial value.
    """
    return dtypes.is_float(dtypes.element(dtype)) and bounds(steps)[1] > LONGEST


def no_sum(dtype: str, steps: Extent) -> Expr:
    """Return the initial value of the sum of pieces; for a dynamic sum that is short, -0.0, which changes no bit."""
    zero, (low, high) = tb.const(0, dtype), bounds(steps)
    is_dynamic = low <= LONGEST < high
    return tb.select(tb.binary("gt", steps, LONGEST), zero, tb.const(-0.0, dtype)) if is_dynamic else zero


@contextmanager
def piece(ctx: Context, steps: Extent, whole: bool) -> Iterator[tuple[Expr, Expr]]:
    """Open a loop over pieces of a range of `steps`; yield the start and the extent of a piece.

    Pieces are equal if the range has a suitable divisor; otherwise the last one is shorter. If `whole`, there is one
    piece.
    """
    if isinstance(steps, Dim):
        pieces = tb.const(1) if whole else _pieces(ctx, tb.as_expr(steps))
        extent = ctx.stmts.let("size", (steps + (pieces - 1)) // pieces)
        with ctx.stmts.loop(pieces, "piece") as index:
            yield index * extent, tb.minimum(extent, steps - index * extent)
        return
    fewest = 1 if whole else -(-steps // PIECE)
    count = next((number for number in range(fewest, 2 * fewest) if steps % number == 0), fewest)
    size = -(-steps // count)
    with ctx.stmts.loop(count, "piece") as index:
        first = index * size
        yield first, tb.const(size) if count * size == steps else tb.minimum(size, steps - first)


@contextmanager
def unrolled_loop(stmts: tb.StmtBuilder, extent: Extent | Expr, name: str, times: int) -> Iterator[Expr]:
    """Open a loop with `times` steps in each iteration."""
    with stmts.loop(extent if times == 1 else extent // times, name) as index:
        if times == 1:
            yield index
            return
        with stmts.loop(times, "step", "unrolled") as step:
            yield index * times + step


def _pieces(ctx: Context, steps: Expr) -> Expr:
    """Write the search for the number of pieces of a dynamic range; `piece` computes it at compile time if static."""
    stmts = ctx.stmts
    fewest = stmts.let("fewest", (steps + (PIECE - 1)) // PIECE)
    found = stmts.filled("count", 1, "int32", 1)
    with stmts.when(tb.binary("gt", steps, LONGEST)):
        stmts.store(found, [0], fewest)
        with stmts.loop(fewest, "number") as number:
            candidate = stmts.let("candidate", fewest + (fewest - 1 - number))
            with stmts.when(tb.binary("eq", steps % candidate, 0)):
                stmts.store(found, [0], candidate)
    return stmts.let("pieces", tb.clamp(tb.load(found, [0]), 1, fewest * 2))


def accumulator_dtype(out: Output) -> str:
    """Return the dtype of accumulators: half floats are summed as float32."""
    return "float32" if out.dtype in dtypes.HALVES else out.dtype


_MIDDLE = 1 << 7  # half of the range of uint8 codes


def factor(value: Expr, zero: int, dtype: str) -> Expr:
    """Return an operand less its zero point as a factor in the accumulator's dtype."""
    if value.dtype == "uint8" and zero == _MIDDLE:
        # otherwise GCC 12 recomputes the difference in int32 for an unsigned byte on processors with VNNI
        return tb.cast(tb.cast(value, "int16") - zero, dtype)
    wide = tb.cast(value, dtype)
    return wide - zero if zero else wide


def bias_values(out: Output) -> Array | None:
    """Return the bias of each filter in the accumulator's dtype, or None without one.

    Integer sums start with it. Floats add it last, like the reference implementations: the order affects the last bit.
    """
    if out.bias is None or not out.bias.any():
        return None
    return out.bias.astype(dtypes.to_numpy(accumulator_dtype(out)))


def _packed(ctx: Context, weights: Weights, positions: Array) -> Buffer:
    """Write loops that copy weights less their zero points into scratch, in the order of `positions`."""
    runtime_tensor, zero = weights.runtime_tensor, weights.zero
    assert runtime_tensor is not None
    assert isinstance(zero, int)
    wide = runtime_tensor.dtype if not zero else "int16" if dtypes.bits(runtime_tensor.dtype) == 8 else "int32"
    buffer = ctx.scratch("packed", positions.shape, wide)
    with serial_loops(ctx, positions.shape, "w") as at:
        ctx.stmts.store(
            buffer, at, factor(runtime_tensor.read(_indices(positions, runtime_tensor.shape, at)), zero, wide)
        )
    return buffer


def _indices(positions: Array, shape: Sequence[int], at: Sequence[Expr]) -> list[Expr]:
    """Return the tensor's indices of element `at` of a rearranged tensor, given the positions of its elements.

    Each axis of the arrangement corresponds to equal steps along one axis of the tensor, or along two successive axes.
    """
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    steps = [0 if size == 1 else int(positions.take(1, axis).flat[0]) for axis, size in enumerate(positions.shape)]
    apart = [[0] * len(steps) for _ in shape]
    for axis, step in enumerate(steps):
        if step:
            along = next(own for own, stride in enumerate(strides) if shape[own] > 1 and stride <= step)
            apart[along][axis] = step // strides[along]
    reach = [sum(step * (size - 1) for step, size in zip(own, positions.shape, strict=True)) for own in apart]
    if all(last < extent for last, extent in zip(reach, shape, strict=True)):
        return [_sum(at, own) for own in apart]
    position = _sum(at, steps)
    return [position // stride % extent for stride, extent in zip(strides, shape, strict=True)]


def _sum(at: Sequence[Expr], steps: Sequence[int]) -> Expr:
    terms = [index * step for index, step in zip(at, steps, strict=True) if step]
    return sum(terms[1:], start=terms[0]) if terms else tb.const(0)


def _stored(ctx: Context, weights: Weights, ordered: Array) -> Callable[[Sequence[Expr]], Expr]:
    """Store weights in the order in which they are read; return a reader by panel, steps and filter of the panel."""
    if weights.runtime_tensor is not None:
        buffer = _packed(ctx, weights, ordered)
    else:
        # use four bits if weights fit, memory is small, and half of it can be saved
        is_small = not (ctx.features.vector_bytes or ctx.features.gpu) and ordered.size >= LEAST_NIBBLES
        can_halve = ordered.shape[-1] % 2 == 0 or len(ordered) > 1
        if ordered.dtype == np.int8 and is_small and can_halve and fit_nibbles(ordered):
            return _nibbles(ctx, ordered)
        buffer = ctx.constant("weights", np.ascontiguousarray(ordered))
    return lambda at: tb.load(buffer, at)


def _nibbles(ctx: Context, ordered: Array) -> Callable[[Sequence[Expr]], Expr]:
    """Store two weights per byte: of neighbouring filters, or of two panels with an odd number of filters."""
    if ordered.shape[-1] % 2 == 0:
        buffer = ctx.constant("weights", nibbles(ordered[..., ::2], ordered[..., 1::2]))

        def of_filters(at: Sequence[Expr]) -> Expr:
            *place, lane = at
            assert isinstance(lane, Const)
            which = int(lane.value)
            return nibble(tb.load(buffer, [*place, which // 2]), which % 2)

        return of_filters
    second = np.pad(ordered[1::2], ((0, len(ordered) % 2), *[(0, 0)] * (ordered.ndim - 1)))
    buffer = ctx.constant("weights", nibbles(ordered[::2], second))

    def of_panels(at: Sequence[Expr]) -> Expr:
        panel, *place = at
        byte = tb.load(buffer, [panel // 2, *place])
        return tb.select(tb.binary("eq", panel % 2, 0), nibble(byte, 0), nibble(byte, 1))

    return of_panels


def _multiplies_in_words(data: Buffer, weights: Weights) -> bool:
    """Return whether each product of 64-bit sums fits in an int32, which 32-bit cores multiply in one instruction."""
    if weights.runtime_tensor is not None or not dtypes.is_integer(data.dtype) or dtypes.bits(data.dtype) > 16:
        return False
    low, high = dtypes.limits(data.dtype)
    centred = weights.centered().astype(np.int64)
    largest = max(high - weights.data_zero, weights.data_zero - low) * max(-int(centred.min()), int(centred.max()))
    return largest <= dtypes.limits("int32")[1]


class FilterSums:
    """Accumulators of several filters at once, over weights ordered (group and block, steps..., filter).

    `rows` are the weights, or their positions, as (steps..., groups, filters of a group), the steps in the order of the
    loops.
    """

    def __init__(self, ctx: Context, data: Buffer, weights: Weights, rows: Array, out: Output) -> None:
        self.ctx, self.out = ctx, out
        *steps, groups, filters = rows.shape
        self.filters = filters
        usual = max(w for w in range(1, FILTERS_AT_ONCE + 1) if filters % w == 0)
        # compilers fuse float products and sums in one form of the code and not in another
        is_exact = dtypes.is_integer(accumulator_dtype(out))
        is_plain = is_exact and weights.codes is None and weights.runtime_tensor is None and not ctx.small

        def widths() -> list[Value]:
            return [usual, *(w for w in range(1, MOST_FILTERS + 1) if is_plain and filters % w == 0 and w != usual)]

        self.width = int(str(ctx.choose("filters", usual, widths)))
        self.blocks = filters // self.width
        ordered = np.moveaxis(rows.reshape(*steps, groups * self.blocks, self.width), -2, 0)
        self.packed = None if weights.codes is None else PackedPanels(ctx, weights.codes, ordered)
        self.weights = self.packed.weight if self.packed else _stored(ctx, weights, ordered)
        bias = bias_values(out)
        self.bias = None if bias is None else ctx.constant("bias", bias.reshape(-1, self.width))
        self.dtype = accumulator_dtype(out)
        self.bias_last = dtypes.is_float(self.dtype)
        self.factor = "int32" if self.dtype == "int64" and _multiplies_in_words(data, weights) else self.dtype
        self.long = is_long(self.dtype, prod(steps)) or (self.packed is not None and self.packed.blocks > 1)
        counts = [count for count in (1, 2, 4) if count == 1 or (is_plain and not self.long and steps[-1] % count == 0)]
        self.unroll = int(str(ctx.choose("unroll", 1, lambda: counts)))

    @contextmanager
    def over(self, group: Expr, place: Sequence[Expr]) -> Iterator[Block]:
        """Open the loop over blocks, and store the results at `place` at the end.

        Yields
        ------
        first : Expr
            First filter of the block.
        add : callable ``(steps, *values)``
            Add the products of the weights of `steps` with one input value for all filters or one for each.
        end_piece : callable
            End a piece of the sum; must be called for each piece, and does nothing if the sum is short.
        """
        stmts = self.ctx.stmts
        with stmts.loop(self.blocks, "block") as block:
            panel = group * self.blocks + block
            sums = stmts.local("sums", (self.width,), self.dtype)
            for index in range(self.width):
                bias = None if self.bias_last else self.bias
                stmts.store(sums, [index], 0 if bias is None else tb.load(bias, [panel, index]))

            def add(steps: Sequence[Expr], *values: Expr) -> None:
                factors = [stmts.let("x", value) for value in values]
                for index, value in zip(range(self.width), cycle(factors), strict=False):
                    weight = factor(self.weights([panel, *steps, tb.const(index)]), 0, self.factor)
                    stmts.store(sums, [index], tb.load(sums, [index]) + tb.cast(value * weight, self.dtype))

            totals, end_piece = self._totals(sums, panel)
            first = group * self.filters + block * self.width
            yield first, add, end_piece
            with stmts.loop(self.width, "lane") as lane:
                total = tb.load(sums, [lane])
                if totals:
                    total = tb.load(totals, [lane]) + total
                if self.packed and self.packed.blocks == 1:
                    total = total * self.packed.scale(panel, lane)
                if self.bias is not None and self.bias_last:
                    total = total + tb.load(self.bias, [panel, lane])
                self.out.store([*place, first + lane], tb.cast(total, self.out.dtype))

    def _totals(self, sums: Buffer, panel: Expr) -> tuple[Buffer | None, Callable[[], None]]:
        """Return the array of finished pieces, or None if sums are short, and the writer of the end of a piece."""
        stmts = self.ctx.stmts
        if not self.long:
            return None, lambda: None
        totals = stmts.filled("totals", self.width, self.dtype)

        def end_piece() -> None:
            for index in range(self.width):
                part = tb.load(sums, [index])
                if self.packed and self.packed.blocks > 1:
                    part = part * self.packed.scale(panel, tb.const(index))
                stmts.store(totals, [index], tb.load(totals, [index]) + part)
                stmts.store(sums, [index], 0)

        return totals, end_piece

    @contextmanager
    def steps(self, extent: int, end_piece: Callable[[], None]) -> Iterator[Expr]:
        """Open the innermost loop of the reduction, in pieces if the sum is long or has several scales."""
        if self.unroll > 1:
            with unrolled_loop(self.ctx.stmts, extent, "c", self.unroll) as step:
                yield step
            return
        packed = self.packed if self.packed and self.packed.blocks > 1 else None
        cut = packed.block_of(self.ctx, extent) if packed else piece(self.ctx, extent, not self.long)
        with cut as (first, count):
            with self.ctx.stmts.loop(count, "c") as offset:
                yield first + offset
            end_piece()


@dataclass(frozen=True)
class _AxisTaps:
    """The taps of one axis that may read inside the input: `count` of them from tap `skip`, which reads `first`."""

    first: Expr
    skip: Expr
    count: Expr


def _taps(ctx: Context, conv: Conv, place: Sequence[Expr]) -> list[_AxisTaps]:
    """Return the taps of an output element; those of dilated axes are not clipped, so `_windows` tests them."""
    stmts, found = ctx.stmts, []
    for axis, index in enumerate(place):
        taps, base = tb.const(conv.kernel[axis]), index * conv.strides[axis] - conv.padding[axis][0]
        if conv.dilation[axis] > 1 or not is_padded(conv.padding[axis]):
            found.append(_AxisTaps(base, tb.const(0), taps))
            continue
        first = stmts.let("first", tb.maximum(base, 0))
        count = stmts.let("count", tb.minimum(base + taps, conv.spatial[axis]) - first)
        found.append(_AxisTaps(first, first - base, count))
    return found


@contextmanager
def _windows(ctx: Context, conv: Conv, ranges: Sequence[_AxisTaps]) -> Iterator[tuple[Sequence[Expr], Sequence[Expr]]]:
    """Open the loops over taps that read inside the input; yield the input indices and the taps."""
    with serial_loops(ctx, [taps.count for taps in ranges], "k") as offsets:
        both = list(zip(ranges, offsets, strict=True))
        positions = [taps.first + offset * step for (taps, offset), step in zip(both, conv.dilation, strict=True)]
        checks = []
        for position, step, size, pads in zip(positions, conv.dilation, conv.spatial, conv.padding, strict=True):
            if step > 1 and is_padded(pads):
                checks += [tb.binary("ge", position, 0), tb.binary("lt", position, size)]
        with _when(ctx, tb.land(*checks)):
            yield positions, [taps.skip + offset for taps, offset in both]


@template("packed_convolution", "plain")
@template("convolution", "plain")
def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution over any number of dimensions."""
    stmts = ctx.stmts
    centered = weights.centered().reshape(*conv.kernel, conv.group_channels, conv.groups, conv.group_filters)
    sums = FilterSums(ctx, data, weights, centered, out)
    with serial_loops(ctx, (conv.batch, *conv.output), "o") as place:
        ranges = _taps(ctx, conv, place[1:])
        with stmts.loop(conv.groups, "group") as group, sums.over(group, place) as (_, add, end_piece):
            with _windows(ctx, conv, ranges) as (positions, taps), sums.steps(conv.group_channels, end_piece) as c:
                value = tb.load(data, [place[0], *positions, group * conv.group_channels + c])
                add([*taps, c], factor(value, weights.data_zero, sums.factor))


@template("depthwise", "plain")
def depthwise(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a depthwise convolution over any number of dimensions; several channels share the loops over taps."""
    multiplier = conv.filters // conv.channels
    sums = FilterSums(ctx, data, weights, weights.centered().reshape(*conv.kernel, 1, conv.filters), out)
    with serial_loops(ctx, (conv.batch, *conv.output), "o") as place:
        ranges = _taps(ctx, conv, place[1:])
        with sums.over(tb.const(0), place) as (first, add, _), _windows(ctx, conv, ranges) as (positions, taps):
            channels = [(first + lane) // multiplier for lane in range(sums.width)]
            values = [tb.load(data, [place[0], *positions, channel]) for channel in channels]
            add(taps, *(factor(value, weights.data_zero, sums.factor) for value in values))


@template("transposed", "plain")
def transposed(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a transposed convolution: each result element gathers the inputs that contribute to it."""
    stmts = ctx.stmts
    inner = conv.filters // conv.groups
    made = conv.channels // conv.groups
    grouped = weights.centered().reshape(*conv.kernel, conv.groups, inner, made)
    sums = FilterSums(ctx, data, weights, np.swapaxes(grouped, -2, -3), out)
    with serial_loops(ctx, (conv.batch, *conv.spatial), "o") as place, stmts.loop(conv.groups, "group") as group:
        with sums.over(group, place) as (_, add, end_piece), serial_loops(ctx, conv.kernel, "k") as taps:
            positions, checks = _gathered(conv, place, taps, data)
            with _when(ctx, tb.land(*checks)), sums.steps(inner, end_piece) as c:
                value = tb.load(data, [place[0], *positions, group * inner + c])
                add([*taps, c], factor(value, weights.data_zero, sums.factor))


def _gathered(conv: Conv, place: Sequence[Expr], taps: Sequence[Expr], data: Buffer) -> tuple[list[Expr], list[Expr]]:
    """Return the input indices of a tap of the transpose, and the conditions under which it reads them."""
    positions, checks = [], []
    for axis, tap in enumerate(taps):
        stride = conv.strides[axis]
        reach = place[axis + 1] + conv.padding[axis][0] - tap * conv.dilation[axis]
        if stride > 1:
            checks.append(tb.binary("eq", reach % stride, 0))
        position = reach // stride
        checks += [tb.binary("ge", position, 0), tb.binary("lt", position, data.shape[axis + 1])]
        positions.append(position)
    return positions, checks


def _when(ctx: Context, condition: Expr) -> AbstractContextManager[None]:
    """Open an if, unless the condition is always true."""
    return nullcontext() if isinstance(condition, Const) and condition.value else ctx.stmts.when(condition)


@template("packed_dense", "plain")
@template("dense", "plain")
def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of data times constant weights (reduction, columns)."""
    rows = weights.centered()[:, None, :]
    sums = FilterSums(ctx, data, weights, rows, out)
    with serial_loops(ctx, data.shape[:-1], "row") as place:
        with sums.over(tb.const(0), place) as (_, add, end_piece), sums.steps(rows.shape[0], end_piece) as k:
            add([k], factor(tb.load(data, [*place, k]), weights.data_zero, sums.factor))


def read_matrix(tensor: Tensor, batch: Sequence[Expr], row: Expr, column: Expr) -> Expr:
    """Read an element of the matrix of `batch`; missing and unit batch dimensions are broadcast."""
    if len(tensor.shape) == 1:
        return tensor(column)
    leading = tensor.shape[:-2]
    own = batch[len(batch) - len(leading) :]
    return tensor(*(0 if extent in (0, 1) else index for extent, index in zip(leading, own, strict=True)), row, column)


@template("product", "plain")
def product(ctx: Context, sizes: Product, a: Tensor, b: Tensor, out: Output) -> None:
    """Write a batch of products of two matrices, reading both in place."""
    stmts, dtype = ctx.stmts, accumulator_dtype(out)
    bias = bias_values(out)
    table = None if bias is None else ctx.constant("bias", bias)
    bias_last = dtypes.is_float(dtype)
    long = is_long(dtype, sizes.reduction)
    halves = all(tensor.dtype in ("int8", "uint8", "int16") for tensor in (a, b)) and not (sizes.a_zero or sizes.b_zero)
    wide = "int32" if dtype == "int64" and halves else dtype
    with serial_loops(ctx, out.shape[:-2], "batch") as batch:
        with stmts.loop(sizes.rows, "row") as row, stmts.loop(sizes.columns, "column") as column:
            total = stmts.local("total", (1,), dtype)
            begin = no_sum(dtype, sizes.reduction) if long else tb.const(0, dtype)
            stmts.store(total, [0], begin if table is None or bias_last else tb.load(table, [column]))
            with piece(ctx, sizes.reduction, not long) as (start, extent):
                part = stmts.local("part", (1,), dtype) if long else total
                if long:
                    stmts.store(part, [0], 0)
                with stmts.loop(extent, "k") as offset:
                    k = start + offset
                    first = read_matrix(a, batch, *((k, row) if sizes.transpose_a else (row, k)))
                    second = read_matrix(b, batch, *((column, k) if sizes.transpose_b else (k, column)))
                    step = factor(first, sizes.a_zero, wide) * factor(second, sizes.b_zero, wide)
                    stmts.store(part, [0], tb.load(part, [0]) + tb.cast(step, dtype))
                if long:
                    stmts.store(total, [0], tb.load(total, [0]) + tb.load(part, [0]))
            place = [*batch, row, column] if len(out.shape) > 1 else [column]
            result = tb.load(total, [0])
            if table is not None and bias_last:
                result = result + tb.load(table, [column])
            out.store(place, tb.cast(result, out.dtype))
