"""``mlfc report``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.cli.artifacts import archive_of
from mlfc.cli.options import OF_ITS_ARCHIVE, BoardOptions, Inputs, target_option
from mlfc.cli.reporting import compared, costs_of, differences, require_one_to_measure
from mlfc.errors import MlfcError, OptionError
from mlfc.support.progress import bar, stage
from mlfc.support.text import printable

if TYPE_CHECKING:
    from mlfc.archive.describe.measured import ModuleMeasurements
    from mlfc.micro.board.board import Board
    from mlfc.verify import Comparison

EXAMPLES = (
    "mlfc report kws.tflite -o report.html",
    "mlfc report kws.tflite --no-boards --profile --verify -o report.html",
    'mlfc report kws.onnx --target "c -mcpu=cortex-m7" -o report.html',
    "mlfc report kws.tflite --board mps2-an386 --profile -o report.html",
    "mlfc report kws.tar -o report.html",
    "mlfc report old.tar new.tar -o changes.html",
)


def report(
    artifact: Annotated[Path, typer.Argument(help="A model, an archive of any version of mlfc or TVM, or a library.")],
    other: Annotated[
        Path | None, typer.Argument(help="Another model or archive, to compare the first one with.")
    ] = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="Default: <name>.html.")
    ] = None,
    target: Annotated[str | None, target_option(OF_ITS_ARCHIVE)] = None,
    show_boards: Annotated[
        bool, typer.Option("--boards/--no-boards", help="Of a model: show which boards it fits (default).")
    ] = True,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Run it on made-up inputs: the time of each call, or with --board its instructions."
        ),
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Of a model: compare every layer with LiteRT or ONNX Runtime.")
    ] = False,
    board: BoardOptions,
    fixed: Inputs,
) -> None:
    """Write a page that shows the graph, memory, operators with their C, boards, and where a model is from.

    The page needs no network. Nothing of the artifact is run but by --profile and --verify. Fails with status 1 if
    --verify finds a difference; the page is written nevertheless. Two models or archives are compared.
    """
    from mlfc.archive.read.load import artifact_kind
    from mlfc.cli.verify import require_equal
    from mlfc.support.atomic import write_bytes
    from mlfc.target.defaults import PORTABLE

    kind = artifact_kind(artifact)
    chosen = board.chosen(target)
    asked = _Request(
        fixed,
        (chosen.target if chosen else target) or PORTABLE,
        chosen,
        profile=profile,
        verify=verify,
        boards=show_boards and other is None,
    )
    require_one_to_measure(kind, verify=verify, target=target is not None and other is None)
    path = output or Path(f"{artifact.name.partition('.')[0]}.html")
    found = None
    if other is not None:
        page = _compared_page(artifact, other, asked)
    elif kind in ("library", "objects"):
        page = _page_of_library(artifact, asked)
    else:
        found = compared(artifact, asked.inputs, asked.target, chosen) if verify else None
        page = _page(artifact, kind, asked, found)
    write_bytes(path, page.encode())
    typer.echo(printable(f"wrote {path}, {len(page.encode()):,} bytes"))
    if found is not None:
        require_equal(found, artifact)


@dataclass(frozen=True)
class _Request:
    """What the page is to show."""

    inputs: Inputs
    target: str
    board: Board | None
    profile: bool
    verify: bool
    boards: bool


def _page(artifact: Path, kind: str, asked: _Request, found: Comparison | None) -> str:
    from mlfc.archive.describe.report_page import report_page
    from mlfc.archive.read.opening import open_archive

    with archive_of(artifact, asked.inputs, asked.target) as archive:
        budget = _budget(artifact, asked.inputs) if asked.boards and kind == "model" else None
        with open_archive(archive) as opened:
            names = list(opened.record.modules)
        measured = {name: _measured(archive, name, asked, found) for name in names}
        with open_archive(archive) as opened, stage(f"writing the page of {artifact.name}"):
            return report_page(opened, artifact.name, budget, measured)


def _measured(archive: Path, module: str, asked: _Request, found: Comparison | None) -> ModuleMeasurements:
    from mlfc.archive.describe.measured import ModuleMeasurements

    costs = costs_of(archive, module, asked.board) if asked.profile else None
    return ModuleMeasurements(costs, found.reference if found else "", differences(found) if found else {})


def _compared_page(a: Path, b: Path, asked: _Request) -> str:
    from mlfc.archive.compare.compare_page import compare_page
    from mlfc.archive.read.load import artifact_kind

    if asked.profile or asked.verify:
        raise OptionError(
            "options --profile and --verify require one artifact, got two",
            next_step="Write a page of each, or remove the options",
        )
    with ExitStack() as stack:
        archives = []
        for artifact in (a, b):
            kind = artifact_kind(artifact)
            if kind not in ("archive", "model"):
                raise OptionError("expected a model or an archive to compare, got a library", place=str(artifact))
            # shapes and values are those of a model beside an archive
            own = asked.inputs if kind == "model" else Inputs()
            archives.append(stack.enter_context(archive_of(artifact, own, asked.target)))
        with stage(f"comparing {a.name} and {b.name}"):
            return compare_page(archives[0], archives[1], (a.name, b.name))


def _page_of_library(library: Path, asked: _Request) -> str:
    from mlfc.archive.describe.library_page import library_page

    asked.inputs.refuse("requires a model; the inputs of a library are fixed")
    if asked.profile:
        raise OptionError(
            "option --profile requires a model or an archive, got a library",
            place="--profile",
            next_step="Time its operators with: mlfc run LIBRARY --profile",
        )
    return library_page(library, library.name)


def _budget(model: Path, inputs: Inputs) -> Mapping[str, Any]:
    """Return which boards the model fits, or why it cannot be compiled for any."""
    from mlfc.frontend import import_for_run
    from mlfc.micro.board.board import boards
    from mlfc.micro.fit.boards import board_budgets
    from mlfc.support.c_names import module_name

    options = inputs.options(boards().get("mps2-an386").target)
    with bar(f"fitting {model.name}") as say:
        try:
            mod, params = import_for_run(model, options)
        except MlfcError as error:  # hosts run what a board cannot: open dimensions, sequences
            return {"refusal": str(error)}
        return board_budgets(mod, params, name=module_name(model.name.partition(".")[0]), progress=say).as_json()
