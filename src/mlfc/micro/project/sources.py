"""What build systems are told of the library that a model is: its files, folders, flags and symbols."""

from __future__ import annotations

from mlfc.micro.board.board import Board
from mlfc.micro.firmware.makefile import COMPILE_FLAGS
from mlfc.micro.project.model_interface import interface_files, interface_of
from mlfc.micro.project.template import MODEL_CODE, ProjectModel

MODEL_FLAGS = tuple(flag for flag in COMPILE_FLAGS if flag.startswith("-f"))
"""For a compiler whose language and optimization the build system chooses."""

_INTERFACE_FOLDER = "module"

LIBRARY_FOLDERS = (f"{MODEL_CODE}/include", _INTERFACE_FOLDER)
"""The folders, in the project, of the library's headers."""


def interface_sources(model: ProjectModel) -> dict[str, bytes]:
    """Return the files of the application's interface by their paths in the project."""
    return {f"{_INTERFACE_FOLDER}/{name}": data for name, data in interface_files(model).items()}


def library_sources(model: ProjectModel) -> tuple[str, ...]:
    """Return the paths, in the project, of the library's files: generated ones, and the application's interface."""
    return (*_named(model, ".c", ".S"), f"{_INTERFACE_FOLDER}/{interface_of(model).source}")


def library_headers(model: ProjectModel) -> tuple[str, ...]:
    """Return the paths, in the project, of the library's headers."""
    return (*_named(model, ".h"), f"{_INTERFACE_FOLDER}/{interface_of(model).header}")


def library_binaries(model: ProjectModel) -> tuple[str, ...]:
    """Return the paths, in the project, of the large constants that the assembler includes."""
    return _named(model, ".bin")


def named_memories(model: ProjectModel) -> tuple[str, ...]:
    """Return the memories, sorted, that the model was compiled for: sections of workspace and constants end in them."""
    workspace = {pool.name for pool in model.details.pools}
    return tuple(sorted(workspace | {pool.name for pool in model.details.constant_pools}))


def symbol(model: ProjectModel) -> str:
    """Return what Kconfig's symbols of the model start with."""
    return f"MLFC_{model.name.upper()}"


def has_fpu(board: Board) -> bool:
    """Return whether the board's code computes floats in registers of their own."""
    for flag in board.toolchain.flags:
        if flag == "-mfloat-abi=hard" or (flag.startswith("-mabi=") and flag.endswith(("f", "d"))):
            return True
    return False


def _named(model: ProjectModel, *endings: str) -> tuple[str, ...]:
    return tuple(sorted(f"{MODEL_CODE}/{path}" for path in model.code if path.endswith(endings)))
