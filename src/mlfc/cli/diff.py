"""``mlfc diff``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mlfc.cli.options import size_option
from mlfc.cli.tables import Styled, excess, print_json, print_line, print_table
from mlfc.errors import OptionError
from mlfc.support.progress import stage

EXAMPLES = (
    "mlfc diff old.tar new.tar",
    "mlfc diff tvm.tar ours.tar --module default:kws",
    "mlfc diff old.tar new.tar --ram 64k --flash 256k",
    "mlfc diff old.tar new.tar --compile --json",
)
_ROWS = 12
_STYLES = {"-": "red", "+": "green", "~": "yellow", "!!": "bold red", "!": "yellow"}
_SIGNS = {"break": "!!", "warning": "!", "note": ""}
_SAME, _BROKEN = "a caller of A works with B", "a caller of A breaks with B"


def diff(
    a: Annotated[Path, typer.Argument(help="An archive: before.")],
    b: Annotated[Path, typer.Argument(help="An archive: after.")],
    *,
    module: Annotated[
        list[str] | None,
        typer.Option(metavar="A:B", help="Compare module A of the first with module B of the second; repeatable."),
    ] = None,
    compile_code: bool = False,
    ram: Annotated[
        int | None, size_option("Fail if workspace, inputs, outputs and state of the second exceed so many bytes.")
    ] = None,
    flash: Annotated[int | None, size_option("Fail if the constants of the second exceed so many bytes.")] = None,
    as_json: bool = False,
) -> None:
    """Compare two archives. Exit status 1: a C caller of the first breaks with the second, or it exceeds a budget."""
    from mlfc import archive

    with stage(f"comparing {a} and {b}"):
        found = archive.diff(a, b, modules=_mapped(module or ()), compile_code=compile_code, ram=ram, flash=flash)
    if as_json:
        print_json(found)
    elif found["equal"]:
        typer.echo("nothing changed")
    else:
        _print(found)
    over = excess(found.get("budget", {}))
    for text in () if as_json else over:
        print_line(text, "red")
    if found["breaks"] or over:
        raise typer.Exit(1)


def _mapped(texts: Sequence[str]) -> dict[str, str]:
    modules: dict[str, str] = {}
    for text in texts:
        first, colon, second = text.partition(":")
        if not (first and colon and second) or first in modules:
            raise OptionError(f"expected A:B, got '{text}'", place="--module", next_step="Name each module A once")
        modules[first] = second
    return modules


def _print(found: Mapping[str, Any]) -> None:
    typer.echo(f"A: {found['a']}\nB: {found['b']}")
    print_line(_BROKEN if found["breaks"] else _SAME, "red" if found["breaks"] else "green")
    for name in found["modules_removed"]:
        typer.echo(f"- module {name}")
    for name in found["modules_added"]:
        typer.echo(f"+ module {name}")
    # the worst first
    modules = sorted(
        found["modules"].items(), key=lambda item: min((_rank(change) for change in item[1]["interface"]), default=9)
    )
    for name, module in modules:
        _print_module(name, module)
    _print_sizes("whole archive: bytes", found["totals"])
    _print_pairs("whole archive", found["facts"])
    _print_limited("files", ("", "path"), list(_signed_files(found["files"])))


def _rank(change: Mapping[str, Any]) -> int:
    return list(_SIGNS).index(change["level"])


def _print_module(name: str, module: Mapping[str, Any]) -> None:
    shown = name if name == module["b"] else f"{name} and {module['b']}"
    if not module["interface"]:
        same = "the C interface is the same" if all(module["headers"]) else "inputs and outputs are the same"
        typer.echo(f"\nmodule {shown}: {same}")
    else:
        typer.echo(f"\nmodule {shown}")
        rows = [
            (_SIGNS[item["level"]], item["what"], _cell(item["a"]), _cell(item["b"])) for item in module["interface"]
        ]
        title = "interface (!! breaks callers, ! may surprise them)"
        print_table(title, ("", "what", "A", "B"), list(map(_coloured, rows)))
    _print_sizes("memory: bytes", module["memory"])
    _print_operators(module["operators"])
    _print_limited("weights", ("", "name", "bytes"), list(_signed_weights(module["weights"])))
    _print_pairs("facts", module["facts"])


def _print_sizes(title: str, pairs: Mapping[str, Sequence[int | None]]) -> None:
    rows = [
        (key.removesuffix("_bytes").replace("_", " "), before, after, _change(before, after))
        for key, (before, after) in pairs.items()
    ]
    _print_limited(title, ("", "A", "B", "change"), rows)


def _change(before: int | None, after: int | None) -> str | None:
    if before is None or after is None:
        return None
    share = f" ({(after - before) / before:+.1%})" if before else ""
    return f"{after - before:+,}{share}"


def _print_operators(operators: Mapping[str, Any]) -> None:
    if operators["count"]:
        before, after = operators["count"]
        typer.echo(f"operators: {before} and {after}, without names in common")
    rows: list[tuple[object, ...]] = []
    for sign, key in (("-", "removed"), ("+", "added")):
        rows += [
            (sign, item["name"], None if item["macs"] is None else f"{item['macs']:,} MACs") for item in operators[key]
        ]
    for item in operators["changed"]:
        pairs = [f"{key} {_cell(pair[0])} -> {_cell(pair[1])}" for key, pair in item.items() if key != "name"]
        rows += [("~", item["name"], pair) for pair in pairs]
    _print_limited("operators", ("", "nodes", ""), rows)


def _signed_weights(weights: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    for sign, key in (("-", "removed"), ("+", "added")):
        for item in weights[key]:
            yield sign, item["name"], item["bytes"]
    for before, after in weights["changed"]:
        yield "~", before["name"], after["bytes"]
    for before, after in weights["renamed"]:
        yield "=", f"{before} is now {after}", None


def _signed_files(files: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    for sign, key in (("~", "changed"), ("-", "removed"), ("+", "added")):
        for path in files[key]:
            yield sign, path


def _print_pairs(title: str, pairs: Mapping[str, Sequence[object]]) -> None:
    rows = [(key, _cell(before), _cell(after)) for key, (before, after) in pairs.items()]
    _print_limited(title, ("", "A", "B"), rows)


def _cell(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _coloured(row: Sequence[object]) -> tuple[object, ...]:
    """Return a row whose sign has its colour."""
    sign = row[0]
    return (Styled(sign, _STYLES[sign]), *row[1:]) if isinstance(sign, str) and sign in _STYLES else tuple(row)


def _print_limited(title: str, columns: Sequence[str], rows: Sequence[tuple[object, ...]]) -> None:
    """Print a table of the first rows; nothing where there are none."""
    if rows:
        print_table(title, columns, list(map(_coloured, rows[:_ROWS])))
    if len(rows) > _ROWS:
        typer.echo(f"  ... and {len(rows) - _ROWS} more; --json lists all")
