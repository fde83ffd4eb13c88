"""Measurements of a module's calls for its page: costs, their pictures, and differences from a reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlfc.archive.describe.pages import html_of
from mlfc.library.peaks import MEMORY, Peaks, Roofline
from mlfc.runtime.executors.profile import OperatorTime
from mlfc.support.text import shortened

MICROSECONDS, INSTRUCTIONS = "us", "instructions"
MOST_BARS = 4_000
_WIDTH, _LEFT, _RIGHT = 1100, 80, 20
_BARS, _ROOF = 200, 380  # heights of both pictures, without margins
_TOP, _BOTTOM = 30, 46
_LABELLED = 8  # points of the roofline with a label: the slowest
_NEAR = 24  # points that are closer share a label
_STEPS = (1, 2, 5)  # multiples of a power of ten with grid lines
_NAME = 60


@dataclass(frozen=True)
class Costs:
    """Cost of each call of a module, in the order of its operators."""

    where: str  # the processor or board that ran it, for display
    unit: str  # MICROSECONDS or INSTRUCTIONS
    calls: tuple[float, ...]
    operators: tuple[OperatorTime, ...] = ()  # of this machine, with the peaks for comparison
    peaks: Peaks | None = None  # of this machine

    @property
    def total(self) -> float:
        """Total cost of all calls."""
        return sum(self.calls)

    def text(self, cost: float) -> str:
        """Return a cost with its unit."""
        return f"{cost:,.0f} instructions" if self.unit == INSTRUCTIONS else f"{cost:,.2f} us"

    def limit(self, index: int) -> Roofline | None:
        """Compare a call with this machine's peaks, if they are known."""
        return self.peaks.limit(self.operators[index]) if self.peaks and index < len(self.operators) else None


@dataclass(frozen=True)
class TensorDifference:
    """Difference of a tensor of the model from its reference."""

    tensor: str
    largest: float
    allowed: float
    is_within: bool
    verdict: str

    def badness(self) -> tuple[bool, float, float]:
        """Return a sort key: differences beyond the tolerance last, then by their ratio to it."""
        return not self.is_within, self.largest / self.allowed if self.allowed else self.largest, self.largest


@dataclass(frozen=True)
class ModuleMeasurements:
    """Measurements of a page's module; parts that were not measured are None."""

    costs: Costs | None = None
    reference: str = ""
    differences: Mapping[str, TensorDifference] = field(default_factory=dict)  # by tensor

    def difference(self, tensors: Sequence[str]) -> TensorDifference | None:
        """Return the worst difference among tensors: one beyond the tolerance, else the largest ratio to it."""
        known = [self.differences[name] for name in tensors if name in self.differences]
        return max(known, key=TensorDifference.badness) if known else None


NOTHING = ModuleMeasurements()


def cost_bars(operators: Sequence[Mapping[str, Any]], costs: Costs) -> str:
    """Return an SVG with a bar for each call, in their order."""
    most = max(costs.calls, default=0.0) or 1.0
    across = (_WIDTH - _LEFT - _RIGHT) / max(1, len(costs.calls))
    title = html_of(f"{costs.text(costs.total)} on {costs.where}")
    parts = [f'<text x="{_LEFT}" y="16" class="title">{title}</text>']
    for quarter in range(5):
        y, amount = _TOP + _BARS * (4 - quarter) / 4, most * quarter / 4
        shown = f"{amount:,.0f}" if amount >= 100 or not amount else f"{amount:,.3g}"
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:g}" x2="{_WIDTH - _RIGHT}" y2="{y:g}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end">{shown}</text>')
    for index, (operator, cost) in enumerate(zip(operators, costs.calls, strict=True)):
        height, x = _BARS * cost / most, _LEFT + across * index
        limit = costs.limit(index)
        kind = "bar memory" if limit is not None and limit.bound == MEMORY else "bar"
        share = cost / costs.total if costs.total else 0.0
        told = f"call {index}: {_name(operator)}: {costs.text(cost)}, {share:.1%}"
        told += f"; {limit}" if limit is not None else ""
        parts.append(
            f'<g><title>{html_of(told)}</title><rect class="{kind}" x="{x:.2f}" y="{_TOP + _BARS - height:.2f}" '
            f'width="{max(across - 1, across * 0.8):.2f}" height="{height:.2f}"/></g>'
        )
    for place, bound in enumerate(("compute", MEMORY) if costs.peaks is not None else ()):
        kind, x = "bar memory" if bound == MEMORY else "bar", _WIDTH - _RIGHT - 260 + 130 * place
        parts.append(f'<rect class="{kind}" x="{x}" y="8" width="10" height="10"/>')
        parts[-1] += f'<text x="{x + 14}" y="17">bound by {bound}</text>'
    step = max(1, len(costs.calls) // 20)
    for index in range(0, len(costs.calls), step):
        x = _LEFT + across * (index + 0.5)
        parts.append(f'<text x="{x:.2f}" y="{_TOP + _BARS + 16}" text-anchor="middle">{index}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_TOP + _BARS + 36}">call</text>')
    return _svg(_TOP + _BARS + _BOTTOM, f"{costs.unit} of each call", parts)


@dataclass(frozen=True)
class _Point:
    """A call of the roofline."""

    index: int
    name: str
    intensity: float  # multiply-accumulates per byte
    speed: float  # multiply-accumulates per second or per instruction
    cost: float

    def size(self, total: float) -> float:
        return 4 + 14 * math.sqrt(self.cost / total)


def roofline(operators: Sequence[Mapping[str, Any]], costs: Costs) -> str | None:
    """Return an SVG of calls by multiply-accumulates per byte and speed, below the machine's limits if known.

    Returns None if no call has multiply-accumulates.
    """
    points = list(_points(operators, costs))
    if not points:
        return None
    roofs = _roofs(costs)
    across = [math.log10(point.intensity) for point in points]
    speeds = [math.log10(point.speed) for point in points]
    speeds += [math.log10(roof.value) for roof in roofs if not roof.is_bandwidth]
    frame = _LogAxes((min(across) - 0.3, max(across) + 0.3), (min(speeds) - 0.3, max(speeds) + 0.3))
    speed = "MACs an instruction" if costs.unit == INSTRUCTIONS else "G MACs a second"
    parts = [*frame.axes(speed)]
    for roof in roofs:
        parts += frame.roof(roof)
    total = costs.total or 1.0
    labels: dict[tuple[int, int], list[_Point]] = {}
    for point in sorted(points, key=lambda point: -point.cost)[:_LABELLED]:
        x, y = frame.place(point.intensity, point.speed)
        labels.setdefault((round(x / _NEAR), round(y / _NEAR)), []).append(point)
    for point in points:
        x, y = frame.place(point.intensity, point.speed)
        told = f"call {point.index}: {point.name}: {point.intensity:,.3g} MACs a byte, {point.speed:,.3g} {speed}, "
        told += costs.text(point.cost)
        circle = f'<circle class="point" cx="{x:.2f}" cy="{y:.2f}" r="{point.size(total):.2f}"/>'
        parts.append(f"<g><title>{html_of(told)}</title>{circle}</g>")
    for together in labels.values():
        x, y = frame.place(together[0].intensity, together[0].speed)
        y -= together[0].size(total)
        text = ", ".join(str(index) for index in sorted(point.index for point in together))
        parts.append(f'<text x="{x:.2f}" y="{y - 3:.2f}" text-anchor="middle">{text}</text>')
    return _svg(_TOP + _ROOF + _BOTTOM, "Roofline", parts)


def _points(operators: Sequence[Mapping[str, Any]], costs: Costs) -> Iterator[_Point]:
    """Yield calls with multiply-accumulates: those measured with dynamic dimensions, else those in the archive."""
    unit = 1.0 if costs.unit == INSTRUCTIONS else 1e-3  # calls per microsecond to billions per second
    for index, (call, cost) in enumerate(zip(operators, costs.calls, strict=True)):
        macs, nbytes = call["macs"], call["bytes"]
        if costs.operators:
            macs, nbytes = costs.operators[index].macs, costs.operators[index].nbytes or nbytes
        if isinstance(macs, int) and macs > 0 and isinstance(nbytes, int) and nbytes > 0 and cost > 0:
            yield _Point(index, _name(call), macs / nbytes, macs / cost * unit, cost)


@dataclass(frozen=True)
class _Roof:
    """A limit in billions per second: of operations, or of bytes if `is_bandwidth`."""

    name: str
    value: float
    is_bandwidth: bool


def _roofs(costs: Costs) -> list[_Roof]:
    peaks = costs.peaks
    if peaks is None or costs.unit == INSTRUCTIONS:
        return []
    used = {item.tensors[0].partition("[")[0] for item in costs.operators if item.tensors and item.macs}
    rates = {"int8": peaks.int8, "float32": peaks.float32}
    kinds = [kind for kind in rates if kind in used] or ["float32"]
    found = [_Roof(f"{kind}: {rates[kind] / 1e9:,.0f} G MACs a second", rates[kind] / 1e9, False) for kind in kinds]
    ways = (("nearest cache", peaks.bandwidth[0][1]), ("memory", peaks.bandwidth[-1][1]))
    return [*found, *(_Roof(f"{name}: {rate / 1e9:,.0f} GB a second", rate / 1e9, True) for name, rate in ways)]


@dataclass(frozen=True)
class _LogAxes:
    """Two logarithmic axes, each with the exponents of its first and last power of ten."""

    x: tuple[float, float]
    y: tuple[float, float]

    def place(self, intensity: float, speed: float) -> tuple[float, float]:
        across = (math.log10(intensity) - self.x[0]) / (self.x[1] - self.x[0])
        up = (math.log10(speed) - self.y[0]) / (self.y[1] - self.y[0])
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * across, _TOP + _ROOF * (1 - up)

    def axes(self, speed: str) -> Iterator[str]:
        for value in _ticks(*self.x):
            x, _ = self.place(value, 10 ** self.y[0])
            yield f'<line class="grid" x1="{x:.2f}" y1="{_TOP}" x2="{x:.2f}" y2="{_TOP + _ROOF}"/>'
            yield f'<text x="{x:.2f}" y="{_TOP + _ROOF + 16}" text-anchor="middle">{value:g}</text>'
        for value in _ticks(*self.y):
            _, y = self.place(10 ** self.x[0], value)
            yield f'<line class="grid" x1="{_LEFT}" y1="{y:.2f}" x2="{_WIDTH - _RIGHT}" y2="{y:.2f}"/>'
            yield f'<text x="{_LEFT - 6}" y="{y + 4:.2f}" text-anchor="end">{value:g}</text>'
        yield f'<text x="{_WIDTH - _RIGHT}" y="{_TOP + _ROOF + 36}" text-anchor="end">MACs a byte</text>'
        yield f'<text x="{_LEFT}" y="16">{speed}</text>'

    def roof(self, roof: _Roof) -> Iterator[str]:
        """Yield a roof's line and name: horizontal for compute, rising for bandwidth, up to the top of the frame."""
        low, high = 10 ** self.x[0], 10 ** self.x[1]
        top = 10 ** self.y[1]
        first = max(low, 10 ** self.y[0] / roof.value) if roof.is_bandwidth else low
        last = min(high, top / roof.value) if roof.is_bandwidth else high
        if first >= last:
            return
        ends = [(x, x * roof.value if roof.is_bandwidth else roof.value) for x in (first, last)]
        (x1, y1), (x2, y2) = (self.place(*end) for end in ends)
        yield f'<line class="roof" x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"/>'
        if roof.is_bandwidth:
            angle = math.degrees(math.atan2(y2 - y1, x2 - x1))
            x, y = x1 + (x2 - x1) * 0.1, y1 + (y2 - y1) * 0.1 - 8
            yield f'<text x="{x:.2f}" y="{y:.2f}" transform="rotate({angle:.2f} {x:.2f} {y:.2f})">{roof.name}</text>'
        else:
            yield f'<text x="{x2 - 6:.2f}" y="{y2 - 5:.2f}" text-anchor="end">{roof.name}</text>'


def _ticks(low: float, high: float) -> Iterator[float]:
    """Yield the round values between two powers of ten."""
    for power in range(math.floor(low), math.floor(high) + 1):
        for step in _STEPS:
            if low <= math.log10(step) + power <= high:
                yield step * 10.0**power


def _svg(height: int, label: str, parts: Sequence[str]) -> str:
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{html_of(label)}">\n{body}\n</svg>'


def _name(operator: Mapping[str, Any]) -> str:
    return shortened(", ".join(operator["nodes"] or ()) or operator["function"], _NAME)
