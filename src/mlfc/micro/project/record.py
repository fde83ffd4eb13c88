"""``project.json``: description of a generated project, and the commands that its API server runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mlfc.errors import ArchiveError, OptionError
from mlfc.micro.board.board import Board, FlashTool
from mlfc.micro.firmware.bare_metal import ELF
from mlfc.micro.project.options import template_options
from mlfc.micro.project.template import ProjectModel, ProjectOption, ProjectTemplate, ToolCommand
from mlfc.support.json_text import parse_json

RECORD, ARCHIVE, BOARD, SERVER = "project.json", "model.tar", "board.toml", "microtvm_api_server.py"
BUILT = "build"
"""Build folder of every template's build system."""
FORMAT = 1
_LARGEST_FILE = 16 << 20
_AGAIN = "Generate the project again with: mlfc project create"
# seconds, as in microTVM's servers: retry interval of the start, limit of the start, limit of a reply
_SERIAL_TIMEOUTS, _EMULATOR_TIMEOUTS = (2.0, 5.0, 5.0), (2.0, 10.0, 10.0)
_TIMEOUTS = ("session_start_retry_timeout_sec", "session_start_timeout_sec", "session_established_timeout_sec")
_TEXTS = ("template", "project_type", "module", "executor", "firmware")
_HEX, _BIN = "firmware.hex", "firmware.bin"


@dataclass(frozen=True)
class ProjectRecord:
    """Description of a project in ``project.json``."""

    template: str
    project_type: str
    module: str
    executor: str  # ``aot``, ``graph`` or ``vm``
    firmware: str  # path of the built program
    files: tuple[str, ...]  # generated files, by path
    document: Mapping[str, Any]  # content of the file


def record_of(
    template: ProjectTemplate, board: Board, project_type: str, options: Mapping[str, Any], model: ProjectModel
) -> dict[str, Any]:
    """Return the content of ``project.json`` for a new project, except its files."""
    steps = project_steps(template, board, project_type, model)
    timeouts = _EMULATOR_TIMEOUTS if "run" in steps else _SERIAL_TIMEOUTS
    listed = []
    for option in template_options(template, (board.name,)):
        # clients send every option with its default, so values given at generation are now the defaults
        later = tuple(dict.fromkeys((*option.required, *option.optional)))
        listed.append(as_json(replace(option, default=options.get(option.name), required=(), optional=later)))
    return {
        "format": FORMAT,
        "template": template.name,
        "board": board.name,
        "project_type": project_type,
        "module": model.name,
        "executor": model.executor,
        "firmware": firmware_path(template, model),
        "options": dict(options),
        "project_options": listed,
        "steps": {name: [asdict(command) for command in commands] for name, commands in steps.items()},
        "serial": board.serial and asdict(board.serial),
        "timeouts": dict(zip(_TIMEOUTS, timeouts, strict=True)),
        "files": [],
    }


def as_json(option: ProjectOption) -> dict[str, Any]:
    """Return an option in the form of the Project API."""
    facts = {key: getattr(option, key) for key in ("name", "help", "choices", "default", "type")}
    return {**facts, "required": option.required or None, "optional": option.optional or None}


def read_record(folder: Path) -> ProjectRecord:
    """Return the description of the project in a folder.

    Raises OptionError if the folder is not a generated project, or its file is damaged.
    """
    place = folder / RECORD
    try:
        if place.stat().st_size > _LARGEST_FILE:
            raise OptionError("the project record is too large", place=str(place), next_step=_AGAIN)
        document = parse_json(place.read_bytes(), str(place))
    except OSError as error:
        raise OptionError(
            f"this is not a firmware project: {RECORD}: {error.strerror}",
            place=str(folder),
            next_step="Make one with: mlfc project create MODEL DIR --template makefile --board NAME",
        ) from None
    except ArchiveError as error:
        raise OptionError(error.cause, place=str(place), next_step=_AGAIN) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT or not _is_sound(document):
        raise OptionError(f"expected a project record of format {FORMAT}", place=str(place), next_step=_AGAIN)
    texts = {key: document[key] for key in _TEXTS}
    return ProjectRecord(**texts, files=tuple(document["files"]), document=document)


def _is_sound(document: Mapping[str, Any]) -> bool:
    texts = all(isinstance(document.get(key), str) for key in (*_TEXTS, "board"))
    files = document.get("files")
    if not texts or not isinstance(files, list) or not isinstance(document.get("steps"), dict):
        return False
    for path in (*files, document["firmware"]):
        if (
            not isinstance(path, str)
            or not path
            or "\0" in path
            or Path(path).is_absolute()
            or ".." in Path(path).parts
        ):
            return False
    return True


def firmware_path(template: ProjectTemplate, model: ProjectModel) -> str:
    """Return the path of the program that a project's build creates."""
    return template.elf(model) if template.elf else ELF


def project_steps(
    template: ProjectTemplate, board: Board, project_type: str, model: ProjectModel
) -> dict[str, Sequence[ToolCommand]]:
    """Return the commands of each step: ``build``, and ``flash`` and ``run`` if they are known."""
    steps: dict[str, Sequence[ToolCommand]] = {}
    for name, commands in (template.commands(model, board) if template.commands else {}).items():
        steps[name] = commands if isinstance(commands, tuple) else (commands,)
    elf = firmware_path(template, model)
    if "build" not in steps:
        arguments = ("make", "-j2", "CFLAGS={cflags}", "STACK_BYTES={stack_bytes}", "{trace:TRACE=1}")
        compiler = {f"{board.toolchain.prefix}gcc": install_hint(board.toolchain.packages)}
        steps["build"] = (ToolCommand(arguments, install_hint(["make"]), needs=compiler),)
    if "flash" not in steps and board.flash_tool is not None:
        steps["flash"] = _flash(board, board.flash_tool, elf)
    if "run" not in steps and template.is_bare_metal:
        run = run_command(board, project_type, elf)
        if run is not None:
            steps["run"] = (run,)
    return steps


def install_hint(packages: Sequence[str]) -> str:
    """Return the installation instructions for Debian packages."""
    return f"Install it; on Debian: apt-get install {' '.join(packages)}"


def _flash(board: Board, tool: FlashTool, elf: str) -> tuple[ToolCommand, ...]:
    objcopy, commands = f"{board.toolchain.prefix}objcopy", []
    text = " ".join(tool.command)
    for place, kind, path in (("{hex}", "ihex", _HEX), ("{bin}", "binary", _BIN)):
        if place in text:
            commands.append(ToolCommand((objcopy, "-O", kind, elf, path), install_hint(board.toolchain.packages)))
    files = {"{elf}": elf, "{hex}": _HEX, "{bin}": _BIN}
    arguments = (re.sub(r"\{(?:elf|hex|bin)\}", lambda match: files[match.group()], word) for word in tool.command)
    return (*commands, ToolCommand(tuple(arguments), tool.install))


def run_command(board: Board, project_type: str, elf: str) -> ToolCommand | None:
    """Return the command that runs firmware on this machine; None for boards without an emulator."""
    if board.emulator is None:
        command = board.run_command(elf)
        return ToolCommand(tuple(command), "Build the project first") if command else None
    # the serial port of a host-driven board is the emulator's standard input and output
    command = board.emulator.command(elf, "stdio" if project_type == "host_driven" else "none")
    return ToolCommand(tuple(command), install_hint(board.emulator.packages))
