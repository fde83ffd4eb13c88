"""The template ``arduino``: a library with the model, and a sketch that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from mlfc.errors import ArchiveError
from mlfc.micro.board.board import Board
from mlfc.micro.project.firmware import APPLICATION_TYPES, selftest_files, vector_files
from mlfc.micro.project.model_interface import IoBuffer, interface_files, interface_of
from mlfc.micro.project.options import BUILD, FLASH, GENERATE
from mlfc.micro.project.template import ProjectModel, ProjectOption, ProjectTemplate, ToolCommand, refuses_without_name
from mlfc.micro.render import render
from mlfc.support.c_names import bounded
from mlfc.support.content import Data

_INSTALL = (
    "Install it from https://arduino.github.io/arduino-cli, and the board's core with: arduino-cli core install {core}"
)
_NAME_LIMIT = 40
_PROPERTIES = ("author", "url", "version", "architectures")


def library_name(module: str) -> str:
    """Return the library's name: letters and digits, starting with a letter, distinct from Arduino's own names.

    It ends in ``Model``, because a header ``String.h`` or ``Math.h`` would hide the system's on case-insensitive file
    systems.
    """
    words = "".join(word.capitalize() for word in bounded(module, _NAME_LIMIT).split("_"))
    name = words if words.endswith("Model") else f"{words}Model"
    return f"The{name}" if name.startswith("Arduino") or not name[0].isalpha() else name


def _files(model: ProjectModel, board: Board, project_type: str, options: Mapping[str, Any]) -> dict[str, Data]:
    library = library_name(model.name)
    values = {"library": library, "model": interface_of(model)}
    sketch = render(
        f"arduino/{project_type}.ino", **values, baud=board.baud, has_vectors=bool(model.vectors), printed=_printed
    )
    sources = {
        **interface_files(model),
        **(selftest_files(model) if project_type == "selftest" else vector_files(model)),
    }
    # generated code goes to the only folder on Arduino's include path
    flat: dict[str, Data] = {}
    for path, data in model.code.items():
        place = f"src/{PurePosixPath(path).name}"
        if place in flat:
            raise ArchiveError("two files have this name, and an Arduino library has one folder", place=place)
        flat[place] = data
    return {
        "library.properties": render(
            "arduino/library.properties", **values, **{name: options[name] for name in _PROPERTIES}
        ),
        "keywords.txt": render("arduino/keywords.txt", **values),
        f"src/{library}.h": render("arduino/library.h", **values),
        f"examples/{library}/{library}.ino": sketch,
        **flat,
        **{f"src/{name}": data for name, data in sources.items()},
    }


def _printed(buffer: IoBuffer) -> str:
    """Return an expression for Print, which would print a byte as a character."""
    element = f"{buffer.array}[index]"
    if buffer.is_float:
        return f"{element}, 6"
    return f"({'unsigned long' if buffer.is_unsigned else 'long'}){element}"


def _commands(model: ProjectModel, board: Board) -> dict[str, ToolCommand]:
    name = board.vendor["arduino"]
    library = library_name(model.name)
    install = _INSTALL.format(core=":".join(name.split(":")[:2]))
    return {
        "build": ToolCommand(
            (
                "{arduino_cli_cmd}", "compile", "{verbose:--verbose}", "--fqbn", name, "--library", ".",
                "--build-path", "build", f"examples/{library}",
            ),
            install,
        ),
        "flash": ToolCommand(
            (
                "{arduino_cli_cmd}", "upload", "{verbose:--verbose}", "--fqbn", name, "--port={port}", "--input-dir",
                "build", f"examples/{library}",
            ),
            install,
        ),
    }  # fmt: skip


TEMPLATE = ProjectTemplate(
    "arduino",
    "Arduino library, and a sketch for arduino-cli or the IDE",
    APPLICATION_TYPES,
    refuses_without_name("arduino"),
    _files,
    options=(
        ProjectOption("author", "Author of the library", default="mlfc", optional=(GENERATE,)),
        ProjectOption("url", "Home page of the library", default="https://example.org", optional=(GENERATE,)),
        ProjectOption("version", "Version of the library", default="1.0.0", optional=(GENERATE,)),
        ProjectOption("architectures", "Architectures that the library supports", default="*", optional=(GENERATE,)),
        ProjectOption("arduino_cli_cmd", "The program", default="arduino-cli", optional=(BUILD, FLASH)),
    ),
    built_by_tests=True,
    commands=_commands,
    elf=lambda model: f"build/{library_name(model.name)}.ino.elf",
)
