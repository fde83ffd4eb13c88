"""Windows of pooling: which input elements each output element sees, resolved before any code is made.

Where sizes are fixed, every output index has a known first input index and a known number of taps. Runs of
neighbouring outputs whose windows have the same number of taps at evenly spaced places become one `Segment`: the
interior is one, each kind of border another. Loops over a segment need no tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from mlfc.support.dims import Dim, Extent, minimum
from mlfc.tir import builder as tb
from mlfc.tir.ir import Expr


@dataclass(frozen=True)
class Window:
    """What one output index of one axis sees."""

    first: int  # first input index
    taps: int  # input elements, `dilation` apart
    divisor: int  # what the axis contributes to the divisor of an average


@dataclass(frozen=True)
class Segment:
    """Output indices ``start .. start + count - 1``; window i of them begins at ``first + i * stride``."""

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
        """The windows in as few segments as their order allows."""
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


class DynamicWindow(NamedTuple):
    """What an output index sees, as the code works it out; the fields are those of `Window`."""

    first: Expr
    taps: Expr
    divisor: Expr


@dataclass(frozen=True)
class Interior:
    """The output indices whose windows are whole: `count` of them from `start` on; none where it is below 1."""

    start: Any
    count: Any
    is_all: bool  # whether these are known to be all windows


def adaptive_window(index: Expr, size: Extent, output: int) -> DynamicWindow:
    """Return one of the windows of `adaptive_axis` of an axis whose size the run decides."""
    first = index * size // output
    taps = ((index + 1) * size + (output - 1)) // output - first
    return DynamicWindow(first, taps, taps)


@dataclass(frozen=True)
class Slide:
    """A window that slides along one axis, with padding before and after.

    With `ceil_mode`, a last window that reaches beyond the padded input counts; it must begin inside the input or the
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
        if isinstance(room, Dim):
            if not self.ceil_mode:
                return room // self.stride + 1
            # as below, for padding is smaller than the window
            return minimum(-(-room // self.stride) + 1, -(-(self.size + self.before) // self.stride))
        if room < 0 or not self.ceil_mode:
            return room // self.stride + 1
        count = -(-room // self.stride) + 1
        return count - 1 if (count - 1) * self.stride >= self.size + self.before else count

    @property
    def interior(self) -> Interior:
        """The windows that have all their taps on the data."""
        start = -(-self.before // self.stride)
        count = (self.size + self.before - self.extent) // self.stride + 1 - start
        return Interior(start, count, start == 0 and count == self.output)

    def window(self, index: Expr, *, count_padding: bool) -> DynamicWindow:
        """Return what an output index sees of an axis whose size the run decides."""
        begin = index * self.stride - self.before
        step, size = self.dilation, tb.as_expr(self.size)
        lowest = tb.maximum((step - 1 - begin) // step, 0)
        highest, padded = (
            tb.minimum((end - begin + (step - 1)) // step, self.kernel) for end in (size, size + self.after)
        )
        taps = tb.maximum(highest - lowest, 0)
        return DynamicWindow(begin + lowest * step, taps, padded if count_padding else taps)

    def axis(self, *, count_padding: bool) -> WindowAxis:
        """Return the windows; with `count_padding`, taps on padding count for averages."""
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
    """Return windows that divide `size` elements as evenly as may be among `output` results."""
    windows = []
    for index in range(output):
        first = index * size // output
        last = -(-(index + 1) * size // output)
        windows.append(Window(first, last - first, last - first))
    return WindowAxis(tuple(windows))
