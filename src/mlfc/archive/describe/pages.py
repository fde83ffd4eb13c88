"""Pages of HTML that need no network: their templates, and tables that a click on a heading sorts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template

from mlfc.support.text import printable, shortened

_FOLDER = "mlfc.archive.describe"
_SHORT = 28  # characters of text that stay on one line
_LONG, _LONG_TEXT, _LONGEST = 120, 500, 2_000  # of names and texts in tables, and where they are pointed at


def filled_page(name: str, **parts: str) -> str:
    """Return a template of this package with its parts, which are HTML, and the style and script of all pages."""
    shared = {"style": _file("page.css"), "script": _file("sorting.js")}
    return Template(_file(name)).substitute(shared, **parts)


def script(name: str) -> str:
    """Return a script of this package."""
    return _file(name)


def _file(name: str) -> str:
    return files(_FOLDER).joinpath(name).read_text("utf-8")


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


def number(value: float | None, largest: float | None = None, text: str | None = None) -> Cell:
    """Return the cell of a number, with a bar if `largest` is given; an empty one, sorted first, for None."""
    if value is None:
        return Cell(-1, "")
    shown = text if text is not None else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return Cell(value, shown, share=value / largest if largest else None)


def sortable(columns: Sequence[str], names: Iterable[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table; the columns in `names` hold text."""
    texts = {columns.index(name) for name in names}
    head = "".join(f"<th{_class(index in texts)}>{html_of(column)}</th>" for index, column in enumerate(columns))
    body = "\n".join(
        "<tr>" + "".join(_cell(cell, index in texts) for index, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _whole_or_long(cell: Cell) -> str:
    text = str(cell.value if cell.text is None else cell.text)
    return html_of(text) if len(text) <= _LONG_TEXT else _pointed_at(str(cell.value), text, _LONG_TEXT)


def _class(is_text: bool, kind: str = "") -> str:
    names = " ".join(filter(None, ("name" if is_text else "", kind)))
    return f' class="{names}"' if names else ""


def _cell(cell: Cell, is_text: bool) -> str:
    shown = _whole_or_long(cell) if cell.html is None else cell.html
    bar = "" if cell.share is None else f' style="--share:{100 * min(cell.share, 1.0):.1f}%"'
    is_short = is_text and len(str(cell.value if cell.text is None else cell.text)) <= _SHORT
    kind = " ".join(filter(None, (cell.kind, "short" if is_short else "", "" if cell.share is None else "share")))
    return f'<td{_class(is_text, kind)}{bar} data-value="{html_of(shortened(str(cell.value), _LONGEST))}">{shown}</td>'
