"""Checking the test vectors of an archive on a board."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mlfc.errors import RunError
from mlfc.micro.board.board import Board
from mlfc.micro.firmware.bare_metal import ELF, project_files
from mlfc.micro.firmware.makefile import optimization_level
from mlfc.micro.project.firmware import SELFTEST, firmware_of
from mlfc.micro.project.model import project_source
from mlfc.micro.run.firmware_build import build, write_files
from mlfc.micro.run.firmware_run import execute, failure, run_command

_VERDICTS = {0: "PASS ", 1: "FAIL "}


@dataclass(frozen=True)
class SelftestRun:
    """What a self-test found."""

    passed: bool
    lines: tuple[str, ...]  # one for each test vector, and the verdict


def run_selftest(
    path: str | os.PathLike[str],
    board: Board,
    module: str | None = None,
    *,
    cflags: str | None = None,
    timeout: float = 300.0,
) -> SelftestRun:
    """Build firmware that checks a module's test vectors, and run it under the board's emulator.

    `path`: an archive with test vectors, or a model, which is compiled for the board with some.
    `module`: which module, where an archive holds several.
    `cflags`: for the C compiler; default what suits the goal that the module was compiled for.
    `timeout`: seconds that the emulation may take.

    Raises OptionError if nothing here runs the board's firmware, or the archive has no test vectors; ToolchainError if
    the compiler, make or the emulator is missing, or the firmware does not build or fit; RunError if the firmware ends
    without a verdict.
    """
    run_command(board)
    with project_source(path, board, SELFTEST, module) as source, tempfile.TemporaryDirectory() as name:
        model, folder = source.model, Path(name)
        firmware = firmware_of(model, board, SELFTEST)
        write_files(folder, project_files(model.name, model.code, model.details, board, firmware))
        build(folder, board, trace=False, cflags=cflags or optimization_level(model.details))
        return run_built(folder, board, timeout)


def run_built(folder: Path, board: Board, timeout: float = 300.0, elf: str = ELF) -> SelftestRun:
    """Run the firmware of a self-test that is built in a folder.

    Raises OptionError or ToolchainError if nothing here runs the board's firmware, or the emulator is missing; RunError
    if the firmware ends without a verdict.
    """
    status, said = execute(folder, board, timeout, elf)
    lines = tuple(line for line in said.splitlines() if line.startswith(tuple(_VERDICTS.values())))
    if status not in _VERDICTS or not lines or not lines[-1].startswith(_VERDICTS[status]):
        raise RunError(failure(status, said), place=board.name)
    return SelftestRun(status == 0, lines)
