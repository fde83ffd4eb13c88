"""Running a built project's firmware on this machine, and reading what it leaves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.errors import OptionError, RunError
from mlfc.micro.board.board import Board
from mlfc.micro.board.programs import need, run
from mlfc.micro.firmware.bare_metal import ELF
from mlfc.micro.firmware.interpreted import SIZE
from mlfc.micro.firmware.standalone import ERROR, OUTPUTS, REPORT
from mlfc.micro.firmware.trace import LINES, TENSORS
from mlfc.support.arrays import Array
from mlfc.support.tensor_info import TensorInfo

_CONVERSION_SECONDS = 60
# an AVR, without semihosting, has its inputs in the EEPROM and prints its outputs on the serial line
_EEPROM = "inputs.hex"
_COLOURS = re.compile(r"\x1b\[[0-9]*m")
_PRINTED = re.compile(r"(?:open (?P<path>[a-z.]+?)|data (?P<data>([0-9a-f]{2})+)|exit (?P<status>[0-9]{1,3}))\.?")
_FILES = frozenset({"outputs.bin", "report.txt"})
_MESSAGE_CHARS = 400
_MEASURES = ("startup", "ticks", "stack")
# what the firmware's status says; a core that faults ends with 70
_FAILURES = {
    2: "it could not read its inputs",
    3: "it could not write its outputs",
    4: "the model reported failure",
    5: "it could not write its report",
    6: "its stack ran out: reserve more by stack_bytes in the board's file",
    70: "the core took a fault, as it does where the stack is too small",
}


def run_command(board: Board, elf: str = ELF) -> list[str]:
    """Return the command that runs a board's firmware in its project's folder; raise OptionError if there is none."""
    command = board.run_command(elf)
    if command is None:
        raise OptionError(
            f"board '{board.name}' has no known emulator",
            next_step="Boards with one: mlfc boards. For a real one make a project (mlfc project create, build, "
            "flash), whose README.md says what it needs to run",
        )
    return command


def emulate(folder: Path, board: Board, timeout: float, elf: str = ELF) -> None:
    """Run the project's firmware, which leaves its files in the folder.

    Raises ToolchainError if the emulator is missing; RunError if the firmware fails, hangs, takes a fault, or ends
    before it reported.
    """
    for name in (OUTPUTS, REPORT, ERROR, LINES, TENSORS):
        (folder / name).unlink(missing_ok=True)
    status, said = execute(folder, board, timeout, elf)
    if status != 0 or not (folder / REPORT).is_file():
        raise RunError(failure(status, said), place=board.name)


def execute(folder: Path, board: Board, timeout: float, elf: str = ELF) -> tuple[int | None, str]:
    """Run the project's firmware, and return its exit status and what it printed.

    There is no status where the firmware never ended itself.

    Raises ToolchainError if the emulator is missing; RunError if the firmware does not end in time.
    """
    command = run_command(board, elf)
    if board.emulator:
        need(board.emulator.program, board.emulator.packages)
    if board.arch == "avr":
        run(["make", "-s", _EEPROM], folder, _CONVERSION_SECONDS)
    try:
        result = run(command, folder, timeout)
    except RunError as error:
        raise RunError(
            f"the firmware did not end within {timeout:g} seconds", place=board.name, next_step=error.next_step
        ) from error
    if board.arch == "avr":
        return write_printed(result.stderr, folder)
    return result.returncode, (result.stderr or result.stdout).strip()


def failure(status: int | None, said: str) -> str:
    """Say what went wrong with firmware that ended with a status, or without what it should have left."""
    if not status:
        reason = "it started again or ended before it reported"
    elif status < 0:
        reason = f"signal {-status} ended it"
    else:
        reason = _FAILURES.get(status, f"it ended with status {status}")
    return f"the firmware failed: {reason}" + (f" ({said[:_MESSAGE_CHARS]})" if said else "")


def read_report(folder: Path) -> dict[str, int]:
    """Return what firmware that ended well measured; raise RunError if that is not there."""
    try:
        lines = [line.split(" ") for line in (folder / REPORT).read_text(encoding="ascii").splitlines()]
        found = {key: int(value) for key, value in lines}
        return {key: found[key] for key in _MEASURES}
    except (ValueError, KeyError) as error:
        raise RunError(f"the firmware's report is damaged: {error}", place=REPORT) from error


def read_outputs(folder: Path, infos: Sequence[TensorInfo], *, has_shapes: bool = False) -> dict[str, Array]:
    """Return the tensors that firmware wrote; raise RunError unless these are all.

    `has_shapes`: the shape of each tensor precedes its elements, as firmware of dynamic models writes them.
    """
    data, at = (folder / OUTPUTS).read_bytes() if infos else b"", 0
    found: dict[str, Array] = {}
    for info in infos:
        shape: Sequence[Any] = info.shape
        if has_shapes:
            start, at = at, at + SIZE.itemsize * len(info.shape)
            if at > len(data):
                break
            shape = np.frombuffer(data[start:at], SIZE).tolist()
        end = at + prod(shape) * info.numpy_dtype.itemsize
        if min(shape, default=0) < 0 or end > len(data):
            break
        found[info.name] = np.frombuffer(data[at:end], info.numpy_dtype).reshape(shape).copy()
        at = end
    if len(found) != len(infos) or at != len(data):
        raise RunError(f"the firmware wrote {len(data):,} bytes of outputs", place=OUTPUTS)
    return found


def write_printed(printed: str, folder: Path) -> tuple[int | None, str]:
    """Write the files that the firmware printed, and return its exit status and what else it said.

    `printed`: the serial line as the simulator prints it: coloured lines that end with a point.
    `folder`: gets the files that firmware writes, and no others.

    The status is None if the firmware never ended itself.
    """
    found: dict[str, bytearray] = {}
    status, current, said = None, bytearray(), []
    for line in _COLOURS.sub("", printed).splitlines():
        match = _PRINTED.fullmatch(line)
        if match is None:
            said.append(line.removesuffix("."))
        elif match["status"]:
            status = int(match["status"])
        elif match["data"]:
            current += bytes.fromhex(match["data"])
        elif match["path"] in _FILES:
            current = found.setdefault(match["path"], bytearray())
    for name, data in found.items():
        (folder / name).write_bytes(data)
    return status, "\n".join(said).strip()
