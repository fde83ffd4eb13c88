"""Tables with borders and colours on a terminal, plain columns elsewhere; and lines that several commands print."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import typer

from mlfc.support.text import printable, shortened

_COPY = "__copy"
_SHOWN = 5
_WIDEST, _LONGEST = 64, 400  # characters of a column without a terminal, and of a text
_BORDER = 3  # columns around a cell
_LEAST, _LEAST_NAME, _SHORTEST_NAME = 14, 24, 8  # columns of texts, of names, and of names that users type


def print_json(value: Any) -> None:
    """Print a value as indented JSON; infinities and NaN, which JSON lacks, become strings."""
    typer.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


LEVELS_TITLE = "kernels for processor levels, of which one is selected on loading"


@dataclass(frozen=True)
class Styled:
    """A cell with a colour, shown on terminals."""

    value: object
    style: str  # in rich's notation: "green"


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    names: bool = False,
    optional: Sequence[str] = (),
) -> None:
    """Print rows; columns of numbers are right-aligned, and columns without any value are omitted.

    `names`: the first column contains names that users type. They are never broken.
    If the terminal is too narrow for names, their middle is omitted, and different ones stay different.
    `optional`: columns to drop in this order if the terminal is too narrow.
    """
    used = [place for place in range(len(columns)) if not rows or any(row[place] not in (None, "") for row in rows)]
    columns, rows = [columns[place] for place in used], [[row[place] for place in used] for row in rows]
    optional = [name for name in optional if name in columns]
    texts = [[cell_text(cell) for cell in row] for row in rows]
    values = [[cell.value if isinstance(cell, Styled) else cell for cell in row] for row in rows]
    number = (int, float, type(None))
    numeric = [bool(rows) and all(isinstance(row[index], number) for row in values) for index in range(len(columns))]
    if sys.stdout.isatty():
        styles = [[cell.style if isinstance(cell, Styled) else "" for cell in row] for row in rows]
        _print_rich(_one_line(title), _Shown(list(columns), texts, numeric, styles), names=names, optional=optional)
        return
    # without a terminal only names are shortened: longer texts exceed their column
    for index, column in enumerate(zip(*texts, strict=True)):
        if (
            not (names and index == 0)
            and max((len(word) for text in column for word in text.split()), default=0) > _WIDEST
        ):
            for row, text in zip(texts, distinct(column, _WIDEST), strict=True):
                row[index] = text
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(columns, *texts, strict=True)]
    typer.echo(_one_line(title))
    for line in (columns, *texts):
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        typer.echo(f"  {'  '.join(cells)}".rstrip())


def print_line(text: str, style: str) -> None:
    """Print a line, with a colour on a terminal."""
    if not sys.stdout.isatty():
        typer.echo(text)
        return
    from rich.console import Console
    from rich.text import Text

    Console(soft_wrap=True).print(Text(_one_line(text), style=style))


@dataclass
class _Shown:
    """Contents of a table: its columns, and the texts of its rows with their styles."""

    columns: list[str]
    texts: list[list[str]]
    numeric: list[bool]
    styles: list[list[str]]

    @property
    def widths(self) -> list[int]:
        """Width of each column, without its border."""
        return [max(map(len, column)) for column in zip(self.columns, *self.texts, strict=True)]

    def needs(self, names: bool) -> list[int]:
        """Return the minimum width of each column: numbers and words are not broken, long words are shortened.

        With `names`, the first column is not broken either, as users type its names.
        """
        needed = []
        for index, (width, right) in enumerate(zip(self.widths, self.numeric, strict=True)):
            whole = right or (names and not index)
            least = max(len(self.columns[index]), _LEAST, min(self._longest_word(index), _LEAST_NAME))
            needed.append(width if whole else min(width, least))
        return needed

    def fit(self, room: int, names: bool) -> list[int]:
        """Return widths with a total of at most `room`, if possible, and shorten names to them.

        Texts shrink first, then names, the widest first; names that users type shrink last.
        """
        widths, needed = self.widths, self.needs(names)
        for first, lowest in ((False, needed), (True, needed), (True, [_SHORTEST_NAME] * len(needed))):
            for index in sorted(range(len(widths)), key=lambda place: -widths[place]):
                is_name = self._longest_word(index) > _LEAST_NAME or (names and not index)
                if not self.numeric[index] and is_name == first:
                    over = sum(widths) - room
                    widths[index] = max(min(widths[index], lowest[index]), widths[index] - max(0, over))
        for index, (width, natural) in enumerate(zip(widths, self.widths, strict=True)):
            if width < natural and (self._longest_word(index) > width or (names and not index)):
                for row, text in zip(self.texts, distinct([row[index] for row in self.texts], width), strict=True):
                    row[index] = text
        return widths

    def _longest_word(self, index: int) -> int:
        return max((len(word) for row in self.texts for word in row[index].split()), default=0)

    def drop(self, name: str) -> None:
        """Remove a column."""
        place = self.columns.index(name)
        del self.columns[place], self.numeric[place]
        for row in (*self.texts, *self.styles):
            del row[place]


def _print_rich(title: str, shown: _Shown, *, names: bool, optional: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for name in optional:
        if _room(shown, console.width) < sum(shown.needs(names)) and name in shown.columns:
            shown.drop(name)
    if len(shown.texts) == 1 and _room(shown, console.width) < sum(shown.needs(names)):
        # a single row becomes a row for each of its columns
        pairs = [[name, text] for name, text in zip(shown.columns, shown.texts[0], strict=True)]
        styles = [["", style] for style in shown.styles[0]]
        shown, names = _Shown(["", ""], pairs, [False, all(shown.numeric)], styles), False
    widths = shown.fit(_room(shown, console.width), names)
    table = Table(show_header=any(shown.columns))
    for index, (name, right) in enumerate(zip(shown.columns, shown.numeric, strict=True)):
        keeps = right or (names and not index)
        justify: Literal["left", "right"] = "right" if right else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=keeps, width=widths[index])
    for row, styled in zip(shown.texts, shown.styles, strict=True):
        # names of a model are not markup
        table.add_row(*map(Text, row, styled))
    console.print(Text(title, style="italic"))
    console.print(table)


def _room(shown: _Shown, width: int) -> int:
    """Return the width left for texts of a table inside its borders."""
    return width - 1 - _BORDER * len(shown.columns)


def bar(part: int, whole: int, width: int = 20) -> str:
    """Return a bar whose length is the ratio of `part` to `whole`; positive ratios are never empty."""
    filled = min(width, -(-part * width // whole)) if whole > 0 else 0
    # programs that read the output, and some terminals, may support ASCII only
    wide = sys.stdout.isatty() and (sys.stdout.encoding or "").lower().startswith("utf")
    return ("\N{FULL BLOCK}" if wide else "#") * filled


def terminal_width() -> int | None:
    """Return the width of the terminal that tables are printed to; None without a terminal."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console().width


def distinct(names: Sequence[str], width: int) -> list[str]:
    """Return names of at most `width` characters; different names stay different.

    In names that are too long, the common prefix up to a ``/`` or ``_`` is omitted, then the middle; names that are
    still equal get a number.
    """
    if len({*names}) > 1 and max(map(len, names)) > width:
        first, last = min(names), max(names)
        same = next((place for place, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1), 0)
        cut = (first.rfind("/", 0, same) + 1) or (first.rfind("_", 0, same) + 1)
        names = [name[cut:] for name in names]
    shown: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        text, number = shortened(name, width), 2
        while name not in shown and text in taken:
            mark = f"~{number}"
            text, number = shortened(name, width - len(mark)) + mark, number + 1
        shown.setdefault(name, text)
        taken.add(text)
    return [shown[name] for name in names]


def cell_text(cell: object) -> str:
    """Return the text of a table cell."""
    if isinstance(cell, Styled):
        return cell_text(cell.value)
    if cell is None:
        return "-"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return f"{cell:.6g}" if isinstance(cell, float) else _one_line(shortened(str(cell), _LONGEST))


def _one_line(text: str) -> str:
    """Return text without line breaks, which would look like another row."""
    return printable(text).replace("\n", "\\n")


def describe_tensor(tensor: dict[str, Any]) -> str:
    """Return a tensor's dtype and shape as short text, from an entry of `inspect`."""
    shape = tensor["shape"]
    return f"{tensor['dtype']}[{'?' if shape is None else ', '.join(map(str, shape))}]"


def device_line(operators: Sequence[Mapping[str, Any]], wanted: str | None = None) -> str | None:
    """Return the number of operators on a device and those on the host; None for a host-only model.

    `operators` have ``function``, ``nodes`` and, in models for devices, ``device``, and include the copies; `wanted` is
    the kind of device that the model was compiled for, even if no operator runs there.
    """
    kinds = sorted({item["device"] for item in operators if item.get("device") not in (None, "cpu")})
    if not kinds:
        none = f"no operator of {len(operators)} runs on {wanted}: the host computes the model alone"
        return none if wanted else None
    computed = [item for item in operators if item["function"] != _COPY]
    there = [item for item in computed if item["device"] != "cpu"]
    text = f"{len(there)} of {len(computed)} operators run on {', '.join(kinds)}"
    copies = len(operators) - len(computed)
    if copies:
        text += f", with {copies} {'copies' if copies > 1 else 'copy'} between devices"
    here = [", ".join(item["nodes"] or ()) or item["function"] for item in computed if item["device"] == "cpu"]
    if here:
        more = f" and {len(here) - _SHOWN} more" if len(here) > _SHOWN else ""
        text += f"; on the host: {'; '.join(map(shortened, here[:_SHOWN]))}{more}"
    return text


def tiling_line(tiling: Mapping[str, Any], calls: int) -> str:
    """Return the line for a module's ``tiling``; `calls` is the number of calls of its operators."""
    nodes = tiling["nodes"]
    first, last = (shortened(", ".join(names[:1])) for names in (nodes[0], nodes[-1]))
    layers = f"{len(nodes)} layers, {first} to {last}, run" if len(nodes) > 1 else f"the layer {first} runs"
    return (
        f"{layers} in {tiling['count']} row tiles, {calls} calls instead of {tiling['calls_without']}, no row twice; "
        f"without, the workspace would have {tiling['workspace_bytes_without']:,} bytes"
    )
