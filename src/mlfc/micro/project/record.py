"""``project.json``: what a generated project is, and the commands that its API server runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mlfc.errors import ArchiveError, OptionError
from mlfc.micro.board.board import Board
from mlfc.micro.firmware.bare_metal import ELF
from mlfc.micro.project.options import template_options
from mlfc.micro.project.template import ProjectModel, ProjectOption, ProjectTemplate, ToolCommand
from mlfc.support.json_text import parse_json

RECORD, ARCHIVE, BOARD, SERVER = "project.json", "model.tar", "board.toml", "microtvm_api_server.py"
BUILT = "build"
"""The folder that every template's build system works in."""
FORMAT = 1
_LARGEST_FILE = 16 << 20
_AGAIN = "Generate the project again with: mlfc project create"
# seconds, as microTVM's servers have them: start is tried again after, given up after, a reply may take
_SERIAL_TIMEOUTS, _EMULATOR_TIMEOUTS = (2.0, 5.0, 5.0), (2.0, 10.0, 10.0)
_TIMEOUTS = ("session_start_retry_timeout_sec", "session_start_timeout_sec", "session_established_timeout_sec")
_TEXTS = ("template", "board", "project_type", "module", "executor", "firmware")
_HEX, _BIN = "firmware.hex", "firmware.bin"


@dataclass(frozen=True)
class ProjectRecord:
    """What a project says of itself."""

    document: Mapping[str, Any]  # as in the file

    @property
    def template(self) -> str:
        """The template's name."""
        return str(self.document["template"])

    @property
    def project_type(self) -> str:
        """What its firmware does."""
        return str(self.document["project_type"])

    @property
    def module(self) -> str:
        """The module's name."""
        return str(self.document["module"])

    @property
    def executor(self) -> str:
        """``aot`` or ``graph``."""
        return str(self.document["executor"])

    @property
    def firmware(self) -> str:
        """Where the build leaves the program."""
        return str(self.document["firmware"])

    @property
    def files(self) -> tuple[str, ...]:
        """What was generated, by path."""
        return tuple(self.document["files"])

    @property
    def runs_here(self) -> bool:
        """Whether the firmware runs on this machine or under an emulator."""
        return "run" in self.document["steps"]

    def listing(self, paths: Iterable[str]) -> ProjectRecord:
        """Return the record with the project's files in it."""
        return replace(self, document={**self.document, "files": sorted(paths)})


def record_of(
    template: ProjectTemplate, board: Board, project_type: str, options: Mapping[str, Any], model: ProjectModel
) -> ProjectRecord:
    """Return what a new project says of itself, but for its files."""
    steps = project_steps(template, board, project_type, model)
    timeouts = _EMULATOR_TIMEOUTS if "run" in steps else _SERIAL_TIMEOUTS
    return ProjectRecord(
        {
            "format": FORMAT,
            "template": template.name,
            "board": board.name,
            "project_type": project_type,
            "module": model.name,
            "executor": model.executor,
            "firmware": firmware_path(template, model),
            "options": dict(options),
            "project_options": _options(template, board, options),
            "steps": {name: [asdict(command) for command in commands] for name, commands in steps.items()},
            "serial": board.serial and asdict(board.serial),
            "timeouts": dict(zip(_TIMEOUTS, timeouts, strict=True)),
            "files": [],
        }
    )


def _options(template: ProjectTemplate, board: Board, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the options as a project's server lists them.

    Clients send every option with its default, so what was said when the project was made is the default now.
    """
    return [
        as_json(replace(option, default=values.get(option.name), required=(), optional=_later(option)))
        for option in template_options(template, (board.name,))
    ]


def _later(option: ProjectOption) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*option.required, *option.optional)))


def as_json(option: ProjectOption) -> dict[str, Any]:
    """Return an option as the Project API describes it."""
    return {
        "name": option.name,
        "help": option.help,
        "choices": option.choices and list(option.choices),
        "default": option.default,
        "type": option.type,
        "required": list(option.required) or None,
        "optional": list(option.optional) or None,
    }


def read_record(folder: Path) -> ProjectRecord:
    """Return what the project in a folder says of itself.

    Raises OptionError if the folder is no generated project, or its file was damaged.
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
    return ProjectRecord(document)


def _is_sound(document: Mapping[str, Any]) -> bool:
    texts = all(isinstance(document.get(key), str) for key in _TEXTS)
    files = document.get("files")
    if not texts or not isinstance(files, list) or not isinstance(document.get("steps"), dict):
        return False
    return all(isinstance(path, str) and _points_inside(path) for path in (*files, document["firmware"]))


def _points_inside(path: str) -> bool:
    parts = Path(path)
    return bool(path) and not parts.is_absolute() and ".." not in parts.parts and "\0" not in path


def firmware_path(template: ProjectTemplate, model: ProjectModel) -> str:
    """Return where a project's build leaves the program."""
    return template.elf(model) if template.elf else ELF


def project_steps(
    template: ProjectTemplate, board: Board, project_type: str, model: ProjectModel
) -> dict[str, Sequence[ToolCommand]]:
    """Return the commands of each step: ``build``, and ``flash`` and ``run`` where they are known."""
    steps: dict[str, Sequence[ToolCommand]] = {}
    for name, commands in (template.commands(model, board) if template.commands else {}).items():
        steps[name] = commands if isinstance(commands, tuple) else (commands,)
    elf = firmware_path(template, model)
    if "build" not in steps:
        steps["build"] = (_make(board),)
    if "flash" not in steps and board.flash_tool is not None:
        steps["flash"] = _flash(board, elf)
    if "run" not in steps and template.is_bare_metal:
        run = run_command(board, project_type, elf)
        if run is not None:
            steps["run"] = (run,)
    return steps


def _make(board: Board) -> ToolCommand:
    return ToolCommand(
        ("make", "-j2", "CFLAGS={cflags}", "STACK_BYTES={stack_bytes}", "{trace:TRACE=1}"),
        install_hint(["make"]),
        needs={f"{board.toolchain.prefix}gcc": install_hint(board.toolchain.packages)},
    )


def install_hint(packages: Sequence[str]) -> str:
    """Say how to install Debian's packages."""
    return f"Install it; on Debian: apt-get install {' '.join(packages)}"


def _flash(board: Board, elf: str) -> tuple[ToolCommand, ...]:
    assert board.flash_tool is not None
    objcopy, commands = f"{board.toolchain.prefix}objcopy", []
    text = " ".join(board.flash_tool.command)
    for place, kind, path in (("{hex}", "ihex", _HEX), ("{bin}", "binary", _BIN)):
        if place in text:
            commands.append(ToolCommand((objcopy, "-O", kind, elf, path), install_hint(board.toolchain.packages)))
    files = {"{elf}": elf, "{hex}": _HEX, "{bin}": _BIN}
    arguments = tuple(
        re.sub(r"\{(?:elf|hex|bin)\}", lambda match: files[match.group()], argument)
        for argument in board.flash_tool.command
    )
    return (*commands, ToolCommand(arguments, board.flash_tool.install))


def run_command(board: Board, project_type: str, elf: str) -> ToolCommand | None:
    """Return what runs firmware on this machine; None for boards that have no emulator."""
    if board.emulator is None:
        command = board.run_command(elf)
        return ToolCommand(tuple(command), "Build the project first") if command else None
    # the serial port of a board that a host drives is the emulator's standard input and output
    command = board.emulator.command(elf, "stdio" if project_type == "host_driven" else "none")
    return ToolCommand(tuple(command), install_hint(board.emulator.packages))
