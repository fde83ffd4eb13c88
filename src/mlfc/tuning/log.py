"""Tuning log writer: one line per finished measurement, so an interruption only loses measurements in progress."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from html import escape
from pathlib import Path

from mlfc.errors import InputError, OutputError
from mlfc.support.atomic import check_writable, output_error
from mlfc.target.features import TEMPLATES
from mlfc.target.tuning_log import FORM, LogEntry, read_log

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900, 360, 60, 40
_LEAST, _MOST = 0.4, 1.6  # range of ratios in the plot; others are drawn at the edge
_ROWS = 200
_COLOURS = {"right": "#36c", "wrong": "#c33", "failed": "#c33"}
_LEGEND = """<p>Each dot is a candidate: its cost over that of the template's rule, in the order of measuring.
The line is the best so far of all kernels, by their cost.</p>"""


class LogFile:
    """An append-only log; `entries` are those in the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.entries: list[LogEntry] = []
        if not self.path.exists():
            check_writable(self.path)
            return
        self.entries, whole = read_log(self.path)
        if whole < self.path.stat().st_size:  # truncate a partial line left by an interruption
            os.truncate(self.path, whole)

    def add(self, entry: LogEntry) -> None:
        """Append an entry."""
        line = json.dumps(entry.to_json(), separators=(",", ":")) + "\n"
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise output_error(self.path, error) from error
        self.entries.append(entry)

    def current(self, target: str, optimize: str, measured: str) -> list[LogEntry]:
        """Return the entries of this version for a processor, optimization and measurement."""
        return [
            entry
            for entry in self.entries
            if (entry.form, entry.templates, entry.target, entry.optimize, entry.measured)
            == (FORM, TEMPLATES, target, optimize, measured)
        ]


def require_log_name(path: str | os.PathLike[str]) -> None:
    """Raise OutputError if a log would overwrite another kind of file, such as a model or an archive."""
    try:
        if Path(path).exists():
            read_log(path)
    except InputError as error:
        raise OutputError(
            "the file is not a tuning log", place=str(path), next_step="Name another file with -o"
        ) from error


def page(title: str, entries: Iterable[LogEntry], kernels: Collection[str]) -> str:
    """Return a self-contained HTML page of the entries of these kernels, given by their keys.

    A log may have kernels of several models.
    """
    entries = [entry for entry in entries if entry.kernel.key in kernels]
    choices = {entry.kernel.key: entry for entry in entries if entry.kind == "choice"}
    rows = []
    for entry in sorted(choices.values(), key=lambda entry: entry.ratio or 1.0)[:_ROWS]:
        values = ", ".join(f"{name} {value}" for name, value in sorted(entry.values.items())) or "the rule's"
        cells = (entry.kernel.operator, " x ".join(entry.kernel.inputs[:2]), values, f"{entry.ratio or 1:.3f}")
        rows.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    return "\n".join(
        (
            "<!DOCTYPE html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            "<style>body{font:14px sans-serif;margin:2em}td,th{padding:2px 10px;text-align:left}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            _LEGEND,
            _svg([entry for entry in entries if entry.kind == "trial"]),
            "<table><tr><th>operator</th><th>operands</th><th>chosen</th><th>ratio</th></tr>",
            *rows,
            "</table></body></html>",
            "",
        )
    )


def _svg(trials: Sequence[LogEntry]) -> str:
    right, top = _WIDTH - 10, 10
    bottom = _HEIGHT - _BOTTOM

    def x(index: int) -> float:
        return round(_LEFT + (right - _LEFT) * index / max(len(trials) - 1, 1), 1)

    def y(ratio: float) -> float:
        inside = min(max(ratio, _LEAST), _MOST)
        return round(top + (bottom - top) * (_MOST - inside) / (_MOST - _LEAST), 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" role="img">']
    for tick in (0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6):
        colour = "#888" if tick == 1.0 else "#ddd"
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y(tick)}" y2="{y(tick)}" stroke="{colour}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4}" text-anchor="end">{tick:.1f}</text>')
    parts += [
        f'<circle cx="{x(index)}" cy="{y(entry.ratio)}" r="2.5" fill="{_COLOURS[entry.outcome]}"/>'
        for index, entry in enumerate(trials)
        if entry.ratio is not None
    ]
    points = " ".join(f"{x(index)},{y(ratio)}" for index, ratio in enumerate(best_so_far(trials)))
    parts.append(f'<polyline points="{points}" fill="none" stroke="#080" stroke-width="2"/>')
    parts.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">candidate</text></svg>')
    return "\n".join(parts)


def best_so_far(trials: Sequence[LogEntry]) -> list[float]:
    """Return, after each trial, the cost of all kernels with their best values so far, divided by that of the rules."""
    costs = {entry.kernel.key: entry.cost for entry in trials if entry.cost}
    total = sum(costs.values())
    best = dict.fromkeys(costs, 1.0)
    now, found = total, []
    for entry in trials:
        key = entry.kernel.key
        if key in best and entry.outcome == "right" and entry.ratio is not None and entry.ratio < best[key]:
            now -= costs[key] * (best[key] - entry.ratio)
            best[key] = entry.ratio
        found.append(now / total if total else 1.0)
    return found
