"""HTML pages that need no network: templates, tables that are sorted by a click on a heading, and shared parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from mlfc.support.text import printable, shortened

_SHORT = 28  # maximum characters of text on one line
_LONG, _LONG_TEXT, _LONGEST = 120, 500, 2_000  # of names and texts in tables, and in tooltips
CALL_NUMBERS = (
    ("MACs", "macs"), ("bytes moved", "bytes"), ("live bytes", "live_bytes"), ("scratch", "workspace_bytes"),
)  # fmt: skip
"""Titles of the numbers of a call, and their keys in the result of `describe`."""


def filled_page(name: str, **parts: str) -> str:
    """Return a template of this package filled with HTML parts, and with the style and script of all pages."""
    shared = {"style": script("page.css"), "script": script("sorting.js")}
    return Template(script(name)).substitute(shared, **parts)


def script(name: str) -> str:
    """Return a script, style or template of this package."""
    return files("mlfc.archive.describe").joinpath(name).read_text("utf-8")


def html_of(text: object) -> str:
    """Return text escaped for HTML; text of a model or an archive may be hostile."""
    return escape(printable(str(text)))


@dataclass(frozen=True)
class Cell:
    """A table cell: text, by default of the value that it is sorted by, or `html` instead."""

    value: object
    text: str | None = None
    html: str | None = None
    share: float | None = None  # of the largest in the column: length of its bar
    kind: str = ""  # a CSS class


def name_cell(name: str, shown: str | None = None) -> Cell:
    """Return the cell of a name, displayed as `shown` if given; a long or different name is in a tooltip."""
    text = name if shown is None else shown
    return Cell(name, html=_pointed_at(name, text, _LONG)) if len(text) > _LONG or text != name else Cell(name, text)


def _pointed_at(name: str, text: str, room: int) -> str:
    return f'<span title="{html_of(shortened(name, _LONGEST))}">{html_of(shortened(text, room))}</span>'


def number(value: float | None, largest: float | None = None, text: str | None = None, kind: str = "") -> Cell:
    """Return the cell of a number, with a bar if `largest` is given; for None an empty one that is sorted first."""
    if value is None:
        return Cell(-1, "")
    shown = text if text is not None else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return Cell(value, shown, share=value / largest if largest else None, kind=kind)


def sortable(
    columns: Sequence[str], names: Iterable[str], rows: Iterable[Sequence[Any]], first: int | None = None
) -> str:
    """Return a table; the columns in `names` contain text. Rows contain cells, or text and numbers to make cells of.

    Only the `first` rows are shown until the reader wants all. Columns of empty texts are omitted.
    """
    rows = list(rows)
    used = [index for index in range(len(columns)) if not rows or any(row[index] != "" for row in rows)]
    columns, rows = [columns[index] for index in used], [[row[index] for index in used] for row in rows]
    names = {*names} & {*columns}
    texts = {columns.index(name) for name in names}
    head = "".join(f"<th{_class(index in texts)}>{html_of(column)}</th>" for index, column in enumerate(columns))
    body = "\n".join(
        "<tr>" + "".join(_cell(value, index in texts) for index, value in enumerate(row)) + "</tr>" for row in rows
    )
    table = f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
    if first is None or len(rows) <= first:
        return table
    # style, not script, hides the other rows; the page must set their number to that of `first`
    return f'<div class="fold">{table}<label><input type="checkbox"> show all {len(rows):,} rows</label></div>'


def _class(is_text: bool, kind: str = "") -> str:
    names = " ".join(filter(None, ("name" if is_text else "", kind)))
    return f' class="{names}"' if names else ""


def _cell(value: Any, is_text: bool) -> str:
    cell = value if isinstance(value, Cell) else Cell(value) if isinstance(value, str) else number(value)
    text = str(cell.value if cell.text is None else cell.text)
    shown = cell.html
    if shown is None:
        shown = html_of(text) if len(text) <= _LONG_TEXT else _pointed_at(str(cell.value), text, _LONG_TEXT)
    bar = "" if cell.share is None else f' style="--share:{100 * min(cell.share, 1.0):.1f}%"'
    is_short = is_text and len(text) <= _SHORT
    kind = " ".join(filter(None, (cell.kind, "short" if is_short else "", "" if cell.share is None else "share")))
    return f'<td{_class(is_text, kind)}{bar} data-value="{html_of(shortened(str(cell.value), _LONGEST))}">{shown}</td>'


def memory_title(key: str) -> str:
    """Return the title of a kind of memory from its key in the result of `describe`."""
    return "inputs and outputs" if key == "io_bytes" else key.removesuffix("_bytes").replace("_", " ")


def known(value: object) -> int:
    """Return a number; 0 if it is unknown or known only at run time."""
    return value if isinstance(value, int) else 0
