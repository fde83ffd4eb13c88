"""The template ``cmake``: bare-metal firmware that CMake builds, with a toolchain file for the board's compiler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mlfc.micro.board.board import Board
from mlfc.micro.board.object_code import core_flags
from mlfc.micro.firmware.bare_metal import (
    COMPILE_FLAGS,
    bare_metal,
    has_linker_script,
    optimization_level,
    refuses_bare_metal,
)
from mlfc.micro.project.firmware import FIRMWARE_OPTIONS, firmware_of
from mlfc.micro.project.record import install_hint, run_command
from mlfc.micro.project.template import MODEL_CODE, PROJECT_TYPES, ProjectModel, ProjectTemplate, ToolCommand
from mlfc.micro.render import render
from mlfc.support.content import Data
from mlfc.support.module_info import ModuleInterface

_ELF = "build/firmware.elf"
_TOOLCHAIN = "toolchain.cmake"
_INSTALL = install_hint(["cmake", "make"])
_STANDARD = "-std="  # CMake has a property for it


def _refuses(board: Board) -> str | None:
    if board.arch == "avr":
        return "its simulator takes files that the Makefile makes; use the template makefile or arduino"
    return refuses_bare_metal(board)


def languages(sources: Iterable[str]) -> str:
    """Return the languages of a project with these files, as CMake names them."""
    return "C ASM" if any(path.endswith(".S") for path in sources) else "C"


def toolchain_files(board: Board, code: Mapping[str, Data], details: ModuleInterface) -> dict[str, Data]:
    """Return the toolchain file of the board's compiler for a module; empty for this machine's compiler."""
    if board.arch == "host":
        return {}
    values = {"core_flags": core_flags(board, code), "level": optimization_level(details)}
    return {_TOOLCHAIN: render("cmake/toolchain.cmake", board=board, **values)}


def build_commands(board: Board, *options: str) -> tuple[ToolCommand, ToolCommand]:
    """Return the commands that configure and build in the folder ``build``."""
    cross = (f"-DCMAKE_TOOLCHAIN_FILE={_TOOLCHAIN}",) if board.arch != "host" else ()
    compiler = {f"{board.toolchain.prefix}gcc": install_hint(board.toolchain.packages)} if board.arch != "host" else {}
    configure = ToolCommand(("cmake", "-S", ".", "-B", "build", *cross, *options), _INSTALL, needs=compiler)
    return configure, ToolCommand(("cmake", "--build", "build", "--parallel", "2"), _INSTALL)


def _files(model: ProjectModel, board: Board, project_type: str, _options: Mapping[str, Any]) -> dict[str, Data]:
    project = bare_metal(model.code, board, firmware_of(model, board, project_type), MODEL_CODE)
    values = {
        "board": board,
        "is_cross": board.arch != "host",
        "name": model.name,
        "model_folder": f"{MODEL_CODE}/",
        "flags": [flag for flag in COMPILE_FLAGS if not flag.startswith(_STANDARD)],
        "sources": project.sources,
        "objects": project.objects,
        "folders": project.folders,
        "has_script": has_linker_script(board),
        "languages": languages(project.sources),
    }
    run = run_command(board, project_type, _ELF)
    return {
        **project.files,
        **toolchain_files(board, model.code, model.details),
        "CMakeLists.txt": render("cmake/CMakeLists.txt", **values, run=run and run.arguments),
    }


def _commands(_model: ProjectModel, board: Board) -> dict[str, tuple[ToolCommand, ...]]:
    options = ("-DCMAKE_C_FLAGS_RELEASE={cflags}", "-DSTACK_BYTES={stack_bytes}", "{trace:-DTRACE=ON}")
    return {"build": build_commands(board, *options)}


TEMPLATE = ProjectTemplate(
    "cmake",
    "Bare-metal firmware, built by CMake",
    PROJECT_TYPES,
    _refuses,
    _files,
    FIRMWARE_OPTIONS,
    built_by_tests=True,
    commands=_commands,
    elf=lambda _model: _ELF,
    is_bare_metal=True,
)
