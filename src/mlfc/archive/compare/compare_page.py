"""HTML page that compares two archives operator by operator, with their pictures side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlfc.archive.compare.diff import Matched, diff, matched_operators
from mlfc.archive.describe import pages
from mlfc.archive.describe.graph_picture import graph_picture, kernel_sources, source_nodes
from mlfc.archive.describe.inspect import describe
from mlfc.archive.describe.memory_map import memory_picture
from mlfc.archive.describe.pages import CALL_NUMBERS, Cell, html_of, memory_title, name_cell, number, sortable
from mlfc.archive.describe.report_page import MOST_DRAWN, MOST_ROWS, amount, anchor
from mlfc.archive.read.opening import Archive, open_archive
from mlfc.errors import ArchiveError

_SIDES = ("A", "B")
_MAP = 560  # pixels per memory map; two are side by side
_SAME, _CHANGED = "same", "changed"
_ONLY = ("only in A", "only in B")
_NAMED = {"function"}  # contains the module's name, so it always differs
# CSS classes of cells, and of graph nodes
_KINDS = {_SAME: "", _CHANGED: "unsure", _ONLY[0]: "bad", _ONLY[1]: "good"}
_MARKS = {_SAME: "", _CHANGED: _CHANGED, _ONLY[0]: "removed", _ONLY[1]: "added"}


def compare_page(a: str | os.PathLike[str], b: str | os.PathLike[str], titles: tuple[str, str]) -> str:
    """Return the HTML page that compares two archives; all names may be hostile.

    If each archive has exactly one module, these are compared even if their names differ. `titles`: titles of the two
    archives.
    Raises ArchiveError if one is not an archive.
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
    title, graph = html_of(" and ".join(titles)), pages.script("graph.js")
    return pages.filled_page("report_page.html", title=title, body="\n".join(parts), graph=graph)


def _whole(found: Mapping[str, Any], titles: tuple[str, str]) -> Iterator[str]:
    """Yield the comparison of the archives as a whole."""
    breaks = "a caller of A breaks with B" if found["breaks"] else "a caller of A works with B"
    verdict = "nothing changed" if found["equal"] else breaks
    kind = "bad" if found["breaks"] else "good"
    cards = [f"<div><b>{side}</b>{html_of(title)}</div>" for side, title in zip(_SIDES, titles, strict=True)]
    yield f'<div class="cards">{"".join(cards)}<div class="{kind}"><b>{verdict}</b>C interface</div></div>'
    for what, key in zip(_ONLY, ("modules_removed", "modules_added"), strict=True):
        if found[key]:
            yield f"<p>Modules {what}: {html_of(', '.join(found[key]))}</p>"


@dataclass(frozen=True)
class _Pair:
    """A module that is in both archives."""

    archives: tuple[Archive, Archive]
    names: tuple[str, str]
    modules: tuple[Mapping[str, Any], Mapping[str, Any]]
    change: Mapping[str, Any]

    def html(self) -> Iterator[str]:
        yield "<h2>Memory</h2>"
        pairs = {key: [module["memory"][key] for module in self.modules] for key in self.modules[0]["memory"]}
        memory = [
            (memory_title(key), number(before, most), number(after, most), _change(before, after))
            for key, (before, after) in pairs.items()
            if (most := max(before or 0, after or 0))
        ]
        yield sortable(("memory", *_SIDES, "change"), ("memory",), memory)
        if self.change["interface"]:
            yield "<h2>C interface</h2>"
            levels = {"break": Cell("break", kind="bad")}
            rows = [
                (levels.get(item["level"], item["level"]), item["what"], _text(item["a"]), _text(item["b"]))
                for item in self.change["interface"]
            ]
            yield sortable(("level", "what", *_SIDES), ("level", "what", *_SIDES), rows)
        if self.change["facts"]:
            yield "<h2>Facts that differ</h2>"
            facts = [(key, _text(a), _text(b)) for key, (a, b) in self.change["facts"].items()]
            yield sortable(("fact", *_SIDES), ("fact", *_SIDES), facts)
        matched = matched_operators(*self.modules)
        pictures = []
        for side, letter in enumerate(_SIDES):
            places = ((item.places[side], item) for item in matched or ())
            marks = {place: _MARKS[_status(item)] for place, item in places if place is not None}
            sources = source_nodes(self.archives[side], self.names[side])
            picture = graph_picture(self.names[side], self.modules[side], sources, marks=marks, prefix=f"{letter}.")
            if picture is not None:
                pictures.append(f"<div><h3>{letter}</h3>{picture}</div>")
        if pictures:
            yield '<h2 class="scripted" hidden>Graphs</h2>'
            yield f'<div class="pair scripted" hidden>{"".join(pictures)}</div>'
        yield f'<h2>Memory over time</h2>\n<div class="pair">{"".join(map(self._map, (0, 1)))}</div>'
        yield "<h2>Operators</h2>"
        yield from _operators(matched)
        weights = self.change["weights"]
        shown = [(Cell("only in A", kind="bad"), item["name"], item["bytes"]) for item in weights["removed"]]
        shown += [(Cell("only in B", kind="good"), item["name"], item["bytes"]) for item in weights["added"]]
        shown += [(Cell(_CHANGED, kind="unsure"), item["name"], item["bytes"]) for item, _ in weights["changed"]]
        if shown:
            yield "<h2>Constants that differ</h2>"
            yield sortable(("change", "name", "bytes"), ("change", "name"), shown[:MOST_ROWS])
        for side, letter in enumerate(_SIDES):
            functions = [operator["function"] for operator in self.modules[side]["operators"] or ()]
            for function, text in kernel_sources(self.archives[side], self.names[side], functions).items():
                place = anchor(f"{letter}.{self.names[side]}", function)
                title = f"{letter}: {html_of(function)}"
                yield f'<details id="{place}"><summary>{title}</summary><pre>{html_of(text)}</pre></details>'

    def _map(self, side: int) -> str:
        module, drawn = self.modules[side], ""
        try:
            if len(module["operators"] or ()) <= MOST_DRAWN:
                drawn = memory_picture(module, self.names[side], _MAP)
        except ArchiveError as error:
            return f"<div><h3>{_SIDES[side]}</h3><p>{html_of(error)}</p></div>"
        return f'<div><h3>{_SIDES[side]}</h3><div class="map">{drawn}</div></div>'


def _operators(matched: Sequence[Matched] | None) -> Iterator[str]:
    if matched is None:
        yield "<p>The archives do not both name the nodes of the model, so their operators cannot be matched.</p>"
        return
    counts = {name: sum(_status(item) == name for item in matched) for name in _KINDS}
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    yield f"<p>Matched by the nodes of the model: {told}.</p>"
    columns = ["operator", "change", *(f"{title} {side}" for title, _ in CALL_NUMBERS for side in _SIDES)]
    order = sorted(matched, key=lambda item: _status(item) == _SAME)[:MOST_ROWS]
    if len(order) < len(matched):
        yield f"<p>{len(order):,} of {len(matched):,}; those that differ come first.</p>"
    yield sortable(columns, ("operator", "change"), [tuple(_row(item)) for item in order])


def _status(item: Matched) -> str:
    """Return the status of an operator."""
    if None in item.places:
        return _ONLY[item.places[0] is None]
    return _CHANGED if item.changes.keys() - _NAMED else _SAME


def _row(item: Matched) -> Iterator[Cell]:
    status = _status(item)
    yield name_cell(item.name)
    yield Cell(status, kind=_KINDS[status])
    for _, key in CALL_NUMBERS:
        for operator in item.operators:
            cell = amount(None if operator is None else operator[key])
            yield Cell(cell.value, cell.text, kind="unsure" if key in item.changes else "")


def _change(before: int | None, after: int | None) -> Cell:
    if before is None or after is None:
        return Cell("", "")
    if after == before:
        return Cell(0, "same")
    share = f" ({(after - before) / before:+.1%})" if before else ""
    return Cell(after - before, f"{after - before:+,}{share}", kind="bad" if after > before else "good")


def _text(value: object) -> str:
    return "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
