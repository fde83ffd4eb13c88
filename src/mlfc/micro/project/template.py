"""What a template of firmware projects is: a name, options, and a function from a model and a board to files."""

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
"""A main that runs the model once, one that checks the archive's test vectors, and a server that a host drives."""

WHAT_TYPES_DO = {
    "standalone": "runs the model once",
    "selftest": "checks the archive's test vectors",
    "host_driven": "runs what a host calls over a serial line",
}
"""The firmware of each type of project, as the end of a sentence."""

MODEL_FOLDER = "model"
"""Where every project has the extracted archive, as microTVM's have."""
MODEL_CODE = f"{MODEL_FOLDER}/{CODE}"
"""Where every project has the model's generated code: ``src`` and ``include``."""


@dataclass(frozen=True, eq=False)
class ProjectModel:
    """The module of an archive that a project is made for."""

    name: str  # the module's, lower case
    executor: str  # ``aot``, ``graph`` or ``vm``
    code: Mapping[str, Data]  # its generated code: ``src/...`` and ``include/...``; every path is safe in a Makefile
    details: ModuleInterface  # a `ModuleInfo` where mlfc compiled it
    vectors: Mapping[str, Data]  # the archive's test vectors of this module by file name; empty where it has none
    members: Mapping[str, Data]  # all files of the archive
    archive: Data  # the archive itself, which projects carry as ``model.tar``
    # what the graph executor runs, here or on a host that drives the firmware; None for AOT
    graph: GraphSource | None = None
    # whether mlfc compiled it. What TVM compiled takes its workspace from the runtime, and has few details.
    is_ours: bool = True


@dataclass(frozen=True)
class ProjectOption:
    """An option of a template, as the Project API describes one."""

    name: str
    help: str
    type: str = "str"  # ``str``, ``int`` or ``bool``
    default: str | int | bool | None = None
    choices: tuple[str, ...] | None = None
    # the methods in which it must or may be given: ``generate_project``, ``build``, ``flash``, ``open_transport``
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolCommand:
    """A command of another build system that does a step of a project."""

    # the program first; they never pass a shell. ``{option}`` stands for an option's value, ``{option:text}`` for the
    # text where the option is given (a true bool, a text that is not empty). An argument that names an option without a
    # value, or is left empty, is dropped.
    arguments: tuple[str, ...]
    install: str  # how to get the program, for the error message where it is missing
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that are set for it, by the same rules
    needs: Mapping[str, str] = field(default_factory=dict)  # other programs that it starts, and how to get each


def refuses_without_name(key: str) -> Callable[[Board], str | None]:
    """Return `ProjectTemplate.refuses` of a build system with names of its own for boards, by its key."""
    return lambda board: None if key in board.vendor else f"{board.name} lacks {key} = '...' under [vendor]"


@dataclass(frozen=True, eq=False)
class ProjectTemplate:
    """A kind of project."""

    name: str  # ``makefile``, ``cmake``, ``zephyr``, ...
    description: str  # one line
    project_types: tuple[str, ...]  # of PROJECT_TYPES
    refuses: Callable[[Board], str | None]  # (board): why the template cannot serve a board; None where it can
    # (model, board, project_type, options): the project's files by relative path. Deterministic. `generate` adds the
    # extracted archive under ``MODEL_FOLDER``, ``model.tar``, ``project.json``, ``board.toml``, the API server, and
    # ``README.md`` where there is none.
    files: Callable[[ProjectModel, Board, str, Mapping[str, Any]], dict[str, Data]]
    options: tuple[ProjectOption, ...] = field(default=())  # its own, beside those that all templates have
    built_by_tests: bool = False  # whether the tests build what it makes; else they check its structure only
    # (model, board): what does the steps ``build``, ``flash`` and ``run`` (firmware on this machine, spoken to by its
    # standard streams) in the project's folder, where another build system does. What is not in it is built by make and
    # flashed by the board's tool.
    commands: Callable[[ProjectModel, Board], Mapping[str, ToolCommand | tuple[ToolCommand, ...]]] | None = None
    # (model): where the build leaves the program, in the project's folder; ``firmware.elf`` without it
    elf: Callable[[ProjectModel], str] | None = None
    default_board: str | None = None  # the board of projects for which none is named, where that makes sense
    is_bare_metal: bool = False  # whether this machine, or the board's emulator, runs what is built
