"""The template ``makefile``: bare-metal firmware that make builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlforge.micro.bare_metal import bare_metal, refuses_bare_metal
from mlforge.micro.board import Board
from mlforge.micro.makefile import makefile
from mlforge.micro.project.firmware import firmware_of, project_types
from mlforge.micro.project.options import BUILD
from mlforge.micro.project.template import MODEL_CODE, ProjectModel, ProjectOption, Template
from mlforge.support.content import Data


def _files(model: ProjectModel, board: Board, project_type: str, _options: Mapping[str, Any]) -> dict[str, Data]:
    project = bare_metal(model.code, board, firmware_of(model, board, project_type), MODEL_CODE)
    return {
        **project.files,
        "Makefile": makefile(model.name, board, project.sources, project.folders).encode(),
    }


OPTIONS = (
    ProjectOption("cflags", "For the C compiler, instead of -O3", optional=(BUILD,)),
    ProjectOption("stack_bytes", "Of the stack, instead of the board's own number", "int", optional=(BUILD,)),
    ProjectOption("trace", "Print a checksum and the time of every operator", "bool", optional=(BUILD,)),
)

TEMPLATE = Template(
    "makefile",
    "Bare-metal firmware, built by make",
    project_types(),
    refuses_bare_metal,
    _files,
    OPTIONS,
    built_by_tests=True,
)
