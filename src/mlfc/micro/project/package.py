"""The template ``package``: a CMake package of the model, for ``find_package`` or ``add_subdirectory``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mlfc.archive.templates.documents import cmake_target
from mlfc.errors import OptionError
from mlfc.micro.board.board import Board
from mlfc.micro.project.cmake import build_commands, languages, toolchain_files
from mlfc.micro.project.firmware import APPLICATION_TYPES, application_files, expected_line
from mlfc.micro.project.model_interface import c_files, library_files, library_values
from mlfc.micro.project.options import GENERATE
from mlfc.micro.project.template import ProjectModel, ProjectOption, ProjectTemplate, ToolCommand
from mlfc.micro.render import render
from mlfc.support.content import Data

_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}")
_EXAMPLE = "example"


def _files(model: ProjectModel, board: Board, project_type: str, options: Mapping[str, Any]) -> dict[str, Data]:
    version = str(options["version"])
    if not _VERSION.fullmatch(version):
        raise OptionError(f"'{version}' is not a version", place="version", next_step="Write it as 1.2.3")
    application = application_files(model, project_type, "int main(void)")
    values = {
        **library_values(model, project_type),
        "target": cmake_target(model.name),
        "version": version,
        "expected": expected_line(model, project_type),
        "is_cross": board.arch != "host",
        "languages": languages(model.code),
        "example_sources": c_files(application, f"{_EXAMPLE}/"),
    }
    return {
        "CMakeLists.txt": render("package/CMakeLists.txt", **values),
        "config.cmake.in": render("package/config.cmake.in", **values),
        **library_files(model, application, _EXAMPLE),
        **toolchain_files(board, model.code, model.details),
    }


def _commands(model: ProjectModel, board: Board) -> dict[str, tuple[ToolCommand, ...]]:
    commands: dict[str, tuple[ToolCommand, ...]] = {"build": build_commands(board)}
    if board.arch == "host":
        commands["run"] = (ToolCommand((f"./build/{cmake_target(model.name)}_example",), "Build the project first"),)
    return commands


TEMPLATE = ProjectTemplate(
    "package",
    "CMake package with a library, for find_package and any toolchain",
    APPLICATION_TYPES,
    lambda _board: None,
    _files,
    (ProjectOption("version", "Version of the package", default="1.0.0", optional=(GENERATE,)),),
    built_by_tests=True,
    commands=_commands,
    elf=lambda model: f"build/lib{cmake_target(model.name)}.a",
    default_board="host",
)
