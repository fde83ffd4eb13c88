"""The main functions of projects: bare-metal firmware, and applications of systems with their own start-up."""

from __future__ import annotations

from mlfc.archive.templates.documents import check_files, module_function
from mlfc.archive.templates.subject import described_subject
from mlfc.micro.board.board import Board
from mlfc.micro.firmware.bare_metal import INPUTS, Firmware, dynamic_firmware, headers_part, standalone_main
from mlfc.micro.firmware.host_driven import host_driven_aot_firmware, host_driven_firmware
from mlfc.micro.firmware.planned_memory import tried
from mlfc.micro.firmware.runtime_firmware import graph_firmware, tvm_firmware
from mlfc.micro.project.model_interface import interface_of
from mlfc.micro.project.options import BUILD
from mlfc.micro.project.template import ProjectModel, ProjectOption
from mlfc.micro.render import render
from mlfc.support.content import to_bytes

APPLICATION_TYPES = ("standalone", "selftest")
"""The types of `template.PROJECT_TYPES` for which these build systems have applications."""

_EXPECTED = {"standalone": "{name}: done", "selftest": "PASS [0-9]+ of [0-9]+"}
SELFTEST = "selftest"
"""Project type whose firmware checks test vectors, and the folder of its files."""
HOST_DRIVEN = "host_driven"
"""Project type whose firmware runs operators, or executors, for a host."""
FIRMWARE_OPTIONS = (
    ProjectOption("cflags", "Flags of the C compiler, instead of -O3, or -O2 for small code", optional=(BUILD,)),
    ProjectOption("stack_bytes", "Stack size, instead of the board's default", "int", optional=(BUILD,)),
    ProjectOption(
        "trace", "Print a checksum and the ticks of each operator, also to trace.txt", "bool", optional=(BUILD,)
    ),
)


def application_files(model: ProjectModel, project_type: str, entry: str) -> dict[str, bytes]:
    """Return the C of an application by file name; it includes the headers of the model.

    `entry`: the declaration of the function that the system starts; one of type ``void`` returns nothing.
    """
    if project_type == "selftest":
        main = render("application/selftest_main.c", name=model.name, entry=entry, is_void=entry.startswith("void"))
        return {"main.c": main, **selftest_files(model)}
    # runs the module once, on the first test vector if one exists, and prints its outputs
    is_void = entry.startswith("void")
    main = render(
        "application/main.c",
        model=interface_of(model),
        entry=entry,
        has_vectors=bool(model.vectors),
        failed="" if is_void else " 1",
        succeeded="" if is_void else " 0",
    )
    return {"main.c": main, **vector_files(model)}


def main_stack(model: ProjectModel, board: Board, chosen: int | None, others: int) -> dict[str, int | None]:
    """Return the stack of a system's main thread, and its part for an inference, None if unknown, as template values.

    `chosen`: by the user. `others`: bytes for the system, printf and the caller of the model.
    """
    nbytes = tried(model.name, model.code, model.details, board).stack.nbytes
    bound = None if nbytes is None else -(-nbytes // 8) * 8
    return {"stack_bytes": chosen or (board.stack_bytes if bound is None else bound + others), "bound": bound}


def selftest_files(model: ProjectModel) -> dict[str, bytes]:
    """Return the C of ``<module>_selftest``, which checks the test vectors and writes through ``tensor_write``."""
    name = f"{model.name}_selftest"
    function = module_function(described_subject(model.name, model.details), checked=True, embedded=True)
    return {
        f"{name}.h": render("application/selftest.h", name=model.name),
        f"{name}.c": render("application/selftest.c", name=model.name, function=function, is_vm=model.executor == "vm"),
        **check_files(),
        **vector_files(model),
    }


def vector_files(model: ProjectModel) -> dict[str, bytes]:
    """Return the test vectors in C by file name; empty if the archive has none."""
    return {name: to_bytes(data) for name, data in model.vectors.items()}


def expected_line(model: ProjectModel, project_type: str) -> str:
    """Return a regular expression of a line that the application prints on success."""
    return _EXPECTED[project_type].format(name=model.name)


def firmware_of(model: ProjectModel, board: Board, project_type: str) -> Firmware:
    """Return the main file of a project, and its parts besides the model and the board's own files."""
    if project_type == SELFTEST:
        return _selftest(model, board)
    if project_type == HOST_DRIVEN:
        if model.graph is not None:
            return host_driven_firmware(model.graph, board)
        return host_driven_aot_firmware(model.name, model.details, board, allocates=not model.is_ours)
    if model.graph is not None:
        return graph_firmware(model.graph, board)
    if not model.is_ours:
        return tvm_firmware(model.name, model.details)
    if model.executor == "vm":
        return dynamic_firmware(model.name, model.details)
    return Firmware(standalone_main(model.name, model.details))


def _selftest(model: ProjectModel, board: Board) -> Firmware:
    files = {f"{SELFTEST}/{name}": data for name, data in selftest_files(model).items()}
    folders: tuple[str, ...] = (SELFTEST,)
    if model.executor == "vm":
        runtime, headers = headers_part()
        files |= runtime
        folders = (SELFTEST, *headers)
    if board.arch == "avr":
        files[INPUTS] = bytes(1)  # its simulator starts with inputs
    return Firmware(render("application/selftest_board.c", name=model.name).decode(), files, folders)
