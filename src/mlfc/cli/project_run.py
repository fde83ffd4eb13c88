"""``mlfc project run``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.cli.board_run import run_firmware
from mlfc.cli.options import Fill, Inputs, Json, Outputs, Seed
from mlfc.cli.outputs_table import print_outputs, summaries
from mlfc.cli.tables import print_json
from mlfc.errors import BudgetError, OptionError
from mlfc.support.progress import stage
from mlfc.support.text import printable

if TYPE_CHECKING:
    from mlfc.micro.run.project_run import BuiltProject
    from mlfc.support.arrays import Array
    from mlfc.support.tensor_info import TensorInfo


def run_project(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The project's folder.")],
    *,
    inputs: Inputs = None,
    outputs: Outputs = None,
    fill: Fill = "random",
    seed: Seed = 0,
    top: Annotated[int, typer.Option(help="Show the largest K values of each output.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds after which firmware that does not end is given up.")] = 300.0,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option of the project; may be given again."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a project's firmware, as far as it runs here or on a board that is connected."""
    from mlfc.micro.project.options import parse_options
    from mlfc.micro.run.project_run import built_project
    from mlfc.runtime.tensor.fill import fill as filled
    from mlfc.runtime.tensor.npz import read_npz
    from mlfc.support.atomic import check_writable

    if top < 0 or not timeout > 0:
        raise OptionError("--top must be at least 0, and --timeout greater than 0")
    if outputs is not None:
        check_writable(outputs)
    project = built_project(folder)
    options = parse_options(option or ())

    def given(infos: tuple[TensorInfo, ...]) -> Mapping[str, Array]:
        return filled(infos, fill, seed) if inputs is None else read_npz(inputs, infos)

    kind = project.record.project_type
    if kind == "host_driven":
        _run_driven(project, options, given, outputs, top, as_json)
    elif not project.is_bare_metal:
        _show_console(project, options, timeout, (inputs, outputs), as_json)
    elif kind == "selftest":
        _check_vectors(project, timeout, (inputs, outputs), as_json)
    else:
        firmware = project.firmware(timeout)
        run_firmware(firmware, given(firmware.inputs), outputs, top, as_json)


def _run_driven(
    project: BuiltProject,
    options: Mapping[str, Any],
    given: Callable[[tuple[TensorInfo, ...]], Mapping[str, Array]],
    outputs: Path | None,
    top: int,
    as_json: bool,
) -> None:
    from mlfc.micro.run.project_run import driven_project
    from mlfc.runtime.tensor.npz import write_npz

    with driven_project(project, options, lambda line: typer.echo(f"device: {printable(line)}", err=True)) as model:
        with stage(f"running {project.folder} on {project.board.name}"):
            results = model.run(given(model.inputs))
        infos = model.outputs
    if outputs is not None:
        write_npz(outputs, results)
    tensors = summaries(infos, results, top)
    if as_json:
        print_json({"outputs": tensors})
    else:
        print_outputs(tensors)


def _check_vectors(
    project: BuiltProject, timeout: float, files: tuple[Path | None, Path | None], as_json: bool
) -> None:
    _refuse_files(files, "a self-test has inputs and outputs of its own")
    with stage(f"checking {project.folder} on {project.board.name}"):
        run = project.selftest(timeout)
    if as_json:
        print_json({"passed": run.passed, "lines": list(run.lines)})
    else:
        typer.echo("\n".join(run.lines))
    if not run.passed:
        raise _failed(project)


def _show_console(
    project: BuiltProject,
    options: Mapping[str, Any],
    timeout: float,
    files: tuple[Path | None, Path | None],
    as_json: bool,
) -> None:
    from mlfc.micro.run.project_run import console

    _refuse_files(files, f"firmware of the template {project.record.template} has inputs of its own, and prints")
    lines = []
    for line in console(project.folder, options, timeout):
        lines.append(line)
        if not as_json:
            typer.echo(printable(line))
    if as_json:
        print_json({"lines": lines})
    if any(line.startswith("FAIL ") for line in lines):
        raise _failed(project)


def _refuse_files(files: tuple[Path | None, Path | None], why: str) -> None:
    if any(files):
        raise OptionError(why, next_step="Remove --inputs and --outputs")


def _failed(project: BuiltProject) -> BudgetError:
    return BudgetError(
        "the firmware's results differ from those of the machine that made the test vectors", place=str(project.folder)
    )
