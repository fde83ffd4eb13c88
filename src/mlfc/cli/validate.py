"""``mlfc validate``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mlfc.cli.tables import print_json
from mlfc.errors import ArchiveError, ProblemsError

EXAMPLES = ("mlfc validate kws.tar", "mlfc validate kws.tar --json")


def validate(
    artifact: Annotated[Path, typer.Argument(help="An archive of any version.")],
    as_json: bool = False,
) -> None:
    """List every fault of an archive.

    Layout, schema, hashes, memory plan, functions and sizes in the code, graph, parameters, Relay text, modules of
    other devices. Nothing of the archive runs.
    """
    from mlfc.archive.validate.validate import find_faults

    faults = find_faults(artifact)
    if as_json:
        shown = {"faults": [str(fault) for fault in faults], "details": [asdict(fault) for fault in faults]}
        print_json({"artifact": str(artifact), **shown})
    elif not faults:
        typer.echo(f"{artifact}: good")
    if faults:
        raise ProblemsError([ArchiveError(fault.cause, place=fault.place) for fault in faults], place=str(artifact))
