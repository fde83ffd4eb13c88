"""Execution of a built project's firmware on this machine, and parsing of its output files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.errors import OptionError, RunError
from mlfc.micro.board.board import Board, boards
from mlfc.micro.board.programs import need, run
from mlfc.micro.firmware.bare_metal import ELF, ERROR, OUTPUTS, REPORT, SIZE
from mlfc.support.tensor_info import Array, TensorInfo

_CONVERSION_SECONDS = 60
# an AVR, without semihosting, reads its inputs from EEPROM and prints its outputs on the serial line
_EEPROM = "inputs.hex"
_COLOURS = re.compile(r"\x1b\[[0-9]*m")
_PRINTED = re.compile(r"(?:open (?P<path>\S+?)|data (?P<data>([0-9a-f]{2})+)|exit (?P<status>[0-9]{1,3}))\.?")
_FILES = frozenset({"outputs.bin", "report.txt"})
_MESSAGE_CHARS = 400
_MEASURES = ("startup", "ticks", "stack")
# meanings of the firmware's exit status; a core fault exits with 70
_FAILURES = {
    2: "it could not read its inputs",
    3: "it could not write its outputs",
    4: "the model reported failure",
    5: "it could not write its report",
    6: "its stack overflowed: reserve more with stack_bytes in the board's file",
    70: "the core faulted, possibly because the stack is too small",
}
LINES, CHOSEN, TENSORS = "trace.txt", "chosen.bin", "tensors.bin"
"""Files of traced firmware: the trace, a byte per operator that selects outputs, and the selected outputs."""
_LINE = re.compile(r"trace ([0-9]{1,10}) ([0-9a-f]{8}) ([0-9]{1,20})")
_NUMBERS = re.compile(r"numbers((?: [0-9]{1,20})*)")


def run_command(board: Board, elf: str = ELF) -> list[str]:
    """Return the command that runs a board's firmware in its project's folder; raise OptionError if it has none."""
    command = board.run_command(elf)
    if command is None:
        raise OptionError(
            f"board '{board.name}' has no known emulator",
            next_step=f"{_similar(board)}For a real board create a project (mlfc project create, build, flash), whose "
            "README.md describes how to run it",
        )
    return command


def _similar(board: Board) -> str:
    """Return the advice to use an emulated board, with the same core if there is one."""
    same = [item.name for item in map(boards().get, boards()) if item.emulator and item.core == board.core]
    return f"Emulate its core: --board {same[0]}. " if same else "List boards with an emulator: mlfc boards. "


def emulate(folder: Path, board: Board, timeout: float, elf: str = ELF) -> None:
    """Run the project's firmware, which writes its files to the folder.

    Raises ToolchainError if the emulator is missing; RunError if the firmware fails, hangs, faults, or ends before it
    reports.
    """
    for name in (OUTPUTS, REPORT, ERROR, LINES, TENSORS):
        (folder / name).unlink(missing_ok=True)
    status, said = execute(folder, board, timeout, elf)
    if status != 0 or not (folder / REPORT).is_file():
        raise RunError(failure(status, said), place=board.name)


def execute(folder: Path, board: Board, timeout: float, elf: str = ELF) -> tuple[int | None, str]:
    """Run the project's firmware, and return its exit status and output.

    The status is None if the firmware did not exit by itself.

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
    """Return the cause of a failure from the firmware's exit status, or from missing files."""
    if not status:
        reason = "it reset or exited before it reported"
    elif status < 0:
        reason = f"signal {-status} ended it"
    else:
        reason = _FAILURES.get(status, f"it ended with status {status}")
    return f"the firmware failed: {reason}" + (f" ({said[:_MESSAGE_CHARS]})" if said else "")


def read_report(folder: Path) -> dict[str, int]:
    """Return the measurements of a successful run; raise RunError if they are missing."""
    try:
        lines = [line.split(" ") for line in (folder / REPORT).read_text(encoding="ascii").splitlines()]
        found = {key: int(value) for key, value in lines}
        return {key: found[key] for key in _MEASURES}
    except (ValueError, KeyError) as error:
        raise RunError(f"the firmware's report is damaged: {error}", place=REPORT) from error


def read_outputs(
    folder: Path, infos: Sequence[TensorInfo], steps: int = 1, *, has_shapes: bool = False
) -> list[dict[str, Array]]:
    """Return the tensors that firmware wrote in each step; raise RunError unless the file contains exactly these.

    `has_shapes`: the shape of each tensor precedes its elements, as firmware of dynamic models writes them.
    """
    data, at = (folder / OUTPUTS).read_bytes() if infos else b"", 0
    found: list[dict[str, Array]] = []
    for _ in range(steps):
        tensors: dict[str, Array] = {}
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
            tensors[info.name] = np.frombuffer(data[at:end], info.numpy_dtype).reshape(shape).copy()
            at = end
        if len(tensors) != len(infos):
            break
        found.append(tensors)
    if len(found) == 1 < steps and at == len(data):
        step = "Create the project again: mlfc project create"
        raise RunError(f"the project's firmware only runs one set of inputs, got {steps}", next_step=step)
    if len(found) != steps or at != len(data):
        raise RunError(f"the firmware wrote {len(data):,} bytes of outputs", place=OUTPUTS)
    return found


def write_printed(printed: str, folder: Path) -> tuple[int | None, str]:
    """Write the files that the firmware printed, and return its exit status and remaining output.

    `printed`: the serial line as printed by the simulator: coloured lines that end with a dot.
    `folder`: output folder of the files that firmware writes; other files are not written.

    The status is None if the firmware did not exit by itself.
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
        else:
            current = found.setdefault(match["path"], bytearray()) if match["path"] in _FILES else bytearray()
    for name, data in found.items():
        (folder / name).write_bytes(data)
    return status, "\n".join(said).strip()


@dataclass(frozen=True)
class TracedOperator:
    """One operator of a run."""

    checksum: int  # the CRC-32 of its output's bytes
    ticks: int  # of the board's counter


@dataclass(frozen=True)
class CalledOperator:
    """One operator of a dynamic model in a run, which may call it in each iteration of a loop, or never."""

    calls: tuple[tuple[int, ...], ...]  # the sizes of each call of its kernel
    ticks: int  # of the board's counter, summed over all calls


def traces(board: Board) -> bool:
    """Return whether a board's firmware can write operators' outputs to files of the host."""
    return board.arch != "avr"


def check_traces(board: Board) -> None:
    """Raise OptionError for a board whose firmware cannot write operators' outputs."""
    if not traces(board):
        raise OptionError(
            f"board '{board.name}' cannot transfer the results of operators",
            next_step=f'Leave out --layers, or look at the same C here: --layers --target "{board.target}"',
        )


def read_trace(folder: Path, operators: int, steps: int = 1) -> tuple[TracedOperator, ...]:
    """Return the trace of each operator, step after step; raise RunError unless it has one line per operator."""
    found: list[TracedOperator] = []
    for match in map(_LINE.fullmatch, _lines(folder)):
        if match is None or int(match[1]) != len(found) % operators:
            break
        found.append(TracedOperator(int(match[2], 16), int(match[3])))
    if len(found) != operators * steps:
        raise RunError(f"expected {operators * steps} operators from the firmware, got {len(found)}", place=LINES)
    return tuple(found)


def read_calls(folder: Path, operators: int) -> tuple[CalledOperator, ...]:
    """Return the trace of each operator in a run of a dynamic model; raise RunError for a malformed line."""
    calls: list[list[tuple[int, ...]]] = [[] for _ in range(operators)]
    ticks = [0] * operators
    lines = _lines(folder)
    for number in range(0, len(lines), 2):
        match, *numbers = _LINE.fullmatch(lines[number]), *map(_NUMBERS.fullmatch, lines[number + 1 : number + 2])
        if match is None or int(match[1]) >= operators or not numbers or numbers[0] is None:
            raise RunError(f"line {number + 1} names no call of {operators} operators", place=LINES)
        calls[int(match[1])].append(tuple(map(int, numbers[0][1].split())))
        ticks[int(match[1])] += int(match[3])
    return tuple(map(CalledOperator, map(tuple, calls), ticks))


def _lines(folder: Path) -> list[str]:
    path = folder / LINES
    text = path.read_text(encoding="ascii", errors="replace") if path.is_file() else ""
    return text.splitlines()


def choose(folder: Path, sizes: Mapping[int, int], operators: int) -> None:
    """Select the operators whose outputs the next run in a folder writes.

    `sizes`: bytes of each operator's output, by operator index.
    """
    (folder / CHOSEN).write_bytes(bytes(int(index in sizes) for index in range(operators)))


def read_tensors(folder: Path, sizes: Mapping[int, int], steps: int = 1) -> list[dict[int, bytes]]:
    """Return the outputs written by each step of the run after `choose`; raise RunError if they are incomplete."""
    path = folder / TENSORS
    data = path.read_bytes() if path.is_file() else b""
    total = sum(sizes.values()) * steps
    if len(data) != total:
        raise RunError(f"the firmware wrote {len(data):,} bytes out of {total:,}", place=TENSORS)
    stream = BytesIO(data)
    return [{index: stream.read(sizes[index]) for index in sorted(sizes)} for _ in range(steps)]
