"""What the firmware of a project runs, by the project's type."""

from __future__ import annotations

from collections.abc import Callable

from mlfc.micro.board.board import Board
from mlfc.micro.firmware.bare_metal import Firmware
from mlfc.micro.firmware.graph_firmware import graph_firmware
from mlfc.micro.firmware.host_driven import host_driven_aot_firmware, host_driven_firmware
from mlfc.micro.firmware.standalone import INPUTS, standalone_main
from mlfc.micro.firmware.tvm_firmware import tvm_firmware
from mlfc.micro.project.application import selftest_files
from mlfc.micro.project.options import BUILD
from mlfc.micro.project.render import render
from mlfc.micro.project.template import ProjectModel, ProjectOption

SELFTEST = "selftest"
"""The type of project whose firmware checks test vectors, and the folder with what does that."""
HOST_DRIVEN = "host_driven"
"""The type of project whose firmware runs operators, or executors, for a host."""

FIRMWARE_OPTIONS = (
    ProjectOption("cflags", "For the C compiler, instead of -O3, or -O2 of small code", optional=(BUILD,)),
    ProjectOption("stack_bytes", "Of the stack, instead of the board's own number", "int", optional=(BUILD,)),
    ProjectOption(
        "trace", "Print a checksum and the ticks of each operator, also to trace.txt", "bool", optional=(BUILD,)
    ),
)


def firmware_of(model: ProjectModel, board: Board, project_type: str) -> Firmware:
    """Return the main file of a project, and what it takes beside the model and the board's own files."""
    return _MAKERS[project_type](model, board)


def project_types() -> tuple[str, ...]:
    """Return what firmware can be made to do."""
    return tuple(_MAKERS)


def _standalone(model: ProjectModel, board: Board) -> Firmware:
    if model.graph is not None:
        return graph_firmware(model.graph, board)
    if not model.is_ours:
        return tvm_firmware(model.name, model.details)
    return Firmware(standalone_main(model.name, model.details))


def _selftest(model: ProjectModel, board: Board) -> Firmware:
    files = {f"{SELFTEST}/{name}": data for name, data in selftest_files(model).items()}
    if board.arch == "avr":
        files[INPUTS] = bytes(1)  # its simulator starts with some
    return Firmware(render("application/selftest_board.c", name=model.name).decode(), files, (SELFTEST,))


def _host_driven(model: ProjectModel, board: Board) -> Firmware:
    if model.graph is not None:
        return host_driven_firmware(model.graph, board)
    return host_driven_aot_firmware(model.name, model.details, board, allocates=not model.is_ours)


_MAKERS: dict[str, Callable[[ProjectModel, Board], Firmware]] = {
    "standalone": _standalone,
    SELFTEST: _selftest,
    HOST_DRIVEN: _host_driven,
}
