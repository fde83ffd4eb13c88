"""Pages of HTML that need no network: templates, tables that a click on a heading sorts, and parts of several pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from mlfc.support.text import printable, shortened

_SHORT = 28  # characters of text that stay on one line
_LONG, _LONG_TEXT, _LONGEST = 120, 500, 2_000  # of names and texts in tables, and where they are pointed at
CALL_NUMBERS = (
    ("MACs", "macs"), ("bytes moved", "bytes"), ("live bytes", "live_bytes"), ("scratch", "workspace_bytes"),
)  # fmt: skip
"""Titles of the numbers of a call, and their keys in what `describe` returns."""


def filled_page(name: str, **parts: str) -> str:
    """Return a template of this package with its parts, which are HTML, and the style and script of all pages."""
    shared = {"style": script("page.css"), "script": script("sorting.js")}
    return Template(script(name)).substitute(shared, **parts)


def script(name: str) -> str:
    """Return a script, style or template of this package."""
    return files("mlfc.archive.describe").joinpath(name).read_text("utf-8")


def html_of(text: object) -> str:
    """Return text as HTML: of a model or an archive, so maybe hostile."""
    return escape(printable(str(text)))


@dataclass(frozen=True)
class Cell:
    """What a table shows: text, by default of the value that it is sorted by; `html` is shown instead of text."""

    value: object
    text: str | None = None
    html: str | None = None
    share: float | None = None  # of the largest of the column: how far its bar goes
    kind: str = ""  # a class of the style


def name_cell(name: str, shown: str | None = None) -> Cell:
    """Return the cell of a name, or of what is `shown` of it; the middle of a long one shows when it is pointed at."""
    text = name if shown is None else shown
    return Cell(name, html=_pointed_at(name, text, _LONG)) if len(text) > _LONG else Cell(name, text)


def _pointed_at(name: str, text: str, room: int) -> str:
    return f'<span title="{html_of(shortened(name, _LONGEST))}">{html_of(shortened(text, room))}</span>'


def number(value: float | None, largest: float | None = None, text: str | None = None, kind: str = "") -> Cell:
    """Return the cell of a number, with a bar if `largest` is given; an empty one, sorted first, for None."""
    if value is None:
        return Cell(-1, "")
    shown = text if text is not None else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return Cell(value, shown, share=value / largest if largest else None, kind=kind)


def sortable(columns: Sequence[str], names: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table; the columns in `names` hold text. Rows hold cells, or text and numbers that become cells."""
    texts = {columns.index(name) for name in names}
    head = "".join(f"<th{_class(index in texts)}>{html_of(column)}</th>" for index, column in enumerate(columns))
    body = "\n".join(
        "<tr>" + "".join(_cell(value, index in texts) for index, value in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


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
    """Return what memory is called, from its key in what `describe` returns."""
    return "inputs and outputs" if key == "io_bytes" else key.removesuffix("_bytes").replace("_", " ")


def known(value: object) -> int:
    """Return a number; 0 for what is not known or depends on the run."""
    return value if isinstance(value, int) else 0
