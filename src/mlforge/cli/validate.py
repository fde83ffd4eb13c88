"""``mlforge validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlforge.cli.options import Json
from mlforge.cli.tables import print_json
from mlforge.errors import ArchiveError, ProblemsError

EXAMPLES = ("mlforge validate kws.tar",)


def validate(
    artifact: Annotated[Path, typer.Argument(help="An archive.")],
    as_json: Json = False,
) -> None:
    """List every fault of an archive."""
    from mlforge import archive

    faults = archive.validate(artifact)
    if as_json:
        print_json({"artifact": str(artifact), "faults": faults})
    elif not faults:
        typer.echo(f"{artifact}: good")
    if faults:
        raise ProblemsError([ArchiveError(fault) for fault in faults], place=str(artifact))
