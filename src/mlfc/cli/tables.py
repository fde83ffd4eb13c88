"""Tables for people: borders and colours on a terminal, plain columns elsewhere."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import typer

from mlfc.support.text import printable, shortened


def print_json(value: Any) -> None:
    """Print a value as indented JSON; infinities and NaN, which JSON does not have, become strings."""
    typer.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows; columns of numbers are aligned right."""
    texts = [[_text(cell) for cell in row] for row in rows]
    numeric = [
        bool(rows) and all(row[index] is None or isinstance(row[index], (int, float)) for row in rows)
        for index in range(len(columns))
    ]
    if sys.stdout.isatty():
        _print_rich(_one_line(title), columns, texts, numeric)
        return
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    typer.echo(_one_line(title))
    for line in (columns, *texts):
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        typer.echo(f"  {'  '.join(cells)}".rstrip())


def _print_rich(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        # names of a model are no markup
        table.add_row(*map(Text, row))
    Console().print(table)


def bar(part: int, whole: int, width: int = 20) -> str:
    """Return a bar whose length says how much of `whole` is `part`; something, however small, is never nothing."""
    filled = min(width, -(-part * width // whole)) if whole > 0 else 0
    # other programs that read the output, and some terminals, may take ASCII only
    wide = sys.stdout.isatty() and (sys.stdout.encoding or "").lower().startswith("utf")
    return ("\N{FULL BLOCK}" if wide else "#") * filled


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return f"{cell:.6g}" if isinstance(cell, float) else _one_line(shortened(str(cell)))


def _one_line(text: str) -> str:
    """Return text without line breaks: what follows one in a name would look like a row of ours."""
    return printable(text).replace("\n", "\\n")


def describe_tensor(tensor: dict[str, Any]) -> str:
    """Return a tensor's dtype and shape in short, from an entry of `inspect`."""
    shape = tensor["shape"]
    return f"{tensor['dtype']}[{'?' if shape is None else ', '.join(map(str, shape))}]"
