"""Templates of firmware projects: a name, options, and a function from a model and a board to files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlfc.archive.read.layout import CODE
from mlfc.micro.board.board import Board
from mlfc.micro.firmware.graph_source import GraphSource
from mlfc.support.content import Data
from mlfc.support.module_info import ModuleInterface

PROJECT_TYPES = ("standalone", "selftest", "host_driven")
"""Project types: a main that runs the model once, one that checks test vectors, and a server that a host drives."""

WHAT_TYPES_DO = {
    "standalone": "runs the model once",
    "selftest": "checks the archive's test vectors",
    "host_driven": "runs what a host calls over a serial line",
}
"""Firmware of each project type, as the end of a sentence."""

MODEL_FOLDER = "model"
"""Folder of the extracted archive in every project, as in microTVM's."""
MODEL_CODE = f"{MODEL_FOLDER}/{CODE}"
"""Folder of the model's generated code in every project, with ``src`` and ``include``."""


@dataclass(frozen=True, eq=False)
class ProjectModel:
    """The module of an archive that a project is generated for."""

    name: str  # lower case
    executor: str  # ``aot``, ``graph`` or ``vm``
    code: Mapping[str, Data]  # its generated code: ``src/...`` and ``include/...``; every path is safe in a Makefile
    details: ModuleInterface  # a `ModuleInfo` if mlfc compiled it
    vectors: Mapping[str, Data]  # the archive's test vectors of this module by file name; empty if it has none
    members: Mapping[str, Data]  # all files of the archive
    archive: Data  # the archive itself, which is ``model.tar`` in projects
    # model of the graph executor, run by the firmware or by a host that drives it; None for AOT
    graph: GraphSource | None = None
    # whether mlfc compiled it; modules by TVM allocate their workspace in the runtime, and have few details
    is_ours: bool = True


@dataclass(frozen=True)
class ProjectOption:
    """An option of a template, with the fields of the Project API."""

    name: str
    help: str
    type: str = "str"  # ``str``, ``int`` or ``bool``
    default: str | int | bool | None = None
    choices: tuple[str, ...] | None = None
    # the methods that require or accept it: ``generate_project``, ``build``, ``flash``, ``open_transport``
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolCommand:
    """A command of another build system for a step of a project."""

    # the program first; no shell is involved. ``{option}`` is replaced by the option's value, ``{option:text}`` by the
    # text if the option is given (a true bool, a non-empty string). An argument that names an option without a value,
    # or becomes empty, is dropped.
    arguments: tuple[str, ...]
    install: str  # how to get the program, for the error message if it is missing
    environment: Mapping[str, str] = field(default_factory=dict)  # environment variables to set, by the same rules
    needs: Mapping[str, str] = field(default_factory=dict)  # other programs that it starts, with how to get each


def refuses_without_name(key: str) -> Callable[[Board], str | None]:
    """Return `ProjectTemplate.refuses` for a build system with its own board names, by its key."""
    return lambda board: None if key in board.vendor else f"{board.name} lacks {key} = '...' under [vendor]"


@dataclass(frozen=True, eq=False)
class ProjectTemplate:
    """A kind of project."""

    name: str  # ``makefile``, ``cmake``, ``zephyr``, ...
    description: str  # one line
    project_types: tuple[str, ...]  # of PROJECT_TYPES
    refuses: Callable[[Board], str | None]  # (board): why the template does not support a board; None if it does
    # (model, board, project_type, options): the project's files by relative path. Deterministic. `generate` adds the
    # extracted archive under ``MODEL_FOLDER``, ``model.tar``, ``project.json``, ``board.toml``, the API server, and
    # ``README.md`` where there is none.
    files: Callable[[ProjectModel, Board, str, Mapping[str, Any]], dict[str, Data]]
    options: tuple[ProjectOption, ...] = field(default=())  # its own, besides those common to all templates
    built_by_tests: bool = False  # whether the tests build its projects; otherwise they check the structure only
    # (model, board): commands of the steps ``build``, ``flash`` and ``run`` (firmware on this machine, accessed through
    # its standard streams) in the project's folder, if another build system performs them. Missing steps are built by
    # make and flashed by the board's tool.
    commands: Callable[[ProjectModel, Board], Mapping[str, ToolCommand | tuple[ToolCommand, ...]]] | None = None
    # (model): path of the built program in the project's folder; ``firmware.elf`` by default
    elf: Callable[[ProjectModel], str] | None = None
    default_board: str | None = None  # the default board, if any makes sense
    is_bare_metal: bool = False  # whether this machine, or the board's emulator, can run the built program
