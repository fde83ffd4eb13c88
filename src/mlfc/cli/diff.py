"""``mlfc diff``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from mlfc.cli.artifacts import archive_of, inputs_of
from mlfc.cli.budget import Budget, Excess, budget_json, memory_use, print_budget
from mlfc.cli.options import BoardOptions, Inputs, target_option
from mlfc.cli.tables import Styled, print_json, print_line, print_table
from mlfc.errors import OptionError
from mlfc.support.progress import stage
from mlfc.support.text import model_title
from mlfc.target.target import PORTABLE

EXAMPLES = (
    "mlfc diff old.tar new.tar",
    "mlfc diff tvm.tar ours.tar --module default:kws",
    "mlfc diff old.tar new.tar --ram 64k --flash 256k",
    "mlfc diff old.onnx new.onnx --board nrf52840dk --max-growth ram=2% flash=5%",
    "mlfc diff old.tar new.tar --compile --json",
)
_ROWS = 12
_STYLES = {"-": "red", "+": "green", "~": "yellow", "!!": "bold red", "!": "yellow"}
_GONE_AND_NEW = (("-", "removed"), ("+", "added"))
_SIGNS = {"break": "!!", "warning": "!", "note": ""}
_SAME, _BROKEN = "a caller of A works with B", "a caller of A breaks with B"


def diff(
    a: Annotated[Path, typer.Argument(help="An archive, or a model: before.")],
    b: Annotated[Path, typer.Argument(help="An archive, or a model: after.")],
    *,
    module: Annotated[
        list[str] | None,
        typer.Option(metavar="A:B", help="Compare module A of the first with module B of the second; repeatable."),
    ] = None,
    compile_code: bool = False,
    target: Annotated[str | None, target_option("Target of models. Default: c.")] = None,
    board: BoardOptions,
    inputs: Inputs,
    limits: Budget,
    allow_breaks: Annotated[bool, typer.Option("--allow-breaks", help="Fail only if a limit is exceeded.")] = False,
    as_json: bool = False,
) -> None:
    """Compare two archives, or models, which are compiled.

    The limits apply to the second. With --board, they are by default those of its memories, and code and stack count.
    Exit status 1: a C caller of the first breaks with the second, or a limit is exceeded.
    """
    from mlfc import archive

    modules: dict[str, str] = {}
    for text in module or ():
        first, colon, second = text.partition(":")
        if not (first and colon and second) or first in modules:
            raise OptionError(f"expected A:B, got '{text}'", place="--module", next_step="Use each module A once")
        modules[first] = second
    on_board = board.chosen(target)
    chosen = on_board.target if on_board else target or PORTABLE
    with ExitStack() as stack:
        one, two = (stack.enter_context(item) for item in _archives((a, b), inputs, chosen))
        with stage(f"comparing {a} and {b}"):
            found = archive.diff(one, two, modules=modules, compile_code=compile_code)
        found |= {"a": str(a), "b": str(b)}
        over: list[Excess] = []
        if (limits.ram, limits.flash, limits.max_growth, on_board) != (None,) * 4:
            over = limits.limited(memory_use(two, on_board), memory_use(one, on_board), b)
            found["budget"] = budget_json(over)
    if as_json:
        print_json(found)
    elif found["equal"]:
        typer.echo("nothing changed")
    else:
        _print(found)
    exceeds = any(item.over for item in over)
    if over and not as_json and (exceeds or not found["equal"]):
        print_budget({str(b): over}, on_board)
    if (found["breaks"] and not allow_breaks) or exceeds:
        raise typer.Exit(1)


def _archives(artifacts: Sequence[Path], inputs: Inputs, target: str) -> Iterator[AbstractContextManager[Path]]:
    """Yield the archives of both artifacts; models of two names become modules of the same name, to be compared."""
    from mlfc.archive.read.load import artifact_kind
    from mlfc.archive.read.opening import open_archive
    from mlfc.support.c_names import module_name

    name = module_name(model_title(artifacts[0]))
    for artifact in artifacts:
        if artifact_kind(artifact) == "archive":
            with open_archive(artifact) as opened:
                name = next(iter(opened.record.modules))
            break
    for artifact in artifacts:
        yield archive_of(artifact, inputs_of(artifact, inputs), target, name)


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
