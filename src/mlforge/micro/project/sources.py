"""What build systems are told of the generated code in a project: its files, folders and flags."""

from __future__ import annotations

from mlforge.micro.board import Board
from mlforge.micro.makefile import COMPILE_FLAGS
from mlforge.micro.project.template import MODEL_CODE, ProjectModel

MODEL_FLAGS = tuple(flag for flag in COMPILE_FLAGS if flag.startswith("-f"))
"""For a compiler whose language and optimization the build system chooses."""


def model_sources(model: ProjectModel) -> tuple[str, ...]:
    """Return the paths, in the project, of the generated files that are compiled."""
    return tuple(sorted(f"{MODEL_CODE}/{path}" for path in model.code if path.endswith((".c", ".S"))))


def model_headers(model: ProjectModel) -> tuple[str, ...]:
    """Return the paths, in the project, of the generated headers."""
    return tuple(sorted(f"{MODEL_CODE}/{path}" for path in model.code if path.endswith(".h")))


def include_folders(model: ProjectModel) -> tuple[str, ...]:
    """Return the folders, in the project, that sources and assembler look for files in."""
    has_binary = any(path.endswith(".S") for path in model.code)
    return (f"{MODEL_CODE}/include", *([f"{MODEL_CODE}/src"] if has_binary else []))


def has_fpu(board: Board) -> bool:
    """Return whether the board's code computes floats in registers of their own."""
    for flag in board.toolchain.flags:
        if flag == "-mfloat-abi=hard" or (flag.startswith("-mabi=") and flag.endswith(("f", "d"))):
            return True
    return False
