"""A bare-metal project: start-up, linker script, Makefile, a main file, and the model.

The project needs its board's compiler and make, nothing of mlfc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from mlfc.crt import TRACE_HEADER, line_headers
from mlfc.errors import ArchiveError, InternalError, OptionError
from mlfc.micro.board.board import Board
from mlfc.micro.board.object_code import check_objects, core_flags, object_paths
from mlfc.micro.firmware.linker_script import has_linker_script, linker_script
from mlfc.micro.firmware.makefile import makefile, optimization_level
from mlfc.micro.firmware.standalone import standalone_main
from mlfc.support.content import Data, write_data
from mlfc.support.module_info import ModuleInterface

ELF = "firmware.elf"
# looked at only where firmware is built to trace
_TRACE = "trace"
# what start-up and measuring consist of, by architecture
_COMMON = (
    "common/counter.h", "common/host_io.h", "common/report.c", "common/report.h", "common/stack_bottom.h",
    "common/stack_paint.c", "common/stack_paint.h",
)  # fmt: skip
_BARE = (
    *_COMMON, "common/fault.c", "common/fault.h", "common/sections.c", "common/sections.h", "common/semihosting.c",
    "common/semihosting_call.h", "common/stack_bottom.c",
)  # fmt: skip
_PARTS = {
    "cortex-m": (*_BARE, "cortex_m/counter.c", "cortex_m/semihosting_call.c", "cortex_m/startup.c"),
    "riscv": (*_BARE, *(f"riscv/{name}" for name in ("counter.c", "semihosting_call.c", "startup.S", "startup.c"))),
    "avr": (*_COMMON, "common/stack_bottom.c", "avr/counter.c", "avr/host_io.c", "avr/startup.c"),
    "host": (*_COMMON, "host/counter.c", "host/host_io.c", "host/stack_bottom.c"),
}
# other templates, by the keys that boards which they serve have under [vendor]
_VENDORS_TEMPLATES = {"zephyr": "zephyr", "arduino": "arduino", "esp-idf": "esp_idf"}
# archives name their files as they like; make would run what stands in $( )
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*")


@dataclass(frozen=True, eq=False)
class Firmware:
    """What a project consists of beside the model and the board's own files."""

    # the text of ``main.c``. It may use the headers of ``board/`` and must define ``main``.
    main: str
    # more files by their paths in the project; ``.c`` and ``.S`` files are compiled
    files: Mapping[str, Data] = field(default_factory=dict)
    folders: tuple[str, ...] = ()  # where their headers lie


@dataclass(frozen=True, eq=False)
class BareMetal:
    """The files of firmware by their paths, without what builds them."""

    files: dict[str, Data]
    sources: tuple[str, ...]  # the files to compile, sorted
    objects: tuple[str, ...]  # the files to link as they are, sorted
    core_flags: tuple[str, ...]  # the compiler's flags for the core
    folders: tuple[str, ...]  # where headers lie


def refuses_bare_metal(board: Board) -> str | None:
    """Return why there is no bare-metal firmware for a board; None where there is."""
    if not board.bare_metal:
        others = [template for key, template in _VENDORS_TEMPLATES.items() if key in board.vendor]
        instead = f"; take the template {' or '.join(others)}" if others else ""
        return f"its vendor's loader starts it{instead}"
    return None if board.arch in _PARTS else f"there is no start-up code for {board.core}"


def bare_metal(code: Mapping[str, Data], board: Board, firmware: Firmware, model_folder: str = "model") -> BareMetal:
    """Return the files of a project but for those of a build system.

    `code`: ``src/...``, ``include/...`` and ``lib/...``.
    `model_folder`: the project's folder for the generated code.

    Raises ArchiveError for a file whose name a build system would take for something else than a name; OptionError if
    the board has no start-up code.
    """
    reason = refuses_bare_metal(board)
    if reason is not None:
        raise OptionError(f"the board '{board.name}' runs no bare-metal firmware: {reason}")
    check_objects(code, board)
    found: dict[str, Data] = {"main.c": firmware.main.encode(), **firmware.files}
    for path in (*code, *found):
        check_path(path)
    found |= {f"{model_folder}/{path}": data for path, data in code.items()}
    templates = files("mlfc.micro").joinpath("templates")
    for path in _PARTS[board.arch]:
        found[f"board/{path.rpartition('/')[2]}"] = templates.joinpath(path).read_bytes()
    for name in (TRACE_HEADER, "trace.c"):
        found[f"{_TRACE}/{name}"] = templates.joinpath("common", name).read_bytes()
    found |= {f"{_TRACE}/{name}": data for name, data in line_headers().items()}
    if has_linker_script(board):
        found["link.ld"] = linker_script(board)
    sources = tuple(sorted(path for path in found if path.endswith((".c", ".S"))))
    objects = tuple(f"{model_folder}/{path}" for path in object_paths(code))
    return BareMetal(
        found, sources, objects, core_flags(board, code), ("board", f"{model_folder}/include", *firmware.folders)
    )


def project_files(
    name: str,
    code: Mapping[str, Data],
    details: ModuleInterface | None,
    board: Board,
    firmware: Firmware | None = None,
    *,
    model_folder: str = "model",
    is_selftest: bool = False,
) -> dict[str, Data]:
    """Return the files of a project that make builds.

    `code`, `board`, `model_folder`: as for `bare_metal`.
    `details`: None only with `firmware`.
    `firmware`: None for a main that runs the model once and reports.
    `is_selftest`: as for `makefile`.

    ``make`` builds ``firmware.elf``, ``make run`` runs it under the board's emulator if it has one. Raises ArchiveError
    or OptionError as `bare_metal` does.
    """
    if firmware is None:
        if details is None:
            raise InternalError("firmware without a main of its own needs the module's interface")
        firmware = Firmware(standalone_main(name, details))
    project = bare_metal(code, board, firmware, model_folder)
    level = optimization_level(details)
    return {**project.files, "Makefile": makefile(name, board, project, level, is_selftest=is_selftest)}


def write_files(folder: Path, made: Mapping[str, Data]) -> None:
    """Write a project's files into a folder."""
    for path, data in made.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_data(folder / path, data)


def check_path(path: str) -> None:
    """Raise ArchiveError for a file whose name a build system would take for something else than a name."""
    if not _PLAIN_PATH.fullmatch(path):
        raise ArchiveError(
            "the file's name has characters that a Makefile cannot hold",
            place=path,
            next_step="Compile the model again with: mlfc compile MODEL",
        )
