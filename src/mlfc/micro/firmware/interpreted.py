"""Firmware that runs a dynamic model once: inputs with their dimensions from the host, outputs to it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlfc.archive.templates.subject import described_subject
from mlfc.crt import TRACE_HEADER, crt_files
from mlfc.errors import MlfcError, OptionError
from mlfc.memory.pools import STATE_SECTION
from mlfc.micro.firmware.bare_metal import Firmware
from mlfc.micro.firmware.standalone import ERROR, INPUTS, OUTPUTS, REPORT
from mlfc.micro.render import render
from mlfc.runtime.executors.vm.failures import require_fitting, run_error
from mlfc.support.arrays import Array
from mlfc.support.executable import Executable, RunCode
from mlfc.support.module_info import ModuleInterface
from mlfc.support.vm_info import bounding_option

_ERROR = struct.Struct("<4q")
SIZE = np.dtype("<i8")
"""A dimension size in the files of inputs and outputs."""


def unbounded(details: ModuleInterface | None, name: str | None = None, place: str | None = None) -> OptionError:
    """Return the error of a module whose memory has no bound."""
    module = "the model" if name is None else f"module '{name}'"
    symbols = details.vm.symbols if details and details.vm else ()
    option = bounding_option(details.inputs if details else (), symbols)
    return OptionError(
        f"the memory of {module} has no bound, and firmware has no heap",
        place=place,
        next_step=f"Compile the model with bounds of its open extents: {option}",
    )


def runtime_headers() -> dict[str, bytes]:
    """Return the headers of the C runtime, which the code of dynamic models includes."""
    return crt_files("include")


def headers_part() -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return these headers as files of a project, and the folders of headers."""
    # firmware has a header of its own for what a trace does
    found = {name: data for name, data in runtime_headers().items() if Path(name).name != TRACE_HEADER}
    return {f"crt/{name}": data for name, data in found.items()}, ("crt/include",)


def dynamic_firmware(name: str, details: ModuleInterface) -> Firmware:
    """Return a main that runs a module once; OptionError where its memory has no bound."""
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


def write_inputs(folder: Path, executable: Executable, arrays: Sequence[Array]) -> None:
    """Write the inputs for a run; raise InputError unless their extents are what the model declares."""
    given = [np.require(array, requirements=["C_CONTIGUOUS", "ALIGNED"]) for array in arrays]
    require_fitting(executable, given)
    parts = (part for array in given for part in (np.array(array.shape, SIZE).tobytes(), array.tobytes()))
    (folder / INPUTS).write_bytes(b"".join(parts))


def recorded_error(folder: Path, executable: Executable) -> MlfcError | None:
    """Return the error that firmware left; None where it left none."""
    path = folder / ERROR
    data = path.read_bytes() if path.is_file() else b""
    if len(data) < _ERROR.size:
        return None
    code, a, b, c = _ERROR.unpack_from(data)
    if code not in set(RunCode):
        return None
    text = data[_ERROR.size :].decode(errors="replace") or None
    return run_error(executable, code, (a, b, c), text)
