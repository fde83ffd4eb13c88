"""Maximum and average pooling over windows.

For static shapes, adjacent outputs whose windows have the same number of taps at evenly spaced positions form one
`Segment`: the interior is one, each kind of border another. Loops over a segment need no bounds checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mlfc.errors import TypeCheckError
from mlfc.kernels.folding import Axes, Fold, emit_fold, serial_loops
from mlfc.ops.conv import letters_of, named_sizes, pad_pairs, per_dimension
from mlfc.ops.rules import check_dtype, declare, fixed
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Elements, Kind
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, bounds, is_static, minimum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Const, Expr

# Windows are unrolled for up to this many kinds of windows, and this many taps per window.
_KINDS_LIMIT = 9
_TAPS_LIMIT = 32
# Taps that one work-item of a device accumulates.
_TAPS_OF_AN_ITEM = 256
# Channels that are accumulated together if the taps are a loop.
_CHANNELS = 64

# (accumulator, element, taps of the element) -> accumulator
Step: TypeAlias = "Callable[[Expr, Expr, Sequence[Expr]], Expr]"


class Window(NamedTuple):
    """Window of one output index along one axis: integers, or expressions for dynamic dimensions."""

    first: Any  # first input index
    taps: Any  # input elements, `dilation` apart
    divisor: Any  # factor of the axis in the divisor of an average


@dataclass(frozen=True)
class Segment:
    """Output indices ``start .. start + count - 1``; window i of them starts at ``first + i * stride``."""

    start: int
    count: int
    first: int
    stride: int
    taps: int
    divisor: int


@dataclass(frozen=True)
class WindowAxis:
    """One spatial axis of a pooling operator."""

    windows: tuple[Window, ...]  # one for each output index
    dilation: int = 1

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The windows, merged into as few segments as their order permits."""
        found: list[Segment] = []
        for index, window in enumerate(self.windows):
            last = found[-1] if found else None
            if last is not None and (last.taps, last.divisor) == (window.taps, window.divisor):
                step = window.first - (last.first + (last.count - 1) * last.stride)
                if last.count == 1 or step == last.stride:
                    found[-1] = Segment(last.start, last.count + 1, last.first, step, last.taps, last.divisor)
                    continue
            found.append(Segment(index, 1, window.first, 1, window.taps, window.divisor))
        return tuple(found)


@dataclass(frozen=True)
class Interior:
    """Output indices of complete windows: `count` of them from `start` on; none if `count` is below 1."""

    start: Any
    count: Any
    is_all: bool  # all windows are known to be complete


def adaptive_window(index: Any, size: Extent, output: int) -> Window:
    """Return one of the windows that divide `size` elements as evenly as possible among `output` results."""
    first = index * size // output
    taps = ((index + 1) * size + (output - 1)) // output - first
    return Window(first, taps, taps)


@dataclass(frozen=True)
class Slide:
    """A window that slides along one axis, with padding before and after.

    With `ceil_mode`, a last window that extends beyond the padded input counts; it must start inside the input or the
    padding before it.
    """

    size: Any
    kernel: int
    stride: int
    dilation: int = 1
    before: int = 0
    after: int = 0
    ceil_mode: bool = False

    @property
    def extent(self) -> int:
        """Input elements from the first to the last tap."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def output(self) -> Any:
        """Number of windows; below 1 if none fits."""
        room = self.size + self.before + self.after - self.extent
        if not self.ceil_mode or (not isinstance(room, Dim) and room < 0):
            return room // self.stride + 1
        count = -(-room // self.stride) + 1
        if isinstance(room, Dim):  # equivalent to the last line, as padding is smaller than the window
            return minimum(count, -(-(self.size + self.before) // self.stride))
        return count - 1 if (count - 1) * self.stride >= self.size + self.before else count

    @property
    def interior(self) -> Interior:
        """The windows whose taps are all inside the data."""
        start = -(-self.before // self.stride)
        count = (self.size + self.before - self.extent) // self.stride + 1 - start
        return Interior(start, count, start == 0 and count == self.output)

    def window(self, index: Expr, *, count_padding: bool) -> Window:
        """Return the window of an output index along a dynamic axis."""
        begin = index * self.stride - self.before
        step, size = self.dilation, tb.as_expr(self.size)
        lowest = tb.maximum((step - 1 - begin) // step, 0)
        highest, padded = (
            tb.minimum((end - begin + (step - 1)) // step, self.kernel) for end in (size, size + self.after)
        )
        taps = tb.maximum(highest - lowest, 0)
        return Window(begin + lowest * step, taps, padded if count_padding else taps)

    def axis(self, *, count_padding: bool) -> WindowAxis:
        """Return the windows; with `count_padding`, taps on padding count in the divisor of averages."""
        windows = []
        for index in range(self.output):
            begin = index * self.stride - self.before
            lowest = max(0, -(begin // self.dilation))
            highest = min(self.kernel, -(-(self.size - begin) // self.dilation))
            padded = min(self.kernel, -(-(self.size + self.after - begin) // self.dilation))
            taps = max(0, highest - lowest)
            first = begin + lowest * self.dilation if taps else 0
            windows.append(Window(first, taps, padded if count_padding else taps))
        return WindowAxis(tuple(windows), self.dilation)


def adaptive_axis(size: int, output: int) -> WindowAxis:
    """Return all adaptive windows of an axis."""
    return WindowAxis(tuple(adaptive_window(index, size, output) for index in range(output)))


@dataclass(frozen=True)
class Pooling:
    """Reduction of the elements of a window to one result."""

    average: bool  # mean if true, else maximum
    dtype: str  # of the elements

    @property
    def wide(self) -> str:
        """Dtype of accumulators: int32 for sums of small integers, float32 for sums of 16-bit floats."""
        if not self.average or self.dtype in ("float64", "int64"):
            return self.dtype
        return "float32" if dtypes.is_float(self.dtype) else "int32"

    @property
    def neutral(self) -> float:
        """The initial value of an accumulator."""
        if self.average:
            return 0
        return float("-inf") if dtypes.is_float(self.dtype) else dtypes.limits(self.dtype)[0]

    def step(self, total: Expr, element: Expr, _at: Sequence[Expr] = ()) -> Expr:
        """Accumulate one more element at any position in the window; a maximum ignores NaN."""
        return total + element if self.average else tb.maximum(element, total)

    def finish(self, total: Expr, divisor: Expr) -> Expr:
        """Return the result for `divisor` elements (int32); integer averages truncate."""
        if not self.average:
            return total
        op = "div" if dtypes.is_float(self.wide) else "truncdiv"
        if isinstance(divisor, Const):
            divisor = tb.const(max(int(divisor.value), 1), self.wide)
        else:
            divisor = tb.cast(tb.maximum(divisor, 1), self.wide)
        return tb.cast(tb.binary(op, total, divisor), self.dtype)


@dataclass(frozen=True)
class _WindowPosition:
    """The window of one output index along one axis, with a literal number of taps or one loaded from a table.

    `last` is the last index of the data if the window comes from a table, whose values the bounds proof cannot see.
    """

    output: Expr
    first: Expr
    taps: Expr
    divisor: Expr
    dilation: int
    last: Extent | None = None

    def at(self, tap: Expr | int) -> Expr:
        """Return the data index that a tap reads."""
        index = self.first + tap * self.dilation
        return index if self.last is None else tb.clamp(index, 0, self.last)


class _DynamicAxis:
    """Loops over the complete windows and over the border windows of a dynamic axis."""

    def __init__(self, ctx: Context, slide: Slide, size: Extent) -> None:
        self._stmts, self.slide, self.size = ctx.stmts, slide, size
        self.inner = slide.interior
        self._start = self._stmts.let("start", tb.as_expr(self.inner.start))
        self._count = self._stmts.let("inner", tb.as_expr(self.inner.count))
        self._whole = self._count if self.inner.is_all else self._stmts.let("whole", tb.maximum(self._count, 0))

    @contextmanager
    def whole_windows(self) -> Iterator[_WindowPosition]:
        """Open the loop over complete windows."""
        slide, taps = self.slide, tb.const(self.slide.kernel)
        first, last = (at * slide.stride - slide.before for at in (self._start, self._start + self._count - 1))
        # always true if a complete window exists; the explicit test lets the bounds proof see it
        fits = tb.land(
            tb.binary("gt", self._count, 0),
            tb.binary("ge", first, 0),
            tb.binary("lt", last + (slide.extent - 1), self.size),
        )
        with self._stmts.when(fits), self._stmts.loop(self._count, "y") as step:
            index = step + self._start
            yield _WindowPosition(index, index * slide.stride - slide.before, taps, taps, slide.dilation)

    @contextmanager
    def border(self) -> Iterator[Expr]:
        """Open the loop over border windows; yield the output index."""
        with self._stmts.loop(self.slide.output - self._whole, "border") as step:
            skipped = self._whole * tb.cast(tb.binary("ge", step, self._start), "int32")
            yield self._stmts.let("y", tb.minimum(step + skipped, self.slide.output - 1))


class _PoolLoops:
    """The loops of one pooling operator."""

    def __init__(self, ctx: Context, data: Tensor, out: Output, layout: str, pooling: Pooling) -> None:
        self._ctx = ctx
        self._data = data
        self._out = out
        self._layout = layout
        self._pooling = pooling
        self._sizes = dict(zip(layout, data.shape, strict=True))
        self._batch, self._channels = self._sizes["N"], self._sizes["C"]

    def emit(self, axes: Sequence[WindowAxis]) -> None:
        """Write the loops over all windows."""
        kinds = list(product(*(axis.segments for axis in axes)))
        # on devices, separate launches for each kind of window would cost more than the work
        as_few = self._ctx.features.optimize == "size" or self._ctx.features.gpu
        if len(kinds) > _KINDS_LIMIT or (as_few and len(kinds) > 1):
            self._emit_from_tables(axes)
            return
        with self._ctx.stmts.loop(self._batch, "n") as n:
            for kind in kinds:
                with serial_loops(self._ctx, [segment.count for segment in kind], "y") as indices:
                    places = [
                        _WindowPosition(
                            index + segment.start, index * segment.stride + segment.first, tb.const(segment.taps),
                            tb.const(segment.divisor), axis.dilation,
                        )
                        for index, segment, axis in zip(indices, kind, axes, strict=True)
                    ]  # fmt: skip
                    if prod(segment.taps for segment in kind) <= _TAPS_LIMIT:
                        self._spelled_out(n, places, [range(segment.taps) for segment in kind])
                    else:
                        self._accumulated(n, places)

    def emit_dynamic(
        self, counts: Sequence[Extent], windows: Sequence[Callable[[Expr], Window]], dilations: Sequence[int]
    ) -> None:
        """Write the loops over all windows of data with dynamic dimensions."""
        axes = zip(letters_of(len(counts)), windows, dilations, strict=True)
        with self._ctx.stmts.loop(self._batch, "n") as n, serial_loops(self._ctx, counts, "y") as indices:
            places = [
                self._dynamic_position(index, window(index), dilation, self._sizes[letter])
                for index, (letter, window, dilation) in zip(indices, axes, strict=True)
            ]
            self._accumulated(n, places, is_dynamic=True)

    def emit_slides(self, slides: Sequence[Slide], *, count_padding: bool) -> None:
        """Write the loops over sliding windows along dynamic axes.

        Complete windows are unrolled. Border windows are unrolled too if there are few kinds: the number of taps inside
        the data is computed for each window and selects the code.
        """
        few = prod(slide.kernel for slide in slides) <= _TAPS_LIMIT
        if not few or self._ctx.features.optimize == "size" or self._ctx.features.gpu:
            windows = [partial(slide.window, count_padding=count_padding) for slide in slides]
            self.emit_dynamic([slide.output for slide in slides], windows, [slide.dilation for slide in slides])
            return
        letters = letters_of(len(slides))
        lines = [_DynamicAxis(self._ctx, slide, self._sizes[at]) for slide, at in zip(slides, letters, strict=True)]
        kinds = product(*((False,) if line.inner.is_all else (False, True) for line in lines))
        with self._ctx.stmts.loop(self._batch, "n") as n:
            for on_border in kinds:
                # border loops are outermost, so that the selection of their code runs rarely
                order = sorted(range(len(lines)), key=lambda axis: not on_border[axis])
                self._slid(n, lines, [(axis, on_border[axis]) for axis in order], {}, count_padding=count_padding)

    def _slid(
        self, n: Expr, lines: Sequence[_DynamicAxis], rest: Sequence[tuple[int, bool]],
        places: Mapping[int, _WindowPosition], *, count_padding: bool,
    ) -> None:  # fmt: skip
        """Write the loops over the axes that have no positions yet, each over complete or border windows."""
        if not rest:
            found = [places[axis] for axis in range(len(lines))]
            known = [range(int(place.taps.value)) for place in found if isinstance(place.taps, Const)]
            if len(known) == len(found):
                self._spelled_out(n, found, known)
            else:
                self._accumulated(n, found, is_dynamic=True)
            return
        (axis, on_border), *others = rest
        line = lines[axis]

        def go_on(place: _WindowPosition) -> None:
            self._slid(n, lines, others, {**places, axis: place}, count_padding=count_padding)

        if not on_border:
            with line.whole_windows() as place:
                go_on(place)
            return
        with line.border() as index:
            window = line.slide.window(index, count_padding=count_padding)
            place = self._dynamic_position(index, window, line.slide.dilation, line.size)
            if prod(item.slide.kernel for item in lines) > _KINDS_LIMIT:
                go_on(place)
                return
            fewest = int(line.slide.dilation == 1 and bounds(line.size)[0] > 0)
            for taps in range(fewest, line.slide.kernel):
                with self._ctx.stmts.when(tb.binary("eq", place.taps, taps)):
                    go_on(replace(place, taps=tb.const(taps)))

    def _dynamic_position(self, index: Expr, window: Window, dilation: int, size: Extent) -> _WindowPosition:
        values = zip(Window._fields, window, strict=True)
        first, taps, divisor = (self._ctx.stmts.let(name, value) for name, value in values)
        return _WindowPosition(index, first, taps, divisor, dilation, size - 1)

    def _emit_from_tables(self, axes: Sequence[WindowAxis]) -> None:
        stmts, fields = self._ctx.stmts, Window._fields
        tables = [
            [
                self._ctx.constant(name, np.array([getattr(window, name) for window in axis.windows], np.int32))
                for name in fields
            ]
            for axis in axes
        ]
        counts = [len(axis.windows) for axis in axes]
        with stmts.loop(self._batch, "n") as n, serial_loops(self._ctx, counts, "y") as indices:
            places = []
            for axis, index, row in zip(axes, indices, tables, strict=True):
                first, taps, divisor = (
                    stmts.let(name, tb.load(table, [index])) for name, table in zip(fields, row, strict=True)
                )
                last = max(window.first + (window.taps - 1) * axis.dilation for window in axis.windows)
                places.append(_WindowPosition(index, first, taps, divisor, axis.dilation, last))
            self._accumulated(n, places)

    def _indices(self, n: Expr, spatial: Sequence[Expr], channel: Expr) -> list[Expr]:
        letters = dict(zip(letters_of(len(spatial)), spatial, strict=True))
        return [{**letters, "N": n, "C": channel}[letter] for letter in self._layout]

    def _element(self, n: Expr, spatial: Sequence[Expr], channel: Expr) -> Expr:
        return tb.cast(self._data.read(self._indices(n, spatial, channel)), self._pooling.wide)

    def _store(self, n: Expr, places: Sequence[_WindowPosition], channel: Expr, total: Expr) -> None:
        divisor = tb.const(1)
        for place in places:
            divisor = divisor * place.divisor
        value = tb.cast(self._pooling.finish(total, divisor), self._out.dtype)
        self._out.store(self._indices(n, [place.output for place in places], channel), value)

    def _spelled_out(self, n: Expr, places: Sequence[_WindowPosition], taps: Sequence[range]) -> None:
        """Write each window as one unrolled expression; the inner loop is over the channels."""
        pooling = self._pooling
        with self._ctx.stmts.loop(self._channels, "c", "vectorized") as channel:
            elements = [
                self._element(n, [place.at(tap) for place, tap in zip(places, at, strict=True)], channel)
                for at in product(*taps)
            ]
            if not elements or (not pooling.average and dtypes.is_float(pooling.wide)):
                elements.insert(0, tb.const(pooling.neutral, pooling.wide))  # in case the first element is NaN
            self._store(n, places, channel, reduce(pooling.step, elements))

    def _accumulated(self, n: Expr, places: Sequence[_WindowPosition], *, is_dynamic: bool = False) -> None:
        """Write loops over the taps around accumulators of adjacent channels."""
        at_once = 1 if self._ctx.features.gpu else _CHANNELS
        whole, rest = self._channels // at_once, self._channels % at_once
        step = self._step_of_few(places) if is_dynamic else self._pooling.step
        if bounds(whole)[1]:
            with self._ctx.stmts.loop(whole, "tile") as tile:
                self._tile(n, places, tile * at_once, at_once, step)
        if bounds(rest)[1]:
            self._tile(n, places, tb.const(whole * at_once), rest, step)

    def _step_of_few(self, places: Sequence[_WindowPosition]) -> Step:
        """Return a step that starts sums of few taps with their first element, as unrolled sums do."""
        taps = reduce(lambda a, b: a * b, [place.taps for place in places])
        is_few = self._ctx.stmts.let("is_few", tb.binary("le", taps, _TAPS_LIMIT), "bool")
        plain = self._pooling.step
        if not self._pooling.average or not dtypes.is_float(self._pooling.wide):
            return plain

        def step(total: Expr, element: Expr, at: Sequence[Expr] = ()) -> Expr:
            is_first = tb.land(is_few, *(tb.binary("eq", tap, 0) for tap in at))
            return tb.select(is_first, element, plain(total, element))

        return step

    def _tile(self, n: Expr, places: Sequence[_WindowPosition], first: Expr, width: Extent, step: Step) -> None:
        stmts, pooling = self._ctx.stmts, self._pooling
        total = stmts.local("total", (_CHANNELS if isinstance(width, Dim) else width,), pooling.wide)
        with stmts.loop(width, "c", "vectorized") as c:
            stmts.store(total, [c], tb.const(pooling.neutral, pooling.wide))
        with ExitStack() as loops:
            taps = [loops.enter_context(stmts.loop(place.taps, f"t{axis}")) for axis, place in enumerate(places)]
            spatial = [place.at(tap) for place, tap in zip(places, taps, strict=True)]
            with stmts.loop(width, "c", "vectorized") as c:
                stmts.store(total, [c], step(tb.load(total, [c]), self._element(n, spatial, first + c), taps))
        with stmts.loop(width, "c", "vectorized") as c:
            self._store(n, places, first + c, tb.load(total, [c]))


def _layout_sizes(name: str, data: TensorType, attrs: Attrs) -> dict[str, int]:
    check_dtype(name, data.dtype, "number")
    if attrs["out_layout"] not in ("", attrs["layout"]):
        raise TypeCheckError(f"{name}: out_layout '{attrs['out_layout']}' differs from the layout")
    return named_sizes(name, "data", data.shape, attrs["layout"], f"NC{letters_of(_rank_of(name))}")


def _rank_of(name: str) -> int:
    """Return the number of spatial dimensions, which is the suffix of a pooling operator's name."""
    return int(name[-2])


def _slides(name: str, sizes: Mapping[str, int], attrs: Attrs) -> list[Slide]:
    rank = _rank_of(name)
    numbers = [per_dimension(name, what, attrs[what], rank) for what in ("pool_size", "strides", "dilation")]
    pads, ceil_mode = pad_pairs(name, attrs["padding"], rank), bool(attrs["ceil_mode"])
    return [
        Slide(sizes[letter], kernel, stride, dilation, before, after, ceil_mode)
        for letter, kernel, stride, dilation, (before, after) in zip(letters_of(rank), *numbers, pads, strict=True)
    ]


def pool_windows(name: str, types: Sequence[TensorType], attrs: Attrs) -> list[tuple[int, int, int, int]] | None:
    """Return window, stride and padding of each spatial dimension, for `Operator.windows`."""
    if attrs["ceil_mode"]:
        return None
    slides = _slides(name, _layout_sizes(name, types[0], attrs), attrs)
    return [(slide.extent, slide.stride, slide.before, slide.after) for slide in slides]


def _with_spatial(data: TensorType, layout: str, spatial: Sequence[int]) -> TensorType:
    letters = dict(zip(letters_of(len(spatial)), spatial, strict=True))
    return TensorType(tuple(letters.get(a, extent) for a, extent in zip(layout, data.shape, strict=True)), data.dtype)


def _infer_pool(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    slides = _slides(name, _layout_sizes(name, data, attrs), attrs)
    pads = [(pad, slide.extent) for slide in slides for pad in (slide.before, slide.after)]
    if any(isinstance(pad, int) and pad >= extent for pad, extent in pads):
        raise TypeCheckError(f"{name}: padding {attrs['padding']} is not smaller than the window {attrs['pool_size']}")
    if any(bounds(slide.output)[1] < 0 or bounds(slide.size)[1] < 1 for slide in slides):
        raise TypeCheckError(f"{name}: a window of {attrs['pool_size']} does not fit the data of {data.shape}")
    return _with_spatial(data, attrs["layout"], [slide.output for slide in slides])


def _emit_pool(name: str, ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    (data,) = inputs
    pooling = Pooling("avg" in name, data.dtype)
    sizes = dict(zip(attrs["layout"], data.shape, strict=True))
    count_padding = pooling.average and attrs["count_include_pad"]
    slides = _slides(name, sizes, attrs)
    spatial = [sizes[letter] for letter in letters_of(_rank_of(name))]
    if not is_static(spatial):
        _PoolLoops(ctx, data, out, attrs["layout"], pooling).emit_slides(slides, count_padding=count_padding)
        return
    axes = [slide.axis(count_padding=count_padding) for slide in slides]
    # a large window that covers the whole image is split among work-items; others keep the references' order of sums
    whole = [WindowAxis((Window(0, size, size),)) for size in spatial]
    if ctx.features.gpu and prod(spatial) > _TAPS_OF_AN_ITEM and axes == whole:
        _fold_spatial(ctx, data, attrs["layout"], pooling, out)
        return
    _PoolLoops(ctx, data, out, attrs["layout"], pooling).emit(axes)


def _fold_spatial(ctx: Context, data: Tensor, layout: str, pooling: Pooling, out: Output) -> None:
    """Write pooling over whole images; each element is read once."""
    spatial = tuple(axis for axis, letter in enumerate(layout) if letter not in "NC")
    axes = Axes(data.shape, spatial, keepdims=True)
    finish = partial(pooling.finish, divisor=tb.as_expr(axes.count))
    fold = Fold(pooling.wide, pooling.neutral, pooling.step, finish, rounds=pooling.average)
    emit_fold(ctx, data.read, axes, fold, out)


def _output_size(name: str, attrs: Attrs, spatial: Sequence[int]) -> tuple[int, ...]:
    """Return the spatial shape of the result; 1 in each dimension if the attribute is missing."""
    given = attrs.get("output_size", 1)
    if given in ((), None):
        return tuple(spatial)
    return per_dimension(name, "output_size", given, len(spatial))


def _infer_adaptive(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    sizes = _layout_sizes(name, data, attrs)
    spatial = [sizes[letter] for letter in letters_of(_rank_of(name))]
    if 0 in spatial:
        raise TypeCheckError(f"{name}: {data.shape} has no elements to pool")
    return _with_spatial(data, attrs["layout"], _output_size(name, attrs, spatial))


def _emit_adaptive(name: str, ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    (data,) = inputs
    sizes = dict(zip(attrs["layout"], data.shape, strict=True))
    spatial = [sizes[letter] for letter in letters_of(_rank_of(name))]
    output, pooling = _output_size(name, attrs, spatial), Pooling("avg" in name, data.dtype)
    if set(output) == {1}:
        _fold_spatial(ctx, data, attrs["layout"], pooling, out)
        return
    pairs = list(zip(spatial, output, strict=True))
    if not is_static((*spatial, *output)):
        windows = [partial(adaptive_window, size=size, output=fixed(name, count, "windows")) for size, count in pairs]
        _PoolLoops(ctx, data, out, attrs["layout"], pooling).emit_dynamic(output, windows, [1] * len(output))
        return
    axes = [adaptive_axis(size, count) for size, count in pairs]
    _PoolLoops(ctx, data, out, attrs["layout"], pooling).emit(axes)


_PADDING = Attr("count_include_pad", False)
for _how, _noun, _elements, _contract in (
    ("max", "Largest element", Elements.EXTREME, "exact"),
    ("avg", "Average", Elements.AVERAGED, "relative error below 1e-6 of the mean magnitude; integers truncate"),
):
    _declare = partial(declare, num_inputs=1, elements=_elements, contract=_contract)
    for _rank in (1, 2, 3):
        _layout = (Attr("layout", f"NC{letters_of(_rank)}"), Attr("out_layout", ""))
        _attrs = (
            Attr("pool_size", REQUIRED), Attr("strides", (1,) * _rank), Attr("dilation", (1,) * _rank),
            Attr("padding", (0,) * max(_rank, 2)), *_layout, Attr("ceil_mode", False),
        )  # fmt: skip
        _name = f"nn.{_how}_pool{_rank}d"
        _declare(_name, infer=_infer_pool, kind=Kind.ANCHOR, attrs=(*_attrs, _PADDING) if _how == "avg" else _attrs,
                 emit=partial(_emit_pool, _name), windows=partial(pool_windows, _name),
                 doc=f"{_noun} of each window")  # fmt: skip
        _name = f"nn.adaptive_{_how}_pool{_rank}d"
        _declare(_name, infer=_infer_adaptive, kind=Kind.ANCHOR, attrs=(Attr("output_size", ()), *_layout),
                 emit=partial(_emit_adaptive, _name),
                 doc=f"{_noun} of each window; a given number of windows covers the data evenly")  # fmt: skip
        if _rank == 2:
            _name = f"nn.global_{_how}_pool2d"
            _declare(_name, infer=_infer_adaptive, kind=Kind.REDUCE, attrs=_layout,
                     emit=partial(_emit_adaptive, _name), doc=f"{_noun} of each channel")  # fmt: skip
