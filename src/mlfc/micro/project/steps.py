"""The commands that build, flash and run a project, as data for its API server."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlfc.micro.board.board import Board
from mlfc.micro.firmware.bare_metal import ELF
from mlfc.micro.project.template import ProjectModel, ProjectTemplate, ToolCommand

_HEX, _BIN = "firmware.hex", "firmware.bin"


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
