"""``mlfc compile --matrix``."""

from __future__ import annotations

from pathlib import Path

import typer

from mlfc.cli.tables import print_json, print_table
from mlfc.errors import OptionError, ProblemsError

_TAKEN = {"matrix", "scheduler", "output", "as_json"}


def compile_rows(
    matrix: Path, output: Path | None, scheduler: str | None, as_json: bool, context: typer.Context
) -> None:
    """Compile the rows of a matrix file, print what was made, and raise ProblemsError for the rows that failed."""
    from mlfc.matrix.compile_matrix import compile_matrix
    from mlfc.matrix.index import board_memory, memory_of

    _refuse_others(context)
    if output is None:
        raise OptionError(
            "option --matrix requires -o", place="-o", next_step="Name a folder or an archive: -o all.tar"
        )
    made = compile_matrix(matrix, output, scheduler=scheduler, progress=True)
    if as_json:
        print_json({"output": str(output), "rows": list(made.entries)})
    else:
        rows = [
            (
                item["row"],
                item["status"],
                sum(one["bytes"] for one in item["files"]) if "files" in item else None,
                *memory_of(item),
                *board_memory(item),
            )
            for item in made.entries
        ]
        columns = ("row", "status", "bytes", "workspace", "constants", "inputs and outputs", "RAM", "flash")
        print_table(f"{output}: bytes", columns, rows)
    if made.problems:
        raise ProblemsError(made.problems, place=str(matrix))


def _refuse_others(context: typer.Context) -> None:
    """Raise OptionError for options that rows have."""
    given = [
        max(param.opts, key=len) if param.param_type_name == "option" else "MODEL"
        for param in context.command.params
        if param.name not in _TAKEN
        and param.name is not None
        and getattr(context.get_parameter_source(param.name), "name", "") == "COMMANDLINE"
        and context.params.get(param.name)
    ]
    if given:
        raise OptionError(
            f"option --matrix excludes {', '.join(given)}",
            place="--matrix",
            next_step="Write models and options into the matrix",
        )


def refuse_scheduler(scheduler: str | None) -> None:
    """Raise OptionError for a scheduler without a matrix."""
    if scheduler is not None:
        raise OptionError(
            "option --scheduler requires --matrix",
            place="--scheduler",
            next_step="Add --matrix FILE.toml, or leave it out",
        )
