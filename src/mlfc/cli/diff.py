"""``mlfc diff`` and ``mlfc budget``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mlfc.cli.artifacts import archive_of
from mlfc.cli.options import Inputs, size_option
from mlfc.cli.tables import Styled, print_json, print_line, print_table
from mlfc.errors import OptionError
from mlfc.support.progress import stage

EXAMPLES = (
    "mlfc diff old.tar new.tar",
    "mlfc diff tvm.tar ours.tar --module default:kws",
    "mlfc diff old.tar new.tar --ram 64k --flash 256k",
    "mlfc diff old.tar new.tar --compile --json",
)
BUDGET_EXAMPLES = (
    "mlfc budget kws.tflite --ram 64k --flash 256k",
    "mlfc budget *.tflite --target cortex-m4 --ram 64k",
    "mlfc budget kws.tar --flash 256k --json",
)
_ROWS = 12
_STYLES = {"-": "red", "+": "green", "~": "yellow", "!!": "bold red", "!": "yellow"}
_GONE_AND_NEW = (("-", "removed"), ("+", "added"))
_SIGNS = {"break": "!!", "warning": "!", "note": ""}
_BUDGET = {"ram_bytes": "RAM", "constants_bytes": "constants"}
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
        int | None, size_option("Fail if workspace, inputs, outputs and state of the second exceed this size.")
    ] = None,
    flash: Annotated[int | None, size_option("Fail if the constants of the second exceed this size.")] = None,
    as_json: bool = False,
) -> None:
    """Compare two archives.

    Exit status 1: a C caller of the first breaks with the second, or the second exceeds a budget.
    """
    from mlfc import archive

    modules: dict[str, str] = {}
    for text in module or ():
        first, colon, second = text.partition(":")
        if not (first and colon and second) or first in modules:
            raise OptionError(f"expected A:B, got '{text}'", place="--module", next_step="Use each module A once")
        modules[first] = second
    with stage(f"comparing {a} and {b}"):
        found = archive.diff(a, b, modules=modules, compile_code=compile_code, ram=ram, flash=flash)
    if as_json:
        print_json(found)
    elif found["equal"]:
        typer.echo("nothing changed")
    else:
        _print(found)
    over = _excess(found.get("budget", {}))
    for line in () if as_json else over:
        print_line(line, "red")
    if found["breaks"] or over:
        raise typer.Exit(1)


def _print(found: Mapping[str, Any]) -> None:
    typer.echo(f"A: {found['a']}\nB: {found['b']}")
    print_line(_BROKEN if found["breaks"] else _SAME, "red" if found["breaks"] else "green")
    for sign, key in _GONE_AND_NEW:
        for name in found[f"modules_{key}"]:
            typer.echo(f"{sign} module {name}")
    # the most severe first
    levels = list(_SIGNS)
    worst = {
        name: min((levels.index(change["level"]) for change in module["interface"]), default=9)
        for name, module in found["modules"].items()
    }
    for name in sorted(worst, key=worst.__getitem__):
        _print_module(name, found["modules"][name])
    _print_sizes("whole archive: bytes", found["totals"])
    _print_pairs("whole archive", found["facts"])
    signs = (("~", "changed"), *_GONE_AND_NEW)
    _print_limited("files", ("", "path"), [(sign, path) for sign, key in signs for path in found["files"][key]])


def _print_module(name: str, module: Mapping[str, Any]) -> None:
    rows: list[tuple[object, ...]] = []
    shown = name if name == module["b"] else f"{name} and {module['b']}"
    if not module["interface"]:
        same = "the C interface is the same" if all(module["headers"]) else "inputs and outputs are the same"
        typer.echo(f"\nmodule {shown}: {same}")
    else:
        typer.echo(f"\nmodule {shown}")
        rows = [
            (_SIGNS[item["level"]], item["what"], _cell(item["a"]), _cell(item["b"])) for item in module["interface"]
        ]
        title = "interface (!! breaks callers, ! may affect them)"
        print_table(title, ("", "what", "A", "B"), list(map(_coloured, rows)))
    _print_sizes("memory: bytes", module["memory"])
    operators, weights = module["operators"], module["weights"]
    if operators["count"]:
        typer.echo(f"operators: {' and '.join(map(str, operators['count']))}, without names in common")
    rows = []
    for sign, key in _GONE_AND_NEW:
        for item in operators[key]:
            rows.append((sign, item["name"], None if item["macs"] is None else f"{item['macs']:,} MACs"))
    for item in operators["changed"]:
        pairs = [f"{key} {_cell(pair[0])} -> {_cell(pair[1])}" for key, pair in item.items() if key != "name"]
        rows += [("~", item["name"], pair) for pair in pairs]
    _print_limited("operators", ("", "nodes", ""), rows)
    rows = [(sign, item["name"], item["bytes"]) for sign, key in _GONE_AND_NEW for item in weights[key]]
    rows += [("~", before["name"], after["bytes"]) for before, after in weights["changed"]]
    rows += [("=", f"{before} is now {after}", None) for before, after in weights["renamed"]]
    _print_limited("weights", ("", "name", "bytes"), rows)
    _print_pairs("facts", module["facts"])


def _print_sizes(title: str, pairs: Mapping[str, Sequence[int | None]]) -> None:
    rows = []
    for key, (before, after) in pairs.items():
        change = None
        if before is not None and after is not None:
            change = f"{after - before:+,}" + (f" ({(after - before) / before:+.1%})" if before else "")
        rows.append((key.removesuffix("_bytes").replace("_", " "), before, after, change))
    _print_limited(title, ("", "A", "B", "change"), rows)


def _print_pairs(title: str, pairs: Mapping[str, Sequence[object]]) -> None:
    rows = [(key, _cell(before), _cell(after)) for key, (before, after) in pairs.items()]
    _print_limited(title, ("", "A", "B"), rows)


def _cell(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _coloured(row: Sequence[object]) -> tuple[object, ...]:
    """Return a row with the colour of its sign."""
    sign = row[0]
    return (Styled(sign, _STYLES[sign]), *row[1:]) if isinstance(sign, str) and sign in _STYLES else tuple(row)


def _print_limited(title: str, columns: Sequence[str], rows: Sequence[tuple[object, ...]]) -> None:
    """Print a table of the first rows, if any."""
    if rows:
        print_table(title, columns, list(map(_coloured, rows[:_ROWS])))
    if len(rows) > _ROWS:
        typer.echo(f"  ... and {len(rows) - _ROWS} more; --json lists all")


def budget(
    artifacts: Annotated[list[Path], typer.Argument(metavar="ARTIFACT...", help="Models, or archives.")],
    *,
    target: Annotated[str, typer.Option(help="Target of models.")] = "c",
    ram: Annotated[int | None, size_option("Limit for workspace, inputs, outputs and state of each artifact.")] = None,
    flash: Annotated[int | None, size_option("Limit for the constants of each artifact.")] = None,
    as_json: bool = False,
) -> None:
    """Check that models stay within a budget.

    Exit status 1: a model exceeds it. Unlike mlfc compile --ram, this does not change a model to meet the budget. The
    pre-commit hook mlfc-budget runs this command.
    """
    from mlfc import archive

    if ram is None and flash is None:
        raise OptionError("expected a budget, got none", next_step="Add --ram BYTES, --flash BYTES or both")
    found: dict[str, dict[str, list[int]]] = {}
    for path in artifacts:
        with archive_of(path, Inputs(), target) as made:
            found[str(path)] = archive.diff(made, made, ram=ram, flash=flash)["budget"]
    over = {name: _excess(sizes) for name, sizes in found.items()}
    if as_json:
        print_json({name: {**sizes, "exceeds": bool(over[name])} for name, sizes in found.items()})
    else:
        columns = [_BUDGET[key] for key in next(iter(found.values()), {})]
        rows = [
            (name, *(Styled(f"{size:,}", "red" if size > limit else "green") for size, limit in sizes.values()))
            for name, sizes in found.items()
        ]
        print_table("bytes", ("", *columns), rows, names=True)
        for name, texts in over.items():
            for text in texts:
                print_line(f"{name}: {text}", "red")
    if any(over.values()):
        raise typer.Exit(1)


def _excess(sizes: Mapping[str, Sequence[int]]) -> list[str]:
    """Return a sentence for each size that exceeds its limit."""
    return [
        f"{_BUDGET[key]}: {size:,} bytes exceed the budget of {limit:,} by {size - limit:,}"
        for key, (size, limit) in sizes.items()
        if size > limit
    ]
