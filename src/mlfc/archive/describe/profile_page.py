"""A profile as one page of HTML that needs no network: where the time goes, as a picture and as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mlfc.archive.describe.pages import Cell, filled_page, html_of, name_cell, number, sortable
from mlfc.archive.describe.profile_rows import operator_name, operator_row
from mlfc.archive.describe.stages import Stage, stages
from mlfc.library.peaks import MEMORY, Peaks
from mlfc.runtime.executors.profile import OperatorTime, Profile
from mlfc.support.text import shortened

MOST_ROWS = 2_000
"""Of the table, the slowest operators; pages of more are slow to show."""
_WIDTH, _ROW = 1200.0, 22
_THINNEST = 1.0
_CHARACTER = 6.2  # width of one at this font size, near enough to know what fits
_NAME = 300  # characters of names where they are pointed at
_NO_PEAK = "#bbb"
_REST = "#ddd"
_COLUMNS = (
    "#", "operator", "function", "median us", "share", "M MAC", "GMAC/s", "bytes", "GB/s", "bound", "of peak", "balance"
)  # fmt: skip
_NAMES = ("operator", "function", "bound")


def profile_page(model: str, profile: Profile, peaks: Peaks | None) -> str:
    """Return the page; `model` and all names may be hostile."""
    operators = sorted(profile.operators, key=lambda item: -item.nanoseconds)
    count = len(operators)
    listed = operators[:MOST_ROWS]
    shown = f"{count:,} operators; a click on a heading sorts by it."
    if count > len(listed):
        share = sum(item.share for item in listed)
        shown = f"The slowest {len(listed):,} of {count:,} operators, which take {share:.1%} of their time; a click on "
        shown += "a heading sorts by it."
    return filled_page(
        "profile_page.html",
        title=_text(f"Profile of {model}"),
        facts=_text(_facts(profile, peaks)),
        flame="\n".join(_flame(stages(model, profile.operators), peaks)),
        shown=_text(shown),
        table=sortable(_COLUMNS, _NAMES, [_row(operator_row(item, peaks), operator_name(item)) for item in listed]),
    )


def _facts(profile: Profile, peaks: Peaks | None) -> str:
    median = float(np.median(profile.runs)) * 1e3 if profile.runs else 0.0
    operators = sum(item.nanoseconds for item in profile.operators) / 1e6
    told = f"Median of {len(profile.runs)} runs: {median:.4g} ms, of operators {operators:.4g} ms."
    if peaks is None:
        return f"{told} The machine's peaks are not known."
    threads = f"{peaks.threads} threads" if peaks.threads > 1 else "one thread"
    return (
        f"{told} Measured peaks of {peaks.processor} with {threads}: {peaks.float32 / 1e9:,.0f} G float32 and "
        f"{peaks.int8 / 1e9:,.0f} G int8 multiply-accumulates, {peaks.bandwidth[-1][1] / 1e9:,.0f} GB from memory a "
        "second."
    )


def _row(row: dict[str, Any], name: str) -> tuple[Cell, ...]:
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
        number(row["bytes"]),
        _formatted(row["gbytes_per_second"], "{:,.1f}"),
        Cell(bound or ""),
        Cell(-1 if share is None else share, html=bar),
        _formatted(row["balance"], "{:.0%}"),
    )


def _formatted(value: float | None, form: str) -> Cell:
    return number(value, text=None if value is None else form.format(value))


def _flame(root: Stage, peaks: Peaks | None) -> Iterator[str]:
    drawn = list(_parts(root, 0.0, _WIDTH, 0, peaks))
    height = (1 + max(level for level, _ in drawn)) * _ROW
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height}" role="img">'
    yield from (line for _, line in drawn)
    yield "</svg>"


def _parts(stage: Stage, x: float, width: float, level: int, peaks: Peaks | None) -> Iterator[tuple[int, str]]:
    """Yield a stage and what is below it: a rectangle each, but one for all that is too thin to see."""
    told = f"{stage.name}: {stage.nanoseconds / 1e3:,.2f} us"
    yield level, _rectangle(x, width, level, _colour(_share_of(stage, peaks)), stage.name, told)
    total = stage.nanoseconds or 1.0
    inside: list[Stage | OperatorTime] = sorted([*stage.parts.values(), *stage.operators], key=_first)
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
            told += f"; {limit.share:.1%} of the peak of {limit.bound}" if limit is not None else ""
            colour = _colour(None if limit is None else limit.share)
            yield level + 1, _rectangle(at, across, level + 1, colour, name, told)
        at += across
    across = width * sum(item.nanoseconds for item in thin) / total
    if across >= _THINNEST / 10:
        told = f"{len(thin):,} more: {sum(item.nanoseconds for item in thin) / 1e3:,.2f} us"
        yield level + 1, _rectangle(at, across, level + 1, _REST, told, told)


def _first(item: Stage | OperatorTime) -> int:
    """Return the place of the first operator."""
    if isinstance(item, OperatorTime):
        return item.index
    first: list[Stage | OperatorTime] = [*item.operators[:1], *list(item.parts.values())[:1]]
    return min(map(_first, first))


def _share_of(stage: Stage, peaks: Peaks | None) -> float | None:
    """Return the share of the peak that a stage's operators reach together; None if that of none is known."""
    known, gained = 0.0, 0.0
    remaining = [stage]
    while remaining and peaks is not None:
        part = remaining.pop()
        remaining += part.parts.values()
        for item in part.operators:
            limit = peaks.limit(item)
            if limit is not None:
                known += item.nanoseconds
                gained += item.nanoseconds * limit.share
    return gained / known if known else None


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
