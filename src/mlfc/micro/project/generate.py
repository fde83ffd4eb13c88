"""Generation of projects, which build without mlfc, from a model, a board and a template."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from mlfc.errors import OptionError, OutputError
from mlfc.micro.board.board import Board, boards, find_board
from mlfc.micro.board.object_code import object_paths
from mlfc.micro.firmware.planned_memory import check_fit, plan_table
from mlfc.micro.project import arduino, cmake, cmsis_pack, esp_idf, makefile, package, zephyr
from mlfc.micro.project.firmware import HOST_DRIVEN
from mlfc.micro.project.model import project_source
from mlfc.micro.project.options import GENERATE, checked_options, template_options
from mlfc.micro.project.record import ARCHIVE, BOARD, BUILT, RECORD, SERVER, read_record, record_of
from mlfc.micro.project.template import MODEL_FOLDER, WHAT_TYPES_DO, ProjectModel, ProjectTemplate
from mlfc.micro.project_server.steps import arguments_of
from mlfc.micro.render import render
from mlfc.options import ImportOptions
from mlfc.registry import Registry
from mlfc.support.atomic import check_writable, write_folder
from mlfc.support.content import Data

_MAINS = ("main.c", "main.cpp", ".ino")
_SERVER_PACKAGE = "project_server"
_TEMPLATES = (
    makefile.TEMPLATE,
    cmake.TEMPLATE,
    package.TEMPLATE,
    zephyr.TEMPLATE,
    arduino.TEMPLATE,
    esp_idf.TEMPLATE,
    cmsis_pack.TEMPLATE,
)


def generate_project(
    template: str,
    model: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    options: Mapping[str, Any],
    *,
    force: bool = False,
    trust_board: bool = False,
    imports: ImportOptions | None = None,
) -> Path:
    """Generate a firmware project.

    `model`: an archive, or a model file that is compiled for the board.
    `folder`: created atomically.
    `options`: ``board``, ``project_type`` and others by name, listed by `template_options`.
    `force`: write into an existing folder; files of an older project in it are removed, others stay.
    `trust_board`: whether a board's file may name any program, its flash tool included; see `board.find_board`.
    `imports`: how to import a model: shapes, values and states.

    Returns `folder`. Raises OptionError for a template, board, type or option that does not exist, or is incompatible
    with the others; OutputError if the folder is not empty, or cannot be written; BudgetError if the module does not
    fit into the board's memory; and the errors of reading archives, and of importing and compiling models.
    """
    chosen = templates().get(template)
    target = Path(folder)
    if not target.exists():
        check_writable(target)
    elif not target.is_dir():
        raise OutputError("expected a folder, got an existing file", place=str(target), next_step="Name a folder")
    elif not force and any(target.iterdir()):
        raise OutputError(
            "The specified project dir already exists. To force overwriting it use '-f' or '--force'.",
            place=str(target),
        )
    values = checked_options(template_options(chosen, boards()), options, GENERATE)
    name, project_type = str(values["board"]), str(values["project_type"])
    board = find_board(name, trust=trust_board)
    tool, known = board.flash_tool, [item.flash_tool for item in map(boards().get, boards()) if item.flash_tool]
    if tool is not None and not board.trusted and all(tool.command != item.command for item in known):
        raise OptionError(
            f"flash_tool: the project would run the file's own command '{' '.join(tool.command)}'"[:400],
            place=name,
            next_step="If you trust the author of the file, add --trust-board; in Python: trust_board=True",
        )
    reason = chosen.refuses(board)
    if reason is not None:
        raise OptionError(f"template {chosen.name} does not support board '{board.name}': {reason}")
    module = values["module"]
    with project_source(model, board, project_type, None if module is None else str(module), imports) as source:
        check_model(chosen, board, project_type, source)
        # the project contains the board's file, so it does not record the file's original path
        made = project_files(chosen, board, project_type, {**values, "board": board.name}, source)
        made[BOARD] = board.text.encode()
        if force:
            _remove_older(target)
        write_folder(target, made)
    return target


def check_model(template: ProjectTemplate, board: Board, project_type: str, model: ProjectModel) -> None:
    """Raise an error for a module that the template does not support, or that does not fit into the board's memory."""
    if project_type == HOST_DRIVEN:
        return  # the host places its constants and intermediates
    if model.graph is not None and not template.is_bare_metal:
        raise OptionError(
            f"module '{model.name}' uses the graph executor, which template {template.name} does not support",
            next_step="Compile it with --executor aot",
        )
    if model.executor == "vm" and (board.arch == "avr" or not template.is_bare_metal):
        what = f"template {template.name}" if not template.is_bare_metal else f"the core of {board.name}"
        raise OptionError(
            f"module '{model.name}' is for the virtual machine, which {what} does not support",
            next_step="Use the template makefile or cmake and a board with a 32-bit core, or build the archive's own C",
        )
    if not model.is_ours and not template.is_bare_metal:
        raise OptionError(
            f"module '{model.name}' was not compiled by mlfc; only the templates makefile and cmake support it",
            next_step="Compile the model with: mlfc compile MODEL",
        )
    if object_paths(model.code) and not template.is_bare_metal:
        raise OptionError(
            f"module '{model.name}' consists of objects, which template {template.name} cannot build",
            next_step=f"Compile it with --target '{board.target}', or use the template makefile or cmake",
        )
    check_fit(plan_table(model.details, board), model.details)


def project_files(
    template: ProjectTemplate, board: Board, project_type: str, options: Mapping[str, Any], model: ProjectModel
) -> dict[str, Data]:
    """Return all files of a project except the board's, by relative path."""
    made: dict[str, Data] = {f"{MODEL_FOLDER}/{path}": data for path, data in model.members.items()}
    made[ARCHIVE] = model.archive
    # the API server must run without mlfc in the project
    package = files("mlfc.micro").joinpath(_SERVER_PACKAGE)
    scripts = (item for item in package.iterdir() if item.name.endswith(".py"))
    made |= {f"{_SERVER_PACKAGE}/{item.name}": item.read_bytes() for item in scripts}
    made[SERVER] = render(f"project/{SERVER}")
    made.update(template.files(model, board, project_type, options))
    record = record_of(template, board, project_type, options, model)
    if "README.md" not in made:
        made["README.md"] = readme(template, board, record, made)
    record["files"] = sorted([*made, BOARD, RECORD])
    made[RECORD] = (json.dumps(record, indent=2) + "\n").encode()
    return made


def _remove_older(target: Path) -> None:
    """Remove the files and build outputs of an older project."""
    try:
        older = read_record(target)
    except OptionError:  # no generated project, or an unreadable one
        return
    for path in (*older.files, older.firmware):
        place = target / path
        # a link in the project may now point outside it
        if place.is_file() and place.parent.resolve().is_relative_to(target.resolve()):
            place.unlink()
    if not (target / BUILT).is_symlink():
        shutil.rmtree(target / BUILT, ignore_errors=True)


def _main(paths: Iterable[str]) -> str | None:
    """Return the source file that calls the model; those in the archive are of other programs."""
    found = (path for path in sorted(paths) if path.endswith(_MAINS) and not path.startswith(f"{MODEL_FOLDER}/"))
    return next(found, None)


def readme(template: ProjectTemplate, board: Board, document: Mapping[str, Any], paths: Iterable[str]) -> bytes:
    """Return the text of ``README.md``; `document` is the content of ``project.json``, `paths` are all files."""
    steps: Mapping[str, Sequence[Mapping[str, Any]]] = document["steps"]
    return render(
        "project/README.md",
        module=document["module"],
        does=WHAT_TYPES_DO[document["project_type"]],
        template=template,
        board=board,
        firmware=document["firmware"],
        main=_main(paths) if document["project_type"] == "standalone" else None,
        reads_files=template.is_bare_metal and document["project_type"] == "standalone" and board.arch != "avr",
        needs_debugger=(
            template.is_bare_metal
            and document["project_type"] != "host_driven"
            and board.emulator is None
            and board.arch != "host"
        ),
        commands={
            name: [shlex.join(arguments_of(command, document["options"])) for command in commands]
            for name, commands in steps.items()
        },
    )


@cache
def templates() -> Registry[ProjectTemplate]:
    """Return the templates of projects by name."""
    found: Registry[ProjectTemplate] = Registry("project template")
    for template in _TEMPLATES:
        found.add(template.name, template)
    return found
