"""Warnings of archives that were made for another core than a board's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mlfc.support.text import printable

if TYPE_CHECKING:
    from mlfc.micro.board.board import Board


def core_warnings(artifact: Path, board: Board, named: str, module: str | None) -> dict[str, list[str]]:
    """Print a line to standard error where an archive was made for another core, and return it for JSON.

    Parameters
    ----------
    artifact : Path
        An archive; anything else has nothing to warn of.
    board : Board
    named : str
        What the user calls the board.
    module : str or None

    Returns
    -------
    dict of str to list of str
        ``warnings``, where there are any.
    """
    from mlfc.archive.read.load import artifact_kind
    from mlfc.micro.board.core_match import archive_mismatches

    if artifact_kind(artifact) != "archive":
        return {}
    found = [item.text(str(artifact), named) for item in archive_mismatches(artifact, board, module)]
    for line in found:
        typer.echo(printable(f"warning: {line}"), err=True)
    return {"warnings": found} if found else {}
