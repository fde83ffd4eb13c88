"""``mlfc report``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.cli.artifacts import archive_of, generated_inputs, inputs_of
from mlfc.cli.options import OF_ITS_ARCHIVE, BoardOptions, Inputs, target_option
from mlfc.cli.run_tables import known_peaks
from mlfc.cli.verify import require_equal, verdict
from mlfc.errors import MlfcError, OptionError
from mlfc.support.progress import bar, stage
from mlfc.support.text import model_title, printable

if TYPE_CHECKING:
    from mlfc.archive.describe.measured import Costs
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
            "--profile", help="Run it on generated inputs: the time of each call, or with --board its instructions."
        ),
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Of a model: compare every layer with LiteRT or ONNX Runtime.")
    ] = False,
    board: BoardOptions,
    fixed: Inputs,
) -> None:
    """Write an HTML report of a model, archive or library.

    It shows the graph, memory, operators with their C, boards, and the model's origin, and needs no network. The
    artifact is only run for --profile and --verify. The exit status is 1 if --verify finds a difference; the report is
    written nevertheless. Two models or archives are compared.
    """
    from mlfc.archive.describe.measured import ModuleMeasurements, TensorDifference
    from mlfc.archive.describe.report_page import library_page, report_page
    from mlfc.archive.read.load import artifact_kind
    from mlfc.archive.read.opening import open_archive
    from mlfc.support.atomic import replaces_earlier, write_bytes
    from mlfc.target.target import PORTABLE

    kind = artifact_kind(artifact)
    on_board = board.chosen(target)
    chosen = (on_board.target if on_board else target) or PORTABLE
    for option, is_asked in (("verify", verify), ("target", target is not None and other is None)):
        if is_asked and kind != "model":
            raise OptionError(
                f"option --{option} requires a model, got {'an' if kind[0] == 'a' else 'a'} {kind}",
                place=f"--{option}",
                next_step="Pass the model that it was compiled from",
            )
    path = output or Path(f"{model_title(artifact)}.html")
    replaces = output is None and replaces_earlier(path, b'<meta name="generator" content="mlfc">')
    found = None
    if other is not None:
        if profile or verify:
            raise OptionError(
                "options --profile and --verify require one artifact, got two",
                next_step="Write a report of each, or remove the options",
            )
        page = _compared_page((artifact, other), fixed, chosen)
    elif kind in ("library", "objects"):
        fixed.refuse("requires a model; the inputs of a library are static")
        if profile:
            raise OptionError(
                "option --profile requires a model or an archive, got a library",
                place="--profile",
                next_step="Time its operators with: mlfc run LIBRARY --profile",
            )
        page = library_page(artifact, artifact.name)
    else:
        found = compared(artifact, fixed, chosen, on_board) if verify else None
        with archive_of(artifact, fixed, chosen) as archive:
            budget = _budget(artifact, fixed) if show_boards and kind == "model" else None
            with open_archive(archive) as opened:
                names = list(opened.record.modules)
            costs = {name: costs_of(archive, name, on_board) if profile else None for name in names}
            items = (
                (*found.layers, *found.groups, *found.outputs) if found else ()
            )  # the outputs of the unmodified code
            differences = {
                item.tensor: TensorDifference(item.tensor, item.largest, item.tolerance, item.is_within, verdict(item))
                for item in items
            }
            reference = found.reference if found else ""
            measured = {name: ModuleMeasurements(costs[name], reference, differences) for name in names}
            with open_archive(archive) as opened, stage(f"writing the page of {artifact.name}"):
                page = report_page(opened, artifact.name, budget, measured)
    write_bytes(path, page.encode())
    written = f"{path}, replacing the earlier one" if replaces else f"{path}"
    typer.echo(printable(f"wrote {written}, {len(page.encode()):,} bytes"))
    if found is not None:
        require_equal(found, artifact)


def _compared_page(artifacts: tuple[Path, Path], inputs: Inputs, target: str) -> str:
    from mlfc.archive.compare.compare_page import compare_page
    from mlfc.archive.read.load import artifact_kind

    with ExitStack() as stack:
        archives = []
        for artifact in artifacts:
            kind = artifact_kind(artifact)
            if kind not in ("archive", "model"):
                raise OptionError("expected a model or an archive to compare, got a library", place=str(artifact))
            archives.append(stack.enter_context(archive_of(artifact, inputs_of(artifact, inputs), target)))
        names = artifacts[0].name, artifacts[1].name
        with stage(f"comparing {' and '.join(names)}"):
            return compare_page(archives[0], archives[1], names)


def _budget(model: Path, inputs: Inputs) -> Mapping[str, Any]:
    """Return the boards that the model fits, or the reason why it cannot be compiled for any."""
    from mlfc.frontend import import_for_run
    from mlfc.micro.board.board import boards
    from mlfc.micro.fit.boards import board_budgets
    from mlfc.support.c_names import module_name

    options = inputs.options(boards().get("mps2-an386").target)
    with bar(f"fitting {model.name}") as say:
        try:
            mod, params = import_for_run(model, options)
        except MlfcError as error:  # hosts support more than boards: dynamic dimensions, sequences
            return {"refusal": str(error)}
        return board_budgets(mod, params, name=module_name(model_title(model)), progress=say).as_json()


_RUNS = 20


def costs_of(archive: Path, module: str, board: Board | None) -> Costs:
    """Run a module of an archive on generated inputs, here or in a board's emulator; return the costs of its calls."""
    from mlfc.archive.describe.measured import INSTRUCTIONS, MICROSECONDS, Costs
    from mlfc.archive.describe.profile import load_profiled
    from mlfc.micro.run.emulator import emulated_archive
    from mlfc.runtime.executors.vm.vm_model import ProfiledVm

    if board is not None:
        with stage(f"counting the instructions of {module} on {board.name}"):
            firmware = emulated_archive(archive, board, module, profile=True)
            run = firmware.measure(generated_inputs("random", 0, firmware.inputs, firmware.extents))
        return Costs(board.name, INSTRUCTIONS, tuple(map(float, run.operators)))
    with stage(f"timing the operators of {module}"):
        model = load_profiled(archive, module)
        extents = model.extents if isinstance(model, ProfiledVm) else None
        profile = model.profile(generated_inputs("random", 0, model.inputs, extents), _RUNS)
    peaks = known_peaks(())
    where = "this machine" if peaks is None else peaks.processor
    calls = tuple(item.nanoseconds / 1e3 for item in profile.operators)
    return Costs(where, MICROSECONDS, calls, profile.operators, peaks)


def compared(model: Path, inputs: Inputs, target: str, board: Board | None) -> Comparison:
    """Compare every layer of a model with its reference."""
    from mlfc.verify import verify

    return verify(model, layers=True, target=target, board=board, progress=True, **inputs.keywords())
