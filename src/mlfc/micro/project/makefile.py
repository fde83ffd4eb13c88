"""The template ``makefile``: bare-metal firmware that make builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlfc.micro.board.board import Board
from mlfc.micro.firmware.bare_metal import project_files, refuses_bare_metal
from mlfc.micro.project.firmware import FIRMWARE_OPTIONS, SELFTEST, firmware_of
from mlfc.micro.project.template import MODEL_CODE, PROJECT_TYPES, ProjectModel, ProjectTemplate
from mlfc.support.content import Data


def _files(model: ProjectModel, board: Board, project_type: str, _options: Mapping[str, Any]) -> dict[str, Data]:
    firmware, is_selftest = firmware_of(model, board, project_type), project_type == SELFTEST
    return project_files(
        model.name, model.code, model.details, board, firmware, model_folder=MODEL_CODE, is_selftest=is_selftest
    )


TEMPLATE = ProjectTemplate(
    "makefile",
    "Bare-metal firmware, built by make",
    PROJECT_TYPES,
    refuses_bare_metal,
    _files,
    FIRMWARE_OPTIONS,
    built_by_tests=True,
    is_bare_metal=True,
)
