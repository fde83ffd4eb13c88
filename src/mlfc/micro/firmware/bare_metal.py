"""A bare-metal project: start-up, linker script, Makefile, a main file, and the model.

Building the project requires its board's compiler and make, but not mlfc.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import numpy as np

from mlfc.archive.templates.subject import described_subject, given_pools
from mlfc.codegen.c_interface import field_names
from mlfc.crt import TRACE_HEADER, crt_files, line_headers
from mlfc.errors import ArchiveError, InternalError, MlfcError, OptionError
from mlfc.memory.plan import STATE_SECTION
from mlfc.micro.board.board import Board
from mlfc.micro.board.object_code import check_objects, core_flags, object_paths
from mlfc.micro.render import render
from mlfc.runtime.executors.vm.failures import run_error
from mlfc.support.content import Data, write_data
from mlfc.support.executable import Executable, RunCode, bounding_option
from mlfc.support.module_info import ModuleInfo, ModuleInterface

ELF = "firmware.elf"
# used only if firmware is built with tracing
_TRACE = "trace"
# files of start-up and measuring, by architecture
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
# other templates, by the key under [vendor] of the boards that they support
_VENDORS_TEMPLATES = {"zephyr": "zephyr", "arduino": "arduino", "esp-idf": "esp_idf"}
# archives may name files arbitrarily; make would execute text in $( )
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*")
COMPILE_FLAGS = (
    "-std=c99", "-ffunction-sections", "-fdata-sections", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
)  # fmt: skip
"""Compiler flags of every file, besides the core's and the user's."""
# -Os would save almost nothing over -O2 and uses fewer registers in the inner loops
_LEVELS = {"speed": "-O3", "size": "-O2"}
MAP = "firmware.map"
"""File name of the linker's map."""
INPUTS, OUTPUTS, REPORT, ERROR = "inputs.bin", "outputs.bin", "report.txt", "error.bin"
_ERROR = struct.Struct("<4q")
NEXT_SET = b"\x01"
"""Byte in the file of inputs between two sets."""
SIZE = np.dtype("<i8")
"""Type of a dimension size in the files of inputs and outputs."""


@dataclass(frozen=True, eq=False)
class Firmware:
    """Parts of a project besides the model and the board's own files."""

    # text of ``main.c``, which may use the headers of ``board/`` and must define ``main``
    main: str
    # more files by path in the project; ``.c`` and ``.S`` files are compiled
    files: Mapping[str, Data] = field(default_factory=dict)
    folders: tuple[str, ...] = ()  # folders of their headers


@dataclass(frozen=True, eq=False)
class BareMetal:
    """The files of firmware by path, without those of a build system."""

    files: dict[str, Data]
    sources: tuple[str, ...]  # files to compile, sorted
    objects: tuple[str, ...]  # files to link unchanged, sorted
    core_flags: tuple[str, ...]  # compiler flags for the core
    folders: tuple[str, ...]  # folders of headers


def refuses_bare_metal(board: Board) -> str | None:
    """Return why bare-metal firmware is not supported on a board; None if it is."""
    if not board.bare_metal:
        others = [template for key, template in _VENDORS_TEMPLATES.items() if key in board.vendor]
        instead = f"; use the template {' or '.join(others)}" if others else ""
        return f"its vendor's loader starts it{instead}"
    return None if board.arch in _PARTS else f"mlfc has no start-up code for {board.core}"


def bare_metal(code: Mapping[str, Data], board: Board, firmware: Firmware, model_folder: str = "model") -> BareMetal:
    """Return the files that projects of all build systems share: no Makefile.

    `code`: generated files by path: ``src/...``, ``include/...`` and ``lib/...``.
    `model_folder`: the folder of the project that receives them.

    Raises ArchiveError for a file name that a build system would misinterpret; OptionError if the board has no start-up
    code.
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
    """Return the files of a project that is built by make.

    `code`, `board`, `model_folder`: as for `bare_metal`.
    `details`: may be None only with `firmware`.
    `firmware`: None for a main that runs the model on each set of inputs and reports.
    `is_selftest`: whether ``make selftest`` is an alias of ``make run``.

    ``make`` builds ``firmware.elf``, ``make run`` runs it under the board's emulator if it has one. Raises the errors
    of `bare_metal`.
    """
    if firmware is None:
        if details is None:
            raise InternalError("firmware without its own main requires the module's interface")
        firmware = Firmware(standalone_main(name, details))
    project = bare_metal(code, board, firmware, model_folder)
    makefile = render(
        "makefile/Makefile",
        name=name,
        board=board,
        project=project,
        level=optimization_level(details),  # unless the user sets CFLAGS
        is_selftest=is_selftest,
        has_script=has_linker_script(board),
        compile_flags=COMPILE_FLAGS,
        run=board.run_command(ELF),
    )
    return {**project.files, "Makefile": makefile}


def write_files(folder: Path, made: Mapping[str, Data]) -> None:
    """Write a project's files into a folder."""
    for path, data in made.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_data(folder / path, data)


def check_path(path: str) -> None:
    """Raise ArchiveError for a file name that a build system would misinterpret."""
    if not _PLAIN_PATH.fullmatch(path):
        raise ArchiveError(
            "the file's name has characters that a Makefile cannot hold",
            place=path,
            next_step="Compile the model again with: mlfc compile MODEL",
        )


def has_linker_script(board: Board) -> bool:
    """Return whether firmware for the board is linked with mlfc's linker script."""
    return lays_out(board) or board.arch == "avr"


def lays_out(board: Board) -> bool:
    """Return whether mlfc's linker script is complete; otherwise it extends the compiler's own."""
    return board.arch in ("cortex-m", "riscv")


def linker_script(board: Board) -> bytes:
    """Return the linker script: start-up, code and constants in flash, data and stack in RAM, pools in regions."""
    return render("linker/firmware.ld" if lays_out(board) else "linker/added.ld", board=board)


def optimization_level(details: ModuleInterface | None) -> str:
    """Return the C compiler's optimization flag for a module, which was compiled for speed or size."""
    return _LEVELS.get(details.optimize if isinstance(details, ModuleInfo) else "speed", _LEVELS["speed"])


def standalone_main(name: str, details: ModuleInterface) -> str:
    """Return the C file that feeds the model, runs it, and reports."""
    subject, num_inputs = described_subject(name, details), len(details.inputs)
    pools, mapped = given_pools(subject), subject.maps_tensors
    # field names as in the header: derived from all tensors' names together
    fields = field_names(details)
    # tensors in the workspace are accessed through the structs of pointers
    buffers = [f"tensor_{field}" for field in fields]
    if mapped:
        buffers = [f"{'inputs' if index < num_inputs else 'outputs'}.{field}" for index, field in enumerate(fields)]
    tensors = [
        (buffer, f"TVMGEN_{name.upper()}_{field.upper()}_SIZE") for buffer, field in zip(buffers, fields, strict=True)
    ]
    arguments = [*([] if mapped else ["&inputs", "&outputs"]), *(["&pools"] if pools else [])]
    return render(
        "application/main_board.c",
        name=name,
        inputs=tensors[:num_inputs],
        outputs=tensors[num_inputs:],
        pools=pools,
        mapped=mapped,
        call=", ".join(arguments),
        reset=subject.reset_call("&pools") if subject.keeps_state else None,
        paths=(INPUTS, OUTPUTS, REPORT),
    ).decode()


def unbounded(details: ModuleInterface | None, name: str | None = None, place: str | None = None) -> OptionError:
    """Return the error of a module with unbounded memory."""
    module = "the model" if name is None else f"module '{name}'"
    symbols = details.vm.symbols if details and details.vm else ()
    option = bounding_option(details.inputs if details else (), symbols)
    return OptionError(
        f"the memory of {module} is unbounded, and firmware has no heap",
        place=place,
        next_step=f"Compile the model with bounds of its dynamic dimensions: {option}",
    )


def runtime_headers() -> dict[str, bytes]:
    """Return the headers of the C runtime, which the code of dynamic models includes."""
    return crt_files("include")


def headers_part() -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the headers of the C runtime as files of a project, and the folders of headers."""
    # firmware has its own header for tracing
    headers = {f"crt/{name}": data for name, data in runtime_headers().items() if Path(name).name != TRACE_HEADER}
    return headers, ("crt/include",)


def dynamic_firmware(name: str, details: ModuleInterface) -> Firmware:
    """Return a main that runs a module on each set of inputs; raise OptionError if its memory is unbounded."""
    if details.vm is None or details.vm.work_bytes is None:
        raise unbounded(details, name)
    subject = described_subject(name, details)
    main = render(
        "application/main_vm_board.c",
        name=name,
        inputs=subject.inputs,
        outputs=subject.outputs,
        has_state=bool(details.states),
        state_section=STATE_SECTION,
        paths=(INPUTS, OUTPUTS, REPORT),
        error_path=ERROR,
    )
    files, folders = headers_part()
    return Firmware(main.decode(), files, folders)


def recorded_error(folder: Path, executable: Executable) -> MlfcError | None:
    """Return the error that firmware wrote; None if it wrote none."""
    path = folder / ERROR
    data = path.read_bytes() if path.is_file() else b""
    if len(data) < _ERROR.size:
        return None
    code, a, b, c = _ERROR.unpack_from(data)
    if code not in set(RunCode):
        return None
    text = data[_ERROR.size :].decode(errors="replace") or None
    return run_error(executable, code, (a, b, c), text)
