"""``mlfc validate`` and ``mlfc migrate``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mlfc.cli.tables import print_json, print_table
from mlfc.errors import ArchiveError, ProblemsError
from mlfc.support.progress import stage

VALIDATE_EXAMPLES = ("mlfc validate kws.tar", "mlfc validate kws.tar --json")
MIGRATE_EXAMPLES = ("mlfc migrate old.tar -o new.tar", "mlfc migrate proposal.model-lib -o new.tar --json")


def validate(
    artifact: Annotated[Path, typer.Argument(help="An archive of any version.")], as_json: bool = False
) -> None:
    """List every fault of an archive.

    Checks layout, schema, hashes, memory plan, functions and sizes in the code, graph, parameters, Relay text, and
    modules of other devices. No code of the archive runs.
    """
    from mlfc.archive.validate.validate import find_faults

    with stage(f"validating {artifact}"):
        faults = find_faults(artifact)
    if as_json:
        shown = {"faults": [str(fault) for fault in faults], "details": [asdict(fault) for fault in faults]}
        print_json({"artifact": str(artifact), **shown})
    elif not faults:
        typer.echo(f"{artifact}: good")
    if faults:
        raise ProblemsError([ArchiveError(fault.cause, place=fault.place) for fault in faults], place=str(artifact))


def migrate(
    old: Annotated[Path, typer.Argument(help="An archive of any version, or in the form of the 2021 proposal.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive of version 7 to write.")],
    as_json: bool = False,
) -> None:
    """Convert an archive of any version to version 7.

    All of its files are kept.
    """
    from mlfc import archive
    from mlfc.archive.read.model import RFC

    with stage(f"migrating {old}"):
        done = archive.migrate(old, output)
    if as_json:
        head = {"output": str(done.path), "version": done.version, "form": done.form}
        print_json({**head, "renamed": dict(done.renamed), "warnings": list(done.warnings)})
        return
    form = ", form of the 2021 proposal" if done.form == RFC else ""
    typer.echo(f"{old}: version {done.version}{form}; {done.path}: version 7")
    if done.renamed:
        print_table("moved files", ("from", "to"), list(done.renamed.items()))
    for warning in done.warnings:
        typer.echo(f"warning: {warning}", err=True)
