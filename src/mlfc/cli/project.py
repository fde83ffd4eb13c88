"""``mlfc project``: creating, building, flashing and running firmware projects."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from mlfc.cli.artifacts import core_warnings
from mlfc.cli.board_run import run_firmware
from mlfc.cli.options import chosen_board
from mlfc.cli.run_data import DataOptions
from mlfc.cli.tables import print_json, print_table
from mlfc.errors import BudgetError, OptionError
from mlfc.support.progress import stage
from mlfc.support.text import printable

if TYPE_CHECKING:
    from mlfc.micro.run.project_run import BuiltProject

Folder: TypeAlias = Annotated[Path, typer.Argument(metavar="DIR", help="The project's folder.")]


def _list_and_leave(wanted: bool) -> None:
    if wanted:
        list_templates()
        raise typer.Exit


_LIST_OPTIONS = typer.Option(
    "--list-options", callback=_list_and_leave, is_eager=True, help="List the options of all templates."
)


def create(
    model: Annotated[Path, typer.Argument(help="An archive; a model is compiled for the board first.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")],
    *,
    template: str,
    board: str | None = None,
    trust_board: bool = False,
    project_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="standalone (the default), selftest or host_driven.")
    ] = None,
    module: str | None = None,
    option: list[str] | None = None,
    force: bool = False,
    list_options: Annotated[bool, _LIST_OPTIONS] = False,  # noqa: ARG001  (its callback leaves)
    as_json: bool = False,
) -> None:
    """Create a firmware project that builds without mlfc."""
    from mlfc.micro.project.generate import generate_project
    from mlfc.micro.project.options import parse_options
    from mlfc.micro.project.record import read_record

    options: dict[str, Any] = parse_options(option or ())
    for name, value in (("board", board), ("project_type", project_type), ("module", module)):
        if value is not None:
            options[name] = value
    options.setdefault("project_type", "standalone")
    chosen = chosen_board(board, trust_board)
    warnings = {} if chosen is None else core_warnings(model, chosen, str(board), module)
    with stage(f"making {folder}"):
        generate_project(template, model, folder, options, force=force, trust_board=trust_board)
    record = read_record(folder)
    if as_json:
        facts = {name: record.document[name] for name in ("template", "board", "module")}
        print_json({"project": str(folder), **facts, **warnings})
        return
    typer.echo(f"{folder}: {record.project_type} firmware of module {record.module}. Next: mlfc project build {folder}")


def package(
    model: Annotated[Path, typer.Argument(help="An archive; a model is compiled for the board first.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for the packages.")],
    *,
    board: str,
    version: Annotated[str, typer.Option(metavar="1.2.3", help="Version of the packages.")],
    author: Annotated[str, typer.Option(metavar="NAME", help="Maintainer of the packages; vendor of a CMSIS pack.")],
    url: Annotated[str, typer.Option(metavar="URL", help="Home page of the packages.")],
    form: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="arduino, zephyr, esp_idf or cmsis_pack; repeatable. Default: those that the board has names for.",
        ),
    ] = None,
    license_name: Annotated[
        str, typer.Option("--license", metavar="SPDX", help="Licence of the model and its code, such as Apache-2.0.")
    ] = "0BSD",
    license_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The text of a licence other than the default.")
    ] = None,
    module: str | None = None,
    trust_board: bool = False,
    as_json: bool = False,
) -> None:
    """Create packages of a model that are ready to publish.

    Supports Arduino, Zephyr, ESP-IDF and CMSIS.
    """
    from mlfc.micro.project.publishing import Details, make_packages

    text = None if license_file is None else license_file.read_text(encoding="utf-8")
    details = Details(version, author, url, license_name, text)
    chosen = chosen_board(board, trust_board)
    if chosen is not None:
        core_warnings(model, chosen, board, module)
    with stage(f"making {folder}"):
        made = make_packages(model, folder, board, details, form or (), module=module, trust_board=trust_board)
    if as_json:
        print_json({name: str(path) for name, path in made.items()})
    else:
        for name, path in made.items():
            typer.echo(printable(f"{name}: {path}"))


def build(folder: Folder, *, option: list[str] | None = None, force: bool = False, as_json: bool = False) -> None:
    """Build a project's firmware, by the project's own build system."""
    from mlfc.cli.memory import memory_json, print_linked, print_memory
    from mlfc.micro.firmware.planned_memory import check_fit
    from mlfc.micro.project.options import parse_options
    from mlfc.micro.run.project_run import build_project

    with stage(f"building {folder}"):
        project = build_project(folder, parse_options(option or ()), force=force)
    firmware = project and str(project.folder / project.record.firmware)
    tables = project.memory() if project else None
    if as_json:
        document: dict[str, Any] = {"project": str(folder), "firmware": firmware}
        if tables:
            before, linked = tables
            document["memory"] = memory_json(before, linked) if before else {"linked": linked.as_json()}
        print_json(document)
    else:
        typer.echo(f"{firmware or folder}: built")
        if tables:
            before, linked = tables
            if before:
                print_linked(before, linked)
            else:
                print_memory(linked)
    if project and tables:
        # the linker does not know the stack use of calls
        check_fit(tables[1], project.details)


def flash(folder: Folder, *, option: list[str] | None = None) -> None:
    """Write a project's firmware to the board.

    Uses the board's flash tool.
    """
    from mlfc.micro.project.options import parse_options
    from mlfc.micro.project_api import GeneratedProject
    from mlfc.micro.run.project_run import known_record

    record = known_record(folder)
    if record is not None and not (folder / record.firmware).exists():
        raise OptionError(f"Could not find a build in {folder}", next_step=f"Build it: mlfc project build {folder}")
    with stage(f"flashing {folder}"), GeneratedProject(folder, parse_options(option or ())) as project:
        project.flash()
    nothing = record is not None and "flash" not in record.document["steps"]
    typer.echo(f"{folder}: {'nothing to flash: no flash tool of the board is known' if nothing else 'flashed'}")


def run_project(
    folder: Folder,
    *,
    data: DataOptions,
    timeout: float = 300.0,
    option: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Run a project's firmware, in an emulator or on a board."""
    from mlfc.micro.project.options import parse_options
    from mlfc.micro.run.project_run import built_project, driven_project
    from mlfc.support.atomic import check_writable

    data.check_data()
    if not timeout > 0:
        raise OptionError("--timeout must be greater than 0")
    if data.outputs is not None:
        check_writable(data.outputs)
    project = built_project(folder)
    options = parse_options(option or ())
    kind = project.record.project_type
    if kind == "host_driven":
        log = partial(typer.echo, err=True)
        with (
            driven_project(project, options, lambda line: log(f"device: {printable(line)}")) as model,
            stage(f"running {folder} on {project.board.name}"),
        ):
            sets = data.sets(model)
            runs = [model.run(given) for _, given in sets]
            results = data.results(model, sets, runs, keeps_state=bool(project.details.states))
        document = results.document()
        if as_json:
            print_json(document)
        else:
            results.print(document)
    elif kind != "selftest" and project.is_bare_metal:
        firmware = project.firmware(timeout)
        run_firmware(firmware, data.sets(firmware, firmware.extents), data, as_json)
    else:
        why = "a self-test has its own inputs and outputs"
        if not project.is_bare_metal:
            why = f"firmware of the template {project.record.template} has its own inputs, and prints"
        if data.inputs or data.outputs:
            raise OptionError(why, next_step="Remove --inputs and --outputs")
        _run_alone(project, options, timeout, as_json)


def _run_alone(project: BuiltProject, options: Mapping[str, Any], timeout: float, as_json: bool) -> None:
    """Run firmware with its own inputs, show its output, and raise BudgetError if it failed."""
    from mlfc.micro.run.project_run import console, run_built

    if project.is_bare_metal:
        with stage(f"checking {project.folder} on {project.board.name}"):
            run = run_built(project.folder, project.board, timeout, project.record.firmware)
        passed, document = run.passed, {"passed": run.passed, "lines": list(run.lines)}
        if not as_json:
            typer.echo("\n".join(run.lines))
    else:
        lines = []
        for line in console(project.folder, options, timeout):
            lines.append(line)
            if not as_json:
                typer.echo(printable(line))
        passed, document = not any(line.startswith("FAIL ") for line in lines), {"lines": lines}
    if as_json:
        print_json(document)
    if not passed:
        raise BudgetError(
            "the firmware's results differ from the test vectors",
            place=str(project.folder),
        )


def list_templates(as_json: bool = False) -> None:
    """List the templates of projects, and the options of each."""
    from mlfc.micro.board.board import boards
    from mlfc.micro.project.generate import templates
    from mlfc.micro.project.options import template_options
    from mlfc.micro.project.record import as_json as option_as_json

    found = [templates().get(name) for name in templates()]
    known = {template.name: template_options(template, boards()) for template in found}
    if as_json:
        print_json(
            {
                template.name: {
                    "description": template.description,
                    "project_types": list(template.project_types),
                    "is_built_by_tests": template.built_by_tests,
                    "options": [option_as_json(option) for option in known[template.name]],
                }
                for template in found
            }
        )
        return
    rows = []
    for item in found:
        tested = "yes" if item.built_by_tests else "structure alone"
        rows.append((item.name, item.description, ", ".join(item.project_types), tested))
    print_table("templates", ("template", "makes", "types", "built by tests"), rows)
    shared = set.intersection(*({option.name for option in options} for options in known.values()))
    first = next(iter(known.values()))
    _print_options("options of all templates", [option for option in first if option.name in shared])
    for name, options in known.items():
        own = [option for option in options if option.name not in shared]
        if own:
            _print_options(f"options of {name}", own)


def _print_options(title: str, options: list[Any]) -> None:
    rows = []
    for option in options:
        methods = (", ".join(names) or None for names in (option.required, option.optional))
        rows.append((option.name, option.type, option.help, *methods, option.default))
    print_table(title, ("option", "type", "what it is", "required for", "optional for", "default"), rows)


COMMANDS = (
    (
        "create",
        create,
        (
            "mlfc project create kws.tflite kws_m4 --template makefile --board mps2-an386",
            "mlfc project create kws.tar kws_m4 --template cmake --board mps2-an386 --option cflags=-Os",
            "mlfc project create kws.tar kws_package --template package",
            "mlfc project create kws.tar kws_check --template makefile --board mps3-an547 --type selftest",
        ),
    ),
    (
        "package",
        package,
        (
            "mlfc project package kws.tflite out --board esp32c3 --version 1.0.0 --author Ada --url https://example.org",
            "mlfc project package kws.tar out --board mps2-an386 --form cmsis_pack --version 2.1.0 --author A --url U",
        ),
    ),
    ("build", build, ("mlfc project build kws_m4", "mlfc project build kws_m4 --force --option cflags=-Os")),
    ("flash", flash, ("mlfc project flash kws_m4 --option port=/dev/ttyACM0",)),
    (
        "run",
        run_project,
        (
            "mlfc project run kws_m4 --inputs in.npz --outputs out.npz",
            "mlfc project run kws_m4 --fill zeros --top 3",
            "mlfc project run vww_m4 --inputs person.jpg --labels labels.txt",
            "mlfc project run kws_driven --option port=/dev/ttyACM0",
        ),
    ),
    ("list", list_templates, ("mlfc project list", "mlfc project list --json")),
)
