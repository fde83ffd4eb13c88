"""``mlfc fit``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlfc.cli.options import Inputs, chosen_board
from mlfc.cli.tables import Styled, print_json, print_table
from mlfc.errors import OptionError
from mlfc.support.progress import bar
from mlfc.support.text import model_title, printable

if TYPE_CHECKING:
    from mlfc.micro.fit.boards import BudgetTable

EXAMPLES = (
    "mlfc fit kws.tflite",
    "mlfc fit kws.tflite --emulate",
    "mlfc fit resnet.onnx --shape input=1,3,64,64 --json",
    "mlfc fit kws.tflite --board stm32h743 --board my-board.toml",
)
_TIGHT, _FULL = 90, 100  # percent of a memory: from the first on, the program around a model may not fit
_COLUMNS = ("board", "fits", "RAM", "RAM %", "flash", "flash %", "stack")
_COUNTED = ("instructions", "MHz", "ms")
# in the order in which narrow terminals drop them
_OPTIONAL = ("stack", "MHz", "instructions", "flash", "RAM", "with")
_STYLES = {True: "green", None: "yellow", False: "red"}


def fit(
    model: Annotated[Path, typer.Argument(help="A TFLite or ONNX file.")],
    *,
    board: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this board of `mlfc boards`, or a .toml file; repeatable."),
    ] = None,
    trust_board: bool = False,
    emulate: Annotated[
        bool,
        typer.Option(
            "--emulate",
            help="Count the instructions of an inference on each core in an emulator, to estimate its time.",
        ),
    ] = False,
    fixed: Inputs,
    limit_factor: float = 1.0,
    as_json: bool = False,
) -> None:
    """Show the boards that a model fits.

    Also shows the options of mlfc compile with which it fits. The model is compiled for each kind of core, with the
    compiler of each board if installed. If RAM is short, inputs move into the workspace, then layers are tiled by rows;
    if flash is short, code is optimized for size.
    """
    from mlfc.archive.read.load import artifact_kind
    from mlfc.frontend import import_for_run
    from mlfc.micro.board.board import boards
    from mlfc.micro.fit.boards import board_budgets
    from mlfc.support.c_names import module_name

    if artifact_kind(model) != "model":
        raise OptionError(
            "expected a model file, got an artifact compiled for one target",
            place=str(model),
            next_step="Show its memory on one board with: mlfc inspect ARCHIVE --board NAME",
        )
    chosen = [one for name in board or () if (one := chosen_board(name, trust_board)) is not None]
    if trust_board and not chosen:
        chosen_board(None, trust_board)
    for item in chosen:
        if not item.memories:
            raise OptionError(f"the board '{item.name}' lists no memories", place="--board")
    target = chosen[0].target if chosen else boards().get("mps2-an386").target
    options = fixed.options(target, limit_factor=limit_factor)
    with bar(f"fitting {model.name}") as say:
        mod, params = import_for_run(model, options)
        name = module_name(model_title(model))
        found = board_budgets(mod, params, chosen or None, name=name, emulate=emulate, options=options, progress=say)
    if as_json:
        print_json({"model": str(model), **found.as_json()})
    else:
        _print(model, found, emulate=emulate)


def _print(model: Path, found: BudgetTable, *, emulate: bool) -> None:
    columns = (*_COLUMNS, *(_COUNTED if emulate else ()), "with")
    fitting = sum(bool(row.fits) for row in found.rows)
    unsure = sum(row.fits is None for row in found.rows)
    title = f"{model.name} fits {fitting} of {len(found.rows)} boards" + (f", and maybe {unsure}" if unsure else "")
    notes: dict[str, list[str]] = {}  # remarks, with the names of their boards
    rows = []
    for row in found.rows:
        style = "yellow" if row.fits and 100 * row.fullness > _TIGHT else _STYLES[row.fits]
        cells: list[object] = [row.board.name, Styled({True: "yes", None: "maybe", False: "no"}[row.fits], style)]
        for kind in ("ram", "flash"):
            percent = row.percent(kind)
            cells += [row.used(kind), Styled(percent and round(percent, 1), "red" if (percent or 0) > _FULL else "")]
        cells.append(row.stack_bytes)
        if emulate:
            clock, ms = row.board.fastest_clock_hz, row.milliseconds
            cells += [row.count.instructions, clock and clock / 1e6, ms and float(f"{ms:.3g}")]
        rows.append([*cells, "-" if row.table is None else row.setting.options])
        problem = row.problem if row.table is None or row.fits is not False else ""
        for text in filter(None, (problem, row.count.unknown if emulate else "")):
            notes.setdefault(text, []).append(row.board.name)
    print_table(title, columns, rows, names=True, optional=_OPTIONAL)
    for text, names in notes.items():
        typer.echo(printable(f"{', '.join(names)}: {text}"))
    if found.advice:
        typer.echo("Changes that would make it fit more boards:")
    for item in found.advice:
        typer.echo(printable(f"  {item}"))
