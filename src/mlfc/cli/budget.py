"""``mlfc budget``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlfc.cli.artifacts import archive_of
from mlfc.cli.options import Inputs, size_option
from mlfc.cli.tables import BUDGET_KEYS, Styled, excess, print_json, print_line, print_table
from mlfc.errors import OptionError

EXAMPLES = (
    "mlfc budget kws.tflite --ram 64k --flash 256k",
    "mlfc budget *.tflite --target cortex-m4 --ram 64k",
    "mlfc budget kws.tar --flash 256k --json",
)


def budget(
    artifacts: Annotated[list[Path], typer.Argument(metavar="ARTIFACT...", help="Models, or archives.")],
    *,
    target: Annotated[str, typer.Option(help="Of models: what they are compiled for.")] = "c",
    ram: Annotated[
        int | None, size_option("What workspace, inputs, outputs and state of each may take together.")
    ] = None,
    flash: Annotated[int | None, size_option("What the constants of each may take.")] = None,
    as_json: bool = False,
) -> None:
    """Check that models stay within a budget. Exit status 1: one exceeds it.

    Nothing is changed to meet it, as mlfc compile --ram does. The hook mlfc-budget of pre-commit runs this.
    """
    if ram is None and flash is None:
        raise OptionError("expected a budget, got none", next_step="Give --ram BYTES, --flash BYTES or both")
    found = {str(path): _budget_of(path, target, ram, flash) for path in artifacts}
    over = {name: excess(sizes) for name, sizes in found.items()}
    if as_json:
        print_json({name: {**sizes, "exceeds": bool(over[name])} for name, sizes in found.items()})
    else:
        columns = [BUDGET_KEYS[key] for key in next(iter(found.values()), {})]
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


def _budget_of(path: Path, target: str, ram: int | None, flash: int | None) -> dict[str, list[int]]:
    from mlfc import archive

    with archive_of(path, Inputs(), target) as made:
        sizes: dict[str, list[int]] = archive.diff(made, made, ram=ram, flash=flash)["budget"]
        return sizes
