"""What build systems are told of the generated code in a project: its files, folders and flags."""

from __future__ import annotations

from mlforge.micro.board import Board
from mlforge.micro.makefile import COMPILE_FLAGS
from mlforge.micro.project.template import MODEL_CODE, ProjectModel

MODEL_FLAGS = tuple(flag for flag in COMPILE_FLAGS if flag.startswith("-f"))
"""For a compiler whose language and optimization the build system chooses."""

MODEL_INCLUDE = f"{MODEL_CODE}/include"
"""The folder, in the project, of the generated headers."""


def model_sources(model: ProjectModel) -> tuple[str, ...]:
    """Return the paths, in the project, of the generated files that are compiled."""
    return _named(model, ".c", ".S")


def model_headers(model: ProjectModel) -> tuple[str, ...]:
    """Return the paths, in the project, of the generated headers."""
    return _named(model, ".h")


def model_binaries(model: ProjectModel) -> tuple[str, ...]:
    """Return the paths, in the project, of the large constants that the assembler includes."""
    return _named(model, ".bin")


def has_fpu(board: Board) -> bool:
    """Return whether the board's code computes floats in registers of their own."""
    for flag in board.toolchain.flags:
        if flag == "-mfloat-abi=hard" or (flag.startswith("-mabi=") and flag.endswith(("f", "d"))):
            return True
    return False


def _named(model: ProjectModel, *endings: str) -> tuple[str, ...]:
    return tuple(sorted(f"{MODEL_CODE}/{path}" for path in model.code if path.endswith(endings)))
