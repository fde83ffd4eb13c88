"""Two archives as one page: what differs, operator by operator, and their pictures side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlfc.archive.compare.diff import Matched, diff, matched_operators
from mlfc.archive.describe.graph_picture import graph_picture
from mlfc.archive.describe.inspect import describe
from mlfc.archive.describe.kernel_sources import kernel_sources
from mlfc.archive.describe.pages import Cell, filled_page, html_of, name_cell, number, script, sortable
from mlfc.archive.describe.picture import memory_picture
from mlfc.archive.describe.report_operators import MOST_ROWS, amount, anchor
from mlfc.archive.describe.report_page import MOST_DRAWN
from mlfc.archive.describe.report_sections import CALL_NUMBERS, memory_title
from mlfc.archive.describe.source_graph import source_nodes
from mlfc.archive.read.opening import Archive, open_archive
from mlfc.errors import ArchiveError

_SIDES = ("A", "B")
_MAP = 560  # pixels across, of which two are side by side
_SAME, _CHANGED = "same", "changed"


def compare_page(a: str | os.PathLike[str], b: str | os.PathLike[str], titles: tuple[str, str]) -> str:
    """Return the page of two archives, before and after; all names may be hostile.

    Parameters
    ----------
    a, b : path
        Archives of any versions. If each has one module, these are compared, whatever their names.
    titles : pair of str
        What the archives are of.

    Raises
    ------
    ArchiveError
        If one is not an archive.
    """
    with open_archive(a) as first, open_archive(b) as second:
        archives = (first, second)
        single = all(len(archive.record.modules) == 1 for archive in archives)
        (name, other) = (next(iter(archive.record.modules)) for archive in archives)
        found = diff(a, b, modules={name: other} if single else None)
        described = (describe(first), describe(second))
        parts = list(_whole(found, titles))
        for name, change in found["modules"].items():
            modules = (described[0]["modules"][name], described[1]["modules"][change["b"]])
            pair = _Pair(archives, (name, change["b"]), modules, change)
            parts += [f"<h2>Module {html_of(' and '.join(dict.fromkeys(pair.names)))}</h2>"] if not single else []
            parts += pair.html()
    title = html_of(" and ".join(titles))
    return filled_page("report_page.html", title=title, body="\n".join(parts), graph=script("graph.js"))


def _whole(found: Mapping[str, Any], titles: tuple[str, str]) -> Iterator[str]:
    """Yield what is true of the whole archives."""
    breaks = "a caller of A breaks with B" if found["breaks"] else "a caller of A works with B"
    verdict = "nothing changed" if found["equal"] else breaks
    kind = "bad" if found["breaks"] else "good"
    cards = [f"<div><b>{side}</b>{html_of(title)}</div>" for side, title in zip(_SIDES, titles, strict=True)]
    yield f'<div class="cards">{"".join(cards)}<div class="{kind}"><b>{verdict}</b>C interface</div></div>'
    for what, key in (("only in A", "modules_removed"), ("only in B", "modules_added")):
        if found[key]:
            yield f"<p>Modules {what}: {html_of(', '.join(found[key]))}</p>"


@dataclass(frozen=True)
class _Pair:
    """A module of both archives."""

    archives: tuple[Archive, Archive]
    names: tuple[str, str]
    modules: tuple[Mapping[str, Any], Mapping[str, Any]]
    change: Mapping[str, Any]

    def html(self) -> Iterator[str]:
        yield "<h2>Memory</h2>"
        yield self._memory()
        if self.change["interface"]:
            yield "<h2>C interface</h2>"
            rows = [
                (Cell(item["level"], kind="bad" if item["level"] == "break" else ""), Cell(item["what"]),
                 Cell(_text(item["a"])), Cell(_text(item["b"])))
                for item in self.change["interface"]
            ]  # fmt: skip
            yield sortable(("level", "what", *_SIDES), ("level", "what", *_SIDES), rows)
        if self.change["facts"]:
            yield "<h2>Facts that differ</h2>"
            facts = [(Cell(key), Cell(_text(a)), Cell(_text(b))) for key, (a, b) in self.change["facts"].items()]
            yield sortable(("fact", *_SIDES), ("fact", *_SIDES), facts)
        matched = matched_operators(*self.modules)
        yield from self._graphs(matched or ())
        yield from self._maps()
        yield "<h2>Operators</h2>"
        yield from _operators(matched)
        yield from self._weights()
        yield from self._kernels()

    def _memory(self) -> str:
        pools = [key for key in self.modules[0]["memory"] if any(module["memory"][key] for module in self.modules)]
        rows = []
        for key in pools:
            before, after = (module["memory"][key] for module in self.modules)
            most = max(before or 0, after or 0)
            rows.append((Cell(memory_title(key)), number(before, most), number(after, most), _change(before, after)))
        return sortable(("memory", *_SIDES, "change"), ("memory",), rows)

    def _graphs(self, matched: Sequence[Matched]) -> Iterator[str]:
        pictures = []
        for side, letter in enumerate(_SIDES):
            marks = {item.places[side]: _mark(item, side) for item in matched if item.places[side] is not None}
            sources = source_nodes(self.archives[side], self.names[side])
            known = {place: mark for place, mark in marks.items() if place is not None}
            picture = graph_picture(self.names[side], self.modules[side], sources, marks=known, prefix=f"{letter}.")
            if picture is not None:
                pictures.append(f"<div><h3>{letter}</h3>{picture}</div>")
        if pictures:
            yield '<h2 class="scripted" hidden>Graphs</h2>'
            yield f'<div class="pair scripted" hidden>{"".join(pictures)}</div>'

    def _maps(self) -> Iterator[str]:
        yield "<h2>Memory over time</h2>"
        pictures = []
        for side, letter in enumerate(_SIDES):
            module = self.modules[side]
            try:
                drawn = (
                    memory_picture(module, self.names[side], _MAP)
                    if len(module["operators"] or ()) <= MOST_DRAWN
                    else ""
                )
                pictures.append(f'<div><h3>{letter}</h3><div class="map">{drawn}</div></div>')
            except ArchiveError as error:
                pictures.append(f"<div><h3>{letter}</h3><p>{html_of(error)}</p></div>")
        yield f'<div class="pair">{"".join(pictures)}</div>'

    def _weights(self) -> Iterator[str]:
        weights = self.change["weights"]
        rows = [
            (Cell("only in A", kind="bad"), Cell(item["name"]), number(item["bytes"])) for item in weights["removed"]
        ]
        rows += [
            (Cell("only in B", kind="good"), Cell(item["name"]), number(item["bytes"])) for item in weights["added"]
        ]
        rows += [
            (Cell(_CHANGED, kind="unsure"), Cell(item["name"]), number(item["bytes"])) for item, _ in weights["changed"]
        ]
        if rows:
            yield "<h2>Constants that differ</h2>"
            yield sortable(("change", "name", "bytes"), ("change", "name"), rows[:MOST_ROWS])

    def _kernels(self) -> Iterator[str]:
        for side, letter in enumerate(_SIDES):
            functions = [operator["function"] for operator in self.modules[side]["operators"] or ()]
            for function, text in kernel_sources(self.archives[side], self.names[side], functions).items():
                place = anchor(f"{letter}.{self.names[side]}", function)
                title = f"{letter}: {html_of(function)}"
                yield f'<details id="{place}"><summary>{title}</summary><pre>{html_of(text)}</pre></details>'


def _mark(item: Matched, side: int) -> str:
    if None in item.places:
        return ("removed", "added")[side]
    return _CHANGED if _differences(item) else ""


def _operators(matched: Sequence[Matched] | None) -> Iterator[str]:
    if matched is None:
        yield "<p>The archives do not both name the nodes of the model, so their operators cannot be matched.</p>"
        return
    counts = {
        name: sum(_status(item)[0] == name for item in matched) for name in (_SAME, _CHANGED, "only in A", "only in B")
    }
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    yield f"<p>Matched by the nodes of the model: {told}.</p>"
    columns = ["operator", "change", *(f"{title} {side}" for title, _ in CALL_NUMBERS for side in _SIDES)]
    order = sorted(matched, key=lambda item: _status(item)[0] == _SAME)[:MOST_ROWS]
    if len(order) < len(matched):
        yield f"<p>{len(order):,} of {len(matched):,}; those that differ come first.</p>"
    yield sortable(columns, ("operator", "change"), [tuple(_row(item)) for item in order])


def _status(item: Matched) -> tuple[str, str]:
    """Return what became of an operator, and its class of the style."""
    if item.places[1] is None:
        return "only in A", "bad"
    if item.places[0] is None:
        return "only in B", "good"
    return (_CHANGED, "unsure") if _differences(item) else (_SAME, "")


def _differences(item: Matched) -> set[str]:
    """Return what differs; names of functions have the module's name in them."""
    return item.changes.keys() - {"function"}


def _row(item: Matched) -> Iterator[Cell]:
    status, kind = _status(item)
    yield name_cell(item.name)
    yield Cell(status, kind=kind)
    for _, key in CALL_NUMBERS:
        for operator in item.operators:
            cell = amount(None if operator is None else operator[key])
            yield Cell(cell.value, cell.text, kind="unsure" if key in item.changes else "")


def _change(before: int | None, after: int | None) -> Cell:
    if before is None or after is None:
        return Cell("", "")
    share = f" ({(after - before) / before:+.1%})" if before else ""
    kind = "bad" if after > before else "good"
    if after == before:
        return Cell(0, "same")
    return Cell(after - before, f"{after - before:+,}{share}", kind=kind)


def _text(value: object) -> str:
    return "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
