"""What the firmware of a project runs, by the project's type."""

from __future__ import annotations

from collections.abc import Callable

from mlforge.micro.bare_metal import Firmware
from mlforge.micro.board import Board
from mlforge.micro.project.options import BUILD
from mlforge.micro.project.template import ProjectModel, ProjectOption
from mlforge.micro.standalone import standalone_main

FIRMWARE_OPTIONS = (
    ProjectOption("cflags", "For the C compiler, instead of -O3", optional=(BUILD,)),
    ProjectOption("stack_bytes", "Of the stack, instead of the board's own number", "int", optional=(BUILD,)),
    ProjectOption("trace", "Print a checksum and the time of every operator", "bool", optional=(BUILD,)),
)


def firmware_of(model: ProjectModel, board: Board, project_type: str) -> Firmware:
    """Return the main file of a project, and what it takes beside the model and the board's own files."""
    return _MAKERS[project_type](model, board)


def project_types() -> tuple[str, ...]:
    """Return what firmware can be made to do."""
    return tuple(_MAKERS)


def _standalone(model: ProjectModel, _board: Board) -> Firmware:
    return Firmware(standalone_main(model.name, model.details))


_MAKERS: dict[str, Callable[[ProjectModel, Board], Firmware]] = {"standalone": _standalone}
