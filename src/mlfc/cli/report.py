"""``mlfc report``."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mlfc.cli.options import Inputs
from mlfc.errors import MlfcError, OptionError
from mlfc.support.progress import bar, stage
from mlfc.support.text import printable

EXAMPLES = (
    "mlfc report kws.tflite -o report.html",
    "mlfc report kws.tflite --no-boards -o report.html",
    'mlfc report kws.onnx --target "c -mcpu=cortex-m7" -o report.html',
    "mlfc report kws.tar -o report.html",
)


def report(
    artifact: Annotated[Path, typer.Argument(help="A model, or an archive of any version, of mlfc or TVM.")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="Default: <name>.html.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of a model: what it is compiled for. Default: c.")] = None,
    show_boards: Annotated[
        bool, typer.Option("--boards/--no-boards", help="Of a model: show which boards it fits (default).")
    ] = True,
    shape: list[str] | None = None,
    value: list[str] | None = None,
    state: list[str] | None = None,
    state_init: str | None = None,
) -> None:
    """Write a page that shows memory, operators with their C, constants, boards and where a model is from.

    The page needs no network, and nothing of the artifact is run.
    """
    from mlfc.archive.read.load import artifact_kind
    from mlfc.support.atomic import write_bytes

    kind = artifact_kind(artifact)
    inputs = Inputs.of(shape, value, state, state_init)
    if kind == "archive":
        inputs.refuse("requires a model; the inputs of an archive are fixed")
        if target is not None:
            raise OptionError("option --target requires a model; an archive is compiled", place="--target")
        page = _page(artifact, artifact.name)
    elif kind == "model":
        page = _page_of_model(artifact, target or "c", inputs, show_boards=show_boards)
    else:
        raise OptionError(
            "expected a model or an archive, got a library",
            place=str(artifact),
            next_step="Show its module tree with: mlfc inspect LIBRARY",
        )
    path = output or Path(f"{artifact.name.partition('.')[0]}.html")
    write_bytes(path, page.encode())
    typer.echo(printable(f"wrote {path}, {len(page.encode()):,} bytes"))


def _page_of_model(model: Path, target: str, inputs: Inputs, *, show_boards: bool) -> str:
    from mlfc.archive import export_model_library_format
    from mlfc.cli.artifacts import compiled_model

    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "model.tar"
        with stage(f"compiling {model.name}"):
            export_model_library_format(compiled_model(model, inputs, target), archive)
        return _page(archive, model.name, _budget(model, inputs) if show_boards else None)


def _budget(model: Path, inputs: Inputs) -> Mapping[str, Any]:
    """Return which boards the model fits, or why it cannot be compiled for any."""
    from mlfc.frontend import import_for_run
    from mlfc.frontend.shapes import leaves_to_run
    from mlfc.micro.board.board import boards
    from mlfc.micro.fit.boards import board_budgets
    from mlfc.support.c_names import module_name

    target, asked = boards().get("mps2-an386").target, inputs.arguments()
    with bar(f"fitting {model.name}") as say:
        dynamic = leaves_to_run(None, target, asked["shapes"])
        try:
            mod, params = import_for_run(model, target=target, dynamic=dynamic, **asked)
        except MlfcError as error:  # hosts run what a board cannot: open dimensions, sequences
            return {"refusal": str(error)}
        return board_budgets(mod, params, name=module_name(model.name.partition(".")[0]), progress=say).as_json()


def _page(archive: Path, title: str, budget: Mapping[str, Any] | None = None) -> str:
    from mlfc.archive.describe.report_page import report_page
    from mlfc.archive.read.opening import open_archive

    with open_archive(archive) as opened:
        return report_page(opened, title, budget)
