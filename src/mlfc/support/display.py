"""How objects show themselves: one line at a prompt, a table in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape

_MAX_TEXT = 300


class Displayed:
    """Gives a class a short ``repr``, and a table in notebooks, from the facts that it lists."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        """Return what to show, by label; default: the fields of a dataclass."""
        if not is_dataclass(self):
            return {}
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __repr__(self) -> str:
        try:
            facts = [f"{label}={_short(value)}" for label, value in self._facts().items()]
        except AttributeError:  # it is not whole: a debugger looks at a constructor
            facts = []
        return f"<{' '.join([type(self).__name__, *facts])}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return html_table(type(self).__name__, (), list(self._facts().items()))


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML, all of whose text is escaped.

    Parameters
    ----------
    title : str
    header : sequence of str
        Of the columns; none if it is empty.
    rows : iterable of sequence
    """
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(_cell(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return _limited(", ".join(map(str, value)))
    return _limited(str(value))


def _short(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{_limited(', '.join(map(str, value)), 100)}]"
    return _limited(str(value), 100)


def _limited(text: str, most: int = _MAX_TEXT) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
