"""Profile output: an HTML page, JSON, and a trace for Chrome and Perfetto."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlfc.archive.describe.pages import Cell, filled_page, html_of, name_cell, number, sortable
from mlfc.library.peaks import MEMORY, Peaks
from mlfc.runtime.executors.profile import OperatorTime, Profile
from mlfc.support.text import printable, shortened

MOST_ROWS = 2_000
"""Rows of the table: the slowest operators; larger pages are slow to display."""
_WIDTH, _ROW = 1200.0, 22
_THINNEST = 1.0
_CHARACTER = 6.2  # approximate character width at this font size, for what fits
_NAME = 300  # maximum characters of names in tooltips
_NO_PEAK = "#bbb"
_REST = "#ddd"
_DEPTH = 4  # maximum depth of nested stages
_WORDS = 32  # maximum words of a name that are used
_PATH = re.compile(r"[^/.]*[/.]+|[^/.]+")
_UNDERSCORED = re.compile(r"[^/._]*[/.]+|[^/._]*_+(?:\d+(?:_+|(?=[/.]|$)))*|[^/._]+")
_COLUMNS = (
    "#", "operator", "function", "median us", "share", "M MAC", "GMAC/s", "bytes", "GB/s", "bound", "of peak", "balance"
)  # fmt: skip
_NAMES = ("operator", "function", "bound")
_PROCESS = 1
_SHOWN_TENSORS = 32
_TRACE_NAME = 200


def profile_page(model: str, profile: Profile, peaks: Peaks | None) -> str:
    """Return the page; `model` and all names may be hostile."""
    operators = sorted(profile.operators, key=lambda item: -item.nanoseconds)
    count, listed = len(operators), operators[:MOST_ROWS]
    shown = f"{count:,} operators"
    if count > len(listed):
        share = sum(item.share for item in listed)
        shown = f"The slowest {len(listed):,} of {count:,} operators, which take {share:.1%} of their time"
    drawn = list(_parts(stages(model, profile.operators), 0.0, _WIDTH, 0, peaks))
    height = (1 + max(level for level, _ in drawn)) * _ROW
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height}" role="img">'
    return filled_page(
        "profile_page.html",
        title=_text(f"Profile of {model}"),
        facts=_text(_facts(profile, peaks)),
        flame="\n".join([picture, *(line for _, line in drawn), "</svg>"]),
        shown=_text(f"{shown}; a click on a heading sorts by it."),
        table=sortable(_COLUMNS, _NAMES, [_row(operator_row(item, peaks), operator_name(item)) for item in listed]),
    )


def _facts(profile: Profile, peaks: Peaks | None) -> str:
    median = float(np.median(profile.runs)) * 1e3 if profile.runs else 0.0
    operators = sum(item.nanoseconds for item in profile.operators) / 1e6
    told = f"Median of {len(profile.runs)} runs: {median:.4g} ms, of operators {operators:.4g} ms."
    if peaks is None:
        return f"{told} The machine's peaks are unknown."
    threads = f"{peaks.threads} threads" if peaks.threads > 1 else "one thread"
    return (
        f"{told} Measured peaks of {peaks.processor} with {threads}: {peaks.float32 / 1e9:,.0f} G float32 and "
        f"{peaks.int8 / 1e9:,.0f} G int8 multiply-accumulates, {peaks.bandwidth[-1][1] / 1e9:,.0f} GB from memory a "
        f"second. {' '.join(f'Shares {text}.' for text in peaks.explanations(profile.operators))}"
    ).rstrip()


def _row(row: dict[str, Any], name: str) -> tuple[object, ...]:
    share, bound = row["share_of_peak"], row["bound"]
    bar = ""
    if share is not None:
        kind = "bar memory" if bound == MEMORY else "bar"
        width = f"{min(share, 1.0) * 100:.1f}%"
        bar = f'<span class="track"><span class="{kind}" style="width:{width}"></span></span>{share:.1%}'
    return (
        Cell(row["index"]),
        name_cell(name),
        name_cell(row["function"]),
        _formatted(row["median_us"], "{:,.2f}"),
        _formatted(row["share"], "{:.1%}"),
        number(row["macs"], text=f"{row['macs'] / 1e6:,.3f}" if row["macs"] else ""),
        _formatted(row["gmacs_per_second"], "{:,.1f}"),
        row["bytes"],
        _formatted(row["gbytes_per_second"], "{:,.1f}"),
        bound or "",
        Cell(-1 if share is None else share, html=bar),
        _formatted(row["balance"], "{:.0%}"),
    )


def _formatted(value: float | None, form: str) -> Cell:
    return number(value, text=None if value is None else form.format(value))


@dataclass
class Stage:
    """A part of a model, and its time."""

    name: str
    nanoseconds: float = 0.0
    parts: dict[str, Stage] = field(default_factory=dict)
    operators: list[OperatorTime] = field(default_factory=list)

    def all_operators(self) -> list[OperatorTime]:
        """Return the operators of this stage and of all its parts."""
        return [*self.operators, *(item for part in self.parts.values() for item in part.all_operators())]


def stages(model: str, operators: Sequence[OperatorTime]) -> Stage:
    """Return the tree of a model's operators by name; parts are in the order of their first operators."""
    root = Stage(model)
    # the first node's name: converters join names of fused nodes, and importers append the operator's type
    names = [(*item.nodes, item.function)[0].partition(";")[0].partition(" (")[0] for item in operators]
    pattern = _PATH if sum("/" in name or "." in name for name in names) * 2 > len(names) else _UNDERSCORED
    for item, name in zip(operators, names, strict=True):
        at = root
        at.nanoseconds += item.nanoseconds
        # the last word is the operator's own
        for word in pattern.findall(name)[:_WORDS][:-1]:
            at = at.parts.setdefault(word, Stage(word))
            at.nanoseconds += item.nanoseconds
        at.operators.append(item)
    whole = root
    while len(whole.parts) == 1 and not whole.operators:  # a prefix common to all names carries no information
        (whole,) = whole.parts.values()
    return _joined(Stage(model, root.nanoseconds, whole.parts, whole.operators), 0)


def _joined(stage: Stage, depth: int) -> Stage:
    """Join a stage with its only part, and leave out stages that are too deep or stand for one operator."""
    parts: dict[str, Stage] = {}
    operators = list(stage.operators)
    for key, whole in stage.parts.items():
        part = whole
        while len(part.parts) == 1 and not part.operators:
            (inner,) = part.parts.values()
            part = Stage(part.name + inner.name, inner.nanoseconds, inner.parts, inner.operators)
        inside = part.all_operators()
        if depth == _DEPTH or len(inside) < 2:
            operators += inside
        else:
            parts[key] = _joined(part, depth + 1)
    operators.sort(key=lambda item: item.index)
    return Stage(stage.name, stage.nanoseconds, parts, operators)


def _parts(stage: Stage, x: float, width: float, level: int, peaks: Peaks | None) -> Iterator[tuple[int, str]]:
    """Yield a rectangle for a stage and each one below it, but one for all that are too thin to see."""
    told = f"{stage.name}: {stage.nanoseconds / 1e3:,.2f} us"
    limits = [(item.nanoseconds, peaks.limit(item)) for item in stage.all_operators()] if peaks is not None else []
    known = sum(spent for spent, limit in limits if limit is not None)
    gained = sum(spent * limit.share for spent, limit in limits if limit is not None)
    yield level, _rectangle(x, width, level, _colour(gained / known if known else None), stage.name, told)
    total = stage.nanoseconds or 1.0
    parts: list[Stage | OperatorTime] = [*stage.parts.values(), *stage.operators]
    # by the position of the first operator
    places = ([item] if isinstance(item, OperatorTime) else item.all_operators() for item in parts)
    order = [min(one.index for one in listed) for listed in places]
    inside = [parts[place] for place in sorted(range(len(parts)), key=order.__getitem__)]
    thin, at = [item for item in inside if width * item.nanoseconds / total < _THINNEST], x
    for item in inside:
        across = width * item.nanoseconds / total
        if across < _THINNEST:
            continue
        if isinstance(item, Stage):
            yield from _parts(item, at, across, level + 1, peaks)
        else:
            name = operator_name(item)
            limit = None if peaks is None else peaks.limit(item)
            told = f"{name}: {item.nanoseconds / 1e3:,.2f} us, {item.share:.1%}"
            told += f"; {limit}" if limit is not None else ""
            colour = _colour(None if limit is None else limit.share)
            yield level + 1, _rectangle(at, across, level + 1, colour, name, told)
        at += across
    across = width * sum(item.nanoseconds for item in thin) / total
    if across >= _THINNEST / 10:
        told = f"{len(thin):,} more: {sum(item.nanoseconds for item in thin) / 1e3:,.2f} us"
        yield level + 1, _rectangle(at, across, level + 1, _REST, told, told)


def _colour(share: float | None) -> str:
    return _NO_PEAK if share is None else f"hsl({min(share, 1.0) * 120:.0f},60%,65%)"


def _rectangle(x: float, width: float, level: int, colour: str, name: str, told: str) -> str:
    room = int((width - 6) / _CHARACTER)
    y = level * _ROW
    label = f'<text x="{x + 3:.2f}" y="{y + 15}">{_text(shortened(name, room))}</text>' if room >= 6 else ""
    return (
        f'<g><title>{_text(told)}</title><rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 1}" '
        f'fill="{colour}" stroke="#fff" stroke-width=".5"/>{label}</g>'
    )


def _text(text: str) -> str:
    return html_of(shortened(text, _NAME))


def operator_name(item: OperatorTime) -> str:
    """Return an operator's display name: its nodes of the original model, else its function."""
    return ", ".join(item.nodes) or item.function


def operator_row(item: OperatorTime, peaks: Peaks | None) -> dict[str, Any]:
    """Return an operator as a JSON object; without peaks it lacks the comparison with the machine."""
    limit = None if peaks is None else peaks.limit(item)
    return {
        "index": item.index,
        "function": item.function,
        "nodes": list(item.nodes),
        "macs": item.macs,
        "bytes": item.nbytes,
        "tensors": list(item.tensors),
        "median_us": item.nanoseconds / 1e3,
        "share": item.share,
        "gmacs_per_second": item.gmacs_per_second,
        "gbytes_per_second": item.gbytes_per_second,
        "bound": limit and limit.bound,
        "share_of_peak": limit and limit.share,
        "compute_share_of_peak": limit and limit.compute,
        "memory_share_of_peak": limit and limit.memory,
        "threads_us": [spent / 1e3 for spent in item.threads],
        "balance": item.balance,
    }


def trace_text(name: str, profile: Profile, peaks: Peaks | None) -> str:
    """Return a profile in the trace-event format: a track for each thread, an event for each call of an operator.

    Times are in microseconds since the first operator; events of a run are nested in one for the whole run.
    """
    timeline = profile.timeline
    left_out = 0 if timeline is None else timeline.left_out
    document: dict[str, Any] = {
        "displayTimeUnit": "ns",
        "otherData": {"model": name, "runs": len(profile.runs), "calls_left_out": left_out},
        "traceEvents": list(_events(name, profile, peaks)),
    }
    if peaks is not None:
        document["otherData"]["peaks"] = peaks.to_json()
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _events(name: str, profile: Profile, peaks: Peaks | None) -> Iterator[dict[str, Any]]:
    yield _named("process_name", 0, _short_text(name))
    timeline = profile.timeline
    if timeline is None or not len(timeline):
        return
    for thread in np.unique(timeline.thread).tolist():
        yield _named("thread_name", thread, "caller's thread" if thread == 0 else f"thread {thread}")
    ends = timeline.start + timeline.duration
    for run in np.unique(timeline.run).tolist():
        inside = timeline.run == run
        start = int(timeline.start[inside].min())
        yield _event(f"run {run}", "run", 0, start, int(ends[inside].max()) - start, {"run": run})
    described = []
    for row, item in ((operator_row(item, peaks), item) for item in profile.operators):
        told = {key: row[key] for key in ("index", "function", "macs", "bytes", "bound", "share_of_peak")}
        described.append({**told, "shapes": list(map(_short_text, item.tensors[:_SHOWN_TENSORS]))})
    columns = (timeline.run, timeline.operator, timeline.thread, timeline.start, timeline.duration)
    for run, operator, thread, start, duration in zip(*(column.tolist() for column in columns), strict=True):
        title = _short_text(operator_name(profile.operators[operator]))
        yield _event(title, "operator", thread, start, duration, {"run": run, **described[operator]})


def _named(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _event(name: str, category: str, thread: int, start: int, duration: int, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": _PROCESS,
        "tid": thread,
        "ts": start / 1e3,
        "dur": duration / 1e3,
        "args": args,
    }


def _short_text(name: str) -> str:
    return shortened(printable(name), _TRACE_NAME)
